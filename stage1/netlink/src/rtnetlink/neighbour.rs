//! Neighbour entries: the hardware address of an IP address, set statically instead of by ARP (RFC 826) or neighbour
//! discovery (RFC 4861).

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

/// An entry of the neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the interface.
    pub index: u32,
    /// The IP address.
    pub address: IpAddr,
    /// The hardware address, if it is known.
    pub mac: Option<Mac>,
    /// Whether the entry is static (`NUD_PERMANENT`).
    pub permanent: bool,
}

fn head(family: u8, index: u32, state: u16) -> [u8; NDMSG] {
    let mut head = [0; NDMSG];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..10].copy_from_slice(&state.to_ne_bytes());
    head
}

/// Parses an RTM_NEWNEIGH; None for other messages and families.
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
    /// Sets a permanent neighbour entry, replacing an existing one.
    ///
    /// # Errors
    /// Errors of the kernel: the interface is gone (ENODEV) or has no neighbour table (EINVAL).
    pub fn set_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_NEWNEIGH, F_CREATE | F_REPLACE, &head(family(address), index, NUD_PERMANENT), |m| {
            m.bytes(NDA_DST, &octets(address)).bytes(NDA_LLADDR, &mac.0);
        });
        self.channel().execute(batch, format_args!("set the neighbour {address} of interface {index}"))
    }

    /// Deletes a neighbour entry. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn delete_neighbour(&mut self, index: u32, address: IpAddr) -> Result<bool> {
        let mut batch = Batch::new();
        batch.push(RTM_DELNEIGH, 0, &head(family(address), index, 0), |m| {
            m.bytes(NDA_DST, &octets(address));
        });
        match self.channel().execute(batch, format_args!("delete the neighbour {address} of interface {index}")) {
            Ok(()) => Ok(true),
            Err(Error::Kernel { errno: Errno::NOENT | Errno::NODEV, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The neighbour entries of an interface, learned and static.
    ///
    /// # Errors
    /// Errors of the kernel; more than 100 000 entries.
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
