//! The surfaces: one folder each, none of which imports another.

pub mod aurae;
pub mod cri;
pub mod rkt;
pub mod talos;
