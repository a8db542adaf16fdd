//! The security context of a container: user, groups, capabilities, privileges, system call filter, AppArmor, paths of
//! /proc and /sys. Namespaces are those of [`super::namespaces`].

use std::collections::BTreeSet;

use gantry_engine::model::spec::{AppSpec, Capabilities, Seccomp};
use gantry_proto::cri::v1::security_profile::ProfileType;
use gantry_proto::cri::v1::{Capability, LinuxContainerSecurityContext, SecurityProfile};
use tonic::Status;

use super::config::unsupported;
use crate::status::invalid_field;

const FIELD: &str = "config.linux.security_context";

/// Applies the security context to the app. An empty context is one without confinement by a filter, as the CRI has it.
///
/// # Errors
/// INVALID_ARGUMENT, UNIMPLEMENTED: the field and the reason.
pub(super) fn translate(context: LinuxContainerSecurityContext, app: &mut AppSpec) -> Result<(), Status> {
    check_supported(&context)?;
    let group = |gid: i64| {
        u32::try_from(gid).map_err(|_| invalid_field(&format!("{FIELD}.supplemental_groups"), "expected numbers"))
    };
    app.user = user(&context)?;
    app.group = context.run_as_group.map(|gid| gid.value.to_string());
    app.options.supplementary_gids =
        context.supplemental_groups.iter().map(|gid| group(*gid)).collect::<Result<_, _>>()?;
    app.options.read_only_root = context.readonly_rootfs;
    app.options.privileged = context.privileged;
    app.options.new_privileges = !context.no_new_privs;
    app.options.seccomp = seccomp(context.seccomp.as_ref())?;
    app.capabilities = capabilities(context.capabilities.unwrap_or_default())?;
    Ok(())
}

/// Refuses what has no effect yet.
fn check_supported(context: &LinuxContainerSecurityContext) -> Result<(), Status> {
    let has_policy = context.supplemental_groups_policy != 0;
    for (name, is_set) in [
        ("supplemental_groups_policy", has_policy),
        ("apparmor_profile", !context.apparmor_profile.is_empty()),
        ("seccomp_profile_path", !context.seccomp_profile_path.is_empty()),
        ("masked_paths", !context.masked_paths.is_empty()),
        ("readonly_paths", !context.readonly_paths.is_empty()),
    ] {
        if is_set {
            return Err(unsupported(&format!("{FIELD}.{name}"), "apps have no such option"));
        }
    }
    Ok(())
}

fn user(context: &LinuxContainerSecurityContext) -> Result<Option<String>, Status> {
    let name = Some(context.run_as_username.clone()).filter(|name| !name.is_empty());
    let user = context.run_as_user.map(|uid| uid.value.to_string()).or(name);
    if user.is_none() && context.run_as_group.is_some() {
        return Err(invalid_field(&format!("{FIELD}.run_as_group"), "it needs run_as_user or run_as_username"));
    }
    Ok(user)
}

fn seccomp(profile: Option<&SecurityProfile>) -> Result<Seccomp, Status> {
    match profile.map(|profile| ProfileType::try_from(profile.profile_type)) {
        None | Some(Ok(ProfileType::Unconfined)) => Ok(Seccomp::Unconfined),
        Some(Ok(ProfileType::RuntimeDefault)) => Ok(Seccomp::Default),
        Some(Ok(ProfileType::Localhost)) => Err(unsupported(&format!("{FIELD}.seccomp"), "profiles are not read")),
        Some(Err(_)) => Err(invalid_field(&format!("{FIELD}.seccomp"), "there is no such type of profile")),
    }
}

fn capabilities(capability: Capability) -> Result<Capabilities, Status> {
    let Capability { add_capabilities, drop_capabilities, add_ambient_capabilities } = capability;
    if !add_ambient_capabilities.is_empty() {
        return Err(unsupported(&format!("{FIELD}.capabilities.add_ambient_capabilities"), "apps have none"));
    }
    if add_capabilities.is_empty() && drop_capabilities.is_empty() {
        return Ok(Capabilities::Default);
    }
    let names = |names: Vec<String>| -> BTreeSet<String> { names.iter().map(|name| full_name(name)).collect() };
    Ok(Capabilities::Adjust { add: names(add_capabilities), drop: names(drop_capabilities) })
}

fn full_name(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") }
}
