//! The ids of pods with a user namespace: records those that a pod has, and chooses those of `--userns=auto`.
//!
//! Each such pod has a file in its directory with its ids. It is written under a lock, before the pod's row and plan,
//! and removed with the directory: so two pods never get one range, whatever is killed. The ids stay the pod's after
//! its end, for it may be started again.
//!
//! | killed | left | removed by |
//! |---|---|---|
//! | before the record is complete | a temporary file in a directory without a row | `gc`, with the directory |
//! | after it | the record, in a directory without a row | the same |
//!
//! Ranges that the user or a kubelet gives may be those of several pods, as with podman; only the ranges chosen here
//! are one pod's alone.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use gantry_host::file::{is_absent, read_bounded};
use gantry_host::lock::{LockMode, lock_within};
use gantry_model::user_namespace::{DEFAULT_ID_COUNT, DEFAULT_POOL, IdMappings, IdRange, UserNamespaceMode};
use gantry_model::{ErrorKind, PodId};
use serde::{Deserialize, Serialize};

use crate::pods::plan::PlanError;
use crate::pods::prepare::PrepareError;
use crate::{Engine, PodError};

/// The record in the pod directory.
const USER_IDS: &str = "user-ids.json";
/// A record that is being written.
const NEW_USER_IDS: &str = "user-ids.json.new";
/// Maximum size of a record and of a file of subordinate ids, in bytes.
const MAX_SIZE: u64 = 1 << 20;
/// How long other processes may choose ids.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The users whose subordinate ids (subuid(5)) are those of pods: gantry's, or podman's.
const USERS: [&str; 2] = ["gantry", "containers"];

/// The ids of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Assigned {
    ids: IdMappings,
    /// Whether they are this pod's alone.
    exclusive: bool,
}

impl Engine {
    /// Chooses the ids of a pod with a user namespace, and records them in its directory.
    pub(crate) fn assign_user_ids(
        &self,
        id: PodId,
        mode: UserNamespaceMode,
    ) -> Result<Option<IdMappings>, PrepareError> {
        if mode == UserNamespaceMode::Host {
            return Ok(None);
        }
        let pods = self.store.layout().pods_dir();
        let lock = File::open(&pods).map_err(PodError::io("open", &pods))?;
        let locked = lock_within(&lock, LockMode::Exclusive, LOCK_TIMEOUT, |_| Ok(()));
        if !locked.map_err(PodError::io("lock", &pods))? {
            let why = "other commands are choosing the ids of pods: try again";
            return Err(PlanError::new(ErrorKind::Busy, why).into());
        }
        let others = assigned(&pods, id)?;
        let chosen = match mode {
            UserNamespaceMode::Host => return Ok(None),
            UserNamespaceMode::Auto => Assigned { ids: IdMappings::same(self.choose_range(&others)?), exclusive: true },
            UserNamespaceMode::Mapped(ids) => {
                let holder = others.iter().find(|(_, other)| other.exclusive && other.ids.overlaps(ids));
                if let Some((pod, Assigned { ids, .. })) = holder {
                    let why = format!("pod {pod} has the ids {} of the host alone: choose other ids", ids.uids);
                    return Err(PlanError::new(ErrorKind::Refused, why).into());
                }
                Assigned { ids, exclusive: false }
            }
        };
        write(&self.pod_dir(id), &chosen)?;
        Ok(Some(chosen.ids))
    }

    /// A range that no pod has.
    fn choose_range(&self, others: &[(String, Assigned)]) -> Result<IdRange, PlanError> {
        let pools = match self.options.user_ids {
            Some(pool) => vec![pool],
            None => subordinate_ids()?,
        };
        let is_free = |range: &IdRange| {
            let ids = IdMappings::same(*range);
            others.iter().all(|(_, other)| !other.ids.overlaps(ids))
        };
        pools.iter().flat_map(|pool| ranges_of(*pool)).find(is_free).ok_or_else(|| {
            let pools: Vec<String> = pools.iter().map(ToString::to_string).collect();
            let why = format!("no {DEFAULT_ID_COUNT} ids are left for a pod's user namespace in {}", pools.join(", "));
            let remedy =
                "remove pods, or add ids to [user-namespaces] of the configuration, or to /etc/subuid and /etc/subgid";
            PlanError::new(ErrorKind::Exhausted, format!("{why}: {remedy}"))
        })
    }
}

/// The ranges of a pod that a pool has.
fn ranges_of(pool: IdRange) -> impl Iterator<Item = IdRange> {
    (0..pool.length / DEFAULT_ID_COUNT)
        .map(move |number| IdRange { host: pool.host + number * DEFAULT_ID_COUNT, length: DEFAULT_ID_COUNT })
}

/// The ids of all other pods, by the names of their directories.
fn assigned(pods: &Path, own: PodId) -> Result<Vec<(String, Assigned)>, PodError> {
    let mut all = Vec::new();
    let failed = |path: &Path| PodError::io("list the ids of the pods in", path.to_owned());
    for entry in std::fs::read_dir(pods).map_err(failed(pods))? {
        let entry = entry.map_err(failed(pods))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path().join(USER_IDS);
        match read_bounded(&path, MAX_SIZE) {
            _ if name == own.to_string() => {}
            Ok(bytes) => {
                // A damaged record may stand for any range: no other is given to a pod until it is gone.
                let assigned = serde_json::from_slice(&bytes).map_err(io::Error::from).map_err(failed(&path))?;
                all.push((name, assigned));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    Ok(all)
}

fn write(dir: &Path, assigned: &Assigned) -> Result<(), PodError> {
    let (path, temp) = (dir.join(USER_IDS), dir.join(NEW_USER_IDS));
    let failed = || PodError::io("record the ids of the pod in", path.clone());
    let bytes = serde_json::to_vec(assigned).map_err(io::Error::from).map_err(failed())?;
    let mut file = File::create(&temp).map_err(failed())?;
    io::Write::write_all(&mut file, &bytes).map_err(failed())?;
    // A prepared pod outlives a power cut, and with it its ids.
    file.sync_all().map_err(failed())?;
    std::fs::rename(&temp, &path).map_err(failed())
}

/// The ids that /etc/subuid and /etc/subgid both name for [`USERS`], or the default.
fn subordinate_ids() -> Result<Vec<IdRange>, PlanError> {
    let [uids, gids] = ["/etc/subuid", "/etc/subgid"].map(|path| match read_bounded(Path::new(path), MAX_SIZE) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(PlanError::new(ErrorKind::of_io(&error), format!("cannot read {path}: {error}"))),
    });
    Ok(pools(&uids?, &gids?))
}

fn pools(subuid: &str, subgid: &str) -> Vec<IdRange> {
    let of = |user: &str| {
        let common = |uids: &IdRange| -> Vec<IdRange> {
            entries(subgid, user).filter_map(|gids| intersection(*uids, gids)).collect()
        };
        entries(subuid, user).flat_map(|uids| common(&uids)).collect::<Vec<_>>()
    };
    USERS.into_iter().map(of).find(|pools| !pools.is_empty()).unwrap_or_else(|| vec![DEFAULT_POOL])
}

/// The ranges of a user: lines of `USER:FIRST:COUNT`.
fn entries<'a>(text: &'a str, user: &'a str) -> impl Iterator<Item = IdRange> + 'a {
    text.lines().filter_map(move |line| line.trim().strip_prefix(user)?.strip_prefix(':')?.parse().ok())
}

fn intersection(one: IdRange, other: IdRange) -> Option<IdRange> {
    let end = |range: IdRange| u64::from(range.host) + u64::from(range.length);
    let host = one.host.max(other.host);
    let length = end(one).min(end(other)).checked_sub(host.into())?;
    let length = u32::try_from(length).ok().filter(|length| *length > 0)?;
    Some(IdRange { host, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(host: u32, length: u32) -> IdRange {
        IdRange { host, length }
    }

    #[test]
    fn pools_are_in_both_files() {
        let uids =
            "# comment\nroot:1:2\ncontainers:100000:200000\nalice:500000:65536\ncontainers:bad:1\ncontainers:0:9\n";
        let gids = "containers:150000:300000\n";
        assert_eq!(pools(uids, gids), [range(150_000, 150_000)]);
        assert_eq!(pools(uids, "gantry:1:1\n"), [DEFAULT_POOL], "no common ids");
        let both = "containers:1000:70000\ngantry:200000:70000\n";
        assert_eq!(pools(both, both), [range(200_000, 70_000)], "gantry's own come first");
        assert_eq!(pools("", ""), [DEFAULT_POOL]);
    }

    #[test]
    fn ranges_fill_their_pool() {
        let ranges: Vec<IdRange> = ranges_of(range(1000, 3 * 65536 - 1)).collect();
        assert_eq!(ranges, [range(1000, 65536), range(1000 + 65536, 65536)]);
        assert_eq!(ranges_of(DEFAULT_POOL).count(), 4096);
        let last = ranges_of(DEFAULT_POOL).last().unwrap();
        assert_eq!(last.host + (last.length - 1), i32::MAX.unsigned_abs());
    }
}
