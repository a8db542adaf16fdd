//! A data directory on a file system that fills up soon: a small tmpfs or ext4 in a mount namespace of its own,
//! invisible in the machine's mount table.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::gantry::Gantry;
use crate::output::Out;
use crate::running::Running;
use crate::wait::{DEADLINE, wait_for};

/// The disk. A process holds its namespace; dropping this ends the process, and the disk with it.
#[derive(Debug)]
pub struct SmallDisk<'g> {
    gantry: &'g Gantry,
    holder: Running,
    mount: PathBuf,
}

impl<'g> SmallDisk<'g> {
    /// Mounts a tmpfs of this size (`mount -o size=`).
    ///
    /// # Panics
    /// When the mount fails.
    #[must_use]
    #[track_caller]
    pub fn new(gantry: &'g Gantry, size: &str) -> Self {
        Self::mounted(gantry, r#"mount -t tmpfs -o size="$1",mode=0700 small "$2""#, size)
    }

    /// Creates and mounts an ext4 of this size and block size in bytes.
    ///
    /// # Panics
    /// When it cannot be created or mounted.
    #[must_use]
    #[track_caller]
    pub fn ext4(gantry: &'g Gantry, size: &str, block: u32) -> Self {
        let make = format!(
            r#"truncate -s "$1" "$2.img" && mkfs.ext4 -q -F -m 0 -b {block} "$2.img" && mount -o loop "$2.img" "$2""#
        );
        Self::mounted(gantry, &make, size)
    }

    #[track_caller]
    fn mounted(gantry: &'g Gantry, make: &str, size: &str) -> Self {
        let mount = gantry.scratch().join("disk");
        if let Err(error) = fs::create_dir_all(&mount) {
            panic!("cannot make {}: {error}", mount.display());
        }
        let script = format!("{make} && echo mounted && exec cat");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", &script, "sh", size]).arg(&mount);
        // Ends at the end of its input, so also when the test is killed.
        let mut holder = Running::start(&mut command, true);
        holder.wait_for_stdout("mounted");
        Self { gantry, holder, mount }
    }

    /// The data directory as seen from outside.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        let inside = self.mount.strip_prefix("/").unwrap_or(&self.mount);
        Path::new("/proc").join(self.holder.pid().to_string()).join("root").join(inside).join("data")
    }

    /// Runs gantry with its data directory on this disk.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Out {
        self.run_within(DEADLINE, args)
    }

    /// Like [`Self::run`], with another deadline.
    #[track_caller]
    pub fn run_within(&self, time: Duration, args: &[&str]) -> Out {
        let out = self.spawn(args).wait_within(time);
        self.gantry.record_pod_ids(&out.stdout);
        out
    }

    /// Starts gantry with its data directory on this disk, and leaves it running.
    #[must_use]
    #[track_caller]
    pub fn spawn(&self, args: &[&str]) -> Running {
        Running::start(&mut self.inside(&self.gantry.command(&[]), args), false)
    }

    /// Starts a node daemon with its data directory on this disk.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self, args: &[&str]) -> Running {
        let args = [&["--listen=none"], args].concat();
        Running::start(&mut self.inside(&self.gantry.daemon(&[]), &args), false)
    }

    /// The program of this command in the disk's mount namespace, with the data directory on the disk.
    fn inside(&self, model: &Command, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid())).arg("--").arg(model.get_program());
        command.arg("--dir").arg(self.mount.join("data")).args(args);
        for (name, value) in model.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Remounts the disk read-only or writable, as soon as no file on it is being written.
    ///
    /// # Panics
    /// When the remount fails.
    #[track_caller]
    pub fn remount(&self, how: &str) {
        wait_for("the disk to be mounted otherwise", || {
            let mut command = Command::new("nsenter");
            command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid())).args(["--", "mount", "-o"]);
            let out = Running::start(command.arg(format!("remount,{how}")).arg(&self.mount), false).wait();
            (out.code == 0).then_some(())
        });
    }

    /// Writes a file until the disk is full to the last byte.
    ///
    /// # Panics
    /// On any error but a full disk.
    #[track_caller]
    pub fn fill(&self) {
        let path = self.data().join("../filler");
        let filled = File::options().create(true).append(true).open(&path).map(|mut file| {
            let full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::StorageFull;
            for size in [1 << 20, 4096, 1] {
                let block = vec![7u8; size];
                loop {
                    match file.write_all(&block) {
                        Ok(()) => {}
                        Err(error) if full(&error) => break,
                        Err(error) => panic!("cannot fill {}: {error}", path.display()),
                    }
                }
            }
        });
        if let Err(error) = filled {
            panic!("cannot make {}: {error}", path.display());
        }
    }

    /// Deletes the file that [`SmallDisk::fill`] wrote.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn drain(&self) {
        let removed = fs::remove_file(self.data().join("../filler"));
        // ext4 frees the blocks of a deleted file when its journal is committed.
        let drained = removed.and_then(|()| Ok(rustix::fs::syncfs(File::open(self.data())?)?));
        if let Err(error) = drained {
            panic!("cannot delete the filler: {error}");
        }
    }
}
