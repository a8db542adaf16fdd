//! A failure of work that is retried all the time: logged when it begins and when it changes.

use std::fmt::Display;

/// The last failure of such work, if the last attempt failed.
#[derive(Debug, Default)]
pub struct RepeatedFailure(Option<String>);

impl RepeatedFailure {
    /// Records a failed attempt. Logs the failure, with its causes, with `log` if the previous attempt did not fail in
    /// the same way.
    pub fn record(&mut self, failure: &impl Display, log: impl FnOnce(&str)) {
        let text = format!("{failure:#}");
        if self.0.as_ref() != Some(&text) {
            log(&text);
            self.0 = Some(text);
        }
    }

    /// Records a successful attempt.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether the last attempt failed.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_failures_are_logged_once() {
        let (mut failure, mut logged) = (RepeatedFailure::default(), Vec::new());
        for text in ["full", "full", "gone", "full"] {
            failure.record(&text, |text| logged.push(text.to_owned()));
            assert!(failure.is_failing());
        }
        failure.clear();
        assert!(!failure.is_failing());
        failure.record(&"full", |text| logged.push(text.to_owned()));
        assert_eq!(logged, ["full", "gone", "full", "full"]);
    }
}
