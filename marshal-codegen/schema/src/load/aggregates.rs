//! Rewrites option values that protoc accepts and the built-in compiler doesn't: names of
//! extensions in aggregates, as in `[(paint) = { [colour]: "red" }]`, lists without a colon, groups
//! by the names of their fields, and numbers that have names.
//!
//! protoc looks up such a name like any other, outwards from the message of the aggregate. The
//! built-in compiler requires the full name. This file replaces a partial name with an extension
//! that ends with it, in the file or its imports. Among several candidates it takes the one that
//! shares most with the file's package. If that choice is wrong, the compiler reports that the
//! extension doesn't extend the message.

use std::collections::{HashMap, HashSet};

use prost_reflect::prost_types::field_descriptor_proto::Type;
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    UninterpretedOption,
};

/// Rewrites values of options; returns whether any changed. `find` returns an imported source.
pub(super) fn resolve(
    file: &mut FileDescriptorProto,
    find: impl Fn(&str) -> Option<FileDescriptorProto>,
) -> bool {
    let (mut is_wanted, mut is_changed) = (false, false);
    each_option(file, &mut |option| {
        is_wanted |= option.aggregate_value.is_some();
        is_changed |= name_number(option);
    });
    if !is_wanted {
        return is_changed;
    }
    let mut known = Known::default();
    let (mut met, mut waiting) = (HashSet::new(), vec![file.clone()]);
    while let Some(next) = waiting.pop() {
        known.collect(&next);
        let imports = next.dependency.iter().filter(|i| met.insert((*i).clone()));
        waiting.extend(imports.filter_map(|import| find(import)));
    }
    let package = file.package().to_owned();
    each_option(file, &mut |option| {
        if let Some(text) = &option.aggregate_value {
            let whole = whole(text, &package, &known);
            is_changed |= whole != *text;
            option.aggregate_value = Some(whole);
        }
    });
    is_changed
}

/// `inf` and `nan` are both numbers and names; the compiler knows which of the two the option's
/// type accepts.
fn name_number(option: &mut UninterpretedOption) -> bool {
    let number = match option.identifier_value.as_deref() {
        Some("inf") => f64::INFINITY,
        Some("nan") => f64::NAN,
        _ => return false,
    };
    option.double_value = Some(number);
    true
}

/// Declarations that aggregates can name.
#[derive(Default)]
struct Known {
    /// The full names of extensions.
    extensions: Vec<String>,
    /// Fields that are groups, and the names of their messages.
    groups: HashMap<String, String>,
    /// The names of all other fields.
    fields: HashSet<String>,
}

/// Returns the text in the compiler's syntax. The parser has put spaces between all of its tokens.
///
/// `[ a . c ]` is the name of an extension. It is a list instead if a colon precedes it, or if it
/// holds messages or nothing.
fn whole(text: &str, package: &str, known: &Known) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = outside_strings(rest, '[') {
        let (before, behind) = rest.split_at(open + 1);
        out.push_str(&groups(&before[..open], known));
        rest = behind;
        let is_list = before[..open].trim_end().ends_with(':');
        let begins = behind.trim_start();
        if begins.starts_with(['{', '<', ']']) && !is_list {
            out.push_str(": ");
        }
        out.push('[');
        let Some(close) = behind.find(']').filter(|_| !is_list) else {
            continue;
        };
        let name: String = behind[..close].split_whitespace().collect();
        let found = find(&name, package, &known.extensions);
        if let Some(found) = found {
            out.push_str(found);
            rest = &behind[close..];
        }
    }
    out + &groups(rest, known)
}

/// Renames groups: the compiler knows a group by its message's name, protoc also by the field's.
fn groups(text: &str, known: &Known) -> String {
    if known.groups.is_empty() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match rest.starts_with('"') {
            // A string is a piece of its own.
            true => string_end(rest),
            false => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
        };
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let end = end.max(first);
        let (piece, behind) = rest.split_at(end);
        let is_field = behind.trim_start().starts_with(['{', '<', ':']);
        match known.groups.get(piece) {
            Some(group) if is_field && !known.fields.contains(piece) => out.push_str(group),
            _ => out.push_str(piece),
        }
        rest = behind;
    }
    out
}

/// The offset of a character outside of strings.
fn outside_strings(text: &str, wanted: char) -> Option<usize> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            // The parser has written all strings with these quotes.
            '"' => in_string = !in_string,
            _ if c == wanted && !in_string => return Some(at),
            _ => {}
        }
    }
    None
}

/// The end of the string at the text's beginning.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn find<'e>(name: &str, package: &str, extensions: &'e [String]) -> Option<&'e str> {
    let name = name.trim_start_matches('.');
    let end = format!(".{name}");
    let shared = |full: &String| {
        let parts = full.split('.').zip(package.split('.'));
        parts.take_while(|(a, b)| a == b).count()
    };
    let fits = |full: &&String| **full == name || full.ends_with(&end);
    let found = extensions.iter().filter(fits);
    found
        .max_by_key(|full| (**full == name, shared(full)))
        .map(String::as_str)
}

impl Known {
    /// Adds a file's declarations.
    fn collect(&mut self, file: &FileDescriptorProto) {
        self.declare(file.package(), &file.extension);
        let mut waiting: Vec<(String, &DescriptorProto)> = Vec::new();
        let inside = |scope: &str, m: &DescriptorProto| join(scope, m.name());
        waiting.extend(
            file.message_type
                .iter()
                .map(|m| (inside(file.package(), m), m)),
        );
        while let Some((name, message)) = waiting.pop() {
            self.declare(&name, &message.extension);
            for field in &message.field {
                match field.r#type() == Type::Group {
                    true => {
                        let group = field.type_name().rsplit('.').next().unwrap_or_default();
                        let field = field.name().to_owned();
                        self.groups.insert(field, group.to_owned());
                    }
                    false => {
                        self.fields.insert(field.name().to_owned());
                    }
                }
            }
            waiting.extend(message.nested_type.iter().map(|m| (inside(&name, m), m)));
        }
    }

    fn declare(&mut self, scope: &str, extensions: &[FieldDescriptorProto]) {
        let names = extensions.iter().map(|f| join(scope, f.name()));
        self.extensions.extend(names);
    }
}

fn join(scope: &str, name: &str) -> String {
    [scope, name]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

/// Visits every option of a file that the parser has left for the compiler.
fn each_option(file: &mut FileDescriptorProto, see: &mut dyn FnMut(&mut UninterpretedOption)) {
    macro_rules! see {
        ($($declared:expr),*) => {$(
            for option in $declared.options.iter_mut().flat_map(|o| &mut o.uninterpreted_option) {
                see(option);
            }
        )*};
    }
    let mut enums: Vec<&mut EnumDescriptorProto> = file.enum_type.iter_mut().collect();
    let mut waiting: Vec<&mut DescriptorProto> = file.message_type.iter_mut().collect();
    while let Some(message) = waiting.pop() {
        see!(message);
        for field in message.field.iter_mut().chain(&mut message.extension) {
            see!(field);
        }
        for oneof in &mut message.oneof_decl {
            see!(oneof);
        }
        for range in &mut message.extension_range {
            see!(range);
        }
        enums.extend(&mut message.enum_type);
        waiting.extend(&mut message.nested_type);
    }
    for declared in enums {
        see!(declared);
        for value in &mut declared.value {
            see!(value);
        }
    }
    for service in &mut file.service {
        see!(service);
        for method in &mut service.method {
            see!(method);
        }
    }
    for extension in &mut file.extension {
        see!(extension);
    }
    see!(file);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_whole_outside_of_strings_and_lists() {
        let known = Known {
            extensions: ["a.b.colour", "a.c.colour", "a.b.M.shade"]
                .map(str::to_owned)
                .into(),
            groups: [("grp".to_owned(), "Grp".to_owned())].into(),
            fields: HashSet::new(),
        };
        let check = |text: &str, expected: &str| {
            assert_eq!(whole(text, "a.b", &known), expected);
        };
        check(
            "[ colour ] : \"[ colour ]\\\"[\"",
            "[a.b.colour] : \"[ colour ]\\\"[\"",
        );
        check(
            "x : [ colour , 1 ] [ M . shade ] : 2",
            "x : [ colour , 1 ] [a.b.M.shade] : 2",
        );
        check(
            "[ a . c . colour ] : 1 [ d ] : 2 [",
            "[a.c.colour] : 1 [ d ] : 2 [",
        );
        check(
            "ro [ { i : 1 } , < i : 2 > ] none [ ] r : [ 1 ] [ colour ] [ { i : 1 } ]",
            "ro : [ { i : 1 } , < i : 2 > ] none : [ ] r : [ 1 ] [a.b.colour] : [ { i : 1 } ]",
        );
        check(
            "grp { s : \"grp { \\\" é\" x : grp } grp : < > é",
            "Grp { s : \"grp { \\\" é\" x : grp } Grp : < > é",
        );
    }
}
