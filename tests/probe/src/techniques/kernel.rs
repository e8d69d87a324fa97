//! Kernel interfaces that reach past a file system view: knobs, devices, sockets, keys, exec.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{Scratch, Technique, mount, new_user_namespace};
use crate::attempt::{Row, Targets};
use crate::child;
use crate::raw::{Errno, addr, int, ptr, sys, text, word};

pub(super) const ALL: &[(&str, Technique)] = &[
    ("proc-sys/writable", proc_sys),
    ("proc-sys/fresh", proc_sys_fresh),
    ("sys/writable", sys_writable),
    ("cgroup/writable", cgroup_writable),
    ("cgroup/mount", cgroup_mount),
    ("dev/nodes", device_nodes),
    ("dev/mknod", make_device),
    ("socket/vsock", vsock),
    ("socket/alg", alg),
    ("socket/packet", packet),
    ("socket/netfilter", netfilter),
    ("socket/abstract", abstract_socket),
    ("call/keyctl", keyctl),
    ("call/io_uring", io_uring),
    ("call/bpf", bpf),
    ("call/perf", perf),
    ("call/userfaultfd", userfaultfd),
    ("call/ceilings", ceilings),
    ("exec/plain", exec_plain),
    ("exec/setuid", exec_setuid),
    ("exec/setcap", exec_setcap),
    ("exec/ambient", exec_ambient),
];

fn writable(path: &Path) -> bool {
    fs::OpenOptions::new().write(true).open(path).is_ok()
}

fn walk(dir: &Path, depth: u32, visit: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => walk(&entry.path(), depth - 1, visit),
            Ok(kind) if kind.is_file() => visit(&entry.path()),
            Ok(_) | Err(_) => {}
        }
    }
}

fn writable_below(dir: &Path, depth: u32, relevant: impl Fn(&Path) -> bool) -> Row {
    let mut row = Row::default();
    walk(dir, depth, &mut |path| {
        if relevant(path) && writable(path) {
            row.note("writable", path.display().to_string());
            row.reached();
        }
    });
    row
}

fn proc_sys(_targets: &Targets, _scratch: &Scratch) -> Row {
    writable_below(Path::new("/proc/sys"), 8, |_| true)
}

/// The knobs that act on the host, through a proc mount of one's own.
fn proc_sys_fresh(_targets: &Targets, scratch: &Scratch) -> Row {
    let point = scratch.dir("proc");
    let mut row = Row::default();
    if let Err(why) = new_user_namespace(0x2002_0000) {
        row.note("footing", why);
        return row;
    }
    let inner = child::run(10_000, || {
        let mut row = Row::step("proc", word(&mount("proc", &point, "proc", 0, "")));
        for knob in [
            "sys/kernel/core_pattern",
            "sys/kernel/modprobe",
            "sys/kernel/hotplug",
            "sys/kernel/poweroff_cmd",
            "sys/kernel/usermodehelper/bset",
            "sys/vm/panic_on_oom",
            "sys/fs/binfmt_misc/register",
            "sys/kernel/sysrq",
            "sysrq-trigger",
            "kcore",
            "kmsg",
        ] {
            if writable(&point.join(knob)) {
                row.note("writable", knob);
                row.reached();
            }
        }
        serde_json::to_string(&row).unwrap_or_default()
    });
    row.merge(serde_json::from_str(&inner.word()).unwrap_or_default());
    row
}

fn sys_writable(_targets: &Targets, _scratch: &Scratch) -> Row {
    writable_below(Path::new("/sys"), 4, |path| {
        !path.starts_with("/sys/fs/cgroup")
    })
}

fn cgroup_files(dir: &Path) -> Row {
    writable_below(dir, 6, |path| {
        matches!(
            path.file_name().and_then(|name| name.to_str()),
            Some("release_agent" | "cgroup.procs" | "tasks" | "notify_on_release")
        )
    })
}

fn cgroup_writable(_targets: &Targets, _scratch: &Scratch) -> Row {
    cgroup_files(Path::new("/sys/fs/cgroup"))
}

fn cgroup_mount(_targets: &Targets, scratch: &Scratch) -> Row {
    let point = scratch.dir("cgroup");
    let mut row = cgroup_try(&point);
    let deeper = child::run(10_000, || {
        let row = match new_user_namespace(0x0202_0000) {
            Ok(()) => cgroup_try(&point),
            Err(why) => Row::step("footing", why),
        };
        serde_json::to_string(&row).unwrap_or_default()
    });
    row.merge(serde_json::from_str(&deeper.word()).unwrap_or_default());
    row
}

fn cgroup_try(point: &Path) -> Row {
    let mut row = Row::default();
    for (kind, options) in [
        ("cgroup", "memory"),
        ("cgroup", "pids"),
        ("cgroup", "none,name=probe"),
        ("cgroup2", ""),
    ] {
        let mounted = mount("none", point, kind, 0, options);
        row.note(&format!("{kind}({options})"), word(&mounted));
        if mounted.is_ok() {
            row.merge(cgroup_files(point));
            let name = text(point);
            let _undone = sys(libc::SYS_umount2, &[addr(&name), 2]);
        }
    }
    row
}

fn device_nodes(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for entry in fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(found) = fs::metadata(entry.path()) else {
            continue;
        };
        if found.file_type().is_block_device() {
            row.reached();
        }
        if ["mem", "kmem", "port", "kmsg", "kvm", "vsock", "vhost-vsock"].contains(&name.as_str())
            && fs::File::open(entry.path()).is_ok()
        {
            row.note("open", &name);
            row.reached();
        }
    }
    row
}

fn make_device(_targets: &Targets, scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for (name, mode, device) in [
        ("mem", libc::S_IFCHR, 0x101),
        ("null", libc::S_IFCHR, 0x103),
        ("disk", libc::S_IFBLK, 0xfe00),
    ] {
        let path = scratch.path(name);
        let node = text(&path);
        let made = sys(
            libc::SYS_mknod,
            &[addr(&node), u64::from(mode | 0o666), device],
        );
        row.note(name, word(&made));
        if made.is_ok() && fs::File::open(&path).is_ok() {
            row.reached();
        }
    }
    row
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<u64, Errno> {
    sys(libc::SYS_socket, &[int(family), int(kind), int(protocol)])
}

fn reach(name: &str, result: Result<u64, Errno>) -> Row {
    let mut row = Row::step(name, word(&result));
    if result.is_ok() {
        row.reached();
    }
    row
}

fn vsock(_targets: &Targets, _scratch: &Scratch) -> Row {
    reach("socket", socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0))
}

fn alg(_targets: &Targets, _scratch: &Scratch) -> Row {
    reach("socket", socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0))
}

fn packet(_targets: &Targets, _scratch: &Scratch) -> Row {
    reach("socket", socket(libc::AF_PACKET, libc::SOCK_RAW, 0))
}

fn netfilter(_targets: &Targets, _scratch: &Scratch) -> Row {
    reach(
        "socket",
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
    )
}

fn abstract_socket(targets: &Targets, _scratch: &Scratch) -> Row {
    let Some(name) = &targets.abstract_socket else {
        return Row::default();
    };
    let opened = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
    let mut row = Row::step("socket", word(&opened));
    if let Ok(fd) = opened {
        let mut address = libc::AF_UNIX.to_ne_bytes()[..2].to_vec();
        address.push(0);
        address.extend_from_slice(name.as_bytes());
        let connected = sys(
            libc::SYS_connect,
            &[fd, ptr(address.as_slice()), address.len() as u64],
        );
        row.merge(reach("connect", connected));
    }
    row
}

fn keyctl(_targets: &Targets, _scratch: &Scratch) -> Row {
    let (kind, name) = (text("user"), text("casemate-probe"));
    let session = int(-3);
    let mut row = reach("keyctl", sys(libc::SYS_keyctl, &[0, session, 0]));
    row.merge(reach(
        "request_key",
        sys(
            libc::SYS_request_key,
            &[addr(&kind), addr(&name), 0, session],
        ),
    ));
    row.merge(reach(
        "add_key",
        sys(
            libc::SYS_add_key,
            &[addr(&kind), addr(&name), addr(&name), 1, session],
        ),
    ));
    row
}

fn io_uring(_targets: &Targets, _scratch: &Scratch) -> Row {
    let params = [0_u64; 15];
    reach(
        "io_uring_setup",
        sys(libc::SYS_io_uring_setup, &[1, ptr(&params)]),
    )
}

fn bpf(_targets: &Targets, _scratch: &Scratch) -> Row {
    // BPF_MAP_CREATE: an array of one 4-byte value.
    let attr = [2_u32, 4, 4, 1, 0, 0, 0, 0];
    reach("bpf", sys(libc::SYS_bpf, &[0, ptr(&attr), 32]))
}

fn perf(_targets: &Targets, _scratch: &Scratch) -> Row {
    // PERF_TYPE_SOFTWARE, PERF_ATTR_SIZE_VER0.
    let attr = [1_u64 | (64 << 32), 0, 0, 0, 0, 0, 0, 0];
    reach(
        "perf_event_open",
        sys(
            libc::SYS_perf_event_open,
            &[ptr(&attr), 0, int(-1), int(-1), 0],
        ),
    )
}

fn userfaultfd(_targets: &Targets, _scratch: &Scratch) -> Row {
    // UFFD_USER_MODE_ONLY
    reach("userfaultfd", sys(libc::SYS_userfaultfd, &[1]))
}

/// Raises the namespace ceilings again and makes a namespace under them.
fn ceilings(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for name in ["max_user_namespaces", "max_mnt_namespaces"] {
        let raised = fs::write(format!("/proc/sys/user/{name}"), "100").map_err(Errno::from);
        row.note(name, word(&raised));
    }
    row.note("unshare", word(&sys(libc::SYS_unshare, &[0x1000_0000])));
    row
}

/// Copies this program, which is the one thing that is certain to run here.
fn copy_self(scratch: &Scratch, mode: u32) -> Result<PathBuf, Errno> {
    let copy = scratch.path("probe");
    fs::copy("/proc/self/exe", &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(mode))?;
    Ok(copy)
}

/// Runs the copy as `caps`, which prints its capability sets, and notes what it says.
fn exec(program: &Path, before: impl FnOnce() -> Result<u64, Errno>) -> Row {
    let said = child::run(10_000, || {
        let prepared = before();
        if prepared.is_err() {
            return format!("prepare:{}", word(&prepared));
        }
        match std::process::Command::new(program).arg("caps").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(error) => format!("exec:{}", Errno::from(error).name()),
        }
    });
    Row::step("caps", said.word())
}

fn exec_plain(_targets: &Targets, scratch: &Scratch) -> Row {
    match copy_self(scratch, 0o755) {
        Ok(copy) => exec(&copy, || Ok(0)),
        Err(errno) => Row::step("copy", errno.name()),
    }
}

/// Gives up uid 0 and executes a setuid copy that belongs to it.
fn exec_setuid(_targets: &Targets, scratch: &Scratch) -> Row {
    match copy_self(scratch, 0o4755) {
        Ok(copy) => exec(&copy, || {
            let id = 1000;
            sys(libc::SYS_setresgid, &[id, id, id])?;
            sys(libc::SYS_setresuid, &[id, id, id])
        }),
        Err(errno) => Row::step("copy", errno.name()),
    }
}

fn exec_setcap(_targets: &Targets, scratch: &Scratch) -> Row {
    let copy = match copy_self(scratch, 0o755) {
        Ok(copy) => copy,
        Err(errno) => return Row::step("copy", errno.name()),
    };
    // struct vfs_cap_data, revision 2, effective, all permitted.
    let data = [0x0200_0001_u32, u32::MAX, 0, 0x1ff, 0];
    let (path, name) = (text(&copy), text("security.capability"));
    let set = sys(
        libc::SYS_setxattr,
        &[addr(&path), addr(&name), ptr(&data), 20, 0],
    );
    let mut row = exec(&copy, || Ok(0));
    row.note("setxattr", word(&set));
    row
}

fn exec_ambient(_targets: &Targets, scratch: &Scratch) -> Row {
    const PR_CAP_AMBIENT_RAISE: u64 = 2;
    const CAP_SYS_ADMIN: u64 = 21;
    match copy_self(scratch, 0o755) {
        Ok(copy) => exec(&copy, || {
            let _refused_without_inheritable = sys(
                libc::SYS_prctl,
                &[
                    int(libc::PR_CAP_AMBIENT),
                    PR_CAP_AMBIENT_RAISE,
                    CAP_SYS_ADMIN,
                ],
            );
            Ok(0)
        }),
        Err(errno) => Row::step("copy", errno.name()),
    }
}
