//! Every enum, both ways.

use gantry_model::phase::FormerPhase;
use gantry_model::{AppEnd, AppOutcome, PhaseName, PodEnd, Process};

use super::*;

fn end() -> PodEnd {
    PodEnd { exit_code: 0, failed_app: None, reason: String::new() }
}

fn garbage(was: FormerPhase, deleting: Option<Timestamp>) -> Phase {
    Phase::Garbage { marked: Timestamp(9), was, deleting }
}

fn exited() -> FormerPhase {
    FormerPhase::Exited { started: Timestamp(5), at: Timestamp(6), end: end() }
}

#[test]
fn phases_become_pod_states() {
    let supervisor = Process { pid: 1, start_ticks: 2, boot: gantry_model::BootId("b".to_owned()) };
    let t = Timestamp(5);
    for (phase, state, started_at, marked_at) in [
        (Phase::Embryo, PodState::Embryo, None, None),
        (Phase::Preparing, PodState::Preparing, None, None),
        (Phase::AbortedPrepare { at: t }, PodState::AbortedPrepare, None, None),
        (Phase::Prepared { at: t }, PodState::Prepared, None, None),
        (Phase::Running { since: t, supervisor }, PodState::Running, Some(t), None),
        (Phase::Exited { started: t, at: Timestamp(6), end: end() }, PodState::Exited, Some(t), None),
        (Phase::Starting { started: t, at: Timestamp(6), end: end() }, PodState::Prepared, Some(t), None),
        (garbage(FormerPhase::Aborted, None), PodState::Garbage, None, Some(Timestamp(9))),
        (garbage(FormerPhase::Prepared, None), PodState::Garbage, None, Some(Timestamp(9))),
        (garbage(exited(), None), PodState::Garbage, Some(t), Some(Timestamp(9))),
        (garbage(exited(), Some(t)), PodState::Deleting, Some(t), Some(Timestamp(9))),
    ] {
        assert_eq!(pod_state(&phase), state);
        assert!(phases_of(state).contains(&phase.name()), "{phase:?}");
        assert_eq!((phase.started_at(), super::marked_at(&phase)), (started_at, marked_at), "{phase:?}");
    }
    assert!(phases_of(PodState::Undefined).is_empty());
    let all = (0..9).flat_map(|n| phases_of(PodState::try_from(n).unwrap())).copied().collect::<Vec<_>>();
    let mut names = PhaseName::ALL.to_vec();
    names.retain(|name| !all.contains(name));
    assert_eq!((all.len(), names.len()), (PhaseName::ALL.len(), 0), "a phase without a state: {names:?}");
}

#[test]
fn app_states_are_converted() {
    let at = Timestamp(1);
    let ended =
        |how| AppState::Exited { started: Some(at), end: AppEnd { how, oom: false, at, restart_at: None }, attempt: 0 };
    for (state, want) in [
        (AppState::Waiting, (wire::AppState::Undefined, 0)),
        (AppState::Creating, (wire::AppState::Undefined, 0)),
        (AppState::Created, (wire::AppState::Undefined, 0)),
        (AppState::Started { at, pid: 1, attempt: 2 }, (wire::AppState::Running, 0)),
        (ended(AppOutcome::Exited(7)), (wire::AppState::Exited, 7)),
        (ended(AppOutcome::Signaled(9)), (wire::AppState::Exited, 137)),
        (ended(AppOutcome::Lost), (wire::AppState::Exited, 137)),
    ] {
        assert_eq!(app_state(&state), want, "{state:?}");
    }
}

#[test]
fn event_types_and_image_formats_are_converted() {
    for kind in EventKind::ALL {
        let wire = event_type(kind);
        if wire == EventType::Undefined {
            assert!(event_kinds(wire).any(|other| other == kind));
            continue;
        }
        assert_eq!(event_kinds(wire).collect::<Vec<_>>(), [kind]);
        let name = wire.as_str_name().trim_start_matches("EVENT_TYPE_").to_lowercase().replace('_', "-");
        assert_eq!(name, kind.as_str());
    }
    for (format, want) in [
        (ImageFormat::Appc, (ImageType::Appc, "0.8.11")),
        (ImageFormat::Docker, (ImageType::Docker, "2.2")),
        (ImageFormat::Oci, (ImageType::Oci, "1.1.0")),
    ] {
        let wire = image_format(format);
        assert_eq!((wire.r#type(), wire.version.as_str()), want);
    }
}
