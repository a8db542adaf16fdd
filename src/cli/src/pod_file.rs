//! Pod files: units that systemd does not know, `/etc/gantry/pods/NAME.pod`, from which a systemd generator makes
//! services.
//!
//! ```text
//! [Unit]
//! After=db.service
//!
//! [Pod]
//! Network=default
//! Port=8080:80
//!
//! [App web]
//! Image=registry.example/web:1
//! Memory=64Mi
//! Args=--listen 8080 "--title=a b"
//!
//! [Service]
//! Restart=always
//!
//! [Install]
//! WantedBy=multi-user.target
//! ```
//!
//! The keys of `[Pod]` and `[App NAME]` are the flags of `gantry run`, as `ReadOnly=` or `read-only=`. `[Unit]` and
//! `[Service]` are copied. An unknown section or key is an error with the file, the line and the nearest key.

use gantry_host::file::strip_byte_order_mark;
use gantry_model::{AppName, PodName};

use crate::cli::camel_case;
use crate::grammar::{self, Caller, Flag, ImageLookup, Parsed, Verb};
use crate::suggest;

/// A mistake in a pod file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PodFileError {
    /// The number of the line, from 1.
    pub(crate) line: usize,
    /// The reason.
    pub(crate) why: String,
}

/// A valid pod file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFile {
    /// The lines of `[Unit]`.
    pub(crate) unit: Vec<String>,
    /// The lines of `[Service]`.
    pub(crate) service: Vec<String>,
    /// The units that want or require the service: the directory of the links, such as `multi-user.target.wants`.
    pub(crate) wanted_by: Vec<String>,
    /// The words after `gantry run`.
    pub(crate) words: Vec<String>,
    /// Whether readiness is reported to systemd.
    pub(crate) notifies: bool,
    /// The longest stop timeout of its apps, in milliseconds, if one has any.
    pub(crate) stop_timeout_ms: Option<u64>,
}

/// Keys of `[Service]` that would not run the pod.
const RESERVED_SERVICE_KEYS: [&str; 6] =
    ["ExecStart", "Type", "StandardInput", "StandardInputText", "StandardInputData", "KillMode"];

/// A section of the file.
#[derive(Clone, Copy)]
enum Section {
    Unit,
    Service,
    Install,
    Pod,
    App(usize),
}

/// An app while the file is read.
struct AppSection {
    /// The line of its header.
    line: usize,
    name: AppName,
    image: Option<String>,
    flags: Vec<String>,
    args: Vec<String>,
}

/// Parses a pod file; a byte order mark is skipped. `name` is that of the pod, unless the file has another.
///
/// # Errors
/// The first [`PodFileError`].
pub(crate) fn parse(text: &str, name: &str) -> Result<PodFile, PodFileError> {
    let mut draft = Draft::default();
    for (line, text) in logical_lines(strip_byte_order_mark(text)) {
        draft.add_line(line, &text).map_err(|why| PodFileError { line, why })?;
    }
    draft.finish(name)
}

/// The parts of a pod file that were read so far.
#[derive(Default)]
struct Draft {
    file: PodFile,
    pod_flags: Vec<String>,
    apps: Vec<AppSection>,
    /// The section that the next keys belong to.
    section: Option<Section>,
}

impl Draft {
    /// Adds a header, which becomes the section, or a key of the section.
    fn add_line(&mut self, line: usize, text: &str) -> Result<(), String> {
        if let Some(header) = text.strip_prefix('[') {
            let header = header.strip_suffix(']').ok_or("a section begins with [NAME]")?;
            self.section = Some(parse_header(header, line, &mut self.apps)?);
            return Ok(());
        }
        let (key, value) = text.split_once('=').ok_or("this is not KEY=VALUE")?;
        let section = self.section.ok_or("a key must be in a section: [Pod], [App NAME], [Unit], [Service]")?;
        self.add_key(section, key.trim(), value.trim())
    }

    fn add_key(&mut self, section: Section, key: &str, value: &str) -> Result<(), String> {
        match section {
            Section::Unit => self.file.unit.push(format!("{key}={value}")),
            Section::Service if RESERVED_SERVICE_KEYS.contains(&key) => {
                return Err(format!("{key}= is that of the pod and cannot be changed"));
            }
            Section::Service => self.file.service.push(format!("{key}={value}")),
            Section::Install => self.file.wanted_by.extend(install_links(key, value)?),
            Section::Pod => self.pod_flags.extend(flag_words(find_flag(key, true)?, value)?),
            Section::App(number) => {
                if let Some(app) = self.apps.get_mut(number) {
                    app.add_key(key, value)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the words of `gantry run`, and checks them.
    fn finish(self, name: &str) -> Result<PodFile, PodFileError> {
        let Self { mut file, pod_flags, apps, section: _ } = self;
        let whole = |why: &str| PodFileError { line: 1, why: why.to_owned() };
        // The service and the file with the pod's id are named after it, also if the pod has another name.
        let name: PodName = name.parse().map_err(|_| whole("the name of the file cannot be the name of a pod"))?;
        if apps.is_empty() {
            return Err(whole("a pod needs an app: [App NAME] with Image="));
        }
        let is_named = pod_flags.iter().any(|word| word.starts_with("--pod-name="));
        file.words.extend((!is_named).then(|| format!("--pod-name={name}")));
        file.words.extend(pod_flags);
        for (number, app) in apps.into_iter().enumerate() {
            let AppSection { line, name, image, flags, args } = app;
            let missing = || PodFileError { line, why: format!("app '{name}' needs Image=") };
            file.words.extend((number > 0).then(|| "---".to_owned()));
            file.words.push(image.ok_or_else(missing)?);
            file.words.push(format!("--name={name}"));
            file.words.extend(flags);
            // Always, so that the next image is not taken for a command.
            file.words.push("--".to_owned());
            file.words.extend(args);
        }
        (file.notifies, file.stop_timeout_ms) = check(&file.words).map_err(|why| whole(&why))?;
        Ok(file)
    }
}

impl AppSection {
    fn add_key(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key.to_ascii_lowercase().as_str() {
            "image" if self.image.is_some() => return Err("an app has one Image=".to_owned()),
            "image" => self.image = Some(value.to_owned()),
            "args" => self.args.extend(split_words(value, Quoting::Shell)?),
            _ => self.flags.extend(flag_words(find_flag(key, false)?, value)?),
        }
        Ok(())
    }
}

/// The lines without comments, those that end with a backslash joined with the next one; with their numbers.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        if trimmed.starts_with(['#', ';']) || (trimmed.is_empty() && !continues) {
            continue;
        }
        let (part, goes_on) = trimmed.strip_suffix('\\').map_or((trimmed, false), |part| (part.trim_end(), true));
        match lines.last_mut().filter(|_| continues) {
            Some((_, last)) => {
                last.push(' ');
                last.push_str(part);
            }
            None => lines.push((number, part.to_owned())),
        }
        continues = goes_on;
    }
    lines
}

fn parse_header(header: &str, line: usize, apps: &mut Vec<AppSection>) -> Result<Section, String> {
    match header.split_once(' ').unwrap_or((header, "")) {
        ("Unit", "") => Ok(Section::Unit),
        ("Service", "") => Ok(Section::Service),
        ("Install", "") => Ok(Section::Install),
        ("Pod", "") => Ok(Section::Pod),
        ("App", name) => {
            let name: AppName = name.trim().parse().map_err(|error| format!("[App NAME]: {error}"))?;
            if apps.iter().any(|app| app.name == name) {
                return Err(format!("there are two sections [App {name}]"));
            }
            apps.push(AppSection { line, name, image: None, flags: Vec::new(), args: Vec::new() });
            Ok(Section::App(apps.len() - 1))
        }
        _ => {
            let near = suggest::nearest(header, ["Unit", "Service", "Install", "Pod", "App"]);
            let hint = near.map_or(String::new(), |near| format!(": did you mean [{near}]?"));
            Err(format!("there is no section [{}]{hint}", gantry_model::id::shown(header)))
        }
    }
}

/// `ReadOnly` and `read-only` as the name of a flag.
fn flag_name(key: &str) -> String {
    let mut name = String::new();
    let mut was_lower = false;
    for c in key.chars() {
        if c.is_ascii_uppercase() && was_lower {
            name.push('-');
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// The flag of a key of `[Pod]`, or else of `[App NAME]`.
fn find_flag(key: &str, of_pod: bool) -> Result<&'static Flag, String> {
    let name = flag_name(key);
    let usable = || grammar::all_flags().filter(|flag| flag.in_pod_file && flag.is_of_pod() == of_pod);
    if let Some(flag) = usable().find(|flag| flag.longs().any(|long| long == name)) {
        return Ok(flag);
    }
    let section = if of_pod { "[Pod]" } else { "[App NAME]" };
    let own = if of_pod { &[][..] } else { &["image", "args"] };
    let known = usable().flat_map(Flag::longs).chain(own.iter().copied());
    let hint = match suggest::nearest(&name, known) {
        Some(near) => format!(": did you mean {}=?", camel_case(near).collect::<String>()),
        None => String::new(),
    };
    Err(format!("{section} has no key {}={hint}", gantry_model::id::shown(key)))
}

/// The words of the command line, after the value was checked.
fn flag_words(flag: &Flag, value: &str) -> Result<Vec<String>, String> {
    match flag.long() {
        "environment" | "set-env" => assignments(value)?.iter().map(|variable| flag_word(flag, variable)).collect(),
        _ => Ok(vec![flag_word(flag, value)?]),
    }
}

/// The variables of a line as `Environment=` of systemd.exec(5) has them: several on a line, quoted and escaped as in
/// systemd.syntax(7). A name alone on its line takes the value that the service has.
fn assignments(value: &str) -> Result<Vec<String>, String> {
    let words = split_words(value, Quoting::Systemd)?;
    if words.is_empty() {
        return Err("it names no variable: write NAME=VALUE, or leave it out".to_owned());
    }
    match words.iter().find(|word| !word.contains('=')) {
        Some(word) if words.len() > 1 => Err(format!(
            "'{}' is not NAME=VALUE: a value with spaces needs quotes, as in \"A=b c\"",
            gantry_model::id::shown(word)
        )),
        _ => Ok(words),
    }
}

/// The word of the command line, after the value was checked.
fn flag_word(flag: &Flag, value: &str) -> Result<String, String> {
    let value = match (flag.is_switch(), value) {
        (true, "yes" | "on" | "1") => "true",
        (true, "no" | "off" | "0") => "false",
        (_, value) => value,
    };
    let word = format!("--{}={value}", flag.long());
    // Alone, so that the error is that of this line. The whole command line is checked at the end.
    let line = [word.clone(), "docker://example.invalid/a:1".to_owned(), "--".to_owned(), "x".to_owned()];
    match grammar::check_values(Verb::Run, &line, &caller()) {
        Ok(()) => Ok(word),
        Err(error) => Err(error.to_string()),
    }
}

fn caller() -> Caller<'static> {
    Caller { variable: &|_| None, directory: Some("/".into()), look_up_image: &|_, _| ImageLookup::Found }
}

/// Parses the words of a command line; returns whether readiness is reported, and the longest stop timeout of the apps
/// in milliseconds.
fn check(words: &[String]) -> Result<(bool, Option<u64>), String> {
    match grammar::parse(Verb::Run, words, &caller()) {
        Ok(Parsed::Pod(request)) => {
            let silent = gantry_model::systemd::SdNotify::None;
            let apps = &request.spec.apps;
            let stop_timeout = apps.iter().filter_map(|app| app.options.stop_timeout_ms).max();
            Ok((apps.iter().any(|app| app.options.sdnotify != silent), stop_timeout))
        }
        Ok(Parsed::Help) => Err("--help is no setting".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn install_links(key: &str, value: &str) -> Result<Vec<String>, String> {
    let kind = match key {
        "WantedBy" => "wants",
        "RequiredBy" => "requires",
        _ => {
            let nearest = suggest::nearest(key, ["WantedBy", "RequiredBy"]);
            let hint = nearest.map(|known| format!(": did you mean {known}=?")).unwrap_or_default();
            return Err(format!("[Install] has no key {}={hint}", gantry_model::id::shown(key)));
        }
    };
    let is_unit = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c);
        name.chars().all(is_plain) && !name.starts_with('.')
    };
    let link = |name: &str| match is_unit(name) {
        true => Ok(format!("{name}.{kind}")),
        false => Err(format!("'{}' is not the name of a unit", gantry_model::id::shown(name))),
    };
    value.split_whitespace().map(link).collect()
}

/// How a backslash is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    /// It takes the next character as it is, except in single quotes.
    Shell,
    /// It begins an escape of systemd.syntax(7), also in quotes.
    Systemd,
}

/// Splits words at spaces; quotes keep a word together.
fn split_words(text: &str, quoting: Quoting) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\\') if quoting == Quoting::Shell => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().push(escaped(&mut chars, quoting)?),
            (Some(open), c) if open == c => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(quote) => Err(format!("the closing {quote} is missing")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// The character that the text after a backslash stands for.
fn escaped(chars: &mut std::str::Chars<'_>, quoting: Quoting) -> Result<char, String> {
    let c = chars.next().ok_or("the text ends with a backslash")?;
    let mut number = |first: &str, radix: u32, count: usize| {
        let (digits, rest) = chars.as_str().split_at_checked(count)?;
        *chars = rest.chars();
        let digits = format!("{first}{digits}");
        // FromStr accepts a plus sign.
        let code = u32::from_str_radix(&digits, radix).ok().filter(|code| *code > 0 && !digits.starts_with('+'));
        code.and_then(char::from_u32)
    };
    let plain = match c {
        c if quoting == Quoting::Shell => Some(c),
        'a' => Some('\u{7}'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'v' => Some('\u{b}'),
        's' => Some(' '),
        '\\' | '"' | '\'' => Some(c),
        // A byte above 0x7f would be a part of a character.
        'x' => number("", 16, 2).filter(char::is_ascii),
        '0'..='3' => number(&c.to_string(), 8, 2).filter(char::is_ascii),
        'u' => number("", 16, 4),
        'U' => number("", 16, 8),
        _ => None,
    };
    plain.ok_or_else(|| {
        let c = gantry_model::id::shown(&c.to_string());
        format!("'\\{c}', with what follows, is not an escape of systemd.syntax(7)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_flags() {
        let text = "\u{feff}# A comment\n[Unit]\nAfter=db.service\n[Pod]\nNetwork=none\n\n[App web]\nImage=docker://x/web:1\n\
                    Memory=64Mi\nReadOnly=yes\nEnv=\"A=b c\" B=d\nArgs=serve \\\n  \"a b\" 'c\\d' e\\ f\n\
                    [App job]\nImage=docker://x/job:1\nsdnotify=none\n\
                    [Service]\nRestart=always\n[Install]\nWantedBy=multi-user.target default.target\n";
        let file = parse(text, "shop").unwrap();
        let want = "--pod-name=shop --network=none docker://x/web:1 --name=web --memory=64Mi --readonly-rootfs=true \
                    --environment=A=b c --environment=B=d -- serve a b c\\d e f --- docker://x/job:1 --name=job --sdnotify=none --";
        assert_eq!(file.words.join(" "), want);
        assert!(file.words.contains(&"a b".to_owned()) && file.words.contains(&"e f".to_owned()), "{:?}", file.words);
        assert_eq!(file.unit, ["After=db.service"]);
        assert_eq!(file.service, ["Restart=always"]);
        assert_eq!(file.wanted_by, ["multi-user.target.wants", "default.target.wants"]);
        assert!(file.notifies, "one app does");
    }

    #[test]
    fn keys_may_depend_on_each_other() {
        let text = "[Pod]\nVolume=data,kind=empty\n[App a]\nImage=docker://x/a:1\nMemory=1Gi\nMemorySwap=2Gi\n\
                    Mount=volume=data,target=/data\nStopTimeout=120s\n";
        assert_eq!(parse(text, "shop").unwrap().stop_timeout_ms, Some(120_000));
        assert!(parse("[App a]\nImage=docker://x/a:1\nMemorySwap=2Gi\n", "shop").is_err());
        assert!(parse(text, "my shop").is_err());
    }

    #[test]
    fn variables_are_quoted_as_in_units() {
        for (line, want) in [
            ("A=1", &["A=1"][..]),
            ("\"A=x y\"", &["A=x y"]),
            ("A=1 'B=it is' \"C=x\"", &["A=1", "B=it is", "C=x"]),
            ("A=\"x y\"z", &["A=x yz"]),
            (r#"A=x\sy "B=\"q\"" 'C=\x41\103\n\u00e9'"#, &["A=x y", "B=\"q\"", "C=AC\n\u{e9}"]),
            ("A= B=", &["A=", "B="]),
            ("TERM", &["TERM"]),
            ("A=a=b%n$HOME", &["A=a=b%n$HOME"]),
        ] {
            assert_eq!(assignments(line).unwrap(), want, "{line}");
        }
        for (line, why) in [
            ("A=b c", "'c' is not NAME=VALUE: a value with spaces needs quotes"),
            ("\"A=x", "the closing \" is missing"),
            (r"A=\q", "is not an escape"),
            (r"A=\xff", "is not an escape"),
            (r"A=\x4", "is not an escape"),
            ("A=\\x4\u{e9}", "is not an escape"),
            (r"A=\u41", "is not an escape"),
            (r"A=\1", "is not an escape"),
            ("", "it names no variable"),
            (r"A=\x0", "is not an escape"),
            (r"A=\000", "is not an escape"),
        ] {
            let error = assignments(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn mistakes_have_their_line() {
        let app = "[App a]\nImage=docker://x/a:1\n";
        for (text, line, why) in [
            ("[Pod]\nNetwrok=none\n", 2, "did you mean Network=?"),
            (&format!("{app}ReadOnyl=yes\n"), 3, "did you mean ReadOnly=?"),
            ("[Pods]\n", 1, "did you mean [Pod]?"),
            ("Network=none\n", 1, "must be in a section"),
            (&format!("{app}Memroy=1Gi\n"), 3, "did you mean Memory=?"),
            (&format!("{app}Memory=much\n"), 3, "--memory"),
            (&format!("{app}Network=none\n"), 3, "[App NAME] has no key"),
            (&format!("{app}Environment=A=1\nEnvironment=\"B C=1\"\n"), 4, "contains white space"),
            ("[Pod]\nSetEnv=A=b c\n", 2, "needs quotes"),
            (&format!("{app}Args=\"x\n"), 3, "the closing \" is missing"),
            (&format!("{app}{app}"), 3, "two sections [App a]"),
            ("[App a]\n", 1, "needs Image="),
            ("[Pod]\nDetach=yes\n", 2, "has no key"),
            (&format!("{app}[Service]\nExecStart=/bin/x\n"), 4, "cannot be changed"),
            (&format!("{app}[Install]\nWantedBy=../x\n"), 4, "is not the name of a unit"),
            ("", 1, "a pod needs an app"),
        ] {
            let error = parse(text, "p").unwrap_err();
            assert!(error.line == line && error.why.contains(why), "{text}: {error:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _ = parse(&text, "p");
            let _ = (split_words(&text, Quoting::Shell), split_words(&text, Quoting::Systemd));
        }
    }
}
