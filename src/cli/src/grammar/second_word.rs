//! Decides what the word after the first image is: another image, as in rkt's grammar, or the app's command, as in
//! docker's form `run [flags] IMAGE COMMAND ARG…`, which needs no `--`.
//!
//! The word is the app's command, and all following words are its arguments, if all of these conditions hold:
//!
//! 1. It follows the first image, and neither `--` nor `---` comes anywhere after it: those belong to rkt's grammar.
//!    (`---` decides. With `--` alone, a plain name that would have to be fetched is ambiguous, too: the `--` may be an
//!    argument, as in `debian git checkout -- file`.)
//! 2. Its form is not that of an image: it has no registry (`docker://…`, `host.example/app`), tag or digest (`app:1`),
//!    and is no id (`sha256:…`), layout or archive (`oci:…`, `file://…`, a name that ends in `.tar`) or `-`.
//! 3. No such image exists: a plain name (`sh`) is not in the store, a path (`/bin/sh`) is neither an image layout nor
//!    an archive.
//! 4. A plain name could not be fetched either: no default registry is configured, or the line is invalid if every word
//!    is an image (`debian bash -c …`: there is no flag `-c`), or a global flag comes after the word (`debian server
//!    --log-level info`): gantry's own come before the images.
//!
//! A plain name that fails only the fourth condition is ambiguous. It is an error that shows how to write each meaning.
//! A word that is no image fails the first condition if `--` comes anywhere after it: `busybox sh -c … -- x`. It is an
//! error, before anything is fetched, that shows where `--` belongs.

use gantry_model::ImageRef;

/// Result of looking up a word that could be the name of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageLookup {
    /// The image exists.
    Found,
    /// No such image exists, and it cannot be fetched.
    NotFound,
    /// The store has no such image, but it could be fetched from the default registry.
    Fetchable,
}

/// Classification of a word by its form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WordKind {
    /// The word is an image.
    Image,
    /// The word cannot be an image.
    Command,
    /// The form does not decide it; look the word up.
    Ambiguous(ImageRef),
}

/// Names of files that are images, whether they exist or not.
const ARCHIVES: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".aci"];

/// Whether a separator of rkt's grammar comes after the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    None,
    /// `--` only, which may be an argument of a command as well.
    Arguments,
    /// `---`.
    NextImage,
}

impl Separator {
    pub(super) fn find(behind: &[String]) -> Self {
        match (behind.iter().any(|word| word == "---"), behind.iter().any(|word| word == "--")) {
            (true, _) => Self::NextImage,
            (false, true) => Self::Arguments,
            (false, false) => Self::None,
        }
    }
}

/// Classifies the word by its form and the words after it.
pub(super) fn classify(word: &str, separator: Separator) -> WordKind {
    if separator == Separator::NextImage {
        return WordKind::Image;
    }
    let Ok(reference) = word.parse::<ImageRef>() else { return WordKind::Command };
    match &reference {
        ImageRef::Short(name) if name.tag.is_none() && name.digest.is_none() => WordKind::Ambiguous(reference),
        ImageRef::Path(_) if word.starts_with("file:") || ARCHIVES.iter().any(|end| word.ends_with(end)) => {
            WordKind::Image
        }
        ImageRef::Path(_) => WordKind::Ambiguous(reference),
        ImageRef::Registry(_)
        | ImageRef::Short(_)
        | ImageRef::Id(_)
        | ImageRef::Layout(..)
        | ImageRef::OciArchive(..)
        | ImageRef::DockerArchive(..)
        | ImageRef::Stdin => WordKind::Image,
    }
}

/// The command line with `--` inserted before the word at this index.
pub(super) fn with_separator(verb: &str, words: &[String], at: usize) -> String {
    let (before, after) = words.split_at(at.min(words.len()));
    let mut line = vec![format!("gantry {verb}")];
    line.extend(before.iter().map(|word| quoted(word)));
    line.push("--".to_owned());
    // Show only the first words, so that a long script as an argument does not hide the separator.
    line.extend(after.iter().take(3).map(|word| quoted(word)));
    if after.len() > 3 {
        line.push("…".to_owned());
    }
    line.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.:,@%+".contains(c);
    let shown = crate::render::escape::text(word);
    if !word.is_empty() && word.chars().all(plain) {
        shown.into_owned()
    } else {
        format!("'{}'", shown.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_classified_by_form() {
        let kind = |word: &str| classify(word, Separator::None);
        for word in [
            "docker://sh",
            "host.example/sh",
            "localhost/sh",
            "sh:1",
            "sha256:0123456789ab",
            "oci:/x",
            "file:///bin/sh",
            "./x.tar",
            "/x/y.tar.gz",
            "-",
        ] {
            assert_eq!(kind(word), WordKind::Image, "{word}");
        }
        for word in ["sh", "usr/bin/env", "/bin/sh", "./x", "."] {
            assert!(matches!(kind(word), WordKind::Ambiguous(_)), "{word}");
        }
        for word in ["", "Upper", "a b", "http://x/", "$HOME", "a=b", "[", "_x"] {
            assert_eq!(kind(word), WordKind::Command, "{word}");
        }
        for (separator, want) in [("--", Separator::Arguments), ("---", Separator::NextImage)] {
            assert_eq!(Separator::find(&["x".to_owned(), separator.to_owned()]), want);
        }
        for word in ["Upper", "/bin/sh", "sh"] {
            assert_eq!(super::classify(word, Separator::NextImage), WordKind::Image);
            assert_eq!(super::classify(word, Separator::Arguments), kind(word));
        }
    }

    #[test]
    fn separators_are_inserted_and_quoted() {
        let words: Vec<String> = ["-it", "busybox", "sh", "-c", "echo 'hi'"].map(str::to_owned).into();
        assert_eq!(with_separator("run", &words, 2), r"gantry run -it busybox -- sh -c 'echo '\''hi'\'''");
        let many: Vec<String> = "a b c d e f".split(' ').map(str::to_owned).collect();
        assert_eq!(with_separator("prepare", &many, 1), "gantry prepare a -- b c d …");
        assert!(!with_separator("run", &["\u{1b}[2J".to_owned()], 0).contains('\u{1b}'));
    }
}
