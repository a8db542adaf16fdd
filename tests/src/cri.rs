//! Calls of the Kubernetes CRI by `tests/python/node_client.py`, which shares only the .proto files with gantry.

use serde_json::{Value, json};

use crate::api::Served;
use crate::gantry::Gantry;
use crate::output::json_lines;
use crate::python::run_script;
use crate::talos;

/// A gantryd that serves rkt's API and the CRI, and the address of the latter. Sandboxes have no network.
#[track_caller]
#[must_use]
pub fn serve(g: &Gantry) -> (Served, String) {
    serve_with_network(g, "none")
}

/// The same, with this network for pods and sandboxes.
#[track_caller]
#[must_use]
pub fn serve_with_network(g: &Gantry, network: &str) -> (Served, String) {
    let text = format!("gc-interval = '1h'\n[network]\ndefault = '{network}'\nsandbox-network = '{network}'\n");
    serve_with_config(g, &text)
}

/// The same, with this configuration.
#[track_caller]
#[must_use]
pub fn serve_with_config(g: &Gantry, text: &str) -> (Served, String) {
    let address = format!("unix:{}", g.scratch().join("cri.sock").display());
    let config = g.write("gantryd.toml", text);
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

/// The replies of this many calls of RuntimeService at once; of a call that fails, its `code` and `details`.
#[track_caller]
#[must_use]
pub fn call_parallel(address: &str, method: &str, request: &Value, calls: u32) -> Vec<Value> {
    let (method, calls) = (format!("runtime.v1.RuntimeService/{method}"), calls.to_string());
    let out = run_script("node_client.py", &["--parallel", &calls, address, &method, &request.to_string()]);
    json_lines(&out.stdout)
}

/// A sandbox whose containers run the fixture's program.
#[derive(Debug)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// The address of the CRI.
    pub address: String,
    /// The image of its containers.
    pub image: String,
    config: Value,
    created: std::cell::Cell<u32>,
}

impl Sandbox {
    /// Runs a sandbox of this name.
    #[track_caller]
    #[must_use]
    pub fn run(g: &Gantry, address: &str, name: &str) -> Self {
        Self::run_with(g, address, name, &json!({}))
    }

    /// Runs a sandbox of this name with more fields in its configuration.
    #[track_caller]
    #[must_use]
    pub fn run_with(g: &Gantry, address: &str, name: &str, more: &Value) -> Self {
        let mut config = json!({
            "metadata": { "name": name, "uid": format!("uid-of-{name}"), "namespace": "tests", "attempt": 2 },
            "labels": { "app": name },
        });
        merge(&mut config, more);
        let image = g.fixture();
        let id = id_in(&call(address, "RunPodSandbox", &json!({ "config": config })), "pod_sandbox_id");
        Self { id, address: address.to_owned(), image, config, created: std::cell::Cell::new(0) }
    }

    /// A request that creates a container: the fixture's program with these arguments, and more fields of the
    /// configuration. Its name is new.
    #[must_use]
    pub fn request(&self, args: &[&str], more: &Value) -> Value {
        let number = self.created.replace(self.created.get() + 1);
        let mut config = json!({
            "metadata": { "name": format!("container-{number}"), "attempt": 2 },
            "image": { "image": self.image },
            "command": ["/bin/app"],
            "args": args,
        });
        merge(&mut config, more);
        json!({ "pod_sandbox_id": self.id, "config": config, "sandbox_config": self.config })
    }

    /// Creates a container.
    #[track_caller]
    #[must_use]
    pub fn create(&self, args: &[&str]) -> String {
        self.create_with(args, &json!({}))
    }

    /// Creates a container with more fields in its configuration.
    #[track_caller]
    #[must_use]
    pub fn create_with(&self, args: &[&str], more: &Value) -> String {
        id_in(&call(&self.address, "CreateContainer", &self.request(args, more)), "container_id")
    }

    /// Starts a container.
    #[track_caller]
    pub fn start(&self, id: &str) {
        assert_eq!(call(&self.address, "StartContainer", &json!({ "container_id": id })), json!({}));
    }

    /// Creates a container and starts it.
    #[track_caller]
    #[must_use]
    pub fn launch(&self, args: &[&str]) -> String {
        let id = self.create(args);
        self.start(&id);
        id
    }

    /// Stops the sandbox.
    #[track_caller]
    pub fn stop(&self) {
        assert_eq!(call(&self.address, "StopPodSandbox", &json!({ "pod_sandbox_id": self.id })), json!({}));
    }

    /// Removes the sandbox.
    #[track_caller]
    pub fn remove(&self) {
        assert_eq!(call(&self.address, "RemovePodSandbox", &json!({ "pod_sandbox_id": self.id })), json!({}));
    }
}

/// The status of a container.
#[track_caller]
#[must_use]
pub fn container(address: &str, id: &str) -> Value {
    call(address, "ContainerStatus", &json!({ "container_id": id }))["status"].clone()
}

/// The ids of the containers that a filter selects.
#[track_caller]
#[must_use]
pub fn containers(address: &str, filter: &Value) -> Vec<String> {
    let reply = call(address, "ListContainers", &json!({ "filter": filter }));
    let found = reply["containers"].as_array().cloned().unwrap_or_default();
    found.iter().map(|container| id_in(container, "id")).collect()
}

#[track_caller]
fn id_in(reply: &Value, key: &str) -> String {
    reply[key].as_str().unwrap_or_else(|| panic!("no {key}: {reply}")).to_owned()
}

/// Sets the fields of an object.
fn merge(object: &mut Value, fields: &Value) {
    for (key, value) in fields.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}
