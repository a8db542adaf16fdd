//! Word by word through the command line.

use super::draft::{AppDraft, Draft};
use super::flags::{Arity, FLAGS, Flag, Scope};
use super::{Parsed, UsageError, Verb, not_yet};
use crate::globals::Globals;
use crate::suggest;

/// Reads the words after `run` or `prepare` (and global flags before it, which the caller puts in front).
///
/// # Errors
/// The first [`UsageError`] found.
pub(crate) fn parse(
    verb: Verb,
    words: &[String],
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Parsed, UsageError> {
    let mut parser = Parser { verb, words, next: 0, draft: Draft::new(Globals::default(), lookup) };
    while let Some(word) = parser.take() {
        if matches!(word, "--help" | "-h") {
            return Ok(Parsed::Help);
        }
        parser.word(word)?;
    }
    let request = parser.draft.finish()?;
    if request.options.detach && request.options.remove {
        return Err(UsageError::Conflict(
            "--rm cannot be combined with --detach: nobody would be there to remove the pod; 'gantry gc' removes ended pods"
                .into(),
        ));
    }
    Ok(Parsed::Pod(Box::new(request)))
}

struct Parser<'a> {
    verb: Verb,
    words: &'a [String],
    next: usize,
    draft: Draft<'a>,
}

impl<'a> Parser<'a> {
    fn take(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    fn word(&mut self, word: &'a str) -> Result<(), UsageError> {
        match word {
            "--" => self.arguments(),
            "---" => Err(UsageError::Separator("---", "ends the arguments of an app, and none have begun with '--'")),
            _ if word.starts_with("--") => self.long(&word[2..]),
            _ if word.starts_with('-') && word.len() > 1 => self.short(&word[1..]),
            image => {
                // Checked here so that the message comes before anything else is complained about.
                image.parse::<gantry_model::ImageRef>().map_err(|error| UsageError::Image(error.to_string()))?;
                self.draft.apps.push(AppDraft::of(image));
                Ok(())
            }
        }
    }

    fn arguments(&mut self) -> Result<(), UsageError> {
        let Some(app) = self.draft.apps.last_mut() else {
            return Err(UsageError::Separator("--", "begins the arguments of an app, and no image stands before it"));
        };
        if app.args.is_some() {
            return Err(UsageError::Separator("--", "stands twice after one image"));
        }
        let rest = &self.words[self.next..];
        let count = rest.iter().position(|word| word == "---").unwrap_or(rest.len());
        app.args = Some(rest[..count].to_vec());
        self.next += (count + 1).min(rest.len());
        Ok(())
    }

    fn long(&mut self, word: &'a str) -> Result<(), UsageError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let shown = format!("--{name}");
        match FLAGS.iter().find(|flag| flag.has_long(name)) {
            Some(flag) => self.set(flag, shown, value),
            None => Err(match not_yet::instead(name) {
                Some(instead) => UsageError::NotYet { flag: shown, instead },
                None => self.unknown(shown),
            }),
        }
    }

    /// `-it`, `-e A=b`, `-eA=b`: the first that takes a value takes the rest.
    fn short(&mut self, cluster: &'a str) -> Result<(), UsageError> {
        let mut rest = cluster;
        while let Some(short) = rest.chars().next() {
            rest = &rest[short.len_utf8()..];
            let shown = format!("-{short}");
            let Some(flag) = FLAGS.iter().find(|flag| flag.short == Some(short)) else {
                return Err(match not_yet::instead_of_short(short) {
                    Some(instead) => UsageError::NotYet { flag: shown, instead },
                    None => self.unknown(shown),
                });
            };
            if flag.arity == Arity::Value {
                let value = (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest));
                return self.set(flag, shown, value);
            }
            self.set(flag, shown, None)?;
        }
        Ok(())
    }

    fn unknown(&self, flag: String) -> UsageError {
        let known = FLAGS.iter().flat_map(Flag::longs);
        let hint = suggest::nearest(flag.trim_start_matches('-'), known)
            .filter(|_| flag.starts_with("--"))
            .map(|near| format!(": did you mean --{near}?"))
            .unwrap_or_default();
        UsageError::UnknownFlag { flag, hint, verb: self.verb.as_str() }
    }

    fn set(&mut self, flag: &'static Flag, shown: String, value: Option<&'a str>) -> Result<(), UsageError> {
        if flag.run_only && self.verb == Verb::Prepare {
            return Err(UsageError::Conflict(format!("{shown} means something to 'gantry run' only")));
        }
        let value = match (flag.arity, value) {
            (_, Some(value)) => value,
            (Arity::Value, None) => match self.take() {
                Some(value) => value,
                None => return Err(UsageError::NoValue { flag: shown, value: flag.value }),
            },
            (Arity::Switch, None) => "true",
            (Arity::Optional, None) => "",
        };
        let beside = flag.scope == Scope::App || flag.of_spec;
        if beside {
            self.draft.beside_manifest.push(shown.clone());
        }
        (flag.set)(&mut self.draft, value).map_err(|why| match why {
            super::values::Why::Text(why) => UsageError::Value { flag: shown, why },
            super::values::Why::NotYet(instead) => {
                UsageError::NotYet { flag: format!("{shown}={}", gantry_model::id::shown(value)), instead }
            }
        })
    }
}
