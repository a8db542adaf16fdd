//! The properties and counters of an interface, as the kernel reports them.

use super::port::Port;
use super::{
    IFF_PROMISC, IFF_UP, IFINFOMSG, IFLA_ADDRESS, IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU,
    IFLA_TXQLEN, RTM_NEWLINK, create, port,
};
use crate::error::Malformed;
use crate::mac::Mac;
use crate::message::{Attribute, Attributes, Message};

const IFLA_LINK_NETNSID: u16 = 37;

const IFF_LOOPBACK: u32 = 0x8;
const IFF_RUNNING: u32 = 0x40;

/// An interface at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The index, unique within the network namespace.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The kind (`IFLA_INFO_KIND`): `bridge`, `veth`, `macvlan` …; None for hardware and the loopback interface.
    pub kind: Option<String>,
    /// The index of the bridge that the interface is attached to.
    pub master: Option<u32>,
    /// The index of the parent interface (macvlan, ipvlan) or the other end (veth), in the namespace of `netns_id`.
    pub parent: Option<u32>,
    /// The namespace of `parent` if it is another one, as an ID local to this namespace.
    pub netns_id: Option<i32>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The hardware address, if it has six bytes.
    pub mac: Option<Mac>,
    /// `IFF_*` of netdevice(7).
    pub flags: u32,
    /// The length of the transmit queue in packets.
    pub tx_queue_length: u32,
    /// The interface group; 0 by default.
    pub group: u32,
    /// The alias.
    pub alias: Option<String>,
    /// The settings of the bridge port, if `master` is a bridge.
    pub port: Option<Port>,
    /// `IFLA_MACVLAN_MODE` or `IFLA_IPVLAN_MODE`, as a number.
    pub mode: Option<u32>,
    /// Whether VLAN filtering of a bridge is on; None if the kernel lacks it.
    pub vlan_filtering: Option<bool>,
}

impl Link {
    /// Whether the interface is set up (`IFF_UP`).
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether the interface is up and has a carrier (`IFF_RUNNING`).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.flags & IFF_RUNNING != 0
    }

    /// Whether promiscuous mode is on.
    #[must_use]
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Whether it is the loopback interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }
}

/// Parses an RTM_NEWLINK; None for other messages.
pub(crate) fn parse(message: &Message<'_>) -> std::result::Result<Option<Link>, Malformed> {
    if message.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (head, attributes) = message.split(IFINFOMSG)?;
    let word = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let short = Malformed("a link without its fixed part");
    let mut link = Link {
        index: word(4).ok_or(short)?,
        name: String::new(),
        kind: None,
        master: None,
        parent: None,
        netns_id: None,
        mtu: 0,
        mac: None,
        flags: word(8).ok_or(short)?,
        tx_queue_length: 0,
        group: 0,
        alias: None,
        port: None,
        mode: None,
        vlan_filtering: None,
    };
    for attribute in attributes.iter() {
        match attribute.kind {
            IFLA_IFNAME => link.name = attribute.text().unwrap_or_default().to_owned(),
            IFLA_MTU => link.mtu = attribute.u32().unwrap_or_default(),
            IFLA_LINK => link.parent = attribute.u32().filter(|index| *index != 0),
            IFLA_MASTER => link.master = attribute.u32().filter(|index| *index != 0),
            IFLA_TXQLEN => link.tx_queue_length = attribute.u32().unwrap_or_default(),
            IFLA_LINK_NETNSID => link.netns_id = attribute.i32(),
            IFLA_ADDRESS => link.mac = attribute.payload.try_into().ok().map(Mac),
            IFLA_GROUP => link.group = attribute.u32().unwrap_or(0),
            IFLA_IFALIAS => link.alias = attribute.text().filter(|alias| !alias.is_empty()).map(str::to_owned),
            IFLA_LINKINFO => parse_info(&attribute, &mut link)?,
            _ => {}
        }
    }
    Ok(Some(link))
}

fn parse_info(info: &Attribute<'_>, link: &mut Link) -> std::result::Result<(), Malformed> {
    let info = info.nested()?;
    let text = |kind| info.get(kind).and_then(|attribute| attribute.text());
    link.kind = text(IFLA_INFO_KIND).map(str::to_owned);
    let data = info.get(IFLA_INFO_DATA).map_or(Ok(Attributes::default()), |data| data.nested())?;
    let of = |kind| data.get(kind);
    match link.kind.as_deref() {
        Some("macvlan") => link.mode = of(create::IFLA_MACVLAN_MODE).and_then(|mode| mode.u32()),
        Some("ipvlan") => link.mode = of(create::IFLA_IPVLAN_MODE).and_then(|mode| mode.u16()).map(u32::from),
        Some("bridge") => {
            link.vlan_filtering = of(create::IFLA_BR_VLAN_FILTERING).and_then(|on| on.u8()).map(|on| on != 0)
        }
        _ => {}
    }
    if text(IFLA_INFO_SLAVE_KIND) == Some("bridge")
        && let Some(data) = info.get(IFLA_INFO_SLAVE_DATA)
    {
        link.port = Some(port::parse(&data.nested()?));
    }
    Ok(())
}
