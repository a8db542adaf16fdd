//! Dead preparers and dead supervisors, on a real store: the outcome of the next reconcile.

use std::path::Path;

use gantry_contract::journal::{self, Fact, Record};
use gantry_contract::{ProcessExit, files, start};
use gantry_model::query::PodQuery;
use gantry_model::restart::PodRestart;
use gantry_model::{
    AppName, AppState, BootId, Digest, Edge, NetMode, PhaseName, PodEnd, Timestamp, phase::FormerPhase,
};
use gantry_store::{Change, ImageFormat, NewApp, NewImage, NewPod};

use super::*;
use crate::{Options, RunningPod};

#[test]
fn supervisors_of_another_boot_are_not_looked_up() {
    let boot = |name: &str| BootId(name.to_owned());
    let supervisor = Process { pid: 1, start_ticks: 1, boot: boot("this") };
    let running = Phase::Running { since: Timestamp(1), supervisor };
    let pod = "67f3a3cb-3a9c-4d43-8b7d-5e4d8f5d5f9d".parse().unwrap();
    assert!(Supervisor::of_phase(pod, &running, &boot("this")).is_some());
    assert!(Supervisor::of_phase(pod, &running, &boot("another")).is_none());
    assert!(Supervisor::of_phase(pod, &Phase::Embryo, &boot("this")).is_none());
}

#[test]
fn facts_determine_the_next_step() {
    let t = Timestamp(1);
    let supervisor = Process { pid: 1, start_ticks: 1, boot: BootId("b".into()) };
    let end = PodEnd { exit_code: 0, failed_app: None, reason: String::new() };
    let running = Phase::Running { since: t, supervisor };
    let starting = Phase::Starting { started: t, at: t, end: end.clone() };
    let ready = ready();
    let (runs, ended) = (Correction::MarkRunning(&ready), Correction::MarkRunningAndFinalize(&ready));
    let rows = [
        // phase, (held, ready): yes yes, yes no, no yes, no no
        (Phase::Embryo, [runs, Correction::None, ended, Correction::Abort]),
        (Phase::Preparing, [runs, Correction::None, ended, Correction::Abort]),
        (Phase::Prepared { at: t }, [runs, Correction::None, ended, Correction::None]),
        (
            running,
            [Correction::RecordAppChanges, Correction::RecordAppChanges, Correction::Finalize, Correction::Finalize],
        ),
        (Phase::AbortedPrepare { at: t }, [Correction::None; 4]),
        (Phase::Exited { started: t, at: t, end }, [Correction::None; 4]),
        (starting, [runs, Correction::None, ended, Correction::RecordFailedStart]),
        (Phase::Garbage { marked: t, was: FormerPhase::Prepared, deleting: None }, [Correction::None; 4]),
        (Phase::Garbage { marked: t, was: FormerPhase::Prepared, deleting: Some(t) }, [Correction::None; 4]),
    ];
    for (phase, want) in rows {
        let facts = [(true, Some(&ready)), (true, None), (false, Some(&ready)), (false, None)];
        let got = facts.map(|(held, ready)| correction(&phase, held, ready));
        assert_eq!(got, want, "{}", phase.name());
    }
}

/// An engine on an empty store with one image, which has no layers.
pub(crate) fn engine(dir: &Path) -> (Engine, Digest) {
    let options = Options { cgroup_parent: "/gantry-engine-test".parse().unwrap(), ..Options::new(dir.join("data")) };
    let engine = Engine::open(options).unwrap();
    let blob = |bytes: &[u8]| {
        let digest = gantry_fetch::source::digest_of(gantry_model::id::Algorithm::Sha256, bytes);
        engine.store.put_blob(&digest, bytes).unwrap();
        digest
    };
    let (id, config) = (blob(b"{}"), blob(b"{\"x\":1}"));
    let image =
        NewImage { id: id.clone(), config, format: ImageFormat::Oci, layers: Vec::new(), size: 2, names: Vec::new() };
    engine.store.commit_image(&image, Timestamp(1)).unwrap();
    (engine, id)
}

/// A pod with one app, `a`, as Embryo, and its lock.
pub(crate) fn embryo(engine: &Engine, image: &Digest, n: u8) -> (PodRow, PodLock) {
    let id = PodId::from_random([n; 16]);
    let lock = engine.store.make_pod_dir(id).unwrap();
    let (image, annotations) = (Some(image.clone()), std::collections::BTreeMap::new());
    let labels = std::collections::BTreeMap::new();
    let name = "a".parse().unwrap();
    let app = NewApp {
        name,
        id: None,
        image,
        image_name: "x".into(),
        annotations,
        labels,
        notifies: false,
        log_path: None,
        volume_images: std::collections::BTreeSet::new(),
        restart: Default::default(),
    };
    let pod = NewPod {
        id,
        created: gantry_store::now(),
        net: NetMode::None,
        hostname: "h".into(),
        name: None,
        namespace: Default::default(),
        sandbox: false,
        apps: vec![app],
        user_annotations: std::collections::BTreeMap::new(),
        user_labels: std::collections::BTreeMap::new(),
        volumes: Default::default(),
        cgroup: format!("/gantry-engine-test/{id}"),
        log_dir: None,
        schedule: None,
    };
    (engine.store.insert_pod(&pod).unwrap(), lock)
}

/// As [`ready`]; this process counts as the supervisor, which runs.
fn ready_of_this_process() -> start::Ready {
    let stat = process::read_stat(std::process::id()).unwrap().unwrap();
    start::Ready { start_ticks: gantry_contract::start_ticks(&stat).unwrap(), ..ready() }
}

pub(crate) fn ready() -> start::Ready {
    let at = gantry_store::now().0;
    let app = start::Started { app: "a".into(), attempt: 0, pid: 7, at };
    start::Ready {
        supervisor: std::process::id(),
        start_ticks: 1,
        init: 7,
        apps: vec![app],
        networks: Vec::new(),
        warnings: Vec::new(),
    }
}

/// A network attachment with an address of the network `name`.
fn ready_in(name: &str) -> start::Ready {
    use gantry_model::net::{PodAddress, PodNetwork};
    let address = PodAddress { address: "10.0.0.2".parse().unwrap(), prefix: 24, gateway: None };
    let attached = PodNetwork { name: name.into(), addresses: vec![address], ..PodNetwork::default() };
    start::Ready { networks: vec![attached], ..ready() }
}

/// Replaces the journal, so that a descriptor of the older one does not show the facts.
pub(crate) fn write_journal(engine: &Engine, id: PodId, facts: Vec<Fact>) {
    let at = gantry_store::now().0;
    let lines = facts.into_iter().flat_map(|fact| journal::line(&Record { at, fact }).unwrap());
    let new = engine.pod_dir(id).join(files::NEW_JOURNAL);
    std::fs::write(&new, lines.collect::<Vec<u8>>()).unwrap();
    std::fs::rename(&new, engine.pod_dir(id).join(files::JOURNAL)).unwrap();
}

pub(crate) fn exited(code: u8) -> Fact {
    Fact::AppExited { app: "a".into(), attempt: 0, how: ProcessExit::Code(code), oom: false, restart_at: None }
}

fn phase(engine: &Engine, id: PodId) -> Phase {
    engine.reconcile_pod(id).unwrap().phase
}

#[test]
fn only_embryos_of_dead_preparers_are_aborted() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    assert_eq!(phase(&engine, row.id), Phase::Embryo);
    drop(lock);
    assert!(matches!(phase(&engine, row.id), Phase::AbortedPrepare { .. }));
    assert!(matches!(phase(&engine, row.id), Phase::AbortedPrepare { .. }), "twice changes nothing");
}

#[test]
fn a_pod_outlives_its_killed_starter() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    write_journal(&engine, row.id, vec![Fact::Ready(ready_in("default"))]);
    // A read-only engine sees the same.
    let reader = Engine::open_read_only(engine.options().clone()).unwrap();
    for engine in [&reader, &engine] {
        let seen = engine.reconcile_pod(row.id).unwrap();
        let got = seen.networks.read().unwrap();
        assert_eq!((got.len(), got[0].name.as_str()), (1, "default"));
    }
    let seen = engine.reconcile_pod(row.id).unwrap();
    assert!(matches!(seen.phase, Phase::Running { .. }));
    assert!(matches!(seen.apps[0].state, AppState::Started { pid: 7, .. }));
    // The app ends while the supervisor still holds the lock.
    write_journal(&engine, row.id, vec![Fact::Ready(ready()), exited(3)]);
    drop(lock);
    let Phase::Exited { end, .. } = phase(&engine, row.id) else { panic!("it has ended") };
    assert_eq!((end.exit_code, end.failed_app.as_ref().map(AppName::as_str)), (3, Some("a")));
    let events: Vec<_> =
        engine.store.events_after(0, 100).unwrap().into_iter().map(|e| e.event.kind.as_str()).collect();
    for kind in ["pod-prepared", "pod-started", "app-started", "app-exited", "pod-exited"] {
        assert_eq!(events.iter().filter(|seen| **seen == kind).count(), 1, "{kind}: {events:?}");
    }
}

#[test]
fn an_unobserved_run_is_finalized_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    write_journal(&engine, row.id, vec![Fact::Ready(ready()), exited(0), Fact::Ended]);
    drop(lock);
    let Phase::Exited { end, .. } = phase(&engine, row.id) else { panic!("it has ended") };
    assert_eq!((end.exit_code, end.reason.as_str()), (0, "all apps ended"));
}

#[test]
fn apps_of_a_killed_supervisor_are_lost() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    engine.mark_running(row.clone(), &ready()).unwrap();
    drop(lock);
    let row = engine.reconcile_pod(row.id).unwrap();
    let (_, end) = row.phase.end().unwrap();
    assert_eq!((end.exit_code, end.reason.as_str()), (137, "the supervisor was killed"));
    assert!(matches!(row.apps[0].state, AppState::Exited { end, .. } if end.how == gantry_model::AppOutcome::Lost));
}

/// gantryd restored the database while the pod ran: the process that waits for it still learns how it ended.
#[test]
fn ends_are_known_after_a_restore() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    engine.mark_running(row.clone(), &ready()).unwrap();
    let health = Fact::HealthChanged {
        app: "a".into(),
        attempt: 0,
        number: 1,
        health: gantry_model::HealthState::Starting,
        failures: 0,
        output: String::new(),
    };
    write_journal(&engine, row.id, vec![Fact::Ready(ready()), health, exited(3), Fact::Ended]);
    drop(lock);
    let (db, other) = (engine.store.layout().db(), temp.path().join("other"));
    std::fs::copy(&db, &other).unwrap();
    std::fs::rename(&other, &db).unwrap();
    assert!(!engine.store.is_current().unwrap());
    let row = engine.reconcile_pod(row.id).unwrap();
    let (_, end) = row.phase.end().unwrap();
    assert_eq!((end.exit_code, row.apps[0].health.number), (3, 1));
}

/// The lock of a pod whose supervisor is dead may be held for long: a background engine, which has other pods to
/// reconcile, returns to it later.
#[test]
fn background_engines_do_not_wait_for_locks() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    engine.mark_running(row.clone(), &ready()).unwrap();
    let engine = engine.into_background();
    let begun = std::time::Instant::now();
    assert!(matches!(phase(&engine, row.id), Phase::Running { .. }));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(lock);
    assert!(matches!(phase(&engine, row.id), Phase::Exited { .. }));
}

#[test]
fn a_read_only_engine_reports_facts_without_writing() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    drop(lock);
    let reader = Engine::open_read_only(Options::new(temp.path().join("data"))).unwrap();
    assert!(matches!(phase(&reader, row.id), Phase::AbortedPrepare { .. }));
    assert_eq!(engine.store.pod(row.id).unwrap().unwrap().phase, Phase::Embryo);
}

#[test]
fn deletion_removes_row_and_directory() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let (row, lock) = embryo(&engine, &image, 1);
    assert!(engine.dispose(row.id).is_err(), "the pod is locked");
    drop(lock);
    engine.dispose(row.id).unwrap();
    assert!(engine.store.pod(row.id).unwrap().is_none() && !engine.pod_dir(row.id).exists());
    // A creator that was killed before it wrote a row: the next list collects its leftovers.
    drop(engine.store.make_pod_dir(PodId::from_random([2; 16])).unwrap());
    assert!(engine.list(&PodQuery::default()).unwrap().is_empty());
    assert!(engine.store.pod_dirs().unwrap().is_empty());
}

/// A pod that had exited, marked just now: its grace period has just started.
fn garbage(engine: &Engine, image: &Digest, n: u8) -> PodRow {
    let (row, lock) = embryo(engine, image, n);
    write_journal(engine, row.id, vec![Fact::Ready(ready()), exited(0), Fact::Ended]);
    drop(lock);
    let row = engine.reconcile_pod(row.id).unwrap();
    let marked = Change::along(Edge::Marked(gantry_store::now()));
    engine.step(&row, marked).unwrap().unwrap()
}

#[test]
fn an_interrupted_deletion_is_finished_by_gc() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let options = crate::GcOptions::default();
    let id = garbage(&engine, &image, 1).id;
    assert!(engine.gc(&options).unwrap().steps.is_empty(), "its grace period is not over");
    // Without the directory into which pods are moved nothing can be deleted, as if killed right before the move.
    let tmp = engine.store.layout().tmp_dir();
    std::fs::rename(&tmp, temp.path().join("away")).unwrap();
    assert!(engine.rm(id, RunningPod::Refuse).is_err());
    assert!(engine.pod_dir(id).exists());
    assert_eq!(phase(&engine, id).name(), PhaseName::Deleting);
    let deleting = PodQuery::in_phases([PhaseName::Deleting]);
    assert_eq!(engine.list(&deleting).unwrap().len(), 1);
    assert!(engine.list(&PodQuery::in_phases([PhaseName::Garbage])).unwrap().is_empty());
    std::fs::rename(temp.path().join("away"), &tmp).unwrap();
    let steps = engine.gc(&options).unwrap().steps;
    assert_eq!(steps.iter().map(|step| (step.id, step.why)).collect::<Vec<_>>(), [(id, "its deletion was begun")]);
    assert!(engine.store.pod(id).unwrap().is_none() && !engine.pod_dir(id).exists());
    let kinds: Vec<_> = engine.store.events_after(0, 100).unwrap().into_iter().map(|e| e.event.kind.as_str()).collect();
    assert_eq!(kinds.last(), Some(&"pod-garbage-collected"));
    assert_eq!(kinds.iter().filter(|kind| **kind == "pod-garbage-collected").count(), 1, "{kinds:?}");
}

#[test]
fn gc_skips_pods_being_deleted() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let row = garbage(&engine, &image, 1);
    let Some(_lock) = engine.lock_pod(row.id).unwrap() else { panic!("it is dead") };
    let begun = Change::along(Edge::Deleting(gantry_store::now()));
    engine.step(&row, begun).unwrap();
    let report = engine.gc(&crate::GcOptions::default()).unwrap();
    assert!(report.steps.is_empty() && report.failures.is_empty(), "{report:?}");
    assert_eq!(phase(&engine, row.id).name(), PhaseName::Deleting);
}

#[test]
fn rm_waits_for_another_remover() {
    let temp = tempfile::tempdir().unwrap();
    let (mut engine, image) = engine(temp.path());
    engine.timeouts.lock = Duration::from_millis(5);
    let row = garbage(&engine, &image, 1);
    let lock = engine.lock_pod(row.id).unwrap().unwrap();
    assert!(
        matches!(engine.rm(row.id, RunningPod::Stop), Err(crate::RmError::Busy(_))),
        "garbage that is not being deleted"
    );
    engine.step(&row, Change::along(Edge::Deleting(gantry_store::now()))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let soon = Deadline::after(Duration::from_millis(100));
            process::readable(&[], soon).unwrap();
            drop(lock);
        });
        engine.rm(row.id, RunningPod::Stop).unwrap();
    });
    assert!(engine.store.pod(row.id).unwrap().is_none() && !engine.pod_dir(row.id).exists());
}

/// A pod of `run --rm` whose end was not observed: its row is still in phase Embryo.
fn unnoticed(engine: &Engine, image: &Digest, n: u8) -> PodRow {
    let (row, lock) = embryo(engine, image, n);
    write_journal(engine, row.id, vec![Fact::Ready(ready()), exited(0), Fact::Ended]);
    pod_dir::remove_when_ended(&engine.pod_dir(row.id)).unwrap();
    drop(lock);
    row
}

#[test]
fn readers_remove_ended_run_rm_pods() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    // Whether a process that began to delete its data was killed.
    for was_begun in [false, true] {
        let (row, lock) = embryo(&engine, &image, 1);
        write_journal(&engine, row.id, vec![Fact::Ready(ready())]);
        assert_eq!(phase(&engine, row.id).name(), PhaseName::Running);
        let dir = engine.pod_dir(row.id);
        pod_dir::remove_when_ended(&dir).unwrap();
        for below in ["apps/a/upper/etc", "logs/a"] {
            std::fs::create_dir_all(dir.join(below)).unwrap();
        }
        write_journal(&engine, row.id, vec![Fact::Ready(ready()), exited(3), Fact::Ended]);
        if was_begun {
            lock.data().unwrap().delete();
        }
        drop(lock);
        let reconciled = engine.reconcile_pod(row.id).unwrap();
        let Phase::Exited { end, .. } = &reconciled.phase else { panic!("{reconciled:?}") };
        assert_eq!((end.exit_code, reconciled.hostname), (3, row.hostname));
        assert!(engine.store.pod(row.id).unwrap().is_none() && !dir.exists());
        let tmp = engine.store.layout().tmp_dir();
        assert_eq!(std::fs::read_dir(tmp).unwrap().count(), 0);
    }
}

#[test]
fn a_dry_run_of_gc_changes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let row = unnoticed(&engine, &image, 1);
    let dry = crate::GcOptions { dry_run: true, ..crate::GcOptions::default() };
    for _ in 0..2 {
        let steps = engine.gc(&dry).unwrap().steps;
        let why = "it was run with --rm and has ended";
        assert_eq!(steps, [crate::GcStep { id: row.id, action: crate::GcAction::Delete, why }]);
        assert_eq!(engine.store.pod(row.id).unwrap().unwrap().phase, Phase::Embryo);
        assert!(engine.pod_dir(row.id).is_dir());
    }
    assert_eq!(engine.gc(&crate::GcOptions::default()).unwrap().steps.len(), 1);
    assert!(engine.store.pod(row.id).unwrap().is_none() && !engine.pod_dir(row.id).exists());
}

#[test]
fn mark_only_leaves_deletion_to_the_next_gc() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let row = unnoticed(&engine, &image, 1);
    let mark = crate::GcOptions { mark_only: true, ..crate::GcOptions::default() };
    assert_eq!(engine.gc(&mark).unwrap().steps.len(), 1);
    assert_eq!(phase(&engine, row.id).name(), PhaseName::Garbage);
    assert!(engine.pod_dir(row.id).is_dir());
    assert_eq!(engine.gc(&crate::GcOptions::default()).unwrap().steps.len(), 1);
    assert!(engine.store.pod(row.id).unwrap().is_none() && !engine.pod_dir(row.id).exists());
}

/// A plan with the one app `a` of an image without layers.
fn plan(id: PodId) -> gantry_contract::plan::Plan {
    use gantry_contract::plan::{App, LogLimits, Net, Plan};
    let app = App {
        name: "a".into(),
        id: None,
        attempt: 0,
        health_changes: 0,
        limit_changes: 0,
        is_held: false,
        oom_kills: 0,
        layers: Vec::new(),
        image_size: None,
        argv: vec!["/x".into()],
        env: Vec::new(),
        cwd: "/".into(),
        user: None,
        group: None,
        mounts: Vec::new(),
        capabilities: Vec::new(),
        required_capabilities: Vec::new(),
        ambient_capabilities: Vec::new(),
        stop_signal: 15,
        options: gantry_model::spec::AppOptions::default(),
    };
    Plan {
        version: gantry_contract::VERSION,
        pod: id.to_string(),
        pod_dir: String::new(),
        trees_dir: String::new(),
        namespace: Default::default(),
        hostname: "host".into(),
        ipc: gantry_model::namespaces::IpcMode::Pod,
        uts: gantry_model::namespaces::UtsMode::Pod,
        user_ids: None,
        shm_size: gantry_model::spec::DEFAULT_SHM_SIZE,
        sysctls: std::collections::BTreeMap::new(),
        net: Net::Host,
        former_addresses: Vec::new(),
        resolv: gantry_model::net::DnsSpec::default(),
        hosts: gantry_model::net::HostsSpec::default(),
        cgroup_parent: "/gantry-engine-test".parse().unwrap(),
        volumes_dir: String::new(),
        volumes: Vec::new(),
        apps: vec![app],
        log: LogLimits::default(),
        log_dir: None,
        limit_changes: 0,
        stop_grace_ms: 1,
        sandbox: false,
        flavor: gantry_model::spec::PodFlavor::Container,
        privileged: false,
        limits: gantry_model::spec::Limits::default(),
    }
}

/// The same with these networks.
pub(crate) fn plan_in(engine: &Engine, id: PodId, net: &NetMode) -> gantry_contract::plan::Plan {
    let host = crate::pods::plan_net::host(&engine.options.network, engine.store.layout());
    let pod_dir = engine.pod_dir(id).to_string_lossy().into_owned();
    gantry_contract::plan::Plan { net: crate::pods::plan_net::net(net, Vec::new(), host).unwrap(), pod_dir, ..plan(id) }
}

/// Makes the directory of a pod with this plan, without a row.
fn make_dir(engine: &Engine, id: PodId, plan: &gantry_contract::plan::Plan) {
    drop(engine.store.make_pod_dir(id).unwrap());
    crate::pods::pod_dir::fill(&engine.pod_dir(id), plan).unwrap();
}

/// A damaged plan: its values cannot be kept in a row, which would then be unreadable.
#[test]
fn invalid_networks_of_a_plan_make_no_row() {
    let home = tempfile::tempdir().unwrap();
    let (engine, _) = engine(home.path());
    let id = PodId::from_random([1; 16]);
    let wanted = gantry_model::net::NetworkRequest { name: "a,a".into(), args: Vec::new() };
    let plan = plan_in(&engine, id, &NetMode::Networks(vec![wanted]));
    make_dir(&engine, id, &plan);
    write_journal(&engine, id, vec![Fact::Ready(ready()), Fact::Ended]);
    assert_eq!(engine.list(&PodQuery::default()).unwrap().len(), 0);
    assert!(home.path().join("data/lost-pods").join(id.to_string()).is_dir());
}

#[test]
fn an_unspecified_network_is_the_default() {
    let home = tempfile::tempdir().unwrap();
    let (mut engine, _) = engine(home.path());
    for default in ["default", "none", "a:IP=10.0.0.2,b"] {
        engine.options.network.default = default.parse().unwrap();
        let mut spec = gantry_model::PodSpec::default();
        engine.resolve_net(&mut spec);
        assert_eq!(crate::manifest::to_value(&spec)["net"], default);
        let mut host = gantry_model::PodSpec { net: Some(NetMode::Host), ..gantry_model::PodSpec::default() };
        engine.resolve_net(&mut host);
        assert_eq!(host.net, Some(NetMode::Host));
    }
}

#[test]
fn a_start_resolves_the_networks_again() {
    use gantry_contract::plan::Net;
    use gantry_model::net::{PodPort, Protocol};
    let home = tempfile::tempdir().unwrap();
    let (mut engine, image) = engine(home.path());
    let (row, lock) = embryo(&engine, &image, 1);
    let id = row.id;
    let port = PodPort { host_ip: None, host_port: 80, pod_port: 8080, count: 1, protocol: Protocol::Tcp };
    let mut planned = plan_in(&engine, id, &NetMode::default());
    let Net::Networks(networks) = &mut planned.net else { panic!() };
    networks.ports = vec![port.clone()];
    crate::pods::pod_dir::fill(&engine.pod_dir(id), &planned).unwrap();
    let row = engine.step(&row, Change::along(Edge::Prepare)).unwrap().unwrap();
    let row = engine.step(&row, Change::along(Edge::Prepared(Timestamp(1)))).unwrap().unwrap();
    // The row did not have the plan: a start that was killed between the two writes.
    let row = engine.resolve_plan(row, engine.plan(id).unwrap(), None).unwrap().0;
    assert_eq!((&row.net, engine.store.pod(id).unwrap().unwrap().net), (&NetMode::default(), NetMode::default()));
    let said = |engine: &Engine| match engine.plan(id).unwrap().net {
        Net::Networks(networks) => networks,
        other => panic!("{other:?}"),
    };
    // Another network, and another way in which they are run: both at the next start, and the ports stay.
    engine.options.network.use_plugins = true;
    let row = engine.resolve_plan(row, engine.plan(id).unwrap(), Some("a,b".parse().unwrap())).unwrap().0;
    assert_eq!(row.net.to_string(), "a,b");
    let networks = said(&engine);
    assert_eq!((networks.ports, networks.host.use_plugins, networks.wanted.len()), (vec![port], true, 2));
    engine.options.network.use_plugins = false;
    let row = engine.resolve_plan(row, engine.plan(id).unwrap(), None).unwrap().0;
    assert!(!said(&engine).host.use_plugins);
    for none in [NetMode::None, NetMode::Host] {
        let refused = engine.resolve_plan(row.clone(), engine.plan(id).unwrap(), Some(none)).unwrap_err();
        assert_eq!(gantry_model::Kind::kind(&refused), gantry_model::ErrorKind::Invalid, "{refused}");
    }
    assert_eq!(engine.store.pod(id).unwrap().unwrap().net.to_string(), "a,b");
    drop(lock);
}

#[test]
fn running_pods_with_lost_rows_are_adopted() {
    let home = tempfile::tempdir().unwrap();
    let (engine, image) = engine(home.path());
    let id = |n: u8| PodId::from_random([n; 16]);
    let made = |n: u8| (engine.store.make_pod_dir(id(n)).unwrap(), engine.pod_dir(id(n)));
    let ended =
        Fact::AppExited { app: "a".into(), attempt: 0, how: ProcessExit::Code(5), oom: false, restart_at: None };
    // Ended, running, never complete, and with a damaged plan.
    let (_, dir) = made(1);
    let mut at_chosen_path = plan(id(1));
    at_chosen_path.log_dir = Some("/var/log/pods/x".parse().unwrap());
    at_chosen_path.apps[0].options.log_path = Some("a/0.log".parse().unwrap());
    crate::pods::pod_dir::fill(&dir, &at_chosen_path).unwrap();
    write_journal(&engine, id(1), vec![Fact::Ready(ready()), ended, Fact::Ended]);
    let (running, dir) = made(2);
    let asked: NetMode = "default,b:IP=10.0.0.2".parse().unwrap();
    crate::pods::pod_dir::fill(&dir, &plan_in(&engine, id(2), &asked)).unwrap();
    write_journal(&engine, id(2), vec![Fact::Ready(ready_in("b"))]);
    let (_, dir) = made(3);
    crate::pods::pod_dir::fill(&dir, &plan(id(3))).unwrap();
    let (_, dir) = made(4);
    std::fs::write(dir.join(files::PLAN), "{").unwrap();
    write_journal(&engine, id(4), vec![Fact::Ready(ready())]);
    for _ in 0..2 {
        engine.list(&PodQuery::default()).unwrap();
    }
    let row = engine.store.pod(id(1)).unwrap().unwrap();
    assert_eq!((row.phase.end().map(|(_, end)| end.exit_code), row.hostname.as_str()), (Some(5), "host"));
    let log = row.log_file(&row.apps[0].name).map(|(dir, path)| (dir.as_str(), path.as_str()));
    assert_eq!(log, Some(("/var/log/pods/x", "a/0.log")));
    assert_eq!((row.apps[0].image.as_ref(), row.net), (Some(&image), NetMode::Host));
    assert!(engine.store.pod(id(2)).unwrap().is_none(), "the pod is locked; only gantryd's start reconciles it");
    assert!(!engine.pod_dir(id(3)).exists() && engine.store.pod(id(3)).unwrap().is_none());
    assert!(home.path().join("data/lost-pods").join(id(4).to_string()).is_dir());
    let adopted = engine.adopt_late(false);
    assert_eq!(adopted.pods, [id(2)]);
    let row = engine.store.pod(id(2)).unwrap().unwrap();
    assert!(matches!(row.phase, Phase::Running { .. }));
    assert_eq!((row.net, row.networks.read().unwrap()[0].name.as_str()), (asked, "b"));
    drop(running);
    assert_eq!(engine.adopt_all().unwrap(), crate::Adopted::default(), "once is enough");
}

/// Of the two apps, the pod has only the younger one.
#[test]
fn apps_added_under_removed_names_are_adopted() {
    use crate::pods::added::{AddedApp, AddedApps};
    let home = tempfile::tempdir().unwrap();
    let (engine, _) = engine(home.path());
    let id = PodId::from_random([1; 16]);
    make_dir(&engine, id, &plan(id));
    let mut app = plan(id).apps.remove(0);
    app.id = Some(gantry_model::AppId::from_random([2; 32]));
    let added = AddedApp { app: app.clone(), volumes: Vec::new(), manifest: serde_json::Value::Null };
    let lock = engine.lock_apps(id, Duration::ZERO).unwrap().unwrap();
    engine.write_added_apps(id, &AddedApps { apps: vec![added] }, false, &lock).unwrap();
    drop(lock);
    let name = || "a".to_owned();
    let (removed, created) = (Fact::AppRemoved { app: name() }, Fact::AppCreated { app: name() });
    write_journal(&engine, id, vec![Fact::Ready(ready()), exited(0), removed, created, Fact::Ended]);
    engine.list(&PodQuery::default()).unwrap();
    let row = engine.store.pod(id).unwrap().unwrap();
    let ids: Vec<_> = row.apps.iter().map(|app| Some(app.id.clone())).collect();
    assert_eq!(ids, [app.id.clone()]);
    assert_eq!(engine.present_plan(&row).unwrap().apps, [app]);
}

/// A pod that waits to be started: its plan and its manifest, and no row.
fn prepared_without_row(engine: &Engine, n: u8) -> PodId {
    let id = PodId::from_random([n; 16]);
    make_dir(engine, id, &plan(id));
    let spec = gantry_model::PodSpec {
        user_labels: [("of".to_owned(), n.to_string())].into(),
        ..gantry_model::PodSpec::default()
    };
    crate::pods::pod_dir::write_manifest(&engine.pod_dir(id), &spec).unwrap();
    id
}

#[test]
fn prepared_pods_with_lost_rows_are_adopted() {
    type Look = fn(Engine) -> Engine;
    let looks: [(&str, Look); 3] = [
        ("list", |engine| {
            engine.list(&PodQuery::default()).unwrap();
            engine
        }),
        ("gc", |engine| {
            let report = engine.gc(&crate::GcOptions::default()).unwrap();
            assert_eq!((report.steps, report.failures.len()), (Vec::new(), 0));
            engine
        }),
        ("gantryd's start", |engine| {
            let options = engine.options().clone();
            drop(engine);
            let keeping = crate::open_for_keeping(options).map_err(|error| error.to_string()).unwrap();
            assert_eq!((keeping.condition, keeping.found.lines().len()), (crate::Condition::Sound, 2));
            keeping.engine
        }),
    ];
    for (name, look) in looks {
        let home = tempfile::tempdir().unwrap();
        let (engine, image) = engine(home.path());
        let ids = [1, 2].map(|n| prepared_without_row(&engine, n));
        let engine = look(engine);
        for (id, label) in ids.into_iter().zip(["1", "2"]) {
            let row = engine.store.pod(id).unwrap().unwrap_or_else(|| panic!("{name}: {id} has no row"));
            assert!(matches!(row.phase, Phase::Prepared { .. }), "{name}: {:?}", row.phase);
            assert_eq!((row.apps[0].image.as_ref(), row.user_labels["of"].as_str()), (Some(&image), label), "{name}");
        }
    }
}

#[test]
fn one_unrecoverable_row_does_not_block_others() {
    let home = tempfile::tempdir().unwrap();
    let (engine, _) = engine(home.path());
    let ids = [1, 2, 3].map(|n| prepared_without_row(&engine, n));
    std::fs::write(engine.pod_dir(ids[1]).join(crate::pods::pod_dir::MANIFEST), "{").unwrap();
    // A file is in the way of the move.
    std::fs::write(home.path().join("data/lost-pods"), "").unwrap();
    let report = engine.gc(&crate::GcOptions::default()).unwrap();
    assert_eq!(report.failures.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[1]]);
    assert!(engine.pod_dir(ids[1]).exists(), "nothing is deleted that was a pod");
    for id in [ids[0], ids[2]] {
        assert!(engine.store.pod(id).unwrap().is_some(), "{id}");
    }
}

/// An exited pod whose row says Starting, as left by a `start` that was killed; the journal of its first run is gone.
fn restarting(engine: &Engine, image: &Digest, n: u8, restart: PodRestart) -> PodRow {
    let (row, lock) = embryo(engine, image, n);
    write_journal(engine, row.id, vec![Fact::Ready(ready()), exited(3), Fact::Ended]);
    drop(lock);
    let row = engine.reconcile_pod(row.id).unwrap();
    assert!(matches!(row.phase, Phase::Exited { .. }));
    crate::pods::pod_dir::forget_start(&engine.pod_dir(row.id)).unwrap();
    let change = Change { restart: Some(restart), ..Change::along(Edge::Restart) };
    engine.step(&row, change).unwrap().unwrap()
}

#[test]
fn a_killed_start_leaves_the_former_end() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let row = restarting(&engine, &image, 1, PodRestart::default());
    let lock = engine.lock_pod(row.id).unwrap();
    assert!(matches!(phase(&engine, row.id), Phase::Starting { .. }), "its starter is alive");
    drop(lock);
    let row = engine.reconcile_pod(row.id).unwrap();
    let Phase::Exited { end, .. } = &row.phase else { panic!("{:?}", row.phase) };
    assert_eq!(end.exit_code, 3);
    assert_eq!((row.restart.at, row.restart.failure.as_deref()), (None, Some(START_INTERRUPTED)));
    // A pod that waited for gantryd waits again.
    let waiting = PodRestart { at: Some(Timestamp(1)), tries: 1, count: 1, ..PodRestart::default() };
    let row = restarting(&engine, &image, 2, waiting);
    let row = engine.reconcile_pod(row.id).unwrap();
    assert!(row.restart.at.is_some_and(|at| at > gantry_store::now()), "{:?}", row.restart);
    assert_eq!(engine.store.pods_to_restart().unwrap().len(), 1);
}

#[test]
fn restarted_pods_outlive_their_starter() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let waiting = PodRestart { at: Some(Timestamp(1)), tries: 1, count: 1, ..PodRestart::default() };
    let row = restarting(&engine, &image, 1, waiting);
    let lock = engine.lock_pod(row.id).unwrap();
    let again = start::Started { app: "a".into(), attempt: 1, pid: 8, at: gantry_store::now().0 };
    let ready = start::Ready { apps: vec![again], ..ready() };
    write_journal(&engine, row.id, vec![Fact::Ready(ready)]);
    let row = engine.reconcile_pod(row.id).unwrap();
    assert!(matches!(row.phase, Phase::Running { .. }), "{:?}", row.phase);
    assert_eq!(row.apps[0].state.attempt(), Some(1));
    assert_eq!((row.restart.at, row.restart.count), (None, 1));
    drop(lock);
    assert!(matches!(phase(&engine, row.id), Phase::Exited { .. }));
}

/// The test replaces a fact and keeps the stamp: only a list that reads the journal would show the new fact.
#[test]
fn lists_read_changed_journals_only() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let ready = ready_of_this_process();
    let count = u8::try_from(MIN_RECORDED + 1).unwrap();
    let pods: Vec<_> = (1..=count).map(|n| embryo(&engine, &image, n)).collect();
    for (row, _) in &pods {
        engine.mark_running(row.clone(), &ready).unwrap();
        write_journal(&engine, row.id, vec![Fact::Ready(ready.clone()), Fact::Resumed { app: Some("a".into()) }]);
    }
    let id = pods[0].0.id;
    let listed = || {
        let list = engine.list(&PodQuery::default()).unwrap();
        list.into_iter().find(|view| view.row.id == id).unwrap().row
    };
    assert!(!listed().apps[0].paused);
    let path = engine.pod_dir(id).join(files::JOURNAL);
    let stamp = FileStamp::read(&path).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("{\"resumed\"", " {\"paused\"")).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert_eq!(FileStamp::read(&path), Some(stamp));
    assert!(!listed().apps[0].paused, "the journal was read");
    assert!(engine.status(id).unwrap().row.apps[0].paused, "one pod is always read");
    write_journal(&engine, id, vec![Fact::Ready(ready.clone()), exited(3)]);
    assert!(matches!(listed().apps[0].state, AppState::Exited { .. }));
    for (row, _) in &pods {
        write_journal(&engine, row.id, vec![Fact::Ready(ready.clone()), exited(4)]);
    }
    listed();
    assert_eq!(recorded_journals(&engine), 1, "one row already had its facts, the others were changed");
    listed();
    assert_eq!(recorded_journals(&engine), pods.len());
    write_journal(&engine, id, vec![Fact::Ready(ready), exited(4), Fact::Ended]);
    let pods: Vec<_> = pods.into_iter().filter(|(row, _)| row.id != id).collect();
    assert!(matches!(listed().phase, Phase::Exited { .. }));
    drop(pods);
}

/// The number of pods whose journals have a recorded stamp.
fn recorded_journals(engine: &Engine) -> usize {
    let mut count = 0;
    engine.store.pods_showing(&PodQuery::default(), &mut |_, stamp| count += usize::from(stamp.is_some())).unwrap();
    count
}

#[test]
fn lists_read_a_long_journal_once() {
    let temp = tempfile::tempdir().unwrap();
    let (engine, image) = engine(temp.path());
    let ready = ready_of_this_process();
    let (row, _lock) = embryo(&engine, &image, 1);
    engine.mark_running(row.clone(), &ready).unwrap();
    let mut facts = vec![Fact::Ready(ready)];
    write_journal(&engine, row.id, facts.clone());
    engine.list(&PodQuery::default()).unwrap();
    assert_eq!(recorded_journals(&engine), 0, "it is short");
    facts.resize(2000, Fact::Resumed { app: Some("a".into()) });
    write_journal(&engine, row.id, facts);
    engine.list(&PodQuery::default()).unwrap();
    assert_eq!(recorded_journals(&engine), 0, "it was just changed");
    let journal = File::options().write(true).open(engine.pod_dir(row.id).join(files::JOURNAL)).unwrap();
    journal.set_modified(std::time::SystemTime::now() - RECENT_CHANGE).unwrap();
    engine.list(&PodQuery::default()).unwrap();
    assert_eq!(recorded_journals(&engine), 1);
}
