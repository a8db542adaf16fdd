//! The calls about images.

use gantry_proto::talos::machine as wire;
use tonic::{Request, Response, Status};

use super::images::{self, PullReference};
use super::node::{MessageStream, Node};
use crate::bridge::Weight;

impl Node {
    /// ImageList.
    pub(super) async fn image_list(
        &self,
        request: Request<wire::ImageListRequest>,
    ) -> Result<Response<MessageStream<wire::ImageListResponse>>, Status> {
        let open = async |peer, wire::ImageListRequest { namespace }| {
            let rows = match images::has_images(namespace)? {
                true => self.context.reader.call(peer, Weight::Heavy, images::list).await?,
                false => Vec::new(),
            };
            Ok(tokio_stream::iter(rows.into_iter().map(Ok)))
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// ImagePull.
    pub(super) async fn image_pull(
        &self,
        request: Request<wire::ImagePullRequest>,
    ) -> Result<Response<wire::ImagePullResponse>, Status> {
        let pull = async |_, request| {
            let reference = PullReference::parse(&request)?;
            let options = self.context.config.settings.current().options.clone();
            images::pull(options, &self.pulls, reference).await?;
            Ok(wire::ImagePull::default())
        };
        let messages = self.unary(request, pull).await?;
        Ok(Response::new(wire::ImagePullResponse { messages }))
    }
}
