//! `registries.conf` (containers-registries.conf(5), version 2): mirrors, other locations and blocks of prefixes.
//!
//! ```toml
//! [[registry]]
//! prefix = "docker.io/library"       # the longest prefix of an image's name counts; or *.example.com
//! location = "hub.example/library"   # replaces the prefix
//! insecure = false                   # plain http, and certificates that are not verified
//! blocked = false
//! mirror-by-digest-only = false
//! [[registry.mirror]]                # tried in the order of the file, the location last
//! location = "mirror.example:5000/hub"
//! insecure = true
//! pull-from-mirror = "all"           # or "digest-only", "tag-only"
//! ```
//!
//! A registry of `registries.conf.d/*.conf` replaces the one with the same prefix. Short names, credential helpers and
//! other keys are ignored: gantry completes short names from `default-registry` alone.

use std::path::{Path, PathBuf};

use gantry_host::file::is_absent;
use gantry_model::id::shown;
use gantry_model::{ImageRef, RegistryRef};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Endpoint, is_same_registry, parse_toml, read_configuration};
use crate::registry::error::RegistryError;
use crate::settings::Insecure;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    registry: Vec<RegistryTable>,
    /// Of version 1.
    registries: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RegistryTable {
    prefix: Option<String>,
    location: Option<String>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    blocked: bool,
    #[serde(default)]
    mirror_by_digest_only: bool,
    #[serde(default)]
    mirror: Vec<MirrorTable>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MirrorTable {
    location: String,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    pull_from_mirror: MirrorUse,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MirrorUse {
    #[default]
    #[serde(alias = "")]
    All,
    DigestOnly,
    TagOnly,
}

/// What applies to names with one prefix.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) prefix: String,
    /// The file that it is from.
    pub(super) file: PathBuf,
    table: RegistryTable,
}

/// Reads the file and those of the directory beside it.
pub(super) fn read_rules(path: &Path) -> Result<Vec<Rule>, RegistryError> {
    let mut dir = path.as_os_str().to_owned();
    dir.push(".d");
    let dir = PathBuf::from(dir);
    let mut paths = vec![path.to_owned()];
    match std::fs::read_dir(&dir) {
        Ok(entries) => {
            let failed = RegistryError::configuration_io(&dir);
            let found = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
            let mut found = found.map_err(failed)?;
            found.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
            found.sort();
            paths.extend(found);
        }
        Err(error) if is_absent(&error) => {}
        Err(error) => return Err(RegistryError::configuration_io(&dir)(error)),
    }
    let mut rules: Vec<Rule> = Vec::new();
    for path in paths {
        let Some(text) = read_configuration(&path)? else { continue };
        let file: File = parse_toml(&path, &text)?;
        if file.registries.is_some() {
            let why = "it is in version 1 of the format; write [[registry]] tables as version 2 has them";
            return Err(RegistryError::configuration(&path, why));
        }
        for table in file.registry {
            let rule = Rule::new(table, &path)?;
            rules.retain(|other| other.prefix != rule.prefix);
            rules.push(rule);
        }
    }
    Ok(rules)
}

/// The rule with the longest prefix of a name.
pub(super) fn find_rule<'a>(rules: &'a [Rule], reference: &RegistryRef) -> Option<&'a Rule> {
    let fitting = rules.iter().filter_map(|rule| Some((rule.matched(reference)?, rule)));
    // Of equal lengths, a whole host counts rather than a part of it.
    fitting
        .max_by_key(|(length, rule)| (*length, !rule.prefix.starts_with('*'), rule.prefix.len()))
        .map(|(_, rule)| rule)
}

impl Rule {
    fn new(table: RegistryTable, file: &Path) -> Result<Self, RegistryError> {
        let refused = |why: String| Err(RegistryError::configuration(file, why));
        for location in table.location.iter().chain(table.mirror.iter().map(|mirror| &mirror.location)) {
            if location.contains("://") {
                return refused(format!("location '{}': a scheme is not allowed", shown(location)));
            }
        }
        let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let Some(prefix) = full(&table.prefix).or_else(|| full(&table.location)) else {
            return refused("a [[registry]] has neither a prefix nor a location".to_owned());
        };
        let prefix = prefix.trim_end_matches('/').to_owned();
        if prefix.contains('*') && (!prefix.starts_with("*.") || prefix[1..].contains('*')) {
            return refused(format!("prefix '{}': a wildcard must be of the form *.example.com", shown(&prefix)));
        }
        Ok(Self { prefix, file: file.to_owned(), table })
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.table.blocked
    }

    /// The length of the part of a name that the prefix matches.
    fn matched(&self, reference: &RegistryRef) -> Option<usize> {
        let name = reference.to_string();
        let (host, path) = match self.prefix.split_once('/') {
            Some((host, path)) => (host, Some(path)),
            None => (self.prefix.as_str(), None),
        };
        match host.strip_prefix('*') {
            Some(domain) => {
                let bare = if domain.contains(':') { &reference.host } else { reference.host.split(':').next()? };
                (bare.len() > domain.len() && bare.ends_with(domain)).then_some(())?;
            }
            None => (reference.host == host).then_some(())?,
        }
        let Some(path) = path else { return Some(reference.host.len()) };
        let rest = name.get(reference.host.len() + 1..)?.strip_prefix(path)?;
        (rest.is_empty() || rest.starts_with(['/', ':', '@'])).then_some(reference.host.len() + 1 + path.len())
    }

    /// The mirrors for `reference`, and its location. `insecure` is what the caller allows for the registry itself.
    pub(super) fn endpoints(
        &self,
        reference: &RegistryRef,
        insecure: Insecure,
    ) -> Result<Vec<Endpoint>, RegistryError> {
        let by_digest = reference.digest.is_some();
        let mut found = Vec::new();
        for mirror in &self.table.mirror {
            let fits = match mirror.pull_from_mirror {
                MirrorUse::All => by_digest || !self.table.mirror_by_digest_only,
                MirrorUse::DigestOnly => by_digest,
                MirrorUse::TagOnly => !by_digest,
            };
            if fits {
                found.push(self.endpoint(reference, &mirror.location, mirror.insecure, insecure)?);
            }
        }
        let last = match self.table.location.as_deref().filter(|location| !location.is_empty()) {
            Some(location) => self.endpoint(reference, location, self.table.insecure, insecure)?,
            None => {
                let insecure =
                    Insecure { http: insecure.http | self.table.insecure, tls: insecure.tls | self.table.insecure };
                Endpoint::of(reference, insecure)
            }
        };
        found.push(last);
        Ok(found)
    }

    /// The endpoint of `reference` with its prefix replaced by `location`.
    fn endpoint(
        &self,
        reference: &RegistryRef,
        location: &str,
        relaxed: bool,
        allowed: Insecure,
    ) -> Result<Endpoint, RegistryError> {
        let name = reference.to_string();
        let rest = self.matched(reference).and_then(|length| name.get(length..)).unwrap_or_default();
        let moved = format!("oci://{}{rest}", location.trim_end_matches('/'));
        let Ok(ImageRef::Registry(moved)) = moved.parse() else {
            let why = format!("location '{}' does not make a name of {}", shown(location), shown(&name));
            return Err(RegistryError::configuration(&self.file, why));
        };
        let is_mirror = !is_same_registry(&moved.host, &reference.host);
        let allowed = if is_mirror { Insecure::default() } else { allowed };
        let insecure = Insecure { http: allowed.http | relaxed, tls: allowed.tls | relaxed };
        Ok(Endpoint { is_mirror, ..Endpoint::of(&moved, insecure) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)]) -> Result<Vec<Rule>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("registries.conf.d")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        read_rules(&dir.path().join("registries.conf")).map_err(|error| error.to_string())
    }

    fn reference(name: &str) -> RegistryRef {
        let Ok(ImageRef::Registry(reference)) = name.parse() else { panic!("{name} is no registry's") };
        reference
    }

    /// The names under which a reference is fetched, mirrors first.
    fn names(text: &str, name: &str) -> Vec<String> {
        let rules = rules(&[("registries.conf", text)]).unwrap();
        let reference = reference(name);
        let rule = find_rule(&rules, &reference).unwrap();
        let endpoints = rule.endpoints(&reference, Insecure::default()).unwrap();
        endpoints.iter().map(|e| format!("{}{}", if e.insecure.http { "!" } else { "" }, e.reference)).collect()
    }

    #[test]
    fn the_longest_prefix_counts() {
        let text = "[[registry]]\nprefix = 'a.example'\n[[registry]]\nprefix = 'a.example/x'\n\
                    [[registry]]\nlocation = 'a.example/x/y:1'\n[[registry]]\nprefix = '*.example'\n\
                    [[registry]]\nprefix = '*.b.example'\n[[registry]]\nprefix = 'a.example:5000'\n";
        let rules = rules(&[("registries.conf", text)]).unwrap();
        for (name, want) in [
            ("a.example/z:1", Some("a.example")),
            ("a.example/x:1", Some("a.example/x")),
            ("a.example/x/y:1", Some("a.example/x/y:1")),
            ("a.example/x/y:10", Some("a.example/x")),
            ("a.example/xy:1", Some("a.example")),
            ("a.example:5000/x:1", Some("a.example:5000")),
            ("b.example/x:1", Some("*.example")),
            ("c.b.example:99/x:1", Some("*.b.example")),
            ("example.com/x:1", None),
        ] {
            assert_eq!(find_rule(&rules, &reference(name)).map(|rule| rule.prefix.as_str()), want, "{name}");
        }
    }

    #[test]
    fn locations_replace_the_prefix() {
        let text = "[[registry]]\nprefix = 'docker.io/library'\nlocation = 'hub.example/lib'\n\
                    [[registry.mirror]]\nlocation = 'localhost:5000/m'\ninsecure = true\n\
                    [[registry.mirror]]\nlocation = 'digest.example'\npull-from-mirror = 'digest-only'\n\
                    [[registry.mirror]]\nlocation = 'tag.example'\npull-from-mirror = 'tag-only'\n";
        let want = ["!localhost:5000/m/app:1", "tag.example/app:1", "hub.example/lib/app:1"];
        assert_eq!(names(text, "docker.io/library/app:1"), want);
        let digest = format!("docker.io/library/app@sha256:{}", "ab".repeat(32));
        assert_eq!(names(text, &digest).len(), 3);
        assert!(names(text, &digest)[1].starts_with("digest.example/app@sha256:"));
        let text = "[[registry]]\nprefix = '*.example'\nmirror-by-digest-only = true\ninsecure = true\n\
                    [[registry.mirror]]\nlocation = 'm.test/all'\n";
        assert_eq!(names(text, "a.example/x/y:1"), ["!a.example/x/y:1"]);
        assert_eq!(names(text, &digest.replace("docker.io", "a.example")).len(), 2);
    }

    #[test]
    fn later_files_replace_a_prefix() {
        let one = ("registries.conf", "unqualified-search-registries = ['x']\n[[registry]]\nprefix = 'a.example'");
        let two = ("registries.conf.d/9.conf", "[[registry]]\nprefix = 'a.example/'\nblocked = true");
        let three = ("registries.conf.d/1.conf", "[aliases]\n'a' = 'b.example/a'\n");
        let rules = rules(&[one, two, three, ("registries.conf.d/ignored", "= =")]).unwrap();
        let [rule] = &rules[..] else { panic!("{rules:?}") };
        assert!(rule.is_blocked() && rule.file.ends_with("9.conf"), "{rule:?}");
    }

    #[test]
    fn malformed_files_are_errors() {
        for (text, want) in [
            ("= =", "line 1"),
            ("[[registry]]\ninsecure = true", "neither a prefix nor a location"),
            ("[[registry]]\nlocation = 'https://a.example'", "a scheme is not allowed"),
            ("[[registry]]\nprefix = 'a.*.example'", "a wildcard must be of the form"),
            ("[[registry]]\nprefix = 'a'\n[[registry.mirror]]\nlocation = 'b'\npull-from-mirror = 'no'", "line 5"),
            ("[registries.search]\nregistries = []", "version 1"),
        ] {
            let why = rules(&[("registries.conf", text)]).unwrap_err();
            assert!(why.contains(want) && why.contains("registries.conf"), "{text}: {why}");
        }
    }
}
