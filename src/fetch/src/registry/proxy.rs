//! Selects the proxy for a request from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, which have the same
//! meaning as in curl and Go's `net/http`.
//!
//! If a setting cannot be parsed, every request it applies to fails. Bypassing a proxy silently would be worse.

use std::env::VarError;
use std::net::IpAddr;

use gantry_model::id::shown;
use ipnet::IpNet;

use super::error::RegistryError;
use super::url::HttpUrl;

/// The variables for https requests and for plain http ones, in order of precedence.
const HTTPS_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const HTTP_VARIABLES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
const BYPASS_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// A proxy, and the variable that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    /// Scheme, host and port.
    pub(crate) url: HttpUrl,
    /// User name and password.
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) variable: &'static str,
}

impl Proxy {
    /// Host, port and variable, for errors.
    pub(crate) fn origin(&self) -> String {
        format!("{} ({})", self.url.authority(), self.variable)
    }
}

/// The proxy settings of the environment.
#[derive(Debug, Default)]
pub(crate) struct ProxySettings {
    https: Option<Setting>,
    http: Option<Setting>,
    bypass: Option<Setting>,
}

/// A variable that is set.
#[derive(Debug)]
struct Setting {
    variable: &'static str,
    /// None when it is not UTF-8.
    text: Option<String>,
}

impl Setting {
    fn text(&self) -> Result<&str, RegistryError> {
        self.text.as_deref().ok_or_else(|| self.unusable("it is not UTF-8".to_owned()))
    }

    fn unusable(&self, why: String) -> RegistryError {
        RegistryError::proxy_setting(self.variable, why)
    }
}

/// An entry of `NO_PROXY`.
#[derive(Debug, PartialEq, Eq)]
enum Bypass {
    All,
    Network(IpNet),
    Address(IpAddr, Option<u16>),
    /// Hosts whose name ends with this (it begins with a dot).
    Below(String, Option<u16>),
    /// This host and those below it.
    Domain(String, Option<u16>),
}

impl ProxySettings {
    /// Reads the settings through `look_up`, which has the meaning of [`std::env::var`].
    pub(crate) fn read(look_up: impl Fn(&'static str) -> Result<String, VarError>) -> Self {
        let setting = |variable: &'static str| match look_up(variable) {
            Ok(text) => (!text.trim().is_empty()).then_some(Setting { variable, text: Some(text) }),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => Some(Setting { variable, text: None }),
        };
        let first = |names: &[&'static str]| names.iter().find_map(|&name| setting(name));
        Self { https: first(&HTTPS_VARIABLES), http: first(&HTTP_VARIABLES), bypass: first(&BYPASS_VARIABLES) }
    }

    /// The proxy for requests to `url`. Loopback is never reached through one.
    pub(crate) fn proxy_for(&self, url: &HttpUrl) -> Result<Option<Proxy>, RegistryError> {
        let setting = if url.is_https() { &self.https } else { &self.http };
        let Some(setting) = setting else { return Ok(None) };
        if url.is_loopback() || self.is_bypassed(url)? {
            return Ok(None);
        }
        parse_proxy(setting.variable, setting.text()?).map(Some).map_err(|why| setting.unusable(why))
    }

    fn is_bypassed(&self, url: &HttpUrl) -> Result<bool, RegistryError> {
        let Some(setting) = &self.bypass else { return Ok(false) };
        for entry in setting.text()?.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()) {
            let bypass = parse_bypass(entry).map_err(|why| setting.unusable(why))?;
            if bypass.covers(url) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Parses `[SCHEME://][USER[:PASSWORD]@]HOST[:PORT]`. The error never quotes the text: it may hold a password.
fn parse_proxy(variable: &'static str, text: &str) -> Result<Proxy, String> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let scheme = scheme.to_ascii_lowercase();
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(format!("its scheme is '{}'; gantry speaks to http:// and https:// proxies", shown(&scheme)));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (userinfo, place) = match rest[..end].rsplit_once('@') {
        Some((userinfo, place)) => (Some(userinfo), place),
        None => (None, &rest[..end]),
    };
    let url = HttpUrl::parse(&format!("{scheme}://{place}/"))
        .map_err(|_| "it is not a proxy's address such as http://proxy.example:3128".to_owned())?;
    let credentials = userinfo.map(|userinfo| {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        percent_decode(user)
            .zip(percent_decode(password))
            .ok_or("its user name or password is not percent-encoded text")
    });
    Ok(Proxy { url, credentials: credentials.transpose()?, variable })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let value = digit(rest.next())? * 16 + digit(rest.next())?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    // A line break would end the header that this is sent in.
    String::from_utf8(bytes).ok().filter(|text| !text.contains(['\r', '\n', '\0']))
}

fn parse_bypass(entry: &str) -> Result<Bypass, String> {
    if entry == "*" {
        return Ok(Bypass::All);
    }
    if entry.contains('/') {
        let network =
            entry.parse::<IpNet>().map_err(|_| format!("'{}' is not a network such as 192.0.2.0/24", shown(entry)))?;
        return Ok(Bypass::Network(network));
    }
    if let Ok(address) = entry.trim_matches(['[', ']']).parse() {
        return Ok(Bypass::Address(address, None));
    }
    let lower = entry.to_ascii_lowercase();
    let (host, port) = match lower.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().map_err(|_| format!("'{}' has no port number after ':'", shown(entry)))?;
            (host, Some(port))
        }
        None => (lower.as_str(), None),
    };
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(Bypass::Address(address, port));
    }
    let host = host.strip_prefix('*').filter(|host| host.starts_with('.')).unwrap_or(host).trim_end_matches('.');
    Ok(if host.starts_with('.') { Bypass::Below(host.to_owned(), port) } else { Bypass::Domain(host.to_owned(), port) })
}

impl Bypass {
    fn covers(&self, url: &HttpUrl) -> bool {
        let at_port = |port: &Option<u16>| port.is_none_or(|port| port == url.port());
        match self {
            Self::All => true,
            Self::Network(network) => url.address().is_some_and(|address| network.contains(&address)),
            Self::Address(address, port) => url.address() == Some(*address) && at_port(port),
            Self::Below(suffix, port) => url.host().ends_with(suffix.as_str()) && at_port(port),
            Self::Domain(name, port) => {
                let below =
                    url.host().strip_suffix(name.as_str()).is_some_and(|head| head.is_empty() || head.ends_with('.'));
                !name.is_empty() && below && at_port(port)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(pairs: &[(&str, &str)]) -> ProxySettings {
        let value = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        ProxySettings::read(|name| value(name).ok_or(VarError::NotPresent))
    }

    fn url(text: &str) -> HttpUrl {
        HttpUrl::parse(text).unwrap()
    }

    #[test]
    fn each_scheme_has_its_own_proxy() {
        let all = settings(&[("HTTPS_PROXY", "http://s:1"), ("http_proxy", "p:2"), ("ALL_PROXY", "a:3")]);
        let only = settings(&[("HTTPS_PROXY", "s:1")]);
        let rest = settings(&[("all_proxy", "https://a")]);
        for (settings, target, want) in [
            (&all, "https://reg.example/", Some("http://s:1")),
            (&all, "http://reg.example/", Some("http://p:2")),
            (&all, "http://127.0.0.1:5000/", None),
            (&all, "https://localhost/", None),
            (&only, "http://reg.example/", None),
            (&rest, "http://reg.example/", Some("https://a")),
        ] {
            let found = settings.proxy_for(&url(target)).unwrap().map(|proxy| proxy.url.to_string());
            assert_eq!(found.as_deref(), want, "{target}");
        }
    }

    #[test]
    fn proxy_credentials_are_decoded() {
        let proxy = parse_proxy("HTTP_PROXY", "http://us%40er:p%3Aw%2Fd@proxy.example:3128/x").unwrap();
        assert_eq!(proxy.credentials, Some(("us@er".to_owned(), "p:w/d".to_owned())));
        assert_eq!(proxy.url.authority(), "proxy.example:3128");
    }

    #[test]
    fn invalid_proxies_are_reported_without_password() {
        for text in [
            "bogus://x",
            "socks5://u:hunter2@x",
            "http://",
            "http://u:hunter2@a b",
            "http://u:%0a@x",
            ":::",
            "u:hunter2@x:99999",
        ] {
            let error = settings(&[("HTTPS_PROXY", text)]).proxy_for(&url("https://reg.example/")).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("HTTPS_PROXY") && !said.contains("hunter2"), "{text}: {said}");
        }
        let bad = settings(&[("HTTPS_PROXY", "p:1"), ("NO_PROXY", "192.0.2.0/99")]);
        assert!(bad.proxy_for(&url("https://reg.example/")).unwrap_err().to_string().contains("192.0.2.0/99"));
        let unused = settings(&[("HTTPS_PROXY", "bogus://x")]).proxy_for(&url("http://reg.example/")).unwrap();
        assert_eq!(unused, None);
    }

    #[test]
    fn invalid_utf8_fails_only_affected_requests() {
        let read = |damaged: &'static str| {
            ProxySettings::read(move |name| match name {
                _ if name == damaged => Err(VarError::NotUnicode("x".into())),
                "HTTPS_PROXY" => Ok("p:1".to_owned()),
                _ => Err(VarError::NotPresent),
            })
        };
        for damaged in ["HTTPS_PROXY", "NO_PROXY"] {
            let settings = read(damaged);
            let error = settings.proxy_for(&url("https://reg.example/")).unwrap_err().to_string();
            assert!(error.contains(damaged) && error.contains("UTF-8"), "{error}");
            assert_eq!(settings.proxy_for(&url("http://reg.example/")).unwrap(), None);
        }
    }

    #[test]
    fn no_proxy_is_honoured() {
        for (no_proxy, target, around) in [
            ("192.0.2.0/24", "https://192.0.2.7/", true),
            ("192.0.2.0/24", "https://192.0.3.7/", false),
            ("2001:db8::/32", "https://[2001:db8::5]:5000/", true),
            ("192.0.2.7", "https://192.0.2.7:5000/", true),
            ("192.0.2.7:5000", "https://192.0.2.7:5001/", false),
            ("[2001:db8::5]:443", "https://[2001:db8::5]/", true),
            ("example.com", "https://example.com/", true),
            ("example.com", "https://reg.example.com/", true),
            ("example.com", "https://badexample.com/", false),
            (".example.com", "https://example.com/", false),
            (".example.com", "https://reg.example.com/", true),
            ("*.example.com", "https://reg.example.com/", true),
            ("Example.com:443", "https://example.com/", true),
            ("example.com:444", "https://example.com/", false),
            ("a.example, reg.example", "https://reg.example/", true),
            ("*", "https://anything.example/", true),
            (",,", "https://anything.example/", false),
        ] {
            let found = settings(&[("HTTPS_PROXY", "p:1"), ("NO_PROXY", no_proxy)]).proxy_for(&url(target)).unwrap();
            assert_eq!(found.is_none(), around, "{no_proxy} {target}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(proxy: String, bypass: String) {
            let settings = settings(&[("HTTPS_PROXY", &proxy), ("NO_PROXY", &bypass)]);
            let _ = settings.proxy_for(&url("https://reg.example/"));
        }
    }
}
