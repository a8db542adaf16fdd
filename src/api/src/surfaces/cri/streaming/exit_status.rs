//! The end of a remote command as the error channel reports it: a `metav1.Status` of Kubernetes, or only a text.

use serde::Serialize;

/// `metav1.Status`, as far as clients read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ExitStatus {
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Cause {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    message: String,
}

impl ExitStatus {
    /// The command has exited with code 0, or its output has ended.
    pub(super) fn success() -> Self {
        Self { status: "Success", message: String::new(), reason: None, details: None, code: None }
    }

    /// The command has exited with this code.
    pub(super) fn exited(command: &[String], code: i32) -> Self {
        if code == 0 {
            return Self::success();
        }
        let command = command.join(" ");
        Self {
            status: "Failure",
            message: format!(
                "command terminated with non-zero exit code: error executing command [{command}], exit code {code}"
            ),
            reason: Some("NonZeroExitCode"),
            details: Some(Details { causes: vec![Cause { reason: Some("ExitCode"), message: code.to_string() }] }),
            code: None,
        }
    }

    /// The command could not be run.
    pub(super) fn failed(why: &str) -> Self {
        Self {
            status: "Failure",
            message: format!("Internal error occurred: {why}"),
            reason: Some("InternalError"),
            details: Some(Details { causes: vec![Cause { reason: None, message: why.to_owned() }] }),
            code: Some(500),
        }
    }

    /// The bytes of the error channel. `None`: nothing is sent.
    pub(super) fn encode(&self, has_status: bool) -> Option<Vec<u8>> {
        match (has_status, self.reason) {
            // A structure of texts and numbers always has a JSON form.
            (true, _) => serde_json::to_string(self).ok().map(|text| escape(&text).into_bytes()),
            (false, None) => None,
            (false, Some(_)) => Some(self.message.clone().into_bytes()),
        }
    }
}

/// Escapes the characters that Go's encoder escapes, which occur only in texts.
fn escape(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_form_of_kubernetes() {
        let text = |status: &ExitStatus| String::from_utf8(status.encode(true).unwrap()).unwrap();
        assert_eq!(text(&ExitStatus::exited(&["true".into()], 0)), r#"{"status":"Success"}"#);
        let three = ExitStatus::exited(&["sh".into(), "-c".into(), "exit 3".into()], 3);
        assert_eq!(
            text(&three),
            r#"{"status":"Failure","message":"command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#
        );
        assert_eq!(
            text(&ExitStatus::failed("no such file")),
            r#"{"status":"Failure","message":"Internal error occurred: no such file","reason":"InternalError","details":{"causes":[{"message":"no such file"}]},"code":500}"#
        );
        assert_eq!(ExitStatus::success().encode(false), None);
        assert_eq!(three.encode(false).unwrap(), three.message.as_bytes());
    }
}
