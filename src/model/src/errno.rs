//! Names of error numbers (errno(3)), as used in system call filters.

/// The generic error numbers of Linux, from 1 (errno-base.h, and the first of errno.h).
const NAMES: [&str; 40] = [
    "EPERM",
    "ENOENT",
    "ESRCH",
    "EINTR",
    "EIO",
    "ENXIO",
    "E2BIG",
    "ENOEXEC",
    "EBADF",
    "ECHILD",
    "EAGAIN",
    "ENOMEM",
    "EACCES",
    "EFAULT",
    "ENOTBLK",
    "EBUSY",
    "EEXIST",
    "EXDEV",
    "ENODEV",
    "ENOTDIR",
    "EISDIR",
    "EINVAL",
    "ENFILE",
    "EMFILE",
    "ENOTTY",
    "ETXTBSY",
    "EFBIG",
    "ENOSPC",
    "ESPIPE",
    "EROFS",
    "EMLINK",
    "EPIPE",
    "EDOM",
    "ERANGE",
    "EDEADLK",
    "ENAMETOOLONG",
    "ENOLCK",
    "ENOSYS",
    "ENOTEMPTY",
    "ELOOP",
];

/// The number of a name such as `EPERM`.
#[must_use]
pub fn number(name: &str) -> Option<u16> {
    NAMES.iter().position(|known| *known == name).and_then(|at| u16::try_from(at + 1).ok())
}

/// The name of a number, where it has one here.
#[must_use]
pub fn name(number: u16) -> Option<&'static str> {
    NAMES.get(usize::from(number.checked_sub(1)?)).copied()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_and_numbers_convert_both_ways() {
        assert_eq!((super::number("EPERM"), super::number("ENOSYS"), super::number("E")), (Some(1), Some(38), None));
        assert_eq!(
            (super::name(1), super::name(40), super::name(0), super::name(41)),
            (Some("EPERM"), Some("ELOOP"), None, None)
        );
    }
}
