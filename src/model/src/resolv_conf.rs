//! The lines of resolv.conf(5).

use std::net::IpAddr;

/// A line of resolv.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive<'a> {
    /// `nameserver`.
    NameServer {
        /// The address of the server.
        address: IpAddr,
        /// The zone of a link-local IPv6 address: the name or index of an interface (RFC 4007, section 11).
        zone: Option<&'a str>,
    },
    /// `domain`: the local domain.
    Domain(&'a str),
    /// `search`: the search list; never empty.
    Search(Vec<&'a str>),
    /// `options`; never empty.
    Options(Vec<&'a str>),
}

/// Parses the lines in order. Like the C library, it skips comments, unknown keywords and invalid lines.
pub fn directives(text: &str) -> impl Iterator<Item = Directive<'_>> {
    text.lines().filter_map(parse_line)
}

fn parse_line(line: &str) -> Option<Directive<'_>> {
    let mut words = line.split_whitespace();
    let keyword = words.next()?;
    let first = words.next()?;
    let all = || std::iter::once(first).chain(words).collect();
    match keyword {
        "nameserver" => {
            let (address, zone) = first.split_once('%').map_or((first, None), |(address, zone)| (address, Some(zone)));
            Some(Directive::NameServer { address: address.parse().ok()?, zone })
        }
        "domain" => Some(Directive::Domain(first)),
        "search" => Some(Directive::Search(all())),
        "options" => Some(Directive::Options(all())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_lines_are_skipped() {
        let text = "# by hand\nnameserver 10.0.0.1\n nameserver\tfe80::1%eth0 # uplink\n;x\nsearch a.test b.test\r\n\
            domain a.test ignored\noptions ndots:2 edns0\nsortlist x\nnameserver\nnameserver here\nsearch\nnameserver fd00::1";
        let server = |address: &str, zone| Directive::NameServer { address: address.parse().unwrap(), zone };
        let expected = [
            server("10.0.0.1", None),
            server("fe80::1", Some("eth0")),
            Directive::Search(vec!["a.test", "b.test"]),
            Directive::Domain("a.test"),
            Directive::Options(vec!["ndots:2", "edns0"]),
            server("fd00::1", None),
        ];
        assert_eq!(directives(text).collect::<Vec<_>>(), expected);
    }
}
