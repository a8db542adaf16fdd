//! Creates, changes and removes the tables.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::address::Prefix;
use crate::channel::Channel;
use crate::error::{Attempt, Error as NetlinkError};
use crate::message::Batch;

use super::channel::{Failure, Reply};
use super::error::{Error, Result};
use super::family::Family;
use super::sets::{Element, Set, elements, host_port_from_element, prefix_element};
use super::state::{Access, Entries, State, check_text};
use super::wire::{self, FIXED, NFTA_GEN_ID, NFTA_TABLE, Transaction, message};

/// How often a transaction is retried if nftables changed since the query it relies on.
const MAX_ATTEMPTS: u32 = 16;
/// Queries per batch; their replies must fit into the receive buffer.
const MAX_QUERIES: usize = 64;

/// gantry's tables of one name in a network namespace: `inet NAME`, and `bridge NAME` for anti-spoofing.
pub struct Table {
    pub(super) channel: Channel,
    pub(super) name: String,
    /// Whether the kernel supports nftables for bridges, once known.
    bridges: Option<bool>,
    /// The number of the bridge family; tests use one that no kernel has.
    pub(super) bridge: u8,
}

impl Table {
    /// The tables `inet NAME` and `bridge NAME`, which need not exist, over a [`super::socket`]. A name is up to 31
    /// letters, digits, `_` and `-`, and starts with a letter.
    ///
    /// # Errors
    /// [`Error::invalid`] if the name is invalid.
    pub fn open(socket: OwnedFd, name: &str) -> Result<Self> {
        check_name(name)?;
        let bridge = Family::Bridge.number();
        Ok(Self { channel: Channel::new(socket), name: name.to_owned(), bridges: None, bridge })
    }

    /// The generation of nftables in this network namespace, which changes with every transaction of any program.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn generation(&mut self) -> Result<u32> {
        let mut batch = Batch::new();
        wire::write_query(&mut batch, message::GETGEN, 0, Family::Inet.number(), |_| {});
        let what = "read the generation of nftables";
        let mut generation = None;
        self.channel.query(batch, what, |answer| match answer {
            Reply::Message(message) => {
                let (_, attributes) = message.split(FIXED).attempt(|| what)?;
                generation = attributes.get(NFTA_GEN_ID).and_then(|id| id.be32());
                Ok(())
            }
            Reply::Failure(errno) => Err(Error::kernel(what, errno)),
        })?;
        generation.ok_or_else(|| Error::malformed(what, "a reply without it"))
    }

    /// Replaces the contents of the tables in one transaction, so no packet passes without rules. Established
    /// connections continue. The bridge table exists afterwards only if there are anti-spoofing entries.
    ///
    /// Entries that other processes added after `state` was read are lost: see [`Self::ensure_at_generation`].
    ///
    /// # Errors
    /// [`Error::invalid`]; errors of the kernel.
    pub fn ensure(&mut self, state: &State) -> Result<()> {
        self.replace(state, None)
    }

    /// As [`Self::ensure`], but fails with [`Error::Changed`] if nftables changed since [`Self::generation`] returned
    /// this number. Reading the generation before computing the state prevents lost updates.
    ///
    /// # Errors
    /// As [`Self::ensure`]; [`Error::Changed`].
    pub fn ensure_at_generation(&mut self, state: &State, generation: u32) -> Result<()> {
        match self.replace(state, Some(generation)) {
            Err(error) if error.errno() == Some(Errno::from_raw_os_error(ERESTART)) => Err(Error::Changed),
            done => done,
        }
    }

    fn replace(&mut self, state: &State, generation: Option<u32>) -> Result<()> {
        state.check()?;
        let all = elements(state);
        let what = format!("replace the table {}", self.name);
        loop {
            let guarded = !state.anti_spoofing.is_empty() && self.bridges != Some(false);
            let there = self.exists(Family::Bridge)?;
            let mut change = Transaction::new(&self.name, generation, self.bridge);
            for (family, old, new) in [(Family::Inet, true, true), (Family::Bridge, there, guarded)] {
                if old {
                    // Adding it first makes the removal succeed whether the table exists or not.
                    change.add_table(family);
                    change.remove_table(family);
                }
                if new {
                    change.add_layout(family);
                    change.add(all.iter().filter(|element| element.set.family() == family), false);
                }
            }
            match self.channel.transact(change, &what) {
                Ok(()) => {
                    self.bridges = if guarded { Some(true) } else { self.bridges };
                    return Ok(());
                }
                // The transaction adds all objects that it refers to, so the missing part is the kernel's.
                Err(failure) if guarded && lacks_bridges(&failure) => self.bridges = Some(false),
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Whether the kernel supports the bridge table. Without `CONFIG_NF_TABLES_BRIDGE`, [`Self::ensure`] and
    /// [`Self::add`] skip anti-spoofing entries and [`Self::read`] returns none.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn supports_bridge_tables(&mut self) -> Result<bool> {
        if let Some(known) = self.bridges {
            return Ok(known);
        }
        let can = self.exists(Family::Bridge)? || self.try_bridges()?;
        self.bridges = Some(can);
        Ok(can)
    }

    /// Probes for bridge support with a transaction whose last message always fails, so that nothing is committed.
    fn try_bridges(&mut self) -> Result<bool> {
        let mut change = Transaction::new(&self.name, None, self.bridge);
        change.add_layout(Family::Bridge);
        change.add_new_table(Family::Bridge);
        match self.channel.transact(change, "probe for nftables of bridges") {
            Ok(()) => Ok(true),
            Err(failure) if lacks_bridges(&failure) => Ok(false),
            Err(failure) if failure.error.is(Errno::EXIST) => Ok(true),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Adds entries in one transaction. Existing entries stay; networks and interfaces get the properties given here.
    /// A port that another owner forwards to the same destination (a dead pod that had the address before) changes
    /// owner. The addresses of an existing anti-spoofing entry stay allowed: [`Self::remove`] it first.
    ///
    /// Returns whether networks of these entries have further prefixes in the table, from an earlier configuration.
    ///
    /// # Errors
    /// [`Error::Taken`] if a host port is forwarded elsewhere; [`Error::Missing`] if the table does not exist or lacks
    /// parts (call [`Self::ensure`]); [`Error::Overlap`]; [`Error::invalid`]; [`Error::Contended`]; errors of the
    /// kernel.
    pub fn add(&mut self, entries: &Entries) -> Result<bool> {
        entries.check()?;
        let all = elements(entries);
        if all.is_empty() {
            return Ok(false);
        }
        let mut networks = self.compare_networks(entries)?;
        let variants = variants(entries);
        let unwanted: Vec<&Element> = variants.difference(&all).collect();
        let (ports, others): (Vec<&Element>, Vec<&Element>) = all.iter().partition(|element| element.is_port());
        let (anti_spoofing, others): (Vec<&Element>, Vec<&Element>) =
            others.into_iter().partition(|element| element.set.family() == Family::Bridge);
        // The first attempt assumes that no port exists, which is the usual case.
        let mut fresh = ports.clone();
        let mut stale = Vec::new();
        // A rejected transaction costs an RCU grace period, so query first. The bridge table never exists alone.
        let mut makes_bridge_table = !anti_spoofing.is_empty() && !self.exists(Family::Bridge)?;
        if (makes_bridge_table || anti_spoofing.is_empty()) && !self.exists(Family::Inet)? {
            return Err(Error::Missing { table: self.name.clone() });
        }
        for _ in 0..MAX_ATTEMPTS {
            let adds_bridges = !anti_spoofing.is_empty() && self.bridges != Some(false);
            let mut change = Transaction::new(&self.name, None, self.bridge);
            // Exclusively: otherwise the kernel would silently accept a prefix that another network has got since.
            let (new, present): (Vec<&Element>, Vec<&Element>) =
                others.iter().copied().partition(|element| networks.missing.contains(element));
            change.add(new, true);
            change.add(present, false);
            // Adding them first makes the removal succeed whether they exist or not.
            change.add(unwanted.iter().copied(), false);
            change.remove(unwanted.iter().copied());
            // The transaction fails here if the value is not the one that was read.
            change.add(stale.iter().copied(), false);
            change.remove(stale.iter().copied());
            change.add(stale.iter().copied(), true);
            change.add(fresh.iter().copied(), true);
            if makes_bridge_table && adds_bridges {
                change.add_layout(Family::Bridge);
            }
            change.add(anti_spoofing.iter().copied().filter(|_| adds_bridges), false);
            if change.is_empty() {
                return Ok(networks.have_other_prefixes);
            }
            match self.channel.transact(change, &format!("add to the table {}", self.name)) {
                Ok(()) => return Ok(networks.have_other_prefixes),
                Err(failure) if makes_bridge_table && lacks_bridges(&failure) => {
                    self.bridges = Some(false);
                    continue;
                }
                // The bridge table was removed in the meantime with the last anti-spoofing entry.
                Err(failure) if !makes_bridge_table && is_of_bridges(&failure, Errno::NOENT) => {
                    makes_bridge_table = true;
                    continue;
                }
                Err(failure)
                    if is_of_host_port(&failure)
                        && (failure.error.is(Errno::EXIST) || failure.error.is(Errno::BUSY)) => {}
                Err(failure) if is_of_network(&failure) => {
                    let now = self.compare_networks(entries)?;
                    if now == networks {
                        // The table has prefixes that belong to no network: a reload replaces it.
                        return Err(Error::Missing { table: self.name.clone() });
                    }
                    networks = now;
                    continue;
                }
                Err(failure) => return Err(self.explain(failure.error)),
            }
            (fresh, stale) = self.sort_ports(&ports)?;
        }
        Err(Error::Contended { what: format!("add to the table {}", self.name) })
    }

    /// Compares the networks of these entries with those in the table.
    fn compare_networks(&mut self, entries: &Entries) -> Result<NetworkComparison> {
        if entries.networks.is_empty() {
            return Ok(NetworkComparison::default());
        }
        let present = self.prefixes()?;
        entries.check_overlaps_with(&present)?;
        let mut comparison = NetworkComparison::default();
        for (name, network) in &entries.networks {
            let there = present.get(name).map(|network| &network.prefixes);
            comparison.have_other_prefixes |= there.is_some_and(|there| !there.is_subset(&network.prefixes));
            let is_missing = |prefix: &&Prefix| there.is_none_or(|there| !there.contains(prefix));
            comparison
                .missing
                .extend(network.prefixes.iter().filter(is_missing).map(|prefix| prefix_element(name, *prefix)));
        }
        Ok(comparison)
    }

    /// Sorts these ports into missing ones and those of another owner.
    fn sort_ports<'e>(&mut self, ports: &[&'e Element]) -> Result<(Vec<&'e Element>, Vec<&'e Element>)> {
        let (mut fresh, mut stale) = (Vec::new(), Vec::new());
        for (wanted, there) in ports.iter().zip(self.read_existing(ports)?) {
            match there {
                None => fresh.push(*wanted),
                Some(there) if there.data != wanted.data => return Err(self.taken(wanted, &there)),
                Some(there) if there.comment != wanted.comment => stale.push(*wanted),
                Some(_) => {}
            }
        }
        Ok((fresh, stale))
    }

    fn taken(&self, wanted: &Element, there: &Element) -> Error {
        match (host_port_from_element(wanted), host_port_from_element(there)) {
            (Some((port, _)), Some((_, forward))) => Error::Taken { port, to: forward.to, owner: forward.owner },
            _ => Error::malformed(&format!("read the table {}", self.name), "a host port without a destination"),
        }
    }

    fn explain(&self, error: NetlinkError) -> Error {
        match error {
            // The transaction refers only to the table and its sets.
            NetlinkError::Kernel { errno: Errno::NOENT, .. } => Error::Missing { table: self.name.clone() },
            other => other.into(),
        }
    }

    /// Whether the tables contain all of these entries, with the same properties of their networks and interfaces:
    /// whether [`Self::add`] would change nothing. Cheaper than adding them again: to add an element to a set of
    /// ranges, the kernel copies the set first. Where the kernel does not support bridge tables, anti-spoofing entries
    /// are missing.
    ///
    /// # Errors
    /// [`Error::invalid`]; errors of the kernel.
    pub fn contains(&mut self, entries: &Entries) -> Result<bool> {
        entries.check()?;
        let (all, variants) = (elements(entries), variants(entries));
        let queried: Vec<&Element> = all.union(&variants).collect();
        let present = self.read_existing(&queried)?;
        Ok(queried
            .iter()
            .zip(present)
            .all(|(element, present)| (present.as_ref() == Some(*element)) == all.contains(*element)))
    }

    /// Removes entries. Ignores entries that do not exist or belong to another owner or network, and a missing table.
    /// Removes interfaces and networks whatever their access and masquerading.
    ///
    /// # Errors
    /// [`Error::invalid`]; [`Error::Contended`]; errors of the kernel.
    pub fn remove(&mut self, entries: &Entries) -> Result<()> {
        entries.check()?;
        let (all, variants) = (elements(entries), variants(entries));
        let all: Vec<&Element> = all.union(&variants).collect();
        let what = format!("remove from the table {}", self.name);
        for _ in 0..MAX_ATTEMPTS {
            let there = self.read_existing(&all)?;
            let ours: Vec<&Element> = all
                .iter()
                .zip(there)
                .filter(|(ours, there)| there.as_ref() == Some(**ours))
                .map(|(ours, _)| *ours)
                .collect();
            if ours.is_empty() {
                return Ok(());
            }
            let mut change = Transaction::new(&self.name, None, self.bridge);
            change.remove(ours);
            match self.channel.transact(change, &what) {
                // Another process removed one in the meantime.
                Err(failure) if failure.error.is(Errno::NOENT) => {}
                done => return Ok(done?),
            }
        }
        Err(Error::Contended { what })
    }

    /// Removes both tables, which need not exist.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn delete(&mut self) -> Result<()> {
        let bridges = self.exists(Family::Bridge)?;
        let mut change = Transaction::new(&self.name, None, self.bridge);
        for family in Family::ALL.into_iter().filter(|family| *family == Family::Inet || bridges) {
            change.add_table(family);
            change.remove_table(family);
        }
        Ok(self.channel.transact(change, &format!("remove the table {}", self.name))?)
    }

    /// Reads the existing elements with the keys of these elements.
    fn read_existing(&mut self, wanted: &[&Element]) -> Result<Vec<Option<Element>>> {
        let what = format!("read elements of the table {}", self.name);
        let mut all = Vec::with_capacity(wanted.len());
        for chunk in wanted.chunks(MAX_QUERIES) {
            let mut batch = Batch::new();
            chunk.iter().for_each(|element| wire::write_element_query(&mut batch, &self.name, element));
            self.channel.query(batch, &what, |answer| {
                match answer {
                    Reply::Failure(Errno::NOENT) => all.push(None),
                    Reply::Failure(errno) => return Err(Error::kernel(&what, errno)),
                    Reply::Message(message) => {
                        let wanted = wanted.get(all.len());
                        let wanted = wanted.ok_or_else(|| Error::malformed(&what, "more replies than queries"))?;
                        let read = wire::read_elements(wanted.set, &message);
                        let read = read.attempt(|| &what)?;
                        all.push(read.into_iter().next().map(|one| one.element).map(|mut there| {
                            // The query for a range of a single field returns its first key; ranges do not overlap.
                            if wanted.set.is_interval() && !wanted.set.is_ranges() {
                                there.end.clone_from(&wanted.end);
                            }
                            there
                        }));
                    }
                }
                Ok(())
            })?;
        }
        Ok(all)
    }

    /// Whether the table of this family exists.
    pub(super) fn exists(&mut self, family: Family) -> Result<bool> {
        let what = format!("look for the table {}", self.name);
        let mut batch = Batch::new();
        wire::write_query(&mut batch, message::GETTABLE, 0, family.number(), |batch| {
            batch.text(NFTA_TABLE, &self.name);
        });
        let mut there = false;
        self.channel.query(batch, &what, |answer| match answer {
            Reply::Message(_) => {
                there = true;
                Ok(())
            }
            Reply::Failure(Errno::NOENT) => Ok(()),
            Reply::Failure(errno) => Err(Error::kernel(&what, errno)),
        })?;
        Ok(there)
    }
}

/// The names of the `inet` tables with this prefix that may belong to a gantry instance, in the socket's network
/// namespace.
///
/// # Errors
/// [`Error::Contended`] if the tables changed during every attempt; errors of the kernel.
pub fn table_names(socket: OwnedFd, prefix: &str) -> Result<Vec<String>> {
    let mut channel = Channel::new(socket);
    let what = "list the tables";
    for _ in 0..MAX_ATTEMPTS {
        let mut names = Vec::new();
        let whole = channel.list(
            message::GETTABLE,
            Family::Inet.number(),
            what,
            |_| {},
            |message| {
                let (fixed, attributes) = message.split(FIXED).attempt(|| what)?;
                let name = attributes.get(NFTA_TABLE).and_then(|name| name.text()).unwrap_or_default();
                let is_inet = fixed.first() == Some(&Family::Inet.number());
                if is_inet && name.starts_with(prefix) && check_name(name).is_ok() {
                    names.push(name.to_owned());
                }
                Ok(())
            },
        )?;
        if whole {
            return Ok(names);
        }
    }
    Err(Error::Contended { what: what.to_owned() })
}

/// The elements of these networks and interfaces with any access and masquerading.
fn variants(entries: &Entries) -> BTreeSet<Element> {
    let mut all = BTreeSet::new();
    let (networks, interfaces) = (entries.networks.clone(), entries.interfaces.clone());
    let mut other = State { networks, interfaces, ..State::new() };
    for access in [Access::Isolated, Access::Restricted] {
        other.interfaces.values_mut().for_each(|interface| interface.access = access);
        other.networks.values_mut().for_each(|network| network.masquerade = true);
        all.extend(elements(&other));
    }
    all
}

/// The kernel's headers reserve it for internal use, but nfnetlink returns it for a stale generation.
const ERESTART: i32 = 85;

/// The networks of entries in comparison with those in the table.
#[derive(Debug, Default, PartialEq, Eq)]
struct NetworkComparison {
    /// The elements of prefixes that the table lacks, which no other network may have either.
    missing: BTreeSet<Element>,
    /// The table has further prefixes for one of the networks.
    have_other_prefixes: bool,
}

/// Whether the kernel rejected a prefix that the table has or that overlaps with one.
fn is_of_network(failure: &Failure) -> bool {
    let is_of_prefixes = failure.label.as_ref().and_then(|label| label.set).is_some_and(Set::is_interval);
    is_of_prefixes && (failure.error.is(Errno::EXIST) || failure.error.is(Errno::NOTEMPTY))
}

/// Whether the kernel rejected a host port.
fn is_of_host_port(failure: &Failure) -> bool {
    failure.label.as_ref().and_then(|label| label.set).is_some_and(Set::is_map)
}

/// Whether the kernel rejected the bridge table because it lacks the family, a chain type or an expression.
fn lacks_bridges(failure: &Failure) -> bool {
    [Errno::OPNOTSUPP, Errno::NOENT, Errno::AFNOSUPPORT].into_iter().any(|errno| is_of_bridges(failure, errno))
}

/// Whether the kernel rejected a message about the bridge table with this error number.
fn is_of_bridges(failure: &Failure, errno: Errno) -> bool {
    failure.error.is(errno) && failure.label.as_ref().is_some_and(|label| label.family == Family::Bridge)
}

/// Checks that `nft` can parse the table name.
pub(super) fn check_name(name: &str) -> Result<()> {
    check_text("the name of a table", name)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > 31 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.bytes().all(fits) {
        return Err(Error::invalid(format!("'{name}' is not the name of a table")));
    }
    Ok(())
}
