//! Confines the devices of a pod to the list of the OCI runtime specification ("Default Devices" and pseudo-terminals)
//! and the devices that the user gives its apps, by an eBPF program on cgroup v2 and the devices controller on v1.
//! mknod(2) of any device is allowed, as with docker and runc: the node cannot be opened.
//!
//! An app has nodes of its own devices only. The confinement is that of the whole pod, so that an app with CAP_MKNOD
//! can make a node of a device that another app of its pod was given. In a pod whose apps may be privileged, each app
//! that is not has a confinement of its own, on cgroup v2.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use gantry_contract::plan::{App, HostDevice};
use gantry_host::cgroup::{Cgroup, CgroupSet};
use gantry_host::device::{self, list_devices};
use gantry_model::ErrorKind;
use gantry_model::device::{DeviceSpec, is_provided};
use gantry_model::id::shown;

use crate::failure::{Attempt, Result, failure};
use crate::files::dev::DeviceNode;
use crate::sys::{self, EbpfInsn};

/// Character devices that may be read and written: major and minor (`None`: any). (5, 1), the console, is missing: in a
/// container it is still the host's, and an app's console is a pseudo-terminal.
const ALLOWED: [(i32, Option<i32>); 8] = [
    (1, Some(3)), // null
    (1, Some(5)), // zero
    (1, Some(7)), // full
    (1, Some(8)), // random
    (1, Some(9)), // urandom
    (5, Some(0)), // tty
    (5, Some(2)), // ptmx
    (136, None),  // pseudo-terminals
];

/// A device of the host that an app was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// The path of its node in the app.
    target: String,
    is_block: bool,
    major: i32,
    minor: i32,
    read: bool,
    write: bool,
    /// Permission bits, owner and group of the host's node.
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Device {
    /// Reads the nodes of an app's devices on the host: of a directory, all below it; of a privileged app, all of /dev.
    pub(crate) fn read_all(app: &App) -> Result<Vec<Self>> {
        let mut devices = Vec::new();
        for spec in &app.options.devices {
            let what = || format!("cannot use '{}' as a device", shown(&spec.source));
            let nodes = list_devices(&spec.source, |_| false).attempt(what)?;
            if nodes.is_empty() {
                return Err(failure(ErrorKind::Invalid, format!("{}: no device is below it", what())));
            }
            let access = (spec.read, spec.write);
            devices.extend(nodes.iter().filter_map(|node| Self::from_node(&spec.target_of(&node.below), node, access)));
        }
        if app.options.privileged {
            let nodes = list_devices("/dev", is_provided).attempt(|| "cannot list the devices of the host")?;
            for node in nodes {
                let target = format!("/dev/{}", node.below);
                if devices.iter().all(|known| known.target != target) {
                    devices.extend(Self::from_node(&target, &node, (true, true)));
                }
            }
        }
        Ok(devices)
    }

    /// `None`: the kernel's numbers are larger than those of OCI runtimes.
    fn from_node(target: &str, node: &device::DeviceNode, (read, write): (bool, bool)) -> Option<Self> {
        let device::DeviceNode { below: _, is_block, major, minor, mode, uid, gid } = *node;
        let (major, minor) = (i32::try_from(major).ok()?, i32::try_from(minor).ok()?);
        Some(Self { target: target.to_owned(), is_block, major, minor, read, write, mode, uid, gid })
    }

    /// The devices of an app that is added, whose nodes the engine has read.
    pub(crate) fn from_request(devices: &[HostDevice]) -> Result<Vec<Self>> {
        let device = |device: &HostDevice| {
            let HostDevice { ref target, is_block, major, minor, read, write, mode, uid, gid } = *device;
            let invalid = || failure(ErrorKind::Invalid, format!("'{}' cannot be a device of an app", shown(target)));
            let spec = DeviceSpec { source: target.clone(), target: target.clone(), read, write };
            spec.validate().map_err(|_| invalid())?;
            let node = device::DeviceNode { below: String::new(), is_block, major, minor, mode, uid, gid };
            Self::from_node(target, &node, (read, write)).ok_or_else(invalid)
        };
        devices.iter().map(device).collect()
    }

    /// Its node in the app.
    pub(crate) fn as_node(&self) -> DeviceNode<'_> {
        let (major, minor) = (self.major.unsigned_abs(), self.minor.unsigned_abs());
        let Self { is_block, mode, uid, gid, .. } = *self;
        DeviceNode { path: &self.target, is_block, major, minor, mode, uid, gid }
    }

    /// A line for `devices.allow` of cgroup v1.
    fn v1_rule(&self) -> String {
        self.v1_rule_of(self.read, self.write)
    }

    fn v1_rule_of(&self, read: bool, write: bool) -> String {
        let kind = if self.is_block { 'b' } else { 'c' };
        let access = match (read, write) {
            (true, true) => "rwm",
            (true, false) => "rm",
            (false, true) => "wm",
            (false, false) => "m",
        };
        format!("{kind} {}:{} {access}", self.major, self.minor)
    }

    /// A line for `devices.deny` of cgroup v1: the access to this device that neither the others nor the default list
    /// gives; `None`: they give all of it. Denying removes access from the rule of exactly these numbers, so that the
    /// others keep theirs at every moment.
    fn v1_denial(&self, others: &[Self]) -> Option<String> {
        let is_default = |&(major, minor): &(i32, Option<i32>)| (major, minor) == (self.major, Some(self.minor));
        if !self.is_block && ALLOWED.iter().any(is_default) {
            return None;
        }
        let numbers = |device: &Self| (device.is_block, device.major, device.minor);
        let same = || others.iter().filter(|other| numbers(other) == numbers(self));
        let read = self.read && !same().any(|other| other.read);
        let write = self.write && !same().any(|other| other.write);
        (read || write).then(|| self.v1_rule_of(read, write))
    }
}

/// The confinement of a pod's devices, or of an app's.
pub(crate) enum DeviceConfinement {
    /// By this program, which is attached to a cgroup of v2.
    Program(OwnedFd),
    /// By this cgroup of the v1 controller.
    Controller(Cgroup),
}

impl DeviceConfinement {
    /// Attaches a program to a cgroup of v2.
    pub(crate) fn attach(cgroup: BorrowedFd<'_>, given: &[Device]) -> io::Result<Self> {
        sys::attach_device_program(&program(given), cgroup, None).map(Self::Program)
    }

    /// Creates the cgroup `path` in the devices controller of v1, writes the list to it, and joins it. Returns a
    /// warning for each given device that the host does not permit.
    pub(crate) fn join_v1(path: &str, given: &[Device]) -> io::Result<(Self, Vec<String>)> {
        let roots = CgroupSet::open_roots(&["devices"])?;
        let root = roots.v1("devices").ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let cgroup = root.create(path)?;
        cgroup.write("devices.deny", "a")?;
        for text in ["c *:* m", "b *:* m"] {
            cgroup.write("devices.allow", text)?;
        }
        for (major, minor) in ALLOWED {
            let minor = minor.map_or("*".to_owned(), |minor| minor.to_string());
            cgroup.write("devices.allow", &format!("c {major}:{minor} rwm"))?;
        }
        let warnings = allow_v1(&cgroup, given);
        // The supervisor, which has one thread, joins: every process of the pod is its descendant.
        cgroup.join()?;
        Ok((Self::Controller(cgroup), warnings))
    }

    /// Allows more devices: `all` are the former ones and the new ones, `cgroup` is the cgroup of v2. Returns a warning
    /// for each device that the host does not permit.
    pub(crate) fn extend(&mut self, cgroup: Option<BorrowedFd<'_>>, all: &[Device]) -> io::Result<Vec<String>> {
        match (self, cgroup) {
            (Self::Program(attached), Some(cgroup)) => {
                *attached = sys::attach_device_program(&program(all), cgroup, Some(attached.as_fd()))?;
                Ok(Vec::new())
            }
            (Self::Program(_), None) => Err(io::Error::from(io::ErrorKind::NotFound)),
            (Self::Controller(cgroup), _) => Ok(allow_v1(cgroup, all)),
        }
    }

    /// Denies the devices of `former` that are not in `left`; `cgroup` is the cgroup of v2.
    pub(crate) fn restrict(
        &mut self,
        cgroup: Option<BorrowedFd<'_>>,
        former: &[Device],
        left: &[Device],
    ) -> io::Result<()> {
        match (self, cgroup) {
            (Self::Program(attached), Some(cgroup)) => {
                *attached = sys::attach_device_program(&program(left), cgroup, Some(attached.as_fd()))?;
                Ok(())
            }
            (Self::Program(_), None) => Err(io::Error::from(io::ErrorKind::NotFound)),
            (Self::Controller(cgroup), _) => {
                let gone = former.iter().filter(|device| !left.contains(device));
                gone.filter_map(|device| device.v1_denial(left))
                    .try_for_each(|rule| cgroup.write("devices.deny", &rule))
            }
        }
    }
}

/// Allows devices in a cgroup of v1. Returns a warning for each that the host does not permit.
fn allow_v1(cgroup: &Cgroup, given: &[Device]) -> Vec<String> {
    let mut warnings = Vec::new();
    for device in given {
        let rule = device.v1_rule();
        // A cgroup above this one may deny it. The pod is confined nevertheless.
        if let Err(error) = cgroup.write("devices.allow", &rule) {
            let target = shown(&device.target);
            let why = "a cgroup above the pod's denies it (devices.list)";
            warnings.push(format!("the device '{target}' cannot be used: writing '{rule}' fails: {error}; {why}"));
        }
    }
    warnings
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;

const BPF_DEVCG_ACC_MKNOD: i32 = 1;
const BPF_DEVCG_ACC_READ: i32 = 2;
const BPF_DEVCG_ACC_WRITE: i32 = 4;
const BPF_DEVCG_DEV_BLOCK: i32 = 1;
const BPF_DEVCG_DEV_CHAR: i32 = 2;

/// The program over `struct bpf_cgroup_dev_ctx { access_type (access << 16 | type), major, minor }`; 1 allows.
fn program(given: &[Device]) -> Vec<EbpfInsn> {
    let mut program = vec![
        load(R2, 0),                // r2 = access_type
        op(0xbf, R3, R2, 0, 0),     // r3 = r2
        op(0x54, R2, 0, 0, 0xffff), // w2 &= 0xffff: the type
        op(0x74, R3, 0, 0, 16),     // w3 >>= 16: the access
        load(R4, 4),                // r4 = major
        load(R5, 8),                // r5 = minor
        // mknod alone is allowed.
        jump_unless(R3, BPF_DEVCG_ACC_MKNOD, 2),
        set(R0, 1),
        exit(),
    ];
    for device in given {
        let kind = if device.is_block { BPF_DEVCG_DEV_BLOCK } else { BPF_DEVCG_DEV_CHAR };
        let denied = match (device.read, device.write) {
            (true, true) => 0,
            (true, false) => BPF_DEVCG_ACC_WRITE,
            (false, true) => BPF_DEVCG_ACC_READ,
            (false, false) => BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE,
        };
        program.extend([
            jump_unless(R2, kind, 5),
            jump_unless(R4, device.major, 4),
            jump_unless(R5, device.minor, 3),
            jump_if_any(R3, denied, 2),
            set(R0, 1),
            exit(),
        ]);
    }
    // Other devices than character devices are denied.
    program.extend([jump_if(R2, BPF_DEVCG_DEV_CHAR, 2), set(R0, 0), exit()]);
    for (major, minor) in ALLOWED {
        match minor {
            Some(minor) => program.extend([jump_unless(R4, major, 3), jump_unless(R5, minor, 2), set(R0, 1), exit()]),
            None => program.extend([jump_unless(R4, major, 2), set(R0, 1), exit()]),
        }
    }
    program.extend([set(R0, 0), exit()]);
    program
}

fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> EbpfInsn {
    EbpfInsn { code, registers: source << 4 | destination, offset, immediate }
}

/// `destination = *(u32 *)(r1 + offset)`
fn load(destination: u8, offset: i16) -> EbpfInsn {
    op(0x61, destination, R1, offset, 0)
}

fn set(register: u8, value: i32) -> EbpfInsn {
    op(0xb7, register, 0, 0, value)
}

fn exit() -> EbpfInsn {
    op(0x95, 0, 0, 0, 0)
}

fn jump_if(register: u8, value: i32, skip: i16) -> EbpfInsn {
    op(0x15, register, 0, skip, value)
}

/// Jumps if any of these bits is set.
fn jump_if_any(register: u8, bits: i32, skip: i16) -> EbpfInsn {
    op(0x45, register, 0, skip, bits)
}

fn jump_unless(register: u8, value: i32, skip: i16) -> EbpfInsn {
    op(0x55, register, 0, skip, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(minor: i32, read: bool, write: bool) -> Device {
        let target = "/dev/x".to_owned();
        Device { target, is_block: false, major: 1, minor, read, write, mode: 0o600, uid: 0, gid: 0 }
    }

    #[test]
    fn denials_leave_other_apps_and_defaults() {
        let kmsg = device(11, true, true);
        assert_eq!(kmsg.v1_denial(&[]).as_deref(), Some("c 1:11 rwm"));
        assert_eq!(kmsg.v1_denial(&[device(12, true, true)]).as_deref(), Some("c 1:11 rwm"), "another device");
        assert_eq!(kmsg.v1_denial(&[device(11, true, false)]).as_deref(), Some("c 1:11 wm"), "readable elsewhere");
        assert_eq!(kmsg.v1_denial(&[device(11, true, false), device(11, false, true)]), None);
        assert_eq!(device(3, true, true).v1_denial(&[]), None, "/dev/null");
        let disk = Device { is_block: true, ..device(3, true, true) };
        assert_eq!(disk.v1_denial(&[]).as_deref(), Some("b 1:3 rwm"), "a block device of the same numbers");
    }
}
