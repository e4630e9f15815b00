//! Prints a message as one line of JSON.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, SerializeOptions, Value,
};
use std::collections::HashMap;

use super::base64;
use super::mapping::{Reason, WellKnown, any_type, fields, is_null_value, well_known};

pub(super) fn write_message(message: &DynamicMessage, out: &mut String) -> Result<(), Reason> {
    match well_known(&message.descriptor()) {
        Some(WellKnown::Any) => write_any(message, out),
        Some(WellKnown::Wrapper) => {
            let field = message.descriptor().get_field(1);
            let field = field.ok_or("a wrapper without a value")?;
            write_value(&field.kind(), &message.get_field(&field), out)
        }
        Some(WellKnown::OwnForm) => {
            check_time(message)?;
            write_own_form(message, out)
        }
        None => {
            out.push('{');
            write_fields(message, "", out)?;
            out.push('}');
            Ok(())
        }
    }
}

/// Writes an object's members: the set fields, by number, each but the first after a comma.
fn write_fields(message: &DynamicMessage, first: &str, out: &mut String) -> Result<(), Reason> {
    let mut separator = first;
    for (field, value) in fields(message) {
        out.push_str(separator);
        separator = ",";
        write_text(field.json_name(), out);
        out.push(':');
        write_field(&field, &value, out)?;
    }
    Ok(())
}

fn write_field(field: &FieldDescriptor, value: &Value, out: &mut String) -> Result<(), Reason> {
    match value {
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write_value(&field.kind(), item, out)?;
            }
            out.push(']');
            Ok(())
        }
        Value::Map(map) => write_map(&field.kind(), map, out),
        value => write_value(&field.kind(), value, out),
    }
}

/// Writes a map in the order of its keys, so that equal maps are printed alike.
fn write_map(entry: &Kind, map: &HashMap<MapKey, Value>, out: &mut String) -> Result<(), Reason> {
    let Kind::Message(entry) = entry else {
        return Err("a map without entries".to_owned());
    };
    let kind = entry.map_entry_value_field().kind();
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    out.push('{');
    for (i, (key, value)) in sorted.into_iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        match key {
            MapKey::String(text) => write_text(text, out),
            MapKey::Bool(key) => write_text(&key.to_string(), out),
            MapKey::I32(key) => write_text(&key.to_string(), out),
            MapKey::I64(key) => write_text(&key.to_string(), out),
            MapKey::U32(key) => write_text(&key.to_string(), out),
            MapKey::U64(key) => write_text(&key.to_string(), out),
        }
        out.push(':');
        write_value(&kind, value, out)?;
    }
    out.push('}');
    Ok(())
}

fn write_value(kind: &Kind, value: &Value, out: &mut String) -> Result<(), Reason> {
    match (kind, value) {
        (_, Value::Message(message)) => return write_message(message, out),
        (Kind::Enum(declared), Value::EnumNumber(_)) if is_null_value(declared) => {
            out.push_str("null");
        }
        (Kind::Enum(declared), Value::EnumNumber(number)) => match declared.get_value(*number) {
            Some(value) => write_text(value.name(), out),
            None => out.push_str(&number.to_string()),
        },
        (_, Value::Bool(value)) => out.push_str(&value.to_string()),
        (_, Value::I32(value)) => out.push_str(&value.to_string()),
        (_, Value::U32(value)) => out.push_str(&value.to_string()),
        // A double can't hold all 64-bit integers, and many programs read every JSON number as a
        // double.
        (_, Value::I64(value)) => write_text(&value.to_string(), out),
        (_, Value::U64(value)) => write_text(&value.to_string(), out),
        (_, Value::F32(value)) => match float_name(f64::from(*value)) {
            Some(name) => write_text(name, out),
            None => write_number(value, out)?,
        },
        (_, Value::F64(value)) => match float_name(*value) {
            Some(name) => write_text(name, out),
            None => write_number(value, out)?,
        },
        (_, Value::String(text)) => write_text(text, out),
        (_, Value::Bytes(bytes)) => {
            out.push('"');
            base64::encode(bytes, out);
            out.push('"');
        }
        (_, Value::EnumNumber(_) | Value::List(_) | Value::Map(_)) => {
            return Err("a value of another type than its field".to_owned());
        }
    }
    Ok(())
}

fn write_any(any: &DynamicMessage, out: &mut String) -> Result<(), Reason> {
    let (url, bytes) = (any.get_field_by_number(1), any.get_field_by_number(2));
    let url = url.as_deref().and_then(Value::as_str);
    let bytes = bytes.as_deref().and_then(Value::as_bytes);
    let (Some(url), Some(bytes)) = (url, bytes) else {
        return Err("an Any without a type URL or bytes".to_owned());
    };
    if url.is_empty() && bytes.is_empty() {
        out.push_str("{}");
        return Ok(());
    }
    let inner = any_type(&any.descriptor(), url)?;
    let held = DynamicMessage::decode(inner.clone(), bytes.clone());
    let held = held.map_err(|e| format!("an Any of {url:?} holds something else: {e}"))?;
    out.push_str("{\"@type\":");
    write_text(url, out);
    if well_known(&inner).is_some() {
        out.push_str(",\"value\":");
        write_message(&held, out)?;
    } else {
        write_fields(&held, ",", out)?;
    }
    out.push('}');
    Ok(())
}

fn write_own_form(message: &DynamicMessage, out: &mut String) -> Result<(), Reason> {
    let mut text = Vec::new();
    let mut printer = serde_json::Serializer::new(&mut text);
    let printed = message.serialize_with_options(&mut printer, &SerializeOptions::new());
    printed.map_err(|e| e.to_string())?;
    out.push_str(std::str::from_utf8(&text).map_err(|e| e.to_string())?);
    Ok(())
}

/// Refuses times whose nanoseconds have no form in JSON; `prost-reflect` normalizes them instead.
fn check_time(time: &DynamicMessage) -> Result<(), Reason> {
    let descriptor = time.descriptor();
    let (name, least) = match descriptor.full_name() {
        name @ "google.protobuf.Timestamp" => (name, 0),
        name @ "google.protobuf.Duration" => (name, -999_999_999),
        _ => return Ok(()),
    };
    let number = |field| time.get_field_by_number(field);
    let seconds = number(1).and_then(|v| v.as_i64()).unwrap_or(0);
    let nanos = number(2).and_then(|v| v.as_i32()).unwrap_or(0);
    if !(least..=999_999_999).contains(&nanos) {
        return Err(format!("a {name} has {nanos} nanos, which is out of range"));
    }
    if least < 0 && seconds.signum() * i64::from(nanos.signum()) < 0 {
        return Err(format!(
            "a {name} has {seconds} seconds and {nanos} nanos, of different signs"
        ));
    }
    Ok(())
}

fn float_name(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

/// Writes the shortest text that parses to this number.
fn write_number(value: &impl serde::Serialize, out: &mut String) -> Result<(), Reason> {
    out.push_str(&serde_json::to_string(value).map_err(|e| e.to_string())?);
    Ok(())
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
