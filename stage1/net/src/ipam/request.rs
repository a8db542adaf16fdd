//! Requested addresses.

use std::net::IpAddr;

use serde_json::Value;

use super::MAX_ADDRESSES;
use super::error::IpamError;

/// The requested addresses: from `IP=` arguments (`CNI_ARGS`; repeated, or several separated by commas) and from the
/// `ips` capability (a list of strings). A prefix length is ignored, as in host-local: the network determines it. In
/// order, each once.
///
/// # Errors
///
/// [`IpamError::Invalid`]: an invalid address, or more than [`MAX_ADDRESSES`].
pub fn requested_addresses(args: &[(String, String)], ips: Option<&Value>) -> Result<Vec<IpAddr>, IpamError> {
    Ok(requested(args, ips)?.into_iter().map(|(address, _)| address).collect())
}

/// The addresses requested by `IP=` arguments as they were given: static addresses need their prefix length. In order,
/// each once.
///
/// # Errors
///
/// As [`requested_addresses`].
pub fn requested_texts(args: &[(String, String)]) -> Result<Vec<String>, IpamError> {
    Ok(requested(args, None)?.into_iter().map(|(_, text)| text.to_owned()).collect())
}

fn requested<'t>(args: &'t [(String, String)], ips: Option<&'t Value>) -> Result<Vec<(IpAddr, &'t str)>, IpamError> {
    let by_args = args.iter().filter(|(key, _)| key == "IP").flat_map(|(_, value)| value.split(','));
    let mut texts: Vec<&str> = by_args.filter(|text| !text.is_empty()).collect();
    match ips {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for entry in list {
                let text = entry.as_str();
                texts.push(
                    text.ok_or_else(|| IpamError::Invalid("the capability 'ips' must be a list of strings".into()))?,
                );
            }
        }
        Some(_) => return Err(IpamError::Invalid("the capability 'ips' must be a list of strings".into())),
    }
    let mut addresses: Vec<(IpAddr, &str)> = Vec::new();
    for text in texts {
        let bare = text.split_once('/').map_or(text, |(address, _)| address);
        let address: IpAddr = bare.parse().map_err(|_| {
            IpamError::Invalid(format!("the requested address '{}' is invalid", gantry_model::id::shown(text)))
        })?;
        if !addresses.iter().any(|(known, _)| *known == address) {
            addresses.push((address, text));
        }
        if addresses.len() > MAX_ADDRESSES {
            return Err(IpamError::Invalid(format!("at most {MAX_ADDRESSES} addresses can be requested")));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_and_capability() {
        let arg = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let args = [arg("IP", "10.0.0.1,10.0.0.2/8"), arg("MAC", "x"), arg("IP", "fd00::1"), arg("IP", "")];
        let requested = requested_addresses(&args, Some(&json!(["fd00::1/64", "10.0.0.3"]))).unwrap();
        let texts: Vec<String> = requested.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.3"]);
        assert_eq!(requested_texts(&args).unwrap(), ["10.0.0.1", "10.0.0.2/8", "fd00::1"]);
        assert!(requested_addresses(&[], None).unwrap().is_empty());
        assert!(requested_addresses(&[arg("IP", "me")], None).unwrap_err().to_string().contains("'me' is invalid"));
        assert!(
            requested_addresses(&[], Some(&json!("10.0.0.1"))).is_err()
                && requested_addresses(&[], Some(&json!([1]))).is_err()
        );
    }
}
