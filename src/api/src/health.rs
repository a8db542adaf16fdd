//! grpc.health.v1: the state of the server, of each service, and of gantryd's reconciliation.

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The server as a whole.
const SERVER: &str = "";
/// Whether gantryd reconciles pods and collects garbage. Named after the program; it is no gRPC service.
pub(crate) const DAEMON: &str = "gantryd";

/// Reports to health clients.
#[derive(Clone)]
pub(crate) struct Health {
    reporter: HealthReporter,
    services: Vec<&'static str>,
}

impl Health {
    /// Reports the server and these services as serving.
    pub(crate) async fn new(reporter: HealthReporter, services: Vec<&'static str>, reconciles: bool) -> Self {
        let health = Self { reporter, services };
        health.set_server(true).await;
        health.set_reconciles(reconciles).await;
        health
    }

    /// Reports whether gantryd reconciles.
    pub(crate) async fn set_reconciles(&self, reconciles: bool) {
        self.set(DAEMON, reconciles).await;
    }

    /// Reports that nothing serves any more, then ends the streams of watching clients, which would delay the drain.
    pub(crate) async fn end(&self) {
        self.set_server(false).await;
        self.set_reconciles(false).await;
        let mut reporter = self.reporter.clone();
        for name in [SERVER, DAEMON].iter().chain(&self.services) {
            reporter.clear_service_status(name).await;
        }
    }

    async fn set_server(&self, serves: bool) {
        for name in std::iter::once(&SERVER).chain(&self.services) {
            self.set(name, serves).await;
        }
    }

    async fn set(&self, name: &str, serves: bool) {
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(name, status).await;
    }
}
