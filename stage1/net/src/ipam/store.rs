//! Allocates, releases and lists leases.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use gantry_model::ErrorKind;

use super::choose::{identity, in_turn, shown};
use super::error::IpamError;
use super::owner::Owner;
use super::store_dir::{Inode, Record, StoreDir};
use super::{MAX_ADDRESSES, MAX_LEASES};
use crate::address::Cidr;
use crate::config::{Range, RangeSet, files, is_name};

/// The leases of one network.
#[derive(Debug)]
pub struct Store {
    dir: StoreDir,
    wait: Duration,
}

/// An address that was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedAddress {
    /// The address, with the prefix of its subnet.
    pub address: Cidr,
    /// The subnet's gateway.
    pub gateway: IpAddr,
}

/// A leased address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// The owner; `None` if a power loss has destroyed its record.
    pub owner: Option<Owner>,
}

impl Store {
    /// Opens the store of a network below the data directory, creating it if necessary. `wait` is the timeout of the
    /// lock.
    ///
    /// # Errors
    ///
    /// The name is invalid, the directory cannot be opened, or it has another format.
    pub fn open(data: BorrowedFd<'_>, network: &str, wait: Duration) -> Result<Self, IpamError> {
        if !is_name(network) {
            return Err(IpamError::Invalid(format!("'{}' is not a network's name", gantry_model::id::shown(network))));
        }
        Ok(Self { dir: StoreDir::open(data, network, wait)?, wait })
    }

    /// Allocates one address of each set to the owner: the requested address in the set, if there is one, else the next
    /// in turn. All or none. Never a network address, broadcast address or gateway.
    ///
    /// # Errors
    ///
    /// A set is exhausted, a requested address is leased ([`IpamError::Taken`]) or cannot be allocated, or the owner
    /// already has addresses, which must be released first.
    pub fn allocate(
        &self,
        owner: &Owner,
        sets: &[RangeSet],
        requested: &[IpAddr],
    ) -> Result<Vec<AssignedAddress>, IpamError> {
        self.allocate_preferring(owner, sets, requested, &[])
    }

    /// As [`Self::allocate`], but where no address of a set is requested, a preferred one that is free comes before the
    /// next in turn.
    ///
    /// # Errors
    ///
    /// As [`Self::allocate`]. A preferred address that is leased or in no set is no error.
    pub fn allocate_preferring(
        &self,
        owner: &Owner,
        sets: &[RangeSet],
        requested: &[IpAddr],
        preferred: &[IpAddr],
    ) -> Result<Vec<AssignedAddress>, IpamError> {
        if sets.is_empty() || sets.len() > MAX_ADDRESSES || requested.len() > sets.len() {
            let problem = format!(
                "{} addresses were requested, but there are {} sets of ranges (1 to {MAX_ADDRESSES} are possible)",
                requested.len(),
                sets.len()
            );
            return Err(IpamError::Invalid(problem));
        }
        let matched = self.match_requested(sets, requested)?;
        let _locked = self.dir.lock(self.wait)?;
        self.undo_incomplete(owner)?;
        let matched = sets.iter().zip(matched).map(|(set, requested)| match requested {
            Some(address) => Ok(Some(address)),
            None => self.find_free(set, preferred),
        });
        let matched = matched.collect::<Result<Vec<_>, _>>()?;
        let chosen = sets.iter().zip(&matched).map(|(set, requested)| self.choose(set, *requested));
        let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<IpAddr> = chosen.iter().map(|(_, address)| *address).collect();
        self.dir.write_record(owner, &addresses)?;
        for ((set, requested), address) in sets.iter().zip(&matched).zip(&addresses) {
            if requested.is_none() {
                self.dir.write_small(&file_name("last", set), &format!("{address}\n"))?;
            }
            if !self.dir.link(owner, *address)? {
                // Only a program that ignores the lock can have created the link.
                self.free(owner)?;
                return Err(self.taken(*address)?);
            }
        }
        chosen.into_iter().map(|(range, address)| assigned(range, address)).collect()
    }

    /// Releases the addresses of the owner and returns them. Idempotent.
    ///
    /// # Errors
    ///
    /// The lock timed out, or a file cannot be accessed.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        let _locked = self.dir.lock(self.wait)?;
        self.dir.remove_temporary()?;
        self.free(owner)
    }

    /// Releases all addresses without a live owner, including those that a crash or a power loss has left. `live` is
    /// called while the lock is held, so the addresses of an owner that is live before their allocation are safe.
    /// Idempotent.
    ///
    /// # Errors
    ///
    /// The lock timed out, or a file cannot be accessed.
    pub fn release_all_but(&self, live: impl Fn(&Owner) -> bool) -> Result<Vec<Lease>, IpamError> {
        let _locked = self.dir.lock(self.wait)?;
        self.dir.clear_exhausted()?;
        self.dir.remove_temporary()?;
        let records = self.records()?;
        let keep: HashSet<Inode> = records.iter().filter(|(_, owner)| live(owner)).map(|(inode, _)| *inode).collect();
        let mut freed = Vec::new();
        for (address, inode) in self.links()? {
            if !keep.contains(&inode) {
                self.dir.unlink(self.dir.addresses.as_fd(), &address.to_string())?;
                freed.push(Lease { address, owner: records.get(&inode).cloned() });
            }
        }
        for owner in records.iter().filter(|(inode, _)| !keep.contains(inode)).map(|(_, owner)| owner) {
            self.dir.unlink(self.dir.owners.as_fd(), &owner.file_name())?;
        }
        freed.sort();
        Ok(freed)
    }

    /// All leased addresses, in order. Takes no lock: concurrent changes may be missing.
    ///
    /// # Errors
    ///
    /// The directory cannot be read or has more than [`MAX_LEASES`] entries.
    pub fn leases(&self) -> Result<Vec<Lease>, IpamError> {
        let links = self.links()?;
        let records = self.records()?;
        let mut leases = Vec::new();
        for (address, inode) in links {
            let owner = records.get(&inode).cloned();
            // A record is removed after its links: without it, the address may have been released since it was read.
            if owner.is_some() || self.dir.holder(address)? == Some(inode) {
                leases.push(Lease { address, owner });
            }
        }
        leases.sort();
        Ok(leases)
    }

    /// The addresses of one owner, in the order of their sets.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        match self.dir.read_record(owner)? {
            None => Ok(Vec::new()),
            Some(record) => self.linked(record.inode, record.addresses.unwrap_or_default()),
        }
    }

    /// Matches the requested addresses with the sets that contain them.
    fn match_requested(&self, sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, IpamError> {
        let impossible = |address: IpAddr, problem: String| {
            let network = &self.dir.network;
            IpamError::Invalid(format!("address {address} cannot be allocated in network '{network}': {problem}"))
        };
        let mut matched = vec![None; sets.len()];
        for &address in requested {
            let index = sets.iter().position(|set| set.iter().any(|range| range.contains(address)));
            let Some((set, slot)) = index.and_then(|index| sets.get(index).zip(matched.get_mut(index))) else {
                let ranges = sets.iter().map(|set| shown(set)).collect::<Vec<_>>().join(", ");
                return Err(impossible(address, format!("it is in none of {ranges}")));
            };
            if set.iter().any(|range| range.gateway == address) {
                return Err(impossible(address, "it is the gateway".into()));
            }
            if let Some(other) = slot.replace(address) {
                return Err(impossible(
                    address,
                    format!("one address of {} is allocated, and {other} was requested too", shown(set)),
                ));
            }
        }
        Ok(matched)
    }

    /// The first of these addresses that is in the set and free.
    fn find_free(&self, set: &[Range], addresses: &[IpAddr]) -> Result<Option<IpAddr>, IpamError> {
        let is_gateway = |address: IpAddr| set.iter().any(|range| range.gateway == address);
        let in_set = |address: IpAddr| set.iter().any(|range| range.contains(address)) && !is_gateway(address);
        for &address in addresses.iter().filter(|address| in_set(**address)) {
            if self.dir.holder(address)?.is_none() {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Chooses the address of a set, and returns it with its range.
    fn choose<'a>(&self, set: &'a [Range], requested: Option<IpAddr>) -> Result<(&'a Range, IpAddr), IpamError> {
        if let Some(address) = requested {
            if self.dir.holder(address)?.is_some() {
                return Err(self.taken(address)?);
            }
            let range = set.iter().find(|range| range.contains(address));
            return range.map(|range| (range, address)).ok_or_else(|| self.exhausted(set));
        }
        let full = file_name("full", set);
        if self.dir.read_small(&full)?.is_some_and(|found| found == identity(set)) {
            return Err(self.exhausted(set));
        }
        let last = self.dir.read_small(&file_name("last", set))?.and_then(|text| text.lines().next()?.parse().ok());
        for (index, address) in in_turn(set, last) {
            if self.dir.holder(address)?.is_none() {
                return set.get(index).map(|range| (range, address)).ok_or_else(|| self.exhausted(set));
            }
        }
        self.dir.write_small(&full, &identity(set))?;
        Err(self.exhausted(set))
    }

    fn exhausted(&self, set: &[Range]) -> IpamError {
        IpamError::Exhausted { network: self.dir.network.clone(), ranges: shown(set) }
    }

    /// The error for a leased address. Finds the owner by reading all records.
    fn taken(&self, address: IpAddr) -> Result<IpamError, IpamError> {
        let holder = self.dir.holder(address)?;
        let owner = holder.and_then(|inode| self.records().ok()?.remove(&inode));
        Ok(IpamError::Taken { address, network: self.dir.network.clone(), owner })
    }

    /// Undoes an allocation that was killed. A complete one is an error: the owner must release it first.
    fn undo_incomplete(&self, owner: &Owner) -> Result<(), IpamError> {
        let Some(Record { inode, addresses }) = self.dir.read_record(owner)? else { return Ok(()) };
        if let Some(addresses) = addresses {
            let linked = self.linked(inode, addresses.clone())?;
            if let Some(address) = linked.first().copied().filter(|_| linked.len() == addresses.len()) {
                let message = format!("{owner} already has address {address} in network '{}'", self.dir.network);
                return Err(IpamError::Failed { message, kind: ErrorKind::AlreadyExists });
            }
        }
        self.free(owner).map(|_| ())
    }

    /// The addresses among these that link to this record.
    fn linked(&self, inode: Inode, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, IpamError> {
        let mut linked = Vec::new();
        for address in addresses {
            if self.dir.holder(address)? == Some(inode) {
                linked.push(address);
            }
        }
        Ok(linked)
    }

    /// Releases the addresses of an owner; the caller holds the lock.
    fn free(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        let Some(Record { inode, addresses }) = self.dir.read_record(owner)? else { return Ok(Vec::new()) };
        let linked = match addresses {
            Some(addresses) => self.linked(inode, addresses)?,
            // The record is damaged: only its links count.
            None => self.links()?.into_iter().filter(|(_, of)| *of == inode).map(|(address, _)| address).collect(),
        };
        if !linked.is_empty() {
            self.dir.clear_exhausted()?;
        }
        for address in &linked {
            self.dir.unlink(self.dir.addresses.as_fd(), &address.to_string())?;
        }
        self.dir.unlink(self.dir.owners.as_fd(), &owner.file_name())?;
        Ok(linked)
    }

    /// The owners of all records.
    fn records(&self) -> Result<HashMap<Inode, Owner>, IpamError> {
        let entries = self.entries(self.dir.owners.as_fd())?;
        Ok(entries.into_iter().filter_map(|(name, inode)| Some((inode, Owner::from_file_name(&name)?))).collect())
    }

    /// All leased addresses with the records that they link to.
    fn links(&self) -> Result<Vec<(IpAddr, Inode)>, IpamError> {
        let entries = self.entries(self.dir.addresses.as_fd())?;
        Ok(entries.into_iter().filter_map(|(name, inode)| Some((name.parse().ok()?, inode))).collect())
    }

    fn entries(&self, dir: BorrowedFd<'_>) -> Result<Vec<(String, Inode)>, IpamError> {
        let entries = files::names_and_inodes(dir, MAX_LEASES).map_err(|e| self.dir.failed("list the directory", e))?;
        entries.ok_or_else(|| {
            IpamError::Invalid(format!("network '{}' has more than {MAX_LEASES} leases", self.dir.network))
        })
    }
}

/// The name of a file of a set, with its first address, which stays the same when ranges are added.
fn file_name(what: &str, set: &[Range]) -> String {
    set.first().map_or_else(|| what.to_owned(), |range| format!("{what}.{}", range.start))
}

fn assigned(range: &Range, address: IpAddr) -> Result<AssignedAddress, IpamError> {
    let address = Cidr::new(address, range.subnet.length()).map_err(|bad| IpamError::Invalid(bad.to_string()))?;
    Ok(AssignedAddress { address, gateway: range.gateway })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
