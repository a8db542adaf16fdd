//! Did you mean: the known word nearest to an unknown one.

/// The nearest of `known`, if it is near enough to be meant: one edit, or one in three characters.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The cost is the product of the lengths; no name is this long.
    if word.len() > 64 {
        return None;
    }
    let max_distance = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= max_distance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_word_is_suggested() {
        let known = ["memory", "mount", "name", "net", "volume"];
        for (word, want) in [
            ("memroy", Some("memory")),
            ("volumes", Some("volume")),
            ("nme", Some("name")),
            ("xyzzy", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
        assert_eq!(nearest(&"m".repeat(100_000), known), None);
    }
}
