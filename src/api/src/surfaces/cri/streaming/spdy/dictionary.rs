//! The dictionary that header blocks are compressed with (SPDY Protocol, draft 3.1, 2.6.10.1).

use std::sync::LazyLock;

/// Names and values, each with its length in front.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie \
    keep-alive origin";

/// Text without lengths.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 \
    Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
    Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, \
    GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/\
    javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// See the module.
pub(super) static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS.split(' ') {
        let word = word.replace('_', " ");
        // Words are short.
        bytes.extend([0, 0, 0, u8::try_from(word.len()).unwrap_or(u8::MAX)]);
        bytes.extend(word.as_bytes());
    }
    bytes.extend(TEXT.as_bytes());
    bytes
});

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum is in the first header block of every connection.
    #[test]
    fn the_dictionary_is_that_of_the_protocol() {
        let (mut low, mut high) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            low = (low + u32::from(*byte)) % 65521;
            high = (high + low) % 65521;
        }
        assert_eq!((DICTIONARY.len(), high << 16 | low), (1423, 0xe3c6_a7c2));
    }
}
