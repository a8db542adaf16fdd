//! Network configurations, as CNI writes them.
