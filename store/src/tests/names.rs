//! Names of pods: unique, kept until the pod is removed, and freed at the first step of the removal.

use gantry_model::{ErrorKind, Kind as _, PodName};

use super::*;
use crate::{InsertPodError, RenamePodError};

fn name(text: &str) -> PodName {
    text.parse().unwrap()
}

fn named(n: u128, image: &Digest, text: &str) -> NewPod {
    NewPod { name: Some(name(text)), ..new_pod(pod_id(n), image, &["a"]) }
}

#[test]
fn a_name_belongs_to_one_pod() {
    let Home { dir: _dir, store } = Home::new();
    let image = image(&store, "i", &[]);
    let first = store.insert_pod(&named(1, &image, "web")).unwrap();
    assert_eq!((first.name, store.pod_named(&name("web")).unwrap()), (Some(name("web")), Some(pod_id(1))));
    let taken = store.insert_pod(&named(2, &image, "web")).unwrap_err();
    assert!(matches!(&taken, InsertPodError::NameTaken { pod, .. } if *pod == pod_id(1)), "{taken}");
    assert_eq!((taken.kind(), store.pod(pod_id(2)).unwrap()), (ErrorKind::AlreadyExists, None));
    store.insert_pod(&named(2, &image, "Web")).unwrap();
    store.insert_pod(&new_pod(pod_id(3), &image, &["a"])).unwrap();
    store.insert_pod(&new_pod(pod_id(4), &image, &["a"])).unwrap();
    assert!(matches!(store.rename_pod(pod_id(3), &name("web")), Err(RenamePodError::Taken { .. })));
    assert!(matches!(store.rename_pod(pod_id(9), &name("x")), Err(RenamePodError::NotFound(_))));
    store.rename_pod(pod_id(1), &name("web")).unwrap();
    store.rename_pod(pod_id(1), &name("other")).unwrap();
    store.rename_pod(pod_id(3), &name("web")).unwrap();
    assert_eq!(store.pod_named(&name("web")).unwrap(), Some(pod_id(3)));
    assert_eq!(store.check(crate::Depth::Deep), []);
}

/// Whichever step a removal or a failed start was killed after, no dead row holds a name.
#[test]
fn a_dead_pod_has_no_name() {
    let Home { dir: _dir, store } = Home::new();
    let image = image(&store, "i", &[]);
    let prepared = [edge(Edge::Prepare), edge(Edge::Prepared(Timestamp(20)))];
    let ends: [&[Change]; 2] = [
        &[edge(Edge::Aborted(Timestamp(20)))],
        &[prepared.as_slice(), &[edge(Edge::Discarded(Timestamp(30)))]].concat(),
    ];
    for (n, steps) in ends.into_iter().enumerate() {
        let id = pod_id(n as u128 + 1);
        let mut row = store.insert_pod(&named(n as u128 + 1, &image, "web")).unwrap();
        let (last, before) = steps.split_last().unwrap();
        for step in before {
            row = moved(&store, id, row.generation, step.clone());
            assert_eq!(row.name, Some(name("web")));
        }
        let row = moved(&store, id, row.generation, last.clone());
        assert_eq!((row.name, store.pod(id).unwrap().unwrap().name), (None, None));
        let refused = store.rename_pod(id, &name("late")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    }
    store.insert_pod(&named(7, &image, "web")).unwrap();
    assert_eq!(store.check(crate::Depth::Deep), []);
}
