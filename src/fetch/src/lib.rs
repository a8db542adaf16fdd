//! Image reference to verified layers and blobs in the store: registries, archives, layouts, the unpacker.
//!
//! May import `gantry_model` and `gantry_store`; knows nothing of pods, the engine or any API. Synchronous: a
//! call works in threads of its own and joins them before it returns.
//!
//! Start reading at [`pull`]: one fetch from a name to a committed image. [`source`] is the seam behind which
//! a registry ([`registry`]), an archive or a layout directory delivers bytes; [`manifest`] and [`config`] are
//! the documents of the OCI image specification, parsed strictly; [`unpack`] turns one layer's stream into a directory.

pub mod archive;
pub mod auth_file;
pub mod auth_store;
pub mod caps;
mod checked;
pub mod config;
pub mod error;
pub mod export;
mod import;
mod layers;
pub mod layout;
mod local;
pub mod manifest;
pub mod platform;
pub mod ports;
pub mod progress;
pub mod pull;
pub mod registry;
pub mod settings;
pub mod source;
pub mod unpack;

pub use caps::Caps;
pub use error::FetchError;
pub use platform::Platform;
pub use progress::{Note, Progress};
pub use pull::{Fetched, PullPolicy, fetch};
pub use settings::{Config, Insecure, Timeouts};
