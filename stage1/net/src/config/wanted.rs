//! What `--net` asks for, in rkt's grammar: `NAME[:K=V[;K=V…]]`, several with commas between.

use gantry_model::{ErrorKind, Kind};

use super::is_name;

/// The most bytes of a request.
pub const MAX_REQUEST: usize = 16 * 1024;

/// A network asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Arguments for its plugins (`CNI_ARGS`), in the order given.
    pub args: Vec<(String, String)>,
}

/// Which networks a pod is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The host's network namespace.
    Host,
    /// A namespace of its own, with the loopback interface only.
    None,
    /// These, in this order.
    Some(Vec<Wanted>),
    /// Every network that is configured, and the default one; those named get the arguments.
    All(Vec<Wanted>),
}

/// A request that cannot be understood or kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    /// A name twice.
    #[error("found duplicate network name '{0}'")]
    Duplicate(String),
    /// Arguments for something that takes none.
    #[error("arguments are not supported by the special network name '{0}'")]
    Arguments(String),
    /// `host` or `none` beside others.
    #[error("'{0}' cannot be combined with other networks")]
    Alone(String),
    /// Not a name of a network.
    #[error("'{0}' is not a network's name")]
    Name(String),
    /// Not an argument.
    #[error("'{argument}' of network '{network}' is not an argument: must be KEY=VALUE")]
    Argument {
        /// As given.
        argument: String,
        /// For which network.
        network: String,
    },
    /// More than [`MAX_REQUEST`] bytes.
    #[error("a request for networks may have at most {MAX_REQUEST} bytes")]
    TooLong,
}

impl Kind for WantedError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// Reads the value of `--net`; an empty one means the default network.
///
/// # Errors
///
/// See [`WantedError`].
pub fn parse(text: &str) -> Result<Selection, WantedError> {
    if text.len() > MAX_REQUEST {
        return Err(WantedError::TooLong);
    }
    if text.is_empty() {
        return Ok(Selection::Some(vec![Wanted { name: super::builtin::DEFAULT.into(), args: Vec::new() }]));
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    for part in text.split(',') {
        let one = one(part)?;
        if wanted.iter().any(|earlier| earlier.name == one.name) {
            return Err(WantedError::Duplicate(one.name));
        }
        wanted.push(one);
    }
    for (name, selection) in [("host", Selection::Host), ("none", Selection::None)] {
        if wanted.iter().any(|it| it.name == name) {
            return if wanted.len() == 1 { Ok(selection) } else { Err(WantedError::Alone(name.into())) };
        }
    }
    let named = wanted.len();
    wanted.retain(|it| it.name != "all");
    Ok(if wanted.len() < named { Selection::All(wanted) } else { Selection::Some(wanted) })
}

fn one(part: &str) -> Result<Wanted, WantedError> {
    // At the first colon only: an IPv6 address has more.
    let (name, args) = part.split_once(':').map_or((part, None), |(name, args)| (name, Some(args)));
    if !is_name(name) {
        return Err(WantedError::Name(gantry_model::id::shown(name)));
    }
    let Some(args) = args else { return Ok(Wanted { name: name.into(), args: Vec::new() }) };
    if matches!(name, "host" | "none" | "all") {
        return Err(WantedError::Arguments(name.into()));
    }
    let argument = |text: &str| {
        let whole = text.split_once('=').filter(|(key, value)| !key.is_empty() && is_plain(key) && is_plain(value));
        whole
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .ok_or_else(|| WantedError::Argument { argument: gantry_model::id::shown(text), network: name.into() })
    };
    let args = args.split(';').map(argument).collect::<Result<_, _>>()?;
    Ok(Wanted { name: name.into(), args })
}

/// Whether this may stand in `CNI_ARGS`.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || c == ';')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted(name: &str, args: &[(&str, &str)]) -> Wanted {
        let args = args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Wanted { name: name.into(), args }
    }

    #[test]
    fn as_in_rkt() {
        assert_eq!(parse("").unwrap(), Selection::Some(vec![wanted("default", &[])]));
        assert_eq!(
            parse("default,foo:IP=10.1.2.3;X=y=z,bar:IP=fd00::1").unwrap(),
            Selection::Some(vec![
                wanted("default", &[]),
                wanted("foo", &[("IP", "10.1.2.3"), ("X", "y=z")]),
                wanted("bar", &[("IP", "fd00::1")])
            ])
        );
        assert_eq!(parse("host").unwrap(), Selection::Host);
        assert_eq!(parse("none").unwrap(), Selection::None);
        assert_eq!(parse("all").unwrap(), Selection::All(vec![]));
        assert_eq!(parse("foo:A=,all").unwrap(), Selection::All(vec![wanted("foo", &[("A", "")])]));
    }

    #[test]
    fn what_rkt_refuses() {
        assert_eq!(parse("a,b,a:X=1"), Err(WantedError::Duplicate("a".into())));
        for special in ["host", "none", "all"] {
            assert_eq!(parse(&format!("{special}:IP=1")), Err(WantedError::Arguments(special.into())));
        }
        assert_eq!(parse("host,a"), Err(WantedError::Alone("host".into())));
        assert_eq!(parse("all,none"), Err(WantedError::Alone("none".into())));
        for bad in ["a,", ",", "../a", "a b", ":X=1"] {
            assert!(matches!(parse(bad), Err(WantedError::Name(_))), "{bad}");
        }
        for bad in ["a:", "a:X", "a:=1", "a:X=1;", "a:X=\n"] {
            assert!(matches!(parse(bad), Err(WantedError::Argument { .. })), "{bad}");
        }
        assert_eq!(parse(&"a".repeat(MAX_REQUEST + 1)), Err(WantedError::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(names in proptest::collection::btree_set("[a-z][a-z0-9.-]{3,8}x", 1..5), value in "[^;,\\pC]{0,12}") {
            let texts: Vec<String> = names.iter().map(|name| format!("{name}:K={value}")).collect();
            let expected = names.iter().map(|name| wanted(name, &[("K", &value)])).collect();
            prop_assert_eq!(parse(&texts.join(",")), Ok(Selection::Some(expected)));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}") {
            let _ = parse(&text);
        }
    }
}
