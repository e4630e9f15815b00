//! C names: each is prefixed by its package and by the surrounding messages.
//!
//! Names that end in an underscore belong to the generator (`presence_`, `unknown_`, `x_is_set_`).
//! A field gets one more underscore if its name ends in one, or if C or C++ doesn't accept it as a
//! member. So it can't collide with the generator's names, which end in exactly one. Names that C
//! reserves by their beginning (`_Bool`, `__int128`) begin with an `x` instead.
//!
//! C has one name space. An item defines its own name and all names that begin with it, and it
//! needs all of them free: if one is taken, the item gets an underscore at its end. Top-level items
//! precede nested ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use crate::model::TypeName;

/// The names of types and services.
#[derive(Default)]
pub(crate) struct Names {
    given: BTreeMap<TypeName, String>,
    /// By package: the name of its descriptor set's array.
    descriptor_sets: BTreeMap<String, String>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Starts with the libraries' names taken and no item named.
    pub(crate) fn new() -> Names {
        let headers = [include_str!("tollgate_block.h"), include_str!("tollgate.h")];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = headers.iter().flat_map(|text| text.split(|c| !is_name(c)));
        let own = words.filter(|word| word.to_ascii_lowercase().starts_with("tollgate_"));
        let library = entries(MACROS).chain(entries(DECLARED));
        let taken = own.chain(library).chain(LOCALS.iter().copied());
        Names {
            taken: taken.map(str::to_owned).collect(),
            ..Names::default()
        }
    }

    /// An item's name; before it is named, the name that it would have on its own.
    pub(crate) fn of(&self, name: &TypeName) -> String {
        let given = self.given.get(name).cloned();
        given.unwrap_or_else(|| ident(&name.package, &name.outer, &name.name))
    }

    /// Names an item. `defined` are the names that it defines on its own.
    pub(crate) fn give(&mut self, name: &TypeName, defined: &[String]) {
        let alone = self.of(name);
        let suffix = |name: &String| name[alone.len()..].to_owned();
        let suffixes: Vec<String> = defined.iter().map(suffix).collect();
        let given = free(alone, &suffixes, &mut self.taken);
        self.given.insert(name.clone(), given);
    }

    /// Takes the macro that guards a header; packages don't share one.
    pub(crate) fn take_guard(&mut self, name: String) {
        self.taken.insert(name);
    }

    /// Names the array of a package's descriptor set: `a.b` and `a_b` have the same prefix.
    pub(crate) fn give_descriptor_set(&mut self, package: &str) {
        let name = free(
            ident(package, &[], "descriptor_set"),
            &[""],
            &mut self.taken,
        );
        self.descriptor_sets.insert(package.to_owned(), name);
    }

    /// The array of the descriptor set, for a package with services.
    pub(crate) fn descriptor_set(&self, package: &str) -> &str {
        &self.descriptor_sets[package]
    }
}

/// Takes `name` with each of the suffixes. If one of these names is taken, adds underscores in
/// between.
pub(crate) fn free<S: AsRef<str>>(
    mut name: String,
    suffixes: &[S],
    taken: &mut BTreeSet<String>,
) -> String {
    let whole = |name: &str, suffix: &S| [name, suffix.as_ref()].concat();
    while suffixes.iter().any(|s| taken.contains(&whole(&name, s))) {
        name.push('_');
    }
    taken.extend(suffixes.iter().map(|s| whole(&name, s)));
    name
}

/// Names that a struct's member can't have: the macros without parameters of all headers of Debian
/// 12's C library (libc6-dev), for programs that include any of them before the stubs. They come
/// from `gcc -dM -E -D_GNU_SOURCE` with each header.
const MACROS: &str = include_str!("macros.txt");
static IS_MACRO: LazyLock<HashSet<&str>> = LazyLock::new(|| entries(MACROS).collect());
/// Names that an item without a prefix can't have.
const DECLARED: &str = include_str!("declared.txt");
/// Parameters, variables and members in whose scope an item is named, and names of the program or
/// C++. A test checks each word that the generator writes as the name of an item.
const LOCALS: &[&str] = &[
    "all", "at", "client", "count", "fixed", "handlers", "i", "index", "items", "key", "m", "main",
    "session", "status", "std", "target", "value", "view", "w",
];

/// The words of a list with comments.
fn entries(list: &'static str) -> impl Iterator<Item = &'static str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace)
}

/// Keywords of C11 and C++17, macros that are defined wherever the stubs are, and the types of
/// members: in C++ a member's name hides a type from later members.
const RESERVED: &[&str] = &[
    "int32_t",
    "int64_t",
    "size_t",
    "tollgate_bytes",
    "tollgate_call",
    "tollgate_slot",
    "tollgate_str",
    "uint32_t",
    "uint64_t",
    "uint8_t",
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

/// The name of an item in a package or a message.
pub(crate) fn ident(package: &str, outer: &[String], name: &str) -> String {
    let parts = package.split('.').filter(|part| !part.is_empty());
    let mut parts: Vec<&str> = parts.chain(outer.iter().map(String::as_str)).collect();
    parts.push(name);
    let name = member(&parts.join("_"));
    // C reserves all file-scope names that begin with an underscore.
    match name.starts_with('_') {
        true => format!("x{name}"),
        false => name,
    }
}

/// The name of a struct's member.
pub(crate) fn member(name: &str) -> String {
    let is_taken = || RESERVED.contains(&name) || IS_MACRO.contains(name);
    let end = match name.ends_with('_') || is_taken() {
        true => "_",
        false => "",
    };
    marked(name, end)
}

/// A name that the generator derives from another one by appending `end`. C and C++ reserve all
/// names that begin with two underscores, or with one and a capital letter: `_Bool`, `__int128`.
/// Those begin with an `x` instead.
pub(crate) fn marked(name: &str, end: &str) -> String {
    let whole = format!("{name}{end}");
    let is_reserved = |c: char| c == '_' || c.is_ascii_uppercase();
    match whole.strip_prefix('_') {
        Some(rest) if rest.starts_with(is_reserved) => format!("x{whole}"),
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_item_defines_is_free_together() {
        let name = |name: &str| TypeName {
            package: "p".into(),
            outer: Vec::new(),
            name: name.into(),
        };
        let mut names = Names::new();
        for (item, suffixes, expected) in [
            ("M", &["", "_get_x"][..], "p_M"),
            ("M_get", &["", "_x"], "p_M_get_"),
            ("M_get_x", &[""], "p_M_get_x_"),
        ] {
            let defined: Vec<_> = suffixes.iter().map(|s| format!("p_{item}{s}")).collect();
            names.give(&name(item), &defined);
            assert_eq!(names.of(&name(item)), expected);
        }
    }

    /// Also of headers that neither ISO C nor POSIX has.
    #[test]
    fn members_are_no_macros_of_any_header() {
        for (name, header) in [
            ("EOF", "stdio.h"),
            ("IP", "arpa/telnet.h"),
            ("EM_X86_64", "elf.h"),
            ("p_class", "resolv.h"),
            ("no_argument", "getopt.h"),
            ("ACK", "arpa/tftp.h"),
        ] {
            assert_eq!(member(name), format!("{name}_"), "{header}");
        }
        // A macro with parameters leaves the name alone unless a parenthesis follows.
        assert_eq!(member("log"), "log");
    }

    #[test]
    fn names_are_prefixed_and_never_keywords() {
        assert_eq!(
            ident("a.b", &["Outer".to_owned()], "Inner"),
            "a_b_Outer_Inner"
        );
        assert_eq!(ident("", &[], "int"), "int_");
        assert_eq!(ident("", &[], "_exit"), "x_exit");
        assert_eq!(ident("_p", &[], "M"), "x_p_M");
        for (name, expected) in [
            ("class", "class_"),
            ("class_", "class__"),
            ("presence_", "presence__"),
            ("x", "x"),
            ("INT32_MAX", "INT32_MAX_"),
            ("st_atime", "st_atime_"),
            ("_x", "_x"),
            ("_Bool", "x_Bool"),
            ("__int128", "x__int128"),
            ("__FILE__", "x__FILE___"),
            ("_", "x__"),
        ] {
            assert_eq!(member(name), expected);
        }
    }
}
