//! The controlling terminal (`tty(4)`, `TIOCSCTTY(2const)`).

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Whether the descriptor is a terminal.
pub fn is_terminal(fd: impl AsFd) -> bool {
    rustix::termios::isatty(fd)
}

/// Gives up the controlling terminal if it is this one. A session leader's foreground group gets
/// SIGHUP and SIGCONT.
pub fn leave(terminal: impl AsFd) -> Result<()> {
    let fd = terminal.as_fd().as_raw_fd();
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(fd, libc::TIOCNOTTY) } == 0 {
        return Ok(());
    }
    let error = Error::last("ioctl", format!("{fd}, TIOCNOTTY"));
    match error.errno() {
        // It is not our controlling terminal.
        Errno::NOTTY => Ok(()),
        _ => Err(error),
    }
}

/// Makes the terminal the controlling one of the session that the caller leads.
pub fn acquire(terminal: impl AsFd) -> Result<()> {
    let terminal = terminal.as_fd();
    rustix::process::ioctl_tiocsctty(terminal)
        .map_err(Error::of("ioctl", || format!("{terminal:?}, TIOCSCTTY")))
}
