//! Sends frames from a namespace, and receives them in another.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::space::Space;
use crate::test_support::needs;

/// Long enough for a frame, also on a busy machine.
const MAX_PARTS: Duration = Duration::from_secs(20);

/// Frames go out in their order: all from one processor.
const SEND: &str = "
import os, socket, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.bind(('eth0', 0))
print('ready', flush=True)
for line in sys.stdin:
    s.send(bytes.fromhex(line))
";
const HEAR: &str = "
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('eth0', 3))
print('ready', flush=True)
while True:
    frame, by = s.recvfrom(65535)
    if by[2] != 4:
        print(frame.hex(), flush=True)
";

/// A program at the `eth0` of a namespace.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    fn start(space: &Space, script: &str) -> Self {
        needs("python3");
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", space.id()))
            .args(["python3", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, lines) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
        });
        let program = Self { child, lines };
        assert_eq!(program.lines.recv_timeout(MAX_PARTS).unwrap(), "ready");
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends frames through the `eth0` of a namespace.
pub(super) struct Sender {
    program: Program,
    input: ChildStdin,
}

impl Sender {
    pub(super) fn new(space: &Space) -> Self {
        let mut program = Program::start(space, SEND);
        let input = program.child.stdin.take().unwrap();
        Self { program, input }
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        assert!(self.program.child.try_wait().unwrap().is_none(), "the sender ended");
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.input, "{hex}").unwrap();
    }
}

/// Receives frames through the `eth0` of a namespace.
pub(super) struct FrameReceiver(Program);

impl FrameReceiver {
    pub(super) fn new(space: &Space) -> Self {
        Self(Program::start(space, HEAR))
    }

    /// Whether a frame with the first of these marks arrives before one with the second, which must arrive.
    pub(super) fn receives(&self, mark: &[u8], last: &[u8]) -> bool {
        let hex = |mark: &[u8]| mark.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (mark, last) = (hex(mark), hex(last));
        let mut heard = false;
        loop {
            let frame = self.0.lines.recv_timeout(MAX_PARTS).expect("the last frame comes");
            heard |= frame.contains(&mark);
            if frame.contains(&last) {
                return heard;
            }
        }
    }
}

pub(super) type Mac = [u8; 6];

const EVERYONE: Mac = [0xff; 6];
pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;

/// A broadcast frame, which arrives independent of the bridge's forwarding table.
pub(super) fn ethernet(from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&EVERYONE[..], &from, &kind.to_be_bytes(), payload].concat()
}

pub(super) fn tagged(from: Mac, tag: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    ethernet(from, tag, &[&7_u16.to_be_bytes()[..], &kind.to_be_bytes(), payload].concat())
}

/// An answer, or a question.
pub(super) fn arp(answer: bool, mac: Mac, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1 + u8::from(answer)];
    [&head[..], &mac, &from, &[0; 6], &to].concat()
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()).to_be_bytes()
}

fn short(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap().to_be_bytes()
}

/// UDP without a checksum of its own.
fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &short(8 + payload.len()), &[0; 2], payload].concat()
}

pub(super) fn udp4(from: &str, from_port: u16, to_port: u16) -> Vec<u8> {
    let from: Ipv4Addr = from.parse().unwrap();
    let payload = udp(from_port, to_port, b"?");
    let mut head = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    head[2..4].copy_from_slice(&short(20 + payload.len()));
    head[12..16].copy_from_slice(&from.octets());
    head[16..20].copy_from_slice(&[10, 1, 0, 3]);
    let sum = checksum(&head);
    head[10..12].copy_from_slice(&sum);
    [&head[..], &payload].concat()
}

/// An IPv6 packet, optionally with padding options before its payload.
pub(super) fn ipv6(from: &str, next: u8, options: bool, payload: &[u8]) -> Vec<u8> {
    let from: Ipv6Addr = from.parse().unwrap();
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    // A header of eight bytes whose rest one option fills (RFC 8200 section 4.6).
    let options: &[u8] = if options { &[next, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
    let first = if options.is_empty() { next } else { 60 };
    let [high, low] = short(options.len() + payload.len());
    [&[0x60, 0, 0, 0, high, low, first, 255][..], &from.octets(), &to.octets(), options, payload].concat()
}

pub(super) fn udp6(from: &str, from_port: u16, to_port: u16) -> Vec<u8> {
    ipv6(from, 17, false, &udp(from_port, to_port, b"?"))
}

/// ICMPv6 of this type, about this address, with the checksum that IPv6 requires (RFC 8200 section 8.1).
pub(super) fn icmpv6(from: &str, kind: u8, target: &str, options: bool) -> Vec<u8> {
    let target: IpAddr = target.parse().unwrap();
    let IpAddr::V6(target) = target else { panic!("{target}") };
    let (source, to): (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), "ff02::1".parse().unwrap());
    let mut message = [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets()].concat();
    let pseudo =
        [&source.octets()[..], &to.octets(), &[0, 0], &short(message.len()), &[0, 0, 0, 58], &message].concat();
    let sum = checksum(&pseudo);
    message[2..4].copy_from_slice(&sum);
    ipv6(from, 58, options, &message)
}
