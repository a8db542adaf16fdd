//! Questions about pods, asked of the store.

use crate::Timestamp;

/// Which pods to list. Every field that is set must hold; an empty list asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodQuery {
    /// Phases by name (see [`crate::Phase::name`]); empty: all.
    pub phases: Vec<&'static str>,
    /// Only pods created at or after this time.
    pub created_since: Option<Timestamp>,
    /// Only pods that have an app of this name.
    pub app: Option<crate::AppName>,
    /// Only pods that have an app of this image.
    pub image: Option<crate::ImageId>,
}

impl PodQuery {
    /// Pods in the phases with these names.
    #[must_use]
    pub fn in_phases(phases: &[&'static str]) -> Self {
        Self { phases: phases.to_vec(), ..Self::default() }
    }
}
