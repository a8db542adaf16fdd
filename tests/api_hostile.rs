//! Clients that send invalid or excessive requests, or never stop: each receives a clear status, memory stays bounded,
//! and other clients are served as usual.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gantry_proto::rkt::v1alpha::{
    EventFilter, GetLogsRequest, ImageFilter, KeyValue, ListPodsRequest, ListenEventsRequest, PodFilter,
};
use gantry_tests::api::{Api, Served};
use gantry_tests::{Gantry, pod_id};
use tonic::{Code, Status};

/// The time limit of another client's GetInfo under any load.
const SOON: Duration = Duration::from_secs(20);
/// The limit of the server's growth, in KiB.
const MAX_GROWTH_KIB: u64 = 96 * 1024;

fn pods() -> PodFilter {
    PodFilter::default()
}

fn images() -> ImageFilter {
    ImageFilter::default()
}

/// Does something hostile while another client repeats GetInfo: every call must return soon, and the server's memory
/// must stay within bounds.
#[track_caller]
fn while_serving<T>(served: &Served, what: &str, action: impl FnOnce() -> T) -> T {
    let before = served.rss_kib();
    let other = served.api();
    let over = AtomicBool::new(false);
    let (result, (calls, slowest)) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut calls, mut slowest) = (0, Duration::ZERO);
            while calls == 0 || !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                other.info();
                (calls, slowest) = (calls + 1, slowest.max(begin.elapsed()));
            }
            (calls, slowest)
        });
        let result = action();
        over.store(true, Ordering::Relaxed);
        (result, asking.join().unwrap())
    });
    let grown = served.rss_kib().saturating_sub(before);
    println!("{what}: {calls} calls beside it, the slowest {slowest:?}; {grown} KiB more");
    assert!(slowest < SOON, "{what}: a GetInfo beside it took {slowest:?}");
    assert!(grown < MAX_GROWTH_KIB, "{what}: {grown} KiB more");
    result
}

/// A readable status.
#[track_caller]
fn assert_status(what: &str, status: &Status, code: Code, text: &str) {
    assert_eq!(status.code(), code, "{what}: {status}");
    let message = status.message();
    assert!(message.contains(text), "{what}: '{text}' is not in {message:?}");
    assert!(message.len() < 2000, "{what}: {} bytes", message.len());
    assert!(!message.chars().any(char::is_control), "{what}: {message:?}");
}

#[test]
fn invalid_ids_are_rejected() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    // Until two ids share their first digit: at most seventeen pods.
    let mut made: Vec<String> = Vec::new();
    let digit = loop {
        let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
        let same = made.iter().any(|other| other[..1] == pod[..1]);
        made.push(pod.clone());
        if same {
            break pod[..1].to_owned();
        }
    };
    let long = "a".repeat(1 << 20);
    let half = "b".repeat(4000);
    let logs = |id: &str| {
        let request = GetLogsRequest { pod_id: id.to_owned(), ..GetLogsRequest::default() };
        api.try_logs(request).map(|mut logs| logs.try_next()).unwrap_or_else(Err).unwrap_err()
    };
    let many = format!("ambiguous uuid, {} matches", made.iter().filter(|pod| pod.starts_with(&digit)).count());
    for (what, id, code, text) in [
        (
            "unknown",
            "00000000-0000-4000-8000-000000000000",
            Code::NotFound,
            "no matches found for \"00000000-0000-4000-8000-000000000000\"",
        ),
        (
            "unknown, in capitals",
            "ABCDEF00-0000-4000-8000-000000000000",
            Code::NotFound,
            "no matches found for \"abcdef00-",
        ),
        ("no id", "zzz", Code::NotFound, "no matches found for \"zzz\""),
        ("half", &half, Code::NotFound, "no matches found"),
        ("empty", "", Code::InvalidArgument, "UUID cannot be empty"),
        ("of two", &digit, Code::InvalidArgument, &many),
        ("a pattern", "%", Code::NotFound, "no matches found"),
        ("a path", "../../etc", Code::NotFound, "no matches found"),
        ("a terminal's", "\u{1b}[2J\n", Code::NotFound, "no matches found"),
    ] {
        let inspected = while_serving(&served, what, || api.try_inspect_pod(id)).unwrap_err();
        assert_status(what, &inspected, code, "unable to resolve UUID: ");
        assert_status(what, &inspected, code, text);
        assert_status(what, &logs(id), code, text);
    }
    for status in [
        while_serving(&served, "an id of 1 MiB", || api.try_inspect_pod(&long)).unwrap_err(),
        logs(&long),
        api.try_inspect_image(&long).unwrap_err(),
    ] {
        assert!(matches!(status.code(), Code::InvalidArgument | Code::ResourceExhausted), "{status}");
        assert!(status.message().len() < 2000, "{} bytes", status.message().len());
    }
    drop(api);
    served.end();
}

#[test]
fn invalid_requests_are_rejected() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=app", "--", "true"]).ok());
    let list = |filter: PodFilter| api.try_list_pods(vec![filter], false).unwrap_err();
    let pairs = |key: &str, value: &str| vec![KeyValue { key: key.to_owned(), value: value.to_owned() }];
    let long = "x".repeat(5000);
    let most = |count: usize| vec!["x".to_owned(); count];
    for (what, status, text) in [
        ("state 99", list(PodFilter { states: vec![99], ..pods() }), "99"),
        ("state -1", list(PodFilter { states: vec![1, -1], ..pods() }), "-1"),
        ("a long id", list(PodFilter { ids: vec![long.clone()], ..pods() }), "ids"),
        ("a long name", list(PodFilter { app_names: vec![long.clone()], ..pods() }), "app_names"),
        ("a long image", list(PodFilter { image_ids: vec![long.clone()], ..pods() }), "image_ids"),
        ("a long network", list(PodFilter { network_names: vec![long.clone()], ..pods() }), "network_names"),
        ("a long key", list(PodFilter { annotations: pairs(&long, "v"), ..pods() }), "annotations"),
        ("a long value", list(PodFilter { annotations: pairs("k", &long), ..pods() }), "annotations"),
        ("a long cgroup", list(PodFilter { cgroups: vec![long.clone()], ..pods() }), "cgroups"),
        ("a long subcgroup", list(PodFilter { pod_sub_cgroups: vec![long.clone()], ..pods() }), "pod_sub_cgroups"),
        ("10 001 values", list(PodFilter { ids: most(10_001), ..pods() }), ""),
        ("257 filters", api.try_list_pods(vec![pods(); 257], false).unwrap_err(), "filters"),
        ("10 000 filters", api.try_list_pods(vec![pods(); 10_000], true).unwrap_err(), "filters"),
        ("10 000 filters of images", api.try_list_images(vec![images(); 10_000], true).unwrap_err(), "filters"),
        (
            "a long prefix",
            api.try_list_images(vec![ImageFilter { prefixes: vec![long.clone()], ..images() }], false).unwrap_err(),
            "prefixes",
        ),
    ] {
        assert_status(what, &status, Code::InvalidArgument, text);
    }
    let listen =
        |filter: EventFilter| api.try_listen(Some(filter)).map(|mut it| it.try_next()).unwrap_or_else(Err).unwrap_err();
    let any = EventFilter::default;
    for (what, status, text) in [
        ("type 10", listen(EventFilter { types: vec![10], ..any() }), "10"),
        ("type -5", listen(EventFilter { types: vec![-5], ..any() }), "-5"),
        ("since below zero", listen(EventFilter { since_time: -1, ..any() }), "since_time"),
        ("until below zero", listen(EventFilter { until_time: -1, ..any() }), "until_time"),
        ("until before since", listen(EventFilter { since_time: 10, until_time: 5, ..any() }), "until_time"),
        ("a long name", listen(EventFilter { names: vec![long.clone()], ..any() }), "names"),
        ("10 001 ids", listen(EventFilter { ids: most(10_001), ..any() }), ""),
    ] {
        assert_status(what, &status, Code::InvalidArgument, text);
    }
    let logs = |request: GetLogsRequest| {
        let request = GetLogsRequest { pod_id: pod.clone(), ..request };
        api.try_logs(request).map(|mut it| it.try_next()).unwrap_or_else(Err).unwrap_err()
    };
    let any = GetLogsRequest::default;
    for (what, status, text) in [
        ("negative lines", logs(GetLogsRequest { lines: -1, ..any() }), "lines"),
        ("since below zero", logs(GetLogsRequest { since_time: -1, ..any() }), "since_time"),
        ("until below zero", logs(GetLogsRequest { until_time: i64::MIN, ..any() }), "until_time"),
        ("until before since", logs(GetLogsRequest { since_time: 10, until_time: 5, ..any() }), "until_time"),
        ("a long name", logs(GetLogsRequest { app_name: long.clone(), ..any() }), "app_name"),
    ] {
        assert_status(what, &status, Code::InvalidArgument, text);
    }
    // Times beyond the range of a clock are far away, not invalid.
    let far = EventFilter { since_time: 1, until_time: i64::MAX, ..EventFilter::default() };
    let mut listener = api.listen(far);
    assert_eq!(listener.take_one().id, image);
    assert!(api.try_logs(GetLogsRequest { pod_id: pod.clone(), since_time: i64::MAX, ..any() }).is_ok());
    // Values just below the limits.
    let full = PodFilter { ids: vec![pod.clone(); 9000], app_names: vec!["app".to_owned(); 900], ..pods() };
    assert_eq!(while_serving(&served, "9 900 values", || api.try_list_pods(vec![full], true)).unwrap().len(), 1);
    assert_eq!(while_serving(&served, "256 filters", || api.try_list_pods(vec![pods(); 256], true)).unwrap().len(), 1);
    drop((listener, api));
    served.end();
}

#[test]
fn oversized_requests_are_rejected() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let huge =
        ListPodsRequest { filters: vec![PodFilter { ids: vec!["a".repeat(1000); 32_000], ..pods() }], detail: true };
    let status = while_serving(&served, "a request of 32 MB", || api.block_on(api.raw().list_pods(huge))).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // The connection stays usable.
    assert_eq!(api.info().api_version, "1.0.0-alpha");
    drop(api);
    served.end();
}

#[test]
fn ten_thousand_streams_on_one_connection_are_served() {
    const STREAMS: usize = 10_000;
    let g = Gantry::new();
    g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    while_serving(&served, "10 000 streams at once", || {
        let begun: Vec<_> = (0..STREAMS)
            .map(|_| {
                let mut client = api.raw();
                let request = ListenEventsRequest { filter: None };
                api.spawn(async move {
                    let call = client.listen_events(request);
                    tokio::time::timeout(Duration::from_secs(3), call).await
                })
            })
            .collect();
        // Established streams stay open; the others wait for a slot, and this connection has none left.
        let held: Vec<_> = begun.into_iter().filter_map(|one| api.block_on(one).ok()?.ok()?.ok()).collect();
        println!("{} of {STREAMS} were established within 3 s", held.len());
        assert!((1..=1000).contains(&held.len()), "{} streams on one connection", held.len());
    });
    // And 10 000 short calls at once: each one succeeds or is refused because there are too many.
    let (mut done, mut refused) = (0, 0);
    while_serving(&served, "10 000 calls at once", || {
        let calls: Vec<_> = (0..STREAMS)
            .map(|_| {
                let mut client = api.raw();
                api.spawn(async move { client.list_pods(ListPodsRequest::default()).await })
            })
            .collect();
        for call in calls {
            match api.block_on(call).unwrap() {
                Ok(_) => done += 1,
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    refused += 1;
                }
            }
        }
    });
    println!("{done} answered, {refused} refused");
    assert!(done > 0);
    assert_eq!(served.api().info().api_version, "1.0.0-alpha");
    drop(api);
    served.end();
}

#[test]
fn excess_listeners_are_refused() {
    const CONNECTIONS: usize = 20;
    const STREAMS: usize = 250;
    let g = Gantry::new();
    let unix = format!("unix:{}", g.api_socket().display());
    let served = g.serve_on(&["--listen", &unix, "--listen", "127.0.0.1:0"]);
    // Over TCP, whose clients have a limited share: root on the socket file is never refused.
    let tcp = served.addresses().into_iter().find(|address| address.starts_with("tcp:")).unwrap();
    let clients: Vec<Api> = (0..CONNECTIONS).map(|_| Api::connect(&tcp)).collect();
    while_serving(&served, "5 000 listeners", || {
        let (mut listening, mut refused) = (Vec::new(), 0);
        for api in &clients {
            for _ in 0..STREAMS {
                match api.try_listen(None) {
                    Ok(listener) => listening.push(listener),
                    Err(status) => {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                        refused += 1;
                    }
                }
            }
        }
        println!("{} listen, {refused} were refused", listening.len());
        assert!(listening.len() >= 1000 && refused > 0);
        // A slot is free again after a client has disconnected.
        let api = clients.first().unwrap();
        drop(listening);
        gantry_tests::wait_for("a free place", || api.try_listen(None).ok());
    });
    drop(clients);
    served.end();
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A call that is reset at once, in one piece: headers, an empty message, RST_STREAM (CANCEL).
fn call_and_reset(stream: u32) -> Vec<u8> {
    let text = |index: u8, text: &str| [&[index, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let headers = [
        // `:method: POST` and `:scheme: http` are entries of HPACK's static table; the others are indexed names with a
        // literal value.
        vec![0x83, 0x86],
        text(0x04, "/v1alpha.PublicAPI/ListenEvents"),
        text(0x01, "localhost"),
        [&[0x0f, 0x10][..], &text(0, "application/grpc")[1..]].concat(),
    ];
    let [headers, data, reset] = [
        frame(1, 4, stream, &headers.concat()),
        frame(0, 1, stream, &[0; 5]),
        frame(3, 0, stream, &8_u32.to_be_bytes()),
    ];
    [headers, data, reset].concat()
}

/// The error code of the GOAWAY frame in the bytes that a server sent.
fn goaway_error(mut received: &[u8]) -> Option<u32> {
    while let Some((head, rest)) = received.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, next) = rest.split_at_checked(length)?;
        if head[3] == 7 {
            return payload.get(4..8)?.try_into().ok().map(u32::from_be_bytes);
        }
        received = next;
    }
    None
}

#[test]
fn rapid_stream_resets_do_no_harm() {
    use std::io::{Read as _, Write as _};
    const RESETS: u32 = 20_000;
    let g = Gantry::new();
    g.fixture();
    let served = g.serve(&[]);
    let socket = g.api_socket();
    while_serving(&served, "20 000 streams that are reset at once, by each of 4", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
                    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
                    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
                    let mut reader = stream.try_clone().unwrap();
                    let received = scope.spawn(move || {
                        let mut received = Vec::new();
                        // However the connection is closed, nothing else was sent.
                        let _ = reader.read_to_end(&mut received);
                        received
                    });
                    // The server may close the connection before all is written.
                    let written =
                        (0..RESETS).take_while(|i| stream.write_all(&call_and_reset(2 * i + 1)).is_ok()).count();
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                    let received = received.join().unwrap();
                    println!("{written} of {RESETS} were taken; the last words {:?}", goaway_error(&received));
                    // ENHANCE_YOUR_CALM, if the frame could still be read.
                    assert!(goaway_error(&received).is_none_or(|code| code == 11), "{received:?}");
                    assert!(written < RESETS as usize, "it was cut off");
                });
            }
        });
    });
    let api = served.api();
    while_serving(&served, "streams that are dropped after they began", || {
        for _ in 0..1000 {
            drop(api.listen(EventFilter::default()));
        }
    });
    drop(api);
    served.end();
}

/// While the process is stopped, calls on one connection time out, and their clients reset them. A stream on the same
/// connection is not affected.
#[test]
fn mass_timeouts_do_not_close_the_connection() {
    let g = Gantry::new();
    let mut served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter::default());
    for (round, calls) in [33, 100, 200].into_iter().enumerate() {
        served.daemon().signal(gantry_tests::Signal::STOP);
        let codes: Vec<Code> = api.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..calls {
                let mut client = api.raw();
                let mut request = tonic::Request::new(ListPodsRequest::default());
                request.set_timeout(Duration::from_millis(300));
                all.spawn(async move { client.list_pods(request).await.map(drop).unwrap_err().code() });
            }
            all.join_all().await
        });
        assert_eq!(codes.len(), calls);
        served.daemon().signal(gantry_tests::Signal::CONT);
        let made = gantry_fixtures::Image::builder().label("round", &round.to_string()).build().unwrap();
        let id = g.import(&format!("round-{round}"), &made);
        assert_eq!(listener.take_one().id, id, "after {calls} calls that timed out");
    }
    drop((listener, api));
    served.end();
}

/// A client starts more calls at once than a connection may have open, before it has seen the settings: the calls
/// beyond the limit are refused, the others succeed, and the connection stays open.
#[test]
fn calls_beyond_the_stream_limit_are_refused() {
    const CALLS: usize = 1500;
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter::default());
    let refused = api.block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..CALLS {
            let mut client = api.raw();
            all.spawn(async move { client.list_pods(ListPodsRequest::default()).await.map(drop) });
        }
        all.join_all().await.into_iter().filter_map(Result::err).collect::<Vec<Status>>()
    });
    assert!(refused.iter().all(|status| status.code() == Code::Unavailable), "{refused:?}");
    let id = g.fixture();
    assert_eq!(listener.take_one().id, id);
    drop((listener, api));
    served.end();
}

#[test]
fn non_grpc_bytes_are_rejected() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    let g = Gantry::new();
    let served = g.serve(&[]);
    let connect = || UnixStream::connect(g.api_socket()).unwrap();
    while_serving(&served, "noise", || {
        let mut open = Vec::new();
        for (i, noise) in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0xff; 65_536], b""]
            .iter()
            .cycle()
            .take(400)
            .enumerate()
        {
            let mut stream = connect();
            // The server may close the connection before all is written.
            let _ = stream.write_all(noise);
            if i % 2 == 0 {
                open.push(stream);
            }
        }
        let mut stream = connect();
        let _ = stream.write_all(&[0xff; 1 << 16]);
        stream.set_read_timeout(Some(gantry_tests::DEADLINE)).unwrap();
        // The server closes the connection and does not wait for more.
        let _ = stream.read_to_end(&mut Vec::new());
        drop(open);
    });
    let api = served.api();
    assert_eq!(api.info().api_version, "1.0.0-alpha");
    drop(api);
    served.end();
}

#[test]
fn excess_connections_are_closed() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let used = served.api();
    used.info();
    let idle: Vec<_> = (0..1500).map(|_| std::os::unix::net::UnixStream::connect(g.api_socket())).collect();
    let came = idle.iter().filter(|it| it.is_ok()).count();
    println!("{came} of 1500 idle connections");
    let begin = Instant::now();
    assert_eq!(used.info().api_version, "1.0.0-alpha");
    assert!(begin.elapsed() < SOON, "established connections are served: {:?}", begin.elapsed());
    drop(idle);
    let api: Api = served.api();
    assert_eq!(api.info().api_version, "1.0.0-alpha");
    drop((api, used));
    served.end();
}
