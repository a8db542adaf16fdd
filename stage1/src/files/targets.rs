//! Resolves a mount target in an app's root. Symbolic links in the image, and in volumes mounted there, determine the
//! result, so a mount is checked by its resolved path and not by the path as written.

use std::collections::VecDeque;

use gantry_model::ErrorKind;
use gantry_model::id::shown;

use crate::failure::{Result, failure};

/// Maximum number of symbolic links that the kernel follows.
const MAX_LINKS: usize = 40;
/// The kernel's limit on a path (`PATH_MAX`).
const MAX_PATH: usize = 4096;

/// Resolves an absolute path in a root, including components that do not exist. `link` returns the target of the link
/// at a resolved path, if there is one. It is not called below `/proc`, `/sys` and `/dev`: mounts will cover the
/// image's files there.
pub(crate) fn resolve(path: &str, link: impl Fn(&str) -> Result<Option<String>>) -> Result<String> {
    let refused = |why: &str| failure(ErrorKind::Invalid, format!("the path '{}' {why}", shown(path)));
    let mut left: VecDeque<String> = path.split('/').map(str::to_owned).collect();
    let mut resolved: Vec<String> = Vec::new();
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                resolved.pop();
                continue;
            }
            _ => resolved.push(part),
        }
        let here = format!("/{}", resolved.join("/"));
        if here.len() >= MAX_PATH {
            return Err(refused("is too long"));
        }
        if resolved.first().is_some_and(|first| matches!(first.as_str(), "proc" | "sys" | "dev")) {
            continue;
        }
        let Some(text) = link(&here)? else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(refused("has too many links"));
        }
        resolved.pop();
        if text.starts_with('/') {
            resolved.clear();
        }
        for part in text.split('/').rev() {
            left.push_front(part.to_owned());
        }
    }
    Ok(format!("/{}", resolved.join("/")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn with(links: &[(&str, &str)], path: &str) -> Result<String> {
        let links: BTreeMap<&str, &str> = links.iter().copied().collect();
        resolve(path, |at| Ok(links.get(at).map(|&text| text.to_owned())))
    }

    #[test]
    fn links_are_followed_beneath_the_root() {
        let links = [
            ("/data", "/proc"),
            ("/up", "../../../../proc/./self"),
            ("/var/run", "../run"),
            ("/chain", "data"),
            ("/dangling", "nothing/here"),
            ("/dev/x", "/proc"),
            ("/loop", "loop"),
        ];
        for (path, want) in [
            ("/", "/"),
            ("//a/./b//", "/a/b"),
            ("/data", "/proc"),
            ("/data/1/fd", "/proc/1/fd"),
            ("/up", "/proc/self"),
            ("/chain", "/proc"),
            ("/var/run/x", "/run/x"),
            ("/dangling/y", "/nothing/here/y"),
            ("/dev/x/y", "/dev/x/y"),
            ("/a/data", "/a/data"),
        ] {
            assert_eq!(with(&links, path).unwrap(), want, "{path}");
        }
        assert_eq!(with(&links, "/loop/x").unwrap_err().kind, ErrorKind::Invalid);
        let long = "x/".repeat(3000);
        assert!(with(&[("/l", long.as_str())], "/l").is_err());
    }

    proptest! {
        /// A resolved path is absolute and normal, and resolves to itself.
        #[test]
        fn resolved_paths_are_normal(path in "(/[a-c.]{1,2}){0,5}", links in proptest::collection::btree_map("(/[a-c]){1,3}", "/?([a-c.]{1,2}/?){1,4}", 0..6)) {
            let link = |at: &str| Ok(links.get(at).cloned());
            if let Ok(resolved) = resolve(&path, link) {
                prop_assert_eq!(gantry_model::spec::normal(&resolved), resolved.clone());
                prop_assert!(resolved.split('/').all(|part| part != ".."));
                prop_assert_eq!(resolve(&resolved, link).unwrap(), resolved);
            }
        }
    }
}
