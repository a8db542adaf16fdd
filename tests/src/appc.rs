//! Validates manifests by the rules of appc's schema (0.8.11), as its Go types apply them on unmarshalling, in the
//! same order and with nearly the same messages. Go ignores unknown fields; here they are errors, because gantry must
//! not write any.

use serde_json::{Map, Value};

type Checked = Result<(), String>;

/// Checks a document against appc's `schema.PodManifest`.
///
/// # Errors
/// The first violation.
pub fn check_pod_manifest(document: &Value) -> Checked {
    let fields = [
        "acVersion",
        "acKind",
        "apps",
        "volumes",
        "isolators",
        "annotations",
        "ports",
        "userAnnotations",
        "userLabels",
    ];
    let pod = object("pod manifest", document, &fields)?;
    head(pod, "PodManifest")?;
    let apps = list(pod, "apps")?;
    apps.iter().try_for_each(check_runtime_app)?;
    unique("app", apps)?;
    let volumes = list(pod, "volumes")?;
    volumes.iter().try_for_each(check_volume)?;
    unique("volume", volumes)?;
    check_isolators(list(pod, "isolators")?)?;
    check_annotations(list(pod, "annotations")?)?;
    list(pod, "ports")?.iter().try_for_each(check_exposed_port)?;
    check_map(pod, "userAnnotations")?;
    check_map(pod, "userLabels")
}

/// Checks a document against appc's `schema.ImageManifest`.
///
/// # Errors
/// The first violation.
pub fn check_image_manifest(document: &Value) -> Checked {
    let fields = ["acKind", "acVersion", "name", "labels", "app", "annotations", "dependencies", "pathWhitelist"];
    let image = object("image manifest", document, &fields)?;
    head(image, "ImageManifest")?;
    check_identifier(text(image, "name")?)?;
    check_labels(list(image, "labels")?)?;
    image.get("app").map_or(Ok(()), check_app)?;
    check_annotations(list(image, "annotations")?)
}

fn head(document: &Map<String, Value>, kind: &str) -> Checked {
    let version = text(document, "acVersion")?;
    let numbers: Vec<_> = version.split(['+', '-']).next().unwrap_or_default().split('.').collect();
    if numbers.len() != 3 || numbers.iter().any(|number| number.parse::<u32>().is_err()) {
        return Err(format!("SemVer is bad: {version}"));
    }
    if text(document, "acKind")? == kind { Ok(()) } else { Err(format!("missing or bad ACKind (must be {kind:?})")) }
}

fn check_runtime_app(app: &Value) -> Checked {
    let app = object("app", app, &["name", "image", "app", "readOnlyRootFS", "mounts", "annotations"])?;
    check_name(text(app, "name")?)?;
    let image = object("image", app.get("image").unwrap_or(&Value::Null), &["name", "id", "labels"])?;
    if image.contains_key("name") {
        check_identifier(text(image, "name")?)?;
    }
    check_hash(text(image, "id")?)?;
    check_labels(list(image, "labels")?)?;
    app.get("app").map_or(Ok(()), check_app)?;
    boolean(app, "readOnlyRootFS")?;
    for mount in list(app, "mounts")? {
        let mount = object("mount", mount, &["volume", "path"])?;
        check_name(text(mount, "volume")?)?;
        not_empty("path", text(mount, "path")?)?;
    }
    check_annotations(list(app, "annotations")?)
}

fn check_app(app: &Value) -> Checked {
    let fields = [
        "exec",
        "eventHandlers",
        "user",
        "group",
        "supplementaryGIDs",
        "workingDirectory",
        "environment",
        "mountPoints",
        "ports",
        "isolators",
        "userAnnotations",
        "userLabels",
    ];
    let app = object("app", app, &fields)?;
    for word in list(app, "exec")? {
        word.as_str().ok_or("an element of exec is not a string")?;
    }
    not_empty("user", text(app, "user")?)?;
    not_empty("group", text(app, "group")?)?;
    list(app, "supplementaryGIDs")?.iter().try_for_each(|gid| number("gid", gid).map(drop))?;
    let dir = app.get("workingDirectory").and_then(Value::as_str).unwrap_or_default();
    if !dir.is_empty() && !dir.starts_with('/') {
        return Err("workingDirectory must be an absolute path".to_owned());
    }
    let environment = list(app, "environment")?;
    for variable in environment {
        let variable = object("variable", variable, &["name", "value"])?;
        check_variable(text(variable, "name")?)?;
        text(variable, "value")?;
    }
    unique("environment variable", environment)?;
    for point in list(app, "mountPoints")? {
        let point = object("mount point", point, &["name", "path", "readOnly"])?;
        check_name(text(point, "name")?)?;
        not_empty("path", text(point, "path")?)?;
        boolean(point, "readOnly")?;
    }
    list(app, "ports")?.iter().try_for_each(check_port)?;
    check_isolators(list(app, "isolators")?)?;
    check_map(app, "userAnnotations")?;
    check_map(app, "userLabels")
}

fn check_volume(volume: &Value) -> Checked {
    let fields = ["name", "kind", "source", "readOnly", "recursive", "mode", "uid", "gid"];
    let volume = object("volume", volume, &fields)?;
    check_name(text(volume, "name")?)?;
    boolean(volume, "readOnly")?;
    boolean(volume, "recursive")?;
    let has = |field: &str| volume.contains_key(field);
    match text(volume, "kind")? {
        "empty" if has("source") => Err("source for empty volume must be empty".to_owned()),
        "empty" if !(has("mode") && has("uid") && has("gid")) => Err("mode, uid or gid of empty volume".to_owned()),
        "empty" => {
            let mode = text(volume, "mode")?;
            number("uid", &volume["uid"])?;
            number("gid", &volume["gid"])?;
            u32::from_str_radix(mode, 8).map(drop).map_err(|error| format!("mode {mode}: {error}"))
        }
        "host" if has("mode") || has("uid") || has("gid") => Err("mode, uid or gid of host volume".to_owned()),
        "host" if !text(volume, "source")?.starts_with('/') => Err("source must be absolute path".to_owned()),
        "host" => Ok(()),
        other => Err(format!("unrecognized volume kind {other}")),
    }
}

fn check_exposed_port(port: &Value) -> Checked {
    let port = object("exposed port", port, &["name", "hostPort", "hostIP", "podPort"])?;
    check_name(text(port, "name")?)?;
    number("hostPort", port.get("hostPort").unwrap_or(&Value::Null))?;
    if port.contains_key("hostIP") {
        let ip = text(port, "hostIP")?;
        ip.parse::<std::net::IpAddr>().map_err(|error| format!("hostIP {ip}: {error}"))?;
    }
    port.get("podPort").map_or(Ok(()), check_port)
}

fn check_port(port: &Value) -> Checked {
    let port = object("port", port, &["name", "protocol", "port", "count", "socketActivated"])?;
    check_name(text(port, "name")?)?;
    // appc accepts any text; its specification lists these values, and rkt passes them on to CNI's portmap.
    let protocol = text(port, "protocol")?;
    if !["tcp", "udp", "sctp"].contains(&protocol) {
        return Err(format!("protocol {protocol}"));
    }
    let count = number("count", port.get("count").unwrap_or(&Value::from(1)))?;
    let port = number("port", port.get("port").unwrap_or(&Value::Null))?;
    if !(1..=65_535).contains(&port) || port + count > 65_536 {
        return Err(format!("port must be in 1-65535 range: {port} and {count}"));
    }
    Ok(())
}

/// appc also checks the isolators of an app for names unknown to the schema: their values are nil there.
fn check_isolators(isolators: &[Value]) -> Checked {
    let mut filters = 0;
    for isolator in isolators {
        let isolator = object("isolator", isolator, &["name", "value"])?;
        let name = text(isolator, "name")?;
        check_identifier(name)?;
        let value = isolator.get("value").unwrap_or(&Value::Null);
        match name {
            "resource/memory" | "resource/cpu" => {
                let value = object(name, value, &["default", "request", "limit"])?;
                for field in ["request", "limit"] {
                    let quantity = value.get(field).unwrap_or(&Value::Null);
                    let fits = quantity.as_str().is_some_and(|text| {
                        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                        !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit() || c == b'.')
                    });
                    if !(quantity.is_null() || fits) {
                        return Err(format!("{name}: quantity {quantity}"));
                    }
                }
                if value.get("default") == Some(&Value::Bool(true)) {
                    return Err("default must be false".to_owned());
                }
            }
            "os/linux/cpu-shares" => within(name, value, 2, 262_144)?,
            "os/linux/oom-score-adj" => within(name, value, -1000, 1000)?,
            "os/linux/no-new-privileges" => {
                value.as_bool().ok_or("no-new-privileges is no boolean")?;
            }
            "os/linux/capabilities-retain-set" | "os/linux/capabilities-remove-set" => {
                check_set(name, object(name, value, &["set"])?)?;
            }
            "os/linux/seccomp-retain-set" | "os/linux/seccomp-remove-set" => {
                filters += 1;
                let value = object(name, value, &["set", "errno"])?;
                check_set(name, value)?;
                let errno = value.get("errno").map_or(Some(""), Value::as_str).ok_or("errno is no text")?;
                let fits =
                    errno.starts_with('E') && errno.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
                if !(errno.is_empty() || fits) {
                    return Err(format!("errno {errno}"));
                }
            }
            other => return Err(format!("invalid isolator {other}")),
        }
    }
    if filters > 1 {
        Err("isolators set contains incompatible types".to_owned())
    } else {
        unique("isolator", isolators)
    }
}

fn check_set(name: &str, value: &Map<String, Value>) -> Checked {
    let set = list(value, "set")?;
    if set.is_empty() || !set.iter().all(Value::is_string) {
        return Err(format!("{name}: set must be non-empty, and of texts"));
    }
    Ok(())
}

fn check_annotations(annotations: &[Value]) -> Checked {
    for annotation in annotations {
        let annotation = object("annotation", annotation, &["name", "value"])?;
        check_identifier(text(annotation, "name")?)?;
        let value = text(annotation, "value")?;
        match text(annotation, "name")? {
            "created" if value.parse::<jiff::Timestamp>().is_err() => return Err(format!("bad Date: {value}")),
            "homepage" | "documentation" if !value.starts_with("http://") && !value.starts_with("https://") => {
                return Err("bad URL scheme, must be http/https".to_owned());
            }
            _ => {}
        }
    }
    unique("annotation", annotations)
}

fn check_labels(labels: &[Value]) -> Checked {
    const LINUX: [&str; 10] =
        ["amd64", "i386", "aarch64", "aarch64_be", "armv6l", "armv7l", "armv7b", "ppc64", "ppc64le", "s390x"];
    let (mut os, mut arch) = (None, None);
    for label in labels {
        let label = object("label", label, &["name", "value"])?;
        let (name, value) = (text(label, "name")?, text(label, "value")?);
        check_identifier(name)?;
        match name {
            "name" => return Err("invalid label name: \"name\"".to_owned()),
            "os" => os = Some(value),
            "arch" => arch = Some(value),
            _ => {}
        }
    }
    match (os, arch) {
        (Some("linux"), Some(arch)) if !LINUX.contains(&arch) => Err(format!("bad arch {arch} for linux")),
        (Some("freebsd" | "darwin"), Some(arch)) => Err(format!("not an image for Linux: {arch}")),
        (None, _) | (Some("linux" | "freebsd" | "darwin"), _) => unique("label", labels),
        (Some(os), _) => Err(format!("bad os {os}")),
    }
}

/// ACName: lower-case letters, digits and `-`; `-` is neither first nor last.
fn check_name(name: &str) -> Checked {
    characters("ACName", name, "-")
}

/// ACIdentifier: like ACName, with `-._~/`.
fn check_identifier(name: &str) -> Checked {
    characters("ACIdentifier", name, "-._~/")
}

fn characters(what: &str, name: &str, others: &str) -> Checked {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edge = |c: Option<char>| c.is_some_and(plain);
    if name.is_empty() {
        return Err(format!("{what} cannot be empty"));
    }
    if !name.chars().all(|c| plain(c) || others.contains(c)) {
        return Err(format!("{what} must contain only lower case alphanumeric characters plus {others:?}: {name:?}"));
    }
    if !(edge(name.chars().next()) && edge(name.chars().next_back())) {
        return Err(format!("{what} must start and end with only lower case alphanumeric characters: {name:?}"));
    }
    Ok(())
}

fn check_hash(hash: &str) -> Checked {
    match hash.split('-').collect::<Vec<_>>()[..] {
        ["sha512", ""] => Err("unexpected empty hash value".to_owned()),
        ["sha512", _] => Ok(()),
        [other, _] => Err(format!("unrecognized hash type: {other}")),
        _ => Err(format!("badly formatted hash string {hash}")),
    }
}

fn check_variable(name: &str) -> Checked {
    let mut letters = name.chars();
    let fits = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if fits { Ok(()) } else { Err(format!("environment variable does not have valid identifier {name:?}")) }
}

fn check_map(document: &Map<String, Value>, field: &str) -> Checked {
    match document.get(field) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(map)) if map.values().all(Value::is_string) => Ok(()),
        Some(other) => Err(format!("{field} is no object of texts: {other}")),
    }
}

fn object<'a>(what: &str, value: &'a Value, fields: &[&str]) -> Result<&'a Map<String, Value>, String> {
    let object = value.as_object().ok_or_else(|| format!("cannot unmarshal {value} into {what}"))?;
    match object.keys().find(|key| !fields.contains(&key.as_str())) {
        Some(unknown) => Err(format!("{what} has an unknown field {unknown}")),
        None => Ok(object),
    }
}

fn list<'a>(object: &'a Map<String, Value>, field: &str) -> Result<&'a [Value], String> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(format!("cannot unmarshal {other} into list {field}")),
    }
}

fn text<'a>(object: &'a Map<String, Value>, field: &str) -> Result<&'a str, String> {
    object.get(field).and_then(Value::as_str).ok_or_else(|| format!("{field} must be set, to a text"))
}

fn boolean(object: &Map<String, Value>, field: &str) -> Checked {
    let fits = object.get(field).is_none_or(|value| value.is_boolean() || value.is_null());
    if fits { Ok(()) } else { Err(format!("{field} is no boolean")) }
}

fn number(what: &str, value: &Value) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| format!("cannot unmarshal {value} into number {what}"))
}

fn within(what: &str, value: &Value, least: i64, most: i64) -> Checked {
    let fits = value.as_i64().is_some_and(|number| (least..=most).contains(&number));
    if fits { Ok(()) } else { Err(format!("{what} must be between {least} and {most}: {value}")) }
}

fn not_empty(what: &str, text: &str) -> Checked {
    if text.is_empty() { Err(format!("{what} must be set")) } else { Ok(()) }
}

fn unique(what: &str, items: &[Value]) -> Checked {
    let mut seen = std::collections::HashSet::new();
    match items.iter().filter_map(|item| item["name"].as_str()).find(|name| !seen.insert(*name)) {
        Some(twice) => Err(format!("duplicate {what} of name {twice:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_checked() {
        let good = json!({
            "acVersion": "0.8.11", "acKind": "PodManifest", "volumes": null, "isolators": [], "ports": null,
            "annotations": [{ "name": "rkt.kubernetes.io/uid", "value": "1" }],
            "apps": [{ "name": "a", "image": { "id": "sha512-ab", "name": "127.0.0.1_5000/a" },
                "app": { "exec": null, "user": "0", "group": "0" } }],
        });
        assert_eq!(check_pod_manifest(&good), Ok(()));
        let changed = |pointer: &str, value: Value| {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            check_pod_manifest(&bad)
        };
        for (pointer, value, want) in [
            ("/annotations", json!({ "a": "b" }), "cannot unmarshal"),
            ("/acKind", json!("ImageManifest"), "ACKind"),
            ("/acVersion", json!("1"), "SemVer"),
            ("/apps/0/name", json!("a_b"), "ACName must contain"),
            ("/apps/0/image/id", json!("sha256:ab"), "badly formatted"),
            ("/apps/0/image/id", json!("sha256-ab"), "unrecognized hash"),
            ("/apps/0/image/name", json!("127.0.0.1:5000/a"), "ACIdentifier must contain"),
            ("/apps/0/image/name", json!("a/"), "must start and end"),
            ("/apps/0/app/user", json!(""), "user must be set"),
            ("/apps/0/app", json!({ "user": "0" }), "group must be set"),
            ("/annotations/0/name", json!("A"), "ACIdentifier"),
        ] {
            let refused = changed(pointer, value).unwrap_err();
            assert!(refused.contains(want), "{pointer}: {refused}");
        }
        let image = json!({ "acVersion": "0.8.11", "acKind": "ImageManifest", "name": "a",
            "labels": [{ "name": "os", "value": "linux" }, { "name": "arch", "value": "x86_64" }] });
        assert!(check_image_manifest(&image).unwrap_err().contains("bad arch"));
    }
}
