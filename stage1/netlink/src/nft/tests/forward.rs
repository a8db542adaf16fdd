//! Chains of other programs that drop forwarded packets.

use super::sample;
use super::space::Space;
use crate::nft::{DroppingChain, find_dropping_chains, socket};

/// Of a base chain, without its policy.
const HOOK: &str = "type filter hook forward priority filter; policy";

fn found(space: &Space) -> Vec<DroppingChain> {
    find_dropping_chains(space.within(|| socket().unwrap())).unwrap()
}

/// Family, table and chain of those found.
fn names(space: &Space) -> Vec<String> {
    found(space).iter().map(|it| format!("{} {} {}", it.family, it.table, it.chain)).collect()
}

#[test]
fn dropping_policies_are_found() {
    let space = Space::new();
    assert_eq!(names(&space), [""; 0]);
    space.table().ensure(&sample()).unwrap();
    // Docker, with a chain for the administrator's rules.
    space.sh(&format!(
        "nft -f - <<EOF
table ip filter {{
    chain DOCKER-USER {{
        return
    }}
    chain FORWARD {{
        {HOOK} drop
        counter jump DOCKER-USER
        iifname docker0 accept
    }}
    chain INPUT {{
        type filter hook input priority filter; policy drop
    }}
}}
table ip6 filter {{
    chain FORWARD {{
        {HOOK} drop
    }}
}}
table inet fine {{
    chain forward {{
        {HOOK} accept
        ct state invalid drop
    }}
}}
table bridge filter {{
    chain forward {{
        {HOOK} drop
    }}
}}
table inet gantry-other {{
    chain forward {{
        {HOOK} drop
    }}
}}
EOF"
    ));
    assert_eq!(names(&space), ["ip filter FORWARD", "ip6 filter FORWARD"]);
    let docker = found(&space).remove(0);
    assert!(docker.chains.contains("DOCKER-USER"));
    assert!(docker.names_interface("docker0"));
    assert!(!docker.names_interface("docker") && !docker.names_interface("docker01"));
    // The administrator accepts everything in Docker's chain.
    space.sh("nft insert rule ip filter DOCKER-USER counter accept");
    assert_eq!(names(&space), ["ip6 filter FORWARD"]);
}

#[test]
fn rules_that_drop_the_rest_are_found() {
    let space = Space::new();
    // As firewalld's tables are.
    space.sh(&format!(
        "nft -f - <<EOF
table inet firewalld {{
    chain public {{
        ct state new tcp dport 22 accept
        reject with icmpx admin-prohibited
    }}
    chain zones {{
        iifname eth0 goto public
        goto public
    }}
    chain forward {{
        {HOOK} accept
        ct status dnat accept
        jump zones
    }}
    chain other {{
        {HOOK} accept
        counter accept
        drop
    }}
}}
EOF"
    ));
    assert_eq!(names(&space), ["inet firewalld forward"]);
}

#[test]
fn interfaces_in_rules_and_sets_are_named() {
    let space = Space::new();
    for (rule, name) in [
        ("iifname gantry0 accept", "gantry0"),
        ("oifname \"gantry*\" accept", "gantry1"),
        ("iifname { lo, gantry0 } accept", "gantry0"),
        ("iifname . oifname { eth0 . gantry0 } accept", "gantry0"),
        ("iifname vmap { gantry0 : accept }", "gantry0"),
    ] {
        space.sh(&format!(
            "nft -f - <<EOF
flush ruleset
table inet filter {{
    chain forward {{
        {HOOK} drop
        {rule}
    }}
}}
EOF"
        ));
        let chain = found(&space).remove(0);
        assert!(chain.names_interface(name), "{rule}: {chain:?}");
        assert!(!chain.names_interface("br0"), "{rule}: {chain:?}");
    }
}
