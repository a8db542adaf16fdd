//! An interface as a bridge port.

use super::{IFLA_PROTINFO, RTM_SETLINK, ifinfomsg};
use crate::error::Result;
use crate::message::{Attributes, Batch};
use crate::rtnetlink::socket::Socket;

const AF_BRIDGE: u8 = 7;
const IFLA_BRPORT_STATE: u16 = 1;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_GUARD: u16 = 5;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
const IFLA_BRPORT_FLUSH: u16 = 24;
const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
const IFLA_BRPORT_NEIGH_SUPPRESS: u16 = 32;
const IFLA_BRPORT_ISOLATED: u16 = 33;
/// `BR_STATE_DISABLED`.
const DISABLED: u8 = 0;

/// The settings of a bridge port (`bridge link set`, bridge(8)). None leaves a setting unchanged; when read, None
/// means that the kernel lacks it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Port {
    /// Send frames out of the port they came in through, so that a pod reaches itself through the bridge (CNI's
    /// `hairpinMode`).
    pub hairpin: Option<bool>,
    /// Exchange frames with ports that are not isolated only (CNI's `portIsolation`).
    pub isolated: Option<bool>,
    /// Answer ARP and neighbour discovery from the bridge's tables.
    pub neigh_suppress: Option<bool>,
    /// Learn hardware addresses from incoming frames.
    pub learning: Option<bool>,
    /// Send frames for unknown hardware addresses.
    pub unicast_flood: Option<bool>,
    /// Send frames for unknown multicast groups.
    pub multicast_flood: Option<bool>,
    /// Disable the port when it receives spanning tree messages (BPDUs).
    pub bpdu_guard: Option<bool>,
}

impl Port {
    /// Whether these settings, as read, are as `wanted`.
    #[must_use]
    pub fn satisfies(&self, wanted: &Self) -> bool {
        let both = self.settings().into_iter().zip(wanted.settings());
        both.into_iter().all(|((_, has), (_, wanted))| wanted.is_none() || wanted == has)
    }

    fn settings(&self) -> [(u16, Option<bool>); 7] {
        [
            (IFLA_BRPORT_MODE, self.hairpin),
            (IFLA_BRPORT_ISOLATED, self.isolated),
            (IFLA_BRPORT_NEIGH_SUPPRESS, self.neigh_suppress),
            (IFLA_BRPORT_LEARNING, self.learning),
            (IFLA_BRPORT_UNICAST_FLOOD, self.unicast_flood),
            (IFLA_BRPORT_MCAST_FLOOD, self.multicast_flood),
            (IFLA_BRPORT_GUARD, self.bpdu_guard),
        ]
    }
}

impl Port {
    /// Writes the attributes of IFLA_PROTINFO and IFLA_INFO_SLAVE_DATA.
    pub(super) fn write(&self, m: &mut Batch) {
        for (kind, value) in self.settings() {
            if let Some(on) = value {
                m.u8(kind, u8::from(on));
            }
        }
    }
}

/// Parses the attributes of IFLA_INFO_SLAVE_DATA.
pub(super) fn parse(data: &Attributes<'_>) -> Port {
    let setting = |kind| data.get(kind).and_then(|attribute| attribute.u8()).map(|value| value != 0);
    Port {
        hairpin: setting(IFLA_BRPORT_MODE),
        isolated: setting(IFLA_BRPORT_ISOLATED),
        neigh_suppress: setting(IFLA_BRPORT_NEIGH_SUPPRESS),
        learning: setting(IFLA_BRPORT_LEARNING),
        unicast_flood: setting(IFLA_BRPORT_UNICAST_FLOOD),
        multicast_flood: setting(IFLA_BRPORT_MCAST_FLOOD),
        bpdu_guard: setting(IFLA_BRPORT_GUARD),
    }
}

impl Socket {
    /// Changes the settings of a bridge port, by the index of its interface.
    ///
    /// # Errors
    /// Errors of the kernel: the interface is gone (ENODEV) or not a bridge port.
    pub fn change_port(&mut self, index: u32, port: &Port) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_SETLINK, 0, &ifinfomsg(AF_BRIDGE, index, (0, 0)), |m| {
            m.nested(IFLA_PROTINFO, |m| port.write(m));
        });
        self.channel().execute(batch, format_args!("change the bridge port {index}"))
    }

    /// Disables a bridge port, by the index of its interface: the bridge takes no frames from it, sends none out of it,
    /// and forgets the hardware addresses behind it. Unlike setting the interface down, that waits for no RCU grace
    /// period. The kernel enables the port again if its interface is set up or its peer gets a carrier.
    ///
    /// # Errors
    /// Errors of the kernel: the interface is gone (ENODEV), down (ENETDOWN) or not a bridge port, or the bridge runs
    /// the spanning tree protocol (EBUSY).
    pub fn disable_port(&mut self, index: u32) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_SETLINK, 0, &ifinfomsg(AF_BRIDGE, index, (0, 0)), |m| {
            m.nested(IFLA_PROTINFO, |m| {
                m.u8(IFLA_BRPORT_STATE, DISABLED).bytes(IFLA_BRPORT_FLUSH, &[]);
            });
        });
        self.channel().execute(batch, format_args!("disable the bridge port {index}"))
    }
}
