//! Names of system calls and their numbers on the architecture gantry was built for, sorted by name.

/// The number of a system call; `None` when this architecture has no such call.
pub(super) fn number(name: &str) -> Option<u32> {
    [COMMON, ARCHITECTURE]
        .iter()
        .find_map(|table| table.binary_search_by(|entry| entry.0.cmp(name)).ok().map(|i| table[i].1))
        .and_then(|number| u32::try_from(number).ok())
}

#[rustfmt::skip]
const COMMON: &[(&str, libc::c_long)] = &[
    ("accept", libc::SYS_accept), ("accept4", libc::SYS_accept4), ("acct", libc::SYS_acct),
    ("add_key", libc::SYS_add_key), ("adjtimex", libc::SYS_adjtimex), ("bind", libc::SYS_bind),
    ("bpf", libc::SYS_bpf), ("brk", libc::SYS_brk), ("capget", libc::SYS_capget), ("capset", libc::SYS_capset),
    ("chdir", libc::SYS_chdir), ("chroot", libc::SYS_chroot), ("clock_adjtime", libc::SYS_clock_adjtime),
    ("clock_getres", libc::SYS_clock_getres), ("clock_gettime", libc::SYS_clock_gettime),
    ("clock_nanosleep", libc::SYS_clock_nanosleep), ("clock_settime", libc::SYS_clock_settime),
    ("clone", libc::SYS_clone), ("clone3", libc::SYS_clone3), ("close", libc::SYS_close),
    ("close_range", libc::SYS_close_range), ("connect", libc::SYS_connect),
    ("copy_file_range", libc::SYS_copy_file_range), ("delete_module", libc::SYS_delete_module),
    ("dup", libc::SYS_dup), ("dup3", libc::SYS_dup3), ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl), ("epoll_pwait", libc::SYS_epoll_pwait),
    ("epoll_pwait2", libc::SYS_epoll_pwait2), ("eventfd2", libc::SYS_eventfd2), ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat), ("exit", libc::SYS_exit), ("exit_group", libc::SYS_exit_group),
    ("faccessat", libc::SYS_faccessat), ("faccessat2", libc::SYS_faccessat2), ("fadvise64", libc::SYS_fadvise64),
    ("fallocate", libc::SYS_fallocate), ("fanotify_init", libc::SYS_fanotify_init),
    ("fanotify_mark", libc::SYS_fanotify_mark), ("fchdir", libc::SYS_fchdir), ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat), ("fchown", libc::SYS_fchown), ("fchownat", libc::SYS_fchownat),
    ("fcntl", libc::SYS_fcntl), ("fdatasync", libc::SYS_fdatasync), ("fgetxattr", libc::SYS_fgetxattr),
    ("finit_module", libc::SYS_finit_module), ("flistxattr", libc::SYS_flistxattr), ("flock", libc::SYS_flock),
    ("fremovexattr", libc::SYS_fremovexattr), ("fsconfig", libc::SYS_fsconfig), ("fsetxattr", libc::SYS_fsetxattr),
    ("fsmount", libc::SYS_fsmount), ("fsopen", libc::SYS_fsopen), ("fspick", libc::SYS_fspick),
    ("fstat", libc::SYS_fstat), ("fstatfs", libc::SYS_fstatfs), ("fsync", libc::SYS_fsync),
    ("ftruncate", libc::SYS_ftruncate), ("futex", libc::SYS_futex), ("futex_waitv", libc::SYS_futex_waitv),
    ("get_mempolicy", libc::SYS_get_mempolicy), ("get_robust_list", libc::SYS_get_robust_list),
    ("getcpu", libc::SYS_getcpu), ("getcwd", libc::SYS_getcwd), ("getdents64", libc::SYS_getdents64),
    ("getegid", libc::SYS_getegid), ("geteuid", libc::SYS_geteuid), ("getgid", libc::SYS_getgid),
    ("getgroups", libc::SYS_getgroups), ("getitimer", libc::SYS_getitimer), ("getpeername", libc::SYS_getpeername),
    ("getpgid", libc::SYS_getpgid), ("getpid", libc::SYS_getpid), ("getppid", libc::SYS_getppid),
    ("getpriority", libc::SYS_getpriority), ("getrandom", libc::SYS_getrandom), ("getresgid", libc::SYS_getresgid),
    ("getresuid", libc::SYS_getresuid), ("getrlimit", libc::SYS_getrlimit), ("getrusage", libc::SYS_getrusage),
    ("getsid", libc::SYS_getsid), ("getsockname", libc::SYS_getsockname), ("getsockopt", libc::SYS_getsockopt),
    ("gettid", libc::SYS_gettid), ("gettimeofday", libc::SYS_gettimeofday), ("getuid", libc::SYS_getuid),
    ("getxattr", libc::SYS_getxattr), ("init_module", libc::SYS_init_module),
    ("inotify_add_watch", libc::SYS_inotify_add_watch), ("inotify_init1", libc::SYS_inotify_init1),
    ("inotify_rm_watch", libc::SYS_inotify_rm_watch), ("io_cancel", libc::SYS_io_cancel),
    ("io_destroy", libc::SYS_io_destroy), ("io_getevents", libc::SYS_io_getevents),
    ("io_setup", libc::SYS_io_setup), ("io_submit", libc::SYS_io_submit),
    ("io_uring_enter", libc::SYS_io_uring_enter), ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_setup", libc::SYS_io_uring_setup), ("ioctl", libc::SYS_ioctl), ("ioprio_get", libc::SYS_ioprio_get),
    ("ioprio_set", libc::SYS_ioprio_set), ("kcmp", libc::SYS_kcmp), ("kexec_load", libc::SYS_kexec_load),
    ("keyctl", libc::SYS_keyctl), ("kill", libc::SYS_kill), ("landlock_add_rule", libc::SYS_landlock_add_rule),
    ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    ("landlock_restrict_self", libc::SYS_landlock_restrict_self), ("lgetxattr", libc::SYS_lgetxattr),
    ("linkat", libc::SYS_linkat), ("listen", libc::SYS_listen), ("listxattr", libc::SYS_listxattr),
    ("llistxattr", libc::SYS_llistxattr), ("lookup_dcookie", libc::SYS_lookup_dcookie),
    ("lremovexattr", libc::SYS_lremovexattr), ("lseek", libc::SYS_lseek), ("lsetxattr", libc::SYS_lsetxattr),
    ("madvise", libc::SYS_madvise), ("mbind", libc::SYS_mbind), ("membarrier", libc::SYS_membarrier),
    ("memfd_create", libc::SYS_memfd_create), ("memfd_secret", libc::SYS_memfd_secret),
    ("migrate_pages", libc::SYS_migrate_pages), ("mincore", libc::SYS_mincore), ("mkdirat", libc::SYS_mkdirat),
    ("mknodat", libc::SYS_mknodat), ("mlock", libc::SYS_mlock), ("mlock2", libc::SYS_mlock2),
    ("mlockall", libc::SYS_mlockall), ("mmap", libc::SYS_mmap), ("mount", libc::SYS_mount),
    ("mount_setattr", libc::SYS_mount_setattr), ("move_mount", libc::SYS_move_mount),
    ("move_pages", libc::SYS_move_pages), ("mprotect", libc::SYS_mprotect),
    ("mq_getsetattr", libc::SYS_mq_getsetattr), ("mq_notify", libc::SYS_mq_notify), ("mq_open", libc::SYS_mq_open),
    ("mq_timedreceive", libc::SYS_mq_timedreceive), ("mq_timedsend", libc::SYS_mq_timedsend),
    ("mq_unlink", libc::SYS_mq_unlink), ("mremap", libc::SYS_mremap), ("mseal", libc::SYS_mseal),
    ("msgctl", libc::SYS_msgctl), ("msgget", libc::SYS_msgget), ("msgrcv", libc::SYS_msgrcv),
    ("msgsnd", libc::SYS_msgsnd), ("msync", libc::SYS_msync), ("munlock", libc::SYS_munlock),
    ("munlockall", libc::SYS_munlockall), ("munmap", libc::SYS_munmap),
    ("name_to_handle_at", libc::SYS_name_to_handle_at), ("nanosleep", libc::SYS_nanosleep),
    ("newfstatat", libc::SYS_newfstatat), ("nfsservctl", libc::SYS_nfsservctl),
    ("open_by_handle_at", libc::SYS_open_by_handle_at), ("open_tree", libc::SYS_open_tree),
    ("openat", libc::SYS_openat), ("openat2", libc::SYS_openat2), ("perf_event_open", libc::SYS_perf_event_open),
    ("personality", libc::SYS_personality), ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_open", libc::SYS_pidfd_open), ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("pipe2", libc::SYS_pipe2), ("pivot_root", libc::SYS_pivot_root), ("pkey_alloc", libc::SYS_pkey_alloc),
    ("pkey_free", libc::SYS_pkey_free), ("pkey_mprotect", libc::SYS_pkey_mprotect), ("ppoll", libc::SYS_ppoll),
    ("prctl", libc::SYS_prctl), ("pread64", libc::SYS_pread64), ("preadv", libc::SYS_preadv),
    ("preadv2", libc::SYS_preadv2), ("prlimit64", libc::SYS_prlimit64),
    ("process_madvise", libc::SYS_process_madvise), ("process_mrelease", libc::SYS_process_mrelease),
    ("process_vm_readv", libc::SYS_process_vm_readv), ("process_vm_writev", libc::SYS_process_vm_writev),
    ("pselect6", libc::SYS_pselect6), ("ptrace", libc::SYS_ptrace), ("pwrite64", libc::SYS_pwrite64),
    ("pwritev", libc::SYS_pwritev), ("pwritev2", libc::SYS_pwritev2), ("quotactl", libc::SYS_quotactl),
    ("quotactl_fd", libc::SYS_quotactl_fd), ("read", libc::SYS_read), ("readahead", libc::SYS_readahead),
    ("readlinkat", libc::SYS_readlinkat), ("readv", libc::SYS_readv), ("reboot", libc::SYS_reboot),
    ("recvfrom", libc::SYS_recvfrom), ("recvmmsg", libc::SYS_recvmmsg), ("recvmsg", libc::SYS_recvmsg),
    ("remap_file_pages", libc::SYS_remap_file_pages), ("removexattr", libc::SYS_removexattr),
    ("renameat", libc::SYS_renameat), ("renameat2", libc::SYS_renameat2), ("request_key", libc::SYS_request_key),
    ("restart_syscall", libc::SYS_restart_syscall), ("rseq", libc::SYS_rseq),
    ("rt_sigaction", libc::SYS_rt_sigaction), ("rt_sigpending", libc::SYS_rt_sigpending),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask), ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_sigreturn", libc::SYS_rt_sigreturn), ("rt_sigsuspend", libc::SYS_rt_sigsuspend),
    ("rt_sigtimedwait", libc::SYS_rt_sigtimedwait), ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("sched_get_priority_max", libc::SYS_sched_get_priority_max),
    ("sched_get_priority_min", libc::SYS_sched_get_priority_min), ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_getattr", libc::SYS_sched_getattr), ("sched_getparam", libc::SYS_sched_getparam),
    ("sched_getscheduler", libc::SYS_sched_getscheduler), ("sched_rr_get_interval", libc::SYS_sched_rr_get_interval),
    ("sched_setaffinity", libc::SYS_sched_setaffinity), ("sched_setattr", libc::SYS_sched_setattr),
    ("sched_setparam", libc::SYS_sched_setparam), ("sched_setscheduler", libc::SYS_sched_setscheduler),
    ("sched_yield", libc::SYS_sched_yield), ("seccomp", libc::SYS_seccomp), ("semctl", libc::SYS_semctl),
    ("semget", libc::SYS_semget), ("semop", libc::SYS_semop), ("semtimedop", libc::SYS_semtimedop),
    ("sendfile", libc::SYS_sendfile), ("sendmmsg", libc::SYS_sendmmsg), ("sendmsg", libc::SYS_sendmsg),
    ("sendto", libc::SYS_sendto), ("set_mempolicy", libc::SYS_set_mempolicy),
    ("set_mempolicy_home_node", libc::SYS_set_mempolicy_home_node), ("set_robust_list", libc::SYS_set_robust_list),
    ("set_tid_address", libc::SYS_set_tid_address), ("setdomainname", libc::SYS_setdomainname),
    ("setfsgid", libc::SYS_setfsgid), ("setfsuid", libc::SYS_setfsuid), ("setgid", libc::SYS_setgid),
    ("setgroups", libc::SYS_setgroups), ("sethostname", libc::SYS_sethostname), ("setitimer", libc::SYS_setitimer),
    ("setns", libc::SYS_setns), ("setpgid", libc::SYS_setpgid), ("setpriority", libc::SYS_setpriority),
    ("setregid", libc::SYS_setregid), ("setresgid", libc::SYS_setresgid), ("setresuid", libc::SYS_setresuid),
    ("setreuid", libc::SYS_setreuid), ("setrlimit", libc::SYS_setrlimit), ("setsid", libc::SYS_setsid),
    ("setsockopt", libc::SYS_setsockopt), ("settimeofday", libc::SYS_settimeofday), ("setuid", libc::SYS_setuid),
    ("setxattr", libc::SYS_setxattr), ("shmat", libc::SYS_shmat), ("shmctl", libc::SYS_shmctl),
    ("shmdt", libc::SYS_shmdt), ("shmget", libc::SYS_shmget), ("shutdown", libc::SYS_shutdown),
    ("sigaltstack", libc::SYS_sigaltstack), ("signalfd4", libc::SYS_signalfd4), ("socket", libc::SYS_socket),
    ("socketpair", libc::SYS_socketpair), ("splice", libc::SYS_splice), ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx), ("swapoff", libc::SYS_swapoff), ("swapon", libc::SYS_swapon),
    ("symlinkat", libc::SYS_symlinkat), ("sync", libc::SYS_sync), ("sync_file_range", libc::SYS_sync_file_range),
    ("syncfs", libc::SYS_syncfs), ("sysinfo", libc::SYS_sysinfo), ("syslog", libc::SYS_syslog),
    ("tee", libc::SYS_tee), ("tgkill", libc::SYS_tgkill), ("timer_create", libc::SYS_timer_create),
    ("timer_delete", libc::SYS_timer_delete), ("timer_getoverrun", libc::SYS_timer_getoverrun),
    ("timer_gettime", libc::SYS_timer_gettime), ("timer_settime", libc::SYS_timer_settime),
    ("timerfd_create", libc::SYS_timerfd_create), ("timerfd_gettime", libc::SYS_timerfd_gettime),
    ("timerfd_settime", libc::SYS_timerfd_settime), ("times", libc::SYS_times), ("tkill", libc::SYS_tkill),
    ("truncate", libc::SYS_truncate), ("umask", libc::SYS_umask), ("umount2", libc::SYS_umount2),
    ("uname", libc::SYS_uname), ("unlinkat", libc::SYS_unlinkat), ("unshare", libc::SYS_unshare),
    ("userfaultfd", libc::SYS_userfaultfd), ("utimensat", libc::SYS_utimensat), ("vhangup", libc::SYS_vhangup),
    ("vmsplice", libc::SYS_vmsplice), ("wait4", libc::SYS_wait4), ("waitid", libc::SYS_waitid),
    ("write", libc::SYS_write), ("writev", libc::SYS_writev),
];

#[cfg(not(target_arch = "x86_64"))]
const ARCHITECTURE: &[(&str, libc::c_long)] = &[];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ARCHITECTURE: &[(&str, libc::c_long)] = &[
    ("_sysctl", libc::SYS__sysctl), ("access", libc::SYS_access), ("afs_syscall", libc::SYS_afs_syscall),
    ("alarm", libc::SYS_alarm), ("arch_prctl", libc::SYS_arch_prctl), ("chmod", libc::SYS_chmod),
    ("chown", libc::SYS_chown), ("creat", libc::SYS_creat), ("dup2", libc::SYS_dup2),
    ("epoll_create", libc::SYS_epoll_create), ("epoll_ctl_old", libc::SYS_epoll_ctl_old),
    ("epoll_wait", libc::SYS_epoll_wait), ("epoll_wait_old", libc::SYS_epoll_wait_old),
    ("eventfd", libc::SYS_eventfd), ("fchmodat2", libc::SYS_fchmodat2), ("fork", libc::SYS_fork),
    ("futimesat", libc::SYS_futimesat), ("get_thread_area", libc::SYS_get_thread_area),
    ("getdents", libc::SYS_getdents), ("getpgrp", libc::SYS_getpgrp), ("getpmsg", libc::SYS_getpmsg),
    ("inotify_init", libc::SYS_inotify_init), ("ioperm", libc::SYS_ioperm), ("iopl", libc::SYS_iopl),
    ("kexec_file_load", libc::SYS_kexec_file_load), ("lchown", libc::SYS_lchown), ("link", libc::SYS_link),
    ("lstat", libc::SYS_lstat), ("mkdir", libc::SYS_mkdir), ("mknod", libc::SYS_mknod),
    ("modify_ldt", libc::SYS_modify_ldt), ("open", libc::SYS_open), ("pause", libc::SYS_pause),
    ("pipe", libc::SYS_pipe), ("poll", libc::SYS_poll), ("putpmsg", libc::SYS_putpmsg),
    ("readlink", libc::SYS_readlink), ("rename", libc::SYS_rename), ("rmdir", libc::SYS_rmdir),
    ("security", libc::SYS_security), ("select", libc::SYS_select), ("set_thread_area", libc::SYS_set_thread_area),
    ("signalfd", libc::SYS_signalfd), ("stat", libc::SYS_stat), ("symlink", libc::SYS_symlink),
    ("sysfs", libc::SYS_sysfs), ("time", libc::SYS_time), ("tuxcall", libc::SYS_tuxcall),
    ("unlink", libc::SYS_unlink), ("uselib", libc::SYS_uselib), ("ustat", libc::SYS_ustat),
    ("utime", libc::SYS_utime), ("utimes", libc::SYS_utimes), ("vfork", libc::SYS_vfork),
    ("vserver", libc::SYS_vserver),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted() {
        for table in [COMMON, ARCHITECTURE] {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
        assert_eq!(number("read"), u32::try_from(libc::SYS_read).ok());
        assert_eq!(number("nonsense"), None);
    }
}
