//! Configures an interface with one system call: attributes, addresses and routes.

use rustix::io::Errno;

use super::address::Address;
use super::link::{Change, Named};
use super::route::Route;
use super::socket::Socket;
use crate::error::Result;
use crate::message::{Batch, F_CREATE, F_EXCL};

/// The configuration of an interface.
#[derive(Debug, Clone, Default)]
pub struct Setup<'a> {
    /// Attributes to change. Routes need the interface up.
    pub change: Change<'a>,
    /// Addresses. IPv4 addresses are added before `change`: with `arp_notify`, the kernel announces the interface's
    /// addresses when it comes up.
    pub addresses: Vec<Address>,
    /// Routes, each after the routes that make its gateway reachable.
    pub routes: Vec<Route>,
    /// Keep an existing route to the same destination: of several networks the first gets the default route.
    pub first_route_wins: bool,
}

/// A message of the batch.
enum Part<'a> {
    LinkLocal,
    Change,
    Address(&'a Address),
    Route(&'a Route),
}

impl Socket {
    /// Configures an interface with requests that are sent together and handled in order. Idempotent. A failed
    /// request does not stop the rest; the first error is returned.
    ///
    /// # Errors
    /// The errors of [`Self::change_link`], [`Self::add_address`] and [`Self::add_route`].
    pub fn set_up(&mut self, index: u32, setup: &Setup<'_>) -> Result<()> {
        let mut batch = Batch::new();
        let mut parts = Vec::new();
        let addresses = setup.addresses.iter();
        let (four, six): (Vec<&Address>, Vec<&Address>) = addresses.partition(|address| address.prefix.is_ipv4());
        for address in four {
            address.check()?;
            address.push(index, &mut batch);
            parts.push(Part::Address(address));
        }
        setup.change.push(Named::Index(index), &mut batch);
        parts.extend(setup.change.link_local.map(|_| Part::LinkLocal));
        parts.push(Part::Change);
        for address in six {
            address.check()?;
            address.push(index, &mut batch);
            parts.push(Part::Address(address));
        }
        for route in &setup.routes {
            route.check()?;
            route.push(F_CREATE | F_EXCL, &mut batch);
            parts.push(Part::Route(route));
        }
        let what = format_args!("set up interface {index}");
        for refusal in self.channel().exchange(batch, what, &mut |_| Ok(()))? {
            let exists = refusal.errno == Errno::EXIST;
            match parts.get(refusal.at as usize) {
                Some(Part::LinkLocal) if setup.change.tolerates(&refusal) => {}
                // Compares the existing object with the request.
                Some(Part::Address(address)) if exists => self.add_address(index, address)?,
                Some(Part::Route(_)) if exists && setup.first_route_wins => {}
                Some(Part::Route(route)) if exists => self.add_route(route)?,
                Some(Part::Address(address)) => {
                    return Err(refusal.error(format_args!("add the address {} to interface {index}", address.prefix)));
                }
                Some(Part::Route(route)) => return Err(refusal.error(format_args!("add the route to {}", route.to))),
                Some(Part::LinkLocal | Part::Change) | None => {
                    return Err(refusal.error(format_args!("change interface {index}")));
                }
            }
        }
        Ok(())
    }
}
