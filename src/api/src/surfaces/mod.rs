//! The surfaces: one folder each, none of which imports another.

pub mod aurae;
pub mod rkt;
pub mod talos;
