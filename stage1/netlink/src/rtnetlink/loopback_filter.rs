//! Drops packets from and to 127.0.0.0/8 at the ingress of an interface (tc-u32(8), qdisc `clsact`).
//!
//! `route_localnet` lets such packets in. The nftables table drops them as well, but `nft flush ruleset` removes its
//! rules; a tc filter stays until the interface is deleted. It sees packets before conntrack: a reply to a connection
//! from the host's own 127.0.0.1 has the masqueraded destination here, and passes.

use rustix::io::Errno;

use super::socket::Socket;
use super::tc::{RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, tcmsg};
use crate::error::{Error, Result};
use crate::message::{Batch, F_CREATE, F_EXCL};

const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;

const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_GACT_PARMS: u16 = 2;
const TC_ACT_SHOT: u32 = 2;
const TC_U32_TERMINAL: u8 = 1;
/// The handle of the qdiscs `clsact` and `ingress`.
const INGRESS_HANDLE: u32 = 0xffff_0000;
const TC_H_CLSACT: u32 = 0xffff_fff1;
/// The parent of ingress filters (`TC_H_MIN_INGRESS`).
const INGRESS_FILTERS: u32 = 0xffff_fff2;
/// The preference of the filters (`gt` in ASCII), which no other program is likely to use.
const PREFERENCE: u32 = 0x6774;
const ETH_P_IP: u16 = 0x0800;

const GACT_PARMS: usize = 20;
/// Offset of `action` in `tc_gact`.
const ACTION: usize = 8;
/// `tc_u32_sel` with one `tc_u32_key`.
const U32_SEL: usize = 32;
/// Offsets in the IPv4 header (RFC 791).
const SOURCE: u8 = 12;
const DESTINATION: u8 = 16;

/// `tcm_info` of a filter: preference and EtherType.
fn filter_info() -> u32 {
    PREFERENCE << 16 | u32::from(ETH_P_IP.to_be())
}

/// Matches 127.0.0.0/8 at this offset of the IPv4 header.
fn selector(offset: u8) -> [u8; U32_SEL] {
    let mut selector = [0; U32_SEL];
    (selector[0], selector[2]) = (TC_U32_TERMINAL, 1);
    let key = &mut selector[16..];
    (key[0], key[4]) = (0xff, 127);
    key[8..12].copy_from_slice(&u32::from(offset).to_ne_bytes());
    selector
}

impl Socket {
    /// Drops packets from and to 127.0.0.0/8 that the interface receives. Idempotent. `false`: the kernel lacks the
    /// modules (`sch_ingress`, `cls_u32`, `act_gact`).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drop_loopback(&mut self, index: u32) -> Result<bool> {
        let mut qdisc = Batch::new();
        qdisc.push(RTM_NEWQDISC, F_CREATE | F_EXCL, &tcmsg(index, INGRESS_HANDLE, TC_H_CLSACT, 0), |m| {
            m.text(TCA_KIND, "clsact");
        });
        let what = format_args!("add the ingress qdisc of interface {index}");
        let added = self.channel().execute(qdisc, what);
        if !ignore_existing(added)? {
            return Ok(false);
        }
        for (node, offset) in [(1, DESTINATION), (2, SOURCE)] {
            let mut filter = Batch::new();
            filter.push(RTM_NEWTFILTER, F_CREATE | F_EXCL, &tcmsg(index, node, INGRESS_FILTERS, filter_info()), |m| {
                m.text(TCA_KIND, "u32").nested(TCA_OPTIONS, |m| {
                    m.bytes(TCA_U32_SEL, &selector(offset)).nested(TCA_U32_ACT, |m| {
                        m.nested(1, |m| {
                            let mut parms = [0; GACT_PARMS];
                            parms[ACTION..ACTION + 4].copy_from_slice(&TC_ACT_SHOT.to_ne_bytes());
                            m.text(TCA_ACT_KIND, "gact").nested(TCA_ACT_OPTIONS, |m| {
                                m.bytes(TCA_GACT_PARMS, &parms);
                            });
                        });
                    });
                });
            });
            let what = format_args!("drop packets of 127.0.0.0/8 on interface {index}");
            // The qdisc stays without filters: removing it would wait for a grace period, and race with other pods.
            if !ignore_existing(self.channel().execute(filter, what))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the filters of [`Socket::drop_loopback`], if there are any. The qdisc stays: it may have other filters.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn allow_loopback(&mut self, index: u32) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_DELTFILTER, 0, &tcmsg(index, 0, INGRESS_FILTERS, filter_info()), |_| {});
        match self.channel().execute(batch, format_args!("remove the ingress filters of interface {index}")) {
            Err(Error::Kernel { errno: Errno::NOENT | Errno::INVAL | Errno::NODEV | Errno::OPNOTSUPP, .. }) => Ok(()),
            other => other,
        }
    }
}

/// `Ok(false)`: the kernel lacks a module. u32 reports an existing filter as ENOSPC, because its handle is in use.
fn ignore_existing(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) | Err(Error::Kernel { errno: Errno::EXIST | Errno::NOSPC, .. }) => Ok(true),
        Err(Error::Kernel { errno: Errno::NOENT | Errno::OPNOTSUPP, .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
