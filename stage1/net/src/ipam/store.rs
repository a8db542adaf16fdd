//! Giving addresses, taking them back, and listing them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::choose::{identity, in_turn, shown};
use super::error::IpamError;
use super::owner::Owner;
use super::store_dir::{Inode, Record, StoreDir};
use super::{MAX_ADDRESSES, MAX_LEASES};
use crate::address::Cidr;
use crate::config::{Range, RangeSet, files, is_name};

/// The addresses of one network.
#[derive(Debug)]
pub struct Store {
    dir: StoreDir,
    wait: Duration,
}

/// An address a pod has been given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedAddress {
    /// The address, with the prefix of its subnet.
    pub address: Cidr,
    /// The subnet's gateway.
    pub gateway: IpAddr,
}

/// A taken address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Whose it is; `None` when its record is missing, as a power loss may leave it.
    pub owner: Option<Owner>,
}

impl Store {
    /// Opens the store of a network beneath the data directory, making it when it is missing. `wait` is how long any
    /// call waits for others.
    ///
    /// # Errors
    ///
    /// When the name is not a network's, the directory cannot be had, or is of another format.
    pub fn open(data: BorrowedFd<'_>, network: &str, wait: Duration) -> Result<Self, IpamError> {
        if !is_name(network) {
            return Err(IpamError::Invalid(format!("'{}' is not a network's name", gantry_model::id::shown(network))));
        }
        Ok(Self { dir: StoreDir::open(data, network, wait)?, wait })
    }

    /// Gives the owner one address of each set: of those `wanted` the one the set has, else the next in turn. All or none.
    /// Never a network's or broadcast address, never a gateway, never what another has.
    ///
    /// # Errors
    ///
    /// [`IpamError::Exhausted`] when a set has nothing left; [`IpamError::Taken`] and [`IpamError::NotGiven`] name a wanted
    /// address that cannot be had; [`IpamError::Held`] when the owner has addresses, which must be released first.
    pub fn allocate(
        &self,
        owner: &Owner,
        sets: &[RangeSet],
        wanted: &[IpAddr],
    ) -> Result<Vec<AssignedAddress>, IpamError> {
        if sets.is_empty() || sets.len() > MAX_ADDRESSES || wanted.len() > sets.len() {
            let problem = format!(
                "{} addresses were asked for, and {} sets of ranges are there to give them (1 to {MAX_ADDRESSES} are possible)",
                wanted.len(),
                sets.len()
            );
            return Err(IpamError::Invalid(problem));
        }
        let asked = self.match_wanted(sets, wanted)?;
        let _locked = self.dir.lock(self.wait)?;
        self.undo_half_made(owner)?;
        let chosen = sets.iter().zip(&asked).map(|(set, asked)| self.choose(set, *asked));
        let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<IpAddr> = chosen.iter().map(|(_, address)| *address).collect();
        self.dir.write_record(owner, &addresses)?;
        for ((set, asked), address) in sets.iter().zip(&asked).zip(&addresses) {
            if asked.is_none() {
                self.dir.put(&name_of("last", set), &format!("{address}\n"))?;
            }
            if !self.dir.link(owner, *address)? {
                // Only somebody who does not take the lock can have done this.
                self.free(owner)?;
                return Err(self.taken(*address)?);
            }
        }
        chosen.into_iter().map(|(range, address)| assigned(range, address)).collect()
    }

    /// Takes back what the owner has. Returns the addresses that were his; none when he had none.
    ///
    /// # Errors
    ///
    /// When the lock or a file cannot be had. Calling it again goes on where it stopped.
    pub fn release(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        let _locked = self.dir.lock(self.wait)?;
        self.free(owner)
    }

    /// Takes back everything that is not of a live owner, also what a crash or a power loss has left. The question is asked
    /// while the lock is held, so an address given to a pod whose owner is known as live beforehand is safe.
    ///
    /// # Errors
    ///
    /// When the lock or a file cannot be had. Calling it again goes on where it stopped.
    pub fn release_all_but(&self, live: impl Fn(&Owner) -> bool) -> Result<Vec<Lease>, IpamError> {
        let _locked = self.dir.lock(self.wait)?;
        self.dir.forget_full()?;
        self.dir.drop_unfinished()?;
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
            self.dir.unlink(self.dir.owners.as_fd(), &owner.file())?;
        }
        freed.sort();
        Ok(freed)
    }

    /// All taken addresses, in order. Takes no lock: what changes meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read or has more than [`MAX_LEASES`] entries.
    pub fn leases(&self) -> Result<Vec<Lease>, IpamError> {
        let links = self.links()?;
        let records = self.records()?;
        let mut leases = Vec::new();
        for (address, inode) in links {
            let owner = records.get(&inode).cloned();
            // A record goes after its links: without one, the address may have been freed since it was read.
            if owner.is_some() || self.dir.holder(address)? == Some(inode) {
                leases.push(Lease { address, owner });
            }
        }
        leases.sort();
        Ok(leases)
    }

    /// The addresses of one owner, in the order of the sets they were given from.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        match self.dir.record(owner)? {
            None => Ok(Vec::new()),
            Some(record) => self.linked(record.inode, record.addresses.unwrap_or_default()),
        }
    }

    /// Which wanted address goes with which set.
    fn match_wanted(&self, sets: &[RangeSet], wanted: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, IpamError> {
        let not_given =
            |address, problem: String| IpamError::NotGiven { address, network: self.dir.network.clone(), problem };
        let mut asked = vec![None; sets.len()];
        for &address in wanted {
            let index = sets.iter().position(|set| set.iter().any(|range| range.contains(address)));
            let Some((set, slot)) = index.and_then(|index| sets.get(index).zip(asked.get_mut(index))) else {
                let ranges = sets.iter().map(|set| shown(set)).collect::<Vec<_>>().join(", ");
                return Err(not_given(address, format!("it is in none of {ranges}")));
            };
            if set.iter().any(|range| range.gateway == address) {
                return Err(not_given(address, "it is the gateway".into()));
            }
            if let Some(other) = slot.replace(address) {
                return Err(not_given(
                    address,
                    format!("only one address of {} is given, and {other} was asked for too", shown(set)),
                ));
            }
        }
        Ok(asked)
    }

    /// The address for a set and the range it is of.
    fn choose<'a>(&self, set: &'a [Range], asked: Option<IpAddr>) -> Result<(&'a Range, IpAddr), IpamError> {
        if let Some(address) = asked {
            if self.dir.holder(address)?.is_some() {
                return Err(self.taken(address)?);
            }
            let range = set.iter().find(|range| range.contains(address));
            return range.map(|range| (range, address)).ok_or_else(|| self.exhausted(set));
        }
        let full = name_of("full", set);
        if self.dir.small(&full)?.is_some_and(|found| found == identity(set)) {
            return Err(self.exhausted(set));
        }
        let last = self.dir.small(&name_of("last", set))?.and_then(|text| text.lines().next()?.parse().ok());
        for (index, address) in in_turn(set, last) {
            if self.dir.holder(address)?.is_none() {
                return set.get(index).map(|range| (range, address)).ok_or_else(|| self.exhausted(set));
            }
        }
        self.dir.put(&full, &identity(set))?;
        Err(self.exhausted(set))
    }

    fn exhausted(&self, set: &[Range]) -> IpamError {
        IpamError::Exhausted { network: self.dir.network.clone(), ranges: shown(set) }
    }

    /// That an address is taken, and by whom, which takes a look at all owners.
    fn taken(&self, address: IpAddr) -> Result<IpamError, IpamError> {
        let holder = self.dir.holder(address)?;
        let by = holder.and_then(|inode| self.records().ok()?.remove(&inode));
        let by = by.map_or_else(|| "an owner without a record".to_owned(), |owner| owner.to_string());
        Ok(IpamError::Taken { address, network: self.dir.network.clone(), by })
    }

    /// A killed allocation is undone; a whole one means that the owner must not ask again.
    fn undo_half_made(&self, owner: &Owner) -> Result<(), IpamError> {
        let Some(Record { inode, addresses }) = self.dir.record(owner)? else { return Ok(()) };
        if let Some(addresses) = addresses {
            let linked = self.linked(inode, addresses.clone())?;
            if let Some(address) = linked.first().copied().filter(|_| linked.len() == addresses.len()) {
                let network = self.dir.network.clone();
                return Err(IpamError::Held { owner: owner.to_string(), address, network });
            }
        }
        self.free(owner).map(|_| ())
    }

    /// Those of the addresses that are this record's.
    fn linked(&self, inode: Inode, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, IpamError> {
        let mut linked = Vec::new();
        for address in addresses {
            if self.dir.holder(address)? == Some(inode) {
                linked.push(address);
            }
        }
        Ok(linked)
    }

    /// Takes back under the lock.
    fn free(&self, owner: &Owner) -> Result<Vec<IpAddr>, IpamError> {
        let Some(Record { inode, addresses }) = self.dir.record(owner)? else { return Ok(Vec::new()) };
        let linked = match addresses {
            Some(addresses) => self.linked(inode, addresses)?,
            // A torn record: only its links tell.
            None => self.links()?.into_iter().filter(|(_, of)| *of == inode).map(|(address, _)| address).collect(),
        };
        if !linked.is_empty() {
            self.dir.forget_full()?;
        }
        for address in &linked {
            self.dir.unlink(self.dir.addresses.as_fd(), &address.to_string())?;
        }
        self.dir.unlink(self.dir.owners.as_fd(), &owner.file())?;
        Ok(linked)
    }

    /// All records with their owners.
    fn records(&self) -> Result<HashMap<Inode, Owner>, IpamError> {
        let entries = self.entries(self.dir.owners.as_fd())?;
        Ok(entries.into_iter().filter_map(|(name, inode)| Some((inode, Owner::of_file(&name)?))).collect())
    }

    /// All taken addresses with the records they link to.
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

/// The set a small file is about, by its first address: that stays when ranges are added.
fn name_of(what: &str, set: &[Range]) -> String {
    set.first().map_or_else(|| what.to_owned(), |range| format!("{what}.{}", range.start))
}

fn assigned(range: &Range, address: IpAddr) -> Result<AssignedAddress, IpamError> {
    let address = Cidr::new(address, range.subnet.length()).map_err(|bad| IpamError::Invalid(bad.to_string()))?;
    Ok(AssignedAddress { address, gateway: range.gateway })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
