//! What each call has to answer, by number on x86-64, from the table in `security.md`.

use super::facts::Class;

const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;
const EAFNOSUPPORT: u32 = 0x0005_0061;

/// Ranges of numbers that every tier allows whatever the arguments.
#[rustfmt::skip]
const ALLOWED: [(u32, u32); 45] = [
    (0, 15), (17, 40), (42, 52), (54, 55), (57, 100), (102, 102), (104, 104), (107, 112),
    (115, 115), (118, 118), (120, 121), (124, 132), (137, 138), (140, 153), (157, 160),
    (162, 162), (170, 171), (186, 204), (206, 210), (213, 213), (216, 226), (228, 235),
    (237, 239), (247, 247), (251, 255), (257, 258), (260, 271), (273, 278), (280, 297),
    (299, 299), (302, 302), (305, 307), (309, 309), (314, 319), (322, 322), (324, 334),
    (424, 424), (434, 434), (436, 437), (439, 441), (444, 446), (448, 452), (454, 459),
    (461, 466), (468, 469),
];

/// Columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    AdminNesting,
    Admin,
    Restricted,
    Backend,
    ProcessHost,
    ProcessNone,
}

impl Variant {
    pub(super) const fn of(class: Class, host_network: bool) -> Self {
        match class {
            Class::AdminNesting => Self::AdminNesting,
            Class::Admin => Self::Admin,
            Class::Restricted => Self::Restricted,
            Class::Backend => Self::Backend,
            Class::Process if host_network => Self::ProcessHost,
            Class::Process => Self::ProcessNone,
        }
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::AdminNesting => 0,
            Self::Admin => 1,
            Self::Restricted => 2,
            Self::Backend => 3,
            Self::ProcessHost => 4,
            Self::ProcessNone => 5,
        }
    }

    const fn is_admin(self) -> bool {
        matches!(self, Self::AdminNesting | Self::Admin)
    }

    const fn is_process(self) -> bool {
        matches!(self, Self::ProcessHost | Self::ProcessNone)
    }

    const fn is_terminal(self) -> bool {
        matches!(self, Self::AdminNesting | Self::Admin | Self::Restricted)
    }
}

/// Arguments with the answer that they have to get.
pub(super) type Case = ([u64; 6], u32);

/// Returns the cases of a number.
pub(super) fn cases(variant: Variant, number: u32) -> Vec<Case> {
    if ALLOWED
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&number))
    {
        return same(ALLOW);
    }
    match number {
        // ioctl: TIOCSTI and TIOCLINUX, also with high bits that the kernel drops.
        16 => values(
            1,
            &[
                (0x5401, ALLOW),
                (0x5412, EPERM),
                (0x541c, EPERM),
                (0x5413, ALLOW),
            ],
        ),
        // personality
        135 => values(
            0,
            &[
                (0, ALLOW),
                (8, ALLOW),
                (0x2_0000, ALLOW),
                (0x2_0008, ALLOW),
                (0x4_0000, ALLOW),
                (0xffff_ffff, ALLOW),
                (1, EPERM),
                (0x10, EPERM),
                (0x4_0008, EPERM),
                (0x40_0000, EPERM),
                (0x80_0000, EPERM),
            ],
        ),
        // socket, socketpair
        41 | 53 => sockets(variant),
        // mount, umount2, pivot_root
        165 if variant == Variant::Admin => flags(3, &[0x2000, 0x3000], &[0, 0x1000, 0x1021]),
        165 | 166 | 155 | 428 | 429 => mounts(variant, number),
        // fsopen, fsconfig, fsmount, fspick, mount_setattr, open_tree_attr
        430..=433 | 442 | 467 => same(if variant == Variant::AdminNesting {
            ALLOW
        } else {
            ENOSYS
        }),
        // clone, unshare
        56 | 272 if !variant.is_admin() => flags(
            0,
            &[0x1000_0000, 0x2_0000, 0x1002_0000, 0x7e02_0000, 0x2_0011],
            &[0, 0x11, 0x3d_0f00, 0x4000_0000, 0x2c00_0000],
        ),
        56 | 272 => same(ALLOW),
        // clone3, setns
        435 => same(if variant.is_admin() { ALLOW } else { ENOSYS }),
        308 => same(if variant.is_admin() { ALLOW } else { EPERM }),
        // fanotify, name_to_handle_at, process_vm_*, kcmp, pidfd_getfd
        300 | 301 | 303 | 310 | 311 | 312 | 438 => {
            same(if variant.is_admin() { ALLOW } else { EPERM })
        }
        // modify_ldt, memfd_secret
        154 | 447 => same(if variant.is_admin() { ALLOW } else { ENOSYS }),
        // ptrace, chroot
        101 | 161 => same(if variant.is_terminal() { ALLOW } else { EPERM }),
        // mknod, mknodat
        133 => nodes(variant, 1),
        259 => nodes(variant, 2),
        // set*id, setgroups
        105 | 106 | 113 | 114 | 116 | 117 | 119 | 122 | 123 => {
            same(if variant.is_process() { EPERM } else { ALLOW })
        }
        // mq_*
        240..=245 => same(if variant.is_process() { ENOSYS } else { ALLOW }),
        // Denied always, unknown or gone.
        _ => same(ENOSYS),
    }
}

/// One answer, whatever the arguments.
fn same(answer: u32) -> Vec<Case> {
    [0, 1, 0x2000, 0x1002_0000, u64::MAX]
        .map(|value| ([value; 6], answer))
        .to_vec()
}

fn at(index: usize, value: u64) -> [u64; 6] {
    let mut args = [0; 6];
    if let Some(arg) = args.get_mut(index) {
        *arg = value;
    }
    args
}

/// Values of one argument, each also with high bits set.
fn values(index: usize, list: &[(u64, u32)]) -> Vec<Case> {
    list.iter()
        .flat_map(|&(value, answer)| {
            [0, 1 << 32, 0xffff_ffff << 32].map(|high| (at(index, value | high), answer))
        })
        .collect()
}

fn flags(index: usize, refused: &[u64], allowed: &[u64]) -> Vec<Case> {
    let refused = refused.iter().map(|&value| (value, EPERM));
    let allowed = allowed.iter().map(|&value| (value, ALLOW));
    values(index, &refused.chain(allowed).collect::<Vec<_>>())
}

fn mounts(variant: Variant, number: u32) -> Vec<Case> {
    let plain = matches!(number, 155);
    same(match variant {
        Variant::AdminNesting => ALLOW,
        Variant::Admin if plain => ALLOW,
        Variant::Admin
        | Variant::Restricted
        | Variant::Backend
        | Variant::ProcessHost
        | Variant::ProcessNone => EPERM,
    })
}

fn nodes(variant: Variant, index: usize) -> Vec<Case> {
    if variant.is_terminal() {
        return same(ALLOW);
    }
    values(
        index,
        &[
            (0o010_644, ALLOW),
            (0o010_000, ALLOW),
            (0o020_666, EPERM),
            (0o060_600, EPERM),
            (0o100_644, EPERM),
            (0o140_777, EPERM),
            (0, EPERM),
        ],
    )
}

fn sockets(variant: Variant) -> Vec<Case> {
    const UNIX: u64 = 1;
    const NETLINK: u64 = 16;
    let mut cases = Vec::new();
    for family in 0..64 {
        let allowed = match (variant, family) {
            // vsock and the kernel's cryptography
            (_, 40 | 38) => false,
            (Variant::AdminNesting, _) => true,
            (Variant::Admin | Variant::Restricted, _) => family != 17,
            (Variant::Backend | Variant::ProcessHost, _) => matches!(family, UNIX | 2 | 10),
            (Variant::ProcessNone, _) => family == UNIX,
        };
        let answer = if allowed { ALLOW } else { EAFNOSUPPORT };
        cases.extend(values(0, &[(family, answer)]));
    }
    // nf_tables
    let answer = match variant {
        Variant::AdminNesting => ALLOW,
        Variant::Admin
        | Variant::Restricted
        | Variant::Backend
        | Variant::ProcessHost
        | Variant::ProcessNone => EAFNOSUPPORT,
    };
    cases.push(([NETLINK, 3, 12, 0, 0, 0], answer));
    cases.push(([NETLINK | 1 << 32, 3, 0xc | 1 << 32, 0, 0, 0], answer));
    cases
}
