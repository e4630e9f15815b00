//! Reads a message from a JSON tree, guided by the message's type.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    OneofDescriptor, Value,
};
use serde_json::Number;
use std::collections::{HashMap, HashSet};

use super::base64;
use super::mapping::{Reason, WellKnown, any_type, is_null_value, well_known};
use super::tree::Json;
use super::wire;
use crate::spelling::did_you_mean;

/// The treatment of fields and enum values in JSON text that the schema doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// An error names the field or the value.
    Refused,
    /// An unknown field is skipped, and so is an unknown name of an enum value.
    Ignored,
}

pub(super) struct Parser {
    pub(super) unknown: UnknownFields,
}

impl Parser {
    pub(super) fn message(
        &self,
        descriptor: &MessageDescriptor,
        json: Json,
    ) -> Result<DynamicMessage, Reason> {
        match well_known(descriptor) {
            Some(WellKnown::Any) => self.any(descriptor, json),
            Some(WellKnown::Wrapper) => {
                let field = descriptor.get_field(1).ok_or("a wrapper without a value")?;
                let mut message = DynamicMessage::new(descriptor.clone());
                if let Some(value) = self.value(&field.kind(), json)? {
                    message.set_field(&field, value);
                }
                Ok(message)
            }
            Some(WellKnown::OwnForm) => {
                DynamicMessage::deserialize(descriptor.clone(), json.into_value()?)
                    .map_err(|e| e.to_string())
            }
            None => self.ordinary(descriptor, object(json)?),
        }
    }

    /// Reads a message without a special form: an object of its fields.
    fn ordinary(
        &self,
        descriptor: &MessageDescriptor,
        members: Vec<(String, Json)>,
    ) -> Result<DynamicMessage, Reason> {
        let mut message = DynamicMessage::new(descriptor.clone());
        let mut seen = HashSet::new();
        let mut chosen: Vec<OneofDescriptor> = Vec::new();
        for (name, json) in members {
            let field = descriptor
                .get_field_by_json_name(&name)
                .or_else(|| descriptor.get_field_by_name(&name));
            let Some(field) = field else {
                match self.unknown {
                    UnknownFields::Ignored => continue,
                    UnknownFields::Refused => return Err(no_field(descriptor, &name)),
                }
            };
            if !seen.insert(field.number()) {
                return Err(format!("field {name:?} occurs twice"));
            }
            if matches!(json, Json::Null) && !takes_null(&field.kind()) {
                continue;
            }
            if let Some(oneof) = field.containing_oneof() {
                if chosen.contains(&oneof) {
                    return Err(format!("two fields of oneof {:?} are set", oneof.name()));
                }
                chosen.push(oneof);
            }
            let value = self.field(&field, json);
            if let Some(value) = value.map_err(|reason| within(&name, &reason))? {
                message.set_field(&field, value);
            }
        }
        Ok(message)
    }

    /// A field's value; `None` if it is unknown and ignored.
    fn field(&self, field: &FieldDescriptor, json: Json) -> Result<Option<Value>, Reason> {
        if field.is_map() {
            return self.map(field, object_or_null(json)?).map(Some);
        }
        if !field.is_list() {
            return self.value(&field.kind(), json);
        }
        let items = match json {
            Json::List(items) => items,
            Json::Null => Vec::new(),
            other => return Err(unexpected("a list", &other)),
        };
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            list.extend(self.value(&field.kind(), item)?);
        }
        Ok(Some(Value::List(list)))
    }

    fn map(&self, field: &FieldDescriptor, members: Vec<(String, Json)>) -> Result<Value, Reason> {
        let Kind::Message(entry) = field.kind() else {
            return Err("a map without entries".to_owned());
        };
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        let mut map = HashMap::with_capacity(members.len());
        for (name, json) in members {
            let parsed = self.value(&value.kind(), json);
            let Some(parsed) = parsed.map_err(|reason| within(&name, &reason))? else {
                continue;
            };
            let key = map_key(&key.kind(), &name)?;
            if map.insert(key, parsed).is_some() {
                return Err(format!("key {name:?} occurs twice"));
            }
        }
        Ok(Value::Map(map))
    }

    /// One value; `None` if it is an unknown enum value and ignored.
    fn value(&self, kind: &Kind, json: Json) -> Result<Option<Value>, Reason> {
        Ok(Some(match kind {
            Kind::Message(descriptor) => Value::Message(self.message(descriptor, json)?),
            Kind::Enum(declared) => return self.enumerated(declared, json),
            Kind::Double => Value::F64(float(&json)?),
            Kind::Float => Value::F32(single(float(&json)?)?),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(integer(&json)?),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(integer(&json)?),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(integer(&json)?),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(integer(&json)?),
            Kind::Bool => match json {
                Json::Bool(value) => Value::Bool(value),
                other => return Err(unexpected("true or false", &other)),
            },
            Kind::String => match json {
                Json::String(text) => Value::String(text),
                other => return Err(unexpected("a string", &other)),
            },
            Kind::Bytes => match json {
                Json::String(text) => Value::Bytes(
                    base64::decode(&text)
                        .ok_or_else(|| format!("{text:?} is not base64"))?
                        .into(),
                ),
                other => return Err(unexpected("a string of base64", &other)),
            },
        }))
    }

    fn enumerated(&self, declared: &EnumDescriptor, json: Json) -> Result<Option<Value>, Reason> {
        let number = match &json {
            Json::Null if is_null_value(declared) => 0,
            Json::String(name) => match declared.get_value_by_name(name) {
                Some(value) => value.number(),
                None if self.unknown == UnknownFields::Ignored => return Ok(None),
                None => {
                    let declared = declared.full_name();
                    return Err(format!("enum {declared} has no value {name:?}"));
                }
            },
            Json::Number(_) => integer(&json)?,
            other => return Err(unexpected("the name or number of an enum's value", other)),
        };
        Ok(Some(Value::EnumNumber(number)))
    }

    /// Reads `{"@type": "host/package.Name", fields}`, or, for types with a special form, the one
    /// member `value`.
    fn any(&self, descriptor: &MessageDescriptor, json: Json) -> Result<DynamicMessage, Reason> {
        let mut any = DynamicMessage::new(descriptor.clone());
        let mut members = object(json)?;
        if members.is_empty() {
            return Ok(any);
        }
        let at = members.iter().position(|(name, _)| name == "@type");
        let (_, url) = members.remove(at.ok_or("an Any has no \"@type\"")?);
        let Json::String(url) = url else {
            return Err(within("@type", &unexpected("a string", &url)));
        };
        let inner = any_type(descriptor, &url)?;
        let message = if well_known(&inner).is_some() || is_value_of_empty(&inner, &members) {
            let [(name, _)] = &members[..] else {
                return Err(format!("an Any of {url:?} has one member, \"value\""));
            };
            if name != "value" {
                return Err(format!("an Any of {url:?} has no field {name:?}"));
            }
            let (_, value) = members.remove(0);
            self.message(&inner, value)?
        } else {
            self.ordinary(&inner, members)?
        };
        set(&mut any, 1, Value::String(url))?;
        set(&mut any, 2, Value::Bytes(wire::encode(&message).into()))?;
        Ok(any)
    }
}

/// Whether this is an `Empty` with a member `value`. Both forms of an `Empty` in an `Any` are in
/// use.
fn is_value_of_empty(message: &MessageDescriptor, members: &[(String, Json)]) -> bool {
    message.full_name() == "google.protobuf.Empty" && !members.is_empty()
}

/// Whether `null` is a value of this type, and not the absence of one.
fn takes_null(kind: &Kind) -> bool {
    match kind {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(declared) => is_null_value(declared),
        _ => false,
    }
}

fn set(message: &mut DynamicMessage, number: u32, value: Value) -> Result<(), Reason> {
    let set = message.try_set_field_by_number(number, value);
    set.map_err(|e| e.to_string())
}

fn map_key(kind: &Kind, text: &str) -> Result<MapKey, Reason> {
    let quoted = Json::String(text.to_owned());
    let key = match kind {
        Kind::String => MapKey::String(text.to_owned()),
        Kind::Bool => MapKey::Bool(match text {
            "true" => true,
            "false" => false,
            _ => return Err(unexpected("\"true\" or \"false\" as a key", &quoted)),
        }),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => MapKey::I32(integer(&quoted)?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => MapKey::I64(integer(&quoted)?),
        Kind::Uint32 | Kind::Fixed32 => MapKey::U32(integer(&quoted)?),
        Kind::Uint64 | Kind::Fixed64 => MapKey::U64(integer(&quoted)?),
        _ => return Err("a map's key of a type that can't be one".to_owned()),
    };
    Ok(key)
}

/// Reads a whole number, also a quoted one or one with a point or an exponent.
fn integer<T: TryFrom<i128>>(json: &Json) -> Result<T, Reason> {
    // An out-of-range number parses as the nearest double, which may be the range's least integer.
    // So that integer is only accepted if it's written as an integer.
    const OUT_OF_RANGE: f64 = i64::MIN as f64;
    let failed = || unexpected("an integer in its type's range", json);
    let number = number(json).ok_or_else(failed)?;
    let whole = if let Some(number) = number.as_i64() {
        i128::from(number)
    } else if let Some(number) = number.as_u64() {
        i128::from(number)
    } else {
        let float = number.as_f64().ok_or_else(failed)?;
        if float.fract() != 0.0 || float <= OUT_OF_RANGE {
            return Err(failed());
        }
        float as i128
    };
    T::try_from(whole).map_err(|_| failed())
}

fn float(json: &Json) -> Result<f64, Reason> {
    if let Json::String(text) = json {
        match text.as_str() {
            "NaN" => return Ok(f64::NAN),
            "Infinity" => return Ok(f64::INFINITY),
            "-Infinity" => return Ok(f64::NEG_INFINITY),
            _ => {}
        }
    }
    let number = number(json).and_then(|number| number.as_f64());
    number.ok_or_else(|| unexpected("a number", json))
}

fn single(value: f64) -> Result<f32, Reason> {
    let single = value as f32;
    if single.is_infinite() && value.is_finite() {
        return Err(format!("{value} is out of a float's range"));
    }
    Ok(single)
}

/// A number, or a string that holds one; JSON's grammar, so no spaces, no plus, no leading zeros.
fn number(json: &Json) -> Option<Number> {
    match json {
        Json::Number(number) => Some(number.clone()),
        Json::String(text) if !text.contains(|c: char| c.is_ascii_whitespace()) => {
            serde_json::from_str(text).ok()
        }
        _ => None,
    }
}

fn object(json: Json) -> Result<Vec<(String, Json)>, Reason> {
    match json {
        Json::Object(members) => Ok(members),
        other => Err(unexpected("an object", &other)),
    }
}

fn object_or_null(json: Json) -> Result<Vec<(String, Json)>, Reason> {
    match json {
        Json::Null => Ok(Vec::new()),
        other => object(other),
    }
}

fn no_field(descriptor: &MessageDescriptor, name: &str) -> Reason {
    let fields: Vec<_> = descriptor.fields().collect();
    let names = fields
        .iter()
        .flat_map(|field| [field.name(), field.json_name()]);
    format!("it has no field {name:?}{}", did_you_mean(name, names))
}

fn within(name: &str, reason: &str) -> Reason {
    format!("{name}: {reason}")
}

fn unexpected(expected: &str, got: &Json) -> Reason {
    let got = match got {
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => format!("{text:?}"),
        Json::List(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    };
    format!("expected {expected}, got {got}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn integers_are_exact_or_refused() {
        let number = |text: &str| serde_json::from_str::<Json>(text).unwrap();
        assert_eq!(integer(&number("9223372036854775807")), Ok(i64::MAX));
        assert_eq!(integer(&number("\"-9223372036854775808\"")), Ok(i64::MIN));
        assert_eq!(integer(&number("18446744073709551615")), Ok(u64::MAX));
        assert_eq!(integer(&number("\"1e3\"")), Ok(1000_i32));
        assert_eq!(integer(&number("2.0")), Ok(2_u32));
        for refused in [
            "0.5",
            "-9223372036854775809",
            "-1",
            "4294967296",
            "\" 1\"",
            "\"\"",
            "1e300",
            "true",
        ] {
            assert!(integer::<u32>(&number(refused)).is_err(), "{refused}");
        }
    }
}
