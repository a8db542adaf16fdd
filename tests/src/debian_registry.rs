//! Debian's `docker-registry` on loopback, filled by `skopeo`: a registry implementation independent of gantry.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::authority::Issued;
use crate::running::Running;
use crate::wait::wait_for;

/// The user with full access, when the registry requires a login.
pub const USER: &str = "user";
/// The password of [`USER`].
pub const PASSWORD: &str = "secret";

/// `USER:PASSWORD` as htpasswd(1) writes it; bcrypt, the only scheme that the registry supports.
const HTPASSWD: &str = "user:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// The number of ports to try: another process may bind the free port before the registry does.
const TRIES: usize = 5;

/// A running registry. Dropping it kills the process and deletes the storage.
#[derive(Debug)]
pub struct DebianRegistry {
    home: TempDir,
    port: u16,
    child: Option<Child>,
    options: RegistryOptions,
}

/// How a registry is protected.
#[derive(Debug, Default)]
pub struct RegistryOptions {
    /// Requires [`USER`] and [`PASSWORD`].
    pub protected: bool,
    /// Serves TLS with this certificate.
    pub tls: Option<Issued>,
    /// Requires client certificates signed by the authority of this certificate.
    pub client_authority: Option<PathBuf>,
    /// The `certs.d` directory for pushes: the authority of the registry's certificate, and a client certificate.
    pub push_dir: Option<PathBuf>,
}

impl DebianRegistry {
    /// Starts an empty registry on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When the registry is not installed or does not start.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(RegistryOptions::default())
    }

    /// Starts an empty registry that requires [`USER`].
    ///
    /// # Panics
    /// When the registry is not installed or does not start.
    #[must_use]
    #[track_caller]
    pub fn protected() -> Self {
        Self::start_with(RegistryOptions { protected: true, ..RegistryOptions::default() })
    }

    /// Starts an empty registry with this protection.
    ///
    /// # Panics
    /// When the registry is not installed or does not start.
    #[must_use]
    #[track_caller]
    pub fn start_with(options: RegistryOptions) -> Self {
        let home = match tempfile::Builder::new().prefix("gantry-registry-").tempdir() {
            Ok(home) => home,
            Err(error) => panic!("cannot make a temporary directory: {error}"),
        };
        let mut registry = Self { home, port: 0, child: None, options };
        if (0..TRIES).any(|_| registry.serve()) {
            return registry;
        }
        panic!("docker-registry does not start; its log:\n{}", registry.log());
    }

    /// Starts the process; false if it exited at once.
    #[track_caller]
    fn serve(&mut self) -> bool {
        let started = self.configure().and_then(|(config, log)| {
            let mut command = Command::new("docker-registry");
            command.arg("serve").arg(config).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            Ok(command.spawn())
        });
        let mut child = match started {
            Ok(Ok(child)) => child,
            Ok(Err(error)) => panic!("{}", missing("docker-registry", &error)),
            Err(error) => panic!("cannot write below {}: {error}", self.home.path().display()),
        };
        let up = wait_for("docker-registry to listen", || {
            if matches!(child.try_wait(), Ok(Some(_))) {
                return Some(false);
            }
            self.log().contains("listening on").then_some(true)
        });
        self.child = Some(child);
        up
    }

    fn configure(&mut self) -> std::io::Result<(PathBuf, File)> {
        self.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let home = self.home.path();
        let mut config = format!(
            "version: 0.1\nlog: {{level: info, accesslog: {{disabled: false}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: '127.0.0.1:{}'}}\n",
            home.join("storage").display(),
            self.port
        );
        if let Some(tls) = &self.options.tls {
            config.truncate(config.trim_end().len() - 1);
            config += &format!(", tls: {{certificate: {}, key: {}", tls.certificate.display(), tls.key.display());
            if let Some(authority) = &self.options.client_authority {
                config += &format!(", clientcas: [{}]", authority.display());
            }
            config += "}}\n";
        }
        if self.options.protected {
            fs::write(home.join("htpasswd"), HTPASSWD)?;
            config += &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", home.join("htpasswd").display());
        }
        let path = home.join("config.yml");
        fs::write(&path, config)?;
        Ok((path, File::create(home.join("log"))?))
    }

    /// `127.0.0.1:PORT`
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Copies an image into the registry, byte for byte. `from` is a skopeo reference such as `oci:DIR:TAG`.
    ///
    /// # Panics
    /// When skopeo is not installed or fails.
    #[track_caller]
    pub fn push(&self, from: &str, name: &str) {
        self.copy(&["--preserve-digests", "--all"], from, name);
    }

    /// Copies an image into the registry as Docker's schema 2.
    ///
    /// # Panics
    /// When skopeo is not installed or fails.
    #[track_caller]
    pub fn push_as_docker(&self, from: &str, name: &str) {
        self.copy(&["--format", "v2s2"], from, name);
    }

    #[track_caller]
    fn copy(&self, how: &[&str], from: &str, name: &str) {
        let mut command = Command::new("skopeo");
        command.args(["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]).args(how);
        if let Some(dir) = &self.options.push_dir {
            command.arg("--dest-cert-dir").arg(dir);
        }
        if self.options.protected {
            command.arg(format!("--dest-creds={USER}:{PASSWORD}"));
        }
        command.arg(from).arg(format!("docker://{}/{name}", self.host()));
        command.env("HOME", self.home.path()).env("TMPDIR", self.home.path());
        if let Err(error) = Command::new("skopeo").arg("--version").stdout(Stdio::null()).status() {
            panic!("{}", missing("skopeo", &error));
        }
        Running::start(&mut command, false).wait().succeeded();
    }

    /// The registry's log so far.
    #[must_use]
    #[track_caller]
    fn log(&self) -> String {
        match fs::read(self.home.path().join("log")) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => panic!("cannot read the registry's log: {error}"),
        }
    }

    /// The number of GET requests for this path (such as `/v2/app/blobs/sha256:…`), whole or ranges, that the registry
    /// served before this call.
    ///
    /// # Panics
    /// When the registry does not reply.
    #[must_use]
    #[track_caller]
    pub fn gets(&self, path: &str) -> usize {
        // The registry logs a request after the reply, in order per client: once a request made now is in the log, all
        // earlier ones are.
        let marker = format!("/v2/marker-{}", self.log().len());
        if let Err(error) = self.ask(&marker) {
            panic!("{} does not answer: {error}", self.host());
        }
        let log = wait_for("the registry to log a request", || Some(self.log()).filter(|log| log.contains(&marker)));
        let get = format!("\"GET {path} HTTP/1.1\" 2");
        log.lines().filter(|line| line.contains(&get)).count()
    }

    fn ask(&self, path: &str) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(self.host())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host())?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    }

    /// Kills the process, like a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if the process has exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for DebianRegistry {
    fn drop(&mut self) {
        self.kill();
    }
}

fn missing(program: &str, error: &std::io::Error) -> String {
    format!("cannot start {program} ({error}); run `./dev setup tests` to install it")
}

/// Writes an OCI layout whose tag `latest` is an index of these images, each with its platform.
///
/// # Panics
/// When a file cannot be written.
#[track_caller]
pub fn write_index(dir: &Path, images: &[&gantry_fixtures::Image]) {
    let kind = "application/vnd.oci.image.index.v1+json";
    let entries: Vec<_> = images.iter().map(|image| image.descriptor()).collect();
    let index = serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "manifests": entries }).to_string();
    let id = gantry_fixtures::digest(index.as_bytes());
    let top = serde_json::json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": kind, "digest": id, "size": index.len(),
        "annotations": { "org.opencontainers.image.ref.name": "latest" },
    }] });
    let tagged: Vec<_> = images.iter().map(|image| (*image, "part")).collect();
    let written = gantry_fixtures::write_layout(dir, &tagged)
        .and_then(|()| fs::write(dir.join("blobs").join(id.replace(':', "/")), index))
        .and_then(|()| fs::write(dir.join("index.json"), top.to_string()));
    if let Err(error) = written {
        panic!("cannot write {}: {error}", dir.display());
    }
}
