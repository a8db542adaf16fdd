//! One file per group of commands. Each is: arguments, one or two engine calls, a rendering.

pub(crate) mod attach;
pub(crate) mod completion;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod fetch;
pub(crate) mod image;
pub(crate) mod image_archive;
pub(crate) mod image_inspect;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod network;
pub(crate) mod port;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod version;
pub(crate) mod volume;
pub(crate) mod wait;
