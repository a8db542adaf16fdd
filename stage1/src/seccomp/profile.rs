//! The default profile, based on that of docker and podman.
//!
//! It is stricter than podman's: no mount calls and no new namespaces without CAP_SYS_ADMIN, and neither keyrings nor
//! io_uring. Unknown calls get ENOSYS, so that programs fall back.

use std::collections::BTreeMap;

use super::{Action, Condition, numbers::number};

/// The error of a call without a rule.
pub(super) const DEFAULT_ERRNO: u16 = libc::ENOSYS as u16;

const EPERM: Action = Action::Errno(libc::EPERM as u16);
const EAFNOSUPPORT: Action = Action::Errno(libc::EAFNOSUPPORT as u16);

/// Flags of clone(2) that make namespaces: all CLONE_NEW*.
const CLONE_NEW: u32 = 0x7e02_0000;

/// The rules for an app with these capabilities, by system call number.
pub(super) fn rules(capabilities: &[String]) -> BTreeMap<u32, Action> {
    let mut rules = BTreeMap::new();
    let mut set = |names: &[&str], action: &Action| {
        for number in names.iter().filter_map(|name| number(name)) {
            rules.insert(number, action.clone());
        }
    };
    set(ALWAYS, &Action::Allow);
    // Safe since Linux 4.8, where filters run after the tracer. The kernel checks the permission to trace.
    set(&["ptrace", "process_vm_readv", "process_vm_writev"], &Action::Allow);
    set(DENIED, &EPERM);
    WITH_CAPABILITY.iter().for_each(|(_, names)| set(names, &EPERM));
    // Several capabilities may allow a call; one suffices.
    let is_held = |capability: &str| capabilities.iter().any(|name| name == capability);
    WITH_CAPABILITY.iter().filter(|(name, _)| is_held(name)).for_each(|(_, names)| set(names, &Action::Allow));
    if is_held("CAP_SYS_ADMIN") {
        set(&["clone", "clone3"], &Action::Allow);
    } else {
        let no_namespaces = vec![Condition::masked(CLONE_FLAGS, CLONE_NEW, 0)];
        set(&["clone"], &Action::When(vec![(no_namespaces, Action::Allow)], Box::new(EPERM)));
        // clone3 takes its flags by pointer, which a filter cannot read. With ENOSYS every libc falls back to clone.
        set(&["clone3"], &Action::Errno(libc::ENOSYS as u16));
    }
    // Personalities that change no security property: Linux, with or without 32-bit uname and no address randomisation
    // query.
    let harmless = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
    let equal = |value| (vec![Condition::masked(0, u32::MAX, value)], Action::Allow);
    set(&["personality"], &Action::When(harmless.map(equal).to_vec(), Box::new(EPERM)));
    rules.extend(socket_rules(capabilities));
    rules
}

/// The rules for making sockets: only address families that network namespaces confine. Others bypass the namespace
/// (AF_VSOCK) or reach kernel code that hardly any program needs (AF_ALG, CVE-2026-31431), and making a socket loads
/// the kernel's module.
pub(super) fn socket_rules(capabilities: &[String]) -> Vec<(u32, Action)> {
    let raw = capabilities.iter().any(|name| name == "CAP_NET_RAW");
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let packet = raw.then_some(libc::AF_PACKET);
    let rule = |families: Vec<libc::c_int>| {
        let allow = |family| (vec![Condition::masked(0, u32::MAX, family as u32)], Action::Allow);
        Action::When(families.into_iter().map(allow).collect(), Box::new(EAFNOSUPPORT))
    };
    [("socket", rule(families.into_iter().chain(packet).collect())), ("socketpair", rule(vec![libc::AF_UNIX]))]
        .into_iter()
        .filter_map(|(name, rule)| Some((number(name)?, rule)))
        .collect()
}

/// Keeps the app from changing the project of its files, and whether new files inherit it, by ioctl(2) and by
/// file_setattr(2); changes nothing where it may not use the call at all.
pub(super) fn fix_project(rules: &mut BTreeMap<u32, Action>, default: &Action) {
    if let Some(number) = number("ioctl") {
        restrict(rules, number, default, |allowed| {
            let sets_project = |command| (vec![Condition::masked(1, u32::MAX, command)], EPERM);
            Action::When(SET_PROJECT.map(sets_project).to_vec(), Box::new(allowed))
        });
    }
    // It takes the project by pointer, which a filter cannot read. With ENOSYS, programs fall back to the ioctl.
    restrict(rules, FILE_SETATTR, default, |_| Action::Errno(libc::ENOSYS as u16));
}

/// Replaces the action of a call, unless that is an error.
fn restrict(rules: &mut BTreeMap<u32, Action>, number: u32, default: &Action, by: impl FnOnce(Action) -> Action) {
    let action = rules.get(&number).unwrap_or(default);
    match action {
        Action::Errno(_) => {}
        Action::Allow | Action::Return(_) | Action::When(..) => {
            let restricted = by(action.clone());
            rules.insert(number, restricted);
        }
    }
}

/// `FS_IOC_FSSETXATTR` of `linux/fs.h`, and `FS_IOC_SETFLAGS`, which can clear FS_PROJINHERIT_FL.
pub(super) const SET_PROJECT: [u32; 2] = [0x401c_5820, 0x4008_6602];

/// The number of file_setattr(2), the same on all architectures that gantry is built for (since Linux 6.17).
pub(super) const FILE_SETATTR: u32 = 469;

/// The position of the flags in the arguments of clone(2).
const CLONE_FLAGS: u8 = 0;

#[rustfmt::skip]
const ALWAYS: &[&str] = &[
    "accept", "accept4", "access", "adjtimex", "alarm", "arch_prctl", "bind", "brk", "capget", "capset", "chdir",
    "chmod", "chown", "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "close_range",
    "connect", "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "execve",
    "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod",
    "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fork",
    "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futex_waitv", "futimesat",
    "get_robust_list", "get_thread_area", "getcpu", "getcwd", "getdents", "getdents64", "getegid", "geteuid",
    "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid", "getpriority",
    "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "getsockname", "getsockopt",
    "gettid", "gettimeofday", "getuid", "getxattr", "inotify_add_watch", "inotify_init", "inotify_init1",
    "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents", "io_setup", "io_submit", "ioctl", "ioprio_get",
    "ioprio_set", "kill", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lchown",
    "lgetxattr", "link", "linkat", "listen", "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr",
    "lstat", "madvise", "membarrier", "memfd_create", "memfd_secret", "mincore", "mkdir", "mkdirat", "mknod",
    "mknodat", "mlock", "mlock2", "mlockall", "mmap", "modify_ldt", "mprotect", "mq_getsetattr", "mq_notify",
    "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap", "msgctl", "msgget", "msgrcv", "msgsnd",
    "msync", "munlock", "munlockall", "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2", "pause",
    "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll", "ppoll",
    "prctl", "pread64", "preadv", "preadv2", "prlimit64", "process_madvise", "process_mrelease", "pselect6",
    "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "recvfrom",
    "recvmmsg", "recvmsg", "remap_file_pages", "removexattr", "rename", "renameat", "renameat2", "restart_syscall",
    "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn",
    "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min",
    "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp",
    "select", "semctl", "semget", "semop", "semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto",
    "set_mempolicy_home_node", "set_robust_list", "set_thread_area", "set_tid_address", "setfsgid", "setfsuid",
    "setgid", "setgroups", "setitimer", "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid",
    "setrlimit", "setsid", "setsockopt", "setuid", "setxattr", "shmat", "shmctl", "shmdt", "shmget", "shutdown",
    "sigaltstack", "signalfd", "signalfd4", "splice", "stat", "statfs", "statx", "symlink",
    "symlinkat", "sync", "sync_file_range", "syncfs", "sysinfo", "tee", "tgkill", "time", "timer_create",
    "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime",
    "timerfd_settime", "times", "tkill", "truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat",
    "utimes", "vfork", "wait4", "waitid", "write", "writev",
];

/// Known to the kernel, refused as a matter of policy: io_uring (it evades filters), user-space page faults, kexec,
/// swap.
#[rustfmt::skip]
const DENIED: &[&str] = &[
    "add_key", "io_uring_enter", "io_uring_register", "io_uring_setup", "kexec_file_load", "kexec_load", "keyctl",
    "migrate_pages", "move_pages", "nfsservctl", "request_key", "swapoff", "swapon", "sysfs", "uselib",
    "userfaultfd", "ustat", "vmsplice",
];

#[rustfmt::skip]
const WITH_CAPABILITY: &[(&str, &[&str])] = &[
    ("CAP_BPF", &["bpf"]),
    ("CAP_DAC_READ_SEARCH", &["open_by_handle_at", "name_to_handle_at"]),
    ("CAP_PERFMON", &["perf_event_open"]),
    ("CAP_SYSLOG", &["syslog"]),
    ("CAP_SYS_ADMIN", &[
        "bpf", "fanotify_init", "fanotify_mark", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie", "mount",
        "mount_setattr", "move_mount", "open_tree", "perf_event_open", "pivot_root", "quotactl", "quotactl_fd",
        "setdomainname", "sethostname", "setns", "syslog", "umount2", "unshare",
    ]),
    ("CAP_SYS_BOOT", &["reboot"]),
    ("CAP_SYS_CHROOT", &["chroot"]),
    ("CAP_SYS_MODULE", &["delete_module", "finit_module", "init_module", "query_module"]),
    ("CAP_SYS_NICE", &["get_mempolicy", "mbind", "set_mempolicy"]),
    ("CAP_SYS_PACCT", &["acct"]),
    ("CAP_SYS_PTRACE", &["kcmp", "pidfd_getfd"]),
    ("CAP_SYS_RAWIO", &["ioperm", "iopl"]),
    ("CAP_SYS_TIME", &["clock_settime", "settimeofday"]),
    ("CAP_SYS_TTY_CONFIG", &["vhangup"]),
];

#[cfg(test)]
mod tests {
    use super::super::Test;
    use super::*;

    fn action(name: &str, capabilities: &[&str]) -> Option<Action> {
        let held: Vec<String> = capabilities.iter().map(|&name| name.to_owned()).collect();
        rules(&held).get(&number(name).unwrap()).cloned()
    }

    #[test]
    fn dangerous_calls_are_denied() {
        for name in ["io_uring_setup", "keyctl", "userfaultfd", "bpf", "mount", "unshare", "setns", "open_by_handle_at"]
        {
            assert_eq!(action(name, &[]), Some(EPERM), "{name}");
        }
        assert_eq!(action("mount", &["CAP_SYS_ADMIN"]), Some(Action::Allow));
        assert_eq!(action("io_uring_setup", &["CAP_SYS_ADMIN"]), Some(EPERM));
        assert_eq!(action("read", &[]), Some(Action::Allow));
        assert_eq!(action("clone3", &[]), Some(Action::Errno(libc::ENOSYS as u16)));
    }

    #[test]
    fn any_of_several_capabilities_allows_a_call() {
        for (capability, call) in [("CAP_SYSLOG", "syslog"), ("CAP_BPF", "bpf"), ("CAP_PERFMON", "perf_event_open")] {
            for held in [&[capability][..], &["CAP_SYS_ADMIN"], &["CAP_SYS_ADMIN", capability]] {
                assert_eq!(action(call, held), Some(Action::Allow), "{call} with {held:?}");
            }
            assert_eq!(action(call, &["CAP_SYS_BOOT"]), Some(EPERM), "{call}");
            assert_eq!(action("mount", &[capability]), Some(EPERM), "{capability}");
        }
    }

    #[test]
    fn address_families_are_an_allow_list() {
        let families = |call: &str, capabilities: &[&str]| match action(call, capabilities) {
            Some(Action::When(allowed, otherwise)) => {
                assert_eq!(*otherwise, EAFNOSUPPORT);
                assert!(allowed.iter().all(|(_, then)| *then == Action::Allow));
                let family = |when: &[Condition]| match when {
                    [Condition { argument: 0, test: Test::Masked { mask: 0xffff_ffff, value } }] => *value,
                    other => panic!("{other:?}"),
                };
                allowed.iter().map(|(when, _)| family(when)).collect::<Vec<_>>()
            }
            other => panic!("{call}: {other:?}"),
        };
        assert_eq!(families("socket", &[]), [1, 2, 10, 16], "unix, inet, inet6, netlink");
        assert_eq!(families("socket", &["CAP_NET_RAW"]), [1, 2, 10, 16, 17], "packet");
        assert_eq!(families("socketpair", &["CAP_NET_RAW"]), [1]);
    }
}
