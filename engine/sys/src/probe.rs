//! Finds what the kernel offers by trying it, in children and mount namespaces that leave nothing
//! behind.

use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::dir::{Dir, Owner};
use crate::idmap::{self, Extent};
use crate::mount::{self, Depth, Flags};
use crate::process::{self, Ended, Fork};
use crate::seccomp::{self, Instruction};
use crate::{Error, Result};

const WRITABLE: Flags = Flags {
    read_only: false,
    nosuid: true,
    nodev: true,
};
const ROOT: Owner = Owner { uid: 0, gid: 0 };

/// Tries a user namespace whose ids are the slice that starts at `first`.
pub fn user_namespace(first: u32) -> Result<()> {
    idmap::user_namespace(&[slice(first)]).map(drop)
}

/// Tries an ID-mapped mount of a tmpfs; `scratch` is a directory that the caller owns.
pub fn id_mapped_mount(scratch: &Path, first: u32) -> Result<()> {
    in_child("id-mapped mount", || {
        let stage = private_tmpfs(scratch)?;
        attach_mapped(&stage, first)
    })
}

/// Tries an overlay with an ID-mapped lower, and a write to it.
pub fn overlay(scratch: &Path, first: u32) -> Result<()> {
    in_child("overlay", || {
        let stage = private_tmpfs(scratch)?;
        attach_mapped(&stage, first)?;
        for name in ["upper", "work", "root"] {
            stage.make_dir(Path::new(name), 0o755, ROOT)?;
        }
        let open = |name: &str| stage.open(Path::new(name), OFlags::PATH | OFlags::DIRECTORY);
        let (lower, upper, work) = (open("mapped")?, open("upper")?, open("work")?);
        let path = |fd: &std::os::fd::OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let options = [
            ("lowerdir", &*path(&lower)),
            ("upperdir", &*path(&upper)),
            ("workdir", &*path(&work)),
        ];
        let tree = mount::file_system("overlay", &options, &["volatile"], WRITABLE)?;
        mount::attach(&tree, open("root")?)?;
        let root = stage.open_dir(Path::new("root"))?;
        root.write_new(Path::new("probe"), b"")?;
        let seen = root.stat(Path::new("file"))?.st_uid;
        if seen == first {
            Ok(())
        } else {
            Err(Error::new("fstat", format!("uid {seen}"), Errno::OVERFLOW))
        }
    })
}

/// Tries a seccomp filter that allows everything, in a child.
pub fn seccomp_filter() -> Result<()> {
    // BPF_RET | BPF_K with SECCOMP_RET_ALLOW.
    const ALLOW: [Instruction; 1] = [Instruction {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    in_child("seccomp", || {
        process::forbid_new_privileges()?;
        seccomp::load(&ALLOW)
    })
}

/// Tries `openat2(2)`.
pub fn beneath() -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
        .map(drop)
        .map_err(Error::of("openat2", || "\"/\"".to_owned()))
}

/// Whether this host has the character device; `path` is where it usually is.
pub fn device(path: &Path, major: u32, minor: u32) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| stat.st_rdev == rustix::fs::makedev(major, minor))
}

/// Hard limit of open files (`RLIMIT_NOFILE`).
pub fn open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX)
}

const fn slice(first: u32) -> Extent {
    Extent {
        disk: 0,
        kernel: first,
        count: 65_536,
    }
}

fn private_tmpfs(scratch: &Path) -> Result<Dir> {
    mount::private_namespace()?;
    let tree = mount::tmpfs(1 << 20, 0o755, WRITABLE)?;
    mount::attach(&tree, Dir::open_trusted(scratch)?)?;
    let stage = Dir::open_trusted(scratch)?;
    stage.make_dir(Path::new("lower"), 0o755, ROOT)?;
    stage.make_dir(Path::new("mapped"), 0o755, ROOT)?;
    stage.make_file(Path::new("lower/file"), 0o644, ROOT)?;
    Ok(stage)
}

fn attach_mapped(stage: &Dir, first: u32) -> Result<()> {
    let ids = idmap::user_namespace(&[slice(first)])?;
    let lower = stage.open(Path::new("lower"), OFlags::PATH | OFlags::DIRECTORY)?;
    let tree = mount::clone_tree(&lower, Depth::Single)?;
    mount::set_attributes(&tree, WRITABLE, Depth::Single, Some(&ids))?;
    mount::attach(
        &tree,
        stage.open(Path::new("mapped"), OFlags::PATH | OFlags::DIRECTORY)?,
    )
}

/// Runs a trial in a child; its failure comes back as the errno alone.
fn in_child(what: &'static str, trial: impl FnOnce() -> Result<()>) -> Result<()> {
    match process::fork()? {
        Fork::Child => process::exit_now(match trial() {
            Ok(()) => 0,
            Err(error) => u8::try_from(error.errno().raw_os_error()).unwrap_or(u8::MAX),
        }),
        Fork::Parent(child) => match process::wait(child)? {
            Ended::Exited(0) => Ok(()),
            Ended::Exited(errno) => Err(Error::new(
                "probe",
                what,
                Errno::from_raw_os_error(errno.into()),
            )),
            Ended::Signaled { .. } => Err(Error::new("probe", what, Errno::INTR)),
        },
    }
}
