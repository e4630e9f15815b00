//! Metadata on the command line: `key=value` in, a line of JSON out.
//!
//! Values of keys that end in `-bin` may be any bytes. They are base64 here, in both directions.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tollgate::MetadataBuf;
use tollgate_shm_abi::metadata::is_binary;

use crate::failure::Failure;
use crate::output;

/// One `key=value`, as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    key: String,
    value: Vec<u8>,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text
            .split_once('=')
            .ok_or("metadata is written key=value")?;
        let value = if is_binary(key) {
            STANDARD.decode(value).map_err(|error| {
                format!(
                    "a value of {key} is written in base64, because the key ends in -bin: {error}"
                )
            })?
        } else {
            value.as_bytes().to_vec()
        };
        Ok(Pair {
            key: key.to_owned(),
            value,
        })
    }
}

/// All pairs, if they may be sent together.
pub(crate) fn collect(pairs: &[Pair]) -> Result<MetadataBuf, Failure> {
    let mut metadata = MetadataBuf::new();
    for Pair { key, value } in pairs {
        metadata.push(key, value).map_err(Failure::input)?;
    }
    Ok(metadata)
}

/// One line: a JSON object with the values of each key.
pub(crate) fn json(metadata: &MetadataBuf) -> String {
    let mut keys = Map::new();
    for (key, value) in metadata.view().iter() {
        let text = if is_binary(key) {
            STANDARD.encode(value)
        } else {
            String::from_utf8_lossy(value).into_owned()
        };
        let values = keys.entry(key).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(values) = values {
            values.push(Value::String(text));
        }
    }
    let mut line = Map::new();
    line.insert("metadata".to_owned(), Value::Object(keys));
    output::json(&Value::Object(line))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn pairs_are_typed_and_printed() {
        let typed = ["user=Ada", "t-bin=AP8=", "user=a=b", "empty="];
        let pairs = typed.map(|text| text.parse::<Pair>().unwrap());
        let metadata = collect(&pairs).unwrap();
        assert_eq!(metadata.view().get("t-bin"), Some(&[0, 255][..]));
        assert_eq!(
            json(&metadata),
            "{\"metadata\":{\"empty\":[\"\"],\"t-bin\":[\"AP8=\"],\"user\":[\"Ada\",\"a=b\"]}}\n"
        );
        assert_eq!(json(&MetadataBuf::new()), "{\"metadata\":{}}\n");
    }

    #[test]
    fn what_may_not_be_sent_is_told() {
        assert!("user".parse::<Pair>().is_err());
        let wrong = "t-bin=%".parse::<Pair>().unwrap_err();
        assert!(
            wrong.starts_with("a value of t-bin is written in base64"),
            "{wrong}"
        );
        let refused = |text: &str| collect(&[text.parse().unwrap()]).unwrap_err().sentence();
        assert!(refused("User=x").contains("has the byte 0x55"));
        assert!(refused("grpc-timeout=1S").contains("is reserved"));
        assert!(refused("=x").contains("isn't within 1..=128"));
    }
}
