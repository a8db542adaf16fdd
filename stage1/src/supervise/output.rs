//! Moves the output of the apps to their logs and to the foregrounds.

use std::time::Instant;

use gantry_contract::journal::Fact;

use crate::app::{App, OutputSource};
use crate::journal::Journal;
use crate::output::foreground::Foregrounds;
use crate::output::pace;
use crate::table::{Table, Token};

/// The destinations of output that all apps share.
pub(super) struct OutputPump {
    /// The clients that receive output live.
    pub(super) foregrounds: Foregrounds,
    /// What was read last, by any reader of the event loop.
    pub(super) buffer: Vec<u8>,
    bytes_dropped: u64,
}

impl OutputPump {
    pub(super) fn new(foregrounds: Foregrounds) -> Self {
        Self { foregrounds, buffer: vec![0; crate::app::MAX_READ], bytes_dropped: 0 }
    }

    /// How many bytes are in no log, because a log file could not be written.
    pub(super) fn bytes_dropped(&self) -> u64 {
        self.bytes_dropped
    }

    /// Moves output that can be read.
    pub(super) fn pump(&mut self, app: &mut App, source: Token<OutputSource>, journal: &Journal) {
        let before = app.output.pace.is_limited().then(pace::processor_time);
        if app.output.pump(source, &mut self.foregrounds, &mut self.buffer) {
            app.output.sources.remove(source);
        }
        if let Some(before) = before {
            app.output.pace.charge(pace::processor_time().saturating_sub(before), Instant::now());
        }
        self.record_dropped(app, journal);
    }

    /// Writes overdue beginnings of lines to the log of an app.
    pub(super) fn flush_late_lines(&mut self, app: &mut App, now: Instant, journal: &Journal) {
        app.output.flush_late_lines(now);
        self.record_dropped(app, journal);
    }

    /// Moves the rest of an app's output, and closes its sources. Their writers have ended or hang in the kernel.
    pub(super) fn close(&mut self, app: &mut App, journal: &Journal) {
        app.output.close(&mut self.foregrounds, &mut self.buffer);
        self.record_dropped(app, journal);
    }

    fn record_dropped(&mut self, app: &mut App, journal: &Journal) {
        if let Some((bytes, why)) = app.output.log.take_dropped() {
            // Only the first loss and the total are recorded: on a full disk, records would take the remaining space.
            if self.bytes_dropped == 0 {
                journal.append(Fact::LogDropped { app: app.plan.name.clone(), bytes, why });
            }
            self.bytes_dropped += bytes;
        }
    }

    /// Ends the foregrounds of single apps that have exited or were removed, when their output was read.
    pub(super) fn end_foregrounds_of_exited_apps(&mut self, apps: &Table<App>) {
        let numbers: Vec<u16> = self.foregrounds.apps().collect();
        for number in numbers {
            let app = apps.values().find(|app| app.output.app_number == number);
            let may_write = app.is_some_and(|app| {
                app.running.is_some() || self.foregrounds.blocks_app(number) || app.output.is_readable()
            });
            if !may_write {
                self.foregrounds.end_app(number);
            }
        }
    }
}
