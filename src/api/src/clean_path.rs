//! Paths of requests, cleaned as Go's `path.Clean` does.

/// Makes a path absolute, and removes `.`, `..` and empty components without looking at the file system.
pub(crate) fn clean_path(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_become_absolute() {
        for (path, want) in [
            ("/m", "/m"),
            ("m", "/m"),
            ("/x/../m", "/m"),
            ("../../m/./n//", "/m/n"),
            ("/x/../proc", "/proc"),
            ("", "/"),
        ] {
            assert_eq!(clean_path(path), want, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn clean_paths_are_absolute(path in "[a./\u{0}ü]{0,24}") {
            let cleaned = clean_path(&path);
            prop_assert!(Path::new(&cleaned).is_absolute());
            prop_assert!(Path::new(&cleaned).components().skip(1).all(|part| matches!(part, Component::Normal(_))));
            prop_assert_eq!(clean_path(&cleaned), cleaned);
        }
    }
}
