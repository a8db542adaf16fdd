//! Logs of gantryd, in the namespace `system`.

use gantry_proto::talos::common::Data;

use crate::daemon_log::DaemonLogSlice;

/// A message of the lines with their times, after the number of those that the client missed.
pub(super) fn encode(slice: &DaemonLogSlice) -> Vec<Data> {
    let mut bytes = Vec::new();
    if slice.missed > 0 {
        let text = format!("warning: {} lines were dropped: the client reads too slowly\n", slice.missed);
        bytes.extend_from_slice(text.as_bytes());
    }
    for line in &slice.lines {
        // A line of JSON has its time.
        if !line.text.starts_with(b"{") {
            bytes.extend_from_slice(format!("{} ", line.at.rfc3339()).as_bytes());
        }
        bytes.extend_from_slice(&line.text);
        bytes.push(b'\n');
    }
    vec![Data { metadata: None, bytes }]
}
