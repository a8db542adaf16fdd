//! The tables: made, changed, removed.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::{Attempt, Error as NetlinkError};
use crate::message::Batch;

use super::channel::{Failure, Reply};
use super::error::{Error, Result};
use super::family::Family;
use super::sets::{Element, Set, elements, host_port_from_element};
use super::state::{Access, Entries, State, check_text};
use super::wire::{self, FIXED, NFTA_GEN_ID, NFTA_TABLE, Transaction, message};

/// How often to try again when others change nftables between a question and the transaction that relies on its answer.
const MAX_ATTEMPTS: u32 = 16;
/// Questions sent at once; their answers have to fit a socket's buffer.
const MAX_QUERIES: usize = 64;

/// Our table in one network namespace, and the one for bridges beside it.
pub struct Table {
    pub(super) channel: Channel,
    pub(super) name: String,
    /// Whether the kernel has nftables for bridges, once that is known.
    bridges: Option<bool>,
    /// The number of the family of bridges: tests take one that no kernel has.
    pub(super) bridge: u8,
}

impl Table {
    /// The tables `inet NAME` and `bridge NAME`, there or not, over a [`super::socket`]. A name is up to 31 letters, digits, `_` and `-`, with a letter first.
    pub fn open(socket: OwnedFd, name: &str) -> Result<Self> {
        check_name(name)?;
        let bridge = Family::Bridge.number();
        Ok(Self { channel: Channel::new(socket), name: name.to_owned(), bridges: None, bridge })
    }

    /// A number that changes with every change of nftables in this network namespace, whoever makes it.
    pub fn generation(&mut self) -> Result<u32> {
        let mut batch = Batch::new();
        wire::question(&mut batch, message::GETGEN, 0, Family::Inet, |_| {});
        let what = "ask for the generation of nftables";
        let mut generation = None;
        self.channel.ask(batch, what, |answer| match answer {
            Reply::Message(message) => {
                let (_, attributes) = message.split(FIXED).attempt(|| what)?;
                generation = attributes.get(NFTA_GEN_ID).and_then(|id| id.be32());
                Ok(())
            }
            Reply::Failure(errno) => Err(Error::kernel(what, errno)),
        })?;
        generation.ok_or_else(|| Error::malformed(what, "an answer without it"))
    }

    /// Makes the table hold this and nothing else, in one transaction: no packet sees it without rules. Connections go on. The
    /// table for bridges is there afterwards if there are guards, and not there if there are none.
    ///
    /// What others add between the time `state` was known and this call is lost: see [`Self::ensure_at`].
    pub fn ensure(&mut self, state: &State) -> Result<()> {
        self.replace(state, None)
    }

    /// As [`Self::ensure`], unless nftables changed since [`Self::generation`] gave this number: that is [`Error::Changed`]. Who
    /// first asks for the generation and then finds out what the state should be undoes nobody's change.
    pub fn ensure_at_generation(&mut self, state: &State, generation: u32) -> Result<()> {
        match self.replace(state, Some(generation)) {
            Err(error) if error.refused() == Some(Errno::from_raw_os_error(ERESTART)) => Err(Error::Changed),
            done => done,
        }
    }

    fn replace(&mut self, state: &State, generation: Option<u32>) -> Result<()> {
        state.check()?;
        let all = elements(state);
        let what = format!("make the table {}", self.name);
        loop {
            let guarded = !state.anti_spoofing.is_empty() && self.bridges != Some(false);
            let there = self.exists(Family::Bridge)?;
            let mut change = Transaction::new(&self.name, generation, self.bridge);
            for (family, old, new) in [(Family::Inet, true, true), (Family::Bridge, there, guarded)] {
                if old {
                    // Made so that it can be removed, whether it is still there or not.
                    change.make_table(family);
                    change.remove_table(family);
                }
                if new {
                    change.make_parts(family);
                    change.add(all.iter().filter(|element| element.set.family() == family), false);
                }
            }
            match self.channel.transact(change, &what) {
                Ok(()) => {
                    self.bridges = if guarded { Some(true) } else { self.bridges };
                    return Ok(());
                }
                // All that the transaction speaks of it makes: what is missing is the kernel's part.
                Err(failure) if guarded && lacks_bridges(&failure) => self.bridges = Some(false),
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Whether the kernel can guard pods' ports of bridges. One without `CONFIG_NF_TABLES_BRIDGE` cannot: there guards are passed
    /// over by [`Self::ensure`] and [`Self::add`], and [`Self::read`] finds none.
    pub fn supports_bridge_tables(&mut self) -> Result<bool> {
        if let Some(known) = self.bridges {
            return Ok(known);
        }
        let can = self.exists(Family::Bridge)? || self.try_bridges()?;
        self.bridges = Some(can);
        Ok(can)
    }

    /// Tries to make the table for bridges, in a transaction that is refused at its end, whatever comes before.
    fn try_bridges(&mut self) -> Result<bool> {
        let mut change = Transaction::new(&self.name, None, self.bridge);
        change.make_parts(Family::Bridge);
        change.make_first_table(Family::Bridge);
        match self.channel.transact(change, "try to make a table for bridges") {
            Ok(()) => Ok(true),
            Err(failure) if lacks_bridges(&failure) => Ok(false),
            Err(failure) if failure.error.is(Errno::EXIST) => Ok(true),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Adds entries. What is there already stays; networks and interfaces become as they are described here. Fails as a whole with [`Error::Taken`] when a host port leads elsewhere, and with
    /// [`Error::Missing`] when there is no table: then [`Self::ensure`] is due. A port that leads to the
    /// same address for another owner (who died, and had the address before) changes owner. What a guard allows already it goes on to
    /// allow: [`Self::remove`] it first.
    pub fn add(&mut self, entries: &Entries) -> Result<()> {
        entries.check()?;
        let all = elements(entries);
        if all.is_empty() {
            return Ok(());
        }
        let variants = variants(entries);
        let unwanted: Vec<&Element> = variants.difference(&all).collect();
        let (ports, others): (Vec<&Element>, Vec<&Element>) = all.iter().partition(|element| element.is_port());
        let (anti_spoofing, others): (Vec<&Element>, Vec<&Element>) =
            others.into_iter().partition(|element| element.set.family() == Family::Bridge);
        // At first, as if no port were there: mostly that is so.
        let mut fresh = ports.clone();
        let mut stale = Vec::new();
        // Asked, since to be refused costs a grace period of RCU.
        let mut first = !anti_spoofing.is_empty() && !self.exists(Family::Bridge)?;
        for _ in 0..MAX_ATTEMPTS {
            let guarded = !anti_spoofing.is_empty() && self.bridges != Some(false);
            let mut change = Transaction::new(&self.name, None, self.bridge);
            change.add(others.iter().copied(), false);
            // Made so that they can be removed, whether they were there or not.
            change.add(unwanted.iter().copied(), false);
            change.remove(unwanted.iter().copied());
            // With the value that was read, or the transaction fails here.
            change.add(stale.iter().copied(), false);
            change.remove(stale.iter().copied());
            change.add(stale.iter().copied(), true);
            change.add(fresh.iter().copied(), true);
            if first && guarded {
                change.make_parts(Family::Bridge);
            }
            change.add(anti_spoofing.iter().copied().filter(|_| guarded), false);
            if change.is_empty() {
                return Ok(());
            }
            match self.channel.transact(change, &format!("add to the table {}", self.name)) {
                Ok(()) => return Ok(()),
                Err(failure) if first && lacks_bridges(&failure) => {
                    self.bridges = Some(false);
                    continue;
                }
                // It went meanwhile, for nobody was guarded.
                Err(failure) if !first && is_of_bridges(&failure, Errno::NOENT) => {
                    first = true;
                    continue;
                }
                Err(failure)
                    if is_of_host_port(&failure)
                        && (failure.error.is(Errno::EXIST) || failure.error.is(Errno::BUSY)) => {}
                Err(failure) => return Err(self.explain(failure.error)),
            }
            (fresh, stale) = self.sort_ports(&ports)?;
        }
        Err(Error::Contended { what: format!("add to the table {}", self.name) })
    }

    /// Which of these ports are not there, and which are there for another owner.
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
            _ => Error::malformed(&format!("read the table {}", self.name), "a host port that leads nowhere"),
        }
    }

    fn explain(&self, error: NetlinkError) -> Error {
        match error {
            // All that is named there are the table and its sets.
            NetlinkError::Kernel { errno: Errno::NOENT, .. } => Error::Missing { table: self.name.clone() },
            NetlinkError::Kernel { errno: Errno::NOTEMPTY | Errno::EXIST, what, .. } => Error::Overlap { what },
            other => other.into(),
        }
    }

    /// Removes entries. What is not there, or belongs to another owner or network, is left alone; so is a table that is not
    /// there. An interface goes whatever it may reach, a network whether it masquerades or not.
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
                // Somebody else removed one meanwhile.
                Err(failure) if failure.error.is(Errno::NOENT) => {}
                done => return Ok(done?),
            }
        }
        Err(Error::Contended { what })
    }

    /// Removes the table, and the one for bridges. They need not be there.
    pub fn delete(&mut self) -> Result<()> {
        let bridges = self.exists(Family::Bridge)?;
        let mut change = Transaction::new(&self.name, None, self.bridge);
        for family in Family::ALL.into_iter().filter(|family| *family == Family::Inet || bridges) {
            change.make_table(family);
            change.remove_table(family);
        }
        Ok(self.channel.transact(change, &format!("remove the table {}", self.name))?)
    }

    /// What is there under the keys of these elements.
    fn read_existing(&mut self, wanted: &[&Element]) -> Result<Vec<Option<Element>>> {
        let what = format!("look into the table {}", self.name);
        let mut all = Vec::with_capacity(wanted.len());
        for chunk in wanted.chunks(MAX_QUERIES) {
            let mut batch = Batch::new();
            chunk.iter().for_each(|element| wire::ask_element(&mut batch, &self.name, element));
            self.channel.ask(batch, &what, |answer| {
                match answer {
                    Reply::Failure(Errno::NOENT) => all.push(None),
                    Reply::Failure(errno) => return Err(Error::kernel(&what, errno)),
                    Reply::Message(message) => {
                        let wanted = wanted.get(all.len());
                        let wanted = wanted.ok_or_else(|| Error::malformed(&what, "more answers than questions"))?;
                        let read = wire::read_elements(wanted.set, &message);
                        let read = read.attempt(|| &what)?;
                        all.push(read.into_iter().next().map(|one| one.element).map(|mut there| {
                            // Of a range of one field only its first is asked for: ranges do not overlap.
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

    /// Whether the kernel knows the table of this family.
    pub(super) fn exists(&mut self, family: Family) -> Result<bool> {
        let what = format!("look for the table {}", self.name);
        let mut batch = Batch::new();
        wire::question(&mut batch, message::GETTABLE, 0, family, |batch| {
            batch.text(NFTA_TABLE, &self.name);
        });
        let mut there = false;
        self.channel.ask(batch, &what, |answer| match answer {
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

/// The names of the tables of the family `inet` that begin so and can be a gantry's, in the network namespace of the socket.
pub fn table_names(socket: OwnedFd, prefix: &str) -> Result<Vec<String>> {
    let mut channel = Channel::new(socket);
    let what = "list the tables";
    for _ in 0..MAX_ATTEMPTS {
        let mut names = Vec::new();
        let whole = channel.list(
            message::GETTABLE,
            Family::Inet,
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

/// All that these networks and interfaces could be in the table, were they described otherwise.
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

/// Not for programs, say the headers; nfnetlink sends it nevertheless.
const ERESTART: i32 = 85;

/// Whether the kernel refused a host port.
fn is_of_host_port(failure: &Failure) -> bool {
    failure.of.as_ref().and_then(|label| label.set).is_some_and(Set::is_map)
}

/// Whether the kernel refused to make the table for bridges, for it has no such family, or not all of it: no table, no chain, no
/// expression.
fn lacks_bridges(failure: &Failure) -> bool {
    [Errno::OPNOTSUPP, Errno::NOENT, Errno::AFNOSUPPORT].into_iter().any(|errno| is_of_bridges(failure, errno))
}

/// Whether the kernel refused so what was said of the table for bridges.
fn is_of_bridges(failure: &Failure, errno: Errno) -> bool {
    failure.error.is(errno) && failure.of.as_ref().is_some_and(|label| label.family == Family::Bridge)
}

/// A name that `nft` can read too.
pub(super) fn check_name(name: &str) -> Result<()> {
    check_text("the name of a table", name)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > 31 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.bytes().all(fits) {
        return Err(Error::Invalid(format!("'{name}' is not the name of a table")));
    }
    Ok(())
}
