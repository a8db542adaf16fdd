//! ImageList and ImagePull. All images are in one store, which is Talos' namespace of the CRI; gantryd itself needs
//! none, so the namespace `system` is empty.

use std::sync::Arc;

use gantry_engine::{Engine, Observer, Options, PullPolicy};
use gantry_model::ImageRef;
use gantry_model::id::shown;
use gantry_proto::talos::common::ContainerdNamespace;
use gantry_proto::talos::machine::{ImageListResponse, ImagePullRequest};
use prost_types::Timestamp;
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::info;

use crate::pulls::{ProgressLog, run_fetch};
use crate::request::check_text;
use crate::status;

/// Whether a namespace has images.
///
/// # Errors
/// `INVALID_ARGUMENT` if the namespace does not exist.
pub(super) fn has_images(namespace: i32) -> Result<bool, Status> {
    match ContainerdNamespace::try_from(namespace) {
        // Old clients leave it out.
        Ok(ContainerdNamespace::NsCri | ContainerdNamespace::NsUnknown) => Ok(true),
        Ok(ContainerdNamespace::NsSystem) => Ok(false),
        Err(_) => Err(Status::invalid_argument(format!("unsupported namespace {namespace}"))),
    }
}

/// The images, a row for each name, by name.
///
/// # Errors
/// The store cannot be read.
pub(super) fn list(observer: &Observer) -> Result<Vec<ImageListResponse>, Status> {
    let views = observer.images(&[]).map_err(|error| status::from_error(&error))?;
    let mut rows: Vec<ImageListResponse> = Vec::new();
    for image in views.into_iter().map(|view| view.row) {
        let digest = image.id.to_string();
        let nanos = i32::try_from(image.imported.0.rem_euclid(1_000_000_000)).unwrap_or(0);
        let row = |name: String| ImageListResponse {
            metadata: None,
            name,
            digest: digest.clone(),
            size: i64::try_from(image.size).unwrap_or(i64::MAX),
            created_at: Some(Timestamp { seconds: image.imported.seconds(), nanos }),
        };
        match image.names.is_empty() {
            true => rows.push(row(digest.clone())),
            false => rows.extend(image.names.iter().cloned().map(row)),
        }
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

/// An image that a request names.
#[derive(Debug)]
pub(super) struct PullReference(ImageRef);

impl PullReference {
    /// Reads the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the reference is not that of an image in a registry, or the namespace has no images.
    pub(super) fn parse(request: &ImagePullRequest) -> Result<Self, Status> {
        let ImagePullRequest { namespace, reference } = request;
        if !has_images(*namespace)? {
            return Err(Status::invalid_argument("images are kept in the namespace of the CRI only"));
        }
        check_text("reference", reference)?;
        let found: ImageRef = reference.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
        match found {
            ImageRef::Registry(_) | ImageRef::Short(_) => Ok(Self(found)),
            // Files of the host, and images that are in the store already.
            ImageRef::Id(_)
            | ImageRef::Layout(..)
            | ImageRef::OciArchive(..)
            | ImageRef::DockerArchive(..)
            | ImageRef::Path(_)
            | ImageRef::Stdin => {
                Err(Status::invalid_argument(format!("\"{}\" names no image of a registry", shown(reference))))
            }
        }
    }
}

/// Fetches an image, on a thread of its own: a fetch may take minutes. It finishes also if its client goes away.
///
/// # Errors
/// The status of the fetch's error, such as `NOT_FOUND`, `PERMISSION_DENIED` or `UNAVAILABLE`, and `RESOURCE_EXHAUSTED`
/// if no thread can be started.
pub(super) async fn pull(options: Options, pulls: &Arc<Semaphore>, reference: PullReference) -> Result<(), Status> {
    run_fetch(pulls, move || fetch(options, &reference.0)).await
}

fn fetch(options: Options, reference: &ImageRef) -> Result<(), Status> {
    let engine = Engine::open(options).map_err(|error| status::from_error(&error))?;
    let fetched = engine.fetch(reference, PullPolicy::Update, None, &ProgressLog);
    let fetched = fetched.map_err(|error| status::from_error(&error))?;
    info!(image = %fetched.image.id, "fetched {reference}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn only_images_of_registries_are_pulled() {
        let parse = |namespace: ContainerdNamespace, reference: &str| {
            let request = ImagePullRequest { namespace: namespace.into(), reference: reference.to_owned() };
            PullReference::parse(&request).map_or_else(|status| status.code(), |_| Code::Ok)
        };
        for reference in ["registry.example/app:1", "app", "docker.io/library/alpine"] {
            assert_eq!(parse(ContainerdNamespace::NsCri, reference), Code::Ok, "{reference}");
            assert_eq!(parse(ContainerdNamespace::NsSystem, reference), Code::InvalidArgument, "{reference}");
        }
        for reference in ["", "-", "/etc/passwd", "./x.tar", "oci:/x", "docker-archive:/x", "sha256:0123456789ab"] {
            assert_eq!(parse(ContainerdNamespace::NsCri, reference), Code::InvalidArgument, "{reference}");
        }
        assert_eq!(has_images(9).unwrap_err().code(), Code::InvalidArgument);
    }
}
