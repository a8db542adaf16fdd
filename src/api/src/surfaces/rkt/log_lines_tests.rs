//! Lines and their pieces as elements.

use gantry_proto::rkt::v1alpha::GetLogsResponse;
use prost::Message as _;

use super::*;

fn line<'a>(app: &'a AppName, at: i64, piece: bool, text: &'a [u8]) -> LineRef<'a> {
    LineRef { app, at: Timestamp(at), stderr: false, piece, partial: piece, text }
}

fn name(text: &str) -> AppName {
    text.parse().unwrap()
}

/// The elements of all messages, each of which must be far from 4 MiB.
fn elements(messages: Vec<Encoded>) -> Vec<String> {
    assert!(messages.iter().all(|Encoded(bytes)| !bytes.is_empty() && bytes.len() < 3 << 20));
    messages.iter().flat_map(|Encoded(bytes)| GetLogsResponse::decode(&bytes[..]).unwrap().lines).collect()
}

#[test]
fn prefixes_follow_rkt() {
    let mut prefix = Prefix::new();
    for (at, want) in [
        (1_463_652_000_123_456_789, "2016-05-19 10:00:00.123456789 +0000 UTC MESSAGE="),
        (1_463_652_000_000_000_001, "2016-05-19 10:00:00.000000001 +0000 UTC MESSAGE="),
        (1_463_652_059_999_999_999, "2016-05-19 10:00:59.999999999 +0000 UTC MESSAGE="),
        (0, "1970-01-01 00:00:00.000000000 +0000 UTC MESSAGE="),
        (-1, "1969-12-31 23:59:59.999999999 +0000 UTC MESSAGE="),
    ] {
        assert_eq!(std::str::from_utf8(prefix.at(Timestamp(at))).unwrap(), want);
    }
}

#[test]
fn lines_become_list_elements() {
    let web = name("web");
    let mut lines = LineEncoder::new();
    for text in [&b"hello"[..], b"", "ü".as_bytes(), b"a\xffb\xe2\x82", b"tab\tnul\0"] {
        lines.add(line(&web, 0, false, text));
    }
    let texts: Vec<String> = elements(lines.take_messages())
        .iter()
        .map(|element| element.strip_prefix("1970-01-01 00:00:00.000000000 +0000 UTC MESSAGE=").unwrap().to_owned())
        .collect();
    assert_eq!(texts, ["hello", "", "ü", "a\u{fffd}b\u{fffd}", "tab\tnul\0"]);
    assert!(lines.take_messages().is_empty());
}

#[test]
fn pieces_of_mixed_apps_are_joined() {
    let (a, b) = (name("a"), name("b"));
    let mut lines = LineEncoder::new();
    lines.add(line(&a, 1, true, b"one "));
    lines.add(line(&b, 2, true, b"two "));
    lines.add(line(&a, 3, true, "e\u{20ac}".as_bytes().split_last().unwrap().1));
    lines.add(LineRef { stderr: true, ..line(&a, 4, false, b"err") });
    assert_eq!(elements(lines.take_messages()).len(), 1, "complete lines do not wait for incomplete ones");
    lines.add(line(&a, 5, false, b"\xac end"));
    lines.add(line(&b, 6, true, b"\xe2"));
    let first = elements(lines.take_messages());
    assert_eq!(first, ["1970-01-01 00:00:00.000000001 +0000 UTC MESSAGE=one e\u{20ac} end"]);
    lines.finish();
    let last = elements(lines.take_messages());
    assert_eq!(last, ["1970-01-01 00:00:00.000000002 +0000 UTC MESSAGE=two \u{fffd}"]);
}

#[test]
fn a_long_line_continues_without_prefix() {
    let web = name("web");
    for (bytes, want) in [
        (MAX_LINE, vec![MAX_LINE + PREFIX]),
        (MAX_LINE + 1, vec![MAX_LINE + PREFIX, 1]),
        (3 * MAX_LINE, vec![MAX_LINE + PREFIX, MAX_LINE, MAX_LINE]),
    ] {
        let text = vec![b'x'; bytes];
        let mut whole = LineEncoder::new();
        whole.add(line(&web, 0, false, &text));
        let lengths: Vec<usize> = elements(whole.take_messages()).iter().map(String::len).collect();
        assert_eq!(lengths, want);

        let mut pieces = LineEncoder::new();
        let count = text.chunks(16_000).count();
        for (i, piece) in text.chunks(16_000).enumerate() {
            pieces.add(line(&web, i as i64, i + 1 < count, piece));
        }
        let lengths: Vec<usize> = elements(pieces.take_messages()).iter().map(String::len).collect();
        assert_eq!(lengths, want);
    }
}

#[test]
fn invalid_utf8_is_replaced_within_bounds() {
    let web = name("web");
    let mut lines = LineEncoder::new();
    lines.add(line(&web, 0, false, &vec![0xff; 2 * MAX_LINE]));
    let all = elements(lines.take_messages());
    assert!(all.iter().all(|element| element.len() <= MAX_LINE + PREFIX));
    assert_eq!(all.iter().map(String::len).sum::<usize>(), PREFIX + 3 * 2 * MAX_LINE);
}

#[test]
fn unfinished_lines_of_many_apps_stay_bounded() {
    let apps: Vec<AppName> = (0..50).map(|n| name(&format!("app{n}"))).collect();
    let mut lines = LineEncoder::new();
    for app in &apps {
        lines.add(line(app, 0, true, &vec![b'x'; MAX_LINE]));
    }
    let kept = lines.unfinished.iter().map(|one| one.text.len()).sum::<usize>();
    assert!(kept <= MAX_UNFINISHED, "{kept}");
    let before = elements(lines.take_messages());
    assert_eq!(before.len(), 50 - MAX_UNFINISHED / MAX_LINE);
    for app in &apps {
        lines.add(line(app, 0, false, b"y"));
    }
    // The buffered lines filled a whole element, too.
    assert_eq!(elements(lines.take_messages()).iter().filter(|element| element.as_str() == "y").count(), apps.len());
}

#[test]
fn incomplete_characters_are_found() {
    let euro = "\u{20ac}".as_bytes();
    for (bytes, want) in
        [(&b""[..], 0), (b"a", 0), (&euro[..1], 1), (&euro[..2], 2), (euro, 0), (b"\xf0\x9f\x98", 3), (b"\xff", 0)]
    {
        assert_eq!(incomplete_tail_len(bytes), want, "{bytes:?}");
    }
}
