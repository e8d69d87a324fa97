//! A failed system call with its arguments, printed the way `strace(1)` prints it.

use std::fmt;

use rustix::io::Errno;

/// An error with its causes on one line, for the log or an operator.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// What every function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A system call that failed.
///
/// The text names the call, its arguments and the errno, for example
/// `openat2(5, "etc/passwd", O_PATH) = -1 ELOOP (Too many levels of symbolic links)`. Arguments may
/// be host paths: the text is for the operator's log and never for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::error_impl_error,
    reason = "the one error of this crate, read as casemate_sys::Error"
)]
pub struct Error {
    call: &'static str,
    arguments: String,
    errno: Errno,
}

impl Error {
    /// A failure of `call`, with its arguments already written the way they shall be printed.
    pub fn new(call: &'static str, arguments: impl Into<String>, errno: Errno) -> Self {
        Self {
            call,
            arguments: arguments.into(),
            errno,
        }
    }

    /// Turns a bare errno into this error; `arguments` runs on failure only:
    /// `rustix_call(…).map_err(Error::of("openat", || format!("{dir:?}, {path:?}")))`.
    pub fn of(
        call: &'static str,
        arguments: impl FnOnce() -> String,
    ) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::new(call, arguments(), errno)
    }

    /// The failure that the C library has just left in `errno`.
    pub(crate) fn last(call: &'static str, arguments: impl Into<String>) -> Self {
        let errno = std::io::Error::last_os_error();
        Self::new(
            call,
            arguments,
            Errno::from_io_error(&errno).unwrap_or(Errno::IO),
        )
    }

    /// The name of the system call.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// The arguments as they are printed.
    pub fn arguments(&self) -> &str {
        &self.arguments
    }

    /// The kernel's reason.
    pub const fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            arguments,
            errno,
        } = self;
        write!(f, "{call}({arguments}) = -1 ")?;
        match name(*errno) {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "E{}", errno.raw_os_error())?,
        }
        let text = std::io::Error::from(*errno).to_string();
        let text = text.split(" (os error").next().unwrap_or(&text);
        write!(f, " ({text})")
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from(error.errno)
    }
}

/// The symbolic names of the numbers that the calls of this crate return (`errno(3)`).
const fn name(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ACCESS => "EACCES",
        Errno::AGAIN => "EAGAIN",
        Errno::ADDRINUSE => "EADDRINUSE",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::CHILD => "ECHILD",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::DQUOT => "EDQUOT",
        Errno::EXIST => "EEXIST",
        Errno::FAULT => "EFAULT",
        Errno::INTR => "EINTR",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::ISDIR => "EISDIR",
        Errno::LOOP => "ELOOP",
        Errno::MFILE => "EMFILE",
        Errno::MSGSIZE => "EMSGSIZE",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOEXEC => "ENOEXEC",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::NOTSUP => "EOPNOTSUPP",
        Errno::NOTTY => "ENOTTY",
        Errno::NXIO => "ENXIO",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::PERM => "EPERM",
        Errno::PIPE => "EPIPE",
        Errno::RANGE => "ERANGE",
        Errno::ROFS => "EROFS",
        Errno::SRCH => "ESRCH",
        Errno::STALE => "ESTALE",
        Errno::TOOBIG => "E2BIG",
        Errno::TXTBSY => "ETXTBSY",
        Errno::USERS => "EUSERS",
        Errno::XDEV => "EXDEV",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_strace() {
        let error = Error::new("unshare", "CLONE_NEWUSER", Errno::PERM);
        assert_eq!(
            error.to_string(),
            "unshare(CLONE_NEWUSER) = -1 EPERM (Operation not permitted)"
        );
    }

    #[test]
    fn an_unnamed_errno_keeps_its_number() {
        let error = Error::new("quotactl", "", Errno::from_raw_os_error(130));
        assert!(
            error.to_string().starts_with("quotactl() = -1 E130 ("),
            "{error}"
        );
    }
}
