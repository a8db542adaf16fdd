//! The rule expressions that gantry uses, encoded to and decoded from the attributes of nf_tables.h (`NFTA_EXPR_*`
//! and those of each kind).
//!
//! Registers are the 32-bit registers 0 to 15 (`NFT_REG32_*`); every fourth has a second name (`NFT_REG_1` to
//! `NFT_REG_4`).

use crate::message::{Attribute, Attributes, Batch};

/// The verdict of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    /// gantry's own rules have none.
    Goto(String),
}

/// An expression of a rule: loads a register, compares (a mismatch ends the rule), or acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr {
    /// `meta`: loads a property of the packet (`NFT_META_*`).
    Meta { key: u32, to: u8 },
    /// `payload`: loads bytes of the link header (base 0), the network header (1) or the transport header (2).
    Payload { base: u32, offset: u32, length: u32, to: u8 },
    /// `cmp`: equal or not equal.
    Compare { from: u8, equal: bool, value: Vec<u8> },
    /// `bitwise`: AND with a mask, in place.
    Mask { register: u8, mask: Vec<u8> },
    /// `lookup`: matches if the key is in a set (or not, if inverted); of a map, loads the value.
    Lookup { set: String, from: u8, to: Option<u8>, inverted: bool },
    /// `fib`: loads the type of the destination address (`RTN_*`).
    DestinationType { to: u8 },
    /// `ct`: loads a property of the connection (`NFT_CT_*`).
    Connection { key: u32, to: u8 },
    /// `immediate`: a verdict.
    Verdict(Verdict),
    /// `nat`: destination NAT.
    Dnat { family: u8, address: u8, port: u8 },
    /// `masq`: masquerade.
    Masquerade,
}

pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;
const NFTA_LIST_ELEM: u16 = 1;
/// Of `NFTA_DATA_*`.
pub(super) const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;
pub(super) const NFTA_LOOKUP_SET: u16 = 1;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;
pub(super) const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_DADDR: u32 = 2;
/// `NFT_LOOKUP_F_INV`: match if the key is not in the set.
const NFT_LOOKUP_F_INV: u32 = 1;
const NFT_NAT_DNAT: u32 = 1;
/// The flags that the kernel sets itself if an address and a port are given.
const NAT_FLAGS_IMPLIED: u32 = 3;

/// The register as the kernel prints it: `NFT_REG_1` to `NFT_REG_4` where possible, else `NFT_REG32_*`.
fn register(number: u8) -> u32 {
    let number = u32::from(number);
    if number.is_multiple_of(4) { 1 + number / 4 } else { 8 + number }
}

fn read_register(attribute: Option<Attribute<'_>>) -> Option<u8> {
    let number = match attribute?.be32()? {
        number @ 1..=4 => (number - 1) * 4,
        number @ 8..=23 => number - 8,
        _ => return None,
    };
    u8::try_from(number).ok()
}

/// Writes a rule's expressions as an attribute of this type.
pub(super) fn write(batch: &mut Batch, kind: u16, expressions: &[Expr]) {
    batch.nested(kind, |list| {
        for expression in expressions {
            list.nested(NFTA_LIST_ELEM, |element| {
                element.text(NFTA_EXPR_NAME, expression.name());
                element.nested(NFTA_EXPR_DATA, |data| expression.write(data));
            });
        }
    });
}

/// Parses a rule's expressions; None if there is one that gantry does not use.
pub(super) fn read(list: Attributes<'_>) -> Option<Vec<Expr>> {
    list.iter()
        .map(|element| {
            let element = element.nested().ok()?;
            let data = match element.get(NFTA_EXPR_DATA) {
                Some(data) => data.nested().ok()?,
                None => Attributes::default(),
            };
            Expr::read(element.get(NFTA_EXPR_NAME)?.text()?, data)
        })
        .collect()
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Compare { .. } => "cmp",
            Self::Mask { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::DestinationType { .. } => "fib",
            Self::Connection { .. } => "ct",
            Self::Verdict(_) => "immediate",
            Self::Dnat { .. } => "nat",
            Self::Masquerade => "masq",
        }
    }

    fn write(&self, data: &mut Batch) {
        match self {
            Self::Meta { key, to } | Self::Connection { key, to } => {
                data.be32(1, register(*to)).be32(2, *key);
            }
            Self::Payload { base, offset, length, to } => {
                data.be32(1, register(*to)).be32(2, *base).be32(3, *offset).be32(4, *length);
            }
            Self::Compare { from, equal, value } => {
                data.be32(1, register(*from)).be32(2, u32::from(!equal));
                write_value(data, NFTA_CMP_DATA, value);
            }
            Self::Mask { register: both, mask } => {
                let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                data.be32(1, register(*both)).be32(2, register(*both)).be32(3, length);
                write_value(data, 4, mask);
                write_value(data, 5, &vec![0; mask.len()]);
            }
            Self::Lookup { set, from, to, inverted } => {
                data.text(NFTA_LOOKUP_SET, set).be32(2, register(*from));
                if let Some(to) = to {
                    data.be32(3, register(*to));
                }
                if *inverted {
                    data.be32(5, NFT_LOOKUP_F_INV);
                }
            }
            Self::DestinationType { to } => {
                data.be32(1, register(*to)).be32(2, NFT_FIB_RESULT_ADDRTYPE).be32(3, NFTA_FIB_F_DADDR);
            }
            Self::Verdict(verdict) => {
                data.be32(1, 0).nested(NFTA_IMMEDIATE_DATA, |value| verdict.write(value));
            }
            Self::Dnat { family, address, port } => {
                data.be32(1, NFT_NAT_DNAT).be32(2, u32::from(*family));
                data.be32(3, register(*address)).be32(5, register(*port));
            }
            Self::Masquerade => {}
        }
    }

    fn read(name: &str, data: Attributes<'_>) -> Option<Self> {
        let number = |kind| data.get(kind)?.be32();
        let register = |kind| read_register(data.get(kind));
        let zero = |kind| data.get(kind).is_none_or(|attribute| attribute.be32() == Some(0));
        Some(match name {
            "meta" => Self::Meta { key: number(NFTA_META_KEY)?, to: register(1)? },
            "ct" => Self::Connection { key: number(2)?, to: register(1)? },
            "payload" => Self::Payload { base: number(2)?, offset: number(3)?, length: number(4)?, to: register(1)? },
            "cmp" => {
                let equal = match number(2)? {
                    0 => true,
                    1 => false,
                    _ => return None,
                };
                Self::Compare { from: register(1)?, equal, value: read_value(data.get(NFTA_CMP_DATA))? }
            }
            "bitwise" => {
                let (mask, xor) = (read_value(data.get(4))?, read_value(data.get(5))?);
                let plain = register(1)? == register(2)? && xor.iter().all(|byte| *byte == 0) && zero(6);
                plain.then_some(Self::Mask { register: register(1)?, mask })?
            }
            "lookup" => {
                let to = if data.get(3).is_some() { Some(register(3)?) } else { None };
                let inverted = match number(5) {
                    None | Some(0) => false,
                    Some(NFT_LOOKUP_F_INV) => true,
                    Some(_) => return None,
                };
                Self::Lookup { set: data.get(NFTA_LOOKUP_SET)?.text()?.to_owned(), from: register(2)?, to, inverted }
            }
            "fib" => {
                let ours = number(2)? == NFT_FIB_RESULT_ADDRTYPE && number(3)? == NFTA_FIB_F_DADDR;
                ours.then_some(Self::DestinationType { to: register(1)? })?
            }
            "immediate" => {
                (number(1)? == 0).then_some(Self::Verdict(Verdict::read(data.get(NFTA_IMMEDIATE_DATA)?)?))?
            }
            "nat" => Self::read_dnat(data)?,
            "masq" => data.iter().next().is_none().then_some(Self::Masquerade)?,
            _ => return None,
        })
    }

    fn read_dnat(data: Attributes<'_>) -> Option<Self> {
        let number = |kind| data.get(kind)?.be32();
        let (address, port) = (read_register(data.get(3))?, read_register(data.get(5))?);
        let same = |kind, least| data.get(kind).is_none_or(|most| read_register(Some(most)) == Some(least));
        let flags = number(7).unwrap_or(0) & !NAT_FLAGS_IMPLIED;
        let ours = number(1)? == NFT_NAT_DNAT && same(4, address) && same(6, port) && flags == 0;
        ours.then_some(Self::Dnat { family: u8::try_from(number(2)?).ok()?, address, port })
    }
}

impl Verdict {
    fn write(&self, value: &mut Batch) {
        let code = match self {
            Self::Accept => NF_ACCEPT,
            Self::Drop => NF_DROP,
            Self::Return => NFT_RETURN,
            Self::Jump(_) => NFT_JUMP,
            Self::Goto(_) => NFT_GOTO,
        };
        value.nested(NFTA_DATA_VERDICT, |verdict| {
            verdict.be32(NFTA_VERDICT_CODE, code.cast_unsigned());
            if let Self::Jump(chain) | Self::Goto(chain) = self {
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// Parses the value of an `immediate`; None for data, and for other verdicts (continue, break, queue).
    pub(super) fn read(value: Attribute<'_>) -> Option<Self> {
        let verdict = value.nested().ok()?.get(NFTA_DATA_VERDICT)?.nested().ok()?;
        let chain = || Some(verdict.get(NFTA_VERDICT_CHAIN)?.text()?.to_owned());
        Some(match verdict.get(NFTA_VERDICT_CODE)?.be32()?.cast_signed() {
            NF_ACCEPT => Self::Accept,
            NF_DROP => Self::Drop,
            NFT_RETURN => Self::Return,
            NFT_JUMP => Self::Jump(chain()?),
            NFT_GOTO => Self::Goto(chain()?),
            _ => return None,
        })
    }
}

fn write_value(data: &mut Batch, kind: u16, value: &[u8]) {
    data.nested(kind, |inner| {
        inner.bytes(NFTA_DATA_VALUE, value);
    });
}

pub(super) fn read_value(attribute: Option<Attribute<'_>>) -> Option<Vec<u8>> {
    Some(attribute?.nested().ok()?.get(NFTA_DATA_VALUE)?.payload.to_vec())
}
