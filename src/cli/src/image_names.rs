//! The forms of an image's name that select the image: filters accept each.

/// The repository, and the tag or digest after it.
pub(crate) fn split(name: &str) -> (&str, &str) {
    if let Some(split) = name.split_once('@') {
        return split;
    }
    match name.rsplit_once(':') {
        // A colon before a slash separates a host and its port.
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, ""),
    }
}

/// Whether any form of the name fits: with or without its tag or digest, its registry, and the first elements of its
/// path.
pub(crate) fn any_form(name: &str, fits: impl Fn(&str) -> bool) -> bool {
    let (repository, _) = split(name);
    // A name may have a tag and a digest.
    [name, repository, split(repository).0].into_iter().any(|name| {
        let ends = name.match_indices('/').map(|(at, _)| &name[at + 1..]);
        std::iter::once(name).chain(ends).any(&fits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_selects_the_image() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let by_digest = format!("r.example:5000/team/app@{digest}");
        for (name, forms) in [
            ("r.example:5000/team/app:1", &["app", "app:1", "team/app", "r.example:5000/team/app"][..]),
            (&by_digest, &["app", &format!("app@{digest}"), "r.example:5000/team/app"]),
            (&format!("app:1@{digest}"), &["app", "app:1"]),
            ("app", &["app"]),
        ] {
            for form in forms {
                assert!(any_form(name, |known| known == *form), "{name} {form}");
            }
        }
        for other in ["pp", "team", "app:2", "5000/team/app", "r.example"] {
            assert!(!any_form("r.example:5000/team/app:1", |known| known == other), "{other}");
        }
    }
}
