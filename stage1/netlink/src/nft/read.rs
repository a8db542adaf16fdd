//! Reads the tables and compares them with their expected layout.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Attempt;
use crate::message::{Attributes, Message};

use super::error::{Error, Result};
use super::expr;
use super::family::Family;
use super::rules::{self, Chain, Hook};
use super::sets::{self, Element, Set};
use super::state::{Network, State};
use super::table::Table;
use super::wire::{self, FIXED, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_TABLE, message};

/// How often a read is repeated if the table changes in the meantime.
const MAX_ATTEMPTS: u32 = 16;
/// Up to this many elements arrive in one datagram, and so come from one state of the hash table: an element takes at
/// most 250 bytes, a datagram at least 4 KiB.
const MAX_ELEMENTS_PER_DATAGRAM: usize = 15;
/// The most objects of a kind; more are an error.
const MAX_PARTS: usize = 1 << 18;
/// The most faults reported.
const MAX_FAULTS: usize = 20;

/// The contents and faults of the tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableReport {
    /// The contents, as far as they can be parsed.
    pub state: State,
    /// Descriptions of the deviations from what [`Table::ensure`] creates; at most 20.
    pub faults: Vec<String>,
}

/// Whether each chain is as expected, apart from its rules, by name.
type Chains = BTreeMap<String, bool>;

/// The rules by chain: the comment, and the expressions if gantry uses all of them.
type Rules = BTreeMap<String, Vec<(String, Option<Vec<expr::Expr>>)>>;

impl Table {
    /// Reads a consistent snapshot of the tables; None if they do not exist.
    ///
    /// # Errors
    /// [`Error::Contended`] if they changed during every attempt; errors of the kernel.
    pub fn read(&mut self) -> Result<Option<TableReport>> {
        for _ in 0..MAX_ATTEMPTS {
            let before = self.generation()?;
            if !self.exists(Family::Inet)? {
                return Ok(None);
            }
            let found = match self.read_once() {
                // The table was removed in the meantime.
                Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => None,
                found => found?,
            };
            if let Some(found) = found
                && self.generation()? == before
            {
                return Ok(Some(found));
            }
        }
        Err(Error::Contended { what: format!("read the table {}", self.name) })
    }

    /// The interfaces in the table, whatever its faults.
    ///
    /// # Errors
    /// [`Error::Contended`] if the table changed during every attempt; errors of the kernel.
    pub fn interfaces(&mut self) -> Result<BTreeSet<String>> {
        Ok(self.part_of_state(&[Set::Interfaces])?.interfaces.into_keys().collect())
    }

    /// The networks in the table with their prefixes, whatever its faults. Whether they are masqueraded is not read.
    ///
    /// # Errors
    /// As [`Self::interfaces`].
    pub(super) fn prefixes(&mut self) -> Result<BTreeMap<String, Network>> {
        Ok(self.part_of_state(&[Set::Within4, Set::Within6])?.networks)
    }

    /// The contents of some sets, whatever the table's faults.
    fn part_of_state(&mut self, sets: &[Set]) -> Result<State> {
        let mut all = BTreeSet::new();
        for set in sets {
            all.extend(self.read_set(*set)?);
        }
        Ok(sets::state_from_elements(&all))
    }

    fn read_set(&mut self, set: Set) -> Result<BTreeSet<Element>> {
        for _ in 0..MAX_ATTEMPTS {
            match self.read_elements(set) {
                // The table or the set does not exist.
                Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => return Ok(BTreeSet::new()),
                read => {
                    if let Some(all) = read? {
                        return Ok(all);
                    }
                }
            }
        }
        Err(Error::Contended { what: format!("read the set {} of the table {}", set.name(), self.name) })
    }

    fn read_once(&mut self) -> Result<Option<TableReport>> {
        let mut faults = Vec::new();
        let mut all = BTreeSet::new();
        for family in Family::ALL {
            // The bridge table exists only with anti-spoofing entries.
            if family == Family::Bridge && !self.exists(family)? {
                continue;
            }
            let Some(incoming) = self.read_family(family, &mut faults)? else { return Ok(None) };
            all.extend(incoming);
        }
        let state = sets::state_from_elements(&all);
        let should = sets::elements(&state);
        for (elements, other, what) in [(&all, &should, "does not belong to anything"), (&should, &all, "is missing")] {
            for element in elements.difference(other).take(MAX_FAULTS) {
                faults.push(format!(
                    "the set {}: {} ({}) {what}",
                    element.set.name(),
                    hex(&element.key),
                    element.comment
                ));
            }
        }
        faults.truncate(MAX_FAULTS);
        Ok(Some(TableReport { state, faults }))
    }

    /// The elements of a table, and the faults of its other objects; None if the table changed in the meantime.
    fn read_family(&mut self, family: Family, faults: &mut Vec<String>) -> Result<Option<Vec<Element>>> {
        let (sets, chains, rules) = (self.read_sets(family)?, self.read_chains(family)?, self.read_rules(family)?);
        let (Some(sets), Some(chains), Some(rules)) = (sets, chains, rules) else { return Ok(None) };
        compare_sets(family, &sets, faults);
        compare_chains(family, &chains, &rules, faults);
        let mut all = Vec::new();
        for set in Set::in_family(family).filter(|set| sets.contains_key(set.name())) {
            let Some(incoming) = self.read_elements(set)? else { return Ok(None) };
            all.extend(incoming);
        }
        Ok(Some(all))
    }

    /// Passes the attributes of every object of a kind in this table to `each`; None if they changed in the meantime.
    fn parts(
        &mut self,
        kind: u16,
        family: Family,
        what: &str,
        mut each: impl FnMut(Attributes<'_>) -> Option<()>,
    ) -> Result<Option<()>> {
        let what = format!("read the {what} of the table {}", self.name);
        let name = self.name.clone();
        let mut count = 0_usize;
        let whole = self.channel.list(
            kind,
            family.number(),
            &what,
            |batch| {
                batch.text(NFTA_TABLE, &name);
            },
            |message: &Message<'_>| {
                let (fixed, attributes) = message.split(FIXED).attempt(|| &what)?;
                let table = attributes.get(NFTA_TABLE).and_then(|table| table.text());
                // Kernels differ in whether they filter by the requested table.
                if fixed.first() != Some(&family.number()) || table != Some(&name) {
                    return Ok(());
                }
                count += 1;
                if count > MAX_PARTS {
                    return Err(Error::malformed(&what, "there are too many"));
                }
                each(attributes).ok_or_else(|| Error::malformed(&what, "one of them cannot be read"))
            },
        )?;
        Ok(whole.then_some(()))
    }

    fn read_sets(&mut self, family: Family) -> Result<Option<BTreeMap<String, [u32; 3]>>> {
        let mut all = BTreeMap::new();
        let whole = self.parts(message::GETSET, family, "sets", |set| {
            let number = |kind| set.get(kind).and_then(|value| value.be32()).unwrap_or(0);
            let shape = [number(wire::NFTA_SET_FLAGS), number(wire::NFTA_SET_KEY_LEN), number(wire::NFTA_SET_DATA_LEN)];
            all.insert(set.get(wire::NFTA_SET_NAME)?.text()?.to_owned(), shape);
            Some(())
        })?;
        Ok(whole.map(|()| all))
    }

    fn read_chains(&mut self, family: Family) -> Result<Option<Chains>> {
        let should = rules::chains(family);
        let mut all = Chains::new();
        let whole = self.parts(message::GETCHAIN, family, "chains", |chain| {
            let name = chain.get(NFTA_CHAIN_NAME)?.text()?;
            let same = should.iter().find(|chain| chain.name == name).is_some_and(|should| is_like(chain, should));
            all.insert(name.to_owned(), same);
            Some(())
        })?;
        Ok(whole.map(|()| all))
    }

    fn read_rules(&mut self, family: Family) -> Result<Option<Rules>> {
        let mut all = Rules::new();
        let whole = self.parts(message::GETRULE, family, "rules", |rule| {
            let chain = rule.get(wire::NFTA_RULE_CHAIN)?.text()?;
            let list = match rule.get(wire::NFTA_RULE_EXPRESSIONS) {
                Some(list) => list.nested().ok()?,
                None => Attributes::default(),
            };
            let comment = wire::comment(rule.get(wire::NFTA_RULE_USERDATA));
            all.entry(chain.to_owned()).or_default().push((comment, expr::read(list)));
            Some(())
        })?;
        Ok(whole.map(|()| all))
    }

    /// While the kernel resizes a hash table, a dump silently skips elements. Large sets are therefore read until two
    /// dumps agree.
    fn read_elements(&mut self, set: Set) -> Result<Option<BTreeSet<Element>>> {
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            let Some(all) = self.read_elements_once(set)? else { return Ok(None) };
            let all: BTreeSet<Element> = all.into_iter().collect();
            if all.len() <= MAX_ELEMENTS_PER_DATAGRAM || last.as_ref() == Some(&all) {
                return Ok(Some(all));
            }
            last = Some(all);
        }
        Ok(None)
    }

    fn read_elements_once(&mut self, set: Set) -> Result<Option<Vec<Element>>> {
        let what = format!("read the set {} of the table {}", set.name(), self.name);
        let name = self.name.clone();
        let mut all = Vec::new();
        let whole = self.channel.list(
            message::GETSETELEM,
            set.family().number(),
            &what,
            |batch| {
                batch.text(NFTA_TABLE, &name).text(wire::NFTA_SET_NAME, set.name());
            },
            |message| {
                all.extend(wire::read_elements(set, message).attempt(|| &what)?);
                if all.len() > MAX_PARTS { Err(Error::malformed(&what, "it has too many elements")) } else { Ok(()) }
            },
        )?;
        if !whole {
            return Ok(None);
        }
        let joined = set.is_interval() && !set.is_ranges();
        Ok(Some(if joined { wire::join(all) } else { all.into_iter().map(|one| one.element).collect() }))
    }
}

/// Whether a chain has the expected hook, type and priority, and the policy accept.
fn is_like(chain: Attributes<'_>, should: &Chain) -> bool {
    let read = || {
        let hook = chain.get(NFTA_CHAIN_HOOK)?.nested().ok()?;
        let number = hook.get(wire::NFTA_HOOK_NUMBER)?.be32()?;
        let priority = hook.get(wire::NFTA_HOOK_PRIORITY)?.be32()?.cast_signed();
        let kind = chain.get(wire::NFTA_CHAIN_TYPE)?.text()?;
        let policy = chain.get(wire::NFTA_CHAIN_POLICY)?.be32()?;
        let Hook { kind: its_kind, number: its_number, priority: its_priority } = should.hook.as_ref()?;
        Some(kind == *its_kind && number == *its_number && priority == *its_priority && policy == 1)
    };
    match should.hook {
        Some(_) => read().unwrap_or(false),
        None => chain.get(NFTA_CHAIN_HOOK).is_none(),
    }
}

fn compare_sets(family: Family, sets: &BTreeMap<String, [u32; 3]>, faults: &mut Vec<String>) {
    for set in Set::in_family(family) {
        let length = |fields| u32::try_from(sets::length(fields)).unwrap_or(u32::MAX);
        let should = [wire::set_flags(set), length(set.key()), length(set.data())];
        match sets.get(set.name()) {
            None => faults.push(format!("the set {} is missing", set.name())),
            Some(shape) if *shape != should => faults.push(format!("the set {} has another type", set.name())),
            Some(_) => {}
        }
    }
    for name in sets.keys().filter(|name| Set::in_family(family).all(|set| set.name() != name.as_str())) {
        faults.push(format!("the set {} is unexpected", name.escape_debug()));
    }
}

fn compare_chains(family: Family, chains: &Chains, rules: &Rules, faults: &mut Vec<String>) {
    let should = rules::chains(family);
    for chain in &should {
        match chains.get(chain.name) {
            None => faults.push(format!("the chain {} is missing", chain.name)),
            Some(false) => faults.push(format!("the chain {} has another type", chain.name)),
            Some(true) => {}
        }
        let found = rules.get(chain.name).map(Vec::as_slice).unwrap_or_default();
        let same = found.len() == chain.rules.len()
            && found.iter().zip(&chain.rules).all(|((comment, expressions), rule)| {
                comment == rule.comment && expressions.as_ref() == Some(&rule.expressions)
            });
        if !same {
            let (has, wants) = (found.len(), chain.rules.len());
            faults.push(format!("the chain {} has other rules ({has}; it should have {wants})", chain.name));
        }
    }
    for name in chains.keys().filter(|name| should.iter().all(|chain| chain.name != name.as_str())) {
        faults.push(format!("the chain {} is unexpected", name.escape_debug()));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
