//! CNI plugins of others.
