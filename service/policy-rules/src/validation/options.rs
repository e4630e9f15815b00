//! Reading the options that declare constraints.

use tollgate_schema::prost_reflect::{DynamicMessage, ExtensionDescriptor, Value};

/// The rules in options, if there are any.
pub(super) fn rules_in(
    options: &DynamicMessage,
    extension: &ExtensionDescriptor,
) -> Option<DynamicMessage> {
    if !options.has_extension(extension) {
        return None;
    }
    options.get_extension(extension).as_message().cloned()
}

/// A field of rules, if it is set.
pub(super) fn set(rules: &DynamicMessage, name: &str) -> Option<Value> {
    let is_set = rules.has_field_by_name(name);
    is_set.then(|| {
        rules
            .get_field_by_name(name)
            .map(|value| value.into_owned())
    })?
}

/// Whether a field of rules is set to true.
pub(super) fn is_true(rules: &DynamicMessage, name: &str) -> bool {
    set(rules, name).and_then(|value| value.as_bool()) == Some(true)
}

/// A text among rules; empty if it isn't set.
pub(super) fn text_of(rules: &DynamicMessage, name: &str) -> String {
    let value = set(rules, name);
    let text = value.as_ref().and_then(|value| value.as_str());
    text.unwrap_or_default().to_owned()
}

/// The messages of a repeated field.
pub(super) fn messages(rules: &DynamicMessage, name: &str) -> Vec<DynamicMessage> {
    let value = set(rules, name);
    let list = value.as_ref().and_then(|value| value.as_list());
    let messages = list.unwrap_or_default().iter();
    messages
        .filter_map(|value| value.as_message().cloned())
        .collect()
}
