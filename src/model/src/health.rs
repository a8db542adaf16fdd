//! Health checks of apps: a probe that the supervisor repeats, and the state that follows from its results.
//!
//! ```text
//!              a probe succeeds                 `retries` probes in a row fail
//! starting ────────────────────▶ healthy ─────────────────────────────▶ unhealthy
//!     │                             ▲                                       │  ▲
//!     │                             └───────────── a probe succeeds ────────┘  │
//!     └───────────────── `retries` probes in a row fail ───────────────────────┘
//! ```
//!
//! A failure during the start period does not count. Each start of the app begins with `starting`.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::quantity::milliseconds;
use crate::spec::{SpecError, out_of_range};

/// The time between two probes, unless set (docker's default).
pub const DEFAULT_HEALTH_INTERVAL: Duration = Duration::from_secs(30);
/// The time limit of a probe, unless set (docker's default).
pub const DEFAULT_HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// The time between two probes during the start period, unless set (docker's default).
pub const DEFAULT_HEALTH_START_INTERVAL: Duration = Duration::from_secs(5);
/// The number of failures in a row that make an app unhealthy, unless set (docker's default).
pub const DEFAULT_HEALTH_RETRIES: u32 = 3;
/// The minimum interval and timeout. An image may ask for less, and gets this.
pub const MIN_HEALTH_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum interval, timeout and start period.
pub const MAX_HEALTH_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

const MAX_RETRIES: u32 = 1000;
/// The maximum length of the command of a probe, in bytes.
const MAX_COMMAND: usize = 64 << 10;
const MAX_URL_PATH: usize = 2048;

/// The health of an app that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// No probe has succeeded since its start, and it is not unhealthy either.
    Starting,
    /// The last success is younger than `retries` failures.
    Healthy,
    /// The last `retries` probes, or more, have failed.
    Unhealthy,
}

impl HealthState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Starting, Self::Healthy, Self::Unhealthy];

    /// The word for tables, JSON and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The way to find out whether an app is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthProbe {
    /// No probe, whatever the image says.
    Disabled,
    /// A program that is executed in the app and exits with 0: program and arguments.
    Command(Vec<String>),
    /// A server that replies to `GET` with a status from 200 to 399.
    Http {
        /// Its address in the pod's network namespace.
        host: IpAddr,
        /// Its TCP port.
        port: u16,
        /// Path and query, with the leading slash.
        path: String,
    },
    /// A server that accepts a TCP connection.
    Tcp {
        /// Its address in the pod's network namespace.
        host: IpAddr,
        /// Its TCP port.
        port: u16,
    },
}

impl HealthProbe {
    /// A command line for `/bin/sh`.
    #[must_use]
    pub fn shell(line: &str) -> Self {
        Self::Command(["/bin/sh", "-c", line].map(str::to_owned).to_vec())
    }

    /// docker's `Test`: `["NONE"]`, `["CMD", PROGRAM, ARG…]` or `["CMD-SHELL", LINE]`. `None`: it has another form, or
    /// is empty, which leaves the setting to the image.
    #[must_use]
    pub fn from_docker_test(test: &[String]) -> Option<Self> {
        match test {
            [none] if none == "NONE" => Some(Self::Disabled),
            [cmd, argv @ ..] if cmd == "CMD" && !argv.is_empty() => Some(Self::Command(argv.to_vec())),
            [shell, line] if shell == "CMD-SHELL" => Some(Self::shell(line)),
            _ => None,
        }
    }

    /// Parses `http://HOST[:PORT]/PATH`, `HOST:PORT/PATH` or `:PORT/PATH`; HOST is an IP address or `localhost`.
    ///
    /// # Errors
    /// [`SpecError`]: another form, a host name, or HTTPS.
    pub fn parse_http(text: &str) -> Result<Self, SpecError> {
        let expected = || {
            let text = shown(text);
            SpecError::new(format!("'{text}' is not an address such as :8080/health or http://127.0.0.1:8080/health"))
        };
        if text.starts_with("https://") {
            return Err(SpecError::new("HTTPS is not supported: probe with a command, such as curl of the image"));
        }
        let (rest, default_port) = match text.strip_prefix("http://") {
            Some(rest) => (rest, Some(80)),
            None => (text, None),
        };
        let (authority, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        let fits = |c: char| c.is_ascii_graphic() && c != '#';
        if path.len() > MAX_URL_PATH || !path.chars().all(fits) || authority.is_empty() {
            return Err(expected());
        }
        let (host, port) = parse_authority(authority).ok_or_else(expected)?;
        let port = port.or(default_port).ok_or_else(expected)?;
        Ok(Self::Http { host, port, path: path.to_owned() })
    }

    /// Parses `[HOST:]PORT`; HOST is an IP address or `localhost`.
    ///
    /// # Errors
    /// [`SpecError`]: another form, or a host name.
    pub fn parse_tcp(text: &str) -> Result<Self, SpecError> {
        let alone = text.parse::<u16>().ok().filter(|port| *port > 0).map(|port| (LOCALHOST, Some(port)));
        match alone.or_else(|| parse_authority(text)) {
            Some((host, Some(port))) => Ok(Self::Tcp { host, port }),
            _ => Err(SpecError::new(format!("'{}' is not [HOST:]PORT with an IP address as HOST", shown(text)))),
        }
    }

    fn validate(&self) -> Result<(), SpecError> {
        match self {
            Self::Disabled => Ok(()),
            Self::Command(argv) => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(SpecError::new("the health check has no command"));
                }
                let length: usize = argv.iter().map(|text| text.len() + 1).sum();
                if length > MAX_COMMAND || argv.iter().any(|text| text.contains('\0')) {
                    return Err(SpecError::new("the command of the health check is longer than 64 KiB, or has a NUL"));
                }
                Ok(())
            }
            Self::Http { port, path, .. } => {
                let is_path = path.starts_with('/') && path.len() <= MAX_URL_PATH;
                match *port > 0 && is_path && path.chars().all(|c| c.is_ascii_graphic()) {
                    true => Ok(()),
                    false => Err(SpecError::new("the HTTP health check has an invalid port or path")),
                }
            }
            Self::Tcp { port: 0, .. } => Err(SpecError::new("the TCP health check has no port")),
            Self::Tcp { .. } => Ok(()),
        }
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// `HOST`, `HOST:PORT` or `:PORT`.
fn parse_authority(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let host = |text: &str| match text {
        "" | "localhost" => Some(LOCALHOST),
        _ => match text.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner?.parse().ok().map(IpAddr::V6),
            None => text.parse().ok().map(IpAddr::V4),
        },
    };
    match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let port = port.parse::<u16>().ok().filter(|number| *number > 0 && !port.starts_with('+'))?;
            Some((host(name)?, Some(port)))
        }
        _ => Some((host(text)?, None)),
    }
}

/// The action when an app becomes unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthAction {
    /// The state and its event.
    #[default]
    None,
    /// The app is stopped and started again, as the next attempt.
    Restart,
    /// The app is stopped: its stop signal, SIGKILL after the grace period. Its exit counts as a failure in the pod's
    /// exit code; the other apps keep running.
    Stop,
    /// The app is killed with SIGKILL, and has failed.
    Kill,
}

impl FromStr for HealthAction {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "none" => Ok(Self::None),
            "restart" => Ok(Self::Restart),
            "stop" => Ok(Self::Stop),
            "kill" => Ok(Self::Kill),
            _ => Err(SpecError::new(format!("'{}' is not none, restart, stop or kill", shown(text)))),
        }
    }
}

/// The settings of a health check, of the user or an image. `None`: not set there. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthSettings {
    /// The probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<HealthProbe>,
    /// The time after the start in which failures do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_period_ms: Option<u64>,
    /// The time from the end of a probe to the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// The same, during the start period; not set: the interval, and 5 s at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_interval_ms: Option<u64>,
    /// The time limit of a probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The number of failures in a row that make the app unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// The action when the app becomes unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<HealthAction>,
}

/// A health check with every setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The probe; not [`HealthProbe::Disabled`].
    pub probe: HealthProbe,
    /// The time after the start in which failures do not count.
    pub start_period: Duration,
    /// The time from the end of a probe to the next one.
    pub interval: Duration,
    /// The same, during the start period.
    pub start_interval: Duration,
    /// The time limit of a probe.
    pub timeout: Duration,
    /// The number of failures in a row that make the app unhealthy.
    pub retries: u32,
    /// The action when the app becomes unhealthy.
    pub on_failure: HealthAction,
}

impl HealthSettings {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These settings, and those of the image where they are not set. An image chooses no action.
    #[must_use]
    pub fn or_image(self, image: &Self) -> Self {
        Self {
            probe: self.probe.or_else(|| image.probe.clone()),
            start_period_ms: self.start_period_ms.or(image.start_period_ms),
            interval_ms: self.interval_ms.or(image.interval_ms),
            start_interval_ms: self.start_interval_ms.or(image.start_interval_ms),
            timeout_ms: self.timeout_ms.or(image.timeout_ms),
            retries: self.retries.or(image.retries),
            on_failure: self.on_failure,
        }
    }

    /// The health check, if there is a probe.
    #[must_use]
    pub fn resolve(&self) -> Option<HealthCheck> {
        let probe = self.probe.clone().filter(|probe| *probe != HealthProbe::Disabled)?;
        let time = |ms: Option<u64>, default| ms.map_or(default, Duration::from_millis);
        let interval = time(self.interval_ms, DEFAULT_HEALTH_INTERVAL);
        Some(HealthCheck {
            probe,
            start_period: time(self.start_period_ms, Duration::ZERO),
            interval,
            start_interval: time(self.start_interval_ms, DEFAULT_HEALTH_START_INTERVAL.min(interval)),
            timeout: time(self.timeout_ms, DEFAULT_HEALTH_TIMEOUT),
            retries: self.retries.unwrap_or(DEFAULT_HEALTH_RETRIES),
            on_failure: self.on_failure.unwrap_or_default(),
        })
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        self.probe.as_ref().map_or(Ok(()), HealthProbe::validate)?;
        let (min, max) = (milliseconds(MIN_HEALTH_INTERVAL), milliseconds(MAX_HEALTH_INTERVAL));
        for (flag, value) in [
            ("--health-interval", self.interval_ms),
            ("--health-start-interval", self.start_interval_ms),
            ("--health-timeout", self.timeout_ms),
        ] {
            if let Some(value) = value.filter(|value| !(min..=max).contains(value)) {
                return Err(out_of_range(flag, format_args!("{value}ms"), "100ms to 24h"));
            }
        }
        if let Some(value) = self.start_period_ms.filter(|value| *value > max) {
            return Err(out_of_range("--health-start-period", format_args!("{value}ms"), "0 to 24h"));
        }
        match self.retries.filter(|retries| !(1..=MAX_RETRIES).contains(retries)) {
            Some(retries) => Err(out_of_range("--health-retries", retries, "1 to 1000")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_probes_are_parsed() {
        let http = |text: &str| match HealthProbe::parse_http(text) {
            Ok(HealthProbe::Http { host, port, path }) => format!("{host} {port} {path}"),
            _ => String::new(),
        };
        for (text, want) in [
            (":8080/health", "127.0.0.1 8080 /health"),
            (":80", "127.0.0.1 80 /"),
            ("http://localhost/a?b=c", "127.0.0.1 80 /a?b=c"),
            ("http://10.1.2.3:81/", "10.1.2.3 81 /"),
            ("http://[::1]:81/x", "::1 81 /x"),
            ("http://[::1]/x", "::1 80 /x"),
            ("/health", ""),
            ("localhost/health", ""),
            ("http://example.com/", ""),
            ("http:///", ""),
            (":0/", ""),
            (":+80/", ""),
            (":80/a b", ""),
            (":80/\u{1}", ""),
            ("https://127.0.0.1/", ""),
            ("", ""),
        ] {
            assert_eq!(http(text), want, "{text}");
        }
        let tcp = |text: &str| match HealthProbe::parse_tcp(text) {
            Ok(HealthProbe::Tcp { host, port }) => format!("{host} {port}"),
            _ => String::new(),
        };
        for (text, want) in
            [("5432", "127.0.0.1 5432"), (":53", "127.0.0.1 53"), ("[::1]:53", "::1 53"), ("a:1", ""), ("0", "")]
        {
            assert_eq!(tcp(text), want, "{text}");
        }
    }

    #[test]
    fn user_settings_precede_image_settings() {
        let image = HealthSettings {
            probe: Some(HealthProbe::shell("true")),
            interval_ms: Some(1000),
            on_failure: Some(HealthAction::Kill),
            ..HealthSettings::default()
        };
        let user = HealthSettings { retries: Some(9), interval_ms: Some(500), ..HealthSettings::default() };
        let check = user.or_image(&image).resolve().unwrap();
        assert_eq!(
            (check.retries, check.interval, check.timeout),
            (9, Duration::from_millis(500), DEFAULT_HEALTH_TIMEOUT)
        );
        assert_eq!(check.on_failure, HealthAction::None, "an image chooses no action");
        let none = HealthSettings { probe: Some(HealthProbe::Disabled), ..HealthSettings::default() };
        assert_eq!(none.or_image(&image).resolve(), None);
        assert_eq!(HealthSettings::default().resolve(), None);
    }

    #[test]
    fn probes_of_docker_are_converted() {
        let probe = |words: &[&str]| {
            HealthProbe::from_docker_test(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(probe(&["NONE"]), Some(HealthProbe::Disabled));
        assert_eq!(probe(&["CMD", "a", "b"]), Some(HealthProbe::Command(vec!["a".into(), "b".into()])));
        assert_eq!(probe(&["CMD-SHELL", "a b"]), Some(HealthProbe::shell("a b")));
        for other in [&[][..], &["CMD"], &["CMD-SHELL"], &["CMD-SHELL", "a", "b"], &["a"]] {
            assert_eq!(probe(other), None, "{other:?}");
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let settings = HealthSettings::default;
        for bad in [
            HealthSettings { interval_ms: Some(99), ..settings() },
            HealthSettings { timeout_ms: Some(u64::MAX), ..settings() },
            HealthSettings { start_period_ms: Some(u64::MAX), ..settings() },
            HealthSettings { retries: Some(0), ..settings() },
            HealthSettings { probe: Some(HealthProbe::Command(vec![])), ..settings() },
            HealthSettings { probe: Some(HealthProbe::Command(vec!["a\0".into()])), ..settings() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
        assert!(HealthSettings { start_period_ms: Some(0), ..settings() }.validate().is_ok());
    }
}
