//! Classic-BPF filters on system calls (`seccomp(2)`).

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Most instructions that the kernel takes (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// One instruction: `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when true.
    pub jt: u8,
    /// Instructions to skip when false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Loads a program for the calling thread and what it starts. Needs `no_new_privs` or
/// `CAP_SYS_ADMIN` in the own user namespace. The kernel checks the program and answers `EINVAL`
/// for one that jumps outside itself or reads what it may not.
pub fn load(program: &[Instruction]) -> Result<()> {
    let failure = |errno| {
        Error::new(
            "seccomp",
            format!("SECCOMP_SET_MODE_FILTER, 0, {{len={}}}", program.len()),
            errno,
        )
    };
    let len = u16::try_from(program.len()).map_err(|_too_long| failure(Errno::INVAL))?;
    let filter = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `filter` points at `len` instructions laid out as `struct sock_filter`, alive for the
    // call; the kernel copies them and does not write.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const filter,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(failure(Error::last("seccomp", "").errno())),
    }
}
