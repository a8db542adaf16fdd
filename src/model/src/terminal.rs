//! The terminals of apps and of programs that are executed in them.

/// Rows and columns of a terminal whose client names no size: those of a VT100. Programs fail in one of size 0.
pub const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// `TERM` of a program in a terminal, unless its environment has another one (terminfo(5)).
pub const TERM: &str = "xterm";
