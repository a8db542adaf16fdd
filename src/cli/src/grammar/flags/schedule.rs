//! Flags of schedules.

use gantry_model::quantity;
use gantry_model::schedule::Timer;

use super::Scope::Pod;
use super::Verb::Schedule;
use super::{Flag, valued};
use crate::grammar::draft::Draft;
use crate::grammar::values::{self, ValueError};

/// Timers and the comment.
pub(super) static FLAGS: &[Flag] = &[
    valued(
        Pod,
        &["every"],
        "TIME",
        "Start a pod at this interval, measured from the last start, such as 1h",
        |d, v| {
            timer(d).every = Some(duration(v)?);
            Ok(())
        },
    )
    .of(&[Schedule]),
    valued(
        Pod,
        &["on-calendar"],
        "EVENT",
        "Start a pod at a calendar event as systemd has it: daily, 'Mon..Fri 09:00', '*-*-01 00:00:00 Europe/Berlin'; \
         without a time zone, that of the host; can be repeated",
        |d, v| {
            let event = values::text(v)?;
            timer(d).calendar.push(event);
            Ok(())
        },
    )
    .of(&[Schedule]),
    valued(Pod, &["on-boot"], "TIME", "Start a pod once, this long after each boot of the host", |d, v| {
        timer(d).on_boot = Some(duration(v)?);
        Ok(())
    })
    .of(&[Schedule]),
    valued(
        Pod,
        &["randomized-delay"],
        "TIME",
        "Delay each run by a random time below this one, so that schedules with the same times do not start their pods \
         at once",
        |d, v| {
            timer(d).randomized_delay = Some(duration(v)?);
            Ok(())
        },
    )
    .of(&[Schedule]),
    valued(
        Pod,
        &["on-overlap"],
        "refuse|queue",
        "If the last pod still runs when the next is due: skip this run, or start it afterwards (default refuse)",
        |d, v| {
            timer(d).overlap = v.parse()?;
            Ok(())
        },
    )
    .of(&[Schedule]),
    valued(Pod, &["comment"], "TEXT", "A comment, which 'gantry schedule list' shows", |d, v| {
        d.options.comment = values::text(v)?;
        Ok(())
    })
    .of(&[Schedule]),
];

fn timer<'d>(draft: &'d mut Draft<'_>) -> &'d mut Timer {
    draft.options.timer.get_or_insert_default()
}

fn duration(text: &str) -> Result<std::time::Duration, ValueError> {
    quantity::duration(text).map_err(|error| ValueError::Invalid(error.to_string()))
}
