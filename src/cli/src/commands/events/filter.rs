//! `--filter KEY=VALUE` of `gantry events`: an event matches if every key matches; a key matches if any of its values
//! does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use gantry_engine::{Engine, ImageError, PodError};
use gantry_model::id::shown;
use gantry_model::{AppName, EventKind, EventSubject, ImageId, ImageRef, NewEvent, PodId, PodPrefix};

use crate::failure::Failure;
use crate::image_names;

/// The keys.
pub(crate) const KEYS: [&str; 6] = ["type", "id", "name", "pod", "app", "image"];

/// A condition as typed, before pods and images are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The event has this kind.
    Type(EventKind),
    /// The id of the pod or image has this prefix.
    Id(String),
    /// The event has this name.
    Name(String),
    /// The event is about this pod or its apps.
    Pod(String),
    /// The event is about an app of this name.
    App(AppName),
    /// The event is about this image, or about an app that runs it.
    Image(String),
}

/// Reads `KEY=VALUE`.
pub(crate) fn parse(text: &str) -> Result<Condition, String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("expected KEY=VALUE with {}", keys()))?;
    if value.is_empty() {
        return Err(format!("the value of '{}' is missing", shown(key)));
    }
    let value = value.to_owned();
    match key {
        "type" => kind(&value).map(Condition::Type),
        "id" => id(&value).map(Condition::Id),
        "name" => Ok(Condition::Name(value)),
        "pod" => Ok(Condition::Pod(value)),
        "app" => value.parse().map(Condition::App).map_err(|error| error.to_string()),
        "image" => Ok(Condition::Image(value)),
        _ => Err(format!("'{}' is not a key: expected {}", shown(key), keys())),
    }
}

fn keys() -> String {
    format!("one of {}", KEYS.join(", "))
}

/// Parses a kind of events, by gantry's name or by rkt's: `pod-exited`, `POD_EXITED`, `EVENT_TYPE_POD_EXITED`.
fn kind(text: &str) -> Result<EventKind, String> {
    let name = text.to_ascii_lowercase().replace('_', "-");
    EventKind::from_name(name.strip_prefix("event-type-").unwrap_or(&name)).ok_or_else(|| {
        let all = EventKind::ALL.map(EventKind::as_str).join(", ");
        format!("'{}' is not a type of events: expected one of {all}", shown(text))
    })
}

fn id(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.strip_prefix("sha256:").or_else(|| lower.strip_prefix("sha512:"));
    let is_hex = |digits: &str| digits.bytes().all(|c| c.is_ascii_hexdigit());
    if digits.map_or_else(|| text.parse::<PodPrefix>().is_ok() || is_hex(&lower), is_hex) {
        Ok(lower)
    } else {
        Err(format!("'{}' is not the id of a pod or image, or the beginning of one", shown(text)))
    }
}

/// A condition after pods and images were looked up.
#[derive(Debug)]
enum Test {
    Kind(EventKind),
    /// The complete id.
    Id(String),
    IdPrefix(String),
    /// Pods that were removed, or do not exist yet.
    Pods(RemovedOrLaterPods),
    Name(String),
    App(AppName),
    Image {
        typed: String,
        found: Option<ImageId>,
    },
}

/// The removed pods that a word means, and those that it will mean. Matches events of their apps, too.
#[derive(Debug)]
struct RemovedOrLaterPods {
    name: String,
    /// The word as the prefix of an id.
    prefix: Option<PodPrefix>,
    /// The ids in events so far. Only events of the pod have its name, those of its apps have its id only.
    ids: RefCell<BTreeSet<String>>,
}

impl RemovedOrLaterPods {
    fn holds(&self, event: &NewEvent) -> bool {
        let subject = event.kind.subject();
        if !matches!(subject, EventSubject::Pod | EventSubject::App) {
            return false;
        }
        let mut ids = self.ids.borrow_mut();
        if subject == EventSubject::Pod && event.name == self.name {
            ids.insert(event.id.clone());
        }
        ids.contains(&event.id) || self.prefix.as_ref().is_some_and(|prefix| event.id.starts_with(prefix.as_str()))
    }
}

/// All conditions, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Filter(BTreeMap<&'static str, Vec<Test>>);

/// Looks up pods and images.
trait PodsAndImages {
    /// The pod whose id has this prefix. `None`: there is none; it may have been removed, or be created later.
    fn pod(&self, prefix: &PodPrefix) -> Result<Option<PodId>, Failure>;
    /// The pod that other commands find by this word. `None`: there is none.
    fn pod_named(&self, text: &str) -> Result<Option<PodId>, Failure>;
    /// The ids of the pods, removed ones too, that have this name in an event, or whose id has this prefix.
    fn pods_in_events(&self, name: &str, prefix: Option<&PodPrefix>) -> Result<BTreeSet<String>, Failure>;
    /// The image of this name. `None`: there is none, or several.
    fn image(&self, text: &str) -> Result<Option<ImageId>, Failure>;
}

impl PodsAndImages for Engine {
    fn pod(&self, prefix: &PodPrefix) -> Result<Option<PodId>, Failure> {
        match self.resolve(prefix) {
            Err(PodError::NotFound(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    fn pod_named(&self, text: &str) -> Result<Option<PodId>, Failure> {
        match self.find_pod(text) {
            Err(PodError::NotFound(_) | PodError::NoSuchPod(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    fn pods_in_events(&self, name: &str, prefix: Option<&PodPrefix>) -> Result<BTreeSet<String>, Failure> {
        Ok(self.pods_in_events(name, prefix)?)
    }

    fn image(&self, text: &str) -> Result<Option<ImageId>, Failure> {
        let reference: ImageRef = text.parse()?;
        match self.image_find(&reference) {
            Err(ImageError::NotFound(_) | ImageError::Ambiguous { .. }) => Ok(None),
            found => Ok(Some(found?.id)),
        }
    }
}

impl Filter {
    /// Looks up the pods and images of the conditions. With `follows`, a pod may be created later.
    pub(crate) fn resolve(conditions: &[Condition], engine: &Engine, follows: bool) -> Result<Self, Failure> {
        Self::with(conditions, engine, follows)
    }

    fn with(conditions: &[Condition], names: &dyn PodsAndImages, follows: bool) -> Result<Self, Failure> {
        let mut filter = Self::default();
        for condition in conditions {
            let (key, test) = match condition {
                Condition::Type(kind) => ("type", Test::Kind(*kind)),
                Condition::Id(id) => ("id", by_id(id, names)?),
                Condition::Name(name) => ("name", Test::Name(name.clone())),
                Condition::Pod(text) => ("pod", by_pod(text, names, follows)?),
                Condition::App(app) => ("app", Test::App(app.clone())),
                Condition::Image(typed) => ("image", Test::Image { found: names.image(typed)?, typed: typed.clone() }),
            };
            filter.0.entry(key).or_default().push(test);
        }
        Ok(filter)
    }

    /// Whether the event matches.
    pub(crate) fn holds(&self, event: &NewEvent) -> bool {
        self.0.values().all(|any| any.iter().any(|test| test.holds(event)))
    }
}

/// A prefix of several existing pods is an error. A prefix of none is matched as a prefix, because it may be that of
/// removed pods.
fn by_id(id: &str, names: &dyn PodsAndImages) -> Result<Test, Failure> {
    let Ok(prefix) = id.parse::<PodPrefix>() else {
        // The id of an image: longer than a pod's, or with its algorithm.
        return Ok(Test::IdPrefix(id.to_owned()));
    };
    Ok(match names.pod(&prefix)? {
        Some(id) => Test::Id(id.to_string()),
        None => Test::IdPrefix(prefix.to_string()),
    })
}

/// The pod that other commands find by this word, else the pods that events tell of.
fn by_pod(text: &str, names: &dyn PodsAndImages, follows: bool) -> Result<Test, Failure> {
    if let Some(id) = names.pod_named(text)? {
        return Ok(Test::Id(id.to_string()));
    }
    let prefix = text.parse::<PodPrefix>().ok();
    let ids = names.pods_in_events(text, prefix.as_ref())?;
    if ids.is_empty() && !follows {
        return Err(PodError::NoSuchPodInEvents(text.to_owned()).into());
    }
    Ok(Test::Pods(RemovedOrLaterPods { name: text.to_owned(), prefix, ids: ids.into() }))
}

impl Test {
    fn holds(&self, event: &NewEvent) -> bool {
        match self {
            Self::Kind(kind) => event.kind == *kind,
            Self::Id(id) => event.id == *id,
            Self::IdPrefix(prefix) => id_has_prefix(&event.id, prefix),
            Self::Pods(pods) => pods.holds(event),
            Self::Name(name) => {
                event.name == *name
                    || (is_image_event(event) && image_names::any_form(&event.name, |form| form == name))
            }
            Self::App(name) => event.kind.subject() == EventSubject::App && event.name == name.as_str(),
            Self::Image { typed, found } => {
                // Events of apps and of images have the image's id among their data.
                let Some(id) = event.data.get("image_id") else { return false };
                found.as_ref().is_some_and(|found| found.to_string() == *id)
                    || id_has_prefix(id, typed)
                    || (is_image_event(event) && image_names::any_form(&event.name, |form| form == typed))
            }
        }
    }
}

fn is_image_event(event: &NewEvent) -> bool {
    event.kind.subject() == EventSubject::Image
}

/// Whether an id has this prefix, with or without its algorithm.
fn id_has_prefix(id: &str, text: &str) -> bool {
    id.starts_with(text) || id.split_once(':').is_some_and(|(_, hex)| hex.starts_with(text))
}

#[cfg(test)]
mod tests {
    use super::super::tests::event;
    use super::*;
    use EventKind::{AppExited, AppStarted, ImageImported, PodExited, PodStarted};

    const POD: &str = "6733c088-a507-4694-aabf-ec79c0a8ac9a";
    const GONE: &str = "abcdef01-a507-4694-aabf-ec79c0a8ac9a";

    /// One pod, and one image that is found by name.
    struct World;

    impl PodsAndImages for World {
        fn pod(&self, prefix: &PodPrefix) -> Result<Option<PodId>, Failure> {
            Ok(if POD.starts_with(prefix.as_str()) { POD.parse().ok() } else { None })
        }

        fn pod_named(&self, text: &str) -> Result<Option<PodId>, Failure> {
            match text.parse::<PodPrefix>() {
                Ok(prefix) => self.pod(&prefix),
                Err(_) => Ok(if text == "shop" { POD.parse().ok() } else { None }),
            }
        }

        fn pods_in_events(&self, name: &str, prefix: Option<&PodPrefix>) -> Result<BTreeSet<String>, Failure> {
            let is_meant = name == "old" || prefix.is_some_and(|prefix| GONE.starts_with(prefix.as_str()));
            Ok(is_meant.then(|| GONE.to_owned()).into_iter().collect())
        }

        fn image(&self, text: &str) -> Result<Option<ImageId>, Failure> {
            Ok(if text == "web" { digest('1').parse().ok() } else { None })
        }
    }

    fn digest(c: char) -> String {
        format!("sha256:{}", c.to_string().repeat(64))
    }

    #[test]
    fn conditions_select_events() {
        let (one, two) = (digest('1'), digest('2'));
        let events = [
            event(ImageImported, &one, "docker.io/library/web:1.2", &[("image_id", &one)]),
            event(ImageImported, &two, "host:5000/other/web", &[("image_id", &two)]),
            event(PodStarted, POD, POD, &[]),
            event(AppStarted, POD, "web", &[("image_id", &one)]),
            event(AppExited, POD, "log", &[("image_id", &two)]),
            event(PodExited, POD, POD, &[]),
            event(PodExited, GONE, GONE, &[]),
            event(EventKind::ImageRemoved, "sha512:3", "host/tool@sha512:3", &[("image_id", "sha512:3")]),
            event(EventKind::ScheduleEnabled, "abcdef", "abcdef", &[]),
        ];
        let rows: [(&[&str], &[usize]); 28] = [
            (&[], &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
            (&["name=abcdef"], &[8]),
            (&["image=tool"], &[7]),
            (&["type=pod-exited"], &[5, 6]),
            (&["type=POD_EXITED", "type=EVENT_TYPE_POD_STARTED"], &[2, 5, 6]),
            (&["type=pod-exited", "pod=6733"], &[5]),
            (&["pod=6733C088"], &[2, 3, 4, 5]),
            (&["pod=abcdef"], &[6]),
            (&["pod=shop"], &[2, 3, 4, 5]),
            (&["pod=old"], &[6]),
            (&["id=2222"], &[1]),
            (&["id=6733", "id=abcdef01"], &[2, 3, 4, 5, 6]),
            (&["id=sha256:1111"], &[0]),
            (&["id=222222222222"], &[1]),
            (&[&format!("id={two}")], &[1]),
            (&[&format!("id={}", &two[7..])], &[1]),
            (&["name=web"], &[0, 1, 3]),
            (&["name=docker.io/library/web:1.2"], &[0]),
            (&[&format!("name={POD}")], &[2, 5]),
            (&["app=web"], &[3]),
            (&["app=web", "app=log", "type=app-exited"], &[4]),
            (&["image=web"], &[0, 1, 3]),
            (&["image=library/web"], &[0]),
            (&["image=web:1.2"], &[0]),
            (&["image=eb"], &[]),
            (&["image=222222222222"], &[1, 4]),
            (&["image=web", "pod=6733"], &[3]),
            (&["image=sha256:2222", "type=image-imported"], &[1]),
        ];
        for (texts, want) in rows {
            let conditions: Vec<_> = texts.iter().map(|text| parse(text).unwrap()).collect();
            let filter = Filter::with(&conditions, &World, false).unwrap();
            let got: Vec<usize> = (0..events.len()).filter(|i| filter.holds(&events[*i].event)).collect();
            assert_eq!(got, want, "{texts:?}");
        }
        for unknown in ["nowhere", "0", "2222"] {
            let failure = Filter::with(&[Condition::Pod(unknown.to_owned())], &World, false).unwrap_err();
            let text = failure.text(false).unwrap_or_default();
            assert!(text.contains(&format!("there is no pod '{unknown}', and no event of one")), "{text}");
        }
    }

    #[test]
    fn followed_pods_may_be_created_later() {
        let filter = Filter::with(&[parse("pod=later").unwrap()], &World, true).unwrap();
        let holds = |kind, id, name| filter.holds(&event(kind, id, name, &[]).event);
        assert!(!holds(AppStarted, POD, "later"), "an app of another pod has the name");
        assert!(holds(EventKind::PodPrepared, GONE, "later"));
        assert!(holds(AppStarted, GONE, "web"));
        assert!(!holds(PodExited, POD, POD));
        let filter = Filter::with(&[parse("pod=ab").unwrap()], &World, true).unwrap();
        assert!(filter.holds(&event(PodStarted, "ab000000-a507-4694-aabf-ec79c0a8ac9a", "x", &[]).event));
    }

    #[test]
    fn errors_list_valid_values() {
        for (text, want) in [
            ("type", "type, id, name, pod, app, image"),
            ("label=x", "type, id, name, pod, app, image"),
            ("type=died", "pod-exited, pod-starting, pod-start-failed, pod-garbage-collected"),
            ("id=", "value of 'id'"),
            ("id=xyz", "'xyz'"),
            ("id=sha256:xyz", "sha256:xyz"),
            ("app=X Y", "name"),
            ("\u{1b}=x", r"\u{1b}"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn the_manual_explains_every_type() {
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/gantry.1"));
        let items = page.lines().filter_map(|line| line.strip_prefix(".It Li "));
        let names: Vec<&str> = items.flat_map(|item| item.split(" , ")).collect();
        for kind in EventKind::ALL {
            assert!(names.contains(&kind.as_str()), "{}", kind.as_str());
        }
    }

    #[test]
    fn every_key_is_parsed() {
        for key in KEYS {
            let value = if key == "type" { "pod-exited" } else { "abc" };
            assert!(parse(&format!("{key}={value}")).is_ok(), "{key}");
        }
    }
}
