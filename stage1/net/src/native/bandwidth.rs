//! `bandwidth`: limits of a pod's traffic, as token buckets on both ends of its veth pair.

use std::time::Duration;

use serde_json::Value;

use super::chain::{PluginChain, capability};
use super::error::NativeError;
use crate::config::RateLimit;
use crate::netlink::traffic::TokenBucket;
use crate::plugin::Attachment;

/// The latency of CNI's bandwidth plugin.
const LATENCY: Duration = Duration::from_millis(25);

/// The limits of both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Limit of the traffic that the pod receives.
    pub(super) ingress: Option<RateLimit>,
    /// Limit of the traffic that the pod sends.
    pub(super) egress: Option<RateLimit>,
}

/// The limits from the configuration, or, if it has none, from the capability `bandwidth`.
pub(super) fn limits(chain: &PluginChain<'_>, attachment: &Attachment) -> Result<Limits, NativeError> {
    let Some((plugin, configured)) = chain.bandwidth else { return Ok(Limits::default()) };
    let configured = Limits { ingress: configured.ingress, egress: configured.egress };
    match capability(plugin, attachment, "bandwidth") {
        Some(requested) if configured == Limits::default() => Ok(Limits {
            ingress: limit(requested, "ingressRate", "ingressBurst")?,
            egress: limit(requested, "egressRate", "egressBurst")?,
        }),
        _ => Ok(configured),
    }
}

fn limit(requested: &Value, rate: &str, burst: &str) -> Result<Option<RateLimit>, NativeError> {
    let bits = |key: &str| match requested.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_u64().ok_or_else(|| {
            NativeError::invalid(format!("{key} of the capability 'bandwidth' must be a number of bits"))
        }),
    };
    match (bits(rate)?, bits(burst)?) {
        (0, 0) => Ok(None),
        (0, _) => Err(NativeError::invalid(format!("{burst} of the capability 'bandwidth' needs {rate}"))),
        (_, 0) => Err(NativeError::invalid(format!("{rate} of the capability 'bandwidth' needs {burst}"))),
        (_, burst_bits) if burst_bits / 8 > u64::from(u32::MAX) => Err(NativeError::invalid(format!(
            "{burst} of the capability 'bandwidth' exceeds the kernel's limit of 32 bits of bytes"
        ))),
        (rate, burst) => Ok(Some(RateLimit { rate, burst })),
    }
}

/// The limit in bytes, at least one: 0 would mean no limit.
pub(super) fn bucket(limit: RateLimit) -> TokenBucket {
    let burst = u32::try_from(limit.burst / 8).unwrap_or(u32::MAX).max(1);
    TokenBucket { rate: (limit.rate / 8).max(1), burst, latency: LATENCY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_converted_to_bytes() {
        let bucket = bucket(RateLimit { rate: 8_000_000, burst: 80_000 });
        assert_eq!((bucket.rate, bucket.burst, bucket.latency), (1_000_000, 10_000, LATENCY));
        let small = super::bucket(RateLimit { rate: 1, burst: 1 });
        assert_eq!((small.rate, small.burst), (1, 1));
    }

    #[test]
    fn capability_values_are_checked() {
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
