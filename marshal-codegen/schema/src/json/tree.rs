//! JSON text as a lossless tree: members keep their order, and a name may occur twice.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::fmt;

use super::mapping::Reason;

/// JSON text as a tree.
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Converts for `prost-reflect`, which reads the well-known types.
    pub(super) fn into_value(self) -> Result<serde_json::Value, Reason> {
        Ok(match self {
            Json::Null => serde_json::Value::Null,
            Json::Bool(value) => value.into(),
            Json::Number(number) => number.into(),
            Json::String(text) => text.into(),
            Json::List(items) => {
                let items = items.into_iter().map(Json::into_value);
                serde_json::Value::Array(items.collect::<Result<_, _>>()?)
            }
            Json::Object(members) => {
                let mut object = serde_json::Map::new();
                for (name, value) in members {
                    let twice = format!("member {name:?} occurs twice");
                    if object.insert(name, value.into_value()?).is_some() {
                        return Err(twice);
                    }
                }
                serde_json::Value::Object(object)
            }
        })
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        let number = Number::from_f64(value);
        Ok(Json::Number(number.ok_or_else(|| {
            E::custom(format!("{value} is not a number of JSON"))
        })?))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}
