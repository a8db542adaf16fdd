//! The configuration of talosctl: YAML with the certificates and the key in base64 of PEM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_model::ErrorKind;
use gantry_model::id::shown;

use super::files::encode_pem;
use super::key::KeyType;
use crate::EngineError;

/// The label that Talos gives the Ed25519 keys of its clients, in PKCS#8.
const TALOS_KEY_LABEL: &str = "ED25519 PRIVATE KEY";
/// The label of PKCS#8 (RFC 7468, section 10), which Go's TLS library reads, too.
const KEY_LABEL: &str = "PRIVATE KEY";

/// A configuration with one context.
pub(super) struct TalosConfig<'a> {
    pub(super) context: &'a str,
    /// `HOST` or `HOST:PORT`.
    pub(super) endpoints: &'a [String],
    /// In DER, as the others.
    pub(super) authority: &'a [u8],
    pub(super) certificate: &'a [u8],
    pub(super) key_type: KeyType,
    pub(super) key: &'a [u8],
}

impl TalosConfig<'_> {
    /// The text of the file. The endpoints are also the nodes, because talosctl refuses calls without a node.
    ///
    /// # Errors
    /// An endpoint is not an address.
    pub(super) fn render(&self) -> Result<String, EngineError> {
        let nodes = self.endpoints.iter().map(|endpoint| host(endpoint)).collect::<Result<Vec<_>, _>>()?;
        let endpoints: Vec<&str> = self.endpoints.iter().map(String::as_str).collect();
        let key_label = match self.key_type {
            KeyType::Ed25519 => TALOS_KEY_LABEL,
            KeyType::Ecdsa => KEY_LABEL,
        };
        let base64 = |label, der| STANDARD.encode(encode_pem(label, der));
        Ok(format!(
            "context: {context}\ncontexts:\n    {context}:\n        endpoints:{}\n        nodes:{}\n        ca: {}\n        \
             crt: {}\n        key: {}\n",
            list(&endpoints),
            list(&nodes),
            base64("CERTIFICATE", self.authority),
            base64("CERTIFICATE", self.certificate),
            base64(key_label, self.key),
            context = quoted(self.context),
        ))
    }
}

/// The host of an endpoint.
fn host(endpoint: &str) -> Result<&str, EngineError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    if endpoint.is_empty() || !endpoint.bytes().all(is_plain) {
        let text = format!("'{}' is not an address: HOST or HOST:PORT", shown(endpoint));
        return Err(EngineError::new(ErrorKind::Invalid, text));
    }
    if let Some((inner, _)) = endpoint.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return Ok(inner);
    }
    Ok(match endpoint.split_once(':') {
        // Several colons: an IPv6 address.
        Some((host, port)) if !port.contains(':') => host,
        Some(_) | None => endpoint,
    })
}

/// A YAML list.
fn list(items: &[&str]) -> String {
    if items.is_empty() {
        return " []".to_owned();
    }
    items.iter().map(|item| format!("\n            - {}", quoted(item))).collect()
}

/// A YAML string. The texts have no character that needs an escape.
fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_nodes_without_their_ports() {
        for (endpoint, want) in [
            ("a.example", "a.example"),
            ("10.0.0.1:6000", "10.0.0.1"),
            ("[fd00::1]:50000", "fd00::1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(host(endpoint).unwrap(), want);
        }
        for endpoint in ["", "a b", "a\"", "a\n"] {
            assert!(host(endpoint).is_err(), "{endpoint:?}");
        }
        let endpoints = ["10.0.0.1:6000".to_owned()];
        let key_type = KeyType::Ed25519;
        let config = TalosConfig {
            context: "a",
            endpoints: &endpoints,
            authority: &[1],
            certificate: &[2],
            key_type,
            key: &[3],
        };
        let text = config.render().unwrap();
        assert!(text.starts_with(
            "context: \"a\"\ncontexts:\n    \"a\":\n        endpoints:\n            - \"10.0.0.1:6000\"\n        nodes:\n            \
             - \"10.0.0.1\"\n        ca: LS0t"
        ), "{text}");
    }
}
