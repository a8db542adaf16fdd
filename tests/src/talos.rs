//! Calls of the Talos node API by `tests/python/node_client.py`, which shares only the .proto files with gantry.

use serde_json::Value;

use crate::api::Served;
use crate::gantry::Gantry;
use crate::output::json_lines;
use crate::python::run_script;
use crate::running::Running;
use crate::wait::wait_for;

/// The exit code of a client whose call failed.
pub const FAILED: i32 = 3;

/// A gantryd that serves both APIs, and the address of the Talos node API.
#[track_caller]
#[must_use]
pub fn serve(g: &Gantry) -> (Served, String) {
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    (g.serve(&["--machine-listen", &address]), address)
}

/// The messages of a reply.
#[track_caller]
#[must_use]
pub fn call(address: &str, method: &str, request: &Value) -> Vec<Value> {
    json_lines(&run_script("node_client.py", &[address, method, &request.to_string()]).ok().stdout)
}

/// The only message of a unary reply.
///
/// # Panics
/// When the reply has no message, or several.
#[track_caller]
#[must_use]
pub fn message(address: &str, method: &str, request: &Value) -> Value {
    let replies = call(address, method, request);
    let messages = replies[0]["messages"].as_array().unwrap_or_else(|| panic!("no messages: {replies:?}"));
    assert_eq!(messages.len(), 1, "{replies:?}");
    messages[0].clone()
}

/// The code and the text of a call that fails.
#[track_caller]
#[must_use]
pub fn failure(address: &str, method: &str, request: &Value) -> (String, String) {
    let out = run_script("node_client.py", &[address, method, &request.to_string()]).exits(FAILED);
    let last = json_lines(&out.stdout).pop().unwrap_or_default();
    let text = |key: &str| last[key].as_str().unwrap_or_default().to_owned();
    (text("code"), text("details"))
}

/// The messages that a client prints up to the first one with this text, when its line is complete.
#[track_caller]
pub fn messages_until(client: &Running, text: &str) -> Vec<Value> {
    let lines = wait_for("a line with the text", || {
        let said = client.stdout();
        let found = said.find(text)?;
        let end = found + said[found..].find('\n')?;
        Some(said[..=end].to_owned())
    });
    json_lines(&lines)
}

/// The bytes of a stream of `common.Data`.
#[must_use]
pub fn stream_bytes(messages: &[Value]) -> Vec<u8> {
    messages.iter().filter_map(|message| message["bytes"].as_str()).flat_map(decode_base64).collect()
}

/// Decodes base64 with padding (RFC 4648, section 4).
#[must_use]
pub fn decode_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let bits: Vec<u8> = digits.flat_map(|digit| (0..6).rev().map(move |bit| u8::from(digit >> bit & 1 == 1))).collect();
    bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | bit)).collect()
}
