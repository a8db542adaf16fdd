//! Rows of pods, and the only way to change them.
//!
//! A change names the generation it is based on. One `BEGIN IMMEDIATE` transaction compares the generation, asks the
//! model's `step`, and writes the phase, the apps and the events. Of several processes that make the same change
//! exactly one succeeds; the others get the current row, which is not an error.

mod apps;
pub(crate) mod condition;
pub(crate) mod health;
mod journal;
mod limits;
pub(crate) mod list;
mod names;
mod networks;
pub(crate) mod oom;
pub(crate) mod pause;
mod readiness;
pub(crate) mod reports;
mod resolve;
pub(crate) mod restarts;
pub(crate) mod row;
mod stopping;

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::phase::Stepped;
use gantry_model::restart::{PodRestart, RestartPolicy};
use gantry_model::spec::PodFlavor;
use gantry_model::{
    AppId, AppLogPath, AppName, AppState, Edge, ErrorKind, Generation, ImageId, Kind, NetMode, NewEvent, Phase, PodId,
    PodLogDir, PodName, PodNamespace, Readiness, Refused, ScheduleName, Timestamp, VolumeName, step,
};
use rusqlite::{Transaction, params};
use thiserror::Error;

use crate::db::Sync;
use crate::schedules::{self, PodSchedule};
use crate::{Store, StoreError, events};
use list::load;

pub use apps::AddAppError;
pub use condition::{CgroupCondition, PodWhere};
pub use health::{HealthChange, HealthRecord};
pub use limits::LimitUpdate;
pub use names::RenamePodError;
pub use networks::{NetworkSummary, Networks};
pub use oom::{OomRecord, OomReport};
pub use readiness::ReadyReport;
pub use reports::SupervisorReport;
pub use resolve::ResolveError;

/// A pod to be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPod {
    /// Its identity.
    pub id: PodId,
    /// The time of the request.
    pub created: Timestamp,
    /// The requested networks.
    pub net: NetMode,
    /// Its host name.
    pub hostname: String,
    /// Its name, if it has one.
    pub name: Option<PodName>,
    /// Its namespace.
    pub namespace: PodNamespace,
    /// Whether it may have no apps and runs until it is stopped.
    pub sandbox: bool,
    /// Its apps, in the order of the request.
    pub apps: Vec<NewApp>,
    /// Annotations of the user.
    pub user_annotations: BTreeMap<String, String>,
    /// Labels of the user.
    pub user_labels: BTreeMap<String, String>,
    /// The named volumes it mounts, which must be in the store.
    pub volumes: BTreeSet<VolumeName>,
    /// The path of its cgroup, below each hierarchy's root.
    pub cgroup: String,
    /// The directory of log files at chosen paths.
    pub log_dir: Option<PodLogDir>,
    /// The schedule for which it is created.
    pub schedule: Option<PodSchedule>,
}

/// An app of a pod to be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewApp {
    /// Its name in the pod.
    pub name: AppName,
    /// Its image, which must be in the store; `None`: an app of a host pod.
    pub image: Option<ImageId>,
    /// The name by which the image was requested; of an app of a host pod [`gantry_model::spec::HOST_IMAGE_NAME`].
    pub image_name: String,
    /// Its id; `None`: a random one.
    pub id: Option<AppId>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it reports its readiness itself.
    pub notifies: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its restart policy.
    pub restart: RestartPolicy,
    /// The chosen path of its log file.
    pub log_path: Option<AppLogPath>,
    /// The images that are volumes of it, which must be in the store.
    pub volume_images: BTreeSet<ImageId>,
}

/// A pod as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRow {
    /// Its identity.
    pub id: PodId,
    /// The number of changes of the row.
    pub generation: Generation,
    /// Its state.
    pub phase: Phase,
    /// The time of the request.
    pub created: Timestamp,
    /// The time when it was complete on disk, if it ever was.
    pub prepared: Option<Timestamp>,
    /// The requested networks.
    pub net: NetMode,
    /// Its networks since its start, in order, also after its end. Empty before, and for a pod without networks of its
    /// own.
    pub networks: Networks,
    /// Its host name.
    pub hostname: String,
    /// Its name, if it has one. No two pods have the same.
    pub name: Option<PodName>,
    /// Its namespace.
    pub namespace: PodNamespace,
    /// Whether it may have no apps and runs until it is stopped.
    pub sandbox: bool,
    /// Whether it is paused as a whole: its apps are frozen, and none is started.
    pub paused: bool,
    /// Its apps, in the order of the request, then in the order in which they were added.
    pub apps: Vec<AppRow>,
    /// Annotations of the user.
    pub user_annotations: BTreeMap<String, String>,
    /// Labels of the user.
    pub user_labels: BTreeMap<String, String>,
    /// Its restarts by gantryd.
    pub restart: PodRestart,
    /// The path of its cgroup while it runs, below each hierarchy's root; an app's is one below.
    pub cgroup: String,
    /// The directory of log files at chosen paths.
    pub log_dir: Option<PodLogDir>,
    /// The number of the last recorded change of the limits of the whole pod; 0: none.
    pub limit_changes: u32,
}

/// An app as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppRow {
    /// Its name in the pod.
    pub name: AppName,
    /// Its id, which no other app of any pod has.
    pub id: AppId,
    /// Its image; `None`: an app of a host pod.
    pub image: Option<ImageId>,
    /// The name by which the image was requested; of an app of a host pod [`gantry_model::spec::HOST_IMAGE_NAME`].
    pub image_name: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// When it was added to the running pod; `None` for an app that was created with its pod.
    pub added: Option<Timestamp>,
    /// Whether its processes are frozen on request.
    pub paused: bool,
    /// Its recorded health; of an app that does not run, that at its end.
    pub health: HealthRecord,
    /// Its processes that the OOM killer has killed.
    pub oom: OomRecord,
    /// Its state.
    pub state: AppState,
    /// The readiness of its last start; `None`: it does not report any.
    pub readiness: Option<Readiness>,
    /// Its restart policy.
    pub restart: RestartPolicy,
    /// The chosen path of its log file, below the log directory of its pod; `None`: it is in the pod directory.
    pub log_path: Option<AppLogPath>,
    /// The number of the last recorded change of its limits; 0: none.
    pub limit_changes: u32,
}

impl PodRow {
    /// The chosen log file of an app: the directory, and the path below it. `None`: its log is in the pod directory.
    #[must_use]
    pub fn log_file(&self, app: &AppName) -> Option<(&PodLogDir, &AppLogPath)> {
        let app = self.apps.iter().find(|row| row.name == *app)?;
        self.log_dir.as_ref().zip(app.log_path.as_ref())
    }

    /// How its apps are isolated: only apps of a host pod have no image.
    #[must_use]
    pub fn flavor(&self) -> PodFlavor {
        if self.apps.iter().any(|app| app.image.is_none()) { PodFlavor::Host } else { PodFlavor::Container }
    }
}

impl AppRow {
    /// Changes its state. A new start is not ready.
    pub fn set_state(&mut self, state: AppState) {
        if self.state.attempt() != state.attempt() {
            self.readiness = self.readiness.map(|_| Readiness::Starting);
        }
        self.paused &= state.is_running();
        self.state = state;
    }

    /// The id of its image as text; empty for an app of a host pod.
    #[must_use]
    pub fn image_id(&self) -> String {
        self.image.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

/// A change of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The step.
    pub edge: Edge,
    /// The changes of its apps.
    pub apps: AppChanges,
    /// Its networks; recorded with [`Edge::Started`], ignored otherwise.
    pub networks: Networks,
    /// Why it could not be started; recorded with [`Edge::Aborted`], in its event and as the annotation [`FAILURE`],
    /// with [`Edge::StartFailed`] in its event, and ignored otherwise.
    pub failure: Option<String>,
    /// Its restarts from now on; `None`: unchanged. An edge out of Exited and Starting cancels the next one.
    pub restart: Option<PodRestart>,
    /// Whether it must survive a power cut before this is acknowledged.
    pub durable: bool,
}

/// One step of the apps of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppChanges {
    /// New states.
    pub states: Vec<(AppName, AppState)>,
    /// Apps that were removed from the pod: their rows are deleted.
    pub removed: Vec<AppName>,
}

impl AppChanges {
    /// The removal of this app alone.
    #[must_use]
    pub fn removal_of(app: &AppName) -> Self {
        Self { states: Vec::new(), removed: vec![app.clone()] }
    }

    /// Applies the step to rows of apps, by their names.
    pub fn apply_to<T>(&self, rows: &mut Vec<T>, name: impl Fn(&T) -> &AppName, set: impl Fn(&mut T, AppState)) {
        rows.retain(|row| !self.removed.contains(name(row)));
        for row in rows {
            let changed = self.states.iter().find(|(changed, _)| changed == name(row));
            if let Some((_, state)) = changed {
                set(row, *state);
            }
        }
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.removed.is_empty()
    }
}

impl From<Vec<(AppName, AppState)>> for AppChanges {
    fn from(states: Vec<(AppName, AppState)>) -> Self {
        Self { states, removed: Vec::new() }
    }
}

/// The annotation of a pod with the reason why its start failed.
pub const FAILURE: &str = "gantry/failure";
/// The annotation of a pod with the name that it had until its removal began or its preparation was aborted. The event
/// of its removal has that name; another pod may have the name meanwhile.
pub(crate) const FORMER_NAME: &str = "gantry/former-name";

impl Change {
    /// This step alone.
    #[must_use]
    pub fn along(edge: Edge) -> Self {
        Self {
            edge,
            apps: AppChanges::default(),
            networks: Networks::default(),
            failure: None,
            restart: None,
            durable: false,
        }
    }
}

/// What a transaction that makes steps does, for its errors.
const CHANGING: &str = "change the pod";
/// The rows of its apps and its references to images and volumes go with it.
const DELETE: &str = "DELETE FROM pod WHERE id = ?1";

/// A requested change: without an edge, of the apps alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) edge: Option<&'a Edge>,
    pub(crate) apps: &'a AppChanges,
    networks: Option<&'a Networks>,
    failure: Option<&'a str>,
    restart: Option<&'a PodRestart>,
}

impl<'a> Step<'a> {
    fn of_change(change: &'a Change) -> Self {
        let Change { edge, apps, networks, failure, restart, durable: _ } = change;
        let (failure, restart) = (failure.as_deref(), restart.as_ref());
        Self { edge: Some(edge), apps, networks: Some(networks), failure, restart }
    }

    fn of_apps(apps: &'a AppChanges) -> Self {
        Self { edge: None, apps, networks: None, failure: None, restart: None }
    }

    /// Why it could not be started, if the start has failed for good.
    fn final_failure(&self) -> Option<&'a str> {
        self.failure.filter(|_| matches!(self.edge, Some(Edge::Aborted(_))))
    }

    /// Why it could not be started.
    pub(crate) fn failure(&self) -> Option<&'a str> {
        self.failure.filter(|_| matches!(self.edge, Some(Edge::Aborted(_) | Edge::StartFailed)))
    }

    /// When gantryd starts it again.
    pub(crate) fn restart_at(&self) -> Option<Timestamp> {
        self.restart.and_then(|restart| restart.at)
    }

    /// The pod's networks, when it is started.
    pub(crate) fn got(&self) -> Option<&'a Networks> {
        self.networks.filter(|got| matches!(self.edge, Some(Edge::Started { .. })) && !got.is_empty())
    }
}

/// The result of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// Done; the present row. `None`: the pod was collected, and its row is gone.
    Yes(Option<PodRow>),
    /// Another process was faster; the current row, `None` when it is gone.
    Lost(Option<PodRow>),
}

/// A pod could not be inserted.
#[derive(Debug, Error)]
pub enum InsertPodError {
    /// An image was removed in between, or never existed.
    #[error("image {image} of app '{app}' is not in the store: fetch it again")]
    NoSuchImage {
        /// The app.
        app: AppName,
        /// The image.
        image: ImageId,
    },
    /// A volume was removed in between, or never existed.
    #[error("there is no volume '{0}'")]
    NoSuchVolume(VolumeName),
    /// Another pod has its name.
    #[error("{}", names::taken_text(name, *pod))]
    NameTaken {
        /// The name.
        name: PodName,
        /// The pod that has it.
        pod: PodId,
    },
    /// The id is already in use.
    #[error("there is a pod {0} already")]
    Exists(PodId),
    /// The schedule was changed, or another process has created a pod for it.
    #[error("schedule '{0}' was changed by another process")]
    ScheduleChanged(ScheduleName),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for InsertPodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchImage { .. } | Self::NoSuchVolume(_) => ErrorKind::NotFound,
            Self::Exists(_) | Self::NameTaken { .. } => ErrorKind::AlreadyExists,
            Self::ScheduleChanged(_) => ErrorKind::Busy,
            Self::Store(error) => error.kind(),
        }
    }
}

/// A pod could not be changed; losing a race is not among the reasons.
#[derive(Debug, Error)]
pub enum StepError {
    /// The edge does not leave the observed phase.
    #[error("pod {id} stays as it is")]
    Refused {
        /// The pod.
        id: PodId,
        /// The reason.
        #[source]
        source: Refused,
    },
    /// A change for an app that the pod does not have.
    #[error("pod {id} has no app '{app}'")]
    NoSuchApp {
        /// The pod.
        id: PodId,
        /// The app.
        app: AppName,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for StepError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { source, .. } => source.kind(),
            Self::NoSuchApp { .. } => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }
}

impl Store {
    /// Inserts a pod as an Embryo. From now on its images cannot be removed.
    ///
    /// # Errors
    /// [`InsertPodError`].
    pub fn insert_pod(&self, pod: &NewPod) -> Result<PodRow, InsertPodError> {
        self.write("insert the pod", Sync::Soon, |tx| {
            insert(tx, pod)?;
            load(tx, pod.id).map_err(|error| InsertPodError::Store(StoreError::sql("insert the pod")(error)))
        })?
        .ok_or(InsertPodError::Exists(pod.id))
    }

    /// Moves a pod along an edge if its generation is still `seen`.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn step(&self, id: PodId, seen: Generation, change: Change) -> Result<Moved, StepError> {
        self.steps(id, seen, &[change])
    }

    /// Moves a pod along several edges in one transaction, if its generation is still `seen`.
    ///
    /// # Errors
    /// [`StepError`]; then it has made no step.
    pub fn steps(&self, id: PodId, seen: Generation, changes: &[Change]) -> Result<Moved, StepError> {
        let sync = if changes.iter().any(|change| change.durable) { Sync::Now } else { Sync::Soon };
        let steps: Vec<Step<'_>> = changes.iter().map(Step::of_change).collect();
        self.change(id, seen, sync, &steps)
    }

    /// Compiles the statements that change pods and apps, for a caller that waits anyway: the next change of this
    /// process takes less time.
    pub fn compile_changes(&self) {
        let _compiled_when_used = row::compile_writes(&self.conn);
    }

    /// Compiles the statement that deletes a pod.
    pub fn compile_removal(&self) {
        let _compiled_when_used = self.conn.prepare_cached(DELETE);
    }

    /// Changes the apps of a running pod, step by step in one transaction, if its generation is still `seen`. Of a pod
    /// that has ended, rows of apps can only be deleted.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn update_apps(&self, id: PodId, seen: Generation, changes: &[AppChanges]) -> Result<Moved, StepError> {
        let steps: Vec<_> = changes.iter().map(Step::of_apps).collect();
        self.change(id, seen, Sync::Soon, &steps)
    }

    /// Changes the network of a prepared pod, as `run-prepared --net` requests. `None`: it is no longer prepared, or
    /// gone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn set_net(&self, id: PodId, net: &NetMode) -> Result<Option<PodRow>, StoreError> {
        const DOING: &str = "change the pod's network";
        self.write(DOING, Sync::Soon, |tx| {
            tx.prepare_cached(
                "UPDATE pod SET net = ?2, generation = generation + 1 WHERE id = ?1 AND phase = 'prepared'",
            )
            .and_then(|mut update| update.execute([id.to_string(), net.to_string()]))
            .and_then(|changed| if changed == 0 { Ok(None) } else { load(tx, id) })
            .map_err(StoreError::sql(DOING))
        })
    }

    /// A pod that ends must reach its end on a full disk, too: the space set aside is released for it.
    fn change(&self, id: PodId, seen: Generation, sync: Sync, asked: &[Step<'_>]) -> Result<Moved, StepError> {
        let begins = asked.iter().any(|step| {
            matches!(step.edge, Some(Edge::Prepare | Edge::Prepared(_) | Edge::Restart | Edge::Started { .. }))
        });
        match self.change_once(id, seen, sync, asked) {
            Err(StepError::Store(error)) if error.is_full() && !begins => {
                self.make_room()?;
                self.change_once(id, seen, sync, asked)
            }
            other => other,
        }
    }

    fn change_once(&self, id: PodId, seen: Generation, sync: Sync, asked: &[Step<'_>]) -> Result<Moved, StepError> {
        self.write(CHANGING, sync, |tx| {
            let mut pod = match load(tx, id).map_err(StoreError::sql(CHANGING))? {
                Some(pod) if pod.generation == seen => Some(pod),
                other => return Ok(Moved::Lost(other)),
            };
            let mut new_events = Vec::new();
            for step in asked {
                // Nothing follows the last edge, which deletes the row.
                let Some(before) = pod else { break };
                pod = apply(&before, step, &mut new_events)?;
            }
            // No other transaction sees the row between two steps, so it is written once.
            store(tx, id, pod.as_ref(), asked)
                .and_then(|()| events::append(self, tx, &new_events))
                .map_err(StoreError::sql(CHANGING))?;
            Ok(Moved::Yes(pod))
        })
    }
}

/// Makes one step of a row in memory, and adds its events. `None`: the row is to be deleted.
fn apply(pod: &PodRow, asked: &Step<'_>, new_events: &mut Vec<NewEvent>) -> Result<Option<PodRow>, StepError> {
    let id = pod.id;
    let refused = |source| StepError::Refused { id, source };
    let to = match asked.edge {
        Some(edge) => step(&pod.phase, edge.clone()).map_err(refused)?,
        None if asked.may_apply_in(&pod.phase) => Stepped::To(pod.phase.clone()),
        None => return Err(refused(Refused { phase: pod.phase.name(), edge: "updated in its apps" })),
    };
    let apps = events::matched(&pod.apps, &asked.apps.states).map_err(|app| StepError::NoSuchApp { id, app })?;
    let removed = events::removed(&pod.apps, &asked.apps.removed);
    new_events.extend(events::of_step(pod, asked, &apps, &removed, crate::now())?);
    Ok(after(pod, to, asked))
}

fn insert(tx: &Transaction<'_>, pod: &NewPod) -> Result<(), InsertPodError> {
    let sql = || StoreError::sql("insert the pod");
    let id = pod.id.to_string();
    if let Some(name) = &pod.name
        && let Some(pod) = names::find(tx, name).map_err(sql())?
    {
        return Err(InsertPodError::NameTaken { name: name.clone(), pod });
    }
    if insert_pod_row(tx, &id, pod).map_err(sql())? == 0 {
        return Err(InsertPodError::Exists(pod.id));
    }
    for (position, app) in pod.apps.iter().enumerate() {
        if let Some(image) = row::insert_app(tx, &id, position, app, None).map_err(sql())? {
            return Err(InsertPodError::NoSuchImage { app: app.name.clone(), image });
        }
    }
    refer_to_volumes(tx, &id, pod)?;
    match &pod.schedule {
        Some(PodSchedule::Run(run)) if !schedules::begin_run(tx, &id, run).map_err(sql())? => {
            Err(InsertPodError::ScheduleChanged(run.name.clone()))
        }
        Some(PodSchedule::Lost { name, revision }) => {
            Ok(schedules::recover_run(tx, &id, pod.created, name, *revision).map_err(sql())?)
        }
        Some(PodSchedule::Run(_)) | None => Ok(()),
    }
}

/// Inserts the row of a pod; returns the number of inserted rows, 0 if it exists already.
fn insert_pod_row(tx: &Transaction<'_>, id: &str, pod: &NewPod) -> rusqlite::Result<usize> {
    let (annotations, labels) = (row::map_text(&pod.user_annotations)?, row::map_text(&pod.user_labels)?);
    tx.prepare_cached(
        "INSERT INTO pod (id, generation, phase, created, net, hostname, user_annotations, user_labels, sandbox,
            name, cgroup, namespace, log_dir)
            VALUES (?1, 0, 'embryo', ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING",
    )?
    .execute(params![
        id,
        pod.created.0,
        pod.net.to_string(),
        pod.hostname,
        annotations,
        labels,
        pod.sandbox,
        pod.name.as_ref().map(PodName::as_str),
        pod.cgroup,
        pod.namespace.as_str(),
        pod.log_dir.as_ref().map(PodLogDir::as_str)
    ])
}

/// Refers to the named volumes of a new pod and to the images that are volumes of its apps.
fn refer_to_volumes(tx: &Transaction<'_>, id: &str, pod: &NewPod) -> Result<(), InsertPodError> {
    let sql = || StoreError::sql("insert the volumes of a pod");
    for app in &pod.apps {
        if let Some(image) = row::refer_to_images(tx, id, app).map_err(sql())? {
            return Err(InsertPodError::NoSuchImage { app: app.name.clone(), image });
        }
    }
    match row::refer_to_volumes(tx, id, None, &pod.volumes).map_err(sql())? {
        Some(missing) => Err(InsertPodError::NoSuchVolume(missing)),
        None => Ok(()),
    }
}

/// Whether a pod in this phase keeps its name: removing a pod frees the name at its first step, and a pod that could
/// not be started never holds one.
pub(crate) fn has_name(phase: &Phase) -> bool {
    !matches!(phase, Phase::AbortedPrepare { .. } | Phase::Garbage { .. })
}

/// The row after a change; `None` when it is gone.
fn after(pod: &PodRow, to: Stepped, asked: &Step<'_>) -> Option<PodRow> {
    let Stepped::To(phase) = to else { return None };
    let mut pod = PodRow { generation: Generation(pod.generation.0 + 1), phase, ..pod.clone() };
    if let Phase::Prepared { at } = pod.phase {
        pod.prepared = Some(at);
    }
    if !has_name(&pod.phase)
        && let Some(name) = pod.name.take()
    {
        pod.user_annotations.insert(FORMER_NAME.to_owned(), name.to_string());
    }
    pod.paused &= matches!(pod.phase, Phase::Running { .. });
    if let Some(restart) = asked.restart {
        pod.restart.clone_from(restart);
    }
    if matches!(asked.edge, Some(Edge::Started { .. })) {
        pod.restart = pod.restart.after_start();
    }
    if !matches!(pod.phase, Phase::Exited { .. } | Phase::Starting { .. }) {
        pod.restart.at = None;
    }
    if let Some(networks) = asked.got() {
        pod.networks.clone_from(networks);
    }
    asked.apps.apply_to(&mut pod.apps, |app| &app.name, AppRow::set_state);
    if let Some(failure) = asked.final_failure() {
        pod.user_annotations.insert(FAILURE.to_owned(), failure.to_owned());
    }
    Some(pod)
}

/// Writes what these steps have changed in a row; `None` deletes it.
fn store(tx: &Transaction<'_>, id: PodId, after: Option<&PodRow>, steps: &[Step<'_>]) -> rusqlite::Result<()> {
    let Some(pod) = after else {
        return tx.prepare_cached(DELETE)?.execute([id.to_string()]).map(drop);
    };
    row::write_phase(tx, pod)?;
    let text = id.to_string();
    pod.apps.iter().try_for_each(|app| row::write_app(tx, &text, app))?;
    if pod.user_annotations.contains_key(FORMER_NAME) || steps.iter().any(|step| step.final_failure().is_some()) {
        row::write_annotations(tx, pod)?;
    }
    for step in steps {
        row::delete_apps(tx, id, &step.apps.removed)?;
        if let Some(networks) = step.got() {
            row::write_networks(tx, id, networks)?;
        }
    }
    Ok(())
}
