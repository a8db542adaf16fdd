//! Environment variables for every app of a pod: `--inherit-env`, `--set-env-file` and `--set-env`.

use std::path::{Path, PathBuf};

use gantry_host::file::{read_text, strip_byte_order_mark};
use gantry_model::PodSpec;

use crate::failure::{CliError, Failure};
use crate::grammar::{PodOptions, check_variable_name, merged_environment, message};

/// The maximum size of a file of variables: half of what execve(2) accepts by default.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Variables that are not inherited because they refer to the caller's file system.
const NEVER_INHERITED: [&str; 4] = ["PATH", "HOME", "PWD", "OLDPWD"];

/// Adds the variables of `options` to each app. Precedence, lowest first: inherited, files, `--set-env`, the app's own.
///
/// # Errors
/// A file cannot be read or is not one of `NAME=VALUE` lines.
pub(crate) fn apply(spec: &mut PodSpec, options: &PodOptions) -> Result<(), Failure> {
    let inherited = if options.inherit_env { inherited(std::env::vars_os()) } else { Vec::new() };
    let from_files = read_files(&options.env_files)?;
    if inherited.is_empty() && from_files.is_empty() && options.set_env.is_empty() {
        return Ok(());
    }
    for app in &mut spec.apps {
        app.environment = merged_environment([&inherited[..], &from_files, &options.set_env, &app.environment]);
    }
    Ok(())
}

/// The caller's variables, without those that are not UTF-8, have an invalid name, or are never inherited.
fn inherited(variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Vec<(String, String)> {
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !NEVER_INHERITED.contains(&name.as_str()))
        .filter(|(name, _)| gantry_model::spec::environment_name(name).is_ok())
        .collect()
}

/// The variables of files, in their order.
///
/// # Errors
/// A file cannot be read, or a line of it names no variable.
pub(crate) fn read_files(paths: &[PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    let mut variables = Vec::new();
    for path in paths {
        variables.extend(read_file(path)?);
    }
    Ok(variables)
}

fn read_file(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let failed = || crate::failure::io("read variables from", path.display().to_string());
    let content_error = |why| CliError::Content { path: path.to_owned(), why }.into();
    let file = std::fs::File::open(path).map_err(failed())?;
    let text = read_text(file, MAX_FILE_SIZE).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            content_error(format!("is longer than {MAX_FILE_SIZE} bytes: no app can take that many variables"))
        }
        _ => failed()(error),
    })?;
    parse_lines(&text, |name| std::env::var(name).ok()).map_err(content_error)
}

/// Parses lines `NAME=VALUE`, or `NAME` for the caller's variable, as docker does: none if the caller has none. Empty
/// lines and lines that begin with `#` or `;` are skipped, as in rkt; so are a byte order mark, white space before a
/// name, and a carriage return at the end of a line. White space at the end of a value belongs to it.
fn parse_lines(text: &str, of_caller: impl Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(strip_byte_order_mark(text).split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None if line.trim_end().contains(char::is_whitespace) => {
                return Err(format!("line {number} is neither NAME=VALUE nor NAME"));
            }
            None => (line.trim_end(), of_caller(line.trim_end())),
        };
        if line.contains('\0') {
            return Err(format!("line {number} contains a NUL byte"));
        }
        check_variable_name(name).map_err(|error| format!("line {number}: {}", message(error)))?;
        variables.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_files_are_parsed() {
        let text = "\u{feff}# comment\n; too\n\nA=1\n B=x=y \nA=2\nTERM\nNONE\n";
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let of_caller = |name: &str| (name == "TERM").then(|| "vt100".to_owned());
        let want = vec![pair("A", "1"), pair("B", "x=y "), pair("A", "2"), pair("TERM", "vt100")];
        assert_eq!(parse_lines(text, of_caller), Ok(want));
        for (bad, want) in [
            ("A=1\n=", "line 2"),
            ("=x", "line 1"),
            ("A\u{1b}=x", "line 1"),
            ("export A", "line 1 is neither"),
            ("A=1\nC = 3", "line 2: the name of a variable, 'C ', contains white space"),
            ("export D=4", "line 1: the name of a variable, 'export D', contains white space"),
            ("\"A\"=1", "contains a quote"),
            ("A=1\nB=x\0y", "line 2 contains a NUL byte"),
        ] {
            assert!(parse_lines(bad, of_caller).unwrap_err().contains(want), "{bad:?}");
        }
    }

    #[test]
    fn values_keep_white_space_at_their_ends() {
        let text = "  A= x y \t\r\nB=1 \r\n \t\nTERM \nC=\u{a0}\nD=z \r";
        let of_caller = |name: &str| (name == "TERM").then(|| "vt100 ".to_owned());
        let want = [("A", " x y \t"), ("B", "1 "), ("TERM", "vt100 "), ("C", "\u{a0}"), ("D", "z ")];
        let want: Vec<_> = want.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(parse_lines(text, of_caller), Ok(want));
    }

    #[test]
    fn help_names_the_variables_not_inherited() {
        let command = crate::cli::full_command();
        let run = command.find_subcommand("run").unwrap();
        let flag = run.get_arguments().find(|flag| flag.get_long() == Some("inherit-env")).unwrap();
        let help = flag.get_help().unwrap().to_string();
        for name in NEVER_INHERITED {
            assert!(help.split([' ', ',']).any(|word| word == name), "{name}: {help}");
        }
    }

    #[test]
    fn variables_are_inherited_by_name() {
        use std::os::unix::ffi::OsStringExt as _;
        let text = |text: &str| std::ffi::OsString::from(text);
        let odd = std::ffi::OsString::from_vec(vec![0xff]);
        let all =
            [(text("PATH"), text("/x")), (text("LANG"), text("C")), (text("ODD"), odd), (text("HOME"), text("/h"))];
        assert_eq!(inherited(all.into_iter()), [("LANG".to_owned(), "C".to_owned())]);
    }
}
