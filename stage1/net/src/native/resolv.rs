//! The DNS settings in a file, for `resolvConf` of host-local.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use gantry_model::resolv_conf::{self, Directive};
use rustix::fs::OFlags;

use super::error::NativeError;
use crate::config::{Dns, files};

/// The maximum size of the file, in bytes.
const MAX_SIZE: usize = 64 * 1024;

/// Reads the file. Opening a FIFO or a device instead does not block.
pub(super) fn read(path: &str) -> Result<Dns, NativeError> {
    let text = || -> io::Result<String> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let bytes = files::read(file, MAX_SIZE)?.ok_or(io::ErrorKind::FileTooLarge)?;
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not text"))
    };
    match text() {
        Ok(text) => Ok(parse(&text)),
        Err(source) => Err(NativeError::resolv_conf(path, source)),
    }
}

/// As in host-local, `domain` and `search` do not replace each other.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for directive in resolv_conf::directives(text) {
        match directive {
            // The zone of a link-local address names an interface of the host.
            Directive::NameServer { zone: Some(_), .. } => {}
            Directive::NameServer { address, zone: None } => dns.nameservers.push(address.to_string()),
            Directive::Domain(name) => dns.domain = Some(name.to_owned()),
            Directive::Search(names) => dns.search.extend(names.into_iter().map(str::to_owned)),
            Directive::Options(options) => dns.options.extend(options.into_iter().map(str::to_owned)),
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::{ErrorKind, Kind};

    #[test]
    fn settings_are_read() {
        let dns = parse(
            "# by hand\nnameserver 10.0.0.1\n nameserver\tfd00::1\nnameserver fe80::1%eth0\n;x\ndomain a.test\nsearch a.test b.test\noptions ndots:2 edns0\nsortlist x\nnameserver\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain.as_deref(), Some("a.test"));
        assert_eq!(dns.search, ["a.test", "b.test"]);
        assert_eq!(dns.options, ["ndots:2", "edns0"]);
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = read(fifo.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("fifo"), "{error}");
        assert_eq!(read(dir.path().join("none").to_str().unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(dir.path().join("large"), vec![b'#'; MAX_SIZE + 1]).unwrap();
        assert!(read(dir.path().join("large").to_str().unwrap()).is_err());
    }
}
