//! Sizes, networks and removed pods; the server's tests cover complete responses.

use gantry_engine::{Engine, Note, Options, Prepare, Progress, PullPolicy, RunningPod, Secrets};
use gantry_model::PhaseName;
use gantry_model::net::{PodAddress, PodNetwork};
use gantry_model::spec::{AppSpec, PodSpec};

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

#[test]
fn removed_pods_are_not_shown_without_manifests() {
    struct Quiet;
    impl Progress for Quiet {
        fn notify(&self, _note: Note) {}
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path().join("data"));
    let engine = Engine::open(options.clone()).unwrap();
    let layer = gantry_fixtures::Layer::new().file("bin/app", "text", 0o755);
    let image = gantry_fixtures::Image::builder().layer(layer).entrypoint(&["/bin/app"]).build().unwrap();
    let archive = dir.path().join("image.tar");
    gantry_fixtures::write_oci_archive(&archive, &[(&image, "one")]).unwrap();
    let reference = format!("oci-archive:{}", archive.display()).parse().unwrap();
    engine.fetch(&reference, PullPolicy::New, None, &Quiet).unwrap();
    let prepare = || {
        let app = AppSpec::new("a".parse().unwrap(), gantry_model::RequestedImage::new(image.id()));
        let spec = PodSpec { apps: vec![app], ..PodSpec::default() };
        engine.create(Prepare::new(spec, PullPolicy::Never, &Quiet).unwrap()).unwrap().prepare().unwrap()
    };
    let (removed, lost) = (prepare(), prepare());
    let observer = Observer::open(options).unwrap();
    let [view, damaged] = [removed, lost].map(|pod| observer.pod(&pod.into()).unwrap());
    let detail = Detail { manifest: Some(Secrets::Shown) };
    let filters = [PodFilter { phases: vec![PhaseName::Prepared], ..PodFilter::default() }];
    let mut images = ImageCache::new(&observer);
    let mut show = |view: &PodView, detail, filters: &[PodFilter]| {
        present_pod(&mut images, view, filters, detail).unwrap().map(|pod| (pod.id, pod.manifest.is_empty()))
    };
    assert_eq!(show(&view, detail, &filters), Some((removed.to_string(), false)));
    // The rows of both were read before: one is removed, the other has lost its manifest.
    engine.rm(removed, RunningPod::Refuse).unwrap();
    std::fs::remove_dir_all(damaged.dir()).unwrap();
    assert_eq!((show(&view, detail, &filters), show(&view, detail, &[])), (None, None));
    assert_eq!(show(&damaged, detail, &filters), Some((lost.to_string(), true)));
    assert_eq!(show(&view, Detail { manifest: None }, &[]), Some((removed.to_string(), true)));
}
