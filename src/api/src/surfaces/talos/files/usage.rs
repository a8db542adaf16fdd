//! DiskUsage: the sizes of files and directories, as `du --apparent-size` counts them.

use std::collections::HashSet;

use gantry_host::file_id::FileId;
use gantry_proto::talos::machine::{DiskUsageInfo, DiskUsageRequest};
use rustix::fs::Stat;
use tonic::Status;

use super::access::{FileAccess, NamedFile};
use super::list::full_name;
use super::walk::{Visitor, WalkFile, walk};
use super::{FileJob, FileSender, Interrupted};
use crate::request::ValueBudget;

/// Maximum files with several names that are remembered; the names of further ones count each.
const MAX_LINKED_FILES: usize = 1 << 18;

/// The files that a request selects.
#[derive(Debug)]
pub(in super::super) struct UsageSelection {
    access: FileAccess,
    paths: Vec<String>,
    /// Whether files get a row, too.
    all: bool,
    /// Files at this depth and below have no row; `None`: no limit.
    depth_limit: Option<usize>,
    /// Positive: smaller files have no row. Negative: larger files have none.
    threshold: i64,
}

impl UsageSelection {
    /// Reads the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there are too many paths.
    pub(in super::super) fn parse(access: FileAccess, request: DiskUsageRequest) -> Result<Self, Status> {
        let DiskUsageRequest { recursion_depth, all, threshold, paths } = request;
        let mut paths = ValueBudget::default().check_texts("paths", paths)?;
        if paths.is_empty() {
            paths.push(String::new());
        }
        let depth_limit = usize::try_from(recursion_depth).ok().filter(|depth| *depth > 0);
        Ok(Self { access, paths, all, depth_limit, threshold })
    }

    fn shows(&self, depth: usize, size: i64) -> bool {
        let within_threshold = match self.threshold {
            0 => true,
            1.. => size >= self.threshold,
            _ => size <= self.threshold.saturating_neg(),
        };
        within_threshold && self.depth_limit.is_none_or(|limit| depth < limit)
    }
}

impl FileJob<DiskUsageInfo> for UsageSelection {
    fn run(self, sender: &FileSender<DiskUsageInfo>) -> Result<(), Interrupted> {
        let mut linked = HashSet::new();
        for path in &self.paths {
            let root = match self.access.open("lstat", path) {
                Ok(root) => root,
                Err(status) => {
                    let error = status.message().to_owned();
                    let name = path.clone();
                    sender.send(DiskUsageInfo {
                        relative_name: name.clone(),
                        name,
                        error,
                        ..DiskUsageInfo::default()
                    })?;
                    continue;
                }
            };
            let (sums, linked) = (Vec::new(), &mut linked);
            walk(&root, &mut Counter { selection: &self, root: &root, sender, sums, linked, is_pseudo: false })?;
        }
        Ok(())
    }
}

struct Counter<'a> {
    selection: &'a UsageSelection,
    root: &'a NamedFile,
    sender: &'a FileSender<DiskUsageInfo>,
    /// The sizes so far of the directories above the current file.
    sums: Vec<i64>,
    /// The counted files that have several names.
    linked: &'a mut HashSet<FileId>,
    /// Whether the root is in a file system without a disk.
    is_pseudo: bool,
}

impl Counter<'_> {
    fn send(&self, path: &[u8], depth: usize, size: i64) -> Result<(), Interrupted> {
        if !self.selection.shows(depth, size) {
            return Ok(());
        }
        self.sender.send(DiskUsageInfo { size, ..self.row(path) })
    }

    fn row(&self, path: &[u8]) -> DiskUsageInfo {
        let relative_name = if path.is_empty() { ".".into() } else { String::from_utf8_lossy(path) };
        let relative_name = relative_name.into_owned();
        DiskUsageInfo { name: full_name(self.root, path), relative_name, ..DiskUsageInfo::default() }
    }

    fn add(&mut self, size: i64) {
        if let Some(sum) = self.sums.last_mut() {
            *sum = sum.saturating_add(size);
        }
    }

    /// Whether the file was counted under another name.
    fn is_counted(&mut self, stat: &Stat) -> bool {
        let is_full = self.linked.len() >= MAX_LINKED_FILES;
        stat.st_nlink > 1 && !is_full && !self.linked.insert(FileId::from(stat))
    }
}

impl Visitor for Counter<'_> {
    fn enter(&mut self, file: &WalkFile<'_>) -> Result<bool, Interrupted> {
        let size = i64::try_from(file.size()).unwrap_or(i64::MAX);
        if file.depth == 0 {
            self.is_pseudo = file.is_pseudo;
        }
        if file.is_dir() {
            self.sums.push(size);
            return Ok(self.is_pseudo || !file.is_pseudo);
        }
        if self.is_counted(&file.stat) {
            return Ok(false);
        }
        self.add(size);
        // A file that the request names has a row in any case.
        if self.selection.all || file.depth == 0 {
            self.send(file.path, file.depth, size)?;
        }
        Ok(false)
    }

    fn leave(&mut self, directory: &WalkFile<'_>) -> Result<(), Interrupted> {
        let size = self.sums.pop().unwrap_or(0);
        self.add(size);
        self.send(directory.path, directory.depth, size)
    }

    fn report(&mut self, path: &[u8], _depth: usize, text: &str) -> Result<(), Interrupted> {
        self.sender.send(DiskUsageInfo { error: text.to_owned(), ..self.row(path) })
    }

    fn check(&mut self) -> Result<(), Interrupted> {
        self.sender.check()
    }
}
