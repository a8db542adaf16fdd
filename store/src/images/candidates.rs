//! The part of image filters that rows can answer: ids and times. Names, labels and annotations are compared by the
//! caller, because labels and annotations are in blobs.

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::ImageId;
use gantry_model::query::ImageFilter;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use serde_json::json;

use super::{ImageRow, some};
use crate::db::read_counters;
use crate::pods::row::Columns;
use crate::{Store, StoreError};

impl Store {
    /// The images for which some filter may hold (all, where there is none), by id; each with the places of the filters
    /// of which `ids`, `never` and the times hold.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn images_where(&self, filters: &[ImageFilter]) -> Result<Vec<(ImageRow, Vec<usize>)>, StoreError> {
        const DOING: &str = "list the images";
        self.read(DOING, |tx| candidates(tx, filters).map_err(StoreError::sql(DOING)))
    }

    /// All images, by id, and the number of durable commits so far. Each change of an image is one, so that the number
    /// rises with it, also after a restore.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn images_and_commits(&self) -> Result<(Vec<ImageRow>, u64), StoreError> {
        const DOING: &str = "list the images";
        let read = |tx: &Connection| {
            let commits = read_counters(tx)?.map_or(0, |counters| counters.durable);
            let images = candidates(tx, &[])?.into_iter().map(|(image, _)| image).collect();
            Ok((images, commits))
        };
        self.read(DOING, |tx| read(tx).map_err(StoreError::sql(DOING)))
    }
}

fn candidates(conn: &Connection, filters: &[ImageFilter]) -> rusqlite::Result<Vec<(ImageRow, Vec<usize>)>> {
    let mut of_any = Vec::new();
    let mut places: BTreeMap<ImageId, Vec<usize>> = BTreeMap::new();
    for (place, filter) in filters.iter().enumerate() {
        let (terms, values) = condition(filter);
        if terms.is_empty() {
            of_any.push(place);
            continue;
        }
        let mut ids = conn.prepare_cached(&format!("SELECT id FROM image WHERE {}", terms.join(" AND ")))?;
        for id in ids.query_map(params_from_iter(values), |row| Columns::new(row).parsed())? {
            places.entry(id?).or_default().push(place);
        }
    }
    let mut images = if filters.is_empty() || !of_any.is_empty() {
        some(conn, "", &[])?
    } else {
        let ids: Vec<String> = places.keys().map(ToString::to_string).collect();
        some(conn, "WHERE id IN (SELECT value FROM json_each(?1))", &[&json!(ids).to_string()])?
    };
    images.sort_by(|a, b| a.id.cmp(&b.id));
    let with_places = |image: ImageRow| {
        let mut places = places.remove(&image.id).unwrap_or_default();
        places.extend(&of_any);
        (image, places)
    };
    Ok(images.into_iter().map(with_places).collect())
}

/// The terms that must hold, and the values in them. None: the rows cannot answer.
fn condition(filter: &ImageFilter) -> (Vec<&'static str>, Vec<Value>) {
    const NANOSECONDS: i128 = 1_000_000_000;
    let (mut terms, mut values): (Vec<&'static str>, Vec<Value>) = (Vec::new(), Vec::new());
    if filter.never {
        terms.push("0");
    }
    if !filter.ids.is_empty() {
        let ids: BTreeSet<String> = filter.ids.iter().map(ToString::to_string).collect();
        terms.push("id IN (SELECT value FROM json_each(?))");
        values.push(json!(ids).to_string().into());
    }
    // A time beyond the range of rows is either no bound at all or never reached.
    if let Some(second) = filter.imported_after {
        let from = (i128::from(second) + 1) * NANOSECONDS;
        match i64::try_from(from) {
            Ok(from) => {
                terms.push("imported >= ?");
                values.push(from.into());
            }
            Err(_) if from > 0 => terms.push("0"),
            Err(_) => {}
        }
    }
    if let Some(second) = filter.imported_before {
        let until = i128::from(second) * NANOSECONDS;
        match i64::try_from(until) {
            Ok(until) => {
                terms.push("imported < ?");
                values.push(until.into());
            }
            Err(_) if until < 0 => terms.push("0"),
            Err(_) => {}
        }
    }
    (terms, values)
}
