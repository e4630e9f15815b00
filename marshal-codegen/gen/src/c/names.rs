//! C names: everything is prefixed by its package and by the messages around it.
//!
//! Names that end in an underscore are the generator's own (`presence_`, `unknown_`, `x_is_set_`). A field whose name ends in
//! one, or that C or C++ won't have as a member, gets one more, so that no two of them meet: the generator's end in one.

use crate::model::TypeName;

/// Keywords of C11 and C++17, and macros that are defined wherever the stubs are.
const RESERVED: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "assert",
    "atomic_cancel",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "errno",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "i386",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "offsetof",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "stderr",
    "stdin",
    "stdout",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    "EOF",
    "NULL",
];

/// The name of something that a package or a message declares.
pub(crate) fn ident(package: &str, outer: &[String], name: &str) -> String {
    let parts = package.split('.').filter(|part| !part.is_empty());
    let mut parts: Vec<&str> = parts.chain(outer.iter().map(String::as_str)).collect();
    parts.push(name);
    member(&parts.join("_"))
}

/// The name of a type.
pub(crate) fn type_name(name: &TypeName) -> String {
    ident(&name.package, &name.outer, &name.name)
}

/// The name of a struct's member.
pub(crate) fn member(name: &str) -> String {
    if name.ends_with('_') || RESERVED.contains(&name) {
        format!("{name}_")
    } else {
        name.to_owned()
    }
}

/// The beginning of a package's macros.
pub(crate) fn screaming(package: &str) -> String {
    package
        .split('.')
        .filter(|part| !part.is_empty())
        .map(|part| part.to_ascii_uppercase() + "_")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_prefixed_and_never_keywords() {
        assert_eq!(
            ident("a.b", &["Outer".to_owned()], "Inner"),
            "a_b_Outer_Inner"
        );
        assert_eq!(ident("", &[], "int"), "int_");
        for (name, expected) in [
            ("class", "class_"),
            ("class_", "class__"),
            ("presence_", "presence__"),
            ("x", "x"),
        ] {
            assert_eq!(member(name), expected);
        }
    }
}
