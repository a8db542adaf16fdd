//! Tests of frames without I/O.

use super::super::headers::tests::HeaderWriter;
use super::*;

/// All frames of these bytes, in pieces of these lengths. Pieces of data frames are joined.
pub(in super::super) fn read_all(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, FrameError> {
    let (mut reader, mut frames, mut rest) = (FrameReader::new(), Vec::new(), bytes);
    let mut lengths = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(lengths.next().unwrap_or(rest.len()).clamp(1, rest.len()));
        rest = later;
        reader.push(piece);
        while let Some(frame) = reader.next()? {
            add(&mut frames, frame);
        }
        assert!(reader.buffer.len() <= HEAD + MAX_CONTROL, "the buffer is bounded");
    }
    Ok(frames)
}

/// Adds a frame; joins the pieces of a data frame.
fn add(frames: &mut Vec<Frame>, frame: Frame) {
    if let (Frame::Data { stream, bytes, fin }, Some(Frame::Data { stream: last, bytes: before, fin: ended })) =
        (&frame, frames.last_mut())
        && stream == last
        && !*ended
    {
        *before = [&before[..], bytes].concat().into();
        *ended = *fin;
        return;
    }
    frames.push(frame);
}

fn syn_stream(writer: &mut HeaderWriter, stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
    let fields = [&stream.to_be_bytes()[..], &[0; 6]].concat();
    encode_control(SYN_STREAM, &[fields, writer.block(headers)].concat())
}

#[test]
fn frames_survive_any_split() {
    let mut writer = HeaderWriter::new();
    let bytes = [
        syn_stream(&mut writer, 1, &[("streamtype", "error")]),
        encode_ping(7),
        encode_data(1, &[b'x'; 70_000], false),
        encode_control(4, &[0; 12]),
        syn_stream(&mut writer, 3, &[("streamtype", "stdin")]),
        encode_data(3, b"", true),
        encode_rst_stream(1, RST_CANCEL),
        encode_goaway(3, 0),
    ]
    .concat();
    let whole = read_all(&bytes, &[]).unwrap();
    assert_eq!(whole.len(), 8);
    assert!(
        matches!(&whole[0], Frame::SynStream { stream: 1, headers, .. } if headers.get("streamtype") == Some("error"))
    );
    assert_eq!((&whole[1], &whole[3], &whole[7]), (&Frame::Ping { id: 7 }, &Frame::Ignored, &Frame::GoAway));
    assert_eq!(whole[5], Frame::Data { stream: 3, bytes: Bytes::new(), fin: true });
    for pieces in [&[1][..], &[7, 1], &[8, 9, 4096]] {
        assert_eq!(read_all(&bytes, pieces).unwrap(), whole);
    }
}

#[test]
fn invalid_frames_are_refused() {
    let frame = |version: u16, kind: u16, length: u32| {
        let head = [(0x8000 | version).to_be_bytes(), kind.to_be_bytes()].concat();
        [head, length.to_be_bytes().to_vec(), vec![0; 16]].concat()
    };
    assert_eq!(read_all(&frame(2, 1, 0), &[]), Err(FrameError::Version(2)));
    assert_eq!(read_all(&frame(3, 1, 0xff_ffff), &[]), Err(FrameError::TooLong(0xff_ffff)));
    for kind in [SYN_STREAM, SYN_REPLY, RST_STREAM, PING, HEADERS] {
        assert_eq!(read_all(&frame(3, kind, 0), &[]), Err(FrameError::TooShort(kind)));
    }
    assert!(matches!(read_all(&frame(3, SYN_STREAM, 12), &[]), Err(FrameError::Headers(_))));
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, pieces in proptest::collection::vec(1usize..64, 0..8)) {
        let split = read_all(&bytes, &pieces);
        proptest::prop_assert_eq!(split, read_all(&bytes, &[]));
    }

    #[test]
    fn frames_with_arbitrary_bodies_never_panic(
        frames in proptest::collection::vec((0u16..12, proptest::prelude::any::<Vec<u8>>()), 0..8),
        pieces in proptest::collection::vec(1usize..64, 0..8),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| encode_control(*kind, body)).collect();
        let split = read_all(&bytes, &pieces);
        proptest::prop_assert_eq!(split, read_all(&bytes, &[]));
    }
}
