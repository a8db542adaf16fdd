//! Namespaces of pods, by which the Talos node API groups them. They are those of containerd, and isolate nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::IdError;

/// The label or annotation of a kubelet's pods with their namespace in Kubernetes.
pub const KUBERNETES_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The label or annotation of a kubelet's pods with their name in Kubernetes.
pub const KUBERNETES_NAME: &str = "io.kubernetes.pod.name";

/// The namespace of a pod. Its syntax is that of containerd (`pkg/identifiers`): letters and digits, with single '_',
/// '.' and '-' between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodNamespace(Cow<'static, str>);

impl PodNamespace {
    /// The namespace of pods without another one.
    pub const CONTAINERS: Self = Self(Cow::Borrowed("taloscontainers"));
    /// The namespace of pods that a kubelet makes.
    pub const KUBERNETES: Self = Self(Cow::Borrowed("k8s.io"));
    /// The namespace of gantryd and its parts, which no pod can have.
    pub const SYSTEM: &'static str = "system";
    const MAX_LENGTH: usize = 76;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is [`Self::CONTAINERS`].
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::CONTAINERS
    }
}

impl Default for PodNamespace {
    fn default() -> Self {
        Self::CONTAINERS
    }
}

impl fmt::Display for PodNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PodNamespace {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        // Lists have ten thousand of these two.
        if let Some(usual) = [Self::CONTAINERS, Self::KUBERNETES].into_iter().find(|usual| usual.as_str() == text) {
            return Ok(usual);
        }
        if text == Self::SYSTEM {
            return Err(IdError::SystemNamespace);
        }
        let mut parts = text.split(['_', '.', '-']);
        let fits = text.len() <= Self::MAX_LENGTH
            && parts.all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric()));
        if fits { Ok(Self(Cow::Owned(text.to_owned()))) } else { Err(IdError::PodNamespace(text.to_owned())) }
    }
}

impl TryFrom<String> for PodNamespace {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<PodNamespace> for String {
    fn from(namespace: PodNamespace) -> Self {
        namespace.0.into_owned()
    }
}

/// `NAMESPACE/NAME` of a pod in Kubernetes, from the labels or annotations that its kubelet gave it.
#[must_use]
pub fn kubernetes_id(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Option<String> {
    let value = |key| labels.get(key).or_else(|| annotations.get(key));
    Some(format!("{}/{}", value(KUBERNETES_NAMESPACE)?, value(KUBERNETES_NAME)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_validated_as_in_containerd() {
        for good in ["taloscontainers", "k8s.io", "a", "A-b_c.9", &"a".repeat(76)] {
            assert_eq!(good.parse::<PodNamespace>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "a--b", "a._b", "a/b", "a b", "ä", "a\n", &"a".repeat(77)] {
            let error = bad.parse::<PodNamespace>().unwrap_err().to_string();
            assert!(error.contains("is not the namespace of a pod") && !error.contains('\n'), "{error}");
        }
        let error = "system".parse::<PodNamespace>().unwrap_err().to_string();
        assert_eq!(error, "'system' is the namespace of gantryd: choose another one");
        assert!(serde_json::from_str::<PodNamespace>("\"system\"").is_err());
    }

    #[test]
    fn labels_of_a_kubelet_make_an_id() {
        let map =
            |pairs: &[(&str, &str)]| pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let (namespace, name) = ((KUBERNETES_NAMESPACE, "ns"), (KUBERNETES_NAME, "web"));
        assert_eq!(kubernetes_id(&map(&[namespace, name]), &map(&[])).as_deref(), Some("ns/web"));
        assert_eq!(kubernetes_id(&map(&[namespace]), &map(&[name])).as_deref(), Some("ns/web"));
        assert_eq!(kubernetes_id(&map(&[name]), &map(&[])), None);
    }
}
