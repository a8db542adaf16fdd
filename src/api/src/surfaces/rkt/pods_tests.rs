//! Sizes and networks; the server's tests cover complete responses.

use gantry_model::net::{PodAddress, PodNetwork};

use super::*;

#[test]
fn references_split_into_name_and_version() {
    for (reference, name, version) in [
        ("127.0.0.1:5000/fixture:1", "127.0.0.1:5000/fixture", "1"),
        ("127.0.0.1:5000/fixture", "127.0.0.1:5000/fixture", "latest"),
        ("alpine", "alpine", "latest"),
        ("a/b:c@sha256:00", "a/b", "c"),
    ] {
        assert_eq!(name_and_version(reference), (name, version));
    }
}

#[test]
fn oversized_lists_are_refused() {
    let pod = wire::Pod { manifest: vec![0; 1 << 20], ..wire::Pod::default() };
    let mut size = ListSize::default();
    let added = (0..100).take_while(|_| size.add(&pod).is_ok()).count();
    assert_eq!(added, 63);
    let status = size.add(&pod).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().contains("filters"), "{}", status.message());
}

#[test]
fn list_size_equals_encoded_size() {
    let pods: Vec<_> = ["a", "b"].map(|id| wire::Pod { id: id.repeat(200), pid: -1, ..wire::Pod::default() }).into();
    let mut size = ListSize::default();
    pods.iter().for_each(|pod| size.add(pod).unwrap());
    assert_eq!(size.bytes, ListPodsResponse { pods }.encoded_len());
}

#[test]
fn one_address_per_family_is_reported() {
    let got = |name: &str, addresses: &[&str]| {
        let address = |text: &&str| PodAddress { address: text.parse().unwrap(), prefix: 24, gateway: None };
        let addresses = addresses.iter().map(address).collect();
        PodNetwork { name: name.to_owned(), addresses, ..PodNetwork::default() }
    };
    let want = |name: &str, ipv4: &str, ipv6: &str| Network {
        name: name.to_owned(),
        ipv4: ipv4.to_owned(),
        ipv6: ipv6.to_owned(),
    };
    for (asked, got, want) in [
        ("none", vec![], vec![]),
        ("host", vec![], vec![want("host", "", "")]),
        (
            "default,b,c",
            vec![
                got("default", &["fd00::2", "10.0.0.2", "10.0.0.3", "fd00::3"]),
                got("b", &["10.1.0.2"]),
                got("c", &[]),
            ],
            vec![want("default", "10.0.0.2", "fd00::2"), want("b", "10.1.0.2", ""), want("c", "", "")],
        ),
        // A pod started by a gantry that did not record them.
        ("default", vec![], vec![]),
    ] {
        let got = Networks::from_list(&got).unwrap();
        assert_eq!(networks(&asked.parse().unwrap(), &got).unwrap(), want, "{asked}");
    }
}
