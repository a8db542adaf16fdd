//! A network namespace for tests of the tables, to run scripts and functions in.

use std::process::Command;

use crate::namespace::Namespace;
use crate::nft::{Monitor, Table, socket};
use crate::test_support::{Net, needs};

/// A network namespace, destroyed on drop and when the test's process ends.
pub(super) struct Space(Net);

impl Space {
    pub(super) fn new() -> Self {
        needs("nft");
        let mut net = Net::new();
        net.socket.loopback_up().unwrap();
        Self(net)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Creates a bridge.
    pub(super) fn bridge(&mut self, name: &str) {
        self.0.bridge(name);
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    /// Runs a function in the namespace. Sockets opened there stay bound to it.
    pub(super) fn within<T>(&self, what: impl FnOnce() -> T) -> T {
        self.0.namespace.enter(|| Ok(what())).unwrap()
    }

    /// Runs a script in the namespace and returns its output.
    pub(super) fn sh(&self, script: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.id()))
            .args(["sh", "-ec", script])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\nfailed: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn table(&self) -> Table {
        Table::open(self.within(|| socket().unwrap()), "gantry").unwrap()
    }

    pub(super) fn monitor(&self, ours: &[&str]) -> Monitor {
        Monitor::open(self.within(|| socket().unwrap()), "gantry", ours).unwrap()
    }
}
