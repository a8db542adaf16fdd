//! Progress of fetches on standard error: bars on a terminal, otherwise lines, or nothing.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gantry_engine::{Note, Progress};
use gantry_model::Digest;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::failure::print_stderr;
use crate::globals::ProgressMode;
use crate::render::{escape, size};

/// Displays progress.
pub(crate) enum ProgressDisplay {
    /// Displays warnings only.
    Nothing,
    /// Prints lines. Holds the sizes of layers.
    Lines(Mutex<HashMap<Digest, u64>>),
    /// Draws bars. Created with the first note, because most commands fetch nothing.
    Bars(Mutex<Option<Bars>>),
}

impl ProgressDisplay {
    /// The display for this process.
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
            // --quiet suppresses progress, but not warnings.
            Self::Nothing if is_warning(&note) => {
                if let Some(line) = sentence(&note) {
                    print_stderr(&format!("{line}\n"));
                }
            }
            Self::Nothing => {}
            Self::Lines(totals) => {
                if let Some(line) = line(&mut lock(totals), &note) {
                    print_stderr(&format!("{line}\n"));
                }
            }
            Self::Bars(bars) => lock(bars).get_or_insert_with(Bars::new).notify(&note),
        }
    }
}

fn is_warning(note: &Note) -> bool {
    matches!(
        note,
        Note::Offline { .. }
            | Note::NameMoved { .. }
            | Note::NameTaken { .. }
            | Note::NameInvalid { .. }
            | Note::MirrorFailed { .. }
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line for a note. The size of a layer is printed when it is done.
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
        Note::LayerExists { layer } => format!("layer {}: already in the store", layer.short()),
        Note::Waiting { layer } => format!("layer {}: waiting for a concurrent fetch of it", layer.short()),
        // Notes about the image.
        _ => return sentence(note),
    })
}

/// The text of notes that lines and bars print alike.
fn sentence(note: &Note) -> Option<String> {
    let shown = escape::text;
    Some(match note {
        Note::Resolving { name } => format!("fetching {}", shown(name)),
        Note::Retrying { why, after } => format!("{}; retrying in {:.1} s", shown(why), after.as_secs_f64()),
        Note::MirrorFailed { mirror, why } => {
            format!("warning: mirror {} failed: {}; trying the next", shown(mirror), shown(why))
        }
        Note::Offline { name, why } => format!("warning: {}; using the stored image {}", shown(why), shown(name)),
        Note::NameMoved { name, from } => format!("{} was moved from image {}", shown(name), from.short()),
        Note::NameTaken { name, image, owner } => format!(
            "warning: image {id} is now in the store, but without the name {name}, which belongs to image {}: give it \
             another name with 'gantry image tag {id} NAME', or move this name to it with 'gantry fetch --force'",
            owner.short(),
            id = image.short(),
            name = shown(name),
        ),
        Note::NameInvalid { name } => {
            format!("warning: the archive's name '{}' is not valid for an image and is left out", shown(name))
        }
        Note::VolumeIgnored { path } => {
            format!("ignoring the image's volume {}: it would hide files that gantry provides there", shown(path))
        }
        // Notes about layers and the end are shown differently.
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
                // Without the rate, which would keep falling.
                let bar = self.bar(layer);
                bar.set_style(style(DONE));
                bar.finish_with_message("done");
            }
            Note::LayerExists { layer } => {
                let bar = self.bar(layer);
                bar.set_style(style(PRESENT));
                bar.finish_with_message("already in the store");
            }
            Note::Waiting { layer } => self.bar(layer).set_message("waiting for a concurrent fetch of it"),
            Note::Done { .. } => {
                self.layers.values().for_each(ProgressBar::abandon);
                // Later output is printed below these bars, not above them.
                *self = Self::new();
            }
            // Notes about the image are printed above the bars.
            _ => {
                if let Some(sentence) = sentence(note) {
                    let _terminal_is_gone = self.all.println(sentence);
                }
            }
        }
    }
}

// The bar takes the rest of the line.
const RUNNING: &str = "{prefix} [{wide_bar}] {done}/{total} {rate} {msg}";
const UNSIZED: &str = "{prefix} {spinner} {done} {msg}";
const DONE: &str = "{prefix} {total} {msg}";
const PRESENT: &str = "{prefix} {msg}";

/// A style with sizes formatted as in all other output. An invalid template falls back to the library's default style.
fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Errors of writing to the line being drawn cannot be returned here.
    style
        .with_key("done", |state: &ProgressState, out: &mut dyn Write| {
            let _fmt_error = write!(out, "{}", size::human(state.pos()));
        })
        .with_key("total", |state: &ProgressState, out: &mut dyn Write| {
            let _fmt_error = write!(out, "{}", size::human(state.len().unwrap_or_default()));
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate is shown with two digits"
            )]
            let rate = state.per_sec() as u64;
            let _fmt_error = write!(out, "{}/s", size::human(rate));
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
    fn lines_are_escaped() {
        let layer: Digest = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
        let mut totals = HashMap::new();
        let rows = [
            (Note::Resolving { name: "x\u{1b}[2J".into() }, Some("fetching x\\u{1b}[2J")),
            (Note::Layer { layer: layer.clone(), total: Some(2048) }, None),
            (Note::Bytes { layer: layer.clone(), done: 5 }, None),
            (Note::LayerDone { layer: layer.clone() }, Some("layer abababababab: done, 2.0KiB")),
            (Note::LayerExists { layer }, Some("layer abababababab: already in the store")),
        ];
        for (note, want) in rows {
            assert_eq!(line(&mut totals, &note).as_deref(), want, "{note:?}");
        }
    }

    #[test]
    fn templates_are_valid() {
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
