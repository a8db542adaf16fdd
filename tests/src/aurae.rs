//! Calls of Aurae's API by `tests/python/node_client.py`, which shares only the .proto files with gantry.

use crate::api::Served;
use crate::gantry::Gantry;

/// A gantryd that serves rkt's API and Aurae's, and the address of the latter.
#[track_caller]
#[must_use]
pub fn serve(g: &Gantry) -> (Served, String) {
    let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
    (g.serve(&["--aurae-listen", &address]), address)
}
