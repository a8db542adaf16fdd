//! The two tables: each in a family of nftables, both of one name.

/// A family of nftables that a part of our rules is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// What is routed: ports, masquerading, the separation of networks.
    Inet,
    /// What bridges switch: guards.
    Bridge,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::Inet, Self::Bridge];

    /// `NFPROTO_*`.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Bridge => 7,
        }
    }
}
