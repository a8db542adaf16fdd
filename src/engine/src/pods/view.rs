//! Reading pods: `list`, `status`, `inspect`, and finding one by its name or a prefix of its id.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use gantry_contract::files;
use gantry_model::query::PodQuery;
use gantry_model::{AppName, Phase, PodId, PodName, PodPrefix, Process};
use gantry_store::{Layout, PodRow, ResolveError};

use crate::host::process;
use crate::{Engine, PodError};

/// The maximum number of pods with the same name that an error lists.
const MAX_LISTED: usize = 5;

/// A reconciled pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// Its row, reconciled.
    pub row: Box<PodRow>,
    layout: Layout,
}

impl PodView {
    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.layout.pod_dir(&self.row.id)
    }

    /// The supervisor, while it runs.
    #[must_use]
    pub fn supervisor(&self) -> Option<&Process> {
        match &self.row.phase {
            Phase::Running { supervisor, .. } => Some(supervisor),
            // Only running pods have a supervisor.
            _ => None,
        }
    }

    /// The pod's exit code, when it has ended.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        self.row.phase.end().map(|(_, end)| end.exit_code)
    }

    /// The log file of an app's start, unless all starts have one at a chosen path; earlier parts of it have `.1`, `.2`
    /// … appended.
    #[must_use]
    pub fn log(&self, app: &AppName, attempt: u32) -> PathBuf {
        if let Some((dir, path)) = self.row.log_file(app) {
            return dir.as_path().join(path.as_path());
        }
        self.dir().join(files::LOGS).join(app.as_str()).join(format!("{attempt}.log"))
    }
}

impl Engine {
    /// The pod with this prefix of its id.
    ///
    /// # Errors
    /// [`PodError`] when no pod matches, or more than one.
    pub fn resolve(&self, prefix: &PodPrefix) -> Result<PodId, PodError> {
        self.store.resolve(prefix).map_err(|error| match error {
            ResolveError::NotFound { prefix } => PodError::NotFound(prefix),
            other => PodError::store(other),
        })
    }

    /// Finds a pod by its id, its name, a prefix of its id, the name of one of its apps, or its host name. Of several
    /// with the same app or host name, the running one is found if only one runs.
    ///
    /// A pod's own name takes precedence over prefixes; it is never a whole id. The name of an app or a host takes
    /// precedence over a prefix that is shorter than the ids in lists: `db` is a name first.
    ///
    /// # Errors
    /// [`PodError`] when no pod matches, or more than one.
    pub fn find_pod(&self, text: &str) -> Result<PodId, PodError> {
        self.find_pod_and_app(text).map(|(pod, _)| pod)
    }

    /// As [`Self::find_pod`]; also the app by whose name the pod was found.
    ///
    /// # Errors
    /// As [`Self::find_pod`].
    pub fn find_pod_and_app(&self, text: &str) -> Result<(PodId, Option<AppName>), PodError> {
        if let Ok(name) = text.parse::<PodName>()
            && let Some(id) = self.store.pod_named(&name)?
        {
            return Ok((id, None));
        }
        let prefix = text.parse::<PodPrefix>().ok();
        if let Some(prefix) = prefix.as_ref().filter(|_| text.len() >= PodId::SHOWN_DIGITS) {
            match self.resolve(prefix) {
                Err(PodError::NotFound(_)) => {}
                found => return found.map(|id| (id, None)),
            }
        }
        if let Some(found) = self.find_by_name(text)? {
            return Ok(found);
        }
        match prefix {
            Some(prefix) if text.len() < PodId::SHOWN_DIGITS => self.resolve(&prefix).map(|id| (id, None)),
            _ => Err(PodError::NoSuchPod(text.to_owned())),
        }
    }

    /// The pod with this host name, or with an app of this name.
    fn find_by_name(&self, name: &str) -> Result<Option<(PodId, Option<AppName>)>, PodError> {
        let app = |row: &PodRow| row.apps.iter().map(|app| &app.name).find(|app| app.as_str() == name).cloned();
        let is_named = |row: &PodRow| row.hostname == name || app(row).is_some();
        let found = |row: &PodRow| Some((row.id, app(row).filter(|_| row.hostname != name)));
        let named: Vec<PodView> =
            self.list(&PodQuery::default())?.into_iter().filter(|view| is_named(&view.row)).collect();
        let running: Vec<&PodView> = named.iter().filter(|view| view.supervisor().is_some()).collect();
        match (&named[..], &running[..]) {
            ([], _) => Ok(None),
            ([only], _) => Ok(found(&only.row)),
            (_, [only]) => Ok(found(&only.row)),
            (several, _) => {
                let some = several.iter().take(MAX_LISTED).map(|view| view.row.id).collect();
                Err(PodError::AmbiguousName { name: name.to_owned(), matches: several.len(), some })
            }
        }
    }

    /// Pods, oldest first, each reconciled.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn list(&self, query: &PodQuery) -> Result<Vec<PodView>, PodError> {
        let (rows, journals) = self.list_rows(query)?;
        if *query == PodQuery::default() {
            self.sweep_orphans_if_any(&rows);
        }
        // The new phase may not match the query.
        let is_listed = |row: &PodRow| query.phases.is_empty() || query.phases.contains(&row.phase.name());
        let rows = self.reconcile_listed(rows, journals)?.into_iter();
        Ok(rows.filter(|row| is_listed(row)).map(|row| self.view(row)).collect())
    }

    /// One pod, reconciled.
    ///
    /// # Errors
    /// [`PodError`], also when the pod does not exist.
    pub fn status(&self, id: PodId) -> Result<PodView, PodError> {
        Ok(self.view(self.reconcile_pod(id)?))
    }

    /// A descriptor that becomes readable when the supervisor of this running pod has ended; `None` when it has ended
    /// already, or the row does not name one. For waiting for many pods at once.
    ///
    /// # Errors
    /// [`PodError`]: the limit of descriptors is reached, for example.
    pub fn supervisor_fd(&self, row: &PodRow) -> Result<Option<OwnedFd>, PodError> {
        match &row.phase {
            Phase::Running { supervisor, .. } => process::open(supervisor, self.store.boot())
                .map_err(PodError::io("open the supervisor of pod", row.id.to_string())),
            // Only running pods have a supervisor.
            _ => Ok(None),
        }
    }

    pub(crate) fn view(&self, row: impl Into<Box<PodRow>>) -> PodView {
        PodView { row: row.into(), layout: self.store.layout().clone() }
    }
}
