//! Small things; the answers as a whole are tested by the server's tests.

use super::*;

#[test]
fn names_and_versions_of_references() {
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
fn an_answer_that_is_too_big_is_refused() {
    let pod = wire::Pod { manifest: vec![0; 1 << 20], ..wire::Pod::default() };
    let mut answer = Answer::default();
    let added = (0..100).take_while(|_| answer.add(&pod).is_ok()).count();
    assert_eq!(added, 63);
    let status = answer.add(&pod).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().contains("filters"), "{}", status.message());
}

#[test]
fn an_answer_is_the_message_it_stands_for() {
    let pods = ["a", "b"].map(|id| wire::Pod { id: id.to_owned(), pid: -1, ..wire::Pod::default() });
    let mut answer = Answer::default();
    pods.iter().for_each(|pod| answer.add(pod).unwrap());
    let read = wire::ListPodsResponse::decode(answer.done().0).unwrap();
    assert_eq!(read.pods, pods);
}
