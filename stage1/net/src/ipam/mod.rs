//! Which pod has which address.
