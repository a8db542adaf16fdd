//! A network namespace for tests of the table: scripts run in it, and functions.

use std::process::Command;

use crate::namespace::Namespace;
use crate::nft::{Monitor, Table, socket};
use crate::test_support::{Net, needs};

/// A namespace. It goes when this is dropped, or when the test's process ends however it may.
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

    /// A bridge as pods get it.
    pub(super) fn bridge(&mut self, name: &str) {
        self.0.bridge(name);
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    /// Does something in it. Sockets made there stay in it.
    pub(super) fn within<T>(&self, what: impl FnOnce() -> T) -> T {
        self.0.namespace.enter(|| Ok(what())).unwrap()
    }

    /// Runs a script in it and gives what it prints.
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
