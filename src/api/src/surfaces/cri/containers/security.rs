//! The security context of a container: user, groups, capabilities, privileges, system call filter, AppArmor, paths of
//! /proc and /sys. Namespaces are those of [`super::namespaces`].

use std::collections::BTreeSet;
use std::path::Path;

use gantry_engine::read_seccomp_profile;
use gantry_model::id::shown;
use gantry_model::spec::{AppSpec, Capabilities, GroupsPolicy, Seccomp};
use gantry_proto::cri::v1::security_profile::ProfileType;
use gantry_proto::cri::v1::{Capability, LinuxContainerSecurityContext, SecurityProfile, SupplementalGroupsPolicy};
use tonic::Status;

use super::super::sandbox::check_selinux;
use super::config::unsupported;
use crate::status::{from_error, invalid_field};

const FIELD: &str = "config.linux.security_context";
/// Exists where the kernel enforces AppArmor profiles.
const APPARMOR: &str = "/sys/kernel/security/apparmor";

/// Applies the security context to the app. A context that sets no system call filter or no masked paths turns them
/// off, as kubelets expect; without any context, gantry's masked paths apply.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED`, with the field and the reason.
pub(super) fn translate(context: Option<LinuxContainerSecurityContext>, app: &mut AppSpec) -> Result<(), Status> {
    let has_context = context.is_some();
    let context = context.unwrap_or_default();
    check_apparmor(&context)?;
    if !context.privileged {
        check_selinux(context.selinux_options.as_ref())?;
    }
    let group = |gid: i64| {
        u32::try_from(gid).map_err(|_| invalid_field(&format!("{FIELD}.supplemental_groups"), "expected numbers"))
    };
    app.user = user(&context)?;
    app.group = context.run_as_group.map(|gid| gid.value.to_string());
    app.options.supplementary_gids =
        context.supplemental_groups.iter().map(|gid| group(*gid)).collect::<Result<_, _>>()?;
    app.options.groups_policy = groups_policy(context.supplemental_groups_policy)?;
    app.options.read_only_root = context.readonly_rootfs;
    app.options.privileged = context.privileged;
    app.options.new_privileges = !context.no_new_privs;
    app.capabilities = match context.privileged {
        true => Capabilities::All,
        false => capabilities(context.capabilities.clone().unwrap_or_default()),
    };
    app.options.seccomp = seccomp(&context, &app.capabilities)?;
    if has_context && !context.privileged {
        app.options.masked_paths = Some(context.masked_paths);
        app.options.read_only_paths = Some(context.readonly_paths);
    }
    Ok(())
}

/// Refuses profiles of the host, since gantry applies no AppArmor profiles. The default profile has no effect.
fn check_apparmor(context: &LinuxContainerSecurityContext) -> Result<(), Status> {
    let is_local = match &context.apparmor {
        Some(profile) => profile.profile_type() == ProfileType::Localhost,
        None => !matches!(context.apparmor_profile.as_str(), "" | "runtime/default" | "unconfined"),
    };
    if !is_local || context.privileged {
        return Ok(());
    }
    let field = format!("{FIELD}.apparmor");
    match Path::new(APPARMOR).exists() {
        true => Err(unsupported(&field, "gantry applies no AppArmor profiles")),
        false => Err(invalid_field(&field, "this host has no AppArmor")),
    }
}

fn groups_policy(policy: i32) -> Result<GroupsPolicy, Status> {
    match SupplementalGroupsPolicy::try_from(policy) {
        Ok(SupplementalGroupsPolicy::Merge) => Ok(GroupsPolicy::Merge),
        Ok(SupplementalGroupsPolicy::Strict) => Ok(GroupsPolicy::Strict),
        Err(_) => Err(invalid_field(&format!("{FIELD}.supplemental_groups_policy"), "expected Merge or Strict")),
    }
}

fn user(context: &LinuxContainerSecurityContext) -> Result<Option<String>, Status> {
    let name = Some(context.run_as_username.clone()).filter(|name| !name.is_empty());
    let user = context.run_as_user.map(|uid| uid.value.to_string()).or(name);
    if user.is_none() && context.run_as_group.is_some() {
        return Err(invalid_field(&format!("{FIELD}.run_as_group"), "it needs run_as_user or run_as_username"));
    }
    Ok(user)
}

/// The filter of an app with these capabilities. The older field counts if the newer one is absent.
fn seccomp(context: &LinuxContainerSecurityContext, capabilities: &Capabilities) -> Result<Seccomp, Status> {
    if context.privileged {
        return Ok(Seccomp::Unconfined);
    }
    let Some(profile) = &context.seccomp else {
        let field = format!("{FIELD}.seccomp_profile_path");
        return match context.seccomp_profile_path.as_str() {
            "" | "unconfined" => Ok(Seccomp::Unconfined),
            "runtime/default" | "docker/default" => Ok(Seccomp::Default),
            text => match text.strip_prefix("localhost/") {
                Some(path) => seccomp_file(&field, path, capabilities),
                None => Err(invalid_field(&field, "expected runtime/default, unconfined or localhost/PATH")),
            },
        };
    };
    let field = format!("{FIELD}.seccomp");
    let SecurityProfile { profile_type, localhost_ref } = profile;
    match ProfileType::try_from(*profile_type) {
        Ok(ProfileType::Unconfined) => Ok(Seccomp::Unconfined),
        Ok(ProfileType::RuntimeDefault) => Ok(Seccomp::Default),
        Ok(ProfileType::Localhost) => seccomp_file(&format!("{field}.localhost_ref"), localhost_ref, capabilities),
        Err(_) => Err(invalid_field(&field, "there is no such type of profile")),
    }
}

fn seccomp_file(field: &str, path: &str, capabilities: &Capabilities) -> Result<Seccomp, Status> {
    if !Path::new(path).is_absolute() {
        return Err(invalid_field(field, &format!("'{}' is not an absolute path", shown(path))));
    }
    let profile = read_seccomp_profile(Path::new(path), capabilities).map_err(|error| from_error(&error))?;
    Ok(Seccomp::Profile(Box::new(profile)))
}

fn capabilities(capability: Capability) -> Capabilities {
    let Capability { add_capabilities, drop_capabilities, add_ambient_capabilities } = capability;
    let names = |names: Vec<String>| -> BTreeSet<String> { names.iter().map(|name| full_name(name)).collect() };
    let (add, drop) = (names(add_capabilities), names(drop_capabilities));
    Capabilities::Kubernetes { add, drop, ambient: names(add_ambient_capabilities) }
}

fn full_name(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") }
}
