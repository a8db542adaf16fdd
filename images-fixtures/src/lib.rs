//! The fixture app (a static program of our own) and the tiny images built from it, offline.
