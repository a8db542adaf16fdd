//! gantryd's start with a damaged or restored database. Commands never restore.

pub(crate) mod adopt;
pub(crate) mod images;
pub(crate) mod rows;
pub(crate) mod startup;
