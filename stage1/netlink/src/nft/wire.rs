//! nfnetlink messages: transactions, and the parts of the tables (`NFT_MSG_*` and `NFTA_*` of nf_tables.h).
//!
//! Uses only features of Linux 5.10; the newest, sets of concatenated intervals, came with 5.6.

use super::expr;
use super::family::Family;
use super::rules::{self, Chain, Rule};
use super::sets::{Element, Field, Set, datatype, length};
use crate::error::Malformed;
use crate::message::{Attribute, Attributes, Batch, F_ACK, F_APPEND, F_CREATE, F_EXCL, Message};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFNL_BATCH_GENID: u16 = 1;
/// Length of `nfgenmsg`.
pub(super) const FIXED: usize = 4;

/// Message types.
pub(super) mod message {
    const fn of(number: u16) -> u16 {
        (super::SUBSYSTEM << 8) | number
    }
    pub(in crate::nft) const NEWTABLE: u16 = of(0);
    pub(in crate::nft) const GETTABLE: u16 = of(1);
    pub(in crate::nft) const DELTABLE: u16 = of(2);
    pub(in crate::nft) const NEWCHAIN: u16 = of(3);
    pub(in crate::nft) const GETCHAIN: u16 = of(4);
    pub(in crate::nft) const DELCHAIN: u16 = of(5);
    pub(in crate::nft) const NEWRULE: u16 = of(6);
    pub(in crate::nft) const GETRULE: u16 = of(7);
    pub(in crate::nft) const DELRULE: u16 = of(8);
    pub(in crate::nft) const NEWSET: u16 = of(9);
    pub(in crate::nft) const GETSET: u16 = of(10);
    pub(in crate::nft) const DELSET: u16 = of(11);
    pub(in crate::nft) const NEWSETELEM: u16 = of(12);
    pub(in crate::nft) const GETSETELEM: u16 = of(13);
    pub(in crate::nft) const DELSETELEM: u16 = of(14);
    pub(in crate::nft) const NEWGEN: u16 = of(15);
    pub(in crate::nft) const GETGEN: u16 = of(16);
}

/// The table's name: attribute 1 of every object.
pub(super) const NFTA_TABLE: u16 = 1;
/// The name of a chain or set, the chain of a rule, the set of elements: attribute 2.
pub(super) const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_HOOK_NUMBER: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(super) const NFTA_RULE_USERDATA: u16 = 7;
pub(super) const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
pub(super) const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
pub(super) const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_DESC: u16 = 9;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_USERDATA: u16 = 13;
const NFTA_SET_DESC_CONCAT: u16 = 2;
const NFTA_SET_FIELD_LEN: u16 = 1;
const NFTA_LIST_ELEM: u16 = 1;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;
const NFT_SET_CONCAT: u32 = 0x80;
pub(super) const NFTA_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_ELEM_KEY: u16 = 1;
const NFTA_ELEM_DATA: u16 = 2;
const NFTA_ELEM_FLAGS: u16 = 3;
const NFTA_ELEM_USERDATA: u16 = 6;
const NFTA_ELEM_KEY_END: u16 = 10;
const INTERVAL_END: u32 = 1;
pub(super) const NFTA_GEN_ID: u16 = 1;
pub(super) const NFTA_GEN_PROC_NAME: u16 = 3;
/// `NFTNL_UDATA_*_COMMENT`: comments in the user data of `nft`.
const COMMENT: u8 = 0;
/// Elements of one message: it must stay below 64 KiB, and an element takes 200 bytes at most.
const ELEMENTS: usize = 256;

/// `nfgenmsg`: family, version 0, resource.
pub(super) fn fixed(family: u8, resource: u16) -> [u8; FIXED] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Appends a query for a family by its number (`NFPROTO_*`), which is not part of a transaction.
pub(super) fn write_query(batch: &mut Batch, kind: u16, flags: u16, family: u8, attributes: impl FnOnce(&mut Batch)) {
    batch.push(kind, flags, &fixed(family, 0), attributes);
}

/// Describes a message of a transaction, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    /// The operation that the message attempts.
    pub(super) what: String,
    pub(super) family: Family,
    /// The set whose elements the message changes.
    pub(super) set: Option<Set>,
}

/// Changes that the kernel applies together or not at all.
pub(super) struct Transaction<'a> {
    table: &'a str,
    /// The number of the bridge family.
    bridge: u8,
    batch: Batch,
    labels: Vec<Label>,
    sets: u32,
}

impl<'a> Transaction<'a> {
    /// A transaction on the tables of this name, with the number of the bridge family. With a generation, the kernel
    /// rejects it if nftables has changed since.
    pub(super) fn new(table: &'a str, generation: Option<u32>, bridge: u8) -> Self {
        let mut batch = Batch::new();
        batch.push(BATCH_BEGIN, 0, &fixed(0, SUBSYSTEM), |batch| {
            if let Some(generation) = generation {
                batch.be32(NFNL_BATCH_GENID, generation);
            }
        });
        Self { table, bridge, batch, labels: Vec::new(), sets: 0 }
    }

    /// The messages to send, and the labels of all but the first and last, which begin and end the transaction.
    pub(super) fn finish(mut self) -> (Batch, Vec<Label>) {
        self.batch.push(BATCH_END, 0, &fixed(0, SUBSYSTEM), |_| {});
        (self.batch, self.labels)
    }

    /// The first message requests an acknowledgement, which the kernel sends after the commit. (Kernels before 6.10
    /// do not acknowledge the message that ends the transaction.)
    fn push(&mut self, label: Label, kind: u16, flags: u16, attributes: impl FnOnce(&mut Batch)) {
        let flags = if self.labels.is_empty() { flags | F_ACK } else { flags };
        let family = if label.family == Family::Bridge { self.bridge } else { label.family.number() };
        self.labels.push(label);
        let table = self.table;
        self.batch.push(kind, flags, &fixed(family, 0), |batch| {
            batch.text(NFTA_TABLE, table);
            attributes(batch);
        });
    }

    /// Whether the transaction has no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Adds a table, which may exist.
    pub(super) fn add_table(&mut self, family: Family) {
        self.push(label(family, format!("make the table {}", self.table)), message::NEWTABLE, F_CREATE, |_| {});
    }

    /// Adds a table, which must not exist.
    pub(super) fn add_new_table(&mut self, family: Family) {
        let label = label(family, format!("make the table {}", self.table));
        self.push(label, message::NEWTABLE, F_CREATE | F_EXCL, |_| {});
    }

    pub(super) fn remove_table(&mut self, family: Family) {
        self.push(label(family, format!("remove the table {}", self.table)), message::DELTABLE, 0, |_| {});
    }

    /// Adds a table with its sets, chains and rules. Existing rules are replaced; existing elements stay.
    pub(super) fn add_layout(&mut self, family: Family) {
        self.add_table(family);
        Set::in_family(family).for_each(|set| self.add_set(set));
        let chains = rules::chains(family);
        chains.iter().for_each(|chain| self.add_chain(family, chain));
        for chain in &chains {
            self.clear_chain(family, chain.name);
            chain.rules.iter().for_each(|rule| self.add_rule(family, chain.name, rule));
        }
    }

    fn add_set(&mut self, set: Set) {
        self.sets += 1;
        let id = self.sets;
        let label = label(set.family(), format!("make the set {}", set.name()));
        self.push(label, message::NEWSET, F_CREATE, |batch| {
            batch.text(NFTA_SET_NAME, set.name()).be32(NFTA_SET_FLAGS, set_flags(set));
            batch.be32(NFTA_SET_KEY_TYPE, datatype(set.key())).be32(NFTA_SET_KEY_LEN, wide(length(set.key())));
            if set.is_map() {
                batch.be32(NFTA_SET_DATA_TYPE, datatype(set.data())).be32(NFTA_SET_DATA_LEN, wide(length(set.data())));
            }
            batch.be32(NFTA_SET_ID, id);
            if set.is_ranges() {
                write_fields(batch, set.key());
            }
            batch.bytes(NFTA_SET_USERDATA, &byte_order(set));
        });
    }

    fn add_chain(&mut self, family: Family, chain: &Chain) {
        let label = label(family, format!("make the chain {}", chain.name));
        self.push(label, message::NEWCHAIN, F_CREATE, |batch| {
            batch.text(NFTA_CHAIN_NAME, chain.name);
            if let Some(hook) = &chain.hook {
                batch.nested(NFTA_CHAIN_HOOK, |inner| {
                    inner.be32(NFTA_HOOK_NUMBER, hook.number);
                    inner.be32(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
                });
                batch.be32(NFTA_CHAIN_POLICY, 1).text(NFTA_CHAIN_TYPE, hook.kind);
            }
        });
    }

    fn clear_chain(&mut self, family: Family, chain: &str) {
        let label = label(family, format!("clear the chain {chain}"));
        self.push(label, message::DELRULE, 0, |batch| {
            batch.text(NFTA_RULE_CHAIN, chain);
        });
    }

    fn add_rule(&mut self, family: Family, chain: &str, rule: &Rule) {
        let label = label(family, format!("make the rule '{}' of the chain {chain}", rule.comment));
        self.push(label, message::NEWRULE, F_CREATE | F_APPEND, |batch| {
            batch.text(NFTA_RULE_CHAIN, chain);
            expr::write(batch, NFTA_RULE_EXPRESSIONS, &rule.expressions);
            batch.bytes(NFTA_RULE_USERDATA, &comment_bytes(rule.comment));
        });
    }

    /// Adds elements. Existing ones must have the same value; with `exclusive`, none may exist.
    pub(super) fn add<'e>(&mut self, elements: impl IntoIterator<Item = &'e Element>, exclusive: bool) {
        let flags = if exclusive { F_CREATE | F_EXCL } else { F_CREATE };
        self.elements("add to", message::NEWSETELEM, flags, elements);
    }

    /// Removes elements, which must exist.
    pub(super) fn remove<'e>(&mut self, elements: impl IntoIterator<Item = &'e Element>) {
        self.elements("remove from", message::DELSETELEM, 0, elements);
    }

    /// Consecutive elements of a set share a message.
    fn elements<'e>(&mut self, verb: &str, kind: u16, flags: u16, all: impl IntoIterator<Item = &'e Element>) {
        let all: Vec<&Element> = all.into_iter().collect();
        for group in all.chunk_by(|one, other| one.set == other.set) {
            for chunk in group.chunks(ELEMENTS) {
                let Some(first) = chunk.first() else { continue };
                let (name, set) = (first.set.name(), Some(first.set));
                let label = Label { what: format!("{verb} the set {name}"), family: first.set.family(), set };
                self.push(label, kind, flags, |batch| {
                    batch.text(NFTA_SET_NAME, name);
                    batch.nested(NFTA_LIST_ELEMENTS, |list| {
                        chunk.iter().for_each(|element| write_element(list, element))
                    });
                });
            }
        }
    }
}

fn label(family: Family, what: String) -> Label {
    Label { what, family, set: None }
}

fn wide(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// `NFT_SET_*` of a set.
pub(super) fn set_flags(set: Set) -> u32 {
    let mut flags = if set.is_map() { NFT_SET_MAP } else { 0 };
    if set.is_interval() {
        flags |= NFT_SET_INTERVAL;
    }
    if set.is_ranges() {
        flags |= NFT_SET_CONCAT;
    }
    flags
}

fn write_fields(batch: &mut Batch, fields: &[Field]) {
    batch.nested(NFTA_SET_DESC, |desc| {
        desc.nested(NFTA_SET_DESC_CONCAT, |concat| {
            for field in fields {
                concat.nested(NFTA_LIST_ELEM, |one| {
                    one.be32(NFTA_SET_FIELD_LEN, wide(field.length()));
                });
            }
        });
    });
}

/// The byte order of a set's keys (`NFTNL_UDATA_SET_KEYBYTEORDER`). Without it `nft` prints interface names reversed.
fn byte_order(set: Set) -> Vec<u8> {
    const KEY_BYTE_ORDER: u8 = 0;
    let order: u32 = match set.key() {
        [Field::Interface] => 1,
        [_] => 2,
        // Concatenated keys have none.
        _ => 0,
    };
    let mut bytes = vec![KEY_BYTE_ORDER, 4];
    bytes.extend(order.to_ne_bytes());
    bytes
}

/// A comment in the format of `nft`: type, length, NUL-terminated string.
fn comment_bytes(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    let mut bytes = vec![COMMENT, length];
    bytes.extend(comment.bytes().take(usize::from(length - 1)));
    bytes.push(0);
    bytes
}

/// The comment in user data of `nft`; empty if there is none.
pub(super) fn comment(attribute: Option<Attribute<'_>>) -> String {
    let mut rest = attribute.map(|attribute| attribute.payload).unwrap_or_default();
    while let [kind, length, behind @ ..] = rest {
        let Some((value, after)) = behind.split_at_checked(usize::from(*length)) else { break };
        if *kind == COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return String::from_utf8_lossy(text).into_owned();
        }
        rest = after;
    }
    String::new()
}

fn write_value(batch: &mut Batch, kind: u16, value: &[u8]) {
    batch.nested(kind, |inner| {
        inner.bytes(expr::NFTA_DATA_VALUE, value);
    });
}

/// Writes an element. A range of a single field is two elements: its first key, and the first key after it with
/// `NFT_SET_ELEM_INTERVAL_END`.
fn write_element(list: &mut Batch, element: &Element) {
    list.nested(NFTA_LIST_ELEM, |one| {
        write_value(one, NFTA_ELEM_KEY, &element.key);
        if let Some(end) = element.end.as_ref().filter(|_| element.set.is_ranges()) {
            write_value(one, NFTA_ELEM_KEY_END, end);
        }
        if let Some(data) = &element.data {
            write_value(one, NFTA_ELEM_DATA, data);
        }
        if !element.comment.is_empty() {
            one.bytes(NFTA_ELEM_USERDATA, &comment_bytes(&element.comment));
        }
    });
    let last = element.end.as_ref().filter(|_| !element.set.is_ranges());
    if let Some(behind) = last.and_then(|last| successor(last)) {
        list.nested(NFTA_LIST_ELEM, |one| {
            one.be32(NFTA_ELEM_FLAGS, INTERVAL_END);
            write_value(one, NFTA_ELEM_KEY, &behind);
        });
    }
}

/// The next key; None after the last one.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

fn predecessor(key: &[u8]) -> Vec<u8> {
    let mut previous = key.to_vec();
    for byte in previous.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            break;
        }
    }
    previous
}

/// Appends a query for the element of a set with this key.
pub(super) fn write_element_query(batch: &mut Batch, table: &str, element: &Element) {
    write_query(batch, message::GETSETELEM, 0, element.set.family().number(), |batch| {
        batch.text(NFTA_TABLE, table).text(NFTA_SET_NAME, element.set.name());
        batch.nested(NFTA_LIST_ELEMENTS, |list| {
            list.nested(NFTA_LIST_ELEM, |one| {
                write_value(one, NFTA_ELEM_KEY, &element.key);
                if let Some(end) = element.end.as_ref().filter(|_| element.set.is_ranges()) {
                    write_value(one, NFTA_ELEM_KEY_END, end);
                }
            });
        });
    });
}

/// A received element; for a range of a single field, one of its ends.
pub(super) struct Incoming {
    pub(super) element: Element,
    /// Whether it is the first key after a range.
    pub(super) closes: bool,
}

/// Parses a message with elements of a set.
pub(super) fn read_elements(set: Set, message: &Message<'_>) -> Result<Vec<Incoming>, Malformed> {
    let (_, attributes) = message.split(FIXED)?;
    let Some(list) = attributes.get(NFTA_LIST_ELEMENTS) else { return Ok(Vec::new()) };
    list.nested()?.iter().map(|element| read_element(set, element.nested()?)).collect()
}

fn read_element(set: Set, attributes: Attributes<'_>) -> Result<Incoming, Malformed> {
    let value = |kind| -> Result<Option<Vec<u8>>, Malformed> {
        let Some(attribute) = attributes.get(kind) else { return Ok(None) };
        Ok(attribute.nested()?.get(expr::NFTA_DATA_VALUE).map(|value| value.payload.to_vec()))
    };
    let flags = attributes.get(NFTA_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
    let key = value(NFTA_ELEM_KEY)?.unwrap_or_default();
    let comment = comment(attributes.get(NFTA_ELEM_USERDATA));
    let element = Element { set, key, end: value(NFTA_ELEM_KEY_END)?, data: value(NFTA_ELEM_DATA)?, comment };
    Ok(Incoming { element, closes: flags & INTERVAL_END != 0 })
}

/// Joins the two ends of ranges of a single field. Drops ends without a start, which `nft` writes.
pub(super) fn join(mut incoming: Vec<Incoming>) -> Vec<Element> {
    // Where one range ends and another starts, the end sorts first.
    incoming.sort_by(|one, other| (&one.element.key, !one.closes).cmp(&(&other.element.key, !other.closes)));
    let mut all = Vec::new();
    let mut open: Option<Element> = None;
    for one in incoming {
        let before = predecessor(&one.element.key);
        if let Some(mut range) = open.take() {
            range.end = Some(before);
            all.push(range);
        }
        if !one.closes {
            open = Some(one.element);
        }
    }
    if let Some(mut range) = open {
        range.end = Some(vec![0xff; range.key.len()]);
        all.push(range);
    }
    all
}

#[cfg(test)]
mod tests;
