//! Signals taken from a queue: mask, wait, dispositions (`signal(7)`).

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{Error, Result};

/// `SIGHUP`
pub const HUP: i32 = libc::SIGHUP;
/// `SIGKILL`
pub const KILL: i32 = libc::SIGKILL;
/// `SIGPIPE`
pub const PIPE: i32 = libc::SIGPIPE;
/// `SIGCHLD`
pub const CHLD: i32 = libc::SIGCHLD;
/// `SIGCONT`
pub const CONT: i32 = libc::SIGCONT;

/// The kernel's last signal number (`_NSIG`).
const LAST: i32 = 64;

/// A signal taken from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub signal: i32,
    /// `si_code`; only `SI_USER` and `SI_TKILL` have a sender that nobody can forge.
    pub code: i32,
    /// `si_pid`: the sender in our pid namespace, 0 when it is outside.
    pub pid: i32,
}

impl Taken {
    /// Whether a process outside our pid namespace sent it with `kill(2)` or a pidfd.
    /// `SI_QUEUE` does not count: its sender writes `si_pid` itself.
    pub const fn is_from_outside(self) -> bool {
        self.code == libc::SI_USER && self.pid == 0
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalSet")
    }
}

impl SignalSet {
    /// Every signal.
    pub fn all() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the whole set and cannot fail on a valid pointer.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
        }
        // SAFETY: initialised by the call above.
        Self(unsafe { set.assume_init() })
    }

    /// The given signals; numbers that are no signal are left out.
    pub fn of(signals: &[i32]) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the whole set and cannot fail on a valid pointer.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
        }
        // SAFETY: initialised by the call above.
        let mut set = unsafe { set.assume_init() };
        for &signal in signals {
            // SAFETY: the set is initialised; a bad number is answered with EINVAL.
            unsafe {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        Self(set)
    }
}

/// Makes `set` the mask of blocked signals.
pub fn set_mask(set: &SignalSet) -> Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    let answer =
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set.0, std::ptr::null_mut()) };
    match answer {
        0 => Ok(()),
        _ => Err(Error::last("rt_sigprocmask", "SIG_SETMASK, …")),
    }
}

/// Waits for one of the (blocked) signals of `set`.
pub fn wait(set: &SignalSet) -> Result<Taken> {
    let mut info = MaybeUninit::zeroed();
    loop {
        // SAFETY: the set is initialised and `info` is writable for a whole siginfo_t.
        let signal = unsafe { libc::sigwaitinfo(&raw const set.0, info.as_mut_ptr()) };
        if signal > 0 {
            // SAFETY: zeroed, then filled by the call above.
            return Ok(taken(signal, unsafe { info.assume_init_ref() }));
        }
        let error = Error::last("rt_sigtimedwait", "…, NULL");
        if error.errno() != Errno::INTR {
            return Err(error);
        }
    }
}

/// Waits at most `timeout` for one of the (blocked) signals of `set`.
pub fn wait_for(set: &SignalSet, timeout: Duration) -> Result<Option<Taken>> {
    let mut info = MaybeUninit::zeroed();
    let timespec = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: set and time are initialised and `info` is writable for a whole siginfo_t.
    let signal =
        unsafe { libc::sigtimedwait(&raw const set.0, info.as_mut_ptr(), &raw const timespec) };
    if signal > 0 {
        // SAFETY: zeroed, then filled by the call above.
        return Ok(Some(taken(signal, unsafe { info.assume_init_ref() })));
    }
    let error = Error::last("rt_sigtimedwait", format!("…, {timeout:?}"));
    match error.errno() {
        Errno::AGAIN | Errno::INTR => Ok(None),
        _ => Err(error),
    }
}

fn taken(signal: i32, info: &libc::siginfo_t) -> Taken {
    // SAFETY: for SI_USER, SI_QUEUE, SI_TKILL and SIGCHLD the kernel fills si_pid; for the others
    // the bytes are zero or another plain integer, and the code decides whether they are used.
    let pid = unsafe { info.si_pid() };
    Taken {
        signal,
        code: info.si_code,
        pid,
    }
}

/// Ignores one signal.
pub fn ignore(signal: i32) -> Result<()> {
    set_disposition(signal, libc::SIG_IGN)
}

/// Gives one signal its default action.
pub fn reset(signal: i32) -> Result<()> {
    set_disposition(signal, libc::SIG_DFL)
}

/// Gives every signal its default action and unblocks all: what a freshly executed program expects.
pub fn reset_all() -> Result<()> {
    for signal in 1..=LAST {
        // They have one action only.
        if !matches!(signal, libc::SIGKILL | libc::SIGSTOP) {
            reset(signal)?;
        }
    }
    set_mask(&SignalSet::of(&[]))
}

/// `struct sigaction` as the kernel has it, for an action without a handler: the fields after the
/// first stand in another order on some architectures and are all zero.
#[repr(C)]
struct KernelAction {
    action: libc::sighandler_t,
    rest: [u64; 3],
}

/// By the bare call: the C library refuses 32 and 33, its own, but an ignored one is inherited.
fn set_disposition(signal: i32, action: libc::sighandler_t) -> Result<()> {
    const MASK_BYTES: usize = 8;
    let new = KernelAction {
        action,
        rest: [0; 3],
    };
    let old = std::ptr::null_mut::<KernelAction>();
    // SAFETY: SIG_DFL and SIG_IGN run no code of ours; the structure is at least as long as the
    // kernel's and alive for the call, and the old action is not asked for.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            &raw const new,
            old,
            MASK_BYTES,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(Error::last("rt_sigaction", format!("{signal}, {action}"))),
    }
}
