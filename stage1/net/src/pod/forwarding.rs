//! IP forwarding: enabled when the first pod needs it, confined to gantry interfaces if it was off before, and disabled
//! with the last pod.
//!
//! Before enabling it, gantry saves the previous settings in the state directory (`forwarding4`, `forwarding6`); the
//! file is deleted once they are restored. While such a file exists, the firewall drops forwarded packets that neither
//! come from nor go to a gantry interface, so a host between two networks does not become a router because it runs a
//! pod. The rules are installed before forwarding is enabled.
//!
//! Plugins enable forwarding themselves, and gantry does not know the interfaces that they make. While they have
//! attached a pod to a network that may need forwarding, forwarding is neither confined nor disabled.
//!
//! Enabling forwarding makes the kernel change other settings, which are restored too: `accept_redirects` (ip_forward
//! of ip-sysctl.rst: "this variable is special, its change resets all configuration parameters to their default
//! state"), and the forwarding settings of single interfaces. If single interfaces forward already, the administrator
//! has configured the host as a router, and forwarding is not confined.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_host::lock::LockMode;
use gantry_model::{ErrorKind, Kind};
use serde::{Deserialize, Serialize};

use super::error::{NetworkError, Result};
use super::record::{Record, Records};
use super::select::Families;
use super::state::{Lock, StateDir};
use super::{detach, garbage};
use crate::address::IpFamily;
use crate::native;
use crate::native::sysctl::{ensure, ensure_if_present, keep_accepting_advertisements};
use crate::netlink::link::Link;
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Namespace, Socket};
use crate::nft::{Confined, INTERFACE_GROUP};

/// How long to wait for another first pod to record the setting: it reads a few files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const READ_SETTINGS: &str = "read the forwarding settings of the host";

/// The host's settings before gantry enabled forwarding for an IP version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedForwarding {
    /// The boot and the network namespace (device and inode) of the settings.
    boot: String,
    namespace: (u64, u64),
    /// Interfaces that forwarded already.
    forwarding: Vec<String>,
    /// `net.ipv4.conf.all.accept_redirects`; IPv4 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accept_redirects: Option<String>,
    /// Interfaces with `accept_ra` 1, which is set to 2 because a host that forwards ignores advertisements; IPv6 only.
    #[serde(default)]
    listening: Vec<String>,
}

/// The forwarding of the network namespace that the calling thread is in.
pub(super) struct Forwarding<'a> {
    host: &'a Host,
    state: &'a StateDir,
    boot: &'a str,
}

/// The file of the saved settings, in the state directory.
fn file_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "forwarding4",
        IpFamily::V6 => "forwarding6",
    }
}

fn sysctl(family: IpFamily) -> Sysctl<'static> {
    match family {
        IpFamily::V4 => Sysctl::ForwardV4,
        IpFamily::V6 => Sysctl::ForwardV6,
    }
}

/// The directory of the sysctls of interfaces, below `/proc/sys/net`.
fn interfaces_dir(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4/conf",
        IpFamily::V6 => "ipv6/conf",
    }
}

impl<'a> Forwarding<'a> {
    pub(super) fn new(host: &'a Host, state: &'a StateDir, boot: &'a str) -> Self {
        Self { host, state, boot }
    }

    /// Saves the host's settings for the IP versions that need forwarding and do not have it yet. Several first pods
    /// may start at once: only one saves them, because another could read them after forwarding was enabled.
    pub(super) fn save(&self, needed: Families) -> Result<()> {
        if self.unsaved(needed)?.is_empty() {
            return Ok(());
        }
        let _locked = self.state.lock(Lock::Forwarding, LockMode::Exclusive, LOCK_TIMEOUT)?;
        let unsaved = self.unsaved(needed)?;
        if unsaved.is_empty() {
            return Ok(());
        }
        let interfaces = interface_names().map_err(NetworkError::attempt(READ_SETTINGS))?;
        for family in unsaved {
            let text = serde_json::to_string(&self.read_settings(family, &interfaces)?)
                .map_err(NetworkError::io(format!("write {}", file_name(family))))?;
            self.state.put(file_name(family), text.as_bytes())?;
        }
        Ok(())
    }

    /// Those of the needed IP versions whose settings must be saved.
    fn unsaved(&self, needed: Families) -> Result<Vec<IpFamily>> {
        let mut unsaved = Vec::new();
        for family in needed.iter() {
            if self.is_enabled(family)? == Some(false) && self.read_saved(family)?.is_none() {
                unsaved.push(family);
            }
        }
        Ok(unsaved)
    }

    /// The IP versions for which the host forwards for pods only: none while pods of plugins may need forwarding.
    pub(super) fn confined(&self) -> Result<Confined> {
        let confined = Confined { v4: self.is_confinable(IpFamily::V4)?, v6: self.is_confinable(IpFamily::V6)? };
        let is_lifted = confined != Confined::default() && self.plugins_may_need_it()?;
        Ok(if is_lifted { Confined::default() } else { confined })
    }

    /// Whether settings are saved: gantry has enabled forwarding, or is about to.
    pub(super) fn has_saved(&self) -> Result<bool> {
        Ok(self.read_saved(IpFamily::V4)?.is_some() || self.read_saved(IpFamily::V6)?.is_some())
    }

    /// Whether plugins have attached a running pod to a network that may need forwarding. Results are cached before
    /// ADD: without one, no plugin has attached a pod, and the records are not read. A pod with an unusable record may
    /// be running.
    fn plugins_may_need_it(&self) -> Result<bool> {
        let cached = garbage::cached_attachments(&self.state.runtime(self.host)?)?;
        if cached.is_empty() {
            return Ok(false);
        }
        let (valid, others) = Records::open(self.host)?.partition()?;
        let needs = |record: &Record| record.is_up(self.boot) && record.may_be_forwarded_by_plugins();
        Ok(valid.iter().any(needs) || cached.iter().any(|(_, pod, _)| others.contains(pod)))
    }

    fn is_confinable(&self, family: IpFamily) -> Result<bool> {
        Ok(self.read_saved(family)?.is_some_and(|saved| saved.forwarding.is_empty()))
    }

    /// Enables forwarding where it is off. The firewall rules must be installed already.
    ///
    /// The sysctl is read under the lock: during a write, `ip_forward` has the new value before any interface forwards.
    /// Without saved settings, the last pod has restored them since the caller read the records, and forwarding stays
    /// disabled.
    pub(super) fn enable(&self, needed: Families) -> Result<()> {
        if needed == Families::default() {
            return Ok(());
        }
        let _locked = self.state.lock(Lock::Forwarding, LockMode::Exclusive, LOCK_TIMEOUT)?;
        for family in needed.iter() {
            if self.must_be_enabled(family)? {
                if family == IpFamily::V6 {
                    let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
                    keep_accepting_advertisements(&mut socket)
                        .map_err(NetworkError::attempt("keep accepting router advertisements"))?;
                }
                enable(family).map_err(NetworkError::attempt("enable forwarding"))?;
            }
        }
        Ok(())
    }

    /// The sysctls of these IP versions that are off.
    pub(super) fn disabled(&self, needed: Families) -> Result<Vec<Sysctl<'static>>> {
        let mut disabled = Vec::new();
        for family in needed.iter() {
            if self.is_enabled(family)? == Some(false) {
                disabled.push(sysctl(family));
            }
        }
        Ok(disabled)
    }

    fn must_be_enabled(&self, family: IpFamily) -> Result<bool> {
        Ok(self.is_enabled(family)? == Some(false) && self.read_saved(family)?.is_some())
    }

    /// Restores the saved settings, unless another gantry or plugins have pods here: then a later call restores them.
    /// The caller holds the exclusive lock of the links, and no pod on gantry's own networks needs forwarding.
    pub(super) fn restore(&self) -> Result<()> {
        let _locked = self.state.lock(Lock::Forwarding, LockMode::Exclusive, LOCK_TIMEOUT)?;
        for family in IpFamily::ALL {
            let Some(saved) = self.read_saved(family)? else {
                // Saved in another boot, or damaged: there is nothing to restore.
                self.state.remove(file_name(family))?;
                continue;
            };
            if self.others_have_pods()? || self.plugins_may_need_it()? {
                continue;
            }
            let restored = restore(family, &saved);
            restored.map_err(NetworkError::attempt("restore the forwarding settings from before the first pod"))?;
            self.state.remove(file_name(family))?;
        }
        Ok(())
    }

    /// `None`: the kernel lacks the IP version.
    fn is_enabled(&self, family: IpFamily) -> Result<Option<bool>> {
        match sysctl(family).get() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(NetworkError::attempt("read whether the host forwards")(error)),
            Ok(value) => Ok(Some(value != "0")),
        }
    }

    /// The saved settings, if they are of this boot and network namespace.
    fn read_saved(&self, family: IpFamily) -> Result<Option<SavedForwarding>> {
        let Some(text) = self.state.small(file_name(family))? else { return Ok(None) };
        let saved: Option<SavedForwarding> = serde_json::from_slice(&text).ok();
        let here = namespace_id()?;
        Ok(saved.filter(|saved| saved.boot == self.boot && saved.namespace == here))
    }

    fn read_settings(&self, family: IpFamily, interfaces: &[String]) -> Result<SavedForwarding> {
        let (boot, namespace) = (self.boot.to_owned(), namespace_id()?);
        let read = || -> crate::netlink::Result<SavedForwarding> {
            let set_to_one = |sysctl| interfaces_with(interfaces, family, sysctl, "1");
            let forwarding = set_to_one("forwarding")?;
            Ok(match family {
                IpFamily::V4 => {
                    let accept_redirects = Some(Sysctl::Other(ACCEPT_REDIRECTS).get()?);
                    SavedForwarding { boot, namespace, forwarding, accept_redirects, listening: Vec::new() }
                }
                // `keep_accepting_advertisements` sets those with an IPv6 default route to 2.
                IpFamily::V6 => {
                    let listening = set_to_one("accept_ra")?;
                    SavedForwarding { boot, namespace, forwarding, accept_redirects: None, listening }
                }
            })
        };
        read().map_err(NetworkError::attempt(READ_SETTINGS))
    }

    /// Whether another gantry installation has interfaces here.
    fn others_have_pods(&self) -> Result<bool> {
        let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
        let links = socket.links().map_err(NetworkError::attempt("list the interfaces"))?;
        let others =
            |link: &&Link| link.group == INTERFACE_GROUP && !native::is_bridge_owned_by(link, &self.host.state_dir);
        // The kernel removes the veth pairs of ended pods with a delay.
        let own = |link: &Link| {
            detach::pod_of(link).is_some_and(|pod| Path::new(&self.host.pods_dir).join(pod).symlink_metadata().is_ok())
        };
        Ok(links.iter().filter(others).any(|link| !own(link)))
    }
}

/// Writes the setting until the interfaces follow it.
///
/// Where two programs write `ip_forward` at once, the kernel can lose the effect: `devinet_sysctl_forward` stores the
/// value, restores the old one if it does not get the RTNL lock, and a write that sees the value of another changes no
/// interface. The lock keeps gantry's writes apart; podman, docker and others write without it. `conf/default` follows
/// each effective write.
fn enable(family: IpFamily) -> crate::netlink::Result<()> {
    let default = format!("{}/default/forwarding", interfaces_dir(family));
    for attempt in 0..MAX_ENABLE_ATTEMPTS {
        if attempt > 0 {
            sysctl(family).set("0")?;
        }
        sysctl(family).set("1")?;
        if Sysctl::Other(&default).get()? != "0" {
            return Ok(());
        }
    }
    Err(crate::netlink::Error::System {
        what: format!("enable {} while other programs change it", sysctl(family)),
        errno: rustix::io::Errno::BUSY,
    })
}

/// How often to enable forwarding while other programs write the setting.
const MAX_ENABLE_ATTEMPTS: u32 = 8;
const ACCEPT_REDIRECTS: &str = "ipv4/conf/all/accept_redirects";

fn restore(family: IpFamily, saved: &SavedForwarding) -> crate::netlink::Result<()> {
    ensure(sysctl(family), "0")?;
    if let Some(value) = &saved.accept_redirects {
        ensure(Sysctl::Other(ACCEPT_REDIRECTS), value)?;
    }
    for name in &saved.forwarding {
        ensure_if_present(Sysctl::Other(&format!("{}/{name}/forwarding", interfaces_dir(family))), "1")?;
    }
    for name in &saved.listening {
        let path = format!("{}/{name}/accept_ra", interfaces_dir(family));
        match Sysctl::Other(&path).get() {
            Ok(value) if value == "2" => ensure_if_present(Sysctl::Other(&path), "1")?,
            // The interface is gone, or its setting was changed since.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn interface_names() -> crate::netlink::Result<Vec<String>> {
    Ok(Socket::open()?.links()?.into_iter().map(|link| link.name).collect())
}

/// Those of the interfaces that still exist and whose sysctl of this name has this value.
fn interfaces_with(
    interfaces: &[String],
    family: IpFamily,
    sysctl: &str,
    value: &str,
) -> crate::netlink::Result<Vec<String>> {
    let mut selected = Vec::new();
    for name in interfaces {
        match Sysctl::Other(&format!("{}/{name}/{sysctl}", interfaces_dir(family))).get() {
            Ok(has) if has == value => selected.push(name.clone()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(selected)
}

/// Device and inode of the network namespace of the thread.
fn namespace_id() -> Result<(u64, u64)> {
    let doing = "open the network namespace of the host";
    let namespace = Namespace::own().map_err(NetworkError::attempt(doing))?;
    let stat = rustix::fs::fstat(namespace.as_fd()).map_err(NetworkError::io(doing))?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::state::tests::host;
    use crate::test_support::Net;

    /// Namespaces in which first pods start at once, and how many start in each.
    const ROUNDS: usize = 60;
    const PODS: usize = 8;

    /// Writes the record of a pod and caches a result of its plugins, as ADD does.
    fn attach_by_plugins(host: &Host, pod: &str, plugin: &str) {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#);
        let network = serde_json::json!({"name": "net", "interface": "eth0", "plugins": true, "text": text});
        let dir = Path::new(&host.pods_dir).join(pod);
        std::fs::create_dir_all(&dir).unwrap();
        let record = Record::new(pod, host, "boot".into(), vec![serde_json::from_value(network).unwrap()]);
        record.write(crate::config::files::open_dir(&dir).unwrap().as_fd()).unwrap();
        std::fs::write(Path::new(&host.state_dir).join(format!("results/net:{pod}:eth0")), "").unwrap();
    }

    #[test]
    fn pods_of_plugins_keep_forwarding_open() {
        let (net, temp) = (Net::new(), tempfile::tempdir().unwrap());
        let host = host(temp.path());
        let state = StateDir::open(&host).unwrap();
        state.cache().unwrap();
        let forwarding = Forwarding::new(&host, &state, "boot");
        let is_confined = || forwarding.confined().unwrap() == Confined { v4: true, v6: true };
        let test = || {
            IpFamily::ALL.iter().for_each(|family| sysctl(*family).set("0").unwrap());
            let both = Families { v4: true, v6: true };
            forwarding.save(both).unwrap();
            forwarding.enable(both).unwrap();
            assert!(is_confined());
            attach_by_plugins(&host, "wire", r#"{"type":"macvlan","master":"up0","ipam":{"type":"dhcp"}}"#);
            assert!(is_confined(), "the host does not forward its packets");
            for plugin in [r#"{"type":"cilium-cni"}"#, r#"{"type":"bridge","isGateway":true,"ipam":{"type":"dhcp"}}"#] {
                attach_by_plugins(&host, "routed", plugin);
                assert_eq!(forwarding.confined().unwrap(), Confined::default(), "{plugin}");
                forwarding.restore().unwrap();
                assert_eq!(Sysctl::ForwardV4.get().unwrap(), "1", "{plugin}");
                let record = Path::new(&host.pods_dir).join("routed/network.json");
                std::fs::write(&record, "{").unwrap();
                assert!(!is_confined(), "it may be running");
                std::fs::remove_file(&record).unwrap();
                assert!(is_confined(), "it is detached");
            }
            forwarding.restore().unwrap();
            assert_eq!(Sysctl::ForwardV4.get().unwrap(), "0");
        };
        net.namespace
            .enter(|| {
                test();
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn interfaces_forward_after_many_enable_forwarding_at_once() {
        for round in 0..ROUNDS {
            let net = Net::new();
            let temp = tempfile::tempdir().unwrap();
            let host = host(temp.path());
            let state = StateDir::open(&host).unwrap();
            let enter = |work: &dyn Fn()| {
                let entered = net.namespace.enter(|| {
                    work();
                    Ok(())
                });
                entered.unwrap();
            };
            enter(&|| IpFamily::ALL.iter().for_each(|family| sysctl(*family).set("0").unwrap()));
            let begin = std::sync::Barrier::new(PODS);
            std::thread::scope(|scope| {
                for _ in 0..PODS {
                    scope.spawn(|| {
                        let forwarding = Forwarding::new(&host, &state, "boot");
                        enter(&|| {
                            begin.wait();
                            let both = Families { v4: true, v6: true };
                            forwarding.save(both).unwrap();
                            forwarding.enable(both).unwrap();
                            // Each pod starts its apps now.
                            for family in IpFamily::ALL {
                                let forwards =
                                    Sysctl::Other(&format!("{}/lo/forwarding", interfaces_dir(family))).get();
                                assert_eq!(forwards.unwrap(), "1", "round {round}: {family}");
                            }
                        });
                    });
                }
            });
        }
    }
}
