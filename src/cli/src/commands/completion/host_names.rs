//! Names of pods, images, networks, volumes and schedules on this host, for completion.

use gantry_model::query::PodQuery;
use gantry_model::{PhaseName, PodId};

use crate::context::Context;
use crate::failure::Failure;

/// The data of a pod that completion shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) phase: PhaseName,
    pub(super) apps: Vec<String>,
    pub(super) image: String,
}

impl Pod {
    /// The id as lists show it.
    pub(super) fn short_id(&self) -> &str {
        self.id.get(..PodId::SHOWN_DIGITS).unwrap_or(&self.id)
    }
}

/// The names on this host. Empty if they cannot be read, because completion cannot report errors.
pub(super) trait HostNames {
    /// The pods, newest first.
    fn pods(&self) -> Vec<Pod>;
    /// Names of images.
    fn images(&self) -> Vec<String>;
    /// Names of networks.
    fn networks(&self) -> Vec<String>;
    /// Names of volumes.
    fn volumes(&self) -> Vec<String>;
    /// Names of schedules.
    fn schedules(&self) -> Vec<String>;
}

/// Reads the names from the store.
pub(super) struct StoreNames<'a>(&'a Context);

impl<'a> StoreNames<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Self(context)
    }

    fn read_pods(&self) -> Result<Vec<Pod>, Failure> {
        let mut pods = self.0.open_to_read()?.list(&PodQuery::default())?;
        pods.reverse();
        let pod = |view: gantry_engine::PodView| Pod {
            id: view.row.id.to_string(),
            name: view.row.name.as_ref().map(ToString::to_string),
            phase: view.row.phase.name(),
            apps: view.row.apps.iter().map(|app| app.name.to_string()).collect(),
            image: view.row.apps.first().map(|app| app.image_name.clone()).unwrap_or_default(),
        };
        Ok(pods.into_iter().map(pod).collect())
    }

    fn read_images(&self) -> Result<Vec<String>, Failure> {
        let images = self.0.open_to_read()?.image_list()?;
        Ok(images.into_iter().flat_map(|image| image.names).collect())
    }

    fn read_volumes(&self) -> Result<Vec<String>, Failure> {
        Ok(self.0.open_to_read()?.volumes()?.into_iter().map(|volume| volume.name.to_string()).collect())
    }

    fn read_schedules(&self) -> Result<Vec<String>, Failure> {
        Ok(self.0.open_to_read()?.schedules()?.into_iter().map(|view| view.row.name.to_string()).collect())
    }

    fn read_networks(&self) -> Result<Vec<String>, Failure> {
        let networks = self.0.open_to_read()?.networks()?;
        Ok(networks
            .into_iter()
            .filter(|network| network.shadowed_by.is_none())
            .filter_map(|network| network.name)
            .collect())
    }
}

impl HostNames for StoreNames<'_> {
    fn pods(&self) -> Vec<Pod> {
        self.read_pods().unwrap_or_default()
    }

    fn images(&self) -> Vec<String> {
        self.read_images().unwrap_or_default()
    }

    fn networks(&self) -> Vec<String> {
        self.read_networks().unwrap_or_default()
    }

    fn volumes(&self) -> Vec<String> {
        self.read_volumes().unwrap_or_default()
    }

    fn schedules(&self) -> Vec<String> {
        self.read_schedules().unwrap_or_default()
    }
}
