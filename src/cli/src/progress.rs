//! A fetch as it is shown: bars on a terminal, lines elsewhere, or nothing. Always on standard error.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gantry_engine::{Note, Progress};
use gantry_model::Digest;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::globals::ProgressMode;
use crate::render::{escape, size};

/// Shows a fetch.
pub(crate) enum ProgressDisplay {
    /// Not at all.
    Nothing,
    /// As lines.
    Lines(Mutex<HashMap<Digest, u64>>),
    /// As bars. Made with the first note, so that a command that fetches nothing sets up nothing.
    Bars(Mutex<Option<Bars>>),
}

impl ProgressDisplay {
    /// How it is to be shown here.
    pub(crate) fn new(mode: ProgressMode, quiet: bool) -> Self {
        match mode {
            ProgressMode::None => Self::Nothing,
            _ if quiet => Self::Nothing,
            ProgressMode::Auto if std::io::stderr().is_terminal() => Self::Bars(Mutex::new(None)),
            ProgressMode::Auto | ProgressMode::Plain => Self::Lines(Mutex::new(HashMap::new())),
        }
    }
}

impl Progress for ProgressDisplay {
    fn notify(&self, note: Note) {
        match self {
            // A warning is no progress: --quiet does not swallow it.
            Self::Nothing if is_warning(&note) => {
                if let Some(line) = sentence(&note) {
                    // Nowhere to tell that standard error is gone.
                    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
                }
            }
            Self::Nothing => {}
            Self::Lines(totals) => {
                if let Some(line) = line(&mut lock(totals), &note) {
                    // Nowhere to tell that standard error is gone.
                    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
                }
            }
            Self::Bars(bars) => lock(bars).get_or_insert_with(Bars::new).notify(&note),
        }
    }
}

fn is_warning(note: &Note) -> bool {
    matches!(note, Note::Offline { .. } | Note::NameMoved { .. })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line that tells of a note; bytes are told by the line of the layer that is done.
fn line(totals: &mut HashMap<Digest, u64>, note: &Note) -> Option<String> {
    Some(match note {
        Note::Layer { layer, total } => {
            totals.extend(total.map(|total| (layer.clone(), total)));
            return None;
        }
        Note::LayerDone { layer } => match totals.get(layer) {
            Some(total) => format!("layer {}: done, {}", layer.short(), size::human(*total)),
            None => format!("layer {}: done", layer.short()),
        },
        Note::LayerExists { layer } => format!("layer {}: already here", layer.short()),
        Note::Waiting { layer } => format!("layer {}: waiting for another fetch of it", layer.short()),
        _ => return sentence(note),
    })
}

/// What is said as a sentence in either form.
fn sentence(note: &Note) -> Option<String> {
    let shown = escape::text;
    Some(match note {
        Note::Resolving { name } => format!("fetching {}", shown(name)),
        Note::Retrying { why, after } => format!("{}; trying again in {:.1} s", shown(why), after.as_secs_f64()),
        Note::Offline { name, why } => format!("warning: {}; using {} as it is in the store", shown(why), shown(name)),
        Note::NameMoved { name, from } => format!("{} belonged to image {} until now", shown(name), from.short()),
        Note::VolumeIgnored { path } => {
            format!("the image's volume {} is left out: it would cover what gantry provides there", shown(path))
        }
        _ => return None,
    })
}

/// One bar per layer.
pub(crate) struct Bars {
    all: MultiProgress,
    layers: HashMap<Digest, ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        Self { all: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)), layers: HashMap::new() }
    }

    fn bar(&mut self, layer: &Digest) -> &ProgressBar {
        let all = &self.all;
        self.layers.entry(layer.clone()).or_insert_with(|| {
            let bar = all.add(ProgressBar::no_length());
            bar.set_style(style(UNSIZED));
            bar.set_prefix(layer.short().to_owned());
            bar
        })
    }

    fn notify(&mut self, note: &Note) {
        match note {
            Note::Layer { layer, total: Some(total) } => {
                let bar = self.bar(layer);
                bar.set_length(*total);
                bar.set_style(style(RUNNING));
            }
            Note::Layer { layer, total: None } => self.bar(layer).tick(),
            Note::Bytes { layer, done } => self.bar(layer).set_position(*done),
            Note::LayerDone { layer } => {
                // The rate of a layer that is done would go on falling.
                let bar = self.bar(layer);
                bar.set_style(style(DONE));
                bar.finish_with_message("done");
            }
            Note::LayerExists { layer } => {
                let bar = self.bar(layer);
                bar.set_style(style(PRESENT));
                bar.finish_with_message("already here");
            }
            Note::Waiting { layer } => self.bar(layer).set_message("waiting for another fetch of it"),
            Note::Done { .. } => {
                self.layers.values().for_each(ProgressBar::abandon);
                // What follows is printed below these bars, not above them.
                *self = Self::new();
            }
            _ => {
                if let Some(sentence) = sentence(note) {
                    // The bars are on a terminal; when it is gone, so is whoever would read of it.
                    let _ = self.all.println(sentence);
                }
            }
        }
    }
}

// The bar takes what the line has left, on a terminal of any width.
const RUNNING: &str = "{prefix} [{wide_bar}] {done}/{total} {rate} {msg}";
const UNSIZED: &str = "{prefix} {spinner} {done} {msg}";
const DONE: &str = "{prefix} {total} {msg}";
const PRESENT: &str = "{prefix} {msg}";

/// A style with sizes as every other output writes them; should a template be wrong, the library's own style is used.
fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Writing into the line that is drawn cannot fail.
    style
        .with_key("done", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}", size::human(state.pos()));
        })
        .with_key("total", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}", size::human(state.len().unwrap_or_default()));
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate is shown with two digits"
            )]
            let rate = state.per_sec() as u64;
            let _ = write!(out, "{}/s", size::human(rate));
        })
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    /// A terminal of 80 columns; it keeps what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<Vec<String>>>);

    impl Terminal {
        fn put(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.put(text)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.put(text)
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_say_what_matters_and_obey_nothing() {
        let layer: Digest = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
        let mut totals = HashMap::new();
        let rows = [
            (Note::Resolving { name: "x\u{1b}[2J".into() }, Some("fetching x\\u{1b}[2J")),
            (Note::Layer { layer: layer.clone(), total: Some(2048) }, None),
            (Note::Bytes { layer: layer.clone(), done: 5 }, None),
            (Note::LayerDone { layer: layer.clone() }, Some("layer abababababab: done, 2.0KiB")),
            (Note::LayerExists { layer }, Some("layer abababababab: already here")),
        ];
        for (note, want) in rows {
            assert_eq!(line(&mut totals, &note).as_deref(), want, "{note:?}");
        }
    }

    #[test]
    fn templates_are_right() {
        for template in [RUNNING, UNSIZED, DONE, PRESENT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn bars_fit_80_columns() {
        let terminal = Terminal::default();
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let mut bars = Bars { all, layers: HashMap::new() };
        let layers: Vec<Digest> =
            ["ab", "cd"].iter().map(|two| format!("sha256:{}", two.repeat(32)).parse().unwrap()).collect();
        for layer in &layers {
            bars.notify(&Note::Layer { layer: layer.clone(), total: Some(987 << 20) });
            bars.notify(&Note::Bytes { layer: layer.clone(), done: 500 << 20 });
        }
        bars.notify(&Note::LayerDone { layer: layers[0].clone() });
        let written = terminal.0.lock().unwrap();
        assert!(written.iter().all(|text| text.trim_end().chars().count() <= 80), "{written:?}");
        let has = |wanted: &str| written.iter().any(|text| text.contains(wanted));
        assert!(has("abababababab 987.0MiB done") && has("500.0MiB/987.0MiB"), "{written:?}");
    }
}
