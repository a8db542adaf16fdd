//! The nftables families of the two tables, which share a name.

/// The nftables family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// `inet`: published ports, masquerading, isolation of networks.
    Inet,
    /// `bridge`: anti-spoofing.
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
