//! Making a pod's networks.
//!
//! | step | what a kill after it leaves | who sees to it |
//! |---|---|---|
//! | ports held | nothing: sockets die with us | |
//! | record written, with all networks and no entries | a record | detach |
//! | networks made, one after the other | leases, interfaces, what plugins keep; all by names the record has. A plugin that runs yet | detach, which ends that first (`turn`) |
//! | record written, with entries and addresses | the same | detach |
//! | entries added to the tables, and 127.0.0.1 let out | the same, and entries | detach; the switch: reload |

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gantry_contract::network::{Address, Attached, Host, Route};
use gantry_contract::plan::{Dns, Networks, Port};

use super::error::{NetworkError, Result};
use super::forwarding::Forwarding;
use super::record::{self, Joined, Place, Record, Records};
use super::select::{Choice, Families};
use super::state::{Lock, StateDir, WAIT};
use super::turn::Turn;
use super::{Chosen, Held, Namespaces, Pod, detach, entries, ports, tables};
use crate::config::CniVersion;
use crate::native::{self, Ends};
use crate::netlink::{Namespace, Socket};
use crate::nft::{self, State};
use crate::plugin::NetworkResult;

/// What is at hand while a pod is attached.
struct Making<'a> {
    pod: &'a Pod<'a>,
    chosen: &'a Chosen<'a>,
    host: &'a Namespace,
    own: &'a Namespace,
    keeper: u32,
    state: StateDir,
}

pub(super) fn attach(pod: &Pod<'_>, chosen: &Chosen<'_>, namespaces: &Namespaces<'_>) -> Result<(Vec<Attached>, Held)> {
    let Chosen { wanted, choices } = chosen;
    let Namespaces { host, own, keeper } = *namespaces;
    take_away_earlier(pod, wanted, host)?;
    let state = StateDir::open(&wanted.host)?;
    let mut sockets = Vec::new();
    let picked;
    let chosen = if choices.iter().any(|choice| choice.picked) {
        picked = with_picked(chosen, host, &mut sockets)?;
        &picked
    } else {
        chosen
    };
    for choice in &chosen.choices {
        if choice.families() != Families::default() {
            ports::fit(&choice.ports, choice.families(), &choice.network.name)?;
        }
        if !choice.picked {
            within(host, || ports::hold(&choice.ports, choice.held_families(), &mut sockets))
                .map_err(|error| whose_port(&wanted.host, error))?;
        }
    }
    let making = Making { pod, chosen, host, own, keeper, state };
    let mut record = making.intent()?;
    record.write(pod.dir)?;
    let mut begun = 0;
    match making.make(&mut record, &mut sockets, &mut begun) {
        Ok(()) => Ok((record.attached, Held(sockets.into_iter().map(OwnedFd::from).collect()))),
        Err(cause) => Err(making.undo(&mut record, begun, cause)),
    }
}

/// What was chosen, with a free port of the host for each that asks for one. All ports of these networks are held: those that are
/// named come first.
fn with_picked<'a>(chosen: &Chosen<'a>, host: &Namespace, sockets: &mut Vec<ports::Socket>) -> Result<Chosen<'a>> {
    let mut choices = chosen.choices.clone();
    for choice in choices.iter_mut().filter(|choice| choice.picked) {
        let families = choice.held_families();
        let (mut free, named): (Vec<Port>, Vec<Port>) = choice.ports.iter().cloned().partition(|it| it.host_port == 0);
        within(host, || {
            ports::hold(&named, families, sockets)?;
            ports::pick(&mut free, families, sockets)
        })
        .map_err(|error| whose_port(&chosen.wanted.host, error))?;
        let mut free = free.into_iter();
        for port in choice.ports.iter_mut().filter(|port| port.host_port == 0) {
            port.host_port = free.next().map_or(0, |picked| picked.host_port);
        }
    }
    Ok(Chosen { wanted: chosen.wanted, choices })
}

/// What an earlier attempt has left: a supervisor that was killed, and its namespace with it. Whoever attaches has the pod's lock.
fn take_away_earlier(pod: &Pod<'_>, wanted: &Networks, host: &Namespace) -> Result<()> {
    match record::read(pod.dir, pod.id)? {
        None => Ok(()),
        Some(found) => within(host, || detach::found(pod, found, Some(&wanted.host), None)),
    }
}

/// Does something in the host's network namespace.
fn within<T>(host: &Namespace, work: impl FnOnce() -> Result<T>) -> Result<T> {
    host.enter(|| Ok(work())).map_err(NetworkError::link("go to the network namespace of the host"))?
}

impl Making<'_> {
    fn intent(&self) -> Result<Record> {
        let joined = self.chosen.choices.iter().enumerate().map(|(index, choice)| choice.joined(index));
        let mut record =
            Record::new(self.pod.id, &self.chosen.wanted.host, record::boot()?, joined.collect::<Result<_>>()?);
        let stat = rustix::fs::fstat(self.own).map_err(NetworkError::errno("look at the pod's network namespace"))?;
        let path = format!("/proc/{}/fd/{}", self.keeper, self.own.as_fd().as_raw_fd());
        record.namespace = Some(Place { path, device: stat.st_dev, inode: stat.st_ino });
        Ok(record)
    }

    /// Makes the networks and their entries. `begun`: how many networks there may be something of.
    fn make(&self, record: &mut Record, sockets: &mut Vec<ports::Socket>, begun: &mut usize) -> Result<()> {
        let mut pod = Socket::open().map_err(NetworkError::link("open a socket in the pod"))?;
        pod.loopback_up().map_err(NetworkError::link("set the pod's loopback interface up"))?;
        let _turn = self.chosen.run_plugins().then(|| Turn::first(self.pod.dir, self.pod.id)).transpose()?;
        // Until the entries are in the tables: nobody removes an empty bridge, or the tables, meanwhile.
        let _locked = self.state.lock(Lock::Links, true, WAIT)?;
        let leases = self.state.leases(&record.boot)?;
        let socket = Socket::open_in(self.host).map_err(NetworkError::link("open a socket on the host"))?;
        let mut ends = Ends {
            host: socket,
            pod,
            host_namespace: self.host,
            pod_namespace: self.own,
            leases: leases.as_fd(),
            owner: &self.chosen.wanted.host.state_dir,
        };
        let mut entries = State::new();
        let mut attached = Vec::new();
        let mut forwarded = Families::default();
        for (choice, joined) in self.chosen.choices.iter().zip(&record.networks) {
            *begun += 1;
            let netns = record.namespace.as_ref().map(|place| place.path.clone());
            let result = self.join(choice, joined, netns, &mut ends, &mut entries)?;
            let facts = facts(choice, joined, &result);
            let has = Families::of(facts.addresses.iter().map(|it| it.address));
            let settled = within(self.host, || {
                ports::settle(&choice.ports, choice.held_families(), has, &choice.network.name, sockets)
            });
            settled.map_err(|error| whose_port(&self.chosen.wanted.host, error))?;
            if choice.plugins.is_none() && native::is_forwarded(&choice.network) {
                forwarded = Families { v4: forwarded.v4 | has.v4, v6: forwarded.v6 | has.v6 };
            }
            attached.push(facts);
        }
        record.got(self.pod.dir, &entries, attached)?;
        within(self.host, || {
            let forwarding = Forwarding::new(&self.chosen.wanted.host, &self.state, &record.boot);
            forwarding.note(forwarded)?;
            entries.confined = forwarding.confined()?;
            self.add_entries(&entries)?;
            forwarding.switch_on(forwarded)
        })
    }

    /// One network.
    fn join(
        &self,
        choice: &Choice,
        joined: &Joined,
        netns: Option<String>,
        ends: &mut Ends<'_>,
        entries: &mut State,
    ) -> Result<NetworkResult> {
        let attachment = joined.attachment(self.pod.id, netns);
        if choice.plugins.is_none() {
            let failed =
                |source| NetworkError::Native { doing: ATTACH, network: joined.name.clone(), source: Box::new(source) };
            let added = native::add(&choice.network, &attachment, ends).map_err(failed)?;
            if let Some(bridge) = &added.took_over {
                within(self.host, || tables::remove_abandoned(&self.chosen.wanted.host, bridge))?;
            }
            if !entries::merge(entries, added.entries) {
                let what = format!("network '{}' wants ports or prefixes of another network of the pod", joined.name);
                let source = nft::Error::Invalid(what);
                return Err(NetworkError::Table { doing: "put the pod into the tables", source: Box::new(source) });
            }
            return Ok(added.result);
        }
        let failed = |doing, source| NetworkError::Plugins {
            doing,
            network: joined.name.clone(),
            why: choice.plugins.clone(),
            source: Box::new(source),
        };
        let _locked = self.state.lock(Lock::Plugins, true, WAIT)?;
        let runtime = self.state.runtime(&self.chosen.wanted.host)?;
        let mut result = within(self.host, || {
            if choice.network.cni_version >= CniVersion::V1_1_0 {
                runtime.status(&choice.network).map_err(|source| failed("use", source))?;
            }
            runtime.add_list(&choice.network, &attachment).map_err(|source| failed(ATTACH, source))
        })?;
        confirm(joined, ends, &mut result)?;
        Ok(result)
    }

    fn add_entries(&self, entries: &State) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let host = &self.chosen.wanted.host;
        let mut added = tables::add(host, entries);
        for _ in 0..ATTEMPTS {
            match added {
                // It is the first pod, or somebody removed the table; or what is in it is of networks that nobody uses now.
                Err(nft::Error::Missing { .. } | nft::Error::Overlap { .. }) => {}
                _ => break,
            }
            match tables::reload(host) {
                // Many begin at once: one of them has made the table.
                Err(NetworkError::Table { source, .. }) if matches!(*source, nft::Error::Contended { .. }) => {}
                other => other?,
            }
            added = tables::add(host, entries);
        }
        added.map_err(|error| match error {
            nft::Error::Taken { port, owner, .. } => {
                NetworkError::PortTaken { port: port.to_string(), by: format!("pod {owner}") }
            }
            source => NetworkError::Table { doing: "put the pod into the tables", source: Box::new(source) },
        })?;
        // Which prefixes of a network that was changed belong together, the records of all its pods say.
        if tables::were_changed(host, entries)? {
            tables::reload(host)?;
        }
        tables::open_loopback(entries)?;
        tables::forget_flows(entries, nft::conntrack::Which::Elsewhere)
    }

    /// Takes away what was made, last first.
    fn undo(&self, record: &mut Record, begun: usize, cause: NetworkError) -> NetworkError {
        record.networks.truncate(begun);
        let mut left = Vec::new();
        // The namespace may live on, and so would a cable in it.
        for joined in record.networks.iter().rev().filter(|joined| !joined.plugins) {
            let deleted = Socket::open().and_then(|mut pod| pod.delete_link_named(&joined.interface));
            let doing = || format!("remove the interface {} of the pod", joined.interface);
            left.extend(deleted.map_err(NetworkError::link(doing())).err());
        }
        left.extend(within(self.host, || detach::whole(self.pod.dir, record, Some(self.own))).err());
        match NetworkError::of_all(left) {
            Ok(()) => cause,
            Err(left) => NetworkError::NotUndone { cause: Box::new(cause), left: Box::new(left) },
        }
    }
}

/// Whose a port is that cannot be had: it may be a pod's.
fn whose_port(host: &Host, error: NetworkError) -> NetworkError {
    let NetworkError::PortTaken { port, by } = error else { return error };
    let holds = |record: &Record| {
        let all = record.attached.iter().flat_map(|attached| &attached.ports);
        all.into_iter()
            .any(|held| (0..held.count).any(|offset| ports::shown(held, held.host_port.saturating_add(offset)) == port))
    };
    let records = Records::open(host).and_then(|records| records.whole());
    let owner = records.ok().and_then(|records| records.into_iter().find(holds));
    let by = owner.map_or(by, |record| format!("pod {}", record.pod));
    NetworkError::PortTaken { port, by }
}

/// How often to put the tables back for one pod.
const ATTEMPTS: u32 = 4;
const ATTACH: &str = "attach the pod to";

/// What plugins say is not believed: the interface must be there, and of its addresses only those that it has count.
fn confirm(joined: &Joined, ends: &mut Ends<'_>, result: &mut NetworkResult) -> Result<()> {
    if result.interfaces.iter().any(|it| it.name == joined.interface && it.socket_path.is_some()) {
        // One that is no interface of the kernel's.
        return Ok(());
    }
    let doing = || format!("look at the interface {} of the pod", joined.interface);
    let link = ends.pod.link(&joined.interface).map_err(NetworkError::link(doing()))?;
    let Some(link) = link else {
        let (network, interface) = (joined.name.clone(), joined.interface.clone());
        return Err(NetworkError::Untrue { network, interface });
    };
    let has = ends.pod.addresses(Some(link.index)).map_err(NetworkError::link(doing()))?;
    result.ips.retain(|ip| has.iter().any(|own| own.address.prefix.address() == ip.address.address()));
    if let (Some(mac), Some(interface)) =
        (link.mac, result.interfaces.iter_mut().find(|it| it.name == joined.interface && !it.sandbox.is_empty()))
    {
        interface.mac = mac.to_string();
    }
    Ok(())
}

/// What the pod got, in the words of the contract.
fn facts(choice: &Choice, joined: &Joined, result: &NetworkResult) -> Attached {
    let is_ours = |index: usize| {
        let interface = result.interfaces.get(index);
        interface.is_none_or(|it| it.name == joined.interface && !it.sandbox.is_empty())
    };
    let interface = result.interfaces.iter().enumerate().find(|(index, it)| is_ours(*index) && !it.mac.is_empty());
    let ips = result.ips.iter().filter(|ip| ip.interface.is_none_or(is_ours));
    let dns = &result.dns;
    Attached {
        name: joined.name.clone(),
        interface: joined.interface.clone(),
        mac: interface.map(|(_, it)| it.mac.clone()),
        addresses: ips
            .map(|ip| Address { address: ip.address.address(), prefix: ip.address.length(), gateway: ip.gateway })
            .collect(),
        routes: result
            .routes
            .iter()
            .map(|route| Route { to: route.dst.first(), prefix: route.dst.length(), via: route.gw })
            .collect(),
        dns: Dns {
            // A plugin may write a name where an address belongs; resolv.conf has no place for it.
            servers: dns.nameservers.iter().filter_map(|server| server.parse().ok()).collect(),
            search: dns.search.clone(),
            options: dns.options.clone(),
            domain: dns.domain.clone(),
        },
        ports: choice.ports.clone(),
    }
}
