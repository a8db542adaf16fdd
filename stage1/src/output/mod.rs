//! The output of apps: its log files, and the clients that receive it live.

pub(crate) mod foreground;
pub(crate) mod log_place;
pub(crate) mod logs;
pub(crate) mod pace;
