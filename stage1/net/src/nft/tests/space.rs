//! A network namespace for a test: held by a process that ends with the test, entered by threads.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::nft::{Monitor, Table, socket};

/// A namespace. It goes when this is dropped, or when the test's process ends however it may.
pub(super) struct Space {
    holder: Child,
}

impl Space {
    pub(super) fn new() -> Self {
        // `cat` ends when the other end of its pipe does.
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need unshare, of util-linux");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "these tests need root, to make network namespaces");
        let space = Self { holder };
        let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert_ne!(std::fs::metadata(space.path()).unwrap().ino(), own, "this would change the host's network");
        space.sh("ip link set lo up");
        space
    }

    pub(super) fn id(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.id())
    }

    /// Does something on a thread that is in it. Sockets made there stay in it.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                    what()
                })
                .join()
                .unwrap()
        })
    }

    /// Runs a script in it and gives what it prints.
    pub(super) fn sh(&self, script: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .args(["sh", "-ec", script])
            .output()
            .expect("these tests need nsenter, of util-linux");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\nfailed (these tests need nft and ip): {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn table(&self) -> Table {
        Table::open(self.within(|| socket().unwrap()), "gantry").unwrap()
    }

    pub(super) fn monitor(&self, ours: &[&str]) -> Monitor {
        Monitor::open(self.within(|| socket().unwrap()), "gantry", ours).unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}
