//! What each tier may call: the table of `security.md` by name.

use super::Variant;

pub(super) const EPERM: u32 = 1;
pub(super) const ENOSYS: u32 = 38;
pub(super) const EAFNOSUPPORT: u32 = 97;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
pub(super) const AF_NETLINK: u32 = 16;
const AF_PACKET: u32 = 17;
const AF_ALG: u32 = 38;
const AF_VSOCK: u32 = 40;
/// Protocol of `nf_tables`.
pub(super) const NETLINK_NETFILTER: u32 = 12;

/// `ioctl` commands that type into a terminal (CVE-2017-5226).
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

const MS_MOVE: u32 = 0x2000;
/// `CLONE_NEWNS | CLONE_NEWUSER`.
const NEW_MOUNT_OR_USER: u32 = 0x0002_0000 | 0x1000_0000;

/// Linux, 32-bit, without address randomisation, for gdb, and the query.
const PERSONALITIES: [u32; 6] = [0, 8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

const S_IFMT: u32 = 0o170_000;
const S_IFIFO: u32 = 0o010_000;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Errno(u32),
    If(Condition),
}

/// A test of the low word of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Allowed but for these values.
    NoneOf {
        arg: u32,
        values: &'static [u32],
        errno: u32,
    },
    /// Refused but for these values under the mask.
    OneOf {
        arg: u32,
        mask: u32,
        values: &'static [u32],
        errno: u32,
    },
    /// Refused with any of these bits.
    NoBits { arg: u32, bits: u32, errno: u32 },
    /// Refused for these socket families and for `NETLINK_NETFILTER`.
    Family { denied: &'static [u32] },
}

/// Allowed in every tier, whatever the arguments.
#[rustfmt::skip]
const ALLOWED: [&str; 285] = [
    "accept", "accept4", "access", "adjtimex", "alarm", "arch_prctl", "bind", "brk",
    "cachestat", "capget", "capset", "chdir", "chmod", "chown", "clock_adjtime", "clock_getres",
    "clock_gettime", "clock_nanosleep", "close", "close_range", "connect", "copy_file_range",
    "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait",
    "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "execve", "execveat", "exit",
    "exit_group", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod",
    "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr",
    "file_getattr", "file_setattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr",
    "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futex_requeue", "futex_wait",
    "futex_waitv", "futex_wake", "futimesat", "get_mempolicy", "get_robust_list", "getcpu",
    "getcwd", "getdents", "getdents64", "getegid", "geteuid", "getgid", "getgroups",
    "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid", "getpriority",
    "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "getsockname",
    "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "getxattrat",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel",
    "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "ioprio_get",
    "ioprio_set", "kill", "landlock_add_rule", "landlock_create_ruleset",
    "landlock_restrict_self", "lchown", "lgetxattr", "link", "linkat", "listen", "listmount",
    "listxattr", "listxattrat", "llistxattr", "lremovexattr", "lseek", "lsetxattr",
    "lsm_get_self_attr", "lsm_list_modules", "lstat", "madvise", "mbind", "membarrier",
    "memfd_create", "mincore", "mkdir", "mkdirat", "mlock", "mlock2", "mlockall", "mmap",
    "mprotect", "mremap", "mseal", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock",
    "munlockall", "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2", "pause",
    "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free",
    "pkey_mprotect", "poll", "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64",
    "process_madvise", "process_mrelease", "pselect6", "pwrite64", "pwritev", "pwritev2",
    "read", "readahead", "readlink", "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg",
    "remap_file_pages", "removexattr", "removexattrat", "rename", "renameat", "renameat2",
    "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
    "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity",
    "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select",
    "semctl", "semget", "semop", "semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto",
    "set_mempolicy", "set_mempolicy_home_node", "set_robust_list", "set_tid_address",
    "setdomainname", "sethostname", "setitimer", "setpgid", "setpriority", "setrlimit",
    "setsid", "setsockopt", "setxattr", "setxattrat", "shmat", "shmctl", "shmdt", "shmget",
    "shutdown", "sigaltstack", "signalfd", "signalfd4", "splice", "stat", "statfs", "statmount",
    "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "sysinfo", "tee",
    "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",
    "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill",
    "truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork",
    "vhangup", "vmsplice", "wait4", "waitid", "write", "writev",
];

/// Denied always by the outer profile too. Not `keyctl`: the init joins a keyring of its own.
#[rustfmt::skip]
pub(super) const OUTER: [&str; 25] = [
    "acct", "bpf", "clock_settime", "create_module", "delete_module", "finit_module", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load",
    "kexec_load", "lookup_dcookie", "nfsservctl", "open_by_handle_at", "perf_event_open",
    "quotactl", "reboot", "settimeofday", "swapoff", "swapon", "syslog", "userfaultfd",
];

/// Returns what a tier does with a call by name. Whatever is not named is ENOSYS: among them
/// everything that is denied always (`io_uring`, kexec, modules, bpf, perf, keyrings, clocks, swap,
/// reboot, …), what no libc calls any more, and what is newer than this table.
pub(super) fn action(variant: Variant, name: &str) -> Action {
    if ALLOWED.binary_search(&name).is_ok() {
        return Action::Allow;
    }
    match name {
        "ioctl" => Action::If(Condition::NoneOf {
            arg: 1,
            values: &[TIOCSTI, TIOCLINUX],
            errno: EPERM,
        }),
        "personality" => Action::If(Condition::OneOf {
            arg: 0,
            mask: u32::MAX,
            values: &PERSONALITIES,
            errno: EPERM,
        }),
        "socket" | "socketpair" => Action::If(sockets(variant)),
        "fsopen" | "fsconfig" | "fsmount" | "fspick" | "open_tree_attr" | "mount_setattr"
        | "mount" | "umount2" | "move_mount" | "open_tree" | "pivot_root" => mounts(variant, name),
        "clone" | "clone3" | "unshare" | "setns" => namespaces(variant, name),
        "process_vm_readv" | "process_vm_writev" | "kcmp" | "pidfd_getfd" | "name_to_handle_at"
        | "fanotify_init" | "fanotify_mark" => administrators(variant, EPERM),
        "memfd_secret" | "modify_ldt" => administrators(variant, ENOSYS),
        "ptrace" | "chroot" => terminals(variant, Action::Errno(EPERM)),
        "mknod" => terminals(variant, Action::If(fifo_only(1))),
        "mknodat" => terminals(variant, Action::If(fifo_only(2))),
        "setuid" | "setgid" | "setreuid" | "setregid" | "setresuid" | "setresgid" | "setgroups"
        | "setfsuid" | "setfsgid" => all_but_process(variant, EPERM),
        "mq_open" | "mq_unlink" | "mq_timedsend" | "mq_timedreceive" | "mq_notify"
        | "mq_getsetattr" => all_but_process(variant, ENOSYS),
        _ => Action::Errno(ENOSYS),
    }
}

const fn fifo_only(arg: u32) -> Condition {
    Condition::OneOf {
        arg,
        mask: S_IFMT,
        values: &[S_IFIFO],
        errno: EPERM,
    }
}

/// The mount guard. An administrator without nesting keeps plain `mount`, `pivot_root` and
/// `unshare` (GUARD-07): Landlock forbids the mount itself.
fn mounts(variant: Variant, name: &str) -> Action {
    match (variant, name) {
        (Variant::AdminNesting, _) | (Variant::Admin, "pivot_root") => Action::Allow,
        (Variant::Admin, "mount") => Action::If(Condition::NoBits {
            arg: 3,
            bits: MS_MOVE,
            errno: EPERM,
        }),
        (
            Variant::Admin
            | Variant::Restricted
            | Variant::Backend
            | Variant::ProcessHost
            | Variant::ProcessNone,
            "mount" | "umount2" | "move_mount" | "open_tree" | "pivot_root",
        ) => Action::Errno(EPERM),
        (
            Variant::Admin
            | Variant::Restricted
            | Variant::Backend
            | Variant::ProcessHost
            | Variant::ProcessNone,
            _,
        ) => Action::Errno(ENOSYS),
    }
}

/// `clone3` has its flags in memory, where a filter cannot look: ENOSYS, never EPERM, so that
/// libc falls back to `clone` (RESTR-10).
fn namespaces(variant: Variant, name: &str) -> Action {
    match (variant, name) {
        (Variant::AdminNesting | Variant::Admin, _) => Action::Allow,
        (
            Variant::Restricted | Variant::Backend | Variant::ProcessHost | Variant::ProcessNone,
            "clone" | "unshare",
        ) => Action::If(Condition::NoBits {
            arg: 0,
            bits: NEW_MOUNT_OR_USER,
            errno: EPERM,
        }),
        (
            Variant::Restricted | Variant::Backend | Variant::ProcessHost | Variant::ProcessNone,
            "clone3",
        ) => Action::Errno(ENOSYS),
        (
            Variant::Restricted | Variant::Backend | Variant::ProcessHost | Variant::ProcessNone,
            _,
        ) => Action::Errno(EPERM),
    }
}

const fn administrators(variant: Variant, errno: u32) -> Action {
    match variant {
        Variant::AdminNesting | Variant::Admin => Action::Allow,
        Variant::Restricted | Variant::Backend | Variant::ProcessHost | Variant::ProcessNone => {
            Action::Errno(errno)
        }
    }
}

const fn terminals(variant: Variant, otherwise: Action) -> Action {
    match variant {
        Variant::AdminNesting | Variant::Admin | Variant::Restricted => Action::Allow,
        Variant::Backend | Variant::ProcessHost | Variant::ProcessNone => otherwise,
    }
}

const fn all_but_process(variant: Variant, errno: u32) -> Action {
    match variant {
        Variant::AdminNesting | Variant::Admin | Variant::Restricted | Variant::Backend => {
            Action::Allow
        }
        Variant::ProcessHost | Variant::ProcessNone => Action::Errno(errno),
    }
}

/// vsock reaches the hypervisor whatever the network namespace; `AF_ALG` and `nf_tables` are
/// kernel surface. `nf_tables` of namespace A is held by capabilities; nested containers have their own.
const fn sockets(variant: Variant) -> Condition {
    match variant {
        Variant::AdminNesting => Condition::NoneOf {
            arg: 0,
            values: &[AF_ALG, AF_VSOCK],
            errno: EAFNOSUPPORT,
        },
        Variant::Admin | Variant::Restricted => Condition::Family {
            denied: &[AF_PACKET, AF_ALG, AF_VSOCK],
        },
        Variant::Backend | Variant::ProcessHost => Condition::OneOf {
            arg: 0,
            mask: u32::MAX,
            values: &[AF_UNIX, AF_INET, AF_INET6],
            errno: EAFNOSUPPORT,
        },
        Variant::ProcessNone => Condition::OneOf {
            arg: 0,
            mask: u32::MAX,
            values: &[AF_UNIX],
            errno: EAFNOSUPPORT,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscalls;

    #[test]
    fn the_allow_list_is_sorted_and_of_known_names() {
        assert!(ALLOWED.is_sorted());
        for name in ALLOWED.iter().chain(&OUTER) {
            assert!(syscalls::NAMES.contains(&Some(*name)), "{name}");
        }
    }

    #[test]
    fn the_outer_profile_denies_what_every_tier_denies_in_the_same_way() {
        for variant in [
            Variant::AdminNesting,
            Variant::Admin,
            Variant::Restricted,
            Variant::Backend,
            Variant::ProcessHost,
            Variant::ProcessNone,
        ] {
            for name in OUTER {
                assert_eq!(action(variant, name), Action::Errno(ENOSYS), "{name}");
            }
        }
    }
}
