//! The parser of the command line.

use gantry_model::RequestedImage;
use gantry_model::spec::PodFlavor;

use super::draft::Draft;
use super::flags::{self, Arity, Flag, Scope};
use super::second_word::{self, ImageLookup, Separator, WordKind};
use super::{Caller, Parsed, UsageError, Verb, network, unsupported, values};
use crate::globals::{self, Globals};
use crate::suggest;

/// How words after an image are classified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The first of them may be a command: see [`second_word`].
    Free,
    /// All of them are images, as in rkt's grammar.
    Images,
}

/// Parses the words after `run` or `prepare`, preceded by global flags.
///
/// # Errors
/// The first [`UsageError`] found.
pub(crate) fn parse(verb: Verb, words: &[String], caller: &Caller<'_>) -> Result<Parsed, UsageError> {
    read(verb, words, caller, Reading::Free)
}

/// Parses the flags and their values alone, without checking whether they fit together.
///
/// # Errors
/// [`UsageError`]
pub(crate) fn check_values(verb: Verb, words: &[String], caller: &Caller<'_>) -> Result<(), UsageError> {
    parser(verb, words, caller, Reading::Free).read().map(drop)
}

fn parser<'a>(verb: Verb, words: &'a [String], caller: &'a Caller<'a>, reading: Reading) -> Parser<'a> {
    Parser { verb, words, next: 0, reading, draft: Draft::new(verb, caller), globals: Vec::new(), image_hint: None }
}

pub(super) fn read(verb: Verb, words: &[String], caller: &Caller<'_>, reading: Reading) -> Result<Parsed, UsageError> {
    let mut parser = parser(verb, words, caller, reading);
    match parser.read() {
        Err(error) => Err(match parser.image_hint {
            Some(hint) => UsageError::SecondImage { error: Box::new(error), hint },
            None => error,
        }),
        Ok(true) => Ok(Parsed::Help),
        Ok(false) => parser.finish(),
    }
}

/// Whether a global flag is among these words.
fn has_global_flag(words: &[String]) -> bool {
    let name = |word: &String| word.strip_prefix("--").map(|name| name.split('=').next().unwrap_or(name).to_owned());
    words.iter().filter_map(name).any(|name| globals::takes_next_word(&name).is_some())
}

struct Parser<'a> {
    verb: Verb,
    words: &'a [String],
    next: usize,
    reading: Reading,
    draft: Draft<'a>,
    /// The global flags so far.
    globals: Vec<String>,
    /// A word that was classified as an image, and how to write it as a command, or as a value of `--net`.
    image_hint: Option<String>,
}

impl<'a> Parser<'a> {
    /// Parses all words. Returns whether `--help` is among them. `-h` means the same, but before another word it is
    /// docker's `--hostname` where the command has that flag.
    fn read(&mut self) -> Result<bool, UsageError> {
        while let Some(word) = self.next_word() {
            let is_last = self.next == self.words.len();
            if word == "--help" || (word == "-h" && (is_last || self.short_flag('h').is_none())) {
                return Ok(true);
            }
            self.parse_word(word)?;
        }
        Ok(false)
    }

    fn finish(self) -> Result<Parsed, UsageError> {
        let Self { draft, image_hint, .. } = self;
        let hint = image_hint.clone();
        let mut request = draft.finish().map_err(|error| match hint {
            Some(hint) => UsageError::SecondImage { error: Box::new(error), hint },
            None => error,
        })?;
        request.options.hint = request.options.hint.or(image_hint);
        Ok(Parsed::Pod(Box::new(request)))
    }

    fn next_word(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    fn parse_word(&mut self, word: &'a str) -> Result<(), UsageError> {
        match word {
            "--" => self.arguments(),
            "---" => Err(UsageError::Separator(
                "---",
                "ends the arguments of an app, but there is no '--' before it: omit it, the next image follows directly",
            )),
            _ if word.starts_with("--") => self.long_flag(&word[2..]),
            _ if word.starts_with('-') && word.len() > 1 => self.short_flags(&word[1..]),
            word => self.image_or_command(word),
        }
    }

    fn image_or_command(&mut self, word: &'a str) -> Result<(), UsageError> {
        let at = self.next - 1;
        if self.verb == Verb::Schedule && self.draft.target.is_none() {
            self.draft.target = Some(word.to_owned());
            return Ok(());
        }
        if self.draft.pod.flavor == PodFlavor::Host {
            return Err(UsageError::Conflict(format!(
                "an app of --stage1=host has no image: write its command after --, as in -- {}",
                gantry_model::id::shown(word)
            )));
        }
        match self.verb {
            Verb::Run | Verb::Prepare | Verb::Schedule => {}
            Verb::Sandbox => {
                return Err(UsageError::Conflict(format!(
                    "a sandbox is started without apps: add '{}' with 'gantry app add POD IMAGE'",
                    gantry_model::id::shown(word)
                )));
            }
            Verb::AddApp if self.draft.target.is_none() => {
                self.draft.target = Some(word.to_owned());
                return Ok(());
            }
            Verb::AddApp => {
                if let Some(app) = self.draft.apps.last_mut() {
                    if app.args.is_some() {
                        return Err(UsageError::Separator(
                            "---",
                            "is followed by another image; one app is added at a time",
                        ));
                    }
                    app.args = Some(self.words[at..].to_vec());
                    self.next = self.words.len();
                    return Ok(());
                }
            }
        }
        let may_be_command =
            self.reading == Reading::Free && matches!(&self.draft.apps[..], [only] if only.args.is_none());
        if !may_be_command {
            self.check_further_image(word, at)?;
        } else if self.is_command(word, at)? {
            self.draft.options.hint = Some(self.value_hint(word, at).unwrap_or_else(|| {
                format!(
                    "'{}' was taken for the command of the app: it is no image in the store",
                    gantry_model::id::shown(word)
                )
            }));
            if let Some(app) = self.draft.apps.last_mut() {
                app.args = Some(self.words[at..].to_vec());
            }
            self.next = self.words.len();
            return Ok(());
        }
        self.note_hint(word, at);
        // Checked here, so that errors are reported in the order of the words.
        word.parse::<gantry_model::ImageRef>().map_err(|error| UsageError::Image(error.to_string()))?;
        self.draft.add_app(RequestedImage::new(word));
        Ok(())
    }

    /// Whether the next word may be meant as an argument of the last app: it has none yet.
    fn may_be_argument(&self) -> bool {
        self.draft.apps.last().is_some_and(|app| app.args.is_none())
    }

    /// Notes how to write a word that is taken for an image, if it may not be one.
    fn note_hint(&mut self, word: &str, at: usize) {
        if let Some(hint) = self.value_hint(word, at) {
            self.draft.options.value_hint = Some(hint.clone());
            self.image_hint = Some(hint);
            return;
        }
        let may_be_argument = self.may_be_argument() && self.draft.options.value_hint.is_none();
        let reads_like_image = || matches!(second_word::classify(word, Separator::None), WordKind::Image);
        if may_be_argument && (!reads_like_image() || !self.words.iter().any(|word| word == "--")) {
            self.image_hint = Some(format!(
                "'{}' was taken for another image; the arguments of an app follow '--': {}",
                gantry_model::id::shown(word),
                second_word::with_separator(self.verb.as_str(), self.words, at)
            ));
        }
    }

    /// How to write a word that reads like the value of the flag before it, which takes one only after '=': `--net`,
    /// and switches that are on.
    fn value_hint(&self, word: &str, at: usize) -> Option<String> {
        let before = self.words.get(at.checked_sub(1)?)?;
        let flag = flags::all().find(|flag| before.strip_prefix("--").is_some_and(|name| flag.has_long(name)))?;
        let is_value = match flag.arity {
            Arity::Optional => network::is_like_net(word),
            Arity::OnByDefault => values::boolean(word).is_ok(),
            Arity::Switch | Arity::Value => false,
        };
        is_value
            .then(|| format!("{before} takes a value only after '=': write {before}={}", gantry_model::id::shown(word)))
    }

    /// Whether the word after the first image begins that app's command.
    fn is_command(&self, word: &str, at: usize) -> Result<bool, UsageError> {
        let separator = Separator::find(&self.words[at + 1..]);
        match self.look_up(word, separator) {
            ImageLookup::Found => Ok(false),
            ImageLookup::NotFound if separator == Separator::None => Ok(true),
            ImageLookup::NotFound => Err(self.not_an_image(word, at)),
            ImageLookup::Fetchable
                if separator == Separator::None
                    && (has_global_flag(&self.words[at + 1..])
                        || read(self.verb, self.words, self.draft.caller, Reading::Images).is_err()) =>
            {
                Ok(true)
            }
            ImageLookup::Fetchable => Err(UsageError::Unclear {
                word: word.to_owned(),
                command: second_word::with_separator(self.verb.as_str(), self.words, at),
            }),
        }
    }

    /// Whether the word is an image, by its form or in the store.
    fn look_up(&self, word: &str, separator: Separator) -> ImageLookup {
        match second_word::classify(word, separator) {
            WordKind::Image => ImageLookup::Found,
            WordKind::Command => ImageLookup::NotFound,
            WordKind::Ambiguous(reference) => (self.draft.caller.look_up_image)(&self.draft.globals, &reference),
        }
    }

    /// Fails if a later `--` makes the word a further image, which does not exist.
    fn check_further_image(&self, word: &str, at: usize) -> Result<(), UsageError> {
        let separator = Separator::find(&self.words[at + 1..]);
        let may_be_absent = self.may_be_argument() && separator == Separator::Arguments;
        match may_be_absent && self.look_up(word, separator) == ImageLookup::NotFound {
            true => Err(self.not_an_image(word, at)),
            false => Ok(()),
        }
    }

    fn not_an_image(&self, word: &str, at: usize) -> UsageError {
        if let Some(hint) = self.value_hint(word, at) {
            let error = UsageError::Image(format!("there is no image '{}'", gantry_model::id::shown(word)));
            return UsageError::SecondImage { error: Box::new(error), hint };
        }
        UsageError::NotAnImage {
            word: word.to_owned(),
            command: second_word::with_separator(self.verb.as_str(), self.words, at),
        }
    }

    fn arguments(&mut self) -> Result<(), UsageError> {
        if self.draft.pod.flavor == PodFlavor::Host && self.draft.apps.last().is_none_or(|app| app.args.is_some()) {
            self.draft.add_app(None);
        }
        let Some(app) = self.draft.apps.last_mut() else {
            return Err(UsageError::Separator("--", "begins the arguments of an app, but there is no image before it"));
        };
        if app.args.is_some() {
            return Err(UsageError::Separator("--", "is given twice for one image"));
        }
        let rest = &self.words[self.next..];
        let count = rest.iter().position(|word| word == "---").unwrap_or(rest.len());
        app.args = Some(rest[..count].to_vec());
        self.next += (count + 1).min(rest.len());
        Ok(())
    }

    fn long_flag(&mut self, word: &'a str) -> Result<(), UsageError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let shown = format!("--{name}");
        match flags::all().find(|flag| flag.has_long(name)) {
            Some(flag) => self.set_flag(flag, shown, value),
            None if globals::takes_next_word(name).is_some() => self.global_flag(name, value),
            None => Err(match unsupported::alternative(name) {
                Some(instead) => UsageError::Unsupported { flag: shown, instead },
                None => self.unknown_flag(shown),
            }),
        }
    }

    /// The flag of a letter.
    fn short_flag(&self, short: char) -> Option<&'static Flag> {
        let is_named = |flag: &&Flag| match short {
            // Help lists `-h` as its own letter, which it is at the end of the command line.
            'h' => flag.has_long("hostname") && flag.applies_to(self.verb),
            short => flag.short == Some(short),
        };
        flags::all().find(is_named)
    }

    /// `-it`, `-e A=b`, `-eA=b`: the first flag with a value takes the rest of the word, or the next word.
    fn short_flags(&mut self, cluster: &'a str) -> Result<(), UsageError> {
        let mut rest = cluster;
        while let Some(short) = rest.chars().next() {
            rest = &rest[short.len_utf8()..];
            let shown = format!("-{short}");
            let Some(flag) = self.short_flag(short) else {
                return Err(self.unknown_flag(shown));
            };
            if flag.arity == Arity::Value {
                let value = (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest));
                return self.set_flag(flag, shown, value);
            }
            self.set_flag(flag, shown, None)?;
        }
        Ok(())
    }

    fn global_flag(&mut self, name: &str, value: Option<&'a str>) -> Result<(), UsageError> {
        let takes_next_word = globals::takes_next_word(name).unwrap_or(false);
        let value = match value {
            None if takes_next_word => self.next_word(),
            value => value,
        };
        self.globals.push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")));
        self.draft.globals = Globals::parse(&self.globals).map_err(UsageError::Global)?;
        Ok(())
    }

    fn unknown_flag(&self, flag: String) -> UsageError {
        let globals = globals::names();
        let mut known: Vec<&str> =
            flags::all().filter(|flag| flag.applies_to(self.verb)).flat_map(Flag::longs).collect();
        known.extend(globals.iter().map(String::as_str));
        let near = match flag.strip_prefix("--") {
            Some(long) => suggest::nearest(long, known).map(|near| format!("--{near}")),
            None => {
                let other_case = |short: &char| flag[1..].starts_with(|c: char| c.eq_ignore_ascii_case(short));
                let shorts = flags::all().filter(|flag| flag.applies_to(self.verb)).filter_map(|flag| flag.short);
                shorts.into_iter().find(other_case).map(|near| format!("-{near}"))
            }
        };
        let hint = near.map(|near| format!(": did you mean {near}?")).unwrap_or_default();
        UsageError::UnknownFlag { flag, hint, verb: self.verb.as_str() }
    }

    fn set_flag(&mut self, flag: &'static Flag, shown: String, value: Option<&'a str>) -> Result<(), UsageError> {
        if self.verb == Verb::Prepare && flag.applies_to(Verb::Run) && !flag.applies_to(Verb::Prepare) {
            return Err(UsageError::Conflict(format!("{shown} is a flag of 'gantry run' only")));
        }
        if !flag.applies_to(self.verb) {
            return Err(UsageError::Conflict(format!("{shown} is not a flag of 'gantry {}'", self.verb.as_str())));
        }
        let value = match (flag.arity, value) {
            (Arity::Optional, Some("")) => {
                let why = format!("a value is missing after '=': write {shown} alone for the default");
                return Err(UsageError::Value { flag: shown, why });
            }
            (_, Some(value)) => value,
            (Arity::Value, None) => match self.next_word() {
                Some(value) => value,
                None => return Err(UsageError::NoValue { flag: shown, value: flag.value }),
            },
            (Arity::Switch | Arity::OnByDefault, None) => "true",
            (Arity::Optional, None) => "",
        };
        let beside = flag.scope == Scope::App || flag.in_manifest;
        if beside {
            self.draft.not_with_manifest.push(shown.clone());
        }
        (flag.set)(&mut self.draft, value).map_err(|why| UsageError::of_value(&shown, value, why))
    }
}
