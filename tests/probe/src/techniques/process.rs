//! Other processes: what they can see, hold and remember; and the namespaces they live in.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{Scratch, Technique};
use crate::attempt::{Row, Targets, contains_mark};
use crate::facts;
use crate::raw::{Errno, addr, at_cwd, int, ptr, ptr_mut, sys, text, word};

const NS_GET_USERNS: u64 = 0xb701;
const NS_GET_PARENT: u64 = 0xb702;
const PTRACE_ATTACH: u64 = 16;
const PTRACE_DETACH: u64 = 17;
const PTRACE_SEIZE: u64 = 0x4206;

pub(super) const ALL: &[(&str, Technique)] = &[
    ("proc/root", proc_root),
    ("proc/cwd", proc_cwd),
    ("proc/fd", proc_fd),
    ("proc/environ", proc_environ),
    ("proc/mem", proc_mem),
    ("proc/exe", proc_exe),
    ("proc/map_files", proc_map_files),
    ("pid1/ptrace-attach", ptrace_attach),
    ("pid1/ptrace-seize", ptrace_seize),
    ("pid1/process_vm_readv", vm_readv),
    ("pid1/process_vm_writev", vm_writev),
    ("pid1/pidfd_getfd", pidfd_getfd),
    ("pid1/kcmp", kcmp),
    ("pid1/process_madvise", process_madvise),
    ("pid1/prlimit", prlimit),
    ("pid1/kill", kill_pid1),
    ("pid1/stop", stop_pid1),
    ("kill/all", kill_all),
    ("setns/pid1", setns_pid1),
    ("setns/pidfd", setns_pidfd),
    ("setns/parents", setns_parents),
];

/// Processes that are not this one's ancestors or itself, and PID 1.
fn others() -> Vec<u32> {
    let own = std::process::id();
    let parent = std::os::unix::process::parent_id();
    facts::pids()
        .into_iter()
        .filter(|pid| *pid != own && *pid != parent)
        .collect()
}

fn through(targets: &Targets, link: &str) -> Row {
    let mut row = Row::default();
    for pid in others() {
        let path = PathBuf::from(format!("/proc/{pid}/{link}"));
        let followed = fs::read_link(&path).map(|_| ()).map_err(Errno::from);
        row.note("readlink", word(&followed));
        row.merge(targets.look_at(Path::new("/"), &path));
        row.merge(targets.look_at(&targets.workspace, &path));
    }
    row
}

fn proc_root(targets: &Targets, _scratch: &Scratch) -> Row {
    through(targets, "root")
}

fn proc_cwd(targets: &Targets, _scratch: &Scratch) -> Row {
    through(targets, "cwd")
}

fn proc_fd(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for pid in others() {
        for name in facts::names(&format!("/proc/{pid}/fd")) {
            if name.parse::<u32>().is_err() {
                row.note("readdir", name);
                continue;
            }
            let path = PathBuf::from(format!("/proc/{pid}/fd/{name}"));
            // Opening a pipe or a terminal could block; only files and directories hold secrets.
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    row.note("stat", "directory");
                    row.merge(targets.look_at(&targets.workspace, &path));
                }
                Ok(found) if found.is_file() => {
                    row.note("stat", "file");
                    row.merge(content(&path));
                }
                Ok(_) => row.note("stat", "other"),
                Err(error) => row.note("stat", Errno::from(error).name()),
            }
        }
    }
    row
}

fn content(path: &Path) -> Row {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(1 << 20).read_to_end(&mut bytes));
    let mut row = Row::step("read", word(&read.map_err(Errno::from)));
    if contains_mark(&bytes) {
        "REVEALED".clone_into(&mut row.read);
    }
    row
}

fn proc_environ(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for pid in others() {
        row.merge(content(Path::new(&format!("/proc/{pid}/environ"))));
        row.merge(content(Path::new(&format!("/proc/{pid}/cmdline"))));
    }
    row
}

fn open_each(file: &str, writable: bool) -> Row {
    let mut row = Row::default();
    for pid in others() {
        let opened = fs::OpenOptions::new()
            .read(true)
            .write(writable)
            .open(format!("/proc/{pid}/{file}"));
        if opened.is_ok() {
            row.reached();
        }
        row.note("open", word(&opened.map_err(Errno::from)));
    }
    row
}

fn proc_mem(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = open_each("mem", false);
    row.merge(open_each("mem", true));
    row
}

fn proc_exe(_targets: &Targets, _scratch: &Scratch) -> Row {
    open_each("exe", true)
}

fn proc_map_files(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for pid in others() {
        let listed = fs::read_dir(format!("/proc/{pid}/map_files"));
        row.note("readdir", word(&listed.map(|_| ()).map_err(Errno::from)));
    }
    row.merge(targets.look());
    row
}

fn outcome(name: &str, result: Result<u64, Errno>) -> Row {
    let mut row = Row::step(name, word(&result));
    if result.is_ok() {
        row.reached();
    }
    row
}

fn ptrace_attach(_targets: &Targets, _scratch: &Scratch) -> Row {
    let attached = sys(libc::SYS_ptrace, &[PTRACE_ATTACH, 1]);
    let row = outcome("ptrace", attached);
    if attached.is_ok() {
        // It has to stop before it can be let go, or it would stay stopped.
        let mut status = 0_i32;
        let _stopped = sys(
            libc::SYS_wait4,
            &[1, ptr_mut(&mut status), int(libc::__WALL)],
        );
        let _undone = sys(libc::SYS_ptrace, &[PTRACE_DETACH, 1]);
    }
    row
}

fn ptrace_seize(_targets: &Targets, _scratch: &Scratch) -> Row {
    let row = outcome("ptrace", sys(libc::SYS_ptrace, &[PTRACE_SEIZE, 1]));
    let _undone = sys(libc::SYS_ptrace, &[PTRACE_DETACH, 1]);
    row
}

/// Transfers the first bytes of a page where every static program has code.
fn vm_transfer(nr: i64) -> Row {
    let mut buffer = [0_u8; 16];
    let local = [ptr_mut(&mut buffer), 16_u64];
    let remote = [0x40_0000_u64, 16];
    let done = sys(nr, &[1, ptr(&local), 1, ptr(&remote), 1, 0]);
    // A bad address is found only after the permission check.
    let passed = done.or_else(|errno| {
        if errno.0 == libc::EFAULT {
            Ok(0)
        } else {
            Err(errno)
        }
    });
    outcome("transfer", passed)
}

fn vm_readv(_targets: &Targets, _scratch: &Scratch) -> Row {
    vm_transfer(libc::SYS_process_vm_readv)
}

fn vm_writev(_targets: &Targets, _scratch: &Scratch) -> Row {
    vm_transfer(libc::SYS_process_vm_writev)
}

fn open_pidfd() -> Result<u64, Errno> {
    sys(libc::SYS_pidfd_open, &[1])
}

fn pidfd_getfd(_targets: &Targets, _scratch: &Scratch) -> Row {
    let pidfd = open_pidfd();
    let mut row = Row::step("pidfd_open", word(&pidfd));
    if let Ok(pidfd) = pidfd {
        for fd in 0..64 {
            row.merge(outcome(
                "pidfd_getfd",
                sys(libc::SYS_pidfd_getfd, &[pidfd, fd]),
            ));
        }
    }
    row
}

fn kcmp(_targets: &Targets, _scratch: &Scratch) -> Row {
    let own = u64::from(std::process::id());
    outcome("kcmp", sys(libc::SYS_kcmp, &[own, 1, 2, 0, 0]))
}

fn process_madvise(_targets: &Targets, _scratch: &Scratch) -> Row {
    let pidfd = open_pidfd();
    let mut row = Row::step("pidfd_open", word(&pidfd));
    if let Ok(pidfd) = pidfd {
        let range = [0x40_0000_u64, 4096];
        let advised = sys(libc::SYS_process_madvise, &[pidfd, ptr(&range), 1, 20]);
        row.merge(outcome("process_madvise", advised));
    }
    row
}

fn prlimit(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut old = [0_u64; 2];
    let read = sys(libc::SYS_prlimit64, &[1, 7, 0, ptr_mut(&mut old)]);
    // Same user: the kernel allows it, and no limit of PID 1 protects anything.
    Row::step("prlimit64", word(&read))
}

fn pid1_state() -> String {
    let stat = facts::first_line("/proc/1/stat");
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.map_or_else(
        || "gone".to_owned(),
        |state| if state == 'R' { 'S' } else { state }.to_string(),
    )
}

fn signal_pid1(signal: i32) -> Row {
    let mut row = Row::step("kill", word(&sys(libc::SYS_kill, &[1, int(signal)])));
    row.note("pid1", pid1_state());
    row
}

fn kill_pid1(_targets: &Targets, _scratch: &Scratch) -> Row {
    signal_pid1(libc::SIGKILL)
}

fn stop_pid1(_targets: &Targets, _scratch: &Scratch) -> Row {
    signal_pid1(libc::SIGSTOP)
}

/// The null signal to all that may be signalled; the count of processes is a fact elsewhere.
fn kill_all(_targets: &Targets, _scratch: &Scratch) -> Row {
    Row::step("kill", word(&sys(libc::SYS_kill, &[int(-1), 0])))
}

fn enter(targets: &Targets, name: &str, fd: u64, kind: u64) -> Row {
    let entered = sys(libc::SYS_setns, &[fd, kind]);
    let mut row = Row::step(name, word(&entered));
    if entered.is_ok() {
        row.merge(targets.look());
    }
    row
}

fn setns_pid1(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let path = text(format!("/proc/1/ns/{name}"));
        let opened = sys(libc::SYS_openat, &[at_cwd(), addr(&path), 0]);
        row.note("open", word(&opened));
        if let Ok(fd) = opened {
            row.merge(enter(targets, name, fd, 0));
        }
    }
    row
}

fn setns_pidfd(targets: &Targets, _scratch: &Scratch) -> Row {
    let pidfd = open_pidfd();
    let mut row = Row::step("pidfd_open", word(&pidfd));
    if let Ok(pidfd) = pidfd {
        for (name, kind) in [
            ("user+mnt", 0x1002_0000),
            ("mnt", 0x2_0000),
            ("net", 0x4000_0000),
        ] {
            row.merge(enter(targets, name, pidfd, kind));
        }
    }
    row
}

/// Climbs from the own namespaces to their parents and owners as far as the kernel lets.
fn setns_parents(targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    for name in ["user", "pid", "mnt", "net"] {
        let path = text(format!("/proc/self/ns/{name}"));
        let mut fd = sys(libc::SYS_openat, &[at_cwd(), addr(&path), 0]);
        let request = if name == "user" || name == "pid" {
            NS_GET_PARENT
        } else {
            NS_GET_USERNS
        };
        for _ in 0..4 {
            let Ok(current) = fd else { break };
            fd = sys(libc::SYS_ioctl, &[current, request]);
            row.note(&format!("{name}-up"), word(&fd));
            if let Ok(upper) = fd {
                row.merge(enter(targets, &format!("{name}-setns"), upper, 0));
            }
        }
    }
    row
}
