//! One fetch: from an image reference to an image in the store.
//!
//! | reference | policy `never` | `new` | `update` | `newer` |
//! |---|---|---|---|---|
//! | id | the store's | the store's | the store's | the store's |
//! | `host/name:tag` | the store's or an error | the store's, else fetched | asked for; fetched when it differs | like `update`; the store's, with a warning, when the registry cannot be reached |
//! | `host/name@digest` | the store's or an error | the store's, else fetched | like `new`: a digest does not change | like `new` |
//! | short name | as its one full name in the store; else an id in the store; else as in the default registry; else an error that says what to write | | | |
//! | archive, layout, standard input | an error | imported | imported | imported |
//!
//! If a platform is requested, an image of `host/name` that is for another one does not count as the store's; one that
//! is given by its id, or by a name that no registry has, is refused.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use gantry_model::id::shown;
use gantry_model::image_ref::{ShortName, foreign_transport, repository_of};
use gantry_model::{ErrorKind, ImageRef, RegistryRef};
use gantry_store::{ImageRow, Store};

use crate::error::FetchError;
use crate::import::{import, unfit_platform};
use crate::local::{self, Local, LocalImages};
use crate::progress::{Note, Progress};
use crate::settings::Config;

/// When to ask the source of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PullPolicy {
    /// Never: only the store is used.
    Never,
    /// If the name is not in the store.
    #[default]
    New,
    /// Always; layers in the store are not fetched again.
    Update,
    /// Always; if the registry cannot be reached, the image in the store is used.
    Newer,
}

/// A fetched image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The image.
    pub image: ImageRow,
    /// The canonical name of the reference, or the id.
    pub name: String,
    /// Bytes of layers that were read from the source.
    pub downloaded: u64,
}

/// The context of a fetch.
pub(crate) struct Context<'a> {
    pub(crate) store: &'a Store,
    pub(crate) config: &'a Config,
    policy: PullPolicy,
    pub(crate) progress: &'a dyn Progress,
}

/// Ensures that the image of `reference` is in the store. `stdin` is read for [`ImageRef::Stdin`] only.
///
/// Threads are started for the layers and joined before this returns. After a kill at any point, layers without an
/// image are used by the next fetch or removed by garbage collection.
///
/// # Errors
/// [`FetchError`]; the first failure of several.
pub fn fetch(
    store: &Store,
    config: &Config,
    reference: &ImageRef,
    policy: PullPolicy,
    stdin: Option<&mut dyn Read>,
    progress: &dyn Progress,
) -> Result<Fetched, FetchError> {
    let context = Context { store, config, policy, progress };
    let fetched = match reference {
        ImageRef::Id(prefix) => context.by_id(prefix),
        ImageRef::Registry(reference) => context.registry(reference),
        ImageRef::Short(name) => context.short(name),
        local => context.local(local, stdin),
    }?;
    context.finish(fetched)
}

/// Imports all images of an archive or layout, each when the iterator reaches it. After an error, the images before it
/// are in the store.
///
/// # Errors
/// [`FetchError`]: the archive or layout cannot be read.
pub fn load<'a>(
    store: &'a Store,
    config: &'a Config,
    images: LocalImages<'_>,
    progress: &'a dyn Progress,
) -> Result<impl Iterator<Item = Result<Fetched, FetchError>> + use<'a>, FetchError> {
    let context = Context { store, config, policy: PullPolicy::New, progress };
    let images = local::open_all(store, images, &config.caps)?;
    Ok(images.map(move |local| context.finish(context.import(local?)?)))
}

/// Fetches an image from its registry, or a mirror of it, whatever the store has. Content in the store is not fetched
/// again, but the registry must have the image and grant access to it.
///
/// # Errors
/// [`FetchError`]; the first failure of several.
pub fn fetch_again(
    store: &Store,
    config: &Config,
    reference: &RegistryRef,
    progress: &dyn Progress,
) -> Result<Fetched, FetchError> {
    let context = Context { store, config, policy: PullPolicy::Update, progress };
    let fetched = context.download(reference, &reference.to_string())?;
    progress.notify(Note::Done { name: fetched.name.clone() });
    Ok(fetched)
}

impl Context<'_> {
    /// Records the use of a fetched image and reports the end of its fetch.
    fn finish(&self, fetched: Fetched) -> Result<Fetched, FetchError> {
        let touched = self.store.touch_image(&fetched.image.id, gantry_store::now());
        touched.map_err(FetchError::store("note the use of an image"))?;
        self.progress.notify(Note::Done { name: fetched.name.clone() });
        Ok(fetched)
    }

    fn by_id(&self, prefix: &str) -> Result<Fetched, FetchError> {
        let mut found = self.store.images_by_prefix(prefix).map_err(FetchError::store("look for an image"))?;
        match found.len() {
            0 => Err(FetchError::refused(
                ErrorKind::NotFound,
                format!("no image in the store has an id that begins with {prefix}"),
            )),
            1 => {
                let image = found.remove(0);
                self.stored(image.id.to_string(), image)
            }
            _ => {
                let ids: Vec<String> = found.iter().take(5).map(|image| image.id.to_string()).collect();
                let ids = ids.join(", ");
                Err(FetchError::refused(
                    ErrorKind::Invalid,
                    format!("several images have an id that begins with {prefix}: {ids}; give more digits"),
                ))
            }
        }
    }

    fn registry(&self, reference: &RegistryRef) -> Result<Fetched, FetchError> {
        let name = reference.to_string();
        let known = self.known(reference, &name)?;
        let asks = matches!(self.policy, PullPolicy::Update | PullPolicy::Newer);
        let settled = !asks || reference.digest.is_some();
        match (self.policy, known) {
            (_, Some(image)) if settled => Ok(Fetched { image, name, downloaded: 0 }),
            (PullPolicy::Never, _) => Err(FetchError::not_in_store(&name)),
            (_, known) => match (self.download(reference, &name), known) {
                (Err(error), Some(image)) if self.policy == PullPolicy::Newer && error.is_offline() => {
                    let why = gantry_model::error::chain(&error);
                    self.progress.notify(Note::Offline { name: name.clone(), why });
                    Ok(Fetched { image, name, downloaded: 0 })
                }
                (outcome, _) => outcome,
            },
        }
    }

    fn known(&self, reference: &RegistryRef, name: &str) -> Result<Option<ImageRow>, FetchError> {
        let looked = || FetchError::store("look for an image");
        let image = match (self.store.image_by_name(name).map_err(looked())?, &reference.digest) {
            // The same bytes under another name of this repository are the same image. Only its registry tells whether
            // another repository has them, and grants access to them there.
            (None, Some(digest)) => {
                let is_of_repository = |image: &ImageRow| image.names.iter().any(|name| reference.has_name(name));
                self.store.image(digest).map_err(looked())?.filter(is_of_repository)
            }
            (image, _) => image,
        };
        match image {
            Some(image) => Ok((self.is_usable(&image)? && unfit_platform(self.store, self.config, &image)?.is_none())
                .then_some(image)),
            None => Ok(None),
        }
    }

    /// Whether an image in the store needs no fetch. If nothing may be fetched, a damaged image counts as complete.
    fn is_usable(&self, image: &ImageRow) -> Result<bool, FetchError> {
        if self.policy == PullPolicy::Never {
            return Ok(true);
        }
        self.store.is_whole(image).map_err(FetchError::store("look at an image"))
    }

    /// An image of the store that no source has, so that it is not fetched for another platform either.
    fn stored(&self, name: String, image: ImageRow) -> Result<Fetched, FetchError> {
        match unfit_platform(self.store, self.config, &image)? {
            Some(platform) => Err(FetchError::other_platform(&name, &platform, self.config)),
            None => Ok(Fetched { image, name, downloaded: 0 }),
        }
    }

    fn short(&self, short: &ShortName) -> Result<Fetched, FetchError> {
        let mut names = self.full_names(short)?;
        if names.is_empty()
            && let Some(prefix) = short.id_prefix()
            && !self.store.images_by_prefix(prefix).map_err(FetchError::store("look for an image"))?.is_empty()
        {
            return self.by_id(prefix);
        }
        let preferred = self.config.default_registry.as_ref().map(|registry| short.within(registry));
        if let Some(preferred) = &preferred
            && (names.is_empty() || names.contains(&preferred.to_string()))
        {
            return self.registry(preferred);
        }
        match names.len() {
            0 if self.policy == PullPolicy::Never => Err(FetchError::not_in_store(&short.to_string())),
            0 => Err(no_registry(short)),
            1 => self.full(names.remove(0)),
            _ if short.digest.is_some() || self.is_one_image(&names)? => self.full(names.remove(0)),
            _ => {
                names.truncate(10);
                let (name, names) = (shown(&short.to_string()), names.join(", "));
                let message = format!("'{name}' may be any of {names}; write the whole name");
                Err(FetchError::refused(ErrorKind::Invalid, message))
            }
        }
    }

    /// The full names in the store that match a short one; only the name that equals it, if there is one. One with a
    /// digest matches the image with this digest if that has a name in the repository, by whatever tag.
    fn full_names(&self, short: &ShortName) -> Result<Vec<String>, FetchError> {
        let looked = || FetchError::store("look for an image");
        let (tail, mut names): (String, Vec<String>) = match &short.digest {
            Some(digest) => {
                let image = self.store.image(digest).map_err(looked())?;
                let names = image.into_iter().flat_map(|image| image.names).filter(|name| short.is_repository_of(name));
                let names = names.map(|name| format!("{}@{digest}", repository_of(&name))).collect();
                (format!("{}@{digest}", short.repository), names)
            }
            None => {
                let tag = short.tag.as_deref().unwrap_or("latest");
                let tail = format!("{}:{tag}", short.repository);
                let images = self.store.images_by_short(&short.repository, tag).map_err(looked())?;
                let means = |name: &String| *name == tail || name.ends_with(&format!("/{tail}"));
                let names = images.into_iter().flat_map(|image| image.names).filter(means).collect();
                (tail, names)
            }
        };
        if names.contains(&tail) {
            return Ok(vec![tail]);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn is_one_image(&self, names: &[String]) -> Result<bool, FetchError> {
        let mut ids = BTreeSet::new();
        for name in names {
            let image = self.store.image_by_name(name).map_err(FetchError::store("look for an image"))?;
            ids.insert(image.map(|image| image.id));
        }
        Ok(ids.len() == 1)
    }

    /// Finds an image in the store by one of its names; if that names a registry, the registry is asked as the policy
    /// says.
    fn full(&self, name: String) -> Result<Fetched, FetchError> {
        let found = match name.parse() {
            Ok(ImageRef::Registry(reference)) => return self.registry(&reference),
            Ok(ImageRef::Short(ShortName { digest: Some(digest), .. })) => self.store.image(&digest),
            // A name in the store may have any form.
            _ => self.store.image_by_name(&name),
        };
        match found.map_err(FetchError::store("look for an image"))? {
            Some(image) => self.stored(name, image),
            None => Err(FetchError::not_in_store(&name)),
        }
    }

    fn local(&self, reference: &ImageRef, stdin: Option<&mut dyn Read>) -> Result<Fetched, FetchError> {
        let shown = reference.to_string();
        self.progress.notify(Note::Resolving { name: shown });
        self.import(local::open(self.store, reference, stdin, &self.config.caps)?)
    }

    fn import(&self, local: Local) -> Result<Fetched, FetchError> {
        let (image, downloaded) = import(self.store, self.config, &*local.source, &local.naming, self.progress)?;
        let given = local.naming.names.into_iter().find(|name| image.names.contains(name));
        let name = given.unwrap_or_else(|| image.id.to_string());
        Ok(Fetched { image, name, downloaded })
    }
}

/// The error for a short name that neither the store nor a default registry completes.
fn no_registry(short: &ShortName) -> FetchError {
    let name = &short.to_string();
    let known = match short.id_prefix() {
        Some(_) => "no image in the store has that name, or an id that begins so",
        None if is_like_short_id(name) => "no image in the store has that name (an id needs 8 digits or more)",
        None => "no image in the store has that name",
    };
    let advice = match foreign_transport(name) {
        Some(advice) => advice.to_owned(),
        None if Path::new(name).exists() => format!("write ./{name} for the file"),
        None => format!(
            "write docker://{name} for Docker Hub, HOST/{name} for another registry, or set default-registry in \
             /etc/gantry/config.toml"
        ),
    };
    let name = shown(name);
    let message = format!("'{name}' names no registry, and {known}; {advice}");
    FetchError::refused(ErrorKind::Invalid, message)
}

/// Whether a name reads like the first digits of an id, and not like a word.
fn is_like_short_id(name: &str) -> bool {
    let is_hex = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex && name.len() >= 4 && name.bytes().any(|byte| byte.is_ascii_digit())
}
