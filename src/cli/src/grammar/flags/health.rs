//! Flags of an app: its health check.

use gantry_model::health::{HealthProbe, HealthSettings};

use super::Scope::App;
use super::{Flag, switch, valued};
use crate::grammar::draft::Draft;
use crate::grammar::values::{self, ValueError};

/// The health check.
pub(super) static FLAGS: &[Flag] = &[
    valued(
        App,
        &["health-cmd"],
        "COMMAND",
        "Check the app's health with a command of /bin/sh in the app, or [\"PROGRAM\",\"ARG\",…]; exit code 0 is healthy; none: no check",
        |d, v| set_probe(d, command(v)?),
    ),
    valued(
        App,
        &["health-http"],
        "URL|:PORT/PATH",
        "Check with a GET request in the pod's network: a status from 200 to 399 is healthy",
        |d, v| set_probe(d, HealthProbe::parse_http(v)?),
    ),
    valued(App, &["health-tcp"], "[HOST:]PORT", "Check by connecting in the pod's network", |d, v| {
        set_probe(d, HealthProbe::parse_tcp(v)?)
    }),
    valued(App, &["health-interval"], "DURATION", "Time between two checks (default 30s)", |d, v| {
        health(d).interval_ms = Some(milliseconds(v)?);
        Ok(())
    }),
    valued(App, &["health-timeout"], "DURATION", "Time limit of a check, which then fails (default 30s)", |d, v| {
        health(d).timeout_ms = Some(milliseconds(v)?);
        Ok(())
    }),
    valued(
        App,
        &["health-retries"],
        "N",
        "Number of failures in a row that make the app unhealthy (default 3)",
        |d, v| {
            health(d).retries = Some(values::number(v, "a number of failures")?);
            Ok(())
        },
    ),
    valued(
        App,
        &["health-start-period"],
        "DURATION",
        "Time after the start in which failures do not count, until a check succeeds (default 0s)",
        |d, v| {
            health(d).start_period_ms = Some(milliseconds(v)?);
            Ok(())
        },
    ),
    valued(
        App,
        &["health-start-interval"],
        "DURATION",
        "Time between two checks in the start period (default 5s, or the interval if that is shorter)",
        |d, v| {
            health(d).start_interval_ms = Some(milliseconds(v)?);
            Ok(())
        },
    ),
    valued(
        App,
        &["health-on-failure"],
        "none|restart|stop|kill",
        "What to do with an app that becomes unhealthy (default none)",
        |d, v| {
            health(d).on_failure = Some(v.parse()?);
            Ok(())
        },
    ),
    switch(App, &["no-healthcheck"], "Do not run the health check of the image", |d, v| {
        let probe = &mut health(d).probe;
        match values::boolean(v)? {
            true => *probe = Some(HealthProbe::Disabled),
            false if *probe == Some(HealthProbe::Disabled) => *probe = None,
            false => {}
        }
        Ok(())
    }),
];

fn health<'d>(draft: &'d mut Draft<'_>) -> &'d mut HealthSettings {
    &mut draft.app().options.health
}

fn set_probe(draft: &mut Draft<'_>, probe: HealthProbe) -> Result<(), ValueError> {
    health(draft).probe = Some(probe);
    Ok(())
}

/// A line for a shell, a JSON array of program and arguments or of docker's `Test`, or `none`.
fn command(value: &str) -> Result<HealthProbe, ValueError> {
    if value.eq_ignore_ascii_case("none") {
        return Ok(HealthProbe::Disabled);
    }
    if !value.trim_start().starts_with('[') {
        return Ok(HealthProbe::shell(&values::text(value)?));
    }
    match serde_json::from_str::<Vec<String>>(value) {
        Ok(argv) if argv.is_empty() => values::invalid(value, "a command: the array is empty"),
        Ok(argv) => Ok(HealthProbe::from_docker_test(&argv).unwrap_or(HealthProbe::Command(argv))),
        Err(error) => {
            Err(ValueError::Invalid(format!("the command begins with '[' and is not a JSON array of strings: {error}")))
        }
    }
}

fn milliseconds(value: &str) -> Result<u64, ValueError> {
    let duration = crate::commands::stop::parse_duration(value).map_err(ValueError::Invalid)?;
    Ok(gantry_model::quantity::milliseconds(duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_shell_and_exec_forms() {
        let argv = |text: &str| match command(text) {
            Ok(HealthProbe::Command(argv)) => argv.join("|"),
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(argv("curl -f x || exit 1"), "/bin/sh|-c|curl -f x || exit 1");
        assert_eq!(argv(r#"["curl","-f"]"#), "curl|-f");
        assert_eq!(argv(r#"["CMD","curl"]"#), "curl");
        assert_eq!(argv(r#"["CMD-SHELL","curl x"]"#), "/bin/sh|-c|curl x");
        assert_eq!(argv(r#"["NONE"]"#), "Disabled");
        assert_eq!(argv("none"), "Disabled");
        for bad in ["", "[]", "[1]", "[ -f /ready ]"] {
            assert!(command(bad).is_err(), "{bad}");
        }
    }
}
