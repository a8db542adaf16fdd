//! Translates filters of requests, field by field without `..`: a field that is added to the contract breaks the build
//! here.
//!
//! A value that no pod or image can have (a text that is no id) makes a filter match nothing. A meaningless value (an
//! unknown number of an enum, a time before 1970) is refused with the name of its field.

use std::str::FromStr;

use gantry_model::query;
use gantry_model::{AppName, ImageId, PhaseName, PodId};
use gantry_proto::rkt::v1alpha::{ImageFilter, KeyValue, PodFilter, PodState};
use tonic::Status;

use super::convert;
use crate::request::{ValueBudget, check_text};
use crate::status::invalid_field;

/// Maximum filters of a request.
const MAX_FILTERS: usize = 256;

/// Keys and values of a field.
fn pairs(budget: &mut ValueBudget, field: &str, pairs: Vec<KeyValue>) -> Result<Vec<(String, String)>, Status> {
    budget.count(field, pairs.len())?;
    let checked = pairs.into_iter().map(|KeyValue { key, value }| {
        check_text(field, &key)?;
        check_text(field, &value)?;
        Ok((key, value))
    });
    checked.collect()
}

fn check_filters(count: usize) -> Result<(), Status> {
    if count > MAX_FILTERS {
        return Err(invalid_field("filters", &format!("a request may have {MAX_FILTERS}, this one has {count}")));
    }
    Ok(())
}

/// Translates filters on pods.
pub(super) fn pods(filters: Vec<PodFilter>) -> Result<Vec<query::PodFilter>, Status> {
    check_filters(filters.len())?;
    let mut budget = ValueBudget::default();
    filters.into_iter().enumerate().map(|(i, filter)| pod(&mut budget, &format!("filters[{i}]"), filter)).collect()
}

fn pod(budget: &mut ValueBudget, at: &str, filter: PodFilter) -> Result<query::PodFilter, Status> {
    let PodFilter { ids, states, app_names, image_ids, network_names, annotations, cgroups, pod_sub_cgroups } = filter;
    let ids = any_of(budget.check_texts(&format!("{at}.ids"), ids)?, pod_id);
    let state_count = states.len();
    let phases = phases(budget, &format!("{at}.states"), states)?;
    let app_names = all_of(budget.check_texts(&format!("{at}.app_names"), app_names)?, parsed::<AppName>);
    let images = all_of(budget.check_texts(&format!("{at}.image_ids"), image_ids)?, image_id);
    let never = ids.never || app_names.never || images.never || (state_count > 0 && phases.is_empty());
    Ok(query::PodFilter {
        ids: ids.values,
        phases,
        app_names: app_names.values,
        images: images.values,
        networks: budget.check_texts(&format!("{at}.network_names"), network_names)?,
        annotations: pairs(budget, &format!("{at}.annotations"), annotations)?,
        never,
        cgroups: budget.check_texts(&format!("{at}.cgroups"), cgroups)?,
        sub_cgroups: budget.check_texts(&format!("{at}.pod_sub_cgroups"), pod_sub_cgroups)?,
    })
}

/// The phases. A state that no pod has adds none.
fn phases(budget: &mut ValueBudget, field: &str, states: Vec<i32>) -> Result<Vec<PhaseName>, Status> {
    budget.count(field, states.len())?;
    let mut phases = Vec::new();
    for state in states {
        let known =
            PodState::try_from(state).map_err(|_| invalid_field(field, &format!("there is no PodState {state}")))?;
        for phase in convert::phases_of(known) {
            if !phases.contains(phase) {
                phases.push(*phase);
            }
        }
    }
    Ok(phases)
}

/// Translates filters on images.
pub(super) fn images(filters: Vec<ImageFilter>) -> Result<Vec<query::ImageFilter>, Status> {
    check_filters(filters.len())?;
    let mut budget = ValueBudget::default();
    filters.into_iter().enumerate().map(|(i, filter)| image(&mut budget, &format!("filters[{i}]"), filter)).collect()
}

fn image(budget: &mut ValueBudget, at: &str, filter: ImageFilter) -> Result<query::ImageFilter, Status> {
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
    let ids = any_of(budget.check_texts(&format!("{at}.ids"), ids)?, image_id);
    Ok(query::ImageFilter {
        ids: ids.values,
        never: ids.never,
        prefixes: budget.check_texts(&format!("{at}.prefixes"), prefixes)?,
        base_names: budget.check_texts(&format!("{at}.base_names"), base_names)?,
        keywords: budget.check_texts(&format!("{at}.keywords"), keywords)?,
        full_names: budget.check_texts(&format!("{at}.full_names"), full_names)?,
        labels: pairs(budget, &format!("{at}.labels"), labels)?,
        annotations: pairs(budget, &format!("{at}.annotations"), annotations)?,
        // As in rkt, times up to 1970 mean not set.
        imported_after: Some(imported_after).filter(|second| *second > 0),
        imported_before: Some(imported_before).filter(|second| *second > 0),
    })
}

/// The valid values of a field, and whether the invalid ones make the filter match nothing.
struct FilterValues<T> {
    values: Vec<T>,
    never: bool,
}

/// For fields of which one value must match: invalid values are dropped unless all are invalid.
fn any_of<T>(texts: Vec<String>, parse: fn(&str) -> Option<T>) -> FilterValues<T> {
    let values: Vec<T> = texts.iter().filter_map(|text| parse(text)).collect();
    FilterValues { never: values.is_empty() && !texts.is_empty(), values }
}

/// For fields of which all values must match: one invalid value is enough to match nothing.
fn all_of<T>(texts: Vec<String>, parse: fn(&str) -> Option<T>) -> FilterValues<T> {
    let values: Vec<T> = texts.iter().filter_map(|text| parse(text)).collect();
    FilterValues { never: values.len() != texts.len(), values }
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// A complete image id: `sha256:…`, `sha512-…` as in appc's manifests, or the digits alone.
pub(super) fn image_id(text: &str) -> Option<ImageId> {
    text.parse().ok().or_else(|| ImageId::from_appc(text)).or_else(|| format!("sha256:{text}").parse().ok())
}

/// As in rkt, ids of a filter must be complete and in lower case.
fn pod_id(text: &str) -> Option<PodId> {
    text.parse().ok().filter(|id: &PodId| id.to_string() == text)
}

#[cfg(test)]
#[path = "filters_tests.rs"]
mod tests;
