//! An interface made ready with one system call: what is to be changed, its addresses and its routes.

use rustix::io::Errno;

use super::address::Address;
use super::link::{Change, Named};
use super::route::Route;
use super::socket::Socket;
use crate::error::Result;
use crate::message::{Batch, F_CREATE, F_EXCL};

/// What an interface is to be and to have.
#[derive(Debug, Clone, Default)]
pub struct Setup<'a> {
    /// What is to be changed: mostly that it is up, without which no route can go through it.
    pub change: Change<'a>,
    /// Its addresses. Those of IPv4 are given before the change: who comes up with `arp_notify` set tells of those it has.
    pub addresses: Vec<Address>,
    /// Routes, in an order in which each gateway can be reached when its turn comes.
    pub routes: Vec<Route>,
    /// Where a route leads already by another way, it stays so: of several networks the first has the default route.
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
    /// Does all of it, in one request after the other that are sent at once. What is there already as it is wanted is fine.
    /// After the first failure the rest has been tried too.
    ///
    /// # Errors
    /// Those of [`Self::change_link`], [`Self::add_address`] and [`Self::add_route`].
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
                Some(Part::LinkLocal) if setup.change.excuses(&refusal) => {}
                // Whether what exists will do.
                Some(Part::Address(address)) if exists => self.add_address(index, address)?,
                Some(Part::Route(_)) if exists && setup.first_route_wins => {}
                Some(Part::Route(route)) if exists => self.add_route(route)?,
                Some(Part::Address(address)) => {
                    return Err(refusal.error(format_args!("give interface {index} the address {}", address.prefix)));
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
