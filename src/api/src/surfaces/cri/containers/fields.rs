//! Errors of the engine name flags of the command line: here they name the fields of a request instead.

use std::error::Error;

use gantry_model::Kind;
use tonic::Status;

use crate::status::from_error;

/// Flags, and the fields that set the same. If one flag is the beginning of another, the longer one comes first.
const FIELDS: &[(&str, &str)] = &[
    ("--memory-swap", "memory_swap_limit_in_bytes"),
    ("--memory", "memory_limit_in_bytes"),
    ("--cpu-quota", "cpu_quota"),
    ("--cpu-period", "cpu_period"),
    ("--cpu-shares", "cpu_shares"),
    ("--cpuset-cpus", "cpuset_cpus"),
    ("--cpuset-mems", "cpuset_mems"),
    ("--cpus", "cpu_quota"),
    ("--hugetlb-limit", "hugepage_limits"),
    ("--cgroup-conf", "unified"),
    ("--log-path", "log_path"),
    ("--log-dir", "log_directory"),
    ("--name", "metadata.name"),
    ("--hostname", "hostname"),
    ("--privileged", "security_context.privileged"),
    ("--userns", "userns_options"),
    ("--uts=host", "namespace_options.network NODE"),
    ("--net=host", "namespace_options.network NODE"),
    ("--ipc=host", "namespace_options.ipc NODE"),
    ("--pid=host", "namespace_options.pid NODE"),
    ("--cgroup-manager", "gantryd's setting cgroup-manager"),
];

/// The text of an error, with the fields in place of the flags.
pub(in super::super) fn with_fields(text: &str) -> String {
    FIELDS.iter().fold(text.to_owned(), |text, (flag, field)| text.replace(flag, field))
}

/// The status of an error, as [`from_error`], with the fields in place of the flags.
pub(in super::super) fn from_error_with_fields<E: Error + Kind>(error: &E) -> Status {
    let status = from_error(error);
    Status::new(status.code(), with_fields(status.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_the_names_of_fields() {
        assert_eq!(with_fields("--memory 1 is out of range"), "memory_limit_in_bytes 1 is out of range");
        let swap = "memory_swap_limit_in_bytes needs memory_limit_in_bytes";
        assert_eq!(with_fields("--memory-swap needs --memory"), swap);
        assert_eq!(with_fields("cannot set cpu.max to 'max 1' (--cpus)"), "cannot set cpu.max to 'max 1' (cpu_quota)");
        for (flag, field) in FIELDS {
            assert_eq!(with_fields(flag), *field);
        }
    }
}
