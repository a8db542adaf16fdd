//! Notifications of apps (sd_notify(3)).

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use gantry_contract::journal::Fact;

use super::{EventSource, Supervisor};
use crate::app::App;
use crate::output::pace;
use crate::pod::Pod;
use crate::table::Token;

impl Pod {
    /// The descriptors to poll for notifications. While a foreground is blocked, none is received: it would grow the
    /// foreground's backlog. Nor is one of an app that has used up its share of the supervisor's time ([`pace`]).
    pub(super) fn watched_notifications(
        &self,
        blocked: bool,
        now: Instant,
    ) -> impl Iterator<Item = (EventSource, BorrowedFd<'_>)> {
        let apps = self.apps.iter().filter(move |_| !blocked);
        apps.filter(move |(_, app)| app.output.pace.resumes_at(now).is_none()).filter_map(|(token, app)| {
            let notify = app.notify.as_ref()?;
            Some((EventSource::Notification(token), notify.receiver.as_ref().unwrap_or(&notify.socket).as_fd()))
        })
    }
}

impl Supervisor {
    /// Kills the process that receives descriptors of an app, if one does. It is reaped with those that are ending.
    pub(super) fn end_receiver(&mut self, app: &mut App) {
        if let Some(receiver) = app.notify.as_mut().and_then(|notify| notify.receiver.take()) {
            self.reaper.kill(receiver);
        }
    }

    /// Receives a notification. The app's account pays for it, as for its output: a flood takes no more of the
    /// supervisor's time than the app's CPU limit.
    pub(super) fn handle_notification(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get(token) else { return };
        let before = app.output.pace.is_limited().then(pace::processor_time);
        self.receive_notification(token);
        if let Some(before) = before
            && let Some(app) = self.pod.apps.get_mut(token)
        {
            app.output.pace.charge(pace::processor_time().saturating_sub(before), Instant::now());
        }
    }

    fn receive_notification(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let Some(notify) = &mut app.notify else { return };
        if let Some(receiver) = notify.receiver.take() {
            // It has exited.
            self.reaper.add(receiver);
            return;
        }
        let Some(notification) = notify.receive(&self.pod.plan.pod, &app.plan.name) else { return };
        let Some(started) = app.started.as_ref().filter(|_| app.running.is_some()) else { return };
        if notification.makes_ready {
            self.journal.append(Fact::AppReady { app: app.plan.name.clone(), attempt: started.attempt });
        }
        self.output.foregrounds.send_notification(app.output.app_number, notification.text.as_bytes());
    }
}
