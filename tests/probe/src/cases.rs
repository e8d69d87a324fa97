//! Calls that a filter judges by their arguments.

use std::collections::BTreeMap;

use crate::child;
use crate::raw::{self, BAD, int, ptr, sys, text};

/// Sets a high half that a 64-bit comparison would take for another value.
const HIGH: u64 = 1 << 32;

struct Case {
    name: &'static str,
    nr: i64,
    args: [u64; 4],
}

const fn case(name: &'static str, nr: i64, args: [u64; 4]) -> Case {
    Case { name, nr, args }
}

/// Returns the answer to each case by name; `ok`, an errno's name or `signal:N`.
pub(crate) fn sweep() -> BTreeMap<String, String> {
    let mut answers = BTreeMap::new();
    for case in socket_cases()
        .iter()
        .chain(&other_cases())
        .chain(&clone_cases())
    {
        let word = child::run(1000, || raw::word(&sys(case.nr, &case.args))).word();
        answers.insert(case.name.to_owned(), word);
    }
    for (kind, mode) in [
        ("fifo", libc::S_IFIFO),
        ("socket", libc::S_IFSOCK),
        ("regular", libc::S_IFREG),
        ("char", libc::S_IFCHR),
        ("block", libc::S_IFBLK),
    ] {
        answers.insert(format!("mknod/{kind}"), node(kind, mode));
    }
    answers.insert("clone3/plain".to_owned(), clone3(0));
    answers.insert("clone3/NEWUSER".to_owned(), clone3(0x1000_0000));
    answers
}

fn socket_cases() -> Vec<Case> {
    let stream = int(libc::SOCK_STREAM);
    let raw_type = int(libc::SOCK_RAW);
    let socket = |name, family: i32, kind, protocol: i32| {
        case(
            name,
            libc::SYS_socket,
            [int(family), kind, int(protocol), 0],
        )
    };
    vec![
        socket("socket/unix", libc::AF_UNIX, stream, 0),
        socket("socket/inet", libc::AF_INET, stream, 0),
        socket("socket/inet6", libc::AF_INET6, stream, 0),
        socket(
            "socket/inet-raw",
            libc::AF_INET,
            raw_type,
            libc::IPPROTO_ICMP,
        ),
        socket(
            "socket/netlink-route",
            libc::AF_NETLINK,
            raw_type,
            libc::NETLINK_ROUTE,
        ),
        socket(
            "socket/netlink-netfilter",
            libc::AF_NETLINK,
            raw_type,
            libc::NETLINK_NETFILTER,
        ),
        socket("socket/packet", libc::AF_PACKET, raw_type, 0),
        socket("socket/vsock", libc::AF_VSOCK, stream, 0),
        socket("socket/alg", libc::AF_ALG, int(libc::SOCK_SEQPACKET), 0),
        socket("socket/bluetooth", libc::AF_BLUETOOTH, raw_type, 1),
        socket("socket/key", libc::AF_KEY, raw_type, 2),
        case(
            "socket/vsock-high",
            libc::SYS_socket,
            [int(libc::AF_VSOCK) | HIGH, stream, 0, 0],
        ),
        case(
            "socket/alg-high",
            libc::SYS_socket,
            [int(libc::AF_ALG) | HIGH, stream, 0, 0],
        ),
    ]
}

fn other_cases() -> Vec<Case> {
    let persona = |name, value| case(name, libc::SYS_personality, [value, 0, 0, 0]);
    let ioctl = |name, request| case(name, libc::SYS_ioctl, [0, request, BAD, 0]);
    vec![
        persona("personality/linux", 0),
        persona("personality/linux32", 0x8),
        persona("personality/uname26", 0x2_0000),
        persona("personality/uname26-linux32", 0x2_0008),
        persona("personality/no-randomize", 0x4_0000),
        persona("personality/query", 0xffff_ffff),
        persona("personality/read-implies-exec", 0x40_0000),
        persona("personality/mmap-page-zero", 0x10_0000),
        ioctl("ioctl/TIOCSTI", 0x5412),
        ioctl("ioctl/TIOCSTI-high", 0x5412 | HIGH),
        ioctl("ioctl/TIOCLINUX", 0x541c),
        ioctl("ioctl/TIOCLINUX-high", 0x541c | HIGH),
        ioctl("ioctl/FIONREAD", 0x541b),
    ]
}

fn clone_cases() -> Vec<Case> {
    let unshare = |name, flags| case(name, libc::SYS_unshare, [flags, 0, 0, 0]);
    let clone = |name, flags| case(name, libc::SYS_clone, [flags | 0x11, 0, 0, 0]);
    let (user, mnt, uts) = (0x1000_0000, 0x2_0000, 0x400_0000);
    vec![
        unshare("unshare/none", 0),
        unshare("unshare/FILES", 0x400),
        unshare("unshare/NEWUSER", user),
        unshare("unshare/NEWUSER-high", user | HIGH),
        unshare("unshare/NEWNS", mnt),
        unshare("unshare/NEWUSER-NEWNS", user | mnt),
        unshare("unshare/NEWUTS", uts),
        clone("clone/plain", 0),
        clone("clone/NEWUSER", user),
        clone("clone/NEWNS", mnt),
        clone("clone/NEWUTS", uts),
    ]
}

fn node(kind: &str, mode: libc::mode_t) -> String {
    let path = format!("/tmp/.probe-node-{kind}");
    child::run(1000, || {
        let name = text(&path);
        // Device 1:3, the harmless /dev/null.
        let device = if mode == libc::S_IFCHR || mode == libc::S_IFBLK {
            0x103
        } else {
            0
        };
        let made = sys(
            libc::SYS_mknod,
            &[raw::addr(&name), u64::from(mode | 0o600), device],
        );
        let _removed = std::fs::remove_file(&path);
        raw::word(&made)
    })
    .word()
}

fn clone3(flags: u64) -> String {
    child::run(1000, || {
        // struct clone_args, CLONE_ARGS_SIZE_VER0: eight words.
        let mut args = [0_u64; 8];
        args[0] = flags;
        args[4] = int(libc::SIGCHLD);
        raw::word(&sys(libc::SYS_clone3, &[ptr(&args), 64]))
    })
    .word()
}
