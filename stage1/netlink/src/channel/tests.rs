//! The channel: missing, late and forged replies.

use gantry_model::{ErrorKind, Kind};
use netlink_sys::constants::NETLINK_ROUTE;

use super::*;
use crate::message::F_REQUEST;
use crate::test_support::Net;

const RTM_GETLINK: u16 = 18;

/// "Which interface has this index": one that exists, or not.
fn link_request(index: u32) -> Batch {
    let mut batch = Batch::new();
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    batch.push(RTM_GETLINK, 0, &head, |_| {});
    batch
}

fn open_in(net: &Net) -> Channel {
    Channel::new(net.namespace.enter(|| open(NETLINK_ROUTE, true)).unwrap())
}

fn channel() -> (Net, Channel) {
    let net = Net::new();
    let channel = open_in(&net);
    (net, channel)
}

#[test]
fn waiting_times_out() {
    let (_net, mut channel) = channel();
    channel.set_timeout(Duration::from_millis(20));
    let begun = Instant::now();
    let error = channel.receive(begun + Duration::from_millis(20), format_args!("receive something")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "cannot receive something: no reply from the kernel within 20 ms");
    assert!(begun.elapsed() >= Duration::from_millis(20));
}

#[test]
fn replies_to_earlier_requests_are_skipped() {
    let (_net, mut channel) = channel();
    channel.send(link_request(4711), F_ACK, format_args!("ask and go away")).unwrap();
    let mut heard = 0;
    let mut count = |_: &Message<'_>| {
        heard += 1;
        Ok(())
    };
    channel.request(link_request(1), format_args!("find lo"), &mut count).unwrap();
    assert_eq!(heard, 1);
}

#[test]
fn messages_of_other_processes_are_skipped() {
    let (net, mut channel) = channel();
    channel.set_timeout(Duration::from_millis(50));
    channel.request(link_request(1), format_args!("find lo"), &mut |_| Ok(())).unwrap();
    let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&channel).unwrap()).unwrap();
    let forger = open_in(&net);
    let mut forged = Batch::new();
    let refused = Errno::PERM.raw_os_error();
    forged.push(NLMSG_ERROR, 0, &[&(-refused).to_ne_bytes()[..], &[0; 16]].concat(), |_| {});
    let bytes = forged.finish(channel.next, 0).unwrap();
    assert_eq!(bytes[6] & 1, u8::try_from(F_REQUEST).unwrap());
    sendto(&forger, &bytes, SendFlags::empty(), &own).unwrap();
    let error = channel.receive(channel.deadline(), format_args!("receive from the kernel")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    sendto(&forger, &bytes, SendFlags::empty(), &own).unwrap();
    channel.request(link_request(1), format_args!("find lo"), &mut |_| Ok(())).unwrap();
}

#[test]
fn an_abandoned_dump_is_drained() {
    let (mut net, mut channel) = channel();
    // More than one datagram, so that the dump is unfinished when it is abandoned.
    for number in 0..40 {
        net.bridge(&format!("br{number}"));
    }
    let request = |batch: &mut Batch| batch.push(RTM_GETLINK, F_DUMP, &[0; 16], |_| {});
    for _ in 0..2 {
        let mut batch = Batch::new();
        request(&mut batch);
        channel.send(batch, 0, "list and go away").unwrap();
    }
    let mut batch = Batch::new();
    request(&mut batch);
    let mut heard = 0;
    let mut count = |_: &Message<'_>| {
        heard += 1;
        Ok::<_, Error>(())
    };
    assert!(channel.dump_once(batch, "list the links", &mut count).unwrap());
    assert!(heard > 40, "{heard}");
}

#[test]
fn each_rejection_of_a_batch_is_reported() {
    let (_net, mut channel) = channel();
    let mut batch = Batch::new();
    for index in [4711u32, 1, 4712, 1] {
        let mut head = [0; 16];
        head[4..8].copy_from_slice(&index.to_ne_bytes());
        batch.push(RTM_GETLINK, 0, &head, |_| {});
    }
    let mut heard = 0;
    let mut count = |_: &Message<'_>| {
        heard += 1;
        Ok(())
    };
    let refused = channel.exchange(batch, format_args!("ask four things"), &mut count).unwrap();
    let at: Vec<_> = refused.iter().map(|refusal| (refusal.at, refusal.errno)).collect();
    assert_eq!((at, heard), (vec![(0, Errno::NODEV), (2, Errno::NODEV)], 2));
}

#[test]
fn strict_checking_and_extended_acknowledgements_are_on() {
    let (_net, mut channel) = channel();
    let request = |batch: &mut Batch, flags: u16| {
        batch.push(RTM_GETLINK, flags, &[0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], |_| {})
    };
    let result = channel.dump(&request, format_args!("list nonsense"), &|_| Ok(Some(())));
    let Err(Error::Kernel { errno: Errno::INVAL, text: Some(text), .. }) = result else { panic!("{result:?}") };
    assert!(text.contains("Invalid values in header"), "{text}");
}

#[test]
fn no_errno_is_out_of_range() {
    for (code, want) in [(0, Errno::IO), (1, Errno::PERM), (4096, Errno::IO), (i32::MAX, Errno::IO), (-1, Errno::IO)] {
        assert_eq!(errno(code), want, "{code}");
    }
}
