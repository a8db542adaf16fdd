//! `resource.ResourceService`: pods, apps and images as resources, with their definitions, which name the columns that
//! `talosctl get` prints.
//!
//! A watcher gets all resources, then their changes. Commits to the store wake it; what it sends is the difference
//! between the resources that it has sent and those in the store. So a slow watcher skips states in between, and always
//! arrives at the last one.

mod rows;
mod watch;
mod yaml;

use gantry_engine::Observer;
use gantry_model::id::shown;
use gantry_proto::talos::resource::{Get, GetRequest, ListRequest, ListResponse, Metadata, Resource, Spec};
use tonic::Status;

pub(super) use self::watch::{WatchSelection, watch};
use self::yaml::{YamlValue, yaml};
use crate::request::check_text;

/// The namespace of pods, apps and images.
const RUNTIME: &str = "runtime";
/// The namespace of definitions.
const META: &str = "meta";

/// A type of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ResourceKind {
    Definition,
    Pod,
    App,
    Image,
}

impl ResourceKind {
    const ALL: [Self; 4] = [Self::Definition, Self::Pod, Self::App, Self::Image];

    /// The type and its aliases, the type first.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Definition => ["ResourceDefinitions.meta.cosi.dev", "resourcedefinitions", "rd"],
            Self::Pod => ["Pods.gantry.dev", "pods", "pod"],
            Self::App => ["Apps.gantry.dev", "apps", "app"],
            Self::Image => ["Images.gantry.dev", "images", "image"],
        }
    }

    fn display_type(self) -> &'static str {
        match self {
            Self::Definition => "ResourceDefinition",
            Self::Pod => "Pod",
            Self::App => "App",
            Self::Image => "Image",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Definition => META,
            Self::Pod | Self::App | Self::Image => RUNTIME,
        }
    }

    /// Column titles, and the values in the specification as JSON paths.
    fn columns(self) -> &'static [[&'static str; 2]] {
        match self {
            Self::Definition => &[["Aliases", "{.aliases[:]}"]],
            Self::Pod => &[["Name", "{.name}"], ["State", "{.state}"], ["Apps", "{.apps[:]}"]],
            Self::App => &[["State", "{.state}"], ["Image", "{.image}"], ["PID", "{.pid}"]],
            Self::Image => &[["Names", "{.names[:]}"], ["Size", "{.size}"]],
        }
    }

    /// The kind with this type or alias, in any case, in this namespace; in its own if none is given.
    fn parse(namespace: &str, name: &str) -> Result<Self, Status> {
        check_text("namespace", namespace)?;
        check_text("type", name)?;
        let is_named = |kind: &Self| kind.names().iter().any(|own| own.eq_ignore_ascii_case(name));
        let unknown = || Status::not_found(format!("resource \"{}\" is not registered", shown(name)));
        let kind = Self::ALL.into_iter().find(is_named).ok_or_else(unknown)?;
        if !["", kind.namespace()].contains(&namespace) {
            return Err(Status::not_found(format!("namespace \"{}\" is not registered", shown(namespace))));
        }
        Ok(kind)
    }

    /// Its definition.
    fn definition(self) -> ResourceRow {
        let [name, aliases @ ..] = self.names();
        let texts = |texts: &[&str]| YamlValue::Texts(texts.iter().map(ToString::to_string).collect());
        let columns = self.columns().iter().map(|[name, path]| {
            let text = |text: &str| YamlValue::Text(text.to_owned());
            vec![("name", text(name)), ("jsonPath", text(path))]
        });
        let spec = yaml(&[
            ("type", YamlValue::Text(name.to_owned())),
            ("displayType", YamlValue::Text(self.display_type().to_owned())),
            ("aliases", texts(&aliases)),
            ("allAliases", texts(&aliases)),
            ("printColumns", YamlValue::Objects(columns.collect())),
            ("defaultNamespace", YamlValue::Text(self.namespace().to_owned())),
        ]);
        ResourceRow { kind: Self::Definition, id: name.to_ascii_lowercase(), version: "1".to_owned(), spec }
    }
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ResourceRow {
    kind: ResourceKind,
    id: String,
    version: String,
    /// YAML.
    spec: Vec<u8>,
}

impl ResourceRow {
    fn into_wire(self) -> Resource {
        let metadata = Metadata {
            namespace: self.kind.namespace().to_owned(),
            r#type: self.kind.names()[0].to_owned(),
            id: self.id,
            version: self.version,
            phase: "running".to_owned(),
            finalizers: Vec::new(),
        };
        Resource { metadata: Some(metadata), spec: Some(Spec { yaml: self.spec }) }
    }
}

/// Get: one resource, by its id; a pod by its name, too.
///
/// # Errors
/// `NOT_FOUND` with Talos' texts if there is none, and the store's error if it cannot be read.
pub(super) fn get(observer: &Observer, request: &GetRequest) -> Result<Get, Status> {
    let GetRequest { namespace, r#type, id } = request;
    let kind = ResourceKind::parse(namespace, r#type)?;
    check_text("id", id)?;
    let row = rows::find(observer, kind, id)?.ok_or_else(|| {
        let (name, namespace) = (kind.names()[0], kind.namespace());
        Status::not_found(format!("resource {name}({namespace}/{}@undefined) doesn't exist", shown(id)))
    })?;
    let (definition, resource) = (kind.definition().into_wire(), row.into_wire());
    Ok(Get { metadata: None, definition: Some(definition), resource: Some(resource) })
}

/// List: the definition, then the resources, by id.
///
/// # Errors
/// `NOT_FOUND` with Talos' texts if there is none, and the store's error if it cannot be read.
pub(super) fn list(observer: &Observer, request: &ListRequest) -> Result<Vec<ListResponse>, Status> {
    let kind = ResourceKind::parse(&request.namespace, &request.r#type)?;
    let definition = kind.definition().into_wire();
    let definition = ListResponse { definition: Some(definition), ..ListResponse::default() };
    let resources = rows::read(observer, kind)?
        .into_iter()
        .map(|row| ListResponse { resource: Some(row.into_wire()), ..ListResponse::default() });
    Ok(std::iter::once(definition).chain(resources).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_aliases_and_namespaces() {
        assert_eq!(ResourceKind::parse("", "Pod").unwrap(), ResourceKind::Pod);
        assert_eq!(ResourceKind::parse("runtime", "apps.gantry.dev").unwrap(), ResourceKind::App);
        for (namespace, name, text) in [
            ("", "x", "resource \"x\" is not registered"),
            ("", "", "resource \"\" is not registered"),
            ("meta", "pods", "namespace \"meta\" is not registered"),
        ] {
            assert_eq!(ResourceKind::parse(namespace, name).unwrap_err().message(), text);
        }
    }

    #[test]
    fn definitions_name_the_columns() {
        let definition = ResourceKind::Image.definition();
        assert_eq!(definition.id, "images.gantry.dev");
        let spec = String::from_utf8(definition.spec).unwrap();
        assert!(spec.contains("printColumns:\n  - name: \"Names\"\n    jsonPath: \"{.names[:]}\"\n"), "{spec}");
    }
}
