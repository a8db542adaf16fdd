//! The end of a process as text, in the form that Aurae has from Rust's standard library.

use gantry_model::AppOutcome;
use gantry_model::signal;

/// `exit status: 1`, `signal: 9 (SIGKILL)`.
pub(super) fn describe_outcome(outcome: AppOutcome) -> String {
    match outcome {
        AppOutcome::Exited(code) => format!("exit status: {code}"),
        AppOutcome::Signaled(number) => format!("signal: {number} ({})", signal::name(number)),
        AppOutcome::Lost => "unknown: its supervisor was killed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_the_text_of_clients() {
        let outcomes = [AppOutcome::Exited(0), AppOutcome::Signaled(9), AppOutcome::Signaled(37)];
        assert_eq!(
            outcomes.map(describe_outcome),
            ["exit status: 0", "signal: 9 (SIGKILL)", "signal: 37 (SIGRTMIN+3)"]
        );
    }
}
