//! `gantry login` and `gantry logout`.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use gantry_engine::login;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::{Failure, io, print_stderr, warn};
use crate::progress::ProgressDisplay;
use crate::render::{escape, json};
use crate::terminal;

/// The maximum size of a password. Some tokens have several kilobytes.
const MAX_PASSWORD: u64 = 64 << 10;

/// Arguments of `login`.
#[derive(Debug, clap::Args)]
pub(crate) struct Login {
    /// The registry, such as registry.example:5000 or docker.io
    #[arg(value_name = "REGISTRY")]
    registry: String,
    /// User name [default: ask]
    #[arg(short, long, value_name = "USER")]
    username: Option<String>,
    /// Password. Visible to other users of this host; prefer --password-stdin
    #[arg(short, long, value_name = "PASSWORD", conflicts_with = "password_stdin")]
    password: Option<String>,
    /// Read the password from standard input
    #[arg(long)]
    password_stdin: bool,
    /// Credentials file [default: REGISTRY_AUTH_FILE, or containers/auth.json in XDG_RUNTIME_DIR, or
    /// /run/containers/0/auth.json]
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
}

/// Arguments of `logout`.
#[derive(Debug, clap::Args)]
pub(crate) struct Logout {
    /// The registry
    #[arg(value_name = "REGISTRY", required_unless_present = "all")]
    registry: Option<String>,
    /// Remove the logins of all registries
    #[arg(short, long, conflicts_with = "registry")]
    all: bool,
    /// Credentials file, as for 'gantry login'
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
}

/// Checks credentials with a registry and stores them.
impl RunCommand for Login {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let host = login::registry_host(&self.registry)?;
        if self.password_stdin && self.username.is_none() {
            return Err(Failure::usage("--password-stdin needs --username"));
        }
        let user = match &self.username {
            Some(user) => user.clone(),
            None => ask("Username: ", false)?,
        };
        let password = match &self.password {
            Some(password) => {
                warn("other users can read a password on the command line: use --password-stdin");
                password.clone()
            }
            None if self.password_stdin => from_stdin()?,
            None => ask("Password: ", true)?,
        };
        if user.is_empty() || user.contains(':') || password.is_empty() {
            return Err(Failure::usage("login needs a user name without ':' and a password"));
        }
        let config = context.options()?.fetch;
        let progress = ProgressDisplay::new(context.globals.progress, false);
        let done = login::log_in(&config, &host, (&user, &password), self.authfile.as_deref(), &progress)?;
        let note = if done.checked { "" } else { " (not verified: the registry does not ask for credentials)" };
        let (host, place) = (escape::text(&done.host), escape::text(&done.place));
        json::to_stdout(|out| writeln!(out, "logged in to {host}{note}; credentials stored in {place}"))?;
        Ok(ExitStatus::OK)
    }
}

/// Removes stored credentials.
impl RunCommand for Logout {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let host = self.registry.as_deref().map(login::registry_host).transpose()?;
        let config = context.options()?.fetch;
        let left = login::log_out(&config, host.as_deref(), self.authfile.as_deref())?;
        match left {
            Some(place) => {
                let registry = host.as_deref().unwrap_or("one registry or more");
                let (registry, place) = (escape::text(registry), escape::text(&place));
                print_stderr(&format!("gantry: warning: {place} still has credentials for {registry}\n"));
            }
            None => {
                let registry = host.as_deref().unwrap_or("all registries");
                json::to_stdout(|out| writeln!(out, "logged out of {}", escape::text(registry)))?;
            }
        }
        Ok(ExitStatus::OK)
    }
}

fn from_stdin() -> Result<String, Failure> {
    let text = gantry_host::file::read_text(std::io::stdin(), MAX_PASSWORD).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => Failure::usage("the password on standard input is longer than 64 KiB"),
        _ => io("read the password from", "standard input")(error),
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Prompts on the terminal.
fn ask(prompt: &str, secret: bool) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage("standard input is not a terminal: give --username and --password-stdin"));
    }
    let failed = || io("prompt on", "the terminal");
    let mut stderr = std::io::stderr();
    write!(stderr, "{prompt}").and_then(|()| stderr.flush()).map_err(failed())?;
    let mut line = String::new();
    if !secret {
        stdin.read_line(&mut line).map_err(failed())?;
        return Ok(line.trim().to_owned());
    }
    terminal::restore_at_signals().map_err(failed())?;
    let typed = {
        let _raw = terminal::RawMode::enter().map_err(failed())?;
        read_secret(&mut stdin.lock()).map_err(failed())?
    };
    writeln!(stderr).map_err(failed())?;
    typed.ok_or_else(|| Failure::usage("the login was cancelled"))
}

/// Reads a line from a raw terminal; `None` when it is cancelled (ctrl-c, ctrl-d).
fn read_secret(input: &mut dyn std::io::Read) -> std::io::Result<Option<String>> {
    const CANCEL: [u8; 2] = [3, 4];
    const ERASE: [u8; 2] = [8, 127];
    const ERASE_LINE: u8 = 21;
    let mut typed = Vec::new();
    let mut byte = [0];
    loop {
        if input.read(&mut byte)? == 0 {
            return Ok(None);
        }
        match byte[0] {
            b'\r' | b'\n' => return Ok(String::from_utf8(typed).ok()),
            key if CANCEL.contains(&key) => return Ok(None),
            key if ERASE.contains(&key) => {
                // All bytes of a character.
                while typed.pop().is_some_and(|last| last & 0xc0 == 0x80) {}
            }
            ERASE_LINE => typed.clear(),
            key if typed.len() as u64 <= MAX_PASSWORD => typed.push(key),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_secrets_can_be_edited() {
        for (keys, want) in [
            (&b"secret\r"[..], Some("secret")),
            (b"sx\x7fecret\n", Some("secret")),
            (b"wrong\x15right\r", Some("right")),
            ("pé\u{7f}w\r".as_bytes(), Some("pw")),
            (b"abc\x03", None),
            (b"abc", None),
        ] {
            assert_eq!(read_secret(&mut &keys[..]).unwrap().as_deref(), want, "{keys:?}");
        }
    }
}
