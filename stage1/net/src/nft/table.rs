//! The table: made, changed, removed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::netlink::channel::Channel;
use crate::netlink::message::Batch;
use crate::netlink::{self, Attempt};

use super::channel::Answer;
use super::error::{Error, Result};
use super::rules;
use super::sets::{Element, Set, elements, port_of};
use super::state::{Access, Entries, State, check_text};
use super::wire::{self, FIXED, NFTA_GEN_ID, NFTA_TABLE, Transaction, message};

/// How often to try again when others change nftables between a question and the transaction that relies on its answer.
const ATTEMPTS: u32 = 16;
/// Questions sent at once; their answers have to fit a socket's buffer.
const QUESTIONS: usize = 64;

/// Our table in one network namespace.
pub struct Table {
    pub(super) channel: Channel,
    pub(super) name: String,
}

impl Table {
    /// The table `inet NAME`, there or not, over a [`super::socket`]. A name is up to 31 letters, digits, `_` and `-`, with a letter first.
    pub fn open(socket: OwnedFd, name: &str) -> Result<Self> {
        check_name(name)?;
        Ok(Self { channel: Channel::new(socket), name: name.to_owned() })
    }

    /// A number that changes with every change of nftables in this network namespace, whoever makes it.
    pub fn generation(&mut self) -> Result<u32> {
        let mut batch = Batch::new();
        wire::question(&mut batch, message::GETGEN, 0, |_| {});
        let what = "ask for the generation of nftables";
        let mut generation = None;
        self.channel.ask(batch, what, |answer| match answer {
            Answer::Message(message) => {
                let (_, attributes) = message.split(FIXED).attempt(|| what)?;
                generation = attributes.get(NFTA_GEN_ID).and_then(|id| id.be32());
                Ok(())
            }
            Answer::Failure(errno) => Err(Error::kernel(what, errno)),
        })?;
        generation.ok_or_else(|| Error::malformed(what, "an answer without it"))
    }

    /// Makes the table hold this and nothing else, in one transaction: no packet sees it without rules. Connections go on.
    ///
    /// What others add between the time `state` was known and this call is lost: see [`Self::ensure_at`].
    pub fn ensure(&mut self, state: &State) -> Result<()> {
        self.replace(state, None)
    }

    /// As [`Self::ensure`], unless nftables changed since [`Self::generation`] gave this number: that is [`Error::Changed`]. Who
    /// first asks for the generation and then finds out what the state should be undoes nobody's change.
    pub fn ensure_at(&mut self, state: &State, generation: u32) -> Result<()> {
        match self.replace(state, Some(generation)) {
            Err(error) if error.refused() == Some(Errno::from_raw_os_error(ERESTART)) => Err(Error::Changed),
            done => done,
        }
    }

    fn replace(&mut self, state: &State, generation: Option<u32>) -> Result<()> {
        state.check()?;
        let mut change = Transaction::new(&self.name, generation);
        // Made so that it can be removed, whether it was there or not.
        change.make_table();
        change.remove_table();
        change.make_table();
        Set::ALL.into_iter().for_each(|set| change.make_set(set));
        let chains = rules::chains();
        chains.iter().for_each(|chain| change.make_chain(chain));
        for chain in &chains {
            chain.rules.iter().for_each(|rule| change.make_rule(chain.name, rule));
        }
        change.add(&elements(state), false);
        let what = format!("make the table {}", self.name);
        Ok(self.channel.transact(change, &what)?)
    }

    /// Adds entries. What is there already stays; networks and interfaces become as they are described here. Fails as a whole with [`Error::Taken`] when a host port leads elsewhere, and with
    /// [`Error::Missing`] when there is no table: then [`Self::ensure`] is due. A port that leads to the
    /// same address for another owner (who died, and had the address before) changes owner.
    pub fn add(&mut self, entries: &Entries) -> Result<()> {
        entries.check()?;
        let all = elements(entries);
        if all.is_empty() {
            return Ok(());
        }
        let other_ways = other_ways(entries);
        let unwanted: Vec<&Element> = other_ways.difference(&all).collect();
        let (ports, others): (Vec<&Element>, Vec<&Element>) = all.iter().partition(|element| element.is_port());
        // At first, as if no port were there: mostly that is so.
        let mut fresh = ports.clone();
        let mut stale = Vec::new();
        for _ in 0..ATTEMPTS {
            let mut change = Transaction::new(&self.name, None);
            change.add(others.iter().copied(), false);
            // Made so that they can be removed, whether they were there or not.
            change.add(unwanted.iter().copied(), false);
            change.remove(unwanted.iter().copied());
            // With the value that was read, or the transaction fails here.
            change.add(stale.iter().copied(), false);
            change.remove(stale.iter().copied());
            change.add(stale.iter().copied(), true);
            change.add(fresh.iter().copied(), true);
            match self.channel.transact(change, &format!("add to the table {}", self.name)) {
                Ok(()) => return Ok(()),
                Err(netlink::Error::Kernel { errno: Errno::EXIST | Errno::BUSY, .. }) if !ports.is_empty() => {}
                Err(error) => return Err(self.explain(error)),
            }
            (fresh, stale) = self.sort_ports(&ports)?;
            if fresh.is_empty() && stale.is_empty() && others.is_empty() {
                return Ok(());
            }
        }
        Err(Error::Contended { what: format!("add to the table {}", self.name) })
    }

    /// Which of these ports are not there, and which are there for another owner.
    fn sort_ports<'e>(&mut self, ports: &[&'e Element]) -> Result<(Vec<&'e Element>, Vec<&'e Element>)> {
        let (mut fresh, mut stale) = (Vec::new(), Vec::new());
        for (wanted, there) in ports.iter().zip(self.look_up(ports)?) {
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
        match (port_of(wanted), port_of(there)) {
            (Some((port, _)), Some((_, forward))) => Error::Taken { port, to: forward.to, owner: forward.owner },
            _ => Error::malformed(&format!("read the table {}", self.name), "a host port that leads nowhere"),
        }
    }

    fn explain(&self, error: netlink::Error) -> Error {
        match error {
            // All that is named there are the table and its sets.
            netlink::Error::Kernel { errno: Errno::NOENT, .. } => Error::Missing { table: self.name.clone() },
            netlink::Error::Kernel { errno: Errno::NOTEMPTY | Errno::EXIST, what, .. } => Error::Overlap { what },
            other => other.into(),
        }
    }

    /// Removes entries. What is not there, or belongs to another owner or network, is left alone; so is a table that is not
    /// there. An interface goes whatever it may reach, a network whether it masquerades or not.
    pub fn remove(&mut self, entries: &Entries) -> Result<()> {
        entries.check()?;
        let (all, other_ways) = (elements(entries), other_ways(entries));
        let all: Vec<&Element> = all.union(&other_ways).collect();
        let what = format!("remove from the table {}", self.name);
        for _ in 0..ATTEMPTS {
            let there = self.look_up(&all)?;
            let ours: Vec<&Element> = all
                .iter()
                .zip(there)
                .filter(|(ours, there)| there.as_ref() == Some(**ours))
                .map(|(ours, _)| *ours)
                .collect();
            if ours.is_empty() {
                return Ok(());
            }
            let mut change = Transaction::new(&self.name, None);
            change.remove(ours);
            match self.channel.transact(change, &what) {
                // Somebody else removed one meanwhile.
                Err(netlink::Error::Kernel { errno: Errno::NOENT, .. }) => {}
                done => return Ok(done?),
            }
        }
        Err(Error::Contended { what })
    }

    /// Removes the table. It need not be there.
    pub fn delete(&mut self) -> Result<()> {
        let mut change = Transaction::new(&self.name, None);
        change.make_table();
        change.remove_table();
        Ok(self.channel.transact(change, &format!("remove the table {}", self.name))?)
    }

    /// What is there under the keys of these elements.
    fn look_up(&mut self, wanted: &[&Element]) -> Result<Vec<Option<Element>>> {
        let what = format!("look into the table {}", self.name);
        let mut all = Vec::with_capacity(wanted.len());
        for chunk in wanted.chunks(QUESTIONS) {
            let mut batch = Batch::new();
            chunk.iter().for_each(|element| wire::ask_element(&mut batch, &self.name, element));
            self.channel.ask(batch, &what, |answer| {
                match answer {
                    Answer::Failure(Errno::NOENT) => all.push(None),
                    Answer::Failure(errno) => return Err(Error::kernel(&what, errno)),
                    Answer::Message(message) => {
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

    /// Whether the kernel knows the table.
    pub(super) fn exists(&mut self) -> Result<bool> {
        let what = format!("look for the table {}", self.name);
        let mut batch = Batch::new();
        wire::question(&mut batch, message::GETTABLE, 0, |batch| {
            batch.text(NFTA_TABLE, &self.name);
        });
        let mut there = false;
        self.channel.ask(batch, &what, |answer| match answer {
            Answer::Message(_) => {
                there = true;
                Ok(())
            }
            Answer::Failure(Errno::NOENT) => Ok(()),
            Answer::Failure(errno) => Err(Error::kernel(&what, errno)),
        })?;
        Ok(there)
    }
}

/// All that these networks and interfaces could be in the table, were they described otherwise.
fn other_ways(entries: &Entries) -> BTreeSet<Element> {
    let mut all = BTreeSet::new();
    let mut other = State { ports: BTreeMap::new(), ..entries.clone() };
    for access in [Access::Isolated, Access::Restricted] {
        other.interfaces.values_mut().for_each(|interface| interface.access = access);
        other.networks.values_mut().for_each(|network| network.masquerade = true);
        all.extend(elements(&other));
    }
    all
}

/// Not for programs, say the headers; nfnetlink sends it nevertheless.
const ERESTART: i32 = 85;

/// A name that `nft` can read too.
pub(super) fn check_name(name: &str) -> Result<()> {
    check_text("the name of a table", name)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > 31 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.bytes().all(fits) {
        return Err(Error::Invalid(format!("'{name}' is not the name of a table")));
    }
    Ok(())
}
