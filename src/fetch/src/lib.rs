//! Fetches images: from an image reference to verified layers and blobs in the store.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). Knows nothing of pods, the engine or any API.
//! Synchronous: a call starts threads and joins them before it returns.
//!
//! Start reading at [`pull`]: one fetch from a reference to a committed image. [`source`] is the interface of
//! registries ([`registry`]), archives and layout directories; [`manifest`] and [`config`] parse the documents of the
//! OCI image specification; [`unpack`] turns one layer's stream into a directory. [`transfer`] copies file trees as tar
//! streams, with the reader and the writer of layers.

pub mod archive;
pub mod auth_file;
pub mod auth_store;
pub mod cancellation;
pub mod caps;
mod checked;
pub mod config;
mod credential_helper;
mod download;
mod early_sync;
pub mod error;
pub mod export;
mod healthcheck;
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
pub mod transfer;
pub mod unpack;
mod zeros;

pub use auth_file::Credentials;
pub use cancellation::Cancellation;
pub use caps::Caps;
pub use error::FetchError;
pub use local::LocalImages;
pub use platform::Platform;
pub use progress::{Note, Progress};
pub use pull::{Fetched, PullPolicy, fetch, fetch_again, load};
pub use settings::{Config, FetchCredentials, Insecure, Timeouts};
