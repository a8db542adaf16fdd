//! Tests of WebSocket frames.

use super::*;

/// A frame as a client sends it.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = encode_frame(Opcode::Binary, &[payload]);
    let head = frame.len() - payload.len();
    (frame[0], frame[1]) = (first, frame[1] | MASKED);
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    for (byte, mask) in frame[head..].iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    frame.splice(head..head, mask);
    frame
}

/// All events of these bytes in pieces of these lengths; pieces of a message are joined.
fn read_all(bytes: &[u8], pieces: &[usize]) -> Result<Vec<WebSocketEvent>, WebSocketError> {
    let (mut reader, mut events, mut rest) = (MessageReader::default(), Vec::new(), bytes);
    let mut open: Option<Vec<u8>> = None;
    let mut lengths = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(lengths.next().unwrap_or(rest.len()).clamp(1, rest.len()));
        rest = later;
        reader.push(piece);
        while let Some(event) = reader.next()? {
            let WebSocketEvent::Piece { bytes, first, last } = event else {
                events.push(event);
                continue;
            };
            assert_eq!(first, open.is_none(), "a message begins once");
            open.get_or_insert_default().extend_from_slice(&bytes);
            if last {
                let bytes = open.take().unwrap_or_default().into();
                events.push(WebSocketEvent::Piece { bytes, first: true, last: true });
            }
        }
        assert!(reader.buffer.len() <= 14 + MAX_CONTROL as usize, "the buffer is bounded");
    }
    Ok(events)
}

#[test]
fn messages_survive_any_split() {
    let big: Vec<u8> = (0..70_000u32).map(|number| (number / 3) as u8).collect();
    let bytes = [
        masked(0x82, b"\x00hello"),
        masked(0x02, &big),
        masked(0x89, b"ping"),
        masked(0x00, b""),
        masked(0x80, &big[..200]),
        masked(0x8a, b""),
        masked(0x81, b""),
        masked(0x88, &CLOSE_NORMAL.to_be_bytes()),
    ]
    .concat();
    let whole = |bytes: &[u8]| WebSocketEvent::Piece { bytes: bytes.to_vec().into(), first: true, last: true };
    let expected = [
        whole(b"\x00hello"),
        WebSocketEvent::Ping(Bytes::from_static(b"ping")),
        whole(&[&big[..], &big[..200]].concat()),
        WebSocketEvent::Pong,
        whole(b""),
        WebSocketEvent::Close,
    ];
    for pieces in [&[][..], &[1], &[3, 1, 4096]] {
        assert_eq!(read_all(&bytes, pieces).unwrap(), expected);
    }
}

#[test]
fn violations_are_refused() {
    let long_control = masked(0x89, &[0; 126]);
    for (bytes, error) in [
        (&encode_frame(Opcode::Binary, &[b"x"])[..], WebSocketError::Unmasked),
        (&masked(0xc2, b"x"), WebSocketError::Reserved),
        (&masked(0x83, b"x"), WebSocketError::Reserved),
        (&masked(0x09, b"x"), WebSocketError::Control),
        (&long_control, WebSocketError::Control),
        (&masked(0x80, b"x"), WebSocketError::Fragmentation),
        (&[masked(0x02, b"x"), masked(0x82, b"y")].concat(), WebSocketError::Fragmentation),
        (&[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], WebSocketError::Reserved),
    ] {
        assert_eq!(read_all(bytes, &[]), Err(error), "{bytes:?}");
    }
}

#[test]
fn lengths_have_their_shortest_form() {
    for (length, head) in [(125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
        assert_eq!(encode_frame(Opcode::Binary, &[&vec![0; length]]).len(), head + length);
    }
    assert_eq!(encode_close(CLOSE_NORMAL), [0x88, 2, 0x03, 0xe8]);
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, pieces in proptest::collection::vec(1usize..32, 0..8)) {
        let mut reader = MessageReader::default();
        let mut lengths = pieces.iter().copied().cycle();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(lengths.next().unwrap_or(rest.len()).clamp(1, rest.len()));
            rest = later;
            reader.push(piece);
            loop {
                match reader.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
            proptest::prop_assert!(reader.buffer.len() <= 14 + MAX_CONTROL as usize);
        }
    }

    #[test]
    fn valid_messages_are_read_back(
        messages in proptest::collection::vec(proptest::prelude::any::<Vec<u8>>(), 0..6),
        pieces in proptest::collection::vec(1usize..64, 0..8),
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| masked(0x82, message)).collect();
        let expected: Vec<_> = messages
            .into_iter()
            .map(|message| WebSocketEvent::Piece { bytes: message.into(), first: true, last: true })
            .collect();
        proptest::prop_assert_eq!(read_all(&bytes, &pieces).unwrap(), expected);
    }
}
