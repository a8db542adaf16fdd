//! Calls of the Kubernetes CRI by `tests/python/node_client.py`, which shares only the .proto files with gantry.

use serde_json::Value;

use crate::api::Served;
use crate::gantry::Gantry;
use crate::talos;

/// A gantryd that serves rkt's API and the CRI, and the address of the latter. Pods have no network by default.
#[track_caller]
#[must_use]
pub fn serve(g: &Gantry) -> (Served, String) {
    serve_with_network(g, "none")
}

/// The same, with this default network.
#[track_caller]
#[must_use]
pub fn serve_with_network(g: &Gantry, network: &str) -> (Served, String) {
    let address = format!("unix:{}", g.scratch().join("cri.sock").display());
    let config = g.write("gantryd.toml", &format!("gc-interval = '1h'\n[network]\ndefault = '{network}'\n"));
    (g.serve(&["--cri-listen", &address, "--config", &config]), address)
}

/// The reply of a call of RuntimeService.
#[track_caller]
pub fn call(address: &str, method: &str, request: &Value) -> Value {
    talos::call(address, &format!("runtime.v1.RuntimeService/{method}"), request).remove(0)
}

/// The code and the text of a call of RuntimeService that fails.
#[track_caller]
#[must_use]
pub fn failure(address: &str, method: &str, request: &Value) -> (String, String) {
    talos::failure(address, &format!("runtime.v1.RuntimeService/{method}"), request)
}
