//! Images: their names, layers and metadata.
//!
//! An image is committed last: its layers and blobs are durable before its row. It is removed first: the row is
//! deleted, and [`Store::sweep_images`] deletes unreferenced layers and blobs. A pod's app refers to its image by a
//! foreign key, so an image in use cannot be removed, however the two operations race.

mod candidates;

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::{Digest, ErrorKind, EventKind, ImageId, Kind, NewEvent, PodId, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use thiserror::Error;

use crate::db::Sync;
use crate::pods::row::Columns;
use crate::sweep::delete_tree;
use crate::{BlobError, Layout, Store, StoreError, events};

/// The format in which an image came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// OCI image specification.
    Oci,
    /// Docker image manifest version 2, schema 2.
    Docker,
    /// appc image (ACI).
    Appc,
}

impl ImageFormat {
    /// The name in tables, JSON and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Docker => "docker",
            Self::Appc => "appc",
        }
    }

    /// The format with this word.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Oci, Self::Docker, Self::Appc].into_iter().find(|format| format.as_str() == name)
    }
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerRef {
    /// Its chain id, which determines its directory.
    pub chain: Digest,
    /// The digest of its tar archive.
    pub diff_id: Digest,
    /// The digest of the fetched, compressed layer.
    pub blob: Digest,
}

/// An image that is about to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewImage {
    /// The digest of its manifest.
    pub id: ImageId,
    /// The digest of its configuration.
    pub config: Digest,
    /// The format in which it came.
    pub format: ImageFormat,
    /// Its layers, bottom first.
    pub layers: Vec<LayerRef>,
    /// Bytes that came: layers (compressed), manifest and configuration.
    pub size: u64,
    /// Canonical names that refer to it from now on.
    pub names: Vec<String>,
}

/// A committed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRow {
    /// The digest of its manifest.
    pub id: ImageId,
    /// The digest of its configuration.
    pub config: Digest,
    /// The format in which it came.
    pub format: ImageFormat,
    /// Its layers, bottom first.
    pub layers: Vec<LayerRef>,
    /// Bytes that came: layers (compressed), manifest and configuration.
    pub size: u64,
    /// Canonical names that refer to it, sorted.
    pub names: Vec<String>,
    /// The time of its first commit.
    pub imported: Timestamp,
    /// The time of its last commit or use by a pod, to the minute.
    pub last_used: Timestamp,
}

/// An image that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its row.
    pub image: ImageRow,
}

/// An image could not be committed.
#[derive(Debug, Error)]
pub enum CommitImageError {
    /// A layer is not committed.
    #[error("image {image} cannot be committed without its layer {chain}: fetch it again")]
    NoSuchLayer {
        /// The image.
        image: ImageId,
        /// The layer.
        chain: Digest,
    },
    /// The manifest or the configuration does not exist.
    #[error("image {image} cannot be committed without its blob {blob}: fetch it again")]
    NoSuchBlob {
        /// The image.
        image: ImageId,
        /// The blob.
        blob: Digest,
    },
    /// The database or the disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for CommitImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchLayer { .. } | Self::NoSuchBlob { .. } => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }
}

/// An image could not be removed.
#[derive(Debug, Error)]
pub enum RemoveImageError {
    /// Pods use it.
    #[error("image {image} is used by {}", users_text(pods))]
    InUse {
        /// The image.
        image: ImageId,
        /// The pods, at least one.
        pods: Vec<PodId>,
    },
    /// There is none.
    #[error("there is no image {0}: 'gantry image list' lists the images")]
    NotFound(ImageId),
    /// The condition of its removal does not hold.
    #[error("image {0} no longer meets the condition of its removal, so it stays")]
    Unselected(ImageId),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// `pod X: remove it first`, or how many pods there are.
fn users_text(pods: &[PodId]) -> String {
    match pods {
        [only] => format!("pod {only}: remove it first"),
        [first, ..] => format!("{} pods, among them {first}: remove those first", pods.len()),
        [] => "no pod".to_owned(),
    }
}

impl Kind for RemoveImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::InUse { .. } | Self::Unselected(_) => ErrorKind::Refused,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }
}

/// The minimum interval between writes of `last_used`.
const TOUCH_INTERVAL: i64 = 60_000_000_000;

const ALL: &str = "SELECT id, config, format, size, imported, last_used FROM image";

impl Store {
    /// Commits an image, durably; or gives one that is committed already its names. The caller holds the locks of the
    /// layers ([`crate::SharedLayerLock`]), so that they are not collected before the image refers to them.
    ///
    /// # Errors
    /// [`CommitImageError`].
    pub fn commit_image(&self, image: &NewImage, at: Timestamp) -> Result<ImageRow, CommitImageError> {
        const DOING: &str = "commit the image";
        self.lease_blobs()?;
        for blob in [&image.id, &image.config] {
            if !self.has_blob(blob)? {
                return Err(CommitImageError::NoSuchBlob { image: image.id.clone(), blob: blob.clone() });
            }
        }
        for layer in &image.layers {
            if self.layer(&layer.chain)?.is_none() {
                let chain = layer.chain.clone();
                return Err(CommitImageError::NoSuchLayer { image: image.id.clone(), chain });
            }
        }
        let row = self.write(DOING, Sync::Now, |tx| {
            let known = by_id(tx, &image.id).map_err(StoreError::sql(DOING))?.is_some();
            if !known {
                insert(tx, image, at)?;
            }
            name_and_touch(tx, image, at).map_err(StoreError::sql(DOING))?;
            let row = by_id(tx, &image.id).map_err(StoreError::sql(DOING))?;
            if let Some(row) = row.as_ref().filter(|_| !known) {
                let event = event(EventKind::ImageImported, row, at);
                events::append(self, tx, &[event]).map_err(StoreError::sql(DOING))?;
            }
            row.ok_or_else(|| StoreError::sql(DOING)(rusqlite::Error::QueryReturnedNoRows))
                .map_err(CommitImageError::from)
        })?;
        self.end_blob_lease();
        Ok(row)
    }

    /// An image by its whole id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn image(&self, id: &ImageId) -> Result<Option<ImageRow>, StoreError> {
        self.one_image(&format!("{ALL} WHERE id = ?1"), &id.to_string())
    }

    /// Whether all parts of an image exist and none is known to be damaged: verifies its documents; its layers were
    /// verified by the last deep check.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn is_whole(&self, image: &ImageRow) -> Result<bool, StoreError> {
        /// Larger ones are refused when they are put.
        const MAX_BLOB: u64 = 64 << 20;
        for digest in [&image.id, &image.config] {
            match self.blob(digest, MAX_BLOB) {
                Ok(Some(_)) => {}
                Err(BlobError::Store(error)) => return Err(error),
                Ok(None) | Err(_) => return Ok(false),
            }
        }
        for layer in &image.layers {
            if self.sound_layer(&layer.chain)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All images, by the time of their import.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn images(&self) -> Result<Vec<ImageRow>, StoreError> {
        self.some_images("", &[])
    }

    /// The image with a canonical name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn image_by_name(&self, name: &str) -> Result<Option<ImageRow>, StoreError> {
        self.one_image(&format!("{ALL} WHERE id = (SELECT image FROM image_name WHERE name = ?1)"), name)
    }

    /// The images whose id begins with these hexadecimal digits.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn images_by_prefix(&self, hex: &str) -> Result<Vec<ImageRow>, StoreError> {
        let digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if hex.is_empty() || !hex.bytes().all(digit) {
            return Ok(Vec::new());
        }
        // In the order of bytes every text that begins with the prefix lies before the prefix and a 'g'.
        let wanted = "WHERE (id >= 'sha256:' || ?1 AND id < 'sha256:' || ?1 || 'g')
            OR (id >= 'sha512:' || ?1 AND id < 'sha512:' || ?1 || 'g')";
        self.some_images(wanted, &[hex])
    }

    /// The images with a name that, after the host, is or ends with this repository and tag.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn images_by_short(&self, repository: &str, tag: &str) -> Result<Vec<ImageRow>, StoreError> {
        let name = format!("{repository}:{tag}");
        let wanted = "WHERE id IN (SELECT image FROM image_name
            WHERE name = ?1 OR substr(name, -length(?1) - 1) = '/' || ?1)";
        self.some_images(wanted, &[&name])
    }

    /// Records that an image was used; at most one write a minute.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn touch_image(&self, id: &ImageId, at: Timestamp) -> Result<(), StoreError> {
        const DOING: &str = "note the use of the image";
        let id = id.to_string();
        let last: Option<i64> = self
            .conn
            .prepare_cached("SELECT last_used FROM image WHERE id = ?1")
            .and_then(|mut one| one.query_row([&id], |row| row.get(0)).optional())
            .map_err(StoreError::sql(DOING))?;
        if last.is_none_or(|last| at.0.saturating_sub(last) < TOUCH_INTERVAL) {
            return Ok(());
        }
        self.write(DOING, Sync::Soon, |tx| {
            tx.prepare_cached("UPDATE image SET last_used = max(last_used, ?2) WHERE id = ?1")
                .and_then(|mut update| update.execute(params![id, at.0]))
                .map(drop)
                .map_err(StoreError::sql(DOING))
        })
    }

    /// Removes an image that no pod uses, durably. Its layers stay until [`Self::sweep_images`]. When the disk is so
    /// full that not even the removal can be written, unlocked garbage is collected first, then layers of the image are
    /// deleted.
    ///
    /// # Errors
    /// [`RemoveImageError`].
    pub fn remove_image(&self, id: &ImageId) -> Result<Removed, RemoveImageError> {
        self.remove_image_if(id, &|_| true)
    }

    /// The same, if the condition holds for the image as it is in the transaction of the removal.
    ///
    /// # Errors
    /// [`RemoveImageError`].
    pub fn remove_image_if(
        &self,
        id: &ImageId,
        condition: &dyn Fn(&ImageRow) -> bool,
    ) -> Result<Removed, RemoveImageError> {
        match self.remove_row(id, condition) {
            Err(RemoveImageError::Store(error)) if error.is_full() => {
                self.make_room()?;
                match self.remove_row(id, condition) {
                    Err(RemoveImageError::Store(error)) if error.is_full() => {
                        self.delete_layers_of(id, condition)?;
                        self.remove_row(id, condition)
                    }
                    other => other,
                }
            }
            other => other,
        }
    }

    /// Deletes directories of layers that only this image has, topmost first, until the removal of its row has room.
    /// Holds the write lock, so that no pod uses the image in the meantime, and writes nothing under it. A `kill -9`
    /// leaves an image without some of its layers, which `fetch` repairs and another removal removes.
    fn delete_layers_of(&self, id: &ImageId, condition: &dyn Fn(&ImageRow) -> bool) -> Result<(), RemoveImageError> {
        const DOING: &str = "make room for the removal of the image";
        const MIN_FREED: u64 = 256 << 10;
        let sql = || StoreError::sql(DOING);
        let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate).map_err(sql())?;
        removable(&tx, id, condition, DOING)?;
        let own: Vec<Digest> = tx
            .prepare(
                "SELECT chain FROM image_layer WHERE image = ?1 AND chain NOT IN
                    (SELECT chain FROM image_layer WHERE image <> ?1) ORDER BY position DESC",
            )
            .and_then(|mut own| own.query_map([id.to_string()], |row| Columns::new(row).parsed())?.collect())
            .map_err(sql())?;
        let mut freed = 0;
        for chain in own {
            let name = Layout::tree_name(&chain);
            let Some(_locks) = self.try_lock_to_collect(&name)? else { continue };
            freed += delete_tree(&self.layout, &name)?;
            if freed >= MIN_FREED {
                break;
            }
        }
        Ok(())
    }

    /// The pods that use each image, as the root of an app or as a volume. Images without users are not listed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn image_users(&self) -> Result<BTreeMap<ImageId, BTreeSet<PodId>>, StoreError> {
        const DOING: &str = "list the pods that use images";
        let mut users: BTreeMap<ImageId, BTreeSet<PodId>> = BTreeMap::new();
        let mut all = self.conn.prepare_cached(USERS).map_err(StoreError::sql(DOING))?;
        let rows = all.query_map([], |row| {
            let mut columns = Columns::new(row);
            Ok((columns.parsed()?, columns.parsed()?))
        });
        for row in rows.map_err(StoreError::sql(DOING))? {
            let (image, pod) = row.map_err(StoreError::sql(DOING))?;
            users.entry(image).or_default().insert(pod);
        }
        Ok(users)
    }

    /// The pods that use an image, as the root of an app or as a volume.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn users_of_image(&self, id: &ImageId) -> Result<Vec<PodId>, StoreError> {
        users(&self.conn, id).map_err(StoreError::sql("list the pods that use the image"))
    }

    fn remove_row(&self, id: &ImageId, condition: &dyn Fn(&ImageRow) -> bool) -> Result<Removed, RemoveImageError> {
        const DOING: &str = "remove the image";
        let sql = || StoreError::sql(DOING);
        self.write(DOING, Sync::Now, |tx| {
            let image = removable(tx, id, condition, DOING)?;
            tx.execute("DELETE FROM image WHERE id = ?1", [id.to_string()]).map_err(sql())?;
            let event = event(EventKind::ImageRemoved, &image, crate::now());
            events::append(self, tx, &[event]).map_err(sql())?;
            Ok(Removed { image })
        })
    }

    /// Removes a name of an image. `false`: the image does not have it; a fetch may have given it to another. On a full
    /// disk as [`Self::remove_image`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn untag(&self, image: &ImageId, name: &str) -> Result<bool, StoreError> {
        match self.remove_name(image, name) {
            Err(error) if error.is_full() => {
                self.make_room()?;
                self.remove_name(image, name)
            }
            other => other,
        }
    }

    fn remove_name(&self, image: &ImageId, name: &str) -> Result<bool, StoreError> {
        const DOING: &str = "remove the name of the image";
        self.write(DOING, Sync::Now, |tx| {
            tx.execute("DELETE FROM image_name WHERE name = ?1 AND image = ?2", params![name, image.to_string()])
                .map(|removed| removed > 0)
                .map_err(StoreError::sql(DOING))
        })
    }

    fn one_image(&self, query: &str, value: &str) -> Result<Option<ImageRow>, StoreError> {
        const DOING: &str = "read the image";
        self.read(DOING, |tx| one(tx, query, value).map_err(StoreError::sql(DOING)))
    }

    fn some_images(&self, wanted: &str, values: &[&str]) -> Result<Vec<ImageRow>, StoreError> {
        const DOING: &str = "list the images";
        self.read(DOING, |tx| some(tx, wanted, values).map_err(StoreError::sql(DOING)))
    }
}

fn insert(tx: &Transaction<'_>, image: &NewImage, at: Timestamp) -> Result<(), CommitImageError> {
    let sql = || StoreError::sql("commit the image");
    let id = image.id.to_string();
    tx.prepare_cached(
        "INSERT INTO image (id, config, format, size, imported, last_used) VALUES (?1, ?2, ?3, ?4, ?5, ?5)",
    )
    .and_then(|mut insert| {
        insert.execute(params![id, image.config.to_string(), image.format.as_str(), image.size, at.0])
    })
    .map_err(sql())?;
    // From a select: the error names a layer that was collected since it was checked, which the foreign key alone would
    // not.
    let mut insert = tx
        .prepare_cached(
            "INSERT INTO image_layer (image, position, chain, blob) SELECT ?1, ?2, chain, ?4 FROM layer WHERE chain = ?3",
        )
        .map_err(sql())?;
    for (position, layer) in image.layers.iter().enumerate() {
        let inserted =
            insert.execute(params![id, position, layer.chain.to_string(), layer.blob.to_string()]).map_err(sql())?;
        if inserted == 0 {
            return Err(CommitImageError::NoSuchLayer { image: image.id.clone(), chain: layer.chain.clone() });
        }
    }
    Ok(())
}

fn name_and_touch(tx: &Transaction<'_>, image: &NewImage, at: Timestamp) -> rusqlite::Result<()> {
    let id = image.id.to_string();
    let mut move_name = tx.prepare_cached(
        "INSERT INTO image_name (name, image) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET image = excluded.image",
    )?;
    for name in &image.names {
        move_name.execute([name, &id])?;
    }
    tx.prepare_cached("UPDATE image SET last_used = max(last_used, ?2) WHERE id = ?1")?
        .execute(params![id, at.0])
        .map(drop)
}

fn event(kind: EventKind, image: &ImageRow, at: Timestamp) -> NewEvent {
    let name = image.names.first().cloned().unwrap_or_default();
    let data = [("image_id".to_owned(), image.id.to_string()), ("size".to_owned(), image.size.to_string())].into();
    NewEvent { kind, at, id: image.id.to_string(), name, data }
}

/// An image that no pod uses and for which the condition holds.
fn removable(
    conn: &Connection,
    id: &ImageId,
    condition: &dyn Fn(&ImageRow) -> bool,
    doing: &'static str,
) -> Result<ImageRow, RemoveImageError> {
    let image =
        by_id(conn, id).map_err(StoreError::sql(doing))?.ok_or_else(|| RemoveImageError::NotFound(id.clone()))?;
    let pods = users(conn, id).map_err(StoreError::sql(doing))?;
    if !pods.is_empty() {
        return Err(RemoveImageError::InUse { image: id.clone(), pods });
    }
    if !condition(&image) {
        return Err(RemoveImageError::Unselected(id.clone()));
    }
    Ok(image)
}

/// The images and the pods that use them, as the root of an app or as a volume.
const USERS: &str = "SELECT image, pod FROM app WHERE image IS NOT NULL UNION SELECT image, pod FROM pod_image";

/// The pods that use this image.
fn users(conn: &Connection, id: &ImageId) -> rusqlite::Result<Vec<PodId>> {
    conn.prepare_cached(&format!("SELECT pod FROM ({USERS}) WHERE image = ?1 ORDER BY pod"))?
        .query_map([id.to_string()], |row| Columns::new(row).parsed())?
        .collect()
}

fn by_id(conn: &Connection, id: &ImageId) -> rusqlite::Result<Option<ImageRow>> {
    one(conn, &format!("{ALL} WHERE id = ?1"), &id.to_string())
}

fn one(conn: &Connection, query: &str, value: &str) -> rusqlite::Result<Option<ImageRow>> {
    let Some(mut image) = conn.prepare_cached(query)?.query_row([value], read).optional()? else { return Ok(None) };
    let id = image.id.to_string();
    image.layers = conn
        .prepare_cached(&format!("{LAYERS} WHERE image = ?1 ORDER BY position"))?
        .query_map([&id], read_layer)?
        .collect::<rusqlite::Result<_>>()?;
    image.names = conn
        .prepare_cached("SELECT name FROM image_name WHERE image = ?1 ORDER BY name")?
        .query_map([&id], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Some(image))
}

const LAYERS: &str = "SELECT chain, diff_id, blob, image FROM image_layer JOIN layer USING (chain)";

/// Three statements, whatever the number of images.
fn some(conn: &Connection, wanted: &str, values: &[&str]) -> rusqlite::Result<Vec<ImageRow>> {
    let values = || rusqlite::params_from_iter(values);
    let mut images: Vec<ImageRow> = conn
        .prepare_cached(&format!("{ALL} {wanted} ORDER BY imported, id"))?
        .query_map(values(), read)?
        .collect::<rusqlite::Result<_>>()?;
    let places: std::collections::HashMap<String, usize> =
        images.iter().enumerate().map(|(place, image)| (image.id.to_string(), place)).collect();
    let of_these = format!("WHERE image IN (SELECT id FROM image {wanted})");
    let mut layers = conn.prepare_cached(&format!("{LAYERS} {of_these} ORDER BY image, position"))?;
    let mut rows = layers.query(values())?;
    while let Some(row) = rows.next()? {
        if let Some(image) = places.get(row.get_ref(3)?.as_str()?).and_then(|&place| images.get_mut(place)) {
            image.layers.push(read_layer(row)?);
        }
    }
    let mut names = conn.prepare_cached(&format!("SELECT image, name FROM image_name {of_these} ORDER BY name"))?;
    let mut rows = names.query(values())?;
    while let Some(row) = rows.next()? {
        if let Some(image) = places.get(row.get_ref(0)?.as_str()?).and_then(|&place| images.get_mut(place)) {
            image.names.push(row.get(1)?);
        }
    }
    Ok(images)
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<ImageRow> {
    let mut columns = Columns::new(row);
    Ok(ImageRow {
        id: columns.parsed()?,
        config: columns.parsed()?,
        format: columns.named(ImageFormat::from_name)?,
        size: columns.get()?,
        imported: Timestamp(columns.get()?),
        last_used: Timestamp(columns.get()?),
        layers: Vec::new(),
        names: Vec::new(),
    })
}

fn read_layer(row: &rusqlite::Row<'_>) -> rusqlite::Result<LayerRef> {
    let mut columns = Columns::new(row);
    Ok(LayerRef { chain: columns.parsed()?, diff_id: columns.parsed()?, blob: columns.parsed()? })
}
