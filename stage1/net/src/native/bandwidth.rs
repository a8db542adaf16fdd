//! `bandwidth`: what a pod may receive and send, as token buckets on both ends of its cable.

use std::time::Duration;

use serde_json::Value;

use super::chain::{Chain, capability};
use super::error::NativeError;
use crate::config::RateLimit;
use crate::netlink::traffic::TokenBucket;
use crate::plugin::Attachment;

/// As CNI's bandwidth plugin.
const LATENCY: Duration = Duration::from_millis(25);

/// Limits of the two directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of what the pod receives.
    pub(super) ingress: Option<RateLimit>,
    /// Of what the pod sends.
    pub(super) egress: Option<RateLimit>,
}

/// What the configuration says, or, if that says nothing, the capability `bandwidth`.
pub(super) fn limits(chain: &Chain<'_>, attachment: &Attachment) -> Result<Limits, NativeError> {
    let Some((plugin, written)) = chain.bandwidth else { return Ok(Limits::default()) };
    let written = Limits { ingress: written.ingress, egress: written.egress };
    match capability(plugin, attachment, "bandwidth") {
        Some(asked) if written == Limits::default() => Ok(Limits {
            ingress: limit(asked, "ingressRate", "ingressBurst")?,
            egress: limit(asked, "egressRate", "egressBurst")?,
        }),
        _ => Ok(written),
    }
}

fn limit(asked: &Value, rate: &str, burst: &str) -> Result<Option<RateLimit>, NativeError> {
    let bits = |key: &str| match asked.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_u64().ok_or_else(|| {
            NativeError::Invalid(format!("{key} of the capability 'bandwidth' must be a number of bits"))
        }),
    };
    match (bits(rate)?, bits(burst)?) {
        (0, 0) => Ok(None),
        (0, _) => Err(NativeError::Invalid(format!("{burst} of the capability 'bandwidth' needs {rate}"))),
        (_, 0) => Err(NativeError::Invalid(format!("{rate} of the capability 'bandwidth' needs {burst}"))),
        (_, burst_bits) if burst_bits / 8 > u64::from(u32::MAX) => Err(NativeError::Invalid(format!(
            "{burst} of the capability 'bandwidth' is more than the kernel can count"
        ))),
        (rate, burst) => Ok(Some(RateLimit { rate, burst })),
    }
}

/// The limit in bytes. Less than a byte is one: 0 would be no limit.
pub(super) fn bucket(limit: RateLimit) -> TokenBucket {
    let burst = u32::try_from(limit.burst / 8).unwrap_or(u32::MAX).max(1);
    TokenBucket { rate: (limit.rate / 8).max(1), burst, latency: LATENCY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bits_are_eighths_of_bytes() {
        let bucket = bucket(RateLimit { rate: 8_000_000, burst: 80_000 });
        assert_eq!((bucket.rate, bucket.burst, bucket.latency), (1_000_000, 10_000, LATENCY));
        let small = super::bucket(RateLimit { rate: 1, burst: 1 });
        assert_eq!((small.rate, small.burst), (1, 1));
    }

    #[test]
    fn what_is_asked_is_checked() {
        let of = |asked: Value| limit(&asked, "ingressRate", "ingressBurst");
        assert_eq!(of(json!({})).unwrap(), None);
        assert_eq!(of(json!({"ingressRate": 8, "ingressBurst": 16})).unwrap(), Some(RateLimit { rate: 8, burst: 16 }));
        for bad in [
            json!({"ingressRate": 8}),
            json!({"ingressBurst": 8}),
            json!({"ingressRate": -1, "ingressBurst": 1}),
            json!({"ingressRate": "fast", "ingressBurst": 1}),
            json!({"ingressRate": 1, "ingressBurst": u64::MAX}),
        ] {
            assert!(of(bad.clone()).is_err(), "{bad}");
        }
    }
}
