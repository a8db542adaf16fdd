//! A host and its pods, each a network namespace, and connections between them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{NetworkConfig, Source};
use crate::ipam::{Lease, Store};
use crate::native::sysctl;
use crate::native::{Added, Ends, NativeError, add, del};
use crate::netlink::Socket;
use crate::netlink::sysctl::Sysctl;
use crate::nft::{State, Table, socket};
use crate::plugin::Attachment;
use crate::test_support::{Net, bound, until};

/// A timeout for replies on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for a reply that must not come.
pub(super) const NEVER: Duration = Duration::from_millis(250);
pub(super) const OWNER: &str = "/var/lib/gantry-test/net";

/// A host with its leases.
pub(super) struct Lab {
    pub(super) host: Net,
    pub(super) dir: tempfile::TempDir,
}

impl Lab {
    pub(super) fn new() -> Self {
        let mut host = Net::new();
        host.socket.loopback_up().unwrap();
        Self { host, dir: tempfile::tempdir().unwrap() }
    }

    pub(super) fn leases(&self) -> File {
        File::open(self.dir.path()).unwrap()
    }

    pub(super) fn try_add(&self, network: &NetworkConfig, pod: &Net, at: &Attachment) -> Result<Added, NativeError> {
        self.try_add_as(network, pod, at, OWNER)
    }

    pub(super) fn try_add_as(
        &self,
        network: &NetworkConfig,
        pod: &Net,
        at: &Attachment,
        owner: &str,
    ) -> Result<Added, NativeError> {
        let leases = self.leases();
        let mut ends = Ends {
            host: Socket::open_in(&self.host.namespace).unwrap(),
            pod: Socket::open_in(&pod.namespace).unwrap(),
            host_namespace: &self.host.namespace,
            pod_namespace: &pod.namespace,
            leases: leases.as_fd(),
            owner,
        };
        add(network, at, &mut ends)
    }

    pub(super) fn add(&self, network: &NetworkConfig, pod: &Net, at: &Attachment) -> Added {
        self.try_add(network, pod, at).unwrap()
    }

    /// DEL; `pod`: its namespace, if it has not ended.
    pub(super) fn del(&mut self, network: &NetworkConfig, at: &Attachment, pod: Option<&Net>) {
        let leases = self.leases();
        del(network, at, &mut self.host.socket, pod.map(|pod| &pod.namespace), leases.as_fd()).unwrap();
    }

    pub(super) fn leased(&self, network: &NetworkConfig) -> Vec<Lease> {
        let leases = self.leases();
        Store::open(leases.as_fd(), &network.name, LIMIT).unwrap().leases().unwrap()
    }

    pub(super) fn table(&self) -> Table {
        Table::open(self.host.namespace.enter(|| Ok(socket().unwrap())).unwrap(), "gantry").unwrap()
    }

    /// Adds the entries of these results to the table, with their sysctls.
    pub(super) fn apply(&self, added: &[&Added]) {
        let mut table = self.table();
        table.ensure(&State::new()).unwrap();
        for added in added {
            table.add(&added.entries).unwrap();
            within(&self.host, || {
                for switch in [Sysctl::ForwardV4, Sysctl::ForwardV6] {
                    sysctl::ensure(switch, "1").unwrap();
                }
            });
            if added.entries.ports.keys().any(|port| port.address.is_ipv4()) {
                let on = |name: &String| sysctl::ensure(Sysctl::RouteLocalnet(name), "1").unwrap();
                within(&self.host, || added.entries.interfaces.keys().for_each(on));
            }
        }
    }

    /// Runs `work` in a namespace. Sockets that it opens stay in the namespace.
    pub(super) fn sysctl(&self, path: &str) -> String {
        within(&self.host, || std::fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap()).trim().to_owned()
    }
}

pub(super) fn within<T>(net: &Net, work: impl FnOnce() -> T) -> T {
    net.namespace.enter(|| Ok(work())).unwrap()
}

/// A configuration of these plugins.
pub(super) fn network(name: &str, plugins: Value) -> NetworkConfig {
    let text = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins}).to_string();
    NetworkConfig::parse(&text, Source::BuiltIn).unwrap()
}

/// A dual-stack bridge network with default routes.
pub(super) fn dual(name: &str, bridge: &str, number: u8) -> NetworkConfig {
    network(
        name,
        json!([
            {"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ranges(number)},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]),
    )
}

/// `10.NUMBER.0.0/16` and `fd00:NUMBER::/64`, with default routes.
pub(super) fn ranges(number: u8) -> Value {
    json!({"type": "host-local",
        "ranges": [[{"subnet": format!("10.{number}.0.0/16")}], [{"subnet": format!("fd00:{number}::/64")}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]})
}

/// A pod's UUID.
pub(super) fn pod_id(number: u32) -> String {
    format!("{number:08x}-1111-4222-8333-444455556666")
}

pub(super) fn attachment(pod: &Net, id: u32) -> Attachment {
    Attachment {
        container_id: pod_id(id),
        netns: Some(format!("/proc/{}/ns/net", pod.id())),
        interface: "eth0".to_owned(),
        ..Attachment::default()
    }
}

pub(super) fn capabilities(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// The pod's address of the family.
pub(super) fn address(added: &Added, v4: bool) -> IpAddr {
    added.result.ips.iter().map(|ip| ip.address.address()).find(|address| address.is_ipv4() == v4).unwrap()
}

/// A listener of one namespace, dialled from another.
pub(super) struct Talk<'a> {
    pub(super) server: &'a Net,
    pub(super) listen: SocketAddr,
    pub(super) client: &'a Net,
    pub(super) dial: SocketAddr,
}

/// A server at an address, dialled there.
pub(super) fn talk<'a>(server: &'a Net, at: IpAddr, client: &'a Net) -> Talk<'a> {
    let at = SocketAddr::new(at, 7000);
    Talk { server, listen: at, client, dial: at }
}

impl Talk<'_> {
    /// Connects by TCP and UDP, and returns the client address that the server sees.
    pub(super) fn seen(&self) -> IpAddr {
        let (tcp, udp) = (self.tcp(LIMIT), self.udp(LIMIT));
        assert_eq!(tcp, udp);
        tcp.unwrap_or_else(|| panic!("{} does not answer", self.dial))
    }

    /// Whether no connection is possible.
    pub(super) fn is_silent(&self) -> bool {
        self.tcp(NEVER).is_none() && self.udp(NEVER).is_none()
    }

    fn tcp(&self, limit: Duration) -> Option<IpAddr> {
        let listener = bound(|| within(self.server, || TcpListener::bind(self.listen)));
        let mut client = within(self.client, || TcpStream::connect_timeout(&self.dial, limit)).ok()?;
        let (mut server, peer) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        let mut there = [0; 5];
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut there).unwrap();
        server.write_all(&there).unwrap();
        client.read_exact(&mut there).unwrap();
        assert_eq!(&there, b"hello");
        Some(peer.ip())
    }

    /// Sends repeatedly: datagrams are lost until both ends of the veth pair have a carrier.
    fn udp(&self, limit: Duration) -> Option<IpAddr> {
        let any = if self.dial.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let server = bound(|| within(self.server, || UdpSocket::bind(self.listen)));
        let client = within(self.client, || UdpSocket::bind(any)).unwrap();
        client.connect(self.dial).ok()?;
        server.set_read_timeout(Some(NEVER)).unwrap();
        client.set_read_timeout(Some(NEVER)).unwrap();
        let (mut seen, mut buffer) = (None, [0; 16]);
        let begun = std::time::Instant::now();
        while seen.is_none() && begun.elapsed() < limit {
            // A refusal by ICMP arrives here.
            let _ = client.send(b"hello");
            let Ok((length, peer)) = server.recv_from(&mut buffer) else { continue };
            server.send_to(&buffer[..length], peer).unwrap();
            seen = client.recv(&mut buffer).ok().map(|_| peer.ip());
        }
        seen
    }
}

/// Waits until both ends of the veth pair have a carrier.
pub(super) fn carries(host: &mut Net, added: &Added) {
    let cable = added.result.interfaces.iter().find(|it| it.name.starts_with("gt")).unwrap().name.clone();
    until("the veth pair has a carrier", || host.socket.link(&cable).unwrap().is_some_and(|link| link.is_running()));
}
