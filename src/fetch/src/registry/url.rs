//! Just enough of a URL (RFC 3986) for a registry: two schemes, no user, no fragment; and which addresses are whose.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `http` or `https`, a host, a port and a path with its query.
///
/// `Display` shows scheme, host and port only: a query may be a signature that opens the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) https: bool,
    /// Lower-case; an IPv6 address in its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Begins with `/`.
    pub(crate) path: String,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.https { "https" } else { "http" }, self.authority())
    }
}

impl Url {
    /// The host as a reference names it (`registry.example:5000`), with nothing after it.
    pub(crate) fn of_registry(host: &str, https: bool) -> Option<Self> {
        Self::parse(&format!("{}://{host}/", if https { "https" } else { "http" })).ok()
    }

    /// Parses an absolute URL; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > 8192 || !text.bytes().all(|c| c.is_ascii_graphic()) {
            return Err("it is not a URL");
        }
        let (scheme, rest) = text.split_once("://").ok_or("it is not an absolute URL")?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("its scheme is neither https nor http"),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (host, port) = host_and_port(authority)?;
        Ok(Self { https, host, port: port.unwrap_or(if https { 443 } else { 80 }), path })
    }

    /// Where a `Location` seen at this URL leads (RFC 3986 section 5.2, without dot segments: servers resolve those).
    pub(crate) fn join(&self, location: &str) -> Result<Self, &'static str> {
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", if self.https { "https" } else { "http" }));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{self}{location}"));
        }
        let scheme_end = location.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')));
        if scheme_end.is_some_and(|at| at > 0 && location[at..].starts_with(':')) {
            return Self::parse(location);
        }
        let path = self.path.split('?').next().unwrap_or_default();
        if location.starts_with('?') {
            return Self::parse(&format!("{self}{path}{location}"));
        }
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        Self::parse(&format!("{self}{folder}{location}"))
    }

    /// The same origin with another path.
    pub(crate) fn at(&self, path: String) -> Self {
        Self { path, ..self.clone() }
    }

    /// The whole URL, query included; for the wire only, never for a message.
    pub(crate) fn wire(&self) -> String {
        format!("{self}{}", self.path)
    }

    /// `host:port`, for messages.
    pub(crate) fn place(&self) -> String {
        self.authority()
    }

    pub(crate) fn same_origin(&self, other: &Self) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }

    /// The address, when the host is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }

    /// Whether nobody but this machine can be there. `localhost` is what RFC 6761 section 6.3 says it is.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.address().is_some_and(|address| plain(address).is_loopback())
    }

    fn authority(&self) -> String {
        let usual = if self.https { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }
}

fn host_and_port(authority: &str) -> Result<(String, Option<u16>), &'static str> {
    if authority.contains('@') {
        return Err("it carries a user name");
    }
    let (host, port) = match authority.find(']') {
        Some(end) if authority.starts_with('[') => {
            let inner = &authority[1..end];
            inner.parse::<Ipv6Addr>().map_err(|_| "its host is not an IPv6 address")?;
            (
                &authority[..=end],
                authority[end + 1..].strip_prefix(':').or(authority[end + 1..].is_empty().then_some("")),
            )
        }
        _ => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            let fits = !host.is_empty()
                && host.len() <= 253
                && host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'));
            if !fits {
                return Err("its host is not a host name");
            }
            (host, Some(port))
        }
    };
    let port = match port {
        Some("") => None,
        Some(text) if text.bytes().all(|c| c.is_ascii_digit()) => {
            Some(text.parse::<u16>().ok().filter(|port| *port != 0).ok_or("its port is not a number up to 65535")?)
        }
        _ => return Err("its port is not a number up to 65535"),
    };
    Ok((host.to_ascii_lowercase(), port))
}

/// An IPv4 address in IPv6's clothes counts as what it is.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Link-local addresses and those under which clouds serve a machine's own secrets. No registry is there, but a
/// hostile one may send us there.
pub(crate) fn is_metadata(address: IpAddr) -> bool {
    const AWS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    match plain(address) {
        IpAddr::V4(v4) => v4.is_link_local() || v4 == ALIBABA,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6 == AWS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn joining() {
        let base = Url::parse("https://reg.example:5000/v2/a/blobs/x?y=z").unwrap();
        for (location, want) in [
            ("/p?q=/r", Some("https://reg.example:5000/p?q=/r")),
            ("?z=1", Some("https://reg.example:5000/v2/a/blobs/x?z=1")),
            ("//Other.example/p", Some("https://other.example/p")),
            ("http://[::1]:80/p", Some("http://[::1]/p")),
            ("https://h:443?x=1", Some("https://h/?x=1")),
            ("n?u=http://x", Some("https://reg.example:5000/v2/a/blobs/n?u=http://x")),
            ("https://h/p#frag", Some("https://h/p")),
            ("file:///etc/passwd", None),
            ("unix:/run/x.sock", None),
            ("gopher://x/", None),
            ("https://user:secret@h/", None),
            ("https://h:99999/", None),
            ("https://h:0/", None),
            ("https://h:+1/", None),
            ("https:///p", None),
            ("https://[::1/p", None),
            ("https://a b/", None),
            ("https://h/\r\nX: y", None),
        ] {
            assert_eq!(base.join(location).ok().map(|url| url.wire()).as_deref(), want, "{location}");
        }
    }

    #[test]
    fn whose_address() {
        for (host, loopback, metadata) in [
            ("localhost", true, false),
            ("127.9.9.9:5000", true, false),
            ("[::1]", true, false),
            ("[::ffff:127.0.0.1]", true, false),
            ("localhost.evil.example", false, false),
            ("169.254.169.254", false, true),
            ("[::ffff:169.254.169.254]", false, true),
            ("[fe80::1]", false, true),
            ("[fd00:ec2::254]", false, true),
            ("10.0.0.1", false, false),
        ] {
            let url = Url::of_registry(host, true).unwrap();
            let found = (url.is_loopback(), url.address().is_some_and(is_metadata));
            assert_eq!(found, (loopback, metadata), "{host}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(base: String, location: String) {
            let url = Url::parse("http://h/a/b").unwrap();
            let _ = (Url::parse(&base), url.join(&location), Url::parse(&format!("https://{location}")));
        }
    }
}
