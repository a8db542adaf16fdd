//! ListImages and InspectImage.

use gantry_engine::model::id::shown;
use gantry_engine::model::query::ImageFilter;
use gantry_engine::model::{ErrorKind, Kind as _};
use gantry_engine::{ImageView, Observer};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, InspectImageResponse};
use tonic::Status;

use super::convert;
use super::manifests::Shows;
use super::pods::Answer;
use crate::status;

/// The images for which any filter holds, by id.
pub(super) fn list(observer: &Observer, filters: &[ImageFilter], shows: Shows) -> Result<Encoded, Status> {
    let images = observer.images(filters).map_err(|error| status::of(&error))?;
    let mut answer = Answer::default();
    for view in images {
        answer.add(&image(view, shows))?;
    }
    Ok(answer.done())
}

/// The image whose id is or begins so.
pub(super) fn inspect(observer: &Observer, id: &str, shows: Shows) -> Result<InspectImageResponse, Status> {
    let view = observer.image_by_text(id).map_err(|error| match error.kind() {
        // In rkt's words, which its clients show.
        ErrorKind::NotFound => Status::not_found(format!("ACI info not found with blob key \"{}\"", shown(id))),
        _ => status::of(&error),
    })?;
    Ok(InspectImageResponse { image: Some(image(view, shows)) })
}

fn image(view: ImageView, shows: Shows) -> wire::Image {
    let manifest = shows.manifest.map(|secrets| view.appc_manifest(secrets)).unwrap_or_default();
    let ImageView { row, name, version, labels, annotations, manifest: _, config: _, format } = view;
    wire::Image {
        base_format: Some(convert::image_format(format)),
        id: row.id.to_string(),
        name,
        version,
        import_timestamp: row.imported.seconds(),
        manifest,
        size: i64::try_from(row.size).unwrap_or(i64::MAX),
        annotations: convert::pairs(&annotations),
        labels: convert::pairs(&labels),
    }
}
