//! The DNS settings of a file (resolv.conf(5)), for host-local's `resolvConf`.

use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use super::error::NativeError;
use crate::config::{Dns, files};

/// More than any such file has.
const LIMIT: usize = 64 * 1024;

/// Reads the file. A FIFO or a device in its place does not make us wait.
pub(super) fn read(path: &str) -> Result<Dns, NativeError> {
    let text = || -> io::Result<String> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let bytes = files::read(file, LIMIT)?.ok_or(io::ErrorKind::FileTooLarge)?;
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not text"))
    };
    match text() {
        Ok(text) => Ok(parse(&text)),
        Err(source) => Err(NativeError::ResolvConf { path: path.to_owned(), source }),
    }
}

/// What does not fit is passed over, as the C library does.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let rest = words.map(str::to_owned);
        match first {
            "nameserver" => {
                // One of IPv6 may have its interface behind a percent sign, which means nothing in the pod.
                dns.nameservers.extend(rest.take(1).filter(|server| server.parse::<IpAddr>().is_ok()));
            }
            "domain" => dns.domain = rest.take(1).next().or(dns.domain),
            "search" => dns.search.extend(rest),
            "options" => dns.options.extend(rest),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::{ErrorKind, Kind};

    #[test]
    fn a_file_as_they_are() {
        let dns = parse(
            "# by hand\nnameserver 10.0.0.1\n nameserver\tfd00::1\nnameserver fe80::1%eth0\n;x\ndomain a.test\nsearch a.test b.test\noptions ndots:2 edns0\nsortlist x\nnameserver\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain.as_deref(), Some("a.test"));
        assert_eq!(dns.search, ["a.test", "b.test"]);
        assert_eq!(dns.options, ["ndots:2", "edns0"]);
    }

    #[test]
    fn what_is_no_file_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = read(fifo.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("fifo"), "{error}");
        assert_eq!(read(dir.path().join("none").to_str().unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(dir.path().join("large"), vec![b'#'; LIMIT + 1]).unwrap();
        assert!(read(dir.path().join("large").to_str().unwrap()).is_err());
    }
}
