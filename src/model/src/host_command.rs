//! Commands of the host as pods: one app in a host pod.

use crate::id::shown;
use crate::spec::{PodFlavor, PodSpec, SpecError};
use crate::{AppName, AppSpec};

/// The annotation of a pod with the command line that it was made of.
pub const COMMAND_ANNOTATION: &str = "gantry/command";

/// The annotation of a pod with the remark of its caller.
pub const COMMENT_ANNOTATION: &str = "gantry/comment";

/// The host pod of a command. `line`: its command line as given, of which `words` are the parts.
///
/// # Errors
/// [`SpecError`]: there are no words, or the pod would be invalid.
pub fn host_command_spec(line: &str, words: Vec<String>) -> Result<PodSpec, SpecError> {
    let program = words.first().ok_or_else(|| SpecError::new("the command is empty"))?;
    let file_name = program.rsplit('/').next().unwrap_or(program);
    let name = AppName::sanitized(file_name).ok_or_else(|| {
        SpecError::new(format!("'{}' gives its app no name: it has neither letters nor digits", shown(program)))
    })?;
    let app = AppSpec { args: words, ..AppSpec::new(name, None) };
    let mut spec = PodSpec { apps: vec![app], flavor: PodFlavor::Host, ..PodSpec::default() };
    spec.user_annotations.insert(COMMAND_ANNOTATION.to_owned(), line.to_owned());
    spec.validate()?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apps_are_named_after_their_program() {
        let spec = |words: &[&str]| host_command_spec("x", words.iter().map(ToString::to_string).collect());
        let pod = spec(&["/bin/My_Tool", "a b"]).unwrap();
        assert_eq!((pod.apps[0].name.as_str(), &pod.apps[0].args[1..]), ("my-tool", &["a b".to_owned()][..]));
        assert!(spec(&["/"]).is_err() && spec(&[]).is_err());
    }
}
