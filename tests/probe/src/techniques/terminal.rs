//! Typing into a terminal that is not one's own.

use std::fs;

use super::{Scratch, Technique};
use crate::attempt::{Row, Targets};
use crate::facts;
use crate::raw::{Errno, addr, at_cwd, int, ptr, ptr_mut, sys, text, word};

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const TIOCSCTTY: u64 = 0x540e;
const TIOCGPTPEER: u64 = 0x5441;
const TIOCSPTLCK: u64 = 0x4004_5431;
const HIGH: u64 = 1 << 32;

pub(super) const ALL: &[(&str, Technique)] = &[
    ("tty/TIOCSTI", tiocsti),
    ("tty/TIOCSTI-high", tiocsti_high),
    ("tty/TIOCLINUX", tioclinux),
    ("tty/TIOCLINUX-high", tioclinux_high),
    ("tty/others", others),
];

/// Opens a pair of one's own and makes it the controlling terminal.
fn own_terminal() -> Result<u64, Errno> {
    let path = text("/dev/ptmx");
    let flags = int(libc::O_RDWR | libc::O_NOCTTY);
    let master = sys(libc::SYS_openat, &[at_cwd(), addr(&path), flags])?;
    let mut unlocked = 0_i32;
    sys(
        libc::SYS_ioctl,
        &[master, TIOCSPTLCK, ptr_mut(&mut unlocked)],
    )?;
    let slave = sys(libc::SYS_ioctl, &[master, TIOCGPTPEER, flags])?;
    sys(libc::SYS_setsid, &[])?;
    sys(libc::SYS_ioctl, &[slave, TIOCSCTTY, 0])?;
    Ok(slave)
}

fn inject(request: u64, argument: u8) -> Row {
    let terminal = own_terminal();
    let mut row = Row::step("terminal", word(&terminal));
    if let Ok(fd) = terminal {
        let byte = [argument, 0, 0, 0];
        let typed = sys(libc::SYS_ioctl, &[fd, request, ptr(&byte)]);
        row.note("ioctl", word(&typed));
        if typed.is_ok() {
            row.reached();
        }
    }
    row
}

fn tiocsti(_targets: &Targets, _scratch: &Scratch) -> Row {
    inject(TIOCSTI, b'x')
}

fn tiocsti_high(_targets: &Targets, _scratch: &Scratch) -> Row {
    inject(TIOCSTI | HIGH, b'x')
}

/// Subcode 6, `TIOCL_GETSHIFTSTATE`, is harmless; a pty refuses it with ENOTTY where a filter does
/// not with EPERM.
fn tioclinux(_targets: &Targets, _scratch: &Scratch) -> Row {
    inject(TIOCLINUX, 6)
}

fn tioclinux_high(_targets: &Targets, _scratch: &Scratch) -> Row {
    inject(TIOCLINUX | HIGH, 6)
}

/// Terminals of other sessions: none may be listed beside the own.
fn others(_targets: &Targets, _scratch: &Scratch) -> Row {
    let mut row = Row::default();
    let own = fs::read_link("/proc/self/fd/0").unwrap_or_default();
    for name in facts::names("/dev/pts") {
        let path = std::path::Path::new("/dev/pts").join(&name);
        if name.parse::<u32>().is_ok() && path != own {
            row.note("listed", &name);
            row.reached();
        }
    }
    row
}
