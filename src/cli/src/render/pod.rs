//! A pod as JSON. The field names are stable: fields are added, never changed.
//!
//! ```text
//! id phase created prepared started ended exit_code reason failed_app pid net networks[…] hostname name
//! namespace sandbox paused apps[name state image image_id pid attempt added started ended exit_code signal oom restart_at paused
//! readiness health id annotations labels oom_kills oom_level oom_victim[name pid] restart] user_annotations
//! user_labels restarts restart_at restart_at_boot restart_failure
//! ```
//!
//! Times are RFC 3339 in UTC with nanoseconds. Unknown values are null. `net` has the requested networks in the syntax
//! of `--net`; `networks` has the attachments with the fields of [`super::network`], from the start of the pod on and
//! also after its end.

use std::collections::BTreeMap;

use gantry_engine::{AppRow, PodRow};
use gantry_model::spec::PodFlavor;
use gantry_model::{AppEnd, AppOutcome, AppState, FormerPhase, Phase, PodEnd, PodNetwork, Timestamp};
use serde::Serialize;

use super::json::{DisplayJson, TimeJson};

/// The data of a pod's run that its phase contains.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PodRun<'a> {
    pub(crate) started: Option<Timestamp>,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) end: Option<&'a PodEnd>,
    pub(crate) pid: Option<u32>,
}

/// Extracts the data of the run from the phase.
pub(crate) fn pod_run(phase: &Phase) -> PodRun<'_> {
    match phase {
        Phase::Embryo | Phase::Preparing | Phase::AbortedPrepare { .. } | Phase::Prepared { .. } => PodRun::default(),
        Phase::Running { since, supervisor } => {
            PodRun { started: Some(*since), pid: Some(supervisor.pid), ..PodRun::default() }
        }
        Phase::Exited { started, at, end }
        | Phase::Starting { started, at, end }
        | Phase::Garbage { was: FormerPhase::Exited { started, at, end }, .. } => {
            PodRun { started: Some(*started), ended: Some(*at), end: Some(end), pid: None }
        }
        Phase::Garbage { was: FormerPhase::Aborted | FormerPhase::Prepared, .. } => PodRun::default(),
    }
}

/// A pod as JSON.
#[derive(Serialize)]
pub(crate) struct PodJson<'a> {
    id: DisplayJson<gantry_model::PodId>,
    phase: &'static str,
    created: TimeJson,
    prepared: Option<TimeJson>,
    started: Option<TimeJson>,
    ended: Option<TimeJson>,
    exit_code: Option<i32>,
    reason: Option<&'a str>,
    failed_app: Option<&'a str>,
    pid: Option<u32>,
    net: DisplayJson<&'a gantry_model::NetMode>,
    networks: NetworksJson<'a>,
    hostname: &'a str,
    name: Option<&'a str>,
    namespace: &'a str,
    sandbox: bool,
    #[serde(skip_serializing_if = "PodFlavor::is_container")]
    flavor: PodFlavor,
    paused: bool,
    apps: Vec<AppJson<'a>>,
    user_annotations: &'a BTreeMap<String, String>,
    user_labels: &'a BTreeMap<String, String>,
    /// Starts by gantryd since the last one on request.
    restarts: u32,
    /// When gantryd starts the pod again.
    restart_at: Option<TimeJson>,
    /// Whether gantryd starts the pod when the host has started again.
    restart_at_boot: bool,
    /// Why the last start of an exited pod failed.
    restart_failure: Option<&'a str>,
    /// The path of its cgroup while it runs, below each hierarchy's root.
    cgroup: &'a str,
    /// The directory of log files at chosen paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_dir: Option<&'a str>,
}

/// The attachments of a pod. Both variants print the same JSON, except for white space.
#[derive(Serialize)]
#[serde(untagged)]
enum NetworksJson<'a> {
    /// The stored JSON, copied in one line without parsing it.
    Stored(&'a gantry_engine::Networks),
    /// Parsed, so that it can be indented.
    Read(&'a [PodNetwork]),
}

/// An app as JSON.
#[derive(Serialize)]
pub(crate) struct AppJson<'a> {
    name: &'a str,
    state: &'static str,
    image: &'a str,
    image_id: Option<DisplayJson<&'a gantry_model::ImageId>>,
    pid: Option<u32>,
    attempt: Option<u32>,
    added: Option<TimeJson>,
    started: Option<TimeJson>,
    ended: Option<TimeJson>,
    exit_code: Option<i32>,
    signal: Option<u8>,
    oom: Option<bool>,
    restart_at: Option<TimeJson>,
    paused: bool,
    /// `starting` or `ready`; absent for an app that does not report its readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    readiness: Option<&'static str>,
    health: Option<&'static str>,
    id: &'a str,
    annotations: &'a BTreeMap<String, String>,
    labels: &'a BTreeMap<String, String>,
    oom_kills: u64,
    oom_level: Option<&'static str>,
    /// The last process that was killed; absent if the kernel log did not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_victim: Option<&'a gantry_model::OomVictim>,
    /// The restart policy.
    restart: DisplayJson<gantry_model::restart::RestartPolicy>,
    /// The chosen path of its log file, below `log_dir` of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_path: Option<&'a str>,
}

impl<'a> PodJson<'a> {
    /// For output in one line.
    pub(crate) fn from_row(row: &'a PodRow) -> Self {
        Self::build(row, NetworksJson::Stored(&row.networks))
    }

    /// For indented output; `networks` are those of the row.
    pub(crate) fn with_networks(row: &'a PodRow, networks: &'a [PodNetwork]) -> Self {
        Self::build(row, NetworksJson::Read(networks))
    }

    fn build(row: &'a PodRow, networks: NetworksJson<'a>) -> Self {
        let run = pod_run(&row.phase);
        Self {
            id: DisplayJson(row.id),
            phase: row.phase.name().as_str(),
            created: TimeJson(row.created),
            prepared: row.prepared.map(TimeJson),
            started: run.started.map(TimeJson),
            ended: run.ended.map(TimeJson),
            exit_code: run.end.map(|end| end.exit_code),
            reason: run.end.map(|end| end.reason.as_str()),
            failed_app: run.end.and_then(|end| end.failed_app.as_ref()).map(gantry_model::AppName::as_str),
            pid: run.pid,
            net: DisplayJson(&row.net),
            networks,
            hostname: &row.hostname,
            name: row.name.as_ref().map(gantry_model::PodName::as_str),
            namespace: row.namespace.as_str(),
            sandbox: row.sandbox,
            flavor: row.flavor(),
            paused: row.paused,
            apps: row.apps.iter().map(AppJson::from_row).collect(),
            user_annotations: &row.user_annotations,
            user_labels: &row.user_labels,
            restarts: row.restart.count,
            restart_at: row.restart.at.map(TimeJson),
            restart_at_boot: row.restart.is_waiting_for_boot(),
            restart_failure: row.restart.failure.as_deref(),
            cgroup: &row.cgroup,
            log_dir: row.log_dir.as_ref().map(gantry_model::PodLogDir::as_str),
        }
    }
}

/// The state of an app that has ended, for tables.
pub(crate) fn exited_state(end: &AppEnd) -> String {
    let state = if end.restart_at.is_some() { "restarting" } else { "exited" };
    format!("{state} ({})", end.how.exit_code())
}

impl<'a> AppJson<'a> {
    pub(crate) fn from_row(row: &'a AppRow) -> Self {
        let app = Self {
            name: row.name.as_str(),
            state: row.state.name(),
            image: &row.image_name,
            image_id: row.image.as_ref().map(DisplayJson),
            pid: None,
            attempt: None,
            added: row.added.map(TimeJson),
            started: None,
            ended: None,
            exit_code: None,
            signal: None,
            oom: None,
            restart_at: None,
            paused: row.paused,
            readiness: row.readiness.map(gantry_model::Readiness::as_str),
            health: row.health().map(gantry_model::HealthState::as_str),
            id: row.id.as_str(),
            annotations: &row.annotations,
            labels: &row.labels,
            oom_kills: row.oom.kills,
            oom_level: row.oom.level.map(gantry_model::OomLevel::as_str),
            oom_victim: row.oom.victim.as_ref(),
            restart: DisplayJson(row.restart),
            log_path: row.log_path.as_ref().map(gantry_model::AppLogPath::as_str),
        };
        match row.state {
            AppState::Waiting | AppState::Creating | AppState::Created => app,
            AppState::Started { at, pid, attempt } => {
                Self { pid: Some(pid), attempt: Some(attempt), started: Some(TimeJson(at)), ..app }
            }
            AppState::Exited { started, end, attempt } => Self {
                attempt: Some(attempt),
                started: started.map(TimeJson),
                ended: Some(TimeJson(end.at)),
                exit_code: Some(end.how.exit_code()),
                signal: match end.how {
                    AppOutcome::Signaled(signal) => Some(signal),
                    AppOutcome::Exited(_) | AppOutcome::Lost => None,
                },
                oom: Some(end.oom),
                restart_at: end.restart_at.map(TimeJson),
                ..app
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use gantry_model::Generation;

    /// A pod that ended, of two apps with a hostile image name.
    pub(crate) fn ended() -> PodRow {
        let image = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
        let how = |how| AppState::Exited {
            started: Some(Timestamp(1_000_000_000)),
            end: AppEnd { how, oom: false, at: Timestamp(2_000_000_000), restart_at: None },
            attempt: 0,
        };
        let app = |name: &str, state| AppRow {
            name: name.parse().unwrap(),
            image: Some(gantry_model::ImageId::clone(&image)),
            image_name: "evil\u{1b}[2J".into(),
            id: gantry_model::AppId::from_random([1; 32]),
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            added: None,
            paused: false,
            readiness: None,
            health: gantry_engine::HealthRecord::default(),
            oom: gantry_engine::OomRecord::default(),
            limit_changes: 0,
            log_path: None,
            restart: Default::default(),
            state,
        };
        PodRow {
            id: "6733c088-a507-4694-aabf-ec79c0a8ac9a".parse().unwrap(),
            generation: Generation(4),
            phase: Phase::Exited {
                started: Timestamp(1_000_000_000),
                at: Timestamp(2_000_000_001),
                end: PodEnd { exit_code: 139, failed_app: Some("b".parse().unwrap()), reason: "app b failed".into() },
            },
            created: Timestamp(0),
            prepared: Some(Timestamp(500_000_000)),
            net: gantry_model::NetMode::None,
            networks: gantry_engine::Networks::default(),
            hostname: "h".into(),
            name: None,
            namespace: Default::default(),
            sandbox: false,
            paused: false,
            apps: vec![app("a", how(AppOutcome::Exited(0))), app("b", how(AppOutcome::Signaled(11)))],
            user_annotations: BTreeMap::new(),
            user_labels: BTreeMap::new(),
            cgroup: "/gantry/6733c088-a507-4694-aabf-ec79c0a8ac9a".into(),
            log_dir: None,
            limit_changes: 0,
            restart: Default::default(),
        }
    }

    #[test]
    fn json_field_names_are_stable() {
        let json = serde_json::to_string(&PodJson::from_row(&ended())).unwrap();
        let id = "01".repeat(32);
        let image_id = format!("sha256:{}", "ab".repeat(32));
        let app = |name, code, signal| {
            format!(
                r#"{{"name":"{name}","state":"exited","image":"evil\u001b[2J","image_id":"{image_id}","pid":null,"attempt":0,"added":null,"started":"1970-01-01T00:00:01.000000000Z","ended":"1970-01-01T00:00:02.000000000Z","exit_code":{code},"signal":{signal},"oom":false,"restart_at":null,"paused":false,"health":null,"id":"{id}","annotations":{{}},"labels":{{}},"oom_kills":0,"oom_level":null,"restart":"no"}}"#
            )
        };
        let want = format!(
            r#"{{"id":"6733c088-a507-4694-aabf-ec79c0a8ac9a","phase":"exited","created":"1970-01-01T00:00:00.000000000Z","prepared":"1970-01-01T00:00:00.500000000Z","started":"1970-01-01T00:00:01.000000000Z","ended":"1970-01-01T00:00:02.000000001Z","exit_code":139,"reason":"app b failed","failed_app":"b","pid":null,"net":"none","networks":[],"hostname":"h","name":null,"namespace":"taloscontainers","sandbox":false,"paused":false,"apps":[{},{}],"user_annotations":{{}},"user_labels":{{}},"restarts":0,"restart_at":null,"restart_at_boot":false,"restart_failure":null,"cgroup":"/gantry/6733c088-a507-4694-aabf-ec79c0a8ac9a"}}"#,
            app("a", 0, "null"),
            app("b", 139, "11"),
        );
        assert_eq!(json, want);
    }
}
