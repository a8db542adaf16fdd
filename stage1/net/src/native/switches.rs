//! Switches of the kernel that a network needs. They are read first and written only when they are otherwise: a write of
//! `ip_forward` goes through all interfaces of the host.

use gantry_model::{ErrorKind, Kind};

use crate::address::Prefix;
use crate::netlink::route::{RouteFilter, TABLE_MAIN};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Result, Socket};

/// Sets it unless it is so.
pub(crate) fn be(switch: Sysctl<'_>, value: &str) -> Result<()> {
    if switch.get()? == value { Ok(()) } else { switch.set(value) }
}

/// As [`be`], where IPv6 may be missing: then there is nothing to switch.
pub(crate) fn be_if_there(switch: Sysctl<'_>, value: &str) -> Result<()> {
    match be(switch, value) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Tells interfaces with a default route of IPv6 to go on listening to routers, in the namespace of the calling thread, which the
/// socket is of: a host that forwards IPv6 stops listening where `accept_ra` is 1, and loses the default route it has from them
/// minutes later.
pub(crate) fn listen_to_routers(host: &mut Socket) -> Result<()> {
    let main = RouteFilter { v4: Some(false), device: None, table: Some(TABLE_MAIN) };
    let defaults = host.routes(&main)?.into_iter().filter(|route| route.to == Prefix::ALL_V6);
    for index in defaults.filter_map(|route| route.device).collect::<Vec<_>>() {
        let Some(link) = host.link_by_index(index)? else { continue };
        match Sysctl::AcceptRa(&link.name).get() {
            Ok(value) if value == "1" => be_if_there(Sysctl::AcceptRa(&link.name), "2")?,
            // It is gone meanwhile, or never listened.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An interface that nobody else speaks for: no routers' word is taken on it, and its addresses need no asking around.
pub(super) fn quiet(link: &str, v6: bool) -> Result<()> {
    be_if_there(Sysctl::AcceptRa(link), "0")?;
    be_if_there(Sysctl::AcceptDad(link), "0")?;
    if v6 { be(Sysctl::DisableV6(link), "0") } else { Ok(()) }
}
