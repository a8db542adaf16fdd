//! Which addresses somebody asks for.

use std::net::IpAddr;

use serde_json::Value;

use super::MAX_ADDRESSES;
use super::error::IpamError;

/// The addresses asked for: by `IP=` arguments (`CNI_ARGS`; may be repeated, or have several with commas between) and by
/// the `ips` capability (a list of texts). Either may have a prefix length, which is the network's to say and is ignored,
/// as host-local does. In order, each once.
///
/// # Errors
///
/// [`IpamError::Invalid`] names what is not an address; there may be [`MAX_ADDRESSES`].
pub fn asked_for(args: &[(String, String)], ips: Option<&Value>) -> Result<Vec<IpAddr>, IpamError> {
    let by_args = args.iter().filter(|(key, _)| key == "IP").flat_map(|(_, value)| value.split(','));
    let mut texts: Vec<&str> = by_args.filter(|text| !text.is_empty()).collect();
    match ips {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for entry in list {
                let text = entry.as_str();
                texts.push(
                    text.ok_or_else(|| IpamError::Invalid("the capability 'ips' must be a list of texts".into()))?,
                );
            }
        }
        Some(_) => return Err(IpamError::Invalid("the capability 'ips' must be a list of texts".into())),
    }
    let mut addresses = Vec::new();
    for text in texts {
        let bare = text.split_once('/').map_or(text, |(address, _)| address);
        let address: IpAddr = bare.parse().map_err(|_| {
            IpamError::Invalid(format!("'{}' was asked for and is not an address", gantry_model::id::shown(text)))
        })?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
        if addresses.len() > MAX_ADDRESSES {
            return Err(IpamError::Invalid(format!("at most {MAX_ADDRESSES} addresses can be asked for")));
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
        let asked = asked_for(&args, Some(&json!(["fd00::1/64", "10.0.0.3"]))).unwrap();
        let texts: Vec<String> = asked.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.3"]);
        assert!(asked_for(&[], None).unwrap().is_empty());
        assert!(asked_for(&[arg("IP", "me")], None).unwrap_err().to_string().contains("'me' was asked for"));
        assert!(asked_for(&[], Some(&json!("10.0.0.1"))).is_err() && asked_for(&[], Some(&json!([1]))).is_err());
    }
}
