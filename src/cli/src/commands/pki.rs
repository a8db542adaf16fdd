//! `gantry pki`: the certificates of the Talos node API and of Aurae's API.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use gantry_engine::pki::{ClientRequest, IssueOptions, KeyType, ROLES, SubjectAltName};
use gantry_model::quantity;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::{Failure, warn};
use crate::render::{escape, json};

/// The default directory of certificates.
const DEFAULT_DIR: &str = "/etc/gantry/pki";
/// The default lifetime of an authority.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
/// The default lifetime of other certificates.
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// The names and addresses that a server's certificate always has, besides the name of the host. The last one is the
/// name that Aurae's client expects of every server.
const LOCAL_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "::1", "server.unsafe.aurae.io"];

/// The subcommands of `pki`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Pki {
    /// Create a certificate authority: ca.crt and ca.key
    Init(Init),
    /// Create the certificate of gantryd: server.crt and server.key
    Server(Server),
    /// Create the certificate of a client: NAME.crt, NAME.key and NAME.talosconfig
    Client(Client),
}

impl RunCommand for Pki {
    fn run(&self, _context: &Context) -> Result<ExitStatus, Failure> {
        let issued = match self {
            Self::Init(args) => args.options.to_engine(AUTHORITY_LIFETIME).create_authority(&args.name)?,
            Self::Server(args) => args.options.to_engine(LEAF_LIFETIME).issue_server(&args.alt_names())?,
            Self::Client(args) => {
                let Client { name, roles, endpoints, options } = args;
                let request = ClientRequest { name: name.clone(), roles: roles.clone(), endpoints: endpoints.clone() };
                options.to_engine(LEAF_LIFETIME).issue_client(&request)?
            }
        };
        if let Some(time) = issued.clamped_to {
            warn(&format!("the certificate expires on {time} with its authority, before its --ttl has passed"));
        }
        json::to_stdout(|out| {
            issued.paths.iter().try_for_each(|path| writeln!(out, "{}", escape::text(&path.display().to_string())))
        })?;
        Ok(ExitStatus::OK)
    }
}

/// Flags of all subcommands.
#[derive(Debug, clap::Args)]
pub(crate) struct PkiOptions {
    /// Directory of the authority and of the new files
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pki_dir: PathBuf,
    /// How long the certificate is valid, such as 90d or 24h, but not longer than its authority [default: 3650d for an
    /// authority, else 365d]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    ttl: Option<Duration>,
    /// Type of the new key. gRPC's C core (Python, C++) accepts Ed25519 neither from a server nor from an authority
    #[arg(long, value_name = "TYPE", default_value = "ed25519")]
    key_type: KeyTypeArgument,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

/// A value of `--key-type`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum KeyTypeArgument {
    Ed25519,
    Ecdsa,
}

impl PkiOptions {
    fn to_engine(&self, default: Duration) -> IssueOptions {
        let key_type = match self.key_type {
            KeyTypeArgument::Ed25519 => KeyType::Ed25519,
            KeyTypeArgument::Ecdsa => KeyType::Ecdsa,
        };
        let lifetime = self.ttl.unwrap_or(default);
        IssueOptions { dir: self.pki_dir.clone(), key_type, lifetime, replace: self.force }
    }
}

/// Arguments of `pki init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// Name of the authority
    #[arg(long, value_name = "NAME", default_value = "gantry")]
    name: String,
    #[command(flatten)]
    options: PkiOptions,
}

/// Arguments of `pki server`.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// Names and addresses under which clients reach gantryd, besides the name of this host, localhost, 127.0.0.1,
    /// ::1 and the name that Aurae's client expects
    #[arg(value_name = "NAME", value_parser = alt_name)]
    names: Vec<SubjectAltName>,
    #[command(flatten)]
    options: PkiOptions,
}

impl Server {
    fn alt_names(&self) -> Vec<SubjectAltName> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let own = std::iter::once(&host[..]).chain(LOCAL_NAMES).filter_map(SubjectAltName::parse);
        let mut names = self.names.clone();
        for name in own {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Arguments of `pki client`.
#[derive(Debug, clap::Args)]
pub(crate) struct Client {
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    /// A role: os:reader lists and reads logs, os:operator also starts, stops and restarts, pulls images and copies log
    /// files, os:admin does everything; can be repeated
    #[arg(long = "role", value_name = "ROLE", default_value = "os:reader", value_parser = ROLES)]
    roles: Vec<String>,
    /// A server for talosctl, HOST or HOST:PORT; can be repeated
    #[arg(long = "endpoint", value_name = "ADDRESS", default_value = "127.0.0.1")]
    endpoints: Vec<String>,
    #[command(flatten)]
    options: PkiOptions,
}

fn alt_name(text: &str) -> Result<SubjectAltName, String> {
    SubjectAltName::parse(text).ok_or_else(|| "it is neither a DNS name nor an address".to_owned())
}
