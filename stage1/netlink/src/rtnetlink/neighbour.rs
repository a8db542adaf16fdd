//! Neighbours: which hardware address has an IP address, as told by us and not by ARP (RFC 826) or neighbour discovery (RFC 4861).

use std::net::IpAddr;

use rustix::io::Errno;

use super::socket::Socket;
use crate::error::{Error, Malformed, Result};
use crate::family::{address, family, octets};
use crate::mac::Mac;
use crate::message::{Batch, F_CREATE, F_REPLACE, Message};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;
const NUD_PERMANENT: u16 = 0x80;

const NDMSG: usize = 12;

/// An entry of the neighbours' table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface it is reached by.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address, where it is known.
    pub mac: Option<Mac>,
    /// Whether it was set, and stays until it is deleted.
    pub permanent: bool,
}

fn head(family: u8, index: u32, state: u16) -> [u8; NDMSG] {
    let mut head = [0; NDMSG];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..10].copy_from_slice(&state.to_ne_bytes());
    head
}

/// A neighbour out of RTM_NEWNEIGH; None for other messages and other families.
pub(super) fn parse(message: &Message<'_>) -> std::result::Result<Option<Neighbour>, Malformed> {
    if message.kind != RTM_NEWNEIGH {
        return Ok(None);
    }
    let (fixed, attributes) = message.split(NDMSG)?;
    let [_, _, _, _, i, n, d, x, state_low, state_high, ..] = *fixed else {
        return Err(Malformed("a neighbour without its fixed part"));
    };
    let Some(address) = attributes.get(NDA_DST).and_then(|attribute| address(&attribute)) else { return Ok(None) };
    let mac = attributes.get(NDA_LLADDR).and_then(|attribute| attribute.payload.try_into().ok().map(Mac));
    let state = u16::from_ne_bytes([state_low, state_high]);
    let index = u32::from_ne_bytes([i, n, d, x]);
    Ok(Some(Neighbour { index, address, mac, permanent: state & NUD_PERMANENT != 0 }))
}

impl Socket {
    /// Sets a neighbour for good, in the place of what was known of it.
    ///
    /// # Errors
    /// What the kernel says: the interface is gone (ENODEV), or has no neighbours (EINVAL).
    pub fn set_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_NEWNEIGH, F_CREATE | F_REPLACE, &head(family(address), index, NUD_PERMANENT), |m| {
            m.bytes(NDA_DST, &octets(address)).bytes(NDA_LLADDR, &mac.0);
        });
        self.channel().order(batch, format_args!("set the neighbour {address} of interface {index}"))
    }

    /// Forgets a neighbour. Whether it was known.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete_neighbour(&mut self, index: u32, address: IpAddr) -> Result<bool> {
        let mut batch = Batch::new();
        batch.push(RTM_DELNEIGH, 0, &head(family(address), index, 0), |m| {
            m.bytes(NDA_DST, &octets(address));
        });
        match self.channel().order(batch, format_args!("forget the neighbour {address} of interface {index}")) {
            Ok(()) => Ok(true),
            Err(Error::Kernel { errno: Errno::NOENT | Errno::NODEV, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The neighbours of an interface, learned and set.
    ///
    /// # Errors
    /// What the kernel says; more than 100 000 of them.
    pub fn neighbours(&mut self, index: u32) -> Result<Vec<Neighbour>> {
        let request = |batch: &mut Batch, flags: u16| {
            batch.push(RTM_GETNEIGH, flags, &head(0, 0, 0), |m| {
                m.u32(NDA_IFINDEX, index);
            });
        };
        let mut found =
            self.channel().dump(&request, format_args!("list the neighbours of interface {index}"), &parse)?;
        found.retain(|neighbour| neighbour.index == index);
        Ok(found)
    }
}
