//! ListImages and InspectImage.

use gantry_engine::{ImageView, Observer};
use gantry_model::id::shown;
use gantry_model::query::ImageFilter;
use gantry_model::{ErrorKind, Kind as _};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, InspectImageResponse, ListImagesResponse};
use tonic::Status;

use super::convert;
use super::detail::Detail;
use super::pods::ListSize;
use crate::status;

/// The images that match any of the filters, by id: a `ListImagesResponse`.
pub(super) fn list(observer: &Observer, filters: &[ImageFilter], detail: Detail) -> Result<Encoded, Status> {
    let views = observer.images(filters).map_err(|error| status::from_error(&error))?;
    let mut size = ListSize::default();
    let mut images = Vec::with_capacity(views.len());
    for view in views {
        let image = image(view, detail);
        size.add(&image)?;
        images.push(image);
    }
    Ok(Encoded::from_message(&ListImagesResponse { images }))
}

/// The image with this id, or whose id starts with this text.
pub(super) fn inspect(observer: &Observer, id: &str, detail: Detail) -> Result<InspectImageResponse, Status> {
    let view = observer.image_by_text(id).map_err(|error| match error.kind() {
        // rkt's wording, which its clients show.
        ErrorKind::NotFound => Status::not_found(format!("ACI info not found with blob key \"{}\"", shown(id))),
        _ => status::from_error(&error),
    })?;
    Ok(InspectImageResponse { image: Some(image(view, detail)) })
}

fn image(view: ImageView, detail: Detail) -> wire::Image {
    let manifest = detail.manifest.map(|secrets| view.appc_manifest(secrets)).unwrap_or_default();
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
