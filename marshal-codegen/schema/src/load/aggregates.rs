//! Names of extensions in aggregates: `[(paint) = { [colour]: "red" }]`.
//!
//! protoc looks such a name up as any other, from the message outwards that the aggregate is of; the compiler that is built in wants it
//! whole. Here a name that is not whole becomes the extension in the file or below its imports that ends with it. Of several, the one
//! that shares most with the file's package is taken; if that is the wrong one, the compiler says that it doesn't extend the message.

use std::collections::HashSet;

use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    UninterpretedOption,
};

/// Makes names of extensions whole; answers whether there was one to make so. `find` gives an imported source.
pub(super) fn resolve(
    file: &mut FileDescriptorProto,
    find: impl Fn(&str) -> Option<FileDescriptorProto>,
) -> bool {
    let mut is_wanted = false;
    each_option(file, &mut |option| is_wanted |= aggregate(option).is_some());
    if !is_wanted {
        return false;
    }
    let mut extensions = Vec::new();
    let (mut met, mut waiting) = (HashSet::new(), vec![file.clone()]);
    while let Some(next) = waiting.pop() {
        collect(&next, &mut extensions);
        let imports = next.dependency.iter().filter(|i| met.insert((*i).clone()));
        waiting.extend(imports.filter_map(|import| find(import)));
    }
    let package = file.package().to_owned();
    let mut is_changed = false;
    each_option(file, &mut |option| {
        let Some(text) = aggregate(option) else {
            return;
        };
        let whole = whole(text, &package, &extensions);
        is_changed |= whole != text;
        option.aggregate_value = Some(whole);
    });
    is_changed
}

/// The text of an aggregate that may name an extension. The parser has put spaces between all of its tokens.
fn aggregate(option: &UninterpretedOption) -> Option<&str> {
    let text = option.aggregate_value.as_deref();
    text.filter(|text| text.contains('['))
}

/// The text with whole names: `[ a . b ]` is one, unless it is a list's, which has a colon before it.
fn whole(text: &str, package: &str, extensions: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = outside_strings(rest, '[') {
        let (before, behind) = rest.split_at(open + 1);
        out.push_str(before);
        rest = behind;
        let is_list = before[..open].trim_end().ends_with(':');
        let Some(close) = behind.find(']').filter(|_| !is_list) else {
            continue;
        };
        let name: String = behind[..close].split_whitespace().collect();
        let found = find(&name, package, extensions);
        if let Some(found) = found {
            out.push_str(found);
            rest = &behind[close..];
        }
    }
    out + rest
}

/// Where a character is that no string has.
fn outside_strings(text: &str, wanted: char) -> Option<usize> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            // The parser has written all strings in these quotes.
            '"' => in_string = !in_string,
            _ if c == wanted && !in_string => return Some(at),
            _ => {}
        }
    }
    None
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

/// The full names of the extensions that a file declares.
fn collect(file: &FileDescriptorProto, extensions: &mut Vec<String>) {
    let declare = |scope: &str, fields: &[FieldDescriptorProto], extensions: &mut Vec<String>| {
        extensions.extend(fields.iter().map(|f| join(scope, f.name())));
    };
    declare(file.package(), &file.extension, extensions);
    let mut waiting: Vec<(String, &DescriptorProto)> = Vec::new();
    waiting.extend(
        file.message_type
            .iter()
            .map(|m| (join(file.package(), m.name()), m)),
    );
    while let Some((name, message)) = waiting.pop() {
        declare(&name, &message.extension, extensions);
        waiting.extend(
            message
                .nested_type
                .iter()
                .map(|m| (join(&name, m.name()), m)),
        );
    }
}

fn join(scope: &str, name: &str) -> String {
    [scope, name]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

/// Every option of a file that the parser has left for the compiler.
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
        let extensions = ["a.b.colour", "a.c.colour", "a.b.M.shade"].map(str::to_owned);
        let check = |text: &str, expected: &str| {
            assert_eq!(whole(text, "a.b", &extensions), expected);
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
    }
}
