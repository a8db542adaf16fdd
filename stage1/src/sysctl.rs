//! Sets the kernel settings of a pod's namespaces.

use gantry_contract::plan::{Net, Plan};
use gantry_model::ErrorKind;

use crate::failure::{Attempt, Result, failure};

/// Writes the settings of the plan. This process must be in the pod's namespaces, to which the files below `/proc/sys`
/// refer, and the pod must have its interfaces: some settings are theirs.
pub(crate) fn apply(plan: &Plan) -> Result<()> {
    for (name, value) in &plan.sysctls {
        if name.is_network() && plan.net == Net::Host {
            let why = "a pod with --net=host has no network namespace of its own";
            return Err(failure(ErrorKind::Invalid, format!("sysctl {name} would change the host: {why}")));
        }
        let path = format!("/proc/sys/{}", name.path());
        std::fs::write(path, value).attempt(|| format!("cannot set sysctl {name} to '{value}'"))?;
    }
    Ok(())
}
