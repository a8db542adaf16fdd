//! The gRPC surfaces of gantryd: one server for all of them, one bridge to the engine, one folder for each surface.
//!
//! May import `gantry_model`, `gantry_engine` and `gantry_proto`. Of the engine it uses [`gantry_engine::Observer`] alone,
//! which cannot write; what a surface cannot do, no mistake in it can do. It knows nothing of the keeper and does not
//! print: who starts it shows what there is to be said.
//!
//! ```text
//! listen   where is listened: addresses, socket files, sockets passed by a service manager
//! accept   connections, and how many of them
//! answers  lists that wait to be read, and how many of them
//! server   tonic with its limits; start and drain
//! bridge   from tasks to the synchronous observers, a few threads with a bounded queue
//! deadline  calls that take longer than their callers wait
//! hub      events as they are committed, encoded once for all who listen
//! peer     the client of a connection: its share, and what it is shown
//! places   how many connections and streams
//! watch    which log directories changed, for all who follow
//! status   from our kinds of errors to gRPC's codes, the one place
//! health   grpc.health.v1
//! rkt      v1alpha.PublicAPI
//! ```
//!
//! A surface is a folder beside `rkt`: `service` (its methods), `convert` (what comes in, taken apart field by field)
//! and one file for each thing that goes out. No surface imports another. Start reading at [`server`].
#![forbid(unsafe_code)]

mod accept;
mod answers;
mod bridge;
mod deadline;
mod health;
mod hub;
pub mod listen;
mod peer;
mod places;
mod rkt;
pub mod server;
mod status;
mod watch;

pub use listen::{Address, AddressError, ListenError, Listener};
pub use server::{Config, Running, ServeError, serve};
