//! Requests; the streams are tested by the server's tests.

use gantry_model::Timestamp;

use super::*;

#[test]
fn requests_become_queries() {
    let request = GetLogsRequest {
        pod_id: "6733".to_owned(),
        app_name: "web".to_owned(),
        lines: 5,
        follow: true,
        since_time: 1,
        until_time: 2,
    };
    let selection = LogSelection::parse(request.clone()).ok().unwrap();
    assert_eq!((selection.pod.as_str(), selection.app.as_str()), ("6733", "web"));
    let query = selection.query;
    assert_eq!((query.since, query.until), (Some(Timestamp(1_000_000_000)), Some(Timestamp(2_000_000_000))));
    assert_eq!((query.follow, query.tail_total, query.tail), (true, Some(5), None));
    for (request, want) in [
        (GetLogsRequest { lines: -1, ..request.clone() }, "lines: "),
        (GetLogsRequest { since_time: -1, ..request.clone() }, "since_time: "),
        (GetLogsRequest { until_time: -1, ..request.clone() }, "until_time: "),
        (GetLogsRequest { since_time: 3, ..request.clone() }, "until_time: it is before"),
        (GetLogsRequest { pod_id: "x".repeat(1 << 20), ..request.clone() }, "pod_id: a text may have"),
        (GetLogsRequest { app_name: "x".repeat(1 << 20), ..request }, "app_name: a text may have"),
    ] {
        let status = LogSelection::parse(request).err().unwrap();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(want), "{}", status.message());
    }
}
