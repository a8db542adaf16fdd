//! Time and TimeCheck: the clock of a time server beside that of this host (SNTP, RFC 4330).

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use gantry_engine::model::Timestamp;
use gantry_engine::model::id::shown;
use gantry_engine::now;
use gantry_proto::talos::time::Time;
use tokio::net::UdpSocket;
use tokio::time::Instant;
use tonic::Status;

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

/// Asks a server for its time.
///
/// # Errors
/// INVALID_ARGUMENT: the name is too long. UNKNOWN, with Talos' text: there is no server, it does not reply, or it has
/// no time.
pub(in super::super) async fn check(server: &str) -> Result<Time, Status> {
    check_text("server", server)?;
    let failed = |why: &str| Status::unknown(format!("failed to query NTP server \"{}\": {why}", shown(server)));
    if server.is_empty() {
        return Err(Status::unknown("failed to query NTP server: gantryd's configuration names none ('time-server')"));
    }
    let offset = match tokio::time::timeout(TIMEOUT, query(server)).await {
        Ok(result) => result.map_err(|why| failed(&why))?,
        Err(_) => return Err(failed("it does not reply")),
    };
    let local = now();
    let remote = Timestamp(i64::try_from(i128::from(local.0) + offset).map_err(|_| failed("its time is invalid"))?);
    Ok(Time { metadata: None, server: server.to_owned(), localtime: Some(wire(local)), remotetime: Some(wire(remote)) })
}

fn wire(time: Timestamp) -> prost_types::Timestamp {
    let nanos = i32::try_from(time.0.rem_euclid(1_000_000_000)).unwrap_or(0);
    prost_types::Timestamp { seconds: time.0.div_euclid(1_000_000_000), nanos }
}

/// The nanoseconds by which the server's clock is ahead of this host's.
async fn query(server: &str) -> Result<i128, String> {
    let text = |error: std::io::Error| error.to_string();
    let addresses = tokio::net::lookup_host((server, PORT)).await.map_err(text)?;
    let address = addresses.into_iter().next().ok_or("the name has no address")?;
    let local: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((local, 0)).await.map_err(text)?;
    socket.connect(address).await.map_err(text)?;
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
