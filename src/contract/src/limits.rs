//! The record of limits that were changed: `limits.json` of the pod directory.
//!
//! The supervisor replaces it before it replies to [`crate::control::Request::UpdateLimits`], and reads it when it
//! starts the pod. It outranks the limits of the plan. A supervisor that is killed between setting the limits and
//! writing the record leaves processes that are killed with it.

use std::collections::BTreeMap;

use gantry_model::spec::Limits;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The maximum length of the record, in bytes.
pub const MAX_RECORD: u64 = 16 << 20;

/// The limits that differ from the plan's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdatedLimits {
    /// All limits of the pod, if one was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Limits>,
    /// All limits of each app of which one was changed.
    pub apps: BTreeMap<String, Limits>,
}

impl UpdatedLimits {
    /// Replaces the limits in the plan.
    pub fn apply(self, plan: &mut Plan) {
        if let Some(limits) = self.pod {
            plan.limits = limits;
        }
        for (name, limits) in self.apps {
            if let Some(app) = plan.apps.iter_mut().find(|app| app.name == name) {
                app.options.limits = limits;
            }
        }
    }
}
