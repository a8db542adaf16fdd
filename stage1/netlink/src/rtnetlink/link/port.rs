//! An interface as a port of a bridge.

use super::{IFLA_PROTINFO, RTM_SETLINK, ifinfomsg};
use crate::error::Result;
use crate::message::{Attributes, Batch};
use crate::rtnetlink::socket::Socket;

const AF_BRIDGE: u8 = 7;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_GUARD: u16 = 5;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
const IFLA_BRPORT_NEIGH_SUPPRESS: u16 = 32;
const IFLA_BRPORT_ISOLATED: u16 = 33;

/// The switches of a port (bridge(8), "bridge link set"). When set, None leaves one as it is; when read, None is one that
/// this kernel has not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Port {
    /// What came in by it may go out by it: a pod reaches itself through the bridge (CNI's `hairpinMode`).
    pub hairpin: Option<bool>,
    /// It exchanges packets with ports that are not isolated, and with no other (CNI's `portIsolation`).
    pub isolated: Option<bool>,
    /// The bridge answers ARP and neighbour discovery from its own tables.
    pub neigh_suppress: Option<bool>,
    /// The bridge learns addresses from what comes in.
    pub learning: Option<bool>,
    /// Packets to an unknown address go out by it.
    pub unicast_flood: Option<bool>,
    /// Packets to an unknown group go out by it.
    pub multicast_flood: Option<bool>,
    /// It is shut down when messages of the spanning tree protocol come in.
    pub bpdu_guard: Option<bool>,
}

impl Port {
    fn switches(&self) -> [(u16, Option<bool>); 7] {
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
    /// As IFLA_PROTINFO and IFLA_INFO_SLAVE_DATA have it.
    pub(super) fn write(&self, m: &mut Batch) {
        for (kind, value) in self.switches() {
            if let Some(on) = value {
                m.u8(kind, u8::from(on));
            }
        }
    }
}

/// As IFLA_INFO_SLAVE_DATA has it.
pub(super) fn parse(data: &Attributes<'_>) -> Port {
    let switch = |kind| data.get(kind).and_then(|attribute| attribute.u8()).map(|value| value != 0);
    Port {
        hairpin: switch(IFLA_BRPORT_MODE),
        isolated: switch(IFLA_BRPORT_ISOLATED),
        neigh_suppress: switch(IFLA_BRPORT_NEIGH_SUPPRESS),
        learning: switch(IFLA_BRPORT_LEARNING),
        unicast_flood: switch(IFLA_BRPORT_UNICAST_FLOOD),
        multicast_flood: switch(IFLA_BRPORT_MCAST_FLOOD),
        bpdu_guard: switch(IFLA_BRPORT_GUARD),
    }
}

impl Socket {
    /// Sets switches of a port, by its interface's index, in one request.
    ///
    /// # Errors
    /// What the kernel says: it is gone (ENODEV), or no port of a bridge.
    pub fn change_port(&mut self, index: u32, port: &Port) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_SETLINK, 0, &ifinfomsg(AF_BRIDGE, index, (0, 0)), |m| {
            m.nested(IFLA_PROTINFO, |m| port.write(m));
        });
        self.channel().order(batch, format_args!("change the bridge port {index}"))
    }
}
