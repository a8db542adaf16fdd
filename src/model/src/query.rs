//! Filters of pods, images and events.

use crate::{PhaseName, Timestamp};

/// Which pods to list. Every field that is set must hold; an empty list asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodQuery {
    /// Phases; empty: all.
    pub phases: Vec<PhaseName>,
    /// Only pods created at or after this time.
    pub created_since: Option<Timestamp>,
    /// Only pods that have an app of this name.
    pub app: Option<crate::AppName>,
    /// Only pods that have an app of this image.
    pub image: Option<crate::ImageId>,
}

impl PodQuery {
    /// Pods in these phases.
    #[must_use]
    pub fn in_phases(phases: impl IntoIterator<Item = PhaseName>) -> Self {
        Self { phases: phases.into_iter().collect(), ..Self::default() }
    }
}

/// A condition on pods, as the callers of APIs state it. Every list that is not empty must hold; one that is empty asks
/// for nothing. Conditions are combined by "or", see `pods_where` in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// The pod is any of these.
    pub ids: Vec<crate::PodId>,
    /// It is in any of these phases.
    pub phases: Vec<PhaseName>,
    /// It has apps of all these names.
    pub app_names: Vec<crate::AppName>,
    /// It has apps of all these images.
    pub images: Vec<crate::ImageId>,
    /// It is in all these networks.
    pub networks: Vec<String>,
    /// It has all these annotations, key and value.
    pub annotations: Vec<(String, String)>,
    /// The filter matches nothing, because its value cannot occur.
    pub never: bool,
    /// Its cgroup is any of these; the empty text means every pod that does not run. (Where cgroups are is the engine's
    /// to know: it turns these texts and the next ones into ids.)
    pub cgroups: Vec<String>,
    /// Its cgroup is any of these or lies above one of them.
    pub sub_cgroups: Vec<String>,
}

/// A condition on images. Every field that is not empty must hold. An image of several names has each of them; a name
/// is one without tag and digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFilter {
    /// The image is any of these.
    pub ids: Vec<crate::ImageId>,
    /// Something no image has was asked for: the filter holds for none.
    pub never: bool,
    /// A name begins with any of these.
    pub prefixes: Vec<String>,
    /// The last part of a name is any of these.
    pub base_names: Vec<String>,
    /// Any of these is somewhere in a name.
    pub keywords: Vec<String>,
    /// A name is any of these.
    pub full_names: Vec<String>,
    /// It has all these labels.
    pub labels: Vec<(String, String)>,
    /// It has all these annotations.
    pub annotations: Vec<(String, String)>,
    /// It was imported after this second (the whole of it).
    pub imported_after: Option<i64>,
    /// It was imported before this second.
    pub imported_before: Option<i64>,
}

/// Which events. Every list that is not empty must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Of any of these kinds.
    pub kinds: Vec<crate::EventKind>,
    /// With any of these as `id`.
    pub ids: Vec<String>,
    /// With any of these as `name`.
    pub names: Vec<String>,
    /// At this time or later, also those of the past.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

impl EventQuery {
    /// Whether this event is asked for.
    #[must_use]
    pub fn holds(&self, event: &crate::NewEvent) -> bool {
        let any = |wanted: &[String], is: &String| wanted.is_empty() || wanted.contains(is);
        (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && any(&self.ids, &event.id)
            && any(&self.names, &event.name)
            && self.since.is_none_or(|since| event.at >= since)
            && self.until.is_none_or(|until| event.at < until)
    }
}
