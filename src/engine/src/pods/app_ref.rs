//! Apps by their own ids, and their settings in the plan.

use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_model::{AppId, AppName, ErrorKind, PodId};

use crate::error::need_root;
use crate::pods::control::{CONNECT_TIMEOUT, ControlError, REPLY_TIMEOUT, SentRequest, unexpected};
use crate::pods::exec::{running, select_app};
use crate::{Engine, EngineError, PodError, PodRow};

/// The minimum length of the prefix of an app's id: as many digits as docker shows.
const MIN_APP_PREFIX: usize = 12;

impl Engine {
    /// The app with this id, or with this prefix of at least 12 digits; `None`: there is none, or the text is not an
    /// id.
    ///
    /// # Errors
    /// [`EngineError`], also if several apps have the prefix.
    pub fn find_app_by_id(&self, text: &str) -> Result<Option<(PodId, AppName)>, EngineError> {
        if text.len() < MIN_APP_PREFIX || !AppId::is_prefix(text) {
            return Ok(None);
        }
        let found = self.store.apps_with_id(text, 2).map_err(EngineError::from_cause)?;
        match <[_; 1]>::try_from(found) {
            Ok([only]) => Ok(Some(only)),
            Err(found) if found.is_empty() => Ok(None),
            Err(_) => {
                let why = format!("{text} is the beginning of the ids of several apps: give more digits");
                Err(EngineError::new(ErrorKind::Invalid, why))
            }
        }
    }

    /// The apps whose ids begin with these digits.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn apps_with_id_prefix(&self, prefix: &str) -> Result<Vec<(PodId, AppName)>, EngineError> {
        self.store.apps_with_id(prefix, usize::MAX).map_err(EngineError::from_cause)
    }

    /// Sets an annotation of an app, whatever the state of its pod.
    ///
    /// # Errors
    /// [`EngineError`], also when there is no such app.
    pub fn annotate_app(&self, id: PodId, app: &AppName, key: &str, value: &str) -> Result<(), EngineError> {
        need_root("annotate an app").map_err(EngineError::from_cause)?;
        match self.store.annotate_app(id, app, key, value).map_err(EngineError::from_cause)? {
            true => Ok(()),
            false => Err(EngineError::new(ErrorKind::NotFound, format!("pod {id} has no app '{app}'"))),
        }
    }

    /// Sets an annotation of a pod.
    ///
    /// # Errors
    /// [`EngineError`], also when there is no such pod.
    pub fn annotate_pod(&self, id: PodId, key: &str, value: &str) -> Result<(), EngineError> {
        need_root("annotate a pod").map_err(EngineError::from_cause)?;
        match self.store.annotate_pod(id, key, value).map_err(EngineError::from_cause)? {
            true => Ok(()),
            false => Err(EngineError::from_cause(PodError::NotFound(id.into()))),
        }
    }

    /// The time between the stop signal of an app and SIGKILL, as the app was created with or as the host sets it; of a
    /// pod, the longest time of its apps.
    #[must_use]
    pub fn stop_grace(&self, id: PodId, app: Option<&AppName>) -> Duration {
        let default = self.options.stop_grace;
        let Ok(plan) = self.plan(id) else { return default };
        // Without the row or the added apps, those of the creation are known.
        let plan = match self.store.pod(id) {
            Ok(Some(row)) => self.added_apps(id).unwrap_or_default().onto_plan_of(plan, &row),
            Ok(None) | Err(_) => plan,
        };
        let apps = plan.apps.iter().filter(|known| app.is_none_or(|name| name.as_str() == known.name));
        let times = apps.map(|app| app.options.stop_timeout_ms.map_or(default, Duration::from_millis));
        times.max().unwrap_or(default)
    }

    /// Makes the supervisor open the log file of an app anew, after another program renamed it; without an app, the
    /// files of all apps. Output that was read before is in the renamed file, and no line is lost.
    ///
    /// # Errors
    /// [`EngineError`]: the pod does not run, or has no such app; the file cannot be opened.
    pub fn reopen_log(&self, id: PodId, app: Option<&AppName>) -> Result<(), EngineError> {
        let row = self.pod_with_logs(id)?;
        let apps = match app {
            Some(app) => vec![select_app(&row, Some(app)).map_err(EngineError::from_cause)?],
            None => row.apps.iter().map(|app| app.name.clone()).collect(),
        };
        apps.iter().try_for_each(|app| self.request_log(id, app, REPLY_TIMEOUT)?.finish())
    }

    /// As [`Self::reopen_log`] for one app, without waiting for the reply.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn begin_reopen_log(
        &self,
        id: PodId,
        app: &AppName,
    ) -> Result<SentRequest<Result<(), EngineError>>, EngineError> {
        let app = select_app(&self.pod_with_logs(id)?, Some(app)).map_err(EngineError::from_cause)?;
        self.request_log(id, &app, CONNECT_TIMEOUT)
    }

    /// The row of a running pod, whose logs can be reopened.
    fn pod_with_logs(&self, id: PodId) -> Result<PodRow, EngineError> {
        need_root("reopen a log").map_err(EngineError::from_cause)?;
        let row = self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        running(row).map_err(EngineError::from_cause)
    }

    fn request_log(
        &self,
        id: PodId,
        app: &AppName,
        connect_timeout: Duration,
    ) -> Result<SentRequest<Result<(), EngineError>>, EngineError> {
        let read = move |reply: Result<(Reply, _), ControlError>| match reply {
            Ok((Reply::Done, _)) => Ok(()),
            Ok((other, _)) => Err(EngineError::from_cause(unexpected(id, &other))),
            Err(error) => Err(EngineError::from_cause(error)),
        };
        let request = Request::ReopenLog { app: app.to_string() };
        self.send_request(id, &request, &[], connect_timeout, read).map_err(EngineError::from_cause)
    }
}
