//! Finds chains of other programs that drop forwarded packets, as Docker's, ufw's and firewalld's do.
//!
//! A packet passes the base chains of all tables at a hook, and a drop in one of them is final: an accept in another,
//! such as gantry's, does not revoke it.
//!
//! Only rules that apply to every packet are evaluated. Of the others, the names of interfaces are collected: a program
//! or administrator that knows an interface has decided about it. Rules of the legacy iptables are not in nftables. Two
//! kinds of names are missed: those in concatenations with keys of other kinds, and interfaces given by index (`iif`,
//! `oif`).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::Attempt;
use crate::message::{Attributes, Batch};

use super::error::{Error, Result};
use super::expr::{self, Verdict};
use super::rules::{FORWARD, META_IIFNAME, META_OIFNAME};
use super::wire::{self, FIXED, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_TABLE, message};

/// How often a read is repeated if nftables changes in the meantime.
const MAX_ATTEMPTS: u32 = 16;
/// The most chains, the most rules of a table, and the most elements of a set; more are an error.
const MAX_PARTS: usize = 1 << 20;
/// Of `NFPROTO_*`: every family.
const ANY_FAMILY: u8 = 0;
/// The kernel's limit of nested jumps (`NFT_JUMP_STACK_SIZE`).
const MAX_JUMPS: u32 = 16;
/// `NFTA_TARGET_NAME` and `NFTA_MATCH_NAME`: of a target or match of iptables.
const EXTENSION_NAME: u16 = 1;
/// The size of an interface name in a key (`IFNAMSIZ`).
const NAME_SIZE: usize = 16;

/// A base chain of another program that drops the forwarded packets that none of its rules accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppingChain {
    /// The family of its table: `ip`, `ip6` or `inet`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
    /// The names of all chains of the table.
    pub chains: BTreeSet<String>,
    /// The values that rules of the table compare with the names of interfaces.
    names: BTreeSet<Vec<u8>>,
}

impl DroppingChain {
    /// Whether a rule of the table names the interface, also by a wildcard.
    #[must_use]
    pub fn names_interface(&self, interface: &str) -> bool {
        let interface = interface.as_bytes();
        self.names.iter().any(|value| match value.split(|byte| *byte == 0).next() {
            Some(name) if name.len() < value.len() => name == interface,
            // Without its terminating NUL it is the beginning of a name: `gantry*`.
            _ => !value.is_empty() && interface.starts_with(value),
        })
    }
}

/// Finds the base chains at the forward hook that drop packets, in the socket's network namespace, except gantry's.
///
/// # Errors
/// [`Error::Contended`] if nftables changed during every attempt; errors of the kernel.
pub fn find_dropping_chains(socket: OwnedFd) -> Result<Vec<DroppingChain>> {
    let mut channel = Channel::new(socket);
    for _ in 0..MAX_ATTEMPTS {
        if let Some(found) = read_once(&mut channel)? {
            return Ok(found);
        }
    }
    Err(Error::Contended { what: "read the chains that drop forwarded packets".to_owned() })
}

/// Family and name of a table.
type TableKey = (u8, String);

/// The part of a table that decides on forwarded packets.
#[derive(Default)]
struct ForwardTable {
    /// The base chains at the forward hook, and whether their policy is to drop.
    bases: BTreeMap<String, bool>,
    /// The verdicts of each chain that apply to every packet.
    steps: BTreeMap<String, Vec<Verdict>>,
    /// The values that are compared with names of interfaces.
    names: BTreeSet<Vec<u8>>,
    /// The sets in which names of interfaces are looked up.
    sets: BTreeSet<String>,
}

/// What a chain does with every packet that its conditional rules leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Accepted,
    Dropped,
}

/// None if nftables changed in the meantime.
fn read_once(channel: &mut Channel) -> Result<Option<Vec<DroppingChain>>> {
    let Some(mut tables) = read_chains(channel)? else { return Ok(None) };
    tables.retain(|(_, name), table| !table.bases.is_empty() && !is_own(name));
    let mut found = Vec::new();
    for (key, mut table) in tables {
        if !read_rules(channel, &key, &mut table)? || !read_sets(channel, &key, &mut table)? {
            return Ok(None);
        }
        found.extend(table.into_dropping(key));
    }
    Ok(Some(found))
}

/// Whether a table belongs to a gantry.
fn is_own(table: &str) -> bool {
    table == "gantry" || table.starts_with("gantry-")
}

fn family_name(family: u8) -> Option<&'static str> {
    Some(match family {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        _ => return None,
    })
}

impl ForwardTable {
    fn into_dropping(self, (family, name): TableKey) -> Vec<DroppingChain> {
        let Some(family) = family_name(family) else { return Vec::new() };
        let chains: BTreeSet<String> = self.steps.keys().cloned().collect();
        let drops = |(chain, by_policy): (&String, &bool)| {
            let dropped = match self.fate(chain, 0) {
                Some(fate) => fate == Fate::Dropped,
                None => *by_policy,
            };
            dropped.then(|| DroppingChain {
                family,
                table: name.clone(),
                chain: chain.clone(),
                chains: chains.clone(),
                names: self.names.clone(),
            })
        };
        self.bases.iter().filter_map(drops).collect()
    }

    /// The fate of packets that no conditional rule concerns; None: that of the caller's next rule, or the policy.
    fn fate(&self, chain: &str, depth: u32) -> Option<Fate> {
        if depth > MAX_JUMPS {
            return None;
        }
        for step in self.steps.get(chain)? {
            match step {
                Verdict::Accept => return Some(Fate::Accepted),
                Verdict::Drop => return Some(Fate::Dropped),
                Verdict::Return => return None,
                Verdict::Goto(to) => return self.fate(to, depth + 1),
                Verdict::Jump(to) => {
                    let fate = self.fate(to, depth + 1);
                    if fate.is_some() {
                        return fate;
                    }
                }
            }
        }
        None
    }

    /// Adds a rule.
    fn add_rule(&mut self, chain: &str, expressions: Attributes<'_>) {
        let (mut step, mut is_conditional, mut loads_name) = (None, false, false);
        for expression in expressions.iter() {
            let Ok(expression) = expression.nested() else { return };
            let name = expression.get(expr::NFTA_EXPR_NAME).and_then(|name| name.text()).unwrap_or_default();
            let data = expression.get(expr::NFTA_EXPR_DATA).and_then(|data| data.nested().ok()).unwrap_or_default();
            let extension = || data.get(EXTENSION_NAME).and_then(|name| name.text());
            match name {
                "counter" | "log" => {}
                "immediate" => step = data.get(expr::NFTA_IMMEDIATE_DATA).and_then(Verdict::read),
                "reject" => step = Some(Verdict::Drop),
                "target" => step = (extension() == Some("REJECT")).then_some(Verdict::Drop),
                "match" => is_conditional |= extension() != Some("comment"),
                _ => {
                    is_conditional = true;
                    loads_name = self.add_condition(name, data, loads_name);
                }
            }
        }
        if let Some(step) = step.filter(|_| !is_conditional) {
            self.steps.entry(chain.to_owned()).or_default().push(step);
        }
    }

    /// Collects what a condition says about the name of an interface. Takes and returns whether the name is loaded.
    fn add_condition(&mut self, expression: &str, data: Attributes<'_>, loads_name: bool) -> bool {
        match expression {
            "meta" => {
                let key = data.get(expr::NFTA_META_KEY).and_then(|key| key.be32());
                return matches!(key, Some(META_IIFNAME | META_OIFNAME));
            }
            "cmp" if loads_name => {
                self.names.extend(expr::read_value(data.get(expr::NFTA_CMP_DATA)));
            }
            "lookup" if loads_name => {
                self.sets.extend(data.get(expr::NFTA_LOOKUP_SET).and_then(|set| set.text()).map(str::to_owned));
            }
            _ => return false,
        }
        true
    }
}

/// The chains of all tables; None if they changed in the meantime.
fn read_chains(channel: &mut Channel) -> Result<Option<BTreeMap<TableKey, ForwardTable>>> {
    let mut tables: BTreeMap<TableKey, ForwardTable> = BTreeMap::new();
    let what = "list the chains of nftables";
    let whole = dump(channel, (message::GETCHAIN, ANY_FAMILY), what, |_| {}, &mut |family, chain| {
        let text = |kind| Some(chain.get(kind)?.text()?.to_owned());
        let (Some(table), Some(name)) = (text(NFTA_TABLE), text(NFTA_CHAIN_NAME)) else { return };
        let number = |kind| chain.get(NFTA_CHAIN_HOOK)?.nested().ok()?.get(kind)?.be32();
        let table = tables.entry((family, table)).or_default();
        if family_name(family).is_some() && number(wire::NFTA_HOOK_NUMBER) == Some(FORWARD) {
            let policy = chain.get(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32());
            table.bases.insert(name.clone(), policy == Some(expr::NF_DROP.cast_unsigned()));
        }
        table.steps.insert(name, Vec::new());
    })?;
    Ok(whole.then_some(tables))
}

/// False if the table changed in the meantime.
fn read_rules(channel: &mut Channel, (family, name): &TableKey, table: &mut ForwardTable) -> Result<bool> {
    let what = format!("read the rules of the table {}", name.escape_debug());
    let attributes = |batch: &mut Batch| {
        batch.text(NFTA_TABLE, name);
    };
    dump(channel, (message::GETRULE, *family), &what, attributes, &mut |of, rule| {
        // Kernels differ in whether they filter by the requested table.
        let is_here = of == *family && rule.get(NFTA_TABLE).and_then(|table| table.text()) == Some(name);
        let list = rule.get(wire::NFTA_RULE_EXPRESSIONS).and_then(|list| list.nested().ok());
        if let (true, Some(list), Some(chain)) =
            (is_here, list, rule.get(wire::NFTA_RULE_CHAIN).and_then(|chain| chain.text()))
        {
            table.add_rule(chain, list);
        }
    })
}

/// Adds the names of interfaces in sets. False if the table changed in the meantime.
fn read_sets(channel: &mut Channel, (family, name): &TableKey, table: &mut ForwardTable) -> Result<bool> {
    for set in std::mem::take(&mut table.sets) {
        let what = format!("read the set {} of the table {}", set.escape_debug(), name.escape_debug());
        let attributes = |batch: &mut Batch| {
            batch.text(NFTA_TABLE, name).text(wire::NFTA_SET_NAME, &set);
        };
        let names = &mut table.names;
        let read = dump(channel, (message::GETSETELEM, *family), &what, attributes, &mut |_, part| {
            let list = part.get(wire::NFTA_LIST_ELEMENTS).and_then(|list| list.nested().ok()).unwrap_or_default();
            for element in list.iter().filter_map(|element| element.nested().ok()) {
                let Some(key) = expr::read_value(element.get(wire::NFTA_ELEM_KEY)) else { continue };
                // A concatenated key has several names.
                names.extend(key.chunks_exact(NAME_SIZE).map(<[u8]>::to_vec));
            }
        });
        let whole = match read {
            // The set was removed.
            Err(error) if error.errno() == Some(Errno::NOENT) => false,
            other => other?,
        };
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Passes the family and attributes of every object of a kind to `each`. False if a change interrupted the dump.
fn dump(
    channel: &mut Channel,
    (kind, family): (u16, u8),
    what: &str,
    attributes: impl FnOnce(&mut Batch),
    each: &mut dyn FnMut(u8, Attributes<'_>),
) -> Result<bool> {
    let mut count = 0_usize;
    channel.list(kind, family, what, attributes, |message| {
        let (fixed, attributes) = message.split(FIXED).attempt(|| what)?;
        count += 1;
        if count > MAX_PARTS {
            return Err(Error::malformed(what, "there are too many"));
        }
        each(fixed.first().copied().unwrap_or_default(), attributes);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::next_message;

    /// The verdicts of a chain with a rule of iptables-nft: the names of its expressions and of their extensions.
    fn verdicts(expressions: &[(&str, &str)]) -> Vec<Verdict> {
        const LIST_ELEMENT: u16 = 1;
        let mut batch = Batch::new();
        wire::write_query(&mut batch, message::NEWRULE, 0, ANY_FAMILY, |rule| {
            rule.nested(wire::NFTA_RULE_EXPRESSIONS, |list| {
                for (name, extension) in expressions {
                    list.nested(LIST_ELEMENT, |element| {
                        element.text(expr::NFTA_EXPR_NAME, name);
                        element.nested(expr::NFTA_EXPR_DATA, |data| {
                            data.text(EXTENSION_NAME, extension);
                        });
                    });
                }
            });
        });
        let bytes = batch.finish(1, 0).unwrap();
        let message = next_message(&mut bytes.as_slice()).unwrap().unwrap();
        let (_, attributes) = message.split(FIXED).unwrap();
        let list = attributes.get(wire::NFTA_RULE_EXPRESSIONS).unwrap().nested().unwrap();
        let mut table = ForwardTable::default();
        table.add_rule("FORWARD", list);
        table.steps.remove("FORWARD").unwrap_or_default()
    }

    #[test]
    fn extensions_of_iptables_are_understood() {
        let reject = ("target", "REJECT");
        for rule in [&[reject][..], &[("match", "comment"), reject]] {
            assert_eq!(verdicts(rule), [Verdict::Drop], "{rule:?}");
        }
        for rule in [&[("match", "conntrack"), reject][..], &[("target", "LOG")], &[("match", "comment")]] {
            assert_eq!(verdicts(rule), [], "{rule:?}");
        }
    }
}
