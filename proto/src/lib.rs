//! The gRPC contracts of other projects as Rust types, one folder each.
//!
//! Imports no other crate of the workspace, and must never: each surface in `api` converts these types from and to the
//! model. protox compiles the contracts at build time, so no protoc is needed.
//!
//! Start reading at `rkt/v1alpha/api.proto`.

pub mod encoded;

/// The generated module of a package, in a folder of contracts.
macro_rules! package {
    ($name:ident, $folder:literal, $package:literal) => {
        #[doc = concat!("Package `", $package, "`.")]
        #[allow(
            missing_docs,
            clippy::allow_attributes_without_reason,
            clippy::too_many_lines,
            clippy::unwrap_used,
            clippy::large_enum_variant,
            reason = "generated; the fields are documented in the contract"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $folder, "/", $package, ".rs"));
        }
    };
}

/// rkt's PublicAPI.
pub mod rkt {
    /// Package `v1alpha`: messages, and a client.
    #[allow(
        missing_docs,
        clippy::allow_attributes_without_reason,
        clippy::too_many_lines,
        clippy::unwrap_used,
        reason = "generated; what fields mean is in api.proto, which comes along as documentation"
    )]
    pub mod v1alpha {
        include!(concat!(env!("OUT_DIR"), "/client/v1alpha.rs"));
    }

    /// Package `v1alpha`: the server's side, whose streams take messages that are encoded already.
    #[allow(
        missing_docs,
        clippy::allow_attributes_without_reason,
        clippy::too_many_lines,
        clippy::unwrap_used,
        reason = "generated"
    )]
    pub mod server {
        include!(concat!(env!("OUT_DIR"), "/server/v1alpha.rs"));
    }

    /// The contract as a `google.protobuf.FileDescriptorSet`, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rkt.bin"));
}

/// The Talos node API. A module per package, named as the package, because generated code refers to its neighbours.
pub mod talos {
    package!(cluster, "talos", "cluster");
    package!(common, "talos", "common");
    package!(health, "talos", "health");
    package!(inspect, "talos", "inspect");
    package!(machine, "talos", "machine");
    package!(network, "talos", "network");
    package!(os, "talos", "os");
    package!(resource, "talos", "resource");
    package!(securityapi, "talos", "securityapi");
    package!(storage, "talos", "storage");
    package!(time, "talos", "time");

    /// Packages of Google that the messages refer to.
    pub mod google {
        package!(rpc, "talos", "google.rpc");
    }

    /// The contract as a `google.protobuf.FileDescriptorSet`, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/talos.bin"));
}

/// Aurae v0. A module per package, named as the package, because generated code refers to its neighbours.
pub mod aurae {
    package!(meta, "aurae", "meta");
    package!(observe, "aurae", "observe");
    package!(runtime, "aurae", "runtime");
    package!(schedule, "aurae", "schedule");

    /// The contract as a `google.protobuf.FileDescriptorSet`, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aurae.bin"));
}

/// The Kubernetes Container Runtime Interface.
pub mod cri {
    package!(v1, "cri", "runtime.v1");

    /// The contract as a `google.protobuf.FileDescriptorSet`, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cri.bin"));
}
