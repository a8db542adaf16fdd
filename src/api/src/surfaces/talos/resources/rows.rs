//! Reads resources from the store.

use gantry_engine::{AppRow, ImageRow, Observer, PodRow};
use gantry_model::{AppState, Timestamp};
use tonic::Status;

use super::yaml::{YamlValue, yaml};
use super::{ResourceKind, ResourceRow};
use crate::status;

/// All resources of a kind, by id.
pub(super) fn read(observer: &Observer, kind: ResourceKind) -> Result<Vec<ResourceRow>, Status> {
    let pods = || observer.pods(&[]).map_err(|error| status::from_error(&error));
    let mut rows: Vec<ResourceRow> = match kind {
        ResourceKind::Definition => ResourceKind::ALL.into_iter().map(ResourceKind::definition).collect(),
        ResourceKind::Pod => pods()?.iter().map(|view| pod(&view.row)).collect(),
        ResourceKind::App => {
            pods()?.iter().flat_map(|view| view.row.apps.iter().map(|row| app(&view.row, row))).collect()
        }
        ResourceKind::Image => {
            let (images, version) = observer.images_and_version().map_err(|error| status::from_error(&error))?;
            images.iter().map(|row| image(row, version)).collect()
        }
    };
    rows.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(rows)
}

/// The resource with this id; a pod also by its name.
pub(super) fn find(observer: &Observer, kind: ResourceKind, id: &str) -> Result<Option<ResourceRow>, Status> {
    if kind == ResourceKind::Pod {
        let pods = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
        let has_name = |row: &PodRow| row.name.as_ref().is_some_and(|name| name.as_str() == id);
        let found = pods.iter().find(|view| view.row.id.to_string() == id || has_name(&view.row));
        return Ok(found.map(|view| pod(&view.row)));
    }
    Ok(read(observer, kind)?.into_iter().find(|row| row.id == id))
}

fn time(time: Option<Timestamp>) -> YamlValue {
    YamlValue::from_text(time.map(|time| time.rfc3339().to_string()))
}

fn pod(row: &PodRow) -> ResourceRow {
    let (ended, end) = row.phase.end().unzip();
    let spec = yaml(&[
        ("name", YamlValue::from_text(row.name.as_ref().map(ToString::to_string))),
        ("namespace", YamlValue::Text(row.namespace.to_string())),
        ("state", YamlValue::Text(row.phase.name().to_string())),
        ("paused", YamlValue::Flag(row.paused)),
        ("hostname", YamlValue::Text(row.hostname.clone())),
        ("created", time(Some(row.created))),
        ("started", time(row.phase.started_at())),
        ("ended", time(ended)),
        ("exitCode", YamlValue::from_number(end.map(|end| end.exit_code))),
        ("apps", YamlValue::Texts(row.apps.iter().map(|app| app.name.to_string()).collect())),
        ("labels", YamlValue::Map(row.user_labels.clone())),
        ("annotations", YamlValue::Map(row.user_annotations.clone())),
    ]);
    ResourceRow { kind: ResourceKind::Pod, id: row.id.to_string(), version: row.generation.0.to_string(), spec }
}

fn app(pod: &PodRow, row: &AppRow) -> ResourceRow {
    let (pid, attempt, started, end) = match &row.state {
        AppState::Waiting | AppState::Creating | AppState::Created => (None, None, None, None),
        AppState::Started { at, pid, attempt } => (Some(*pid), Some(*attempt), Some(*at), None),
        AppState::Exited { started, end, attempt } => (None, Some(*attempt), *started, Some(end)),
    };
    let spec = yaml(&[
        ("pod", YamlValue::Text(pod.id.to_string())),
        ("name", YamlValue::Text(row.name.to_string())),
        ("state", YamlValue::Text(row.state.name().to_owned())),
        ("paused", YamlValue::Flag(row.paused || pod.paused)),
        ("image", YamlValue::Text(row.image_name.clone())),
        ("imageId", YamlValue::Text(row.image_id())),
        ("pid", YamlValue::from_number(pid)),
        ("attempt", YamlValue::from_number(attempt)),
        ("started", time(started)),
        ("ended", time(end.map(|end| end.at))),
        ("exitCode", YamlValue::from_number(end.map(|end| end.how.exit_code()))),
        ("labels", YamlValue::Map(row.labels.clone())),
        ("annotations", YamlValue::Map(row.annotations.clone())),
    ]);
    let id = format!("{}:{}", pod.id, row.name);
    ResourceRow { kind: ResourceKind::App, id, version: pod.generation.0.to_string(), spec }
}

/// Of an image only the names change. `version` rises with each change of an image, and also with other ones: a store
/// counts them together.
fn image(row: &ImageRow, version: u64) -> ResourceRow {
    let spec = yaml(&[
        ("names", YamlValue::Texts(row.names.clone())),
        ("size", YamlValue::Number(i64::try_from(row.size).unwrap_or(i64::MAX))),
        ("format", YamlValue::Text(row.format.as_str().to_owned())),
        ("imported", time(Some(row.imported))),
    ]);
    ResourceRow { kind: ResourceKind::Image, id: row.id.to_string(), version: version.to_string(), spec }
}
