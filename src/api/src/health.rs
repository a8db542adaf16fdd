//! grpc.health.v1: whether the server serves, and whether gantryd keeps its directory.

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The server as a whole.
const SERVER: &str = "";
/// The keeper: rows are brought up to the facts, and garbage is collected.
const KEEPER: &str = "gantry.keeper";

/// What is told to those who ask.
#[derive(Clone)]
pub(crate) struct Health {
    reporter: HealthReporter,
    surfaces: &'static [&'static str],
}

impl Health {
    /// All serve; the keeper as it is said.
    pub(crate) async fn new(reporter: HealthReporter, surfaces: &'static [&'static str], keeps: bool) -> Self {
        let health = Self { reporter, surfaces };
        health.set_server(true).await;
        health.set_keeper(keeps).await;
        health
    }

    /// Whether rows are kept true.
    pub(crate) async fn set_keeper(&self, keeps: bool) {
        self.set(KEEPER, keeps).await;
    }

    /// Nothing serves any more. Who watches is told so, and then that nothing more will be told: else it would hold the
    /// end up.
    pub(crate) async fn end(&self) {
        self.set_server(false).await;
        self.set_keeper(false).await;
        let mut reporter = self.reporter.clone();
        for name in [SERVER, KEEPER].iter().chain(self.surfaces) {
            reporter.clear_service_status(name).await;
        }
    }

    async fn set_server(&self, serves: bool) {
        for name in std::iter::once(&SERVER).chain(self.surfaces) {
            self.set(name, serves).await;
        }
    }

    async fn set(&self, name: &str, serves: bool) {
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(name, status).await;
    }
}
