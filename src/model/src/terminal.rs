//! The terminals of apps and of programs that are executed in them.

/// Rows and columns of a terminal for which the client gives no size: those of a VT100. Programs fail in a terminal of
/// size 0.
pub const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// `TERM` of a program in a terminal, unless its environment sets it (terminfo(5)).
pub const TERM: &str = "xterm";
