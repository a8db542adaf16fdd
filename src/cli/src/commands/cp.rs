//! `gantry cp`.

use std::io::{self, BufWriter, IsTerminal as _};
use std::path::Path;

use gantry_engine::{CopyOptions, CopySource, CopyTarget};
use gantry_model::Kind as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{self, Failure};
use crate::pods::find_app;
use crate::relay::Stdout;

/// Arguments of `cp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A path of the host that contains a ':' begins with '/' or '.'. A path of an app is taken from its root."
)]
pub(crate) struct Cp {
    /// POD[/APP]:PATH, a path of this host, or - for a tar archive on standard input
    #[arg(value_name = "SOURCE")]
    source: String,
    /// POD[/APP]:PATH, a path of this host, or - for a tar archive on standard output
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// Keep owner, group, set-user-ID bits and extended attributes
    #[arg(short, long)]
    archive: bool,
    /// Copy the file that SOURCE links to, if it is a symbolic link
    #[arg(short = 'L', long)]
    follow_link: bool,
    /// Suppress warnings about files that are not copied
    #[arg(short, long)]
    quiet: bool,
}

/// One side of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location<'a> {
    /// A file of an app.
    App {
        /// The pod, or the pod and the app.
        app: &'a str,
        /// The path as given.
        path: &'a str,
    },
    /// A file of the host.
    Host(&'a str),
    /// Standard input or output.
    Stream,
}

impl<'a> Location<'a> {
    /// Parses an argument.
    pub(super) fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            _ if text == "-" => Self::Stream,
            // A path of the host.
            _ if text.starts_with(['/', '.']) => Self::Host(text),
            Some((app, path)) => Self::App { app, path },
            None => Self::Host(text),
        }
    }
}

impl RunCommand for Cp {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let options = CopyOptions { archive: self.archive, follow_link: self.follow_link };
        let warnings = match (Location::parse(&self.source), Location::parse(&self.destination)) {
            (Location::App { app, path }, to @ (Location::Host(_) | Location::Stream)) => {
                if to == Location::Stream && io::stdout().is_terminal() {
                    return Err(Failure::usage("refusing to write an archive to a terminal: use a pipe"));
                }
                let engine = context.open("cp")?;
                let (id, app) = find_app(&engine, app, None)?;
                let path = path_in_app(path);
                match to {
                    Location::Host(to) => {
                        engine.copy_from_app(id, &app, &path, CopyTarget::Path(Path::new(to)), options)?
                    }
                    _ => {
                        let mut out = BufWriter::with_capacity(256 << 10, Stdout);
                        let copied = engine.copy_from_app(id, &app, &path, CopyTarget::Archive(&mut out), options);
                        copied.map_err(closed_output)?
                    }
                }
            }
            (from @ (Location::Host(_) | Location::Stream), Location::App { app, path }) => {
                if from == Location::Stream && io::stdin().is_terminal() {
                    return Err(Failure::usage("standard input is a terminal: an archive is read from it"));
                }
                let engine = context.open("cp")?;
                let (id, app) = find_app(&engine, app, None)?;
                let path = path_in_app(path);
                match from {
                    Location::Host(from) => {
                        engine.copy_to_app(id, &app, CopySource::Path(Path::new(from)), &path, options)?
                    }
                    _ => engine.copy_to_app(id, &app, CopySource::Archive(&mut io::stdin()), &path, options)?,
                }
            }
            (Location::App { .. }, Location::App { .. }) => {
                return Err(Failure::usage(
                    "files are copied between a pod and this host; between pods, use a pipe: 'gantry cp POD:PATH - | \
                     gantry cp - POD:PATH'",
                ));
            }
            _ => return Err(Failure::usage("one of the two must be a path in a pod: POD:PATH or POD/APP:PATH")),
        };
        if !self.quiet {
            warnings.iter().for_each(|warning| failure::warn(warning));
        }
        Ok(ExitStatus::OK)
    }
}

/// A path of an app; a relative one is taken from its root.
fn path_in_app(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Converts an error of writing to standard output; a closed pipe is reported as for all other output.
fn closed_output(error: gantry_engine::EngineError) -> Failure {
    match error.kind() {
        gantry_model::ErrorKind::Unavailable if error.is_broken_pipe() => Failure::BrokenPipe,
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_told_apart() {
        for (text, want) in [
            ("-", Location::Stream),
            ("pod:/etc", Location::App { app: "pod", path: "/etc" }),
            ("pod/app:etc/x:y", Location::App { app: "pod/app", path: "etc/x:y" }),
            ("./a:b", Location::Host("./a:b")),
            ("/a:b", Location::Host("/a:b")),
            ("file", Location::Host("file")),
        ] {
            assert_eq!(Location::parse(text), want, "{text}");
        }
    }
}
