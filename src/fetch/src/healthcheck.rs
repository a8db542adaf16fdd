//! docker's `Healthcheck` of an image configuration (Docker Image Specification v1.2), which images of podman and
//! buildah in docker's format have too.

use gantry_model::health::{HealthProbe, HealthSettings, MAX_HEALTH_INTERVAL, MIN_HEALTH_INTERVAL};
use serde::Deserialize;

/// The maximum number of retries.
const MAX_RETRIES: i64 = 1000;
/// The maximum length of a command, in bytes.
const MAX_COMMAND: usize = 32 << 10;

/// The field. Times are in nanoseconds; 0 is not set.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HealthcheckJson {
    test: Option<Vec<String>>,
    interval: i64,
    timeout: i64,
    start_period: i64,
    start_interval: i64,
    retries: i64,
}

/// The settings of an image. Values out of range are brought into it; a field that is malformed, or whose command
/// cannot be executed, sets nothing: the image ran without a health check before.
pub(crate) fn parse(json: serde_json::Value) -> HealthSettings {
    let Ok(Some(json)) = serde_json::from_value::<Option<HealthcheckJson>>(json) else {
        return HealthSettings::default();
    };
    let test = json.test.unwrap_or_default();
    let is_executable = |argv: &[String]| {
        let length: usize = argv.iter().map(|text| text.len() + 1).sum();
        argv.first().is_some_and(|program| !program.is_empty())
            && length <= MAX_COMMAND
            && argv.iter().all(|text| !text.contains('\0'))
    };
    let probe = HealthProbe::from_docker_test(&test).filter(|probe| match probe {
        HealthProbe::Command(argv) => is_executable(argv),
        HealthProbe::Disabled | HealthProbe::Http { .. } | HealthProbe::Tcp { .. } => true,
    });
    if probe.is_none() {
        return HealthSettings::default();
    }
    let max = gantry_model::quantity::milliseconds(MAX_HEALTH_INTERVAL);
    let milliseconds = |nanoseconds: i64, min: std::time::Duration| {
        let positive = u64::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds > 0)?;
        let min = gantry_model::quantity::milliseconds(min);
        Some((positive / 1_000_000).clamp(min, max))
    };
    HealthSettings {
        probe,
        start_period_ms: milliseconds(json.start_period, std::time::Duration::ZERO),
        interval_ms: milliseconds(json.interval, MIN_HEALTH_INTERVAL),
        start_interval_ms: milliseconds(json.start_interval, MIN_HEALTH_INTERVAL),
        timeout_ms: milliseconds(json.timeout, MIN_HEALTH_INTERVAL),
        retries: Some(json.retries.min(MAX_RETRIES)).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()),
        on_failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> HealthSettings {
        parse(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn settings_are_read_and_bounded() {
        let read = settings(
            r#"{"Test":["CMD-SHELL","curl -f x"],"Interval":2000000000,"Timeout":1,"StartPeriod":9223372036854775807,
                "Retries":5}"#,
        );
        let want = HealthSettings {
            probe: Some(HealthProbe::shell("curl -f x")),
            interval_ms: Some(2000),
            timeout_ms: Some(100),
            start_period_ms: Some(86_400_000),
            retries: Some(5),
            ..HealthSettings::default()
        };
        assert_eq!(read, want);
        assert_eq!(settings(r#"{"Test":["NONE"],"Interval":-5}"#).probe, Some(HealthProbe::Disabled));
    }

    #[test]
    fn malformed_fields_set_nothing() {
        for text in [
            "null",
            "7",
            "{}",
            r#"{"Test":[],"Interval":1000000000}"#,
            r#"{"Test":"curl"}"#,
            r#"{"Test":["CMD",""]}"#,
            r#"{"Test":["CMD","a\u0000"]}"#,
            r#"{"Test":["CMD","a"],"Interval":"30s"}"#,
        ] {
            assert!(settings(text).is_empty(), "{text}");
        }
    }
}
