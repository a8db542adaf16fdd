//! `runtime.v1.ImageService`: the images of the store, which all surfaces and commands share.
//!
//! An image's id is the digest of its manifest for this host, in every call. Its names are `host/name:tag` and
//! `host/name@digest`, where the digest is the one that the tag had at the registry: that of an index if there is one.

mod convert;
mod pull;

use std::sync::Arc;

use gantry_engine::{Engine, Observer, now};
use gantry_model::ImageRef;
use gantry_proto::cri::v1::image_service_server::ImageService;
use gantry_proto::cri::v1::{
    FilesystemIdentifier, FilesystemUsage, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse,
    ImageStatusRequest, ImageStatusResponse, ListImagesRequest, ListImagesResponse, PullImageRequest,
    PullImageResponse, RemoveImageRequest, RemoveImageResponse, StreamImagesRequest, StreamImagesResponse, UInt64Value,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

pub(super) use self::convert::reference;
use self::pull::Pulls;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::status;

/// Images in one message of StreamImages.
const IMAGES_PER_MESSAGE: usize = 100;

/// See the module.
pub(super) struct CriImages {
    context: Arc<Context>,
    writer: Arc<Bridge<Engine>>,
    pulls: Pulls,
}

impl CriImages {
    /// The service of a server.
    pub(super) fn new(context: Arc<Context>, writer: Arc<Bridge<Engine>>) -> Self {
        let pulls = Pulls::new(context.config.settings.clone());
        Self { context, writer, pulls }
    }

    async fn list(&self, peer: Peer, filter: Option<ImageFilter>) -> Result<Vec<Image>, Status> {
        let image = filter.and_then(|filter| filter.image).filter(|spec| !spec.image.is_empty());
        let only = image.map(|spec| convert::reference(Some(spec))).transpose()?;
        let list = move |observer: &Observer| list_images(observer, only.as_ref());
        self.context.reader.call(peer, Weight::Heavy, list).await
    }
}

#[tonic::async_trait]
impl ImageService for CriImages {
    async fn list_images(&self, request: Request<ListImagesRequest>) -> Result<Response<ListImagesResponse>, Status> {
        let (_, extensions, ListImagesRequest { filter }) = request.into_parts();
        let images = self.list(Peer::of(&extensions), filter).await?;
        Ok(Response::new(ListImagesResponse { images }))
    }

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> Result<Response<BoxStream<StreamImagesResponse>>, Status> {
        let (_, extensions, StreamImagesRequest { filter }) = request.into_parts();
        let images = self.list(Peer::of(&extensions), filter).await?;
        let messages: Vec<_> = images
            .chunks(IMAGES_PER_MESSAGE)
            .map(|images| Ok(StreamImagesResponse { images: images.to_vec() }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    /// An image that does not exist is an empty response.
    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let (_, extensions, ImageStatusRequest { image, verbose }) = request.into_parts();
        let reference = convert::reference(image)?;
        let read = move |observer: &Observer| read_status(observer, &reference, verbose);
        self.context.reader.call(Peer::of(&extensions), Weight::Light, read).await.map(Response::new)
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> Result<Response<PullImageResponse>, Status> {
        // The sandbox is for runtimes whose images depend on it.
        let PullImageRequest { image, auth, sandbox_config: _ } = request.into_inner();
        let reference = convert::reference(image)?;
        let credentials = auth.map(convert::credentials).transpose()?.flatten();
        let image_ref = self.pulls.pull(reference, credentials).await?;
        Ok(Response::new(PullImageResponse { image_ref }))
    }

    /// Removes all names of the image. One that does not exist is removed already.
    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let (_, extensions, RemoveImageRequest { image }) = request.into_parts();
        let reference = convert::reference(image)?;
        let remove = move |engine: &Engine| remove_image(engine, &reference);
        self.writer.call(Peer::of(&extensions), Weight::Heavy, remove).await?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        request: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let peer = Peer::of(request.extensions());
        let read = |observer: &Observer| read_fs_info(observer);
        self.context.reader.call(peer, Weight::Heavy, read).await.map(Response::new)
    }
}

fn list_images(observer: &Observer, only: Option<&ImageRef>) -> Result<Vec<Image>, Status> {
    let views = match only {
        Some(reference) => observer.node_image(reference).map(|found| found.into_iter().collect()),
        None => observer.images(&[]),
    };
    let views = views.map_err(|error| status::from_error(&error))?;
    Ok(views.iter().map(convert::image).collect())
}

fn read_status(observer: &Observer, reference: &ImageRef, verbose: bool) -> Result<ImageStatusResponse, Status> {
    let failed = |error| status::from_error(&error);
    let Some(view) = observer.node_image(reference).map_err(failed)? else {
        return Ok(ImageStatusResponse::default());
    };
    let info = match verbose {
        true => convert::info(&view, observer.image_config(&view.row).map_err(failed)?.as_deref()),
        false => Default::default(),
    };
    Ok(ImageStatusResponse { image: Some(convert::image(&view)), info })
}

fn remove_image(engine: &Engine, reference: &ImageRef) -> Result<(), Status> {
    let failed = |error| status::from_error(&error);
    match engine.node_image(reference).map_err(failed)? {
        Some(image) => engine.drop_image(&image.id).map_err(failed),
        None => Ok(()),
    }
}

/// The file system of the layers. That of containers is the same one, so it is not listed apart.
fn read_fs_info(observer: &Observer) -> Result<ImageFsInfoResponse, Status> {
    let (usage, dir) = observer.image_disk_usage().map_err(|error| status::from_error(&error))?;
    let images = FilesystemUsage {
        timestamp: now().0,
        fs_id: Some(FilesystemIdentifier { mountpoint: dir.display().to_string() }),
        used_bytes: Some(UInt64Value { value: usage.bytes }),
        inodes_used: Some(UInt64Value { value: usage.entries }),
    };
    Ok(ImageFsInfoResponse { image_filesystems: vec![images], container_filesystems: Vec::new() })
}
