//! Sysctls that networks need. They are read first and written only if they differ: a write of `ip_forward` makes the
//! kernel go through all interfaces of the host.

use gantry_model::{ErrorKind, Kind};

use crate::address::Prefix;
use crate::netlink::route::{RouteFilter, TABLE_MAIN};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Result, Socket};

/// Sets the sysctl to the value, unless it has it.
pub(crate) fn ensure(sysctl: Sysctl<'_>, value: &str) -> Result<()> {
    if sysctl.get()? == value { Ok(()) } else { sysctl.set(value) }
}

/// As [`ensure`], for a sysctl that does not exist without IPv6 or after its interface is gone.
pub(crate) fn ensure_if_present(sysctl: Sysctl<'_>, value: &str) -> Result<()> {
    match ensure(sysctl, value) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Keeps interfaces with an IPv6 default route accepting router advertisements, in the network namespace of the calling
/// thread and the socket: with `accept_ra` 1, a host that forwards IPv6 ignores advertisements and loses the default
/// route minutes later.
pub(crate) fn keep_accepting_advertisements(host: &mut Socket) -> Result<()> {
    let main = RouteFilter { v4: Some(false), device: None, table: Some(TABLE_MAIN) };
    let defaults = host.routes(&main)?.into_iter().filter(|route| route.to == Prefix::ALL_V6);
    for index in defaults.filter_map(|route| route.device).collect::<Vec<_>>() {
        let Some(link) = host.link_by_index(index)? else { continue };
        match Sysctl::AcceptRa(&link.name).get() {
            Ok(value) if value == "1" => ensure_if_present(Sysctl::AcceptRa(&link.name), "2")?,
            // The interface does not accept advertisements.
            Ok(_) => {}
            // The interface is gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes an interface that gantry created ignore router advertisements and skip duplicate address detection: no other
/// router or host is on it.
pub(super) fn disable_autoconfiguration(interface: &str, v6: bool) -> Result<()> {
    ensure_if_present(Sysctl::AcceptRa(interface), "0")?;
    ensure_if_present(Sysctl::AcceptDad(interface), "0")?;
    if v6 { ensure(Sysctl::DisableV6(interface), "0") } else { Ok(()) }
}
