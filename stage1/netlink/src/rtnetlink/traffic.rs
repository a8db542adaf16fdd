//! Rate limits of an interface: a token bucket filter (tc-tbf(8)).
//!
//! A filter on each end of a veth pair limits both directions without an IFB device: the host end sends what the pod
//! receives. The filter of the pod end is in the pod's namespace, so an app with CAP_NET_ADMIN can remove it.

use std::time::Duration;

use super::socket::Socket;
use super::tc::{RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, TCMSG, tcmsg};
use crate::error::{Error, Malformed, Result};
use crate::message::{Attribute, Batch, F_CREATE, F_REPLACE, Message};

const RTM_GETQDISC: u16 = 38;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_H_ROOT: u32 = u32::MAX;
/// `1:`
const HANDLE: u32 = 0x0001_0000;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// Offset of `rate.rate` in `tc_tbf_qopt`.
const RATE: usize = 8;
/// Offset of `limit` in `tc_tbf_qopt`.
const LIMIT: usize = 24;
const TBF_QOPT: usize = 36;

/// A limit on the rate at which an interface sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes per second (CNI's `ingressRate` and `egressRate` are bits).
    pub rate: u64,
    /// Bytes that may be sent at once after idling. Below the size of a packet with its header, nothing is ever sent.
    pub burst: u32,
    /// The longest queueing delay before packets are dropped. CNI's bandwidth plugin uses 25 ms.
    pub latency: Duration,
}

impl TokenBucket {
    /// The queue limit in bytes: what `rate` sends within `latency`, and the burst.
    fn limit(&self) -> u32 {
        let waiting = u128::from(self.rate) * self.latency.as_micros() / 1_000_000;
        u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(self.burst)
    }

    fn write(&self, m: &mut Batch) {
        let mut parms = [0; TBF_QOPT];
        parms[1] = TC_LINKLAYER_ETHERNET;
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        parms[RATE..RATE + 4].copy_from_slice(&rate.to_ne_bytes());
        parms[LIMIT..LIMIT + 4].copy_from_slice(&self.limit().to_ne_bytes());
        m.bytes(TCA_TBF_PARMS, &parms).u32(TCA_TBF_BURST, self.burst);
        if rate == u32::MAX {
            m.u64(TCA_TBF_RATE64, self.rate);
        }
    }
}

impl Socket {
    /// Sets the rate limit of an interface, replacing an existing one.
    ///
    /// # Errors
    /// The request is invalid if rate or burst is 0; errors of the kernel: the interface is gone (ENODEV), the kernel
    /// lacks token bucket filters (ENOENT).
    pub fn limit_rate(&mut self, index: u32, bucket: &TokenBucket) -> Result<()> {
        let what = format_args!("limit the rate of interface {index}");
        if bucket.rate == 0 || bucket.burst == 0 {
            return Err(Error::invalid(what, "rate and burst must be more than 0"));
        }
        let mut batch = Batch::new();
        batch.push(RTM_NEWQDISC, F_CREATE | F_REPLACE, &tcmsg(index, HANDLE, TC_H_ROOT, 0), |m| {
            m.text(TCA_KIND, "tbf").nested(TCA_OPTIONS, |m| bucket.write(m));
        });
        self.channel().execute(batch, what)
    }

    /// The rate limit of an interface in bytes per second, if it has one.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn rate_limit(&mut self, index: u32) -> Result<Option<u64>> {
        let request = |batch: &mut Batch, flags: u16| batch.push(RTM_GETQDISC, flags, &tcmsg(index, 0, 0, 0), |_| {});
        let found = self.channel().dump(&request, format_args!("read the rate limit of interface {index}"), &parse)?;
        Ok(found.into_iter().find(|(at, _)| *at == index).map(|(_, rate)| rate))
    }
}

/// The interface and rate in an RTM_NEWQDISC; None for other messages and other queueing disciplines.
pub(super) fn parse(message: &Message<'_>) -> std::result::Result<Option<(u32, u64)>, Malformed> {
    if message.kind != RTM_NEWQDISC {
        return Ok(None);
    }
    let (fixed, attributes) = message.split(TCMSG)?;
    if attributes.get(TCA_KIND).and_then(|kind| kind.text()) != Some("tbf") {
        return Ok(None);
    }
    let Some(options) = attributes.get(TCA_OPTIONS) else { return Ok(None) };
    let options = options.nested()?;
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = options.get(TCA_TBF_RATE64).and_then(|rate: Attribute<'_>| rate.u64());
    let rate = long.or_else(|| word(options.get(TCA_TBF_PARMS)?.payload, RATE).map(u64::from));
    Ok(word(fixed, 4).zip(rate))
}
