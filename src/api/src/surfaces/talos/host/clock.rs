//! Time and TimeCheck: the clock of a time server beside that of this host (SNTP, RFC 4330).

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::now;
use gantry_model::Timestamp;
use gantry_model::id::shown;
use gantry_proto::talos::time::Time;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

use crate::client_fault::ClientFault;
use crate::request::check_text;

/// The port of a time server.
const PORT: u16 = 123;
/// The time for the resolution of the name and all requests.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which a request is repeated: a datagram may be lost.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a packet without authentication.
const PACKET: usize = 48;
/// From 1900, where NTP counts from, to 1970 in seconds.
const NTP_TO_UNIX: i128 = 2_208_988_800;
/// Seconds of an era of NTP; its second one begins in 2036.
const ERA: i128 = 1 << 32;

/// Maximum time checks, also of clients that have gone away while their name is being resolved: getaddrinfo(3) cannot
/// be interrupted, and its threads are those of all other blocking work.
const MAX_CHECKS: usize = 4;

/// Checks of time servers.
pub(in super::super) struct TimeChecks {
    permits: Arc<Semaphore>,
    /// Finds the address of a name. Blocks.
    resolve: fn(&str) -> Result<IpAddr, String>,
}

impl Default for TimeChecks {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CHECKS)), resolve }
    }
}

impl TimeChecks {
    /// Asks a server for its time.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the name is too long, `FAILED_PRECONDITION` if there is none, `RESOURCE_EXHAUSTED` if too
    /// many checks are under way, and `UNKNOWN` with Talos' text, as in Talos, if the server does not reply or has no
    /// time.
    pub(in super::super) async fn check(&self, server: &str) -> Result<Time, Status> {
        check_text("server", server)?;
        if server.is_empty() {
            let text = "failed to query NTP server: none is configured: set 'time-server' in gantryd's configuration";
            return Err(Status::failed_precondition(text));
        }
        let failed = |why: &str| {
            let text = format!("failed to query NTP server \"{}\": {why}", shown(server));
            ClientFault::mark(Status::unknown(text))
        };
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{MAX_CHECKS} time checks run already: try again when one has ended"))
        })?;
        let offset = async { query(self.address(server, Arc::new(permit)).await?).await };
        let offset = match tokio::time::timeout(TIMEOUT, offset).await {
            Ok(result) => result.map_err(|why| failed(&why))?,
            Err(_) => return Err(failed("it does not reply")),
        };
        let local = now();
        let remote = Timestamp(i64::try_from(i128::from(local.0) + offset).map_err(|_| failed("its time is invalid"))?);
        let (localtime, remotetime) = (Some(wire(local)), Some(wire(remote)));
        Ok(Time { metadata: None, server: server.to_owned(), localtime, remotetime })
    }

    /// The address of a server, and the permit of its check, which the resolution of a name holds until it ends.
    async fn address(
        &self,
        server: &str,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<(IpAddr, Arc<OwnedSemaphorePermit>), String> {
        if let Ok(address) = server.parse() {
            return Ok((address, permit));
        }
        let (name, resolve, held) = (server.to_owned(), self.resolve, Arc::clone(&permit));
        let resolved = tokio::task::spawn_blocking(move || {
            let _until_it_ends = held;
            resolve(&name)
        });
        let address = resolved.await.map_err(|error| error.to_string())??;
        Ok((address, permit))
    }
}

/// The first address of a name.
fn resolve(name: &str) -> Result<IpAddr, String> {
    let addresses = (name, PORT).to_socket_addrs().map_err(|error| error.to_string())?;
    addresses.map(|address| address.ip()).next().ok_or_else(|| "the name has no address".to_owned())
}

fn wire(time: Timestamp) -> prost_types::Timestamp {
    let nanos = i32::try_from(time.0.rem_euclid(1_000_000_000)).unwrap_or(0);
    prost_types::Timestamp { seconds: time.0.div_euclid(1_000_000_000), nanos }
}

/// The nanoseconds by which the server's clock is ahead of this host's.
async fn query((address, _permit): (IpAddr, Arc<OwnedSemaphorePermit>)) -> Result<i128, String> {
    let text = |error: std::io::Error| error.to_string();
    let local: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((local, 0)).await.map_err(text)?;
    socket.connect((address, PORT)).await.map_err(text)?;
    loop {
        // The server sends it back; a forged reply does not know it.
        let nonce = RandomState::new().build_hasher().finish();
        let (sent, clock) = (now(), Instant::now());
        socket.send(&request(nonce)).await.map_err(text)?;
        let retry_at = clock + RETRY_INTERVAL;
        let mut reply = [0; 512];
        while let Ok(received) = tokio::time::timeout_at(retry_at, socket.recv(&mut reply)).await {
            let length = received.map_err(text)?;
            // A step of this host's clock between the two must not count.
            let received = sent.after(clock.elapsed());
            if let Some(times) = ServerTimes::parse(&reply[..length], nonce)? {
                let offset = (times.received - i128::from(sent.0)) + (times.sent - i128::from(received.0));
                return Ok(offset / 2);
            }
        }
    }
}

/// A request of version 4 (RFC 4330, section 5).
fn request(nonce: u64) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[0] = 4 << 3 | 3;
    packet[40..].copy_from_slice(&nonce.to_be_bytes());
    packet
}

/// The times of a reply, in nanoseconds since 1970.
#[derive(Debug, PartialEq, Eq)]
struct ServerTimes {
    received: i128,
    sent: i128,
}

impl ServerTimes {
    /// `None`: it is not the reply to this request.
    fn parse(packet: &[u8], nonce: u64) -> Result<Option<Self>, String> {
        let Some(packet) = packet.first_chunk::<PACKET>() else { return Ok(None) };
        let word = |at: usize| packet[at..].first_chunk().copied().map(u64::from_be_bytes).unwrap_or(0);
        let (leap, mode, stratum) = (packet[0] >> 6, packet[0] & 7, packet[1]);
        if mode != 4 || word(24) != nonce {
            return Ok(None);
        }
        match (leap, stratum) {
            (_, 0) => Err(format!("it refuses ({})", String::from_utf8_lossy(&packet[12..16]).escape_default())),
            (3, _) | (_, 16..) => Err("its clock is not synchronized".to_owned()),
            _ if word(40) == 0 => Err("its time is invalid".to_owned()),
            _ => Ok(Some(Self { received: nanoseconds(word(32)), sent: nanoseconds(word(40)) })),
        }
    }
}

/// A timestamp of 32 bits of seconds and 32 bits of their fraction, in nanoseconds since 1970.
fn nanoseconds(timestamp: u64) -> i128 {
    let (seconds, fraction) = (i128::from(timestamp >> 32), i128::from(timestamp & 0xffff_ffff));
    // Before 2036 the highest bit is set (RFC 4330, section 3).
    let seconds = if seconds < ERA / 2 { seconds + ERA } else { seconds };
    (seconds - NTP_TO_UNIX) * 1_000_000_000 + ((fraction * 1_000_000_000) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reply(first: u8, stratum: u8, nonce: u64) -> Vec<u8> {
        let mut packet = vec![0; PACKET];
        (packet[0], packet[1]) = (first, stratum);
        packet[24..32].copy_from_slice(&nonce.to_be_bytes());
        packet[32..36].copy_from_slice(&3_976_300_800u32.to_be_bytes());
        packet[40..44].copy_from_slice(&3_976_300_800u32.to_be_bytes());
        packet[44] = 0x80;
        packet
    }

    #[test]
    fn abandoned_lookups_count() {
        static RELEASE: std::sync::Barrier = std::sync::Barrier::new(MAX_CHECKS + 1);
        let hang = |_: &str| {
            RELEASE.wait();
            Err("too late".to_owned())
        };
        let checks = TimeChecks { resolve: hang, ..TimeChecks::default() };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            for _ in 0..MAX_CHECKS {
                let mut check = std::pin::pin!(checks.check("time.example"));
                let mut waker = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(check.as_mut().poll(&mut waker).is_pending());
            }
            assert_eq!(checks.check("time.example").await.unwrap_err().code(), tonic::Code::ResourceExhausted);
            RELEASE.wait();
            let all = u32::try_from(MAX_CHECKS).unwrap();
            drop(checks.permits.acquire_many(all).await.unwrap());
            let checks = TimeChecks { resolve: |_| Err("no such name".to_owned()), ..checks };
            let failed = checks.check("time.example").await.unwrap_err();
            assert_eq!(failed.message(), "failed to query NTP server \"time.example\": no such name");
        });
    }

    #[test]
    fn a_missing_server_is_a_failed_precondition() {
        let checks = TimeChecks { resolve: |_| panic!("a lookup"), ..TimeChecks::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(checks.check("")).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        assert!(refused.message().contains("'time-server'"), "{refused}");
    }

    #[test]
    fn literal_addresses_are_not_resolved() {
        let checks = TimeChecks { resolve: |_| panic!("a lookup"), ..TimeChecks::default() };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            for literal in ["127.0.0.1", "::1"] {
                let permit = Arc::clone(&checks.permits).try_acquire_owned().unwrap();
                let (address, _permit) = checks.address(literal, Arc::new(permit)).await.unwrap();
                assert_eq!(address.to_string(), literal);
            }
        });
    }

    #[test]
    fn replies_have_the_nonce_and_a_time() {
        let times = ServerTimes::parse(&reply(0x24, 2, 7), 7).unwrap().unwrap();
        assert_eq!(times.received, 1_767_312_000_000_000_000);
        assert_eq!(times.sent - times.received, 500_000_000);
        for (first, stratum, nonce) in [(0x24, 2, 8), (0x23, 2, 7)] {
            assert_eq!(ServerTimes::parse(&reply(first, stratum, nonce), 7), Ok(None));
        }
        for (first, stratum) in [(0x24, 0), (0xe4, 2), (0x24, 16)] {
            assert!(ServerTimes::parse(&reply(first, stratum, 7), 7).is_err());
        }
        assert_eq!(nanoseconds(0), (ERA - NTP_TO_UNIX) * 1_000_000_000, "2036");
    }

    proptest! {
        // From 1968 to 2104.
        #[test]
        fn replies_have_the_times_of_the_server(seconds in -60_000_000_i64..4_200_000_000, fraction: u32, nonce: u64) {
            let stamp = u32::try_from((i128::from(seconds) + NTP_TO_UNIX).rem_euclid(ERA)).unwrap();
            let mut packet = reply(0x24, 2, nonce);
            for at in [32, 40] {
                packet[at..at + 4].copy_from_slice(&stamp.to_be_bytes());
                packet[at + 4..at + 8].copy_from_slice(&fraction.to_be_bytes());
            }
            prop_assume!((stamp, fraction) != (0, 0));
            let times = ServerTimes::parse(&packet, nonce).unwrap().unwrap();
            prop_assert_eq!(times.sent, times.received);
            prop_assert_eq!(times.sent.div_euclid(1_000_000_000), i128::from(seconds));
        }

        #[test]
        fn parser_never_panics(packet: Vec<u8>, nonce: u64) {
            let _result = ServerTimes::parse(&packet, nonce);
        }
    }
}
