//! System calls as the kernel sees them: by number, in each of the three forms of x86-64.

use std::arch::asm;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bit 30 of a system call number selects the x32 table.
pub(crate) const X32_BIT: u64 = 0x4000_0000;
/// An argument that is no descriptor, no address, no flag set and no length.
pub(crate) const BAD: u64 = u64::MAX;

/// A call that went wrong, as the kernel's errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The symbolic name, or the number where it is a rare one.
    pub(crate) fn name(self) -> String {
        NAMES
            .iter()
            .find(|(number, _)| *number == self.0)
            .map_or_else(|| format!("E{}", self.0), |(_, name)| (*name).to_owned())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(0))
    }
}

macro_rules! names {
    ($($name:ident)*) => {
        const NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*];
    };
}
names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP
    EPROTO EOVERFLOW EILSEQ EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EAFNOSUPPORT EADDRINUSE ENOTCONN ETIMEDOUT
    ECONNREFUSED ESTALE EDQUOT ENOKEY ENODATA EBADE ECANCELED
}

/// Makes system call `nr` through the `syscall` instruction.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "a vfork child must not return from a frame it shares"
)]
pub(crate) fn call(nr: u64, args: [u64; 6]) -> Result<u64, Errno> {
    let [first, second, third, fourth, fifth, sixth] = args;
    let result: i64;
    // SAFETY: the instruction clobbers only rcx, r11 and rax, which are declared. What the kernel
    // does to this process's memory is bounded by the arguments: callers pass numbers, or
    // addresses of buffers that outlive the call, and calls that change the address space or the
    // control flow are made in a forked child that ends right after.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") first, in("rsi") second, in("rdx") third, in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    decode(result)
}

/// Makes i386 system call `nr` through `int 0x80`, with every argument -1.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "a vfork child must not return from a frame it shares"
)]
pub(crate) fn call_i386(nr: u64) -> Result<u64, Errno> {
    let bad = u64::from(u32::MAX);
    let result: i64;
    // SAFETY: as in `call`; rbx, which the compiler reserves, is saved and restored around the
    // instruction, and no argument is a valid address.
    unsafe {
        asm!(
            "xchg {bx}, rbx",
            "int 0x80",
            "xchg {bx}, rbx",
            bx = inout(reg) bad => _,
            inlateout("rax") nr => result,
            in("rcx") bad, in("rdx") bad, in("rsi") bad, in("rdi") bad,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "i386 results are 32 bits wide"
    )]
    let narrow = result as i32;
    decode(i64::from(narrow))
}

fn decode(result: i64) -> Result<u64, Errno> {
    match i32::try_from(result) {
        Ok(negative @ -4095..=-1) => Err(Errno(-negative)),
        Ok(_) | Err(_) => Ok(result.cast_unsigned()),
    }
}

/// Makes a call whose arguments are few: the rest is 0.
pub(crate) fn sys(nr: i64, args: &[u64]) -> Result<u64, Errno> {
    let mut all = [0; 6];
    for (slot, arg) in all.iter_mut().zip(args) {
        *slot = *arg;
    }
    call(nr.cast_unsigned(), all)
}

/// A descriptor or another signed number as an argument.
pub(crate) fn int(number: impl Into<i64>) -> u64 {
    number.into().cast_unsigned()
}

/// The address of something that is only read.
pub(crate) fn ptr<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().expose_provenance() as u64
}

/// The address of something that is written.
pub(crate) fn ptr_mut<T: ?Sized>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).cast::<u8>().expose_provenance() as u64
}

/// A path or a word as the kernel reads it; what contains NUL becomes the empty string.
pub(crate) fn text(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap_or_else(|_nul| CString::default())
}

/// The address of a C string.
pub(crate) fn addr(text: &CString) -> u64 {
    text.as_ptr().expose_provenance() as u64
}

/// "at the current directory", as an argument.
pub(crate) fn at_cwd() -> u64 {
    int(libc::AT_FDCWD)
}

/// The outcome of a call as a word: `ok` or the errno's name.
pub(crate) fn word<T>(result: &Result<T, Errno>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(errno) => errno.name(),
    }
}

/// Ends this process at once.
pub(crate) fn leave(code: u8) -> ! {
    loop {
        let _never = sys(libc::SYS_exit_group, &[u64::from(code)]);
    }
}
