//! The mapping's rules for types and fields: well-known types, the content of an `Any`, the fields
//! that are set.

use std::borrow::Cow;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, MessageDescriptor, ReflectMessage, Value,
};

/// The problem, in a few words that name the field.
pub(super) type Reason = String;

/// How a well-known type differs from other messages.
pub(super) enum WellKnown {
    Any,
    /// Written as its one value.
    Wrapper,
    /// Written as text, or as any JSON.
    OwnForm,
}

pub(super) fn well_known(message: &MessageDescriptor) -> Option<WellKnown> {
    Some(
        match message.full_name().strip_prefix("google.protobuf.")? {
            "Any" => WellKnown::Any,
            "BoolValue" | "BytesValue" | "DoubleValue" | "FloatValue" | "Int32Value"
            | "Int64Value" | "StringValue" | "UInt32Value" | "UInt64Value" => WellKnown::Wrapper,
            "Duration" | "FieldMask" | "ListValue" | "Struct" | "Timestamp" | "Value" => {
                WellKnown::OwnForm
            }
            _ => return None,
        },
    )
}

/// The message type that the type URL of an `Any` names.
pub(super) fn any_type(any: &MessageDescriptor, url: &str) -> Result<MessageDescriptor, Reason> {
    let name = url.rsplit_once('/').map(|(_, name)| name);
    let name = name.ok_or_else(|| format!("the type URL {url:?} has no slash"))?;
    let inner = any.parent_pool().get_message_by_name(name);
    inner.ok_or_else(|| format!("the schema has no message {name:?}"))
}

/// The fields that are set, by number.
pub(super) fn fields(message: &DynamicMessage) -> Vec<(FieldDescriptor, Cow<'_, Value>)> {
    let all = message.descriptor();
    let of_message = all.fields().filter_map(|field| {
        let value = message.get_field(&field);
        // Only without presence: an unset field with presence has its default, which may be -0.0 as
        // well.
        let may_hide = !field.supports_presence() && is_negative_zero(&value);
        let is_set = message.has_field(&field) || may_hide;
        is_set.then_some((field, value))
    });
    of_message.collect()
}

/// Whether this value of a field without presence counts as unset.
pub(crate) fn is_unset(field: &FieldDescriptor, value: &Value) -> bool {
    value.is_default_for_field(field) && !is_negative_zero(value)
}

/// Whether the value is -0.0, which equals the default and is a different value.
fn is_negative_zero(value: &Value) -> bool {
    match value {
        Value::F32(value) => value.to_bits() == (-0.0_f32).to_bits(),
        Value::F64(value) => value.to_bits() == (-0.0_f64).to_bits(),
        _ => false,
    }
}

pub(super) fn is_null_value(declared: &EnumDescriptor) -> bool {
    declared.full_name() == "google.protobuf.NullValue"
}
