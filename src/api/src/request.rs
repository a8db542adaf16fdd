//! Checks of request fields that surfaces share: numbers and sizes of values, and time ranges.

use gantry_model::Timestamp;
use tonic::Status;

use crate::status::invalid_field;

/// Maximum number of values in all fields of a request.
pub(crate) const MAX_VALUES: usize = 10_000;
/// Maximum bytes of one text.
pub(crate) const MAX_TEXT: usize = 4096;

/// Counts the values of a request.
#[derive(Debug, Default)]
pub(crate) struct ValueBudget {
    values: usize,
}

impl ValueBudget {
    /// Returns the texts of a field after checking their number and sizes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(crate) fn check_texts(&mut self, field: &str, texts: Vec<String>) -> Result<Vec<String>, Status> {
        self.count(field, texts.len())?;
        texts.iter().try_for_each(|text| check_text(field, text))?;
        Ok(texts)
    }

    /// Counts this many more values.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(crate) fn count(&mut self, field: &str, values: usize) -> Result<(), Status> {
        self.values = self.values.saturating_add(values);
        if self.values > MAX_VALUES {
            return Err(invalid_field(field, &format!("a request may have {MAX_VALUES} values in all")));
        }
        Ok(())
    }
}

/// Checks the size of a text.
///
/// # Errors
/// `INVALID_ARGUMENT`, which names the field.
pub(crate) fn check_text(field: &str, text: &str) -> Result<(), Status> {
    if text.len() > MAX_TEXT {
        let found = text.len();
        return Err(invalid_field(field, &format!("a text may have {MAX_TEXT} bytes, this one has {found}")));
    }
    Ok(())
}

/// A field in seconds since 1970; 0 means not set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SecondsField<'a> {
    /// The name of the field, for errors.
    pub(crate) name: &'a str,
    /// Its value.
    pub(crate) seconds: i64,
}

/// Reads the beginning and the end of a time range.
///
/// # Errors
/// `INVALID_ARGUMENT`, which names the field.
pub(crate) fn time_range(
    since: SecondsField<'_>,
    until: SecondsField<'_>,
) -> Result<(Option<Timestamp>, Option<Timestamp>), Status> {
    for SecondsField { name, seconds } in [since, until] {
        if seconds < 0 {
            return Err(invalid_field(name, "a time is a number of seconds since 1970, not less than 0"));
        }
    }
    if until.seconds > 0 && until.seconds < since.seconds {
        return Err(invalid_field(until.name, "it is before since_time"));
    }
    // Nanoseconds overflow in the year 2262.
    let time = |seconds: i64| (seconds > 0).then_some(Timestamp(seconds.saturating_mul(1_000_000_000)));
    Ok((time(since.seconds), time(until.seconds)))
}
