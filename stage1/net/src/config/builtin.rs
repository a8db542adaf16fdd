//! The built-in networks: `default` and `default-restricted`, in the format of configuration files. A file that defines
//! a network of the same name replaces them.
//!
//! The addresses were chosen so that they are not the default of another program. Taken in 10/8 are: 10.0-10.63 and
//! 10.128-10.255 by clouds (AWS, GCP and Azure samples), 10.4 by nerdctl, 10.42/10.43 by k3s, 10.85 by CRI-O,
//! 10.88/10.89 by podman, 10.96-10.111 by Kubernetes' services, 10.100 by EKS, 10.152 by microk8s, 10.244 by flannel;
//! 172.16-172.31 is Docker's, 192.168 is common in local networks. The unique local addresses (RFC 4193) spell
//! `gantry`. They are masqueraded or not routed at all, so they need to be unique on this host only.
//!
//! They use CNI 1.0.0, so that the standard plugins of Debian 12 can run them too.

/// The name of the network of a pod without `--net`.
pub const DEFAULT: &str = "default";
/// The name of the network whose pods reach only the host and each other.
pub const DEFAULT_RESTRICTED: &str = "default-restricted";

/// Name and text of their configuration lists.
pub const ALL: [(&str, &str); 2] = [(DEFAULT, DEFAULT_CONFLIST), (DEFAULT_RESTRICTED, DEFAULT_RESTRICTED_CONFLIST)];

pub(super) const DEFAULT_CONFLIST: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "default",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "gantry0",
      "isGateway": true,
      "ipMasq": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.121.0.0/16" }], [{ "subnet": "fd67:616e:7472:7900::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } },
    { "type": "firewall", "ingressPolicy": "same-bridge" },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}
"#;

const DEFAULT_RESTRICTED_CONFLIST: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "default-restricted",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "gantry1",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.122.0.0/16" }], [{ "subnet": "fd67:616e:7472:7901::/64" }]]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } },
    { "type": "firewall", "ingressPolicy": "same-bridge" }
  ]
}
"#;
