//! Writes DER (ITU-T X.690), as far as certificates need it.

/// An element.
pub(super) fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let digits: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|digit| *digit == 0).collect();
    let mut bytes = vec![tag];
    match u8::try_from(length) {
        Ok(short @ 0..=0x7f) => bytes.push(short),
        // At most eight digits.
        _ => {
            bytes.push(0x80 | u8::try_from(digits.len()).unwrap_or(0));
            bytes.extend(digits);
        }
    }
    bytes.extend(contents);
    bytes
}

/// An element of other elements.
pub(super) fn constructed(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    element(tag, &parts.concat())
}

/// A SEQUENCE.
pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    constructed(super::der::SEQUENCE, parts)
}

/// An OBJECT IDENTIFIER with these contents.
pub(super) fn object_identifier(contents: &[u8]) -> Vec<u8> {
    element(super::der::OBJECT_IDENTIFIER, contents)
}

/// A BIT STRING of whole bytes.
pub(super) fn bit_string(bytes: &[u8]) -> Vec<u8> {
    element(0x03, &[&[0], bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::super::der::DerReader;
    use super::*;

    #[test]
    fn lengths_are_minimal_and_read_back() {
        for (length, header) in [
            (0, &[0x04, 0][..]),
            (127, &[0x04, 0x7f]),
            (128, &[0x04, 0x81, 0x80]),
            (255, &[0x04, 0x81, 0xff]),
            (256, &[0x04, 0x82, 0x01, 0x00]),
            (70_000, &[0x04, 0x83, 0x01, 0x11, 0x70]),
        ] {
            let contents = vec![7; length];
            let bytes = element(0x04, &contents);
            assert!(bytes.starts_with(header), "{length}");
            let mut reader = DerReader::new(&bytes);
            assert_eq!(reader.read_element(), Some((0x04, &contents[..])));
            assert_eq!(reader.read_element(), None);
        }
    }
}
