//! `loopback`: sets up the pod's `lo`, whatever interface name is requested.

use super::error::NativeError;
use super::kind::{AddRequest, InterfaceKind, KindProperties};
use super::pod_interface::{self, PodInterface};
use super::result::pod_side;
use super::{Added, Ends};
use crate::address::Cidr;
use crate::config::Ipam;
use crate::netlink::{Namespace, Socket};
use crate::nft::Entries;
use crate::plugin::{Address, Attachment, NetworkResult};

/// The name of the interface in every network namespace.
const LOOPBACK: &str = "lo";

pub(super) struct Loopback;

impl InterfaceKind for Loopback {
    fn obstacle(&self, _: Option<&Ipam>) -> Option<String> {
        None
    }

    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
        let attachment = &Attachment { interface: LOOPBACK.to_owned(), ..request.attachment.clone() };
        pod_interface::set_sysctls(ends, &PodInterface::new(request.chain, attachment, None)?)?;
        ends.pod.loopback_up()?;
        let link = ends.pod.link(LOOPBACK)?.ok_or_else(|| NativeError::vanished(LOOPBACK))?;
        let present = ends.pod.addresses(Some(link.index))?;
        let address = |prefix: Cidr| Address { address: prefix, gateway: None, interface: Some(0) };
        let result = NetworkResult {
            interfaces: vec![pod_side(&link, attachment)],
            ips: present.iter().map(|own| address(own.address.prefix)).collect(),
            ..NetworkResult::default()
        };
        Ok(Added { result, entries: Entries::new(), took_over: None })
    }

    fn disconnect(&self, _: &Attachment, _: &mut Socket, _: &Namespace) -> Result<(), NativeError> {
        Ok(())
    }

    fn del(&self, _: &Attachment, _: &mut Socket) -> Result<(), NativeError> {
        Ok(())
    }

    fn describe(&self) -> KindProperties<'_> {
        KindProperties::default()
    }
}
