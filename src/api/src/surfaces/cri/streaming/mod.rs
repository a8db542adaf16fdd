//! The streaming server of the CRI: exec, attach and port-forward.
//!
//! A call of the CRI checks its request and returns a URL with a token. The client connects there, upgrades the
//! connection to SPDY/3.1 or WebSocket, and opens the channels of its session. Start reading at [`server`], then
//! [`http`], [`channels`] (SPDY and WebSocket as channels), [`exec`], [`attach`] and [`forward`].
//!
//! A session has one task and bounded memory: bytes are read from one side only when the other side took those before,
//! so a slow client or program slows down its peer, and nothing else. Tokens are lost when gantryd ends, and so are
//! sessions; containers run on.

mod attach;
mod channels;
mod command;
mod container;
mod exec;
mod exit_status;
mod forward;
mod http;
mod negotiation;
mod pipe;
#[cfg(test)]
mod recording_tests;
mod server;
mod session;
mod spdy;
mod tokens;
mod websocket;
mod wire;

pub(super) use self::server::StreamingServer;
