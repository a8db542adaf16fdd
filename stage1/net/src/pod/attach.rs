//! Attaches a pod to its networks.
//!
//! | step | left by a kill after it | cleaned up by |
//! |---|---|---|
//! | ports held | nothing: the kernel closes the sockets | |
//! | record written, with all networks and no entries | a record | detach |
//! | networks attached, one after the other | leases, interfaces, state of plugins, named in the record; a running plugin | detach, which first ends the plugin (`plugin_lock`) |
//! | record extended by entries and addresses | the same | detach |
//! | entries added to the tables, `route_localnet` enabled | the same, and entries | detach; the sysctl: reload |

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gantry_contract::network::Host;
use gantry_contract::plan::Networks;
use gantry_host::lock::LockMode;
use gantry_model::ErrorKind;
use gantry_model::net::{Dns, PodAddress, PodNetwork, PodPort, PodRoute};

use super::dead_pods::DetachedPods;
use super::error::{NetworkError, Result};
use super::forwarding::Forwarding;
use super::plugin_lock::PluginLock;
use super::record::{self, NamespacePath, NetworkRecord, Record, Records};
use super::select::{Families, SelectedNetwork};
use super::state::{LOCK_TIMEOUT, Lock, StateDir};
use super::tables::{self, EnabledInterface};
use super::{HeldPorts, Namespaces, NetworkSelection, Pod, dead_pods, detach, entries, port_users, ports};
use crate::config::CniVersion;
use crate::native::{self, Added, Ends, NativeError};
use crate::netlink::{Namespace, Socket};
use crate::nft::{self, Confined, State};
use crate::plugin::{Attachment, NetworkResult};

/// The attachment of one pod.
struct AttachOperation<'a> {
    pod: &'a Pod<'a>,
    selection: &'a NetworkSelection<'a>,
    host: &'a Namespace,
    own: &'a Namespace,
    keeper: u32,
    state: StateDir,
}

pub(super) fn attach(
    pod: &Pod<'_>,
    selection: &NetworkSelection<'_>,
    namespaces: &Namespaces<'_>,
) -> Result<(Vec<PodNetwork>, HeldPorts)> {
    let NetworkSelection { wanted, choices, preferred: _ } = selection;
    let Namespaces { host, own, keeper } = *namespaces;
    detach_earlier_attempt(pod, wanted, host)?;
    let state = StateDir::open(&wanted.host)?;
    let mut sockets = Vec::new();
    let picked;
    let selection = if choices.iter().any(|choice| choice.picked) {
        picked = with_picked(selection, host, &mut sockets)?;
        &picked
    } else {
        selection
    };
    for choice in &selection.choices {
        if choice.families() != Families::default() {
            ports::check_families(&choice.ports, choice.families(), &choice.network.name)?;
        }
        if !choice.picked {
            within(host, || ports::hold(&choice.ports, choice.held_families(), &mut sockets))
                .map_err(|error| name_port_owner(&wanted.host, error))?;
        }
    }
    let operation = AttachOperation { pod, selection, host, own, keeper, state };
    let mut record = operation.initial_record()?;
    record.write(pod.dir)?;
    let mut begun = 0;
    match operation.run(&mut record, &mut sockets, &mut begun) {
        Ok(()) => Ok((record.attached, HeldPorts(sockets.into_iter().map(OwnedFd::from).collect()))),
        Err(cause) => Err(operation.undo(&mut record, begun, cause)),
    }
}

/// Picks a free host port for each published port without one. All ports of these networks are held, explicit ones
/// first.
fn with_picked<'a>(
    selection: &NetworkSelection<'a>,
    host: &Namespace,
    sockets: &mut Vec<ports::PortSocket>,
) -> Result<NetworkSelection<'a>> {
    let mut choices = selection.choices.clone();
    for choice in choices.iter_mut().filter(|choice| choice.picked) {
        let families = choice.held_families();
        let (mut free, named): (Vec<PodPort>, Vec<PodPort>) =
            choice.ports.iter().cloned().partition(|it| it.host_port == 0);
        within(host, || {
            ports::hold(&named, families, sockets)?;
            ports::pick(&mut free, families, sockets)
        })
        .map_err(|error| name_port_owner(&selection.wanted.host, error))?;
        let mut free = free.into_iter();
        for port in choice.ports.iter_mut().filter(|port| port.host_port == 0) {
            port.host_port = free.next().map_or(0, |picked| picked.host_port);
        }
    }
    Ok(NetworkSelection { wanted: selection.wanted, choices, preferred: selection.preferred.clone() })
}

/// Detaches the networks of an earlier supervisor of the pod, which was killed. The caller has the pod's lock.
fn detach_earlier_attempt(pod: &Pod<'_>, wanted: &Networks, host: &Namespace) -> Result<()> {
    match record::read(pod.dir, pod.id)? {
        None => Ok(()),
        Some(record) => within(host, || detach::detach_recorded(pod, record, Some(&wanted.host), None)),
    }
}

/// Runs `work` in the host's network namespace.
fn within<T>(host: &Namespace, work: impl FnOnce() -> Result<T>) -> Result<T> {
    host.enter(|| Ok(work())).map_err(NetworkError::attempt("enter the network namespace of the host"))?
}

impl AttachOperation<'_> {
    /// The record from before anything is created.
    fn initial_record(&self) -> Result<Record> {
        let networks = self.selection.choices.iter().enumerate().map(|(index, choice)| choice.record(index));
        let mut record =
            Record::new(self.pod.id, &self.selection.wanted.host, record::boot()?, networks.collect::<Result<_>>()?);
        let stat = rustix::fs::fstat(self.own).map_err(NetworkError::io("look at the pod's network namespace"))?;
        let path = format!("/proc/{}/fd/{}", self.keeper, self.own.as_fd().as_raw_fd());
        record.namespace = Some(NamespacePath { path, device: stat.st_dev, inode: stat.st_ino });
        Ok(record)
    }

    /// Attaches the networks and adds their entries. `begun`: the number of networks that may have left resources.
    fn run(&self, record: &mut Record, sockets: &mut Vec<ports::PortSocket>, begun: &mut usize) -> Result<()> {
        let mut pod = Socket::open().map_err(NetworkError::attempt("open a socket in the pod"))?;
        pod.loopback_up().map_err(NetworkError::attempt("set the pod's loopback interface up"))?;
        let _plugin_lock =
            self.selection.runs_plugins().then(|| PluginLock::create(self.pod.dir, self.pod.id)).transpose()?;
        // Held until the entries are in the tables, so that an empty bridge or table is not removed in the meantime.
        let _locked = self.state.lock(Lock::Links, LockMode::Shared, LOCK_TIMEOUT)?;
        let leases = self.state.leases(&record.boot)?;
        let socket = Socket::open_in(self.host).map_err(NetworkError::attempt("open a socket on the host"))?;
        let mut ends = Ends {
            host: socket,
            pod,
            host_namespace: self.host,
            pod_namespace: self.own,
            leases: leases.as_fd(),
            owner: &self.selection.wanted.host.state_dir,
        };
        let mut entries = State::new();
        let mut attached = Vec::new();
        let mut forwarded = Families::default();
        for (choice, network) in self.selection.choices.iter().zip(&record.networks) {
            *begun += 1;
            let netns = record.namespace.as_ref().map(|place| place.path.clone());
            let result = self.attach_network(choice, network, netns, &mut ends, &mut entries)?;
            let facts = to_attached(choice, network, &result);
            let has = Families::from_addresses(facts.addresses.iter().map(|it| it.address));
            let adjusted = within(self.host, || {
                ports::adjust(&choice.ports, choice.held_families(), has, &choice.network.name, sockets)
            });
            adjusted.map_err(|error| name_port_owner(&self.selection.wanted.host, error))?;
            if choice.plugins.is_none() && native::is_forwarded(&choice.network) {
                forwarded |= has;
            }
            attached.push(facts);
        }
        record.append_result(self.pod.dir, &entries, attached)?;
        within(self.host, || {
            let forwarding = Forwarding::new(&self.selection.wanted.host, &self.state, &record.boot);
            forwarding.save(forwarded)?;
            entries.confined = forwarding.confined()?;
            self.add_entries(&entries)?;
            // Plugins may have attached another pod since `confined` was read, and its reload may have come before
            // these entries.
            let is_outdated = entries.confined != Confined::default() && forwarding.confined()? != entries.confined;
            if is_outdated || record.may_be_forwarded_by_plugins() {
                tables::reload_confinement(&self.selection.wanted.host)?;
            }
            forwarding.enable(forwarded)
        })
    }

    fn attach_network(
        &self,
        choice: &SelectedNetwork,
        network: &NetworkRecord,
        netns: Option<String>,
        ends: &mut Ends<'_>,
        entries: &mut State,
    ) -> Result<NetworkResult> {
        let preferred_addresses = self.selection.preferred.clone();
        let attachment = Attachment { preferred_addresses, ..network.attachment(self.pod.id, netns) };
        if choice.plugins.is_none() {
            let added = self.add_native(choice, &attachment, ends)?;
            if let Some(bridge) = &added.took_over {
                within(self.host, || tables::remove_abandoned(&self.selection.wanted.host, bridge))?;
            }
            if !entries::merge(entries, added.entries) {
                let problem =
                    format!("network '{}' needs ports or prefixes of another network of the pod", network.name);
                return Err(NetworkError::attempt(ADD_ENTRIES)(nft::Error::invalid(problem)));
            }
            return Ok(added.result);
        }
        let mut result = within(self.host, || self.add_by_plugins(choice, network, &attachment))?;
        verify(network, ends, &mut result)?;
        Ok(result)
    }

    /// Attaches the pod to a network without plugins. Takes over addresses from pods whose supervisors were killed.
    fn add_native(&self, choice: &SelectedNetwork, attachment: &Attachment, ends: &mut Ends<'_>) -> Result<Added> {
        let mut tried = BTreeSet::from([self.pod.id.to_owned()]);
        loop {
            let error = match native::add(&choice.network, attachment, ends) {
                Err(error) => error,
                Ok(added) => return Ok(added),
            };
            let host = &self.selection.wanted.host;
            let released = match &error {
                NativeError::Address(error) => {
                    within(self.host, || dead_pods::release_address(host, ends.leases, error, &mut tried))
                }
                NativeError::Netlink(_) | NativeError::Ports(_) | NativeError::Failed { .. } => Ok(false),
            };
            let failed = NetworkError::attempt(format!("{ATTACH} '{}'", choice.network.name));
            match released {
                Ok(true) => {}
                Ok(false) => return Err(failed(error)),
                Err(left) => return Err(NetworkError::Several(vec![failed(error), left])),
            }
        }
    }

    /// Attaches the pod to a network with its plugins; in the host's network namespace. First detaches dead pods whose
    /// port rules would take the packets to a port of this pod. If ADD fails, detaches the dead pods of the network,
    /// which may hold all addresses, and repeats it once.
    fn add_by_plugins(
        &self,
        choice: &SelectedNetwork,
        network: &NetworkRecord,
        attachment: &Attachment,
    ) -> Result<NetworkResult> {
        let host = &self.selection.wanted.host;
        dead_pods::detach_port_users(host, self.pod.id, network)?;
        let error = match self.run_plugins_add(choice, attachment) {
            Err(error) => error,
            Ok(result) => return Ok(result),
        };
        let (error, left) = match dead_pods::detach_attached(host, self.pod.id, &network.name) {
            Ok(DetachedPods { any: true, errors }) => match self.run_plugins_add(choice, attachment) {
                // Dead pods that are left do not matter here: the command that detaches them reports the errors.
                Ok(result) => return Ok(result),
                Err(error) => (error, errors),
            },
            Ok(DetachedPods { any: false, errors }) => (error, errors),
            Err(left) => (error, vec![left]),
        };
        if left.is_empty() {
            return Err(error);
        }
        Err(NetworkError::Several(std::iter::once(error).chain(left).collect()))
    }

    fn run_plugins_add(&self, choice: &SelectedNetwork, attachment: &Attachment) -> Result<NetworkResult> {
        let network = &choice.network;
        let reason = choice.plugins.as_ref().map(|reason| format!(" with its plugins ({reason})")).unwrap_or_default();
        let failed = |doing: &str, source| NetworkError::attempt(format!("{doing} '{}'{reason}", network.name))(source);
        let _locked = self.state.lock(Lock::Plugins, LockMode::Shared, LOCK_TIMEOUT)?;
        let runtime = self.state.runtime(&self.selection.wanted.host)?;
        if network.cni_version >= CniVersion::V1_1_0 {
            runtime.status(network).map_err(|source| failed("use network", source))?;
        }
        runtime.add_list(network, attachment).map_err(|source| failed(ATTACH, source))
    }

    fn add_entries(&self, entries: &State) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let host = &self.selection.wanted.host;
        let mut added = tables::add(host, entries);
        let (mut reloads, mut released) = (0, BTreeSet::new());
        loop {
            match &added {
                // This is the first pod, or the table was removed.
                Err(nft::Error::Missing { .. }) if reloads < MAX_ATTEMPTS => reloads += 1,
                // The table contains networks of pods that have ended: the reload removes them.
                Err(nft::Error::Overlap { .. })
                    if reloads < MAX_ATTEMPTS && dead_pods::release_networks(host, self.pod.id, entries)? =>
                {
                    reloads += 1;
                }
                // The supervisor of that pod was killed, and no command has detached the pod yet.
                Err(nft::Error::Taken { owner, .. })
                    if released.insert(owner.clone())
                        && detach::release_entries_if_dead(&Records::open(host)?, owner)? =>
                {
                    added = tables::add(host, entries);
                    continue;
                }
                // Success, or an error that a reload does not fix.
                _ => break,
            }
            match tables::reload(host) {
                // Many pods start at once: another one has created the table.
                Err(error) if error.is_contended() => {}
                other => other?,
            }
            added = match tables::contains(host, entries) {
                // The reload has added all of them from the pod's record, and the prefixes of all records.
                Ok(true) => Ok(false),
                // Some conflict with those of another pod, which the error names.
                Ok(false) => tables::add(host, entries),
                Err(error) => Err(error),
            };
        }
        let have_other_prefixes = added.map_err(|error| match error {
            nft::Error::Taken { port, owner, .. } => NetworkError::PortTaken { port, by: format!("pod {owner}") },
            source => NetworkError::attempt(ADD_ENTRIES)(source),
        })?;
        // The configuration of a network has changed. Its prefixes are in the records of all its pods.
        if have_other_prefixes {
            tables::reload(host)?;
        }
        tables::enable_route_localnet(entries, EnabledInterface::Skip)?;
        tables::forget_flows(entries, nft::conntrack::StaleFlows::Redirected)
    }

    /// Removes what was created, last first.
    fn undo(&self, record: &mut Record, begun: usize, cause: NetworkError) -> NetworkError {
        record.networks.truncate(begun);
        let mut left = Vec::new();
        // If the namespace outlives this, so would the veth pairs.
        for network in record.networks.iter().rev().filter(|network| !network.plugins) {
            let deleted = Socket::open().and_then(|mut pod| pod.delete_link_named(&network.interface));
            let doing = || format!("delete the interface {} of the pod", network.interface);
            left.extend(deleted.map_err(NetworkError::attempt(doing())).err());
        }
        left.extend(within(self.host, || detach::detach_valid(self.pod.dir, record, Some(self.own))).err());
        match NetworkError::from_all(left) {
            Ok(()) => cause,
            Err(left) => NetworkError::NotUndone { cause: Box::new(cause), left: Box::new(left) },
        }
    }
}

/// Names the pod that holds a taken port, if it is a pod.
fn name_port_owner(host: &Host, error: NetworkError) -> NetworkError {
    let NetworkError::PortTaken { port, by } = error else { return error };
    // Without readable records, the pod remains unknown: the taken port is the error.
    let owner = port_users::find_pod(host, port).unwrap_or_default();
    NetworkError::PortTaken { port, by: owner.map_or(by, |pod| format!("pod {pod}")) }
}

/// How often to restore the tables for one pod.
const MAX_ATTEMPTS: u32 = 4;
const ATTACH: &str = "attach the pod to network";
const ADD_ENTRIES: &str = "add the pod's firewall entries";

/// Verifies the result of plugins: the interface must exist, and addresses that it lacks are dropped.
fn verify(network: &NetworkRecord, ends: &mut Ends<'_>, result: &mut NetworkResult) -> Result<()> {
    if result.interfaces.iter().any(|it| it.name == network.interface && it.socket_path.is_some()) {
        // An interface in user space (CNI 1.1.0).
        return Ok(());
    }
    let doing = || format!("read the interface {} of the pod", network.interface);
    let link = ends.pod.link(&network.interface).map_err(NetworkError::attempt(doing()))?;
    let Some(link) = link else {
        let message = format!(
            "cannot attach the pod to network '{}': its plugins reported success, but there is no interface {} in the pod",
            network.name, network.interface
        );
        return Err(NetworkError::new(ErrorKind::Unavailable, message));
    };
    let has = ends.pod.addresses(Some(link.index)).map_err(NetworkError::attempt(doing()))?;
    result.ips.retain(|ip| has.iter().any(|own| own.address.prefix.address() == ip.address.address()));
    if let (Some(mac), Some(interface)) =
        (link.mac, result.interfaces.iter_mut().find(|it| it.name == network.interface && !it.sandbox.is_empty()))
    {
        interface.mac = mac.to_string();
    }
    Ok(())
}

/// The result in the types of the contract.
fn to_attached(choice: &SelectedNetwork, network: &NetworkRecord, result: &NetworkResult) -> PodNetwork {
    let is_in_pod = |index: usize| {
        let interface = result.interfaces.get(index);
        interface.is_none_or(|it| it.name == network.interface && !it.sandbox.is_empty())
    };
    let interface = result.interfaces.iter().enumerate().find(|(index, it)| is_in_pod(*index) && !it.mac.is_empty());
    let ips = result.ips.iter().filter(|ip| ip.interface.is_none_or(is_in_pod));
    let dns = &result.dns;
    PodNetwork {
        name: network.name.clone(),
        interface: network.interface.clone(),
        mac: interface.map(|(_, it)| it.mac.clone()),
        addresses: ips
            .map(|ip| PodAddress { address: ip.address.address(), prefix: ip.address.length(), gateway: ip.gateway })
            .collect(),
        routes: result
            .routes
            .iter()
            .map(|route| PodRoute { to: route.dst.first(), prefix: route.dst.length(), via: route.gw })
            .collect(),
        dns: Dns {
            // A plugin may return a name instead of an address; resolv.conf cannot contain it.
            servers: dns.nameservers.iter().filter_map(|server| server.parse().ok()).collect(),
            search: dns.search.clone(),
            options: dns.options.clone(),
            domain: dns.domain.clone(),
        },
        ports: choice.ports.clone(),
    }
}
