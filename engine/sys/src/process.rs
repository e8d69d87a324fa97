//! Processes: `fork(2)`, `execvp(3)`, `wait4(2)`, pidfds, `prctl(2)` switches and identity.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
pub use rustix::process::Pid;
use rustix::process::{DumpableBehavior, PidfdFlags, WaitOptions, WaitStatus};
use rustix::thread::{Gid, Uid};

use crate::error::{Error, Result};

unsafe extern "C" {
    /// glibc ≥ 2.32: non-zero while the process has never had a second thread.
    static __libc_single_threaded: libc::c_char;
}

/// In which of the two processes `fork` has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The new process.
    Child,
    /// The caller; the child is a zombie until it is waited for.
    Parent(Pid),
}

/// How a process ended (`wait(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It called `exit` with this status.
    Exited(u8),
    /// A signal killed it.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// Whether it dumped core.
        core: bool,
    },
}

impl Ended {
    /// The status that a shell would report: the own one, or 128 + the signal.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled { signal, core: _ } => 128 | signal.to_le_bytes()[0],
        }
    }
}

/// `fork(2)`. Refused with `EDEADLK` in a process that has ever had a second thread: locks that
/// another thread holds stay locked in the child.
pub fn fork() -> Result<Fork> {
    refuse_threads("fork")?;
    // SAFETY: the process has one thread, so the child has all of the parent's threads and no lock
    // is held by one that is missing.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::last("fork", ""));
    }
    Ok(Pid::from_raw(pid).map_or(Fork::Child, Fork::Parent))
}

/// [`fork`] whose child begins in a group of the version 2 hierarchy (`clone3(2)`,
/// `CLONE_INTO_CGROUP`). The move of a process that exists would wait for a grace period.
pub fn fork_into(group: impl AsFd) -> Result<Fork> {
    use std::os::fd::AsRawFd as _;
    /// `linux/sched.h`; the constant of the `libc` crate does not fit its type.
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    refuse_threads("clone3")?;
    let group = group.as_fd().as_raw_fd();
    let arguments = libc::clone_args {
        flags: CLONE_INTO_CGROUP,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: u64::try_from(libc::SIGCHLD).unwrap_or_default(),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: u64::try_from(group).unwrap_or(u64::MAX),
    };
    // SAFETY: without CLONE_VM and with no stack of its own the child is a copy of this process as
    // after fork(2), which has one thread; the structure is initialised and passed with its size.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    };
    if pid < 0 {
        return Err(Error::last("clone3", "CLONE_INTO_CGROUP"));
    }
    let pid = i32::try_from(pid).unwrap_or_default();
    Ok(Pid::from_raw(pid).map_or(Fork::Child, Fork::Parent))
}

fn refuse_threads(call: &'static str) -> Result<()> {
    // SAFETY: glibc defines the variable for the whole life of the process; it is written only by
    // pthread_create in a thread of this process, before the second thread exists.
    let single_threaded = unsafe { __libc_single_threaded };
    if single_threaded == 0 {
        return Err(Error::new(call, "", Errno::DEADLK));
    }
    Ok(())
}

/// `execvp(3)` with the process's own environment: a name without `/` is looked up in `PATH`.
/// Returns only when it fails; the arguments are not part of the error.
pub fn exec(argv: &[CString]) -> Error {
    let Some(program) = argv.first() else {
        return Error::new("execvp", "", Errno::INVAL);
    };
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: `program` and every word live in `argv`, which outlives the call, end in NUL, and the
    // array of pointers ends in a null pointer.
    unsafe {
        libc::execvp(program.as_ptr(), pointers.as_ptr());
    }
    Error::last("execvp", format!("{program:?}, …"))
}

/// `_exit(2)`: ends the process without running destructors or exit handlers.
pub fn exit_now(status: u8) -> ! {
    // SAFETY: the call has no precondition and does not return.
    unsafe { libc::_exit(i32::from(status)) }
}

/// Takes one dead child if there is one (`wait4(-1, WNOHANG)`).
pub fn reap() -> Result<Option<(Pid, Ended)>> {
    match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(Some((pid, status))) => Ok(ended(status).map(|ended| (pid, ended))),
        Ok(None) | Err(Errno::CHILD) => Ok(None),
        Err(errno) => Err(Error::new("wait4", "-1, WNOHANG", errno)),
    }
}

/// Waits until the child `pid` has ended.
pub fn wait(pid: Pid) -> Result<Ended> {
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                if let Some(ended) = ended(status) {
                    return Ok(ended);
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::new("wait4", pid.to_string(), errno)),
        }
    }
}

fn ended(status: WaitStatus) -> Option<Ended> {
    const CORE: i32 = 0x80;
    if let Some(code) = status.exit_status() {
        return Some(Ended::Exited(code.to_le_bytes()[0]));
    }
    status.terminating_signal().map(|signal| Ended::Signaled {
        signal,
        core: status.as_raw() & CORE != 0,
    })
}

/// `pidfd_open(2)`: a descriptor that stays this process, however the number is used later.
pub fn pidfd_open(pid: Pid) -> Result<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(Error::of("pidfd_open", || format!("{pid}, 0")))
}

/// Whether the process behind a pidfd still runs; while it does, its number cannot have been given
/// to another process. One that has ended and was not waited for does not run: it is readable
/// (`pidfd_open(2)`), but signal 0 would reach it.
pub fn pidfd_is_alive(pidfd: impl AsFd) -> Result<bool> {
    let pidfd = pidfd.as_fd();
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now))) {
        Ok(ready) => Ok(ready == 0),
        Err(errno) => Err(Error::new("ppoll", "pidfd", errno)),
    }
}

/// `pidfd_send_signal(2)`; signal 0 only checks.
pub fn pidfd_send(pidfd: impl AsFd, signal: i32) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    let pidfd = pidfd.as_fd().as_raw_fd();
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is borrowed for the call; a null siginfo means that of `kill(2)`.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, none, 0) };
    match answer {
        0 => Ok(()),
        _ => Err(Error::last(
            "pidfd_send_signal",
            format!("{pidfd}, {signal}, NULL, 0"),
        )),
    }
}

/// `kill(2)` on one process.
pub fn kill(pid: Pid, signal: i32) -> Result<()> {
    // SAFETY: the call has no precondition; `pid` is positive, so it names one process.
    match unsafe { libc::kill(pid.as_raw_pid(), signal) } {
        0 => Ok(()),
        _ => Err(Error::last("kill", format!("{pid}, {signal}"))),
    }
}

/// `getpid(2)`.
pub fn id() -> Pid {
    rustix::process::getpid()
}

/// `PR_SET_DUMPABLE` 0: nobody without `CAP_SYS_PTRACE` over the user namespace in which the
/// program was executed may trace the process or open its `/proc` files.
pub fn forbid_dump() -> Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(Error::of("prctl", || "PR_SET_DUMPABLE, 0".to_owned()))
}

/// `PR_SET_NO_NEW_PRIVS`: no exec grants a privilege any more.
pub fn forbid_new_privileges() -> Result<()> {
    rustix::thread::set_no_new_privs(true)
        .map_err(Error::of("prctl", || "PR_SET_NO_NEW_PRIVS, 1".to_owned()))
}

/// `PR_SET_CHILD_SUBREAPER`: orphans below this process become its children.
pub fn become_subreaper() -> Result<()> {
    rustix::process::set_child_subreaper(Some(id())).map_err(Error::of("prctl", || {
        "PR_SET_CHILD_SUBREAPER, 1".to_owned()
    }))
}

/// `setsid(2)`.
pub fn new_session() -> Result<()> {
    rustix::process::setsid()
        .map(drop)
        .map_err(Error::of("setsid", String::new))
}

/// `setgroups(2)` with no group.
pub fn clear_groups() -> Result<()> {
    rustix::thread::set_thread_groups(&[]).map_err(Error::of("setgroups", || "0, NULL".to_owned()))
}

/// Real, effective and saved ids of the calling thread: group first, the user's power ends last.
pub fn set_ids(uid: u32, gid: u32) -> Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(Some(group), Some(group), Some(group))
        .map_err(Error::of("setresgid", || format!("{gid}, {gid}, {gid}")))?;
    rustix::thread::set_thread_res_uid(Some(user), Some(user), Some(user))
        .map_err(Error::of("setresuid", || format!("{uid}, {uid}, {uid}")))
}

/// Real user and group id.
pub fn ids() -> (u32, u32) {
    (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    )
}

/// `chdir(2)`, and the working directory as the kernel sees it afterwards. It is refused with
/// `EXDEV` when it lies outside the root, where the kernel's answer does not begin with `/`.
pub fn enter_directory(path: &CStr) -> Result<CString> {
    rustix::process::chdir(path).map_err(Error::of("chdir", || format!("{path:?}")))?;
    let place = rustix::process::getcwd(Vec::new()).map_err(Error::of("getcwd", String::new))?;
    if place.to_bytes().first() != Some(&b'/') {
        return Err(Error::new("getcwd", format!("{place:?}"), Errno::XDEV));
    }
    Ok(place)
}
