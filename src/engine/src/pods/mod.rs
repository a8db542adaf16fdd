//! The life of a pod, from its plan to its removal: one file per verb, each with methods of [`crate::Engine`].

pub(crate) mod added;
pub(crate) mod app_history;
pub(crate) mod apps;
pub(crate) mod control;
pub(crate) mod exec;
pub(crate) mod filter;
pub(crate) mod gc;
pub(crate) mod kill;
pub(crate) mod names;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod pause;
pub(crate) mod plan;
pub(crate) mod plan_net;
pub(crate) mod pod_dir;
pub(crate) mod prepare;
pub(crate) mod readiness;
pub(crate) mod reconcile;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod stop;
pub(crate) mod supervisor;
pub(crate) mod transition;
pub(crate) mod update;
pub(crate) mod view;
pub(crate) mod wait;
