//! What callers ask for, taken apart field by field: a field that is added to the contract breaks the build here.
//!
//! What no pod or image can have (a text that is no id) makes a filter hold for none; what cannot mean anything (an
//! unknown number of an enum, a time before 1970) is refused by the name of its field.

use std::str::FromStr;

use gantry_engine::model::query;
use gantry_engine::model::{AppName, ImageId, PodId};
use gantry_proto::rkt::v1alpha::{ImageFilter, KeyValue, PodFilter, PodState};
use tonic::Status;

use super::convert;
use crate::status::invalid;

/// The most filters of a request.
const MOST_FILTERS: usize = 256;
/// The most values in all fields of a request.
const MOST_VALUES: usize = 10_000;
/// The most bytes of one text.
const MOST_TEXT: usize = 4096;

/// Counts what a request brings.
#[derive(Debug, Default)]
pub(super) struct Budget {
    values: usize,
}

impl Budget {
    /// The texts of a field, when they are not too many or too long.
    pub(super) fn texts(&mut self, field: &str, texts: Vec<String>) -> Result<Vec<String>, Status> {
        self.count(field, texts.len())?;
        texts.iter().try_for_each(|text| check_text(field, text))?;
        Ok(texts)
    }

    /// Keys and values.
    fn pairs(&mut self, field: &str, pairs: Vec<KeyValue>) -> Result<Vec<(String, String)>, Status> {
        self.count(field, pairs.len())?;
        let taken = pairs.into_iter().map(|KeyValue { key, value }| {
            check_text(field, &key)?;
            check_text(field, &value)?;
            Ok((key, value))
        });
        taken.collect()
    }

    /// Adds so many values.
    pub(super) fn count(&mut self, field: &str, values: usize) -> Result<(), Status> {
        self.values = self.values.saturating_add(values);
        if self.values > MOST_VALUES {
            return Err(invalid(field, &format!("a request may have {MOST_VALUES} values in all")));
        }
        Ok(())
    }
}

/// Refuses a text that is too long.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), Status> {
    if text.len() > MOST_TEXT {
        return Err(invalid(field, &format!("a text may have {MOST_TEXT} bytes, this one has {}", text.len())));
    }
    Ok(())
}

fn check_filters(count: usize) -> Result<(), Status> {
    if count > MOST_FILTERS {
        return Err(invalid("filters", &format!("a request may have {MOST_FILTERS}, this one has {count}")));
    }
    Ok(())
}

/// Filters on pods.
pub(super) fn pods(filters: Vec<PodFilter>) -> Result<Vec<query::PodFilter>, Status> {
    check_filters(filters.len())?;
    let mut budget = Budget::default();
    filters.into_iter().enumerate().map(|(i, filter)| pod(&mut budget, &format!("filters[{i}]"), filter)).collect()
}

fn pod(budget: &mut Budget, at: &str, filter: PodFilter) -> Result<query::PodFilter, Status> {
    let PodFilter { ids, states, app_names, image_ids, network_names, annotations, cgroups, pod_sub_cgroups } = filter;
    let ids = any_of(budget.texts(&format!("{at}.ids"), ids)?, pod_id);
    let states_asked = states.len();
    let phases = phases(budget, &format!("{at}.states"), states)?;
    let app_names = all_of(budget.texts(&format!("{at}.app_names"), app_names)?, parsed::<AppName>);
    let images = all_of(budget.texts(&format!("{at}.image_ids"), image_ids)?, image_id);
    let never = ids.never || app_names.never || images.never || (states_asked > 0 && phases.is_empty());
    Ok(query::PodFilter {
        ids: ids.values,
        phases,
        app_names: app_names.values,
        images: images.values,
        networks: budget.texts(&format!("{at}.network_names"), network_names)?,
        annotations: budget.pairs(&format!("{at}.annotations"), annotations)?,
        never,
        cgroups: budget.texts(&format!("{at}.cgroups"), cgroups)?,
        sub_cgroups: budget.texts(&format!("{at}.pod_sub_cgroups"), pod_sub_cgroups)?,
    })
}

/// The names of phases. A state that no pod is in adds none.
fn phases(budget: &mut Budget, field: &str, states: Vec<i32>) -> Result<Vec<&'static str>, Status> {
    budget.count(field, states.len())?;
    let mut phases = Vec::new();
    for state in states {
        let known = PodState::try_from(state).map_err(|_| invalid(field, &format!("there is no PodState {state}")))?;
        phases.extend(convert::phase_of(known).filter(|phase| !phases.contains(phase)));
    }
    Ok(phases)
}

/// Filters on images.
pub(super) fn images(filters: Vec<ImageFilter>) -> Result<Vec<query::ImageFilter>, Status> {
    check_filters(filters.len())?;
    let mut budget = Budget::default();
    filters.into_iter().enumerate().map(|(i, filter)| image(&mut budget, &format!("filters[{i}]"), filter)).collect()
}

fn image(budget: &mut Budget, at: &str, filter: ImageFilter) -> Result<query::ImageFilter, Status> {
    let ImageFilter {
        ids,
        prefixes,
        base_names,
        keywords,
        labels,
        imported_after,
        imported_before,
        annotations,
        full_names,
    } = filter;
    let ids = any_of(budget.texts(&format!("{at}.ids"), ids)?, image_id);
    Ok(query::ImageFilter {
        ids: ids.values,
        never: ids.never,
        prefixes: budget.texts(&format!("{at}.prefixes"), prefixes)?,
        base_names: budget.texts(&format!("{at}.base_names"), base_names)?,
        keywords: budget.texts(&format!("{at}.keywords"), keywords)?,
        full_names: budget.texts(&format!("{at}.full_names"), full_names)?,
        labels: budget.pairs(&format!("{at}.labels"), labels)?,
        annotations: budget.pairs(&format!("{at}.annotations"), annotations)?,
        // As in rkt: what is not after 1970 asks for nothing.
        imported_after: Some(imported_after).filter(|second| *second > 0),
        imported_before: Some(imported_before).filter(|second| *second > 0),
    })
}

/// Values that can be, and whether one that cannot makes the filter hold for none.
struct Asked<T> {
    values: Vec<T>,
    never: bool,
}

/// Any of the values is enough: those that nothing has are left out, unless there are no others.
fn any_of<T>(texts: Vec<String>, parse: fn(&str) -> Option<T>) -> Asked<T> {
    let values: Vec<T> = texts.iter().filter_map(|text| parse(text)).collect();
    Asked { never: values.is_empty() && !texts.is_empty(), values }
}

/// All of the values must be there: one that nothing has is one too many.
fn all_of<T>(texts: Vec<String>, parse: fn(&str) -> Option<T>) -> Asked<T> {
    let values: Vec<T> = texts.iter().filter_map(|text| parse(text)).collect();
    Asked { never: values.len() != texts.len(), values }
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// A whole image id: `sha256:…`, `sha512-…` as in appc's manifests, or the digits alone.
pub(super) fn image_id(text: &str) -> Option<ImageId> {
    text.parse().ok().or_else(|| ImageId::from_appc(text)).or_else(|| format!("sha256:{text}").parse().ok())
}

/// As in rkt the ids of a filter are compared as they are: whole, and in lower case.
fn pod_id(text: &str) -> Option<PodId> {
    text.parse().ok().filter(|id: &PodId| id.to_string() == text)
}

#[cfg(test)]
#[path = "filters_tests.rs"]
mod tests;
