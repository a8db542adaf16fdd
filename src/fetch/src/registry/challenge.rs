//! Parser of `WWW-Authenticate` (RFC 9110 section 11.6.1; the Docker token specification's `Bearer` parameters).
//!
//! Unlike http-auth, it accepts unquoted URLs, which registries send.

use std::collections::BTreeMap;

/// Maximum length of the header in bytes.
const MAX_HEADER: usize = 8 << 10;

/// An authentication challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A token from the server at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
    /// User name and password.
    Basic,
}

/// Selects the challenge that gantry can answer: `Bearer` before `Basic`.
pub(crate) fn parse(headers: &[&str]) -> Result<Challenge, &'static str> {
    let mut basic = false;
    for header in headers {
        if header.len() > MAX_HEADER {
            return Err("the WWW-Authenticate header is longer than 8 KiB");
        }
        for (scheme, mut parameters) in schemes(header).ok_or("the WWW-Authenticate header cannot be read")? {
            if scheme == "bearer" {
                let realm = parameters.remove("realm").ok_or("the Bearer challenge has no realm")?;
                let (service, scope) = (parameters.remove("service"), parameters.remove("scope"));
                return Ok(Challenge::Bearer { realm, service, scope });
            }
            basic |= scheme == "basic";
        }
    }
    if basic { Ok(Challenge::Basic) } else { Err("it asks for neither Bearer nor Basic authentication") }
}

type Scheme = (String, BTreeMap<String, String>);

/// Splits a header into its schemes with their parameters; `None` if it is malformed.
fn schemes(header: &str) -> Option<Vec<Scheme>> {
    let mut found: Vec<Scheme> = Vec::new();
    let mut rest = header.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            return None;
        }
        let after = after.trim_start_matches([' ', '\t']);
        if let (Some(value), Some(last)) = (after.strip_prefix('='), found.last_mut()) {
            let (value, after) = value_of(value.trim_start_matches([' ', '\t']))?;
            // The first of a repeated parameter counts.
            last.1.entry(word.to_ascii_lowercase()).or_insert(value);
            rest = after;
        } else {
            found.push((word.to_ascii_lowercase(), BTreeMap::new()));
            rest = after;
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    Some(found)
}

/// Parses a token or a quoted string; returns it and the rest of the text.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| !is_token(c)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// RFC 9110 `tchar`, and `/`, `:` and `~` because registries write URLs without quotes.
fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/:".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn challenge_headers_are_parsed() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Ok(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        for (header, want) in [
            (
                r#"Bearer realm="https://auth.example/token",service="reg.example",scope="repository:a/b:pull,push""#,
                bearer("https://auth.example/token", Some("reg.example"), Some("repository:a/b:pull,push")),
            ),
            (r#"bearer realm="a\"b" , service = x"#, bearer("a\"b", Some("x"), None)),
            (r#"Basic realm="r", Bearer realm="https://t""#, bearer("https://t", None, None)),
            (r#"Basic realm="r""#, Ok(Challenge::Basic)),
            ("Basic", Ok(Challenge::Basic)),
            (r#"Bearer realm="first",realm="second""#, bearer("first", None, None)),
        ] {
            assert_eq!(parse(&[header]), want, "{header}");
        }
        let long = format!("Bearer realm=\"https://{}\"", "a".repeat(9000));
        for bad in ["", "Negotiate", "Bearer", r#"Bearer realm="x"#, "=x", r#"Bearer realm="x\"#, long.as_str()] {
            assert!(parse(&[bad]).is_err(), "{bad:.80}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _ = parse(&[&text]);
        }

        #[test]
        fn parser_never_panics_on_bearer(text in "Bearer [a-z=\", \\\\]{0,60}") {
            let _ = parse(&[&text]);
        }
    }
}
