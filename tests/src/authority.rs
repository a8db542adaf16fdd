//! A test certificate authority, created with Debian's openssl, and the certificates it issues.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A certificate authority that is not trusted by default.
#[derive(Debug)]
pub struct Authority {
    home: TempDir,
}

/// A certificate with its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// When a certificate is valid, as openssl writes times.
#[derive(Debug, Clone, Copy)]
pub enum Validity {
    /// Valid for the lifetime of any test.
    Now,
    /// Expired in 2021.
    Over,
    /// Not valid before 2090.
    NotYet,
}

impl Validity {
    fn times(self) -> [&'static str; 2] {
        match self {
            Self::Now => ["20200101000000Z", "20900101000000Z"],
            Self::Over => ["20200101000000Z", "20210101000000Z"],
            Self::NotYet => ["20900101000000Z", "20910101000000Z"],
        }
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// When openssl is not installed or fails.
    #[must_use]
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it runs a program; a default should not")]
    pub fn new() -> Self {
        let home = match tempfile::Builder::new().prefix("gantry-authority-").tempdir() {
            Ok(home) => home,
            Err(error) => panic!("cannot make a temporary directory: {error}"),
        };
        let authority = Self { home };
        authority.configure();
        authority.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
            "-subj",
            "/CN=the authority of a test",
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
        ]);
        authority
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.home.path().join("ca.crt")
    }

    /// Issues a certificate for `name` (`IP:127.0.0.1`, `DNS:registry.example`), for servers and clients alike.
    ///
    /// # Panics
    /// When openssl fails.
    #[track_caller]
    pub fn issue(&self, name: &str, validity: Validity) -> Issued {
        self.issue_to(&[], name, validity)
    }

    /// Issues a certificate to a client of these organizations.
    ///
    /// # Panics
    /// When openssl fails.
    #[track_caller]
    pub fn issue_to_member(&self, organizations: &[&str], validity: Validity) -> Issued {
        self.issue_to(organizations, "DNS:client.example", validity)
    }

    #[track_caller]
    fn issue_to(&self, organizations: &[&str], name: &str, validity: Validity) -> Issued {
        let count = fs::read_dir(self.home.path()).map_or(0, Iterator::count);
        let file = |ending: &str| format!("issued-{count}.{ending}");
        let organizations: String = organizations.iter().map(|organization| format!("/O={organization}")).collect();
        let (key, request, certificate, extensions) = (file("key"), file("csr"), file("cert"), file("ext"));
        let text =
            format!("basicConstraints=CA:false\nsubjectAltName={name}\nextendedKeyUsage=serverAuth,clientAuth\n");
        self.write(&extensions, &text);
        self.openssl(&[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &format!("/CN={count}{organizations}"),
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        let [from, to] = validity.times();
        self.openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            "ca.cnf",
            "-cert",
            "ca.crt",
            "-keyfile",
            "ca.key",
            "-in",
            &request,
            "-out",
            &certificate,
            "-extfile",
            &extensions,
            "-startdate",
            from,
            "-enddate",
            to,
        ]);
        Issued { certificate: self.home.path().join(certificate), key: self.home.path().join(key) }
    }

    /// Trusts this authority for `host` below `dir`, in the layout of podman's and docker's `certs.d`.
    ///
    /// # Panics
    /// When a file cannot be written.
    #[track_caller]
    pub fn trust(&self, dir: &Path, host: &str) -> PathBuf {
        let place = dir.join(host);
        let written = fs::create_dir_all(&place).and_then(|()| fs::copy(self.certificate(), place.join("ca.crt")));
        if let Err(error) = written {
            panic!("cannot write below {}: {error}", place.display());
        }
        place
    }

    #[track_caller]
    fn configure(&self) {
        self.write("index.txt", "");
        self.write(
            "ca.cnf",
            "[ca]\ndefault_ca=it\n[it]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n\
             policy=any\nunique_subject=no\n[any]\ncommonName=supplied\norganizationName=optional\n",
        );
    }

    #[track_caller]
    fn write(&self, name: &str, text: &str) {
        if let Err(error) = fs::write(self.home.path().join(name), text) {
            panic!("cannot write {name}: {error}");
        }
    }

    #[track_caller]
    fn openssl(&self, args: &[&str]) {
        match Command::new("openssl").args(args).current_dir(self.home.path()).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                panic!("cannot start openssl ({error}); run `./dev setup tests` to install it")
            }
        }
    }
}

impl Issued {
    /// Installs this certificate as the client certificate in a directory of `certs.d`.
    ///
    /// # Panics
    /// When a file cannot be written.
    #[track_caller]
    pub fn as_client(&self, place: &Path) {
        let copied = fs::create_dir_all(place)
            .and_then(|()| fs::copy(&self.certificate, place.join("client.cert")))
            .and_then(|_| fs::copy(&self.key, place.join("client.key")));
        if let Err(error) = copied {
            panic!("cannot write below {}: {error}", place.display());
        }
    }
}
