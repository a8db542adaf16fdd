//! ListPods and InspectPod.

use std::collections::HashMap;

use gantry_engine::{AppRow, NetworkSummary, Networks, Observer, PodError, PodFilesStamp, PodView, name_and_version};
use gantry_model::id::shown;
use gantry_model::query::PodFilter;
use gantry_model::{ErrorKind, ImageId, Kind as _, NetMode, Phase, PodPrefix};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, InspectPodResponse, ListPodsResponse, Network};
use prost::Message;
use prost::encoding::{encoded_len_varint, key_len};
use tonic::Status;

use super::convert;
use super::detail::Detail;
use super::pod_cache::{Inspected, PodCache, Request};
use crate::status;

/// Maximum bytes of the response to a list.
const MAX_LIST: usize = 64 << 20;

/// The bytes of a list so far: its only field, repeated.
#[derive(Debug, Default)]
pub(super) struct ListSize {
    bytes: usize,
}

impl ListSize {
    /// Adds an element.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the response is too large.
    pub(super) fn add(&mut self, element: &impl Message) -> Result<(), Status> {
        let length = element.encoded_len();
        if self.bytes + length > MAX_LIST {
            let text = format!("the answer has more than {MAX_LIST} bytes: ask with filters, or without detail");
            return Err(Status::resource_exhausted(text));
        }
        self.bytes += key_len(1) + encoded_len_varint(length as u64) + length;
        Ok(())
    }
}

/// The pods that match any of the filters, by id: a `ListPodsResponse`.
pub(super) fn list(observer: &Observer, filters: &[PodFilter], detail: Detail) -> Result<Encoded, Status> {
    let views = observer.pods(filters).map_err(|error| status::from_error(&error))?;
    let mut images = ImageCache::new(observer);
    let mut size = ListSize::default();
    let mut pods = Vec::with_capacity(views.len());
    for view in views {
        let Some(pod) = present_pod(&mut images, &view, filters, detail)? else { continue };
        size.add(&pod)?;
        pods.push(pod);
    }
    Ok(Encoded::from_message(&ListPodsResponse { pods }))
}

/// A pod that matches any of the filters. One that is being removed may have lost its manifest since its row was read:
/// then it is shown as it is now. `None`: it is gone, or matches no more.
fn present_pod(
    images: &mut ImageCache<'_>,
    view: &PodView,
    filters: &[PodFilter],
    detail: Detail,
) -> Result<Option<wire::Pod>, Status> {
    let shown = pod(images, view, detail)?;
    if !lacks_manifest(view, &shown, detail) {
        return Ok(Some(shown));
    }
    let id = view.row.id;
    let all = [PodFilter::default()];
    let filters = if filters.is_empty() { &all } else { filters };
    let may_match = |filter: &&PodFilter| filter.ids.is_empty() || filter.ids.contains(&id);
    let of_pod = |filter: &PodFilter| PodFilter { ids: vec![id], ..filter.clone() };
    let filters: Vec<PodFilter> = filters.iter().filter(may_match).map(of_pod).collect();
    let views = images.observer.pods(&filters).map_err(|error| status::from_error(&error))?;
    // A manifest that is missing again is lost.
    views.first().map(|view| pod(images, view, detail)).transpose()
}

/// Whether a pod is shown without the manifest that pods have in its state.
fn lacks_manifest(view: &PodView, shown: &wire::Pod, detail: Detail) -> bool {
    let has_manifest = match view.row.phase {
        Phase::Prepared { .. } | Phase::Running { .. } | Phase::Exited { .. } | Phase::Starting { .. } => true,
        Phase::Embryo | Phase::Preparing | Phase::AbortedPrepare { .. } | Phase::Garbage { .. } => false,
    };
    has_manifest && detail.manifest.is_some() && shown.manifest.is_empty()
}

/// The pod whose id starts with this text: an `InspectPodResponse`, which the cache keeps if it can.
pub(super) fn inspect(
    observer: &Observer,
    cache: &PodCache,
    request: Request,
    detail: Detail,
) -> Result<Encoded, Status> {
    // Before reading: a commit or another file in between must not be taken for one that was read.
    let epoch = cache.begin();
    let mut view = resolve(observer, &request.id)?;
    let dir = view.dir();
    let stamp = PodFilesStamp::read(&dir).filter(PodFilesStamp::is_settled);
    let mut images = ImageCache::new(observer);
    let mut shown = pod(&mut images, &view, detail)?;
    if lacks_manifest(&view, &shown, detail) {
        // It may have been removed in between.
        view = resolve(observer, &request.id)?;
        shown = pod(&mut images, &view, detail)?;
    }
    let pod = shown;
    let has_manifest = !pod.manifest.is_empty();
    let response = Encoded::from_message(&InspectPodResponse { pod: Some(pod) });
    // A manifest or image that cannot be read now may be readable the next time. If the database was replaced before
    // `begin`, this response came from the old database.
    let are_images_whole = view.row.apps.iter().flat_map(|app| &app.image).all(|image| observer.knows_image(image));
    let is_complete = has_manifest && are_images_whole && observer.is_current();
    if let (Some(epoch), Some(stamp), true) = (epoch, stamp, is_complete) {
        let inspected = Inspected { response: response.clone(), dir, stamp };
        cache.keep(epoch, request, inspected);
    }
    Ok(response)
}

/// The pod whose id starts with this text. Errors have rkt's wording, which its clients show.
pub(super) fn resolve(observer: &Observer, id: &str) -> Result<PodView, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("unable to resolve UUID: UUID cannot be empty"));
    }
    let none = || {
        let id = shown(&id.chars().take(100).collect::<String>().to_lowercase());
        Status::not_found(format!("unable to resolve UUID: no matches found for \"{id}\""))
    };
    let prefix: PodPrefix = id.parse().map_err(|_| none())?;
    observer.pod(&prefix).map_err(|error| match (&error, error.ambiguous()) {
        (PodError::NotFound(_), _) => none(),
        (_, Some(matches)) => {
            Status::invalid_argument(format!("unable to resolve UUID: ambiguous uuid, {matches} matches"))
        }
        (other, None) => status::from_error(other),
    })
}

/// The images of apps, each read once.
struct ImageCache<'a> {
    observer: &'a Observer,
    known: HashMap<ImageId, wire::Image>,
}

impl<'a> ImageCache<'a> {
    fn new(observer: &'a Observer) -> Self {
        Self { observer, known: HashMap::new() }
    }

    /// The image of an app. Its name and version are those from which the pod was made, even if the tag has moved.
    fn image_of(&mut self, app: &AppRow) -> Result<wire::Image, Status> {
        let Some(id) = &app.image else {
            return Ok(wire::Image { name: app.image_name.clone(), ..wire::Image::default() });
        };
        let image = self.stored(id)?;
        // Rows that older versions wrote may have the id in place of a name.
        if app.image_name.contains("sha256:") && !app.image_name.contains('@') {
            return Ok(image);
        }
        let (name, version) = name_and_version(&app.image_name);
        Ok(wire::Image { name: name.to_owned(), version: version.to_owned(), ..image })
    }

    /// Format and id of an image, and the name it has now.
    fn stored(&mut self, id: &ImageId) -> Result<wire::Image, Status> {
        if let Some(image) = self.known.get(id) {
            return Ok(image.clone());
        }
        let (base_format, name, version) = match self.observer.image(id) {
            Ok(view) => (Some(convert::image_format(view.format)), view.name, view.version),
            // An image in use cannot be removed: its row was lost.
            Err(error) if error.kind() == ErrorKind::NotFound => (None, String::new(), "latest".to_owned()),
            Err(error) => return Err(status::from_error(&error)),
        };
        let image = wire::Image { base_format, id: id.to_string(), name, version, ..wire::Image::default() };
        self.known.insert(id.clone(), image.clone());
        Ok(image)
    }
}

fn pod(images: &mut ImageCache<'_>, view: &PodView, detail: Detail) -> Result<wire::Pod, Status> {
    let row = &view.row;
    let supervisor = view.supervisor();
    let started = row.phase.started_at();
    let manifest = match detail.manifest {
        Some(secrets) => images.observer.pod_manifest(row, secrets).map_err(|error| status::from_error(&error))?,
        None => None,
    };
    Ok(wire::Pod {
        id: row.id.to_string(),
        pid: supervisor.and_then(|process| i32::try_from(process.pid).ok()).unwrap_or(-1),
        state: convert::pod_state(&row.phase).into(),
        apps: row.apps.iter().map(|row| app(images, row)).collect::<Result<_, _>>()?,
        networks: if started.is_some() { networks(&row.net, &row.networks)? } else { Vec::new() },
        manifest: manifest.unwrap_or_default(),
        annotations: convert::pairs(&row.user_annotations),
        cgroup: supervisor.map(|_| view.row.cgroup.clone()).unwrap_or_default(),
        created_at: row.created.0,
        started_at: started.map_or(0, |at| at.0),
        gc_marked_at: convert::marked_at(&row.phase).map_or(0, |at| at.0),
    })
}

fn app(images: &mut ImageCache<'_>, row: &AppRow) -> Result<wire::App, Status> {
    let (state, exit_code) = convert::app_state(&row.state);
    Ok(wire::App {
        name: row.name.to_string(),
        image: Some(images.image_of(row)?),
        state: state.into(),
        exit_code,
        annotations: convert::pairs(&row.annotations),
    })
}

/// The networks of a pod that was started: the host's, or those it got. They stay when it has ended.
fn networks(asked: &NetMode, got: &Networks) -> Result<Vec<Network>, Status> {
    if *asked == NetMode::Host {
        return Ok(vec![Network { name: asked.to_string(), ..Network::default() }]);
    }
    // rkt has one field of each kind: the first of several.
    let network = |NetworkSummary { name, ip4, ip6, ports: _ }: NetworkSummary<'_>| {
        let ipv4 = ip4.map(|address| address.to_string()).unwrap_or_default();
        Network { name: name.into_owned(), ipv4, ipv6: ip6.map(|address| address.to_string()).unwrap_or_default() }
    };
    Ok(got.summaries().map_err(|error| status::from_error(&error))?.into_iter().map(network).collect())
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
