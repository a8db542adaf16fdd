//! The gRPC surfaces.
