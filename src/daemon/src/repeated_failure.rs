//! A failure of work that is retried all the time: logged when it begins and when it changes.

/// The last failure of such work, if the last attempt failed.
#[derive(Debug, Default)]
pub(crate) struct RepeatedFailure(Option<String>);

impl RepeatedFailure {
    /// Records a failed attempt. Logs the failure with `log` if the previous attempt did not fail in the same way.
    pub(crate) fn record(&mut self, error: &anyhow::Error, log: impl FnOnce(&str)) {
        let text = format!("{error:#}");
        if self.0.as_ref() != Some(&text) {
            log(&text);
            self.0 = Some(text);
        }
    }

    /// Records a successful attempt.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether the last attempt failed.
    pub(crate) const fn is_failing(&self) -> bool {
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
            failure.record(&anyhow::anyhow!(text), |text| logged.push(text.to_owned()));
            assert!(failure.is_failing());
        }
        failure.clear();
        assert!(!failure.is_failing());
        failure.record(&anyhow::anyhow!("full"), |text| logged.push(text.to_owned()));
        assert_eq!(logged, ["full", "gone", "full", "full"]);
    }
}
