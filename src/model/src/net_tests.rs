//! The grammar of `--net`.

use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<NetMode, SpecError> {
    text.parse()
}

fn wanted(name: &str, args: &[(&str, &str)]) -> NetworkRequest {
    let args = args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    NetworkRequest { name: name.into(), args }
}

#[test]
fn net_flag_follows_rkt() {
    assert_eq!(read("").unwrap(), NetMode::Networks(vec![wanted("default", &[])]));
    assert_eq!(
        read("default,foo:IP=10.1.2.3;X=y=z,bar:IP=fd00::1").unwrap(),
        NetMode::Networks(vec![
            wanted("default", &[]),
            wanted("foo", &[("IP", "10.1.2.3"), ("X", "y=z")]),
            wanted("bar", &[("IP", "fd00::1")])
        ])
    );
    assert_eq!(read("host").unwrap(), NetMode::Host);
    assert_eq!(read("none").unwrap(), NetMode::None);
    assert_eq!(read("all").unwrap(), NetMode::All(vec![]));
    assert_eq!(read("foo:A=,all").unwrap(), NetMode::All(vec![wanted("foo", &[("A", "")])]));
}

#[test]
fn invalid_net_flags_are_rejected() {
    let refused = |text: &str, why: &str| {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    };
    refused("a,b,a:X=1", "duplicate network name 'a'");
    for special in ["host", "none", "all"] {
        refused(&format!("{special}:IP=1"), "arguments are not supported");
    }
    refused("host,a", "'host' cannot be combined");
    refused("all,none", "'none' cannot be combined");
    for bad in ["a,", ",", "../a", "a b", ":X=1"] {
        refused(bad, "is not the name of a network");
    }
    for bad in ["a:", "a:X", "a:=1", "a:X=1;", "a:X=\n"] {
        refused(bad, "is not an argument");
    }
    refused(&"a".repeat(MAX_REQUEST + 1), "at most");
}

proptest! {
    #[test]
    fn net_mode_round_trips(names in proptest::collection::btree_set("[a-z][a-z0-9.-]{3,8}x", 1..5), value in "[^;,\\pC]{0,12}") {
        let texts: Vec<String> = names.iter().map(|name| format!("{name}:K={value}")).collect();
        let expected = names.iter().map(|name| wanted(name, &[("K", &value)])).collect();
        let mode = read(&texts.join(",")).unwrap();
        prop_assert_eq!(mode.to_string(), texts.join(","));
        prop_assert_eq!(mode, NetMode::Networks(expected));
    }

    #[test]
    fn parser_never_panics(text in "\\PC{0,60}") {
        let _ = read(&text);
    }
}
