//! Resource limits of an app's processes (`--ulimit`), on top of the pod's ([`crate::pod::inheritance`]).
//!
//! They are set in two steps: while a process has the supervisor's rights, a hard limit is raised if necessary, and the
//! app's own limits come last ([`crate::app::confine`]), since a low one could stop the steps before.

use std::io;

use gantry_model::ErrorKind;
use gantry_model::ulimit::{Resource, Ulimit};
use rustix::process::{Resource as KernelResource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use crate::failure::{Result, failure};

/// Checks that the supervisor can raise the hard limits, given its capabilities.
pub(crate) fn check(ulimits: &[Ulimit], held: CapabilitySet) -> Result<()> {
    let refused = raised(ulimits).find(|_| !held.contains(CapabilitySet::SYS_RESOURCE));
    let Some((ulimit, hard)) = refused else { return Ok(()) };
    let hard = hard.map_or_else(|| "unlimited".to_owned(), |hard| hard.to_string());
    let why = format!(
        "--ulimit {ulimit} is above the hard limit {hard} of this host, whose root lacks CAP_SYS_RESOURCE to raise it"
    );
    Err(failure(ErrorKind::Unavailable, why))
}

/// The limits above the hard limit of this process, each with that limit.
fn raised(ulimits: &[Ulimit]) -> impl Iterator<Item = (&Ulimit, Option<u64>)> {
    let hard_limit = |ulimit: &Ulimit| getrlimit(kernel_resource(ulimit.resource)).maximum;
    let is_above = |(ulimit, hard): &(&Ulimit, Option<u64>)| ulimit.hard.unwrap_or(u64::MAX) > hard.unwrap_or(u64::MAX);
    ulimits.iter().map(move |ulimit| (ulimit, hard_limit(ulimit))).filter(is_above)
}

/// Raises hard limits of this process. The soft limits stay.
pub(crate) fn raise(ulimits: &[Ulimit]) -> io::Result<()> {
    for (ulimit, _) in raised(ulimits) {
        let resource = kernel_resource(ulimit.resource);
        setrlimit(resource, Rlimit { current: getrlimit(resource).current, maximum: ulimit.hard })?;
    }
    Ok(())
}

/// Sets the limits of this process.
pub(crate) fn apply(ulimits: &[Ulimit]) -> io::Result<()> {
    for ulimit in ulimits {
        setrlimit(kernel_resource(ulimit.resource), Rlimit { current: ulimit.soft, maximum: ulimit.hard })?;
    }
    Ok(())
}

fn kernel_resource(resource: Resource) -> KernelResource {
    match resource {
        Resource::As => KernelResource::As,
        Resource::Core => KernelResource::Core,
        Resource::Cpu => KernelResource::Cpu,
        Resource::Data => KernelResource::Data,
        Resource::Fsize => KernelResource::Fsize,
        Resource::Locks => KernelResource::Locks,
        Resource::Memlock => KernelResource::Memlock,
        Resource::Msgqueue => KernelResource::Msgqueue,
        Resource::Nice => KernelResource::Nice,
        Resource::Nofile => KernelResource::Nofile,
        Resource::Nproc => KernelResource::Nproc,
        Resource::Rss => KernelResource::Rss,
        Resource::Rtprio => KernelResource::Rtprio,
        Resource::Rttime => KernelResource::Rttime,
        Resource::Sigpending => KernelResource::Sigpending,
        Resource::Stack => KernelResource::Stack,
    }
}
