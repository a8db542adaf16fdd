//! Confines the devices of a pod to the list of the OCI runtime specification ("Default Devices" and pseudo-terminals),
//! by an eBPF program on cgroup v2 and the devices controller on v1. mknod(2) of any device is allowed, as with docker
//! and runc: the node cannot be opened.

use std::io;
use std::os::fd::BorrowedFd;

use gantry_host::cgroup::CgroupSet;

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

/// Attaches the program to a cgroup2 directory.
pub(crate) fn attach(cgroup: BorrowedFd<'_>) -> io::Result<()> {
    sys::attach_device_program(&program(), cgroup)
}

/// Creates the cgroup `path` in the devices controller of cgroup v1, writes the list to it, and joins it.
pub(crate) fn confine_v1(path: &str) -> io::Result<()> {
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
    // The supervisor, which has one thread, joins: every process of the pod is its descendant.
    cgroup.join()
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;

const BPF_DEVCG_ACC_MKNOD: i32 = 1;
const BPF_DEVCG_DEV_CHAR: i32 = 2;

/// The program over `struct bpf_cgroup_dev_ctx { access_type (access << 16 | type), major, minor }`; 1 allows.
fn program() -> Vec<EbpfInsn> {
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
        // Other devices than character devices are denied.
        jump_if(R2, BPF_DEVCG_DEV_CHAR, 2),
        set(R0, 0),
        exit(),
    ];
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

fn jump_unless(register: u8, value: i32, skip: i16) -> EbpfInsn {
    op(0x55, register, 0, skip, value)
}
