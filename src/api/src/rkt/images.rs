//! ListImages and InspectImage.

use gantry_engine::model::id::shown;
use gantry_engine::model::query::ImageFilter;
use gantry_engine::model::{ErrorKind, Kind as _};
use gantry_engine::{ImageView, Observer};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, InspectImageResponse};
use tonic::Status;

use super::convert;
use super::pods::Answer;
use crate::status;

/// The images for which any filter holds, by id.
pub(super) fn list(observer: &Observer, filters: &[ImageFilter], detail: bool) -> Result<Encoded, Status> {
    let images = observer.images(filters).map_err(|error| status::of(&error))?;
    let mut answer = Answer::default();
    for view in images {
        answer.add(&image(view, detail))?;
    }
    Ok(answer.done())
}

/// The image with this whole id.
pub(super) fn inspect(observer: &Observer, id: &str) -> Result<InspectImageResponse, Status> {
    // In rkt's words, which its clients show.
    let none = || Status::not_found(format!("ACI info not found with blob key \"{}\"", shown(id)));
    let id = id.parse().map_err(|_| none())?;
    let view = observer.image(&id).map_err(|error| match error.kind() {
        ErrorKind::NotFound => none(),
        _ => status::of(&error),
    })?;
    Ok(InspectImageResponse { image: Some(image(view, true)) })
}

fn image(view: ImageView, detail: bool) -> wire::Image {
    let ImageView { row, name, version, labels, annotations, manifest, format } = view;
    wire::Image {
        base_format: Some(convert::image_format(format)),
        id: row.id.to_string(),
        name,
        version,
        import_timestamp: row.imported.seconds(),
        manifest: if detail { manifest } else { Vec::new() },
        size: i64::try_from(row.size).unwrap_or(i64::MAX),
        annotations: convert::pairs(&annotations),
        labels: convert::pairs(&labels),
    }
}
