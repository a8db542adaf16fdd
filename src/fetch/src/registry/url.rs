//! URLs of registries: `http` or `https`, without user name and fragment; and classes of addresses.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, ParseError, SyntaxViolation, Url};

/// Maximum length of a URL in bytes.
const MAX_URL: usize = 8192;

/// An absolute `http` or `https` URL (RFC 3986, parsed as the WHATWG URL standard says).
///
/// `Display` shows scheme, host and port only: a query may be a signature that grants access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpUrl(Url);

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.authority())
    }
}

impl HttpUrl {
    /// The root of a host as image references name it (`registry.example:5000`); `None` if it is no host.
    pub(crate) fn from_host(host: &str, https: bool) -> Option<Self> {
        let url = Self::parse(&format!("{}://{host}/", if https { "https" } else { "http" })).ok()?;
        (url.0.path() == "/" && url.0.query().is_none()).then_some(url)
    }

    /// Parses an absolute URL. The error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        parse(None, text)
    }

    /// Resolves a `Location` header received from this URL (RFC 3986 section 5.2).
    pub(crate) fn join(&self, location: &str) -> Result<Self, &'static str> {
        parse(Some(&self.0), location)
    }

    /// The same origin with another path.
    pub(crate) fn with_path(&self, path: &str) -> Self {
        let mut url = self.0.clone();
        url.set_query(None);
        url.set_path(path);
        Self(url)
    }

    /// The URL with further query parameters.
    pub(crate) fn with_query(&self, parameters: &[(&str, &str)]) -> Self {
        let mut url = self.0.clone();
        url.query_pairs_mut().extend_pairs(parameters);
        Self(url)
    }

    /// The whole URL with its query: for requests, never for messages.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The host in lower case; an IPv6 address in brackets.
    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// The host, and the port unless it is the scheme's default.
    pub(crate) fn authority(&self) -> String {
        self.0.authority().to_owned()
    }

    pub(crate) fn is_same_origin(&self, other: &Self) -> bool {
        self.0.origin() == other.0.origin()
    }

    /// The address, if the host is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self.0.host()? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path()
    }

    /// Whether the host is this machine. `localhost` always is (RFC 6761 section 6.3).
    pub(crate) fn is_loopback(&self) -> bool {
        self.host() == "localhost" || self.address().is_some_and(|address| address.to_canonical().is_loopback())
    }
}

/// Parses strictly. The standard also accepts backslashes, missing slashes, user names and percent-encoded hosts, which
/// make a URL look as if it led elsewhere.
fn parse(base: Option<&Url>, text: &str) -> Result<HttpUrl, &'static str> {
    // `https:path` is relative to a base of the same scheme.
    let (scheme, rest) = text.split_once(':').unwrap_or_default();
    let has_scheme_only =
        ["http", "https"].iter().any(|name| scheme.eq_ignore_ascii_case(name)) && !rest.starts_with("//");
    if text.len() > MAX_URL || !text.bytes().all(|c| c.is_ascii_graphic()) || has_scheme_only {
        return Err("it is not a URL");
    }
    let disguised = Cell::new(false);
    let note = |violation| {
        let harmless = matches!(violation, SyntaxViolation::NonUrlCodePoint | SyntaxViolation::PercentDecode);
        disguised.set(disguised.get() || !harmless);
    };
    let parsed = Url::options().base_url(base).syntax_violation_callback(Some(&note)).parse(text);
    let mut url = parsed.map_err(|error| match error {
        ParseError::InvalidPort => "its port is not a number up to 65535",
        ParseError::RelativeUrlWithoutBase => "it is not an absolute URL",
        _ => "its host is neither a host name nor an address",
    })?;
    let host_fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
    if let Some(Host::Domain(name)) = url.host()
        && !(name.len() <= 253 && name.bytes().all(host_fits))
    {
        return Err("its host is neither a host name nor an address");
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err("its scheme is neither https nor http");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it carries a user name");
    }
    if disguised.get() {
        return Err("it is malformed");
    }
    if url.port() == Some(0) {
        return Err("its port is not a number up to 65535");
    }
    url.set_fragment(None);
    Ok(HttpUrl(url))
}

/// Whether an address is link-local or one under which a cloud serves the machine's own secrets. No registry has such
/// an address, but a hostile one may redirect to it.
pub(crate) fn is_metadata(address: IpAddr) -> bool {
    const AWS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local() || v4 == ALIBABA,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6 == AWS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn locations_are_resolved_strictly() {
        let base = HttpUrl::parse("https://reg.example:5000/v2/a/blobs/x?y=z").unwrap();
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
            ("///p", None),
            ("\\\\other.example/p", None),
            ("https:p", None),
            ("//other%2eexample/", Some("https://other.example/")),
            ("//other&example/", None),
            ("https://@h/", None),
            ("https://h/p?sig=a%2Fb+c%3D", Some("https://h/p?sig=a%2Fb+c%3D")),
            ("https://xn--mnchen-3ya.example/", Some("https://xn--mnchen-3ya.example/")),
            ("https://reg_1.example/", Some("https://reg_1.example/")),
            ("https://[::1/p", None),
            ("https://a b/", None),
            ("https://h/\r\nX: y", None),
        ] {
            assert_eq!(base.join(location).ok().map(|url| url.as_str().to_owned()).as_deref(), want, "{location}");
        }
    }

    #[test]
    fn loopback_and_metadata_addresses_are_recognized() {
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
            // 169.254.169.254 and 127.0.0.1 as one number, which resolvers accept.
            ("2852039166", false, true),
            ("0x7f000001", true, false),
        ] {
            let url = HttpUrl::from_host(host, true).unwrap();
            let found = (url.is_loopback(), url.address().is_some_and(is_metadata));
            assert_eq!(found, (loopback, metadata), "{host}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(base: String, location: String) {
            let url = HttpUrl::parse("http://h/a/b").unwrap();
            let _ = (HttpUrl::parse(&base), url.join(&location), HttpUrl::parse(&format!("https://{location}")));
        }
    }
}
