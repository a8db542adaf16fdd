//! The ports that an image declares: keys such as `80/tcp` of `ExposedPorts` (OCI image specification, config.md). A
//! port has the name that rkt gives it: `80-tcp`. Declaring a port publishes nothing.

use gantry_model::net::Protocol;

use crate::config::ImageConfig;

/// A port that an image declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredPort {
    /// The name: `80-tcp`, or `8000-8010-tcp` for a range.
    pub name: String,
    /// The first port. Not 0.
    pub port: u16,
    /// The number of ports. The last one is at most 65535.
    pub count: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl ImageConfig {
    /// The declared ports. Malformed ones are skipped, as in every runtime.
    pub fn ports(&self) -> impl Iterator<Item = DeclaredPort> {
        self.exposed_ports.iter().filter_map(|text| declared(text))
    }
}

/// Parses `PORT[-LAST][/PROTOCOL]`; the default protocol is TCP.
fn declared(text: &str) -> Option<DeclaredPort> {
    let (range, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol: Protocol = protocol.parse().ok()?;
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (port, last) = (number(first)?, number(last)?);
    let count = last.checked_sub(port)?.checked_add(1)?;
    Some(DeclaredPort { name: format!("{range}-{}", protocol.as_str()), port, count, protocol })
}

/// Parses digits without a sign or leading zeros, so that a port has one name.
fn number(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn declared_ports_are_parsed() {
        for (text, want) in [
            ("80/tcp", Some(("80-tcp", 80, 1, Protocol::Tcp))),
            ("53/UDP", Some(("53-udp", 53, 1, Protocol::Udp))),
            ("9/sctp", Some(("9-sctp", 9, 1, Protocol::Sctp))),
            ("8080", Some(("8080-tcp", 8080, 1, Protocol::Tcp))),
            ("8000-8010/udp", Some(("8000-8010-udp", 8000, 11, Protocol::Udp))),
            ("1-65535", Some(("1-65535-tcp", 1, 65535, Protocol::Tcp))),
            ("0/tcp", None),
            ("080/tcp", None),
            ("+80", None),
            ("65536", None),
            ("10-9", None),
            ("80/icmp", None),
            ("80/tcp/x", None),
            ("1-2-3", None),
            ("", None),
            ("/tcp", None),
            ("-1", None),
            ("http", None),
            ("٨٠", None),
        ] {
            let want =
                want.map(|(name, port, count, protocol)| DeclaredPort { name: name.into(), port, count, protocol });
            assert_eq!(declared(text), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn declared_ports_have_valid_names(text in "\\PC{0,12}|[0-9]{1,6}(-[0-9]{1,6})?(/(tcp|udp|sctp))?") {
            if let Some(DeclaredPort { name, port, count, .. }) = declared(&text) {
                prop_assert!(gantry_model::net::is_name(&name));
                prop_assert!(port > 0 && count > 0 && port.checked_add(count - 1).is_some());
            }
        }
    }
}
