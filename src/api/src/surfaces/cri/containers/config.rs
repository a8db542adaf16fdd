//! The configuration of a container as the specification of an app.
//!
//! The command and the arguments are merged with the image's as kubelets expect it: `command` replaces the entrypoint
//! and the image's arguments, `args` replaces the image's arguments.

use gantry_engine::{Engine, ImageDetails, PodRow};
use gantry_model::id::{hex, shown};
use gantry_model::namespaces::PidMode;
use gantry_model::spec::{AddedAppSpec, AppSpec};
use gantry_model::systemd::{HALT_SIGNAL, SystemdMode};
use gantry_model::{AppName, ImageId, Kind, RequestedImage, signal};
use gantry_proto::cri::v1::{ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig, Signal};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::super::images::reference;
pub(super) use super::super::sandbox::unsupported;
use super::super::sandbox::user_namespace;
use super::fields::with_fields;
use super::record::ContainerRecord;
use super::{mounts, namespaces, resources, security};
use crate::request::check_text;
use crate::status::{from_error, invalid_field};

/// Bytes of the readable beginning of a name that is too long for an app.
const NAME_START: usize = 24;
const SIGTERM: u8 = 15;

/// The specification of the app.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED` with the field and the reason, and `NOT_FOUND` if the image is not in the
/// store.
pub(super) fn app_spec(engine: &Engine, sandbox: &PodRow, mut config: ContainerConfig) -> Result<AddedAppSpec, Status> {
    if config.windows.is_some() {
        return Err(unsupported("config.windows", "this is a Linux host"));
    }
    let metadata = config.metadata.clone().ok_or_else(|| invalid_field("config.metadata", "it is missing"))?;
    check_metadata(&metadata)?;
    mounts::resolve_images(engine, &mut config.mounts)?;
    let mut record = ContainerRecord::new(metadata, &config);
    let image = image(engine, config.image.clone())?;
    let details = details(engine, &image)?;
    let mut app = AppSpec::new(app_name(&record.metadata)?, Some(image));
    let mut command = config.command.into_iter();
    app.exec = command.next();
    app.args = command.chain(config.args).collect();
    app.working_dir = Some(config.working_dir).filter(|dir| !dir.is_empty());
    app.environment = config.envs.into_iter().map(variable).collect::<Result<_, _>>()?;
    app.stop_signal = stop_signal(config.stop_signal)?;
    (app.options.stdin, app.options.terminal) = (config.stdin, config.tty);
    // Without the directory there is no log of the caller's.
    if sandbox.log_dir.is_some() && !config.log_path.is_empty() {
        let parsed = config.log_path.parse();
        app.options.log_path = Some(parsed.map_err(|error| invalid("config.log_path", &error))?);
    }
    app.user_labels = config.labels.into_iter().collect();
    let LinuxContainerConfig { resources, security_context } = config.linux.unwrap_or_default();
    let options = security_context.as_ref().and_then(|context| context.namespace_options.as_ref());
    namespaces::translate(engine, sandbox, options, &mut app)?;
    security::translate(security_context, &mut app)?;
    resources::translate(resources.unwrap_or_default(), &mut app)?;
    record.config.stop_signal = signal_of_number(effective_stop_signal(&app, &details)).into();
    app.user_annotations = record.annotations(config.annotations)?;
    let mut spec = AddedAppSpec { app, volumes: Vec::new() };
    mounts::translate_devices(config.devices, &config.cdi_devices, &mut spec)?;
    mounts::translate(config.mounts, user_namespace(sandbox).as_ref(), &mut spec)?;
    Ok(spec)
}

/// INVALID_ARGUMENT: a field, and the error of its value.
pub(super) fn invalid(field: &str, error: &(impl std::error::Error + Kind)) -> Status {
    invalid_field(field, &with_fields(&error.to_string()))
}

fn details(engine: &Engine, image: &RequestedImage) -> Result<ImageDetails, Status> {
    let spec = ImageSpec { image: image.to_string(), ..ImageSpec::default() };
    engine.image_inspect(&reference(Some(spec))?).map_err(|error| from_error(&error))
}

fn check_metadata(metadata: &ContainerMetadata) -> Result<(), Status> {
    if metadata.name.is_empty() {
        return Err(invalid_field("config.metadata.name", "it is empty"));
    }
    check_text("config.metadata.name", &metadata.name)
}

/// The image by its id, so that it stays the same whatever becomes of its names.
fn image(engine: &Engine, spec: Option<ImageSpec>) -> Result<RequestedImage, Status> {
    let spec = spec.filter(|spec| !spec.image.is_empty());
    let id = stored_image(engine, &spec.ok_or_else(|| invalid_field("config.image", "it is missing"))?)?;
    RequestedImage::new(id.to_string()).ok_or_else(|| Status::internal("an image without an id"))
}

/// The id of an image.
///
/// # Errors
/// `INVALID_ARGUMENT` if it cannot be the name of an image, and `NOT_FOUND` if the image is not in the store.
pub(super) fn stored_image(engine: &Engine, spec: &ImageSpec) -> Result<ImageId, Status> {
    let found = engine.node_image(&reference(Some(spec.clone()))?).map_err(|error| from_error(&error))?;
    let missing = || Status::not_found(format!("image '{}' is not in the store", shown(&spec.image)));
    found.map(|image| image.id).ok_or_else(missing)
}

/// `NAME-ATTEMPT`. If that cannot be the name of an app, its end is a digest, which is longer than any attempt.
pub(super) fn app_name(metadata: &ContainerMetadata) -> Result<AppName, Status> {
    let ContainerMetadata { name, attempt } = metadata;
    if let Ok(name) = format!("{name}-{attempt}").parse() {
        return Ok(name);
    }
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update(attempt.to_be_bytes());
    let digest = hex(&hash.finalize()[..16]);
    let start: String = name.chars().filter(char::is_ascii_alphanumeric).take(NAME_START).collect();
    // Never fails: it has letters, digits and a dash, at most 63.
    let name = AppName::sanitized(&format!("c{start}-{digest}"));
    name.ok_or_else(|| invalid_field("config.metadata.name", "it cannot be the name of an app"))
}

fn variable(variable: KeyValue) -> Result<(String, String), Status> {
    let KeyValue { key, value } = variable;
    let text = String::from_utf8(value);
    let value = text.map_err(|_| invalid_field("config.envs", &format!("{} is not UTF-8", shown(&key))))?;
    Ok((key, value))
}

/// The number of a signal; `None`: the image's, or SIGTERM.
fn stop_signal(number: i32) -> Result<Option<u8>, Status> {
    let field = "config.stop_signal";
    let signal = Signal::try_from(number).map_err(|_| invalid_field(field, &format!("there is no signal {number}")))?;
    if signal == Signal::RuntimeDefault {
        return Ok(None);
    }
    let name = signal.as_str_name().trim_start_matches("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-");
    signal::parse(&name).map(Some).map_err(|error| invalid(field, &error))
}

/// The signal that stops the container: the requested one, the image's, or that of its kind of program.
fn effective_stop_signal(app: &AppSpec, image: &ImageDetails) -> u8 {
    let image = &image.config;
    let program = app.exec.as_ref().or(image.entrypoint.first()).or(app.args.first()).or(image.cmd.first());
    let is_systemd = app.options.systemd.resolve(program.map_or("", String::as_str)) == SystemdMode::Always;
    let default = if is_systemd && app.options.pid != PidMode::Host { HALT_SIGNAL } else { SIGTERM };
    app.stop_signal.or(image.stop_signal).unwrap_or(default)
}

/// The signal of the CRI with this number, by the first of its names.
fn signal_of_number(number: u8) -> Signal {
    let all = (0..).map_while(|value| Signal::try_from(value).ok());
    let mut named = all.filter(|signal| stop_signal((*signal).into()).is_ok_and(|found| found == Some(number)));
    named.next().unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_containers_are_unique() {
        let metadata = |name: &str, attempt| ContainerMetadata { name: name.to_owned(), attempt };
        assert_eq!(app_name(&metadata("web", 3)).unwrap().as_str(), "web-3");
        let names = [
            metadata("web", 1),
            metadata("web-1", 0),
            metadata("Web", 0),
            metadata("wEb", 0),
            metadata(&"x".repeat(63), 0),
            metadata(&"x".repeat(63), 1),
            metadata("ü", 0),
        ];
        let names: std::collections::BTreeSet<_> = names.iter().map(|metadata| app_name(metadata).unwrap()).collect();
        assert_eq!(names.len(), 7, "{names:?}");
    }

    #[test]
    fn every_signal_has_a_number() {
        for value in 0..=65 {
            let Ok(signal) = Signal::try_from(value) else { continue };
            let number = stop_signal(value).unwrap();
            assert_eq!(number.is_none(), signal == Signal::RuntimeDefault, "{signal:?}");
            assert!(number.is_none_or(|number| (1..=64).contains(&number)), "{signal:?}");
            // Some signals have two names.
            let named = number.map_or(Signal::RuntimeDefault, signal_of_number);
            assert_eq!(stop_signal(named.into()).unwrap(), number, "{signal:?}");
        }
        assert!(stop_signal(10_000).is_err());
    }
}
