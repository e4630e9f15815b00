//! The header says what the library exports: every function with its types, every struct with its
//! fields, every constant, and nothing else. Both are read as text, and the types of one are
//! translated into those of the other.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Name, and types in order: of a function its result and parameters, of a struct its fields with
/// their names.
type Shapes = BTreeMap<String, Vec<String>>;

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Rust's sources that say what C sees.
fn sources() -> String {
    let exports = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports");
    let mut files: Vec<PathBuf> = std::fs::read_dir(exports)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let shared = ["src/outgoing.rs", "src/callbacks.rs", "src/status.rs"].map(PathBuf::from);
    files.extend(shared);
    files.into_iter().map(read).collect::<Vec<_>>().join("\n")
}

/// The header without comments, directives and bodies.
fn header(path: &str) -> String {
    let text = read(path);
    let mut bare = String::new();
    for (at, part) in text.split("/*").enumerate() {
        bare += match at {
            0 => part,
            _ => part.split_once("*/").unwrap().1,
        };
    }
    let lines = bare.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter(|line| !line.starts_with("extern \"C\""))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Declarations at the top level; a struct's or enum's body is a part of its own, that of a
/// function is left out.
fn declarations(header: &str) -> Vec<String> {
    let (mut all, mut now, mut depth) = (Vec::new(), String::new(), 0);
    for c in header.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        now.push(c);
        let is_body = c == '}' && depth == 0 && now.contains("static inline");
        if (c == ';' && depth == 0) || is_body {
            let one = words(&std::mem::take(&mut now));
            if !is_body {
                all.push(one.trim_end_matches(';').to_owned());
            }
        }
    }
    all
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `const char *name` to `const char *`; what is the same to the compiler gets one name.
fn c_type(declared: &str) -> String {
    let declared = declared.trim();
    let name = declared.rfind(|c: char| !c.is_alphanumeric() && c != '_');
    let of = match name {
        Some(at) if declared != "void" => &declared[..=at],
        _ => declared,
    };
    let of = of
        .replace("tollgate_code", "int32_t")
        .replace("tollgate_error", "int32_t");
    let of = match of.trim() {
        "int" => "int32_t".to_owned(),
        other => other.to_owned(),
    };
    of.replace(" *", "*")
}

fn rust_type(declared: &str) -> String {
    let declared = declared.trim();
    if let Some(to) = declared.strip_prefix("*mut ") {
        return format!("{}*", rust_type(to));
    }
    if let Some(to) = declared.strip_prefix("*const ") {
        let to = rust_type(to);
        return match to.ends_with('*') {
            true => format!("{to} const*"),
            false => format!("const {to}*"),
        };
    }
    let name = match declared {
        "" => "void",
        "i32" | "tollgate_code" => "int32_t",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "c_char" | "std::ffi::c_char" => "char",
        "c_void" => "void",
        "Option<WriteFn>" => "tollgate_write_fn",
        "RunFn" => "tollgate_run_fn",
        "Message" => "tollgate_message",
        "Call" => "tollgate_call",
        "StatusObject" => "tollgate_status",
        other => other,
    };
    name.to_owned()
}

/// `int32_t name(parameters)`, and function types `void (*name)(parameters)`.
fn c_functions(declarations: &[String], of_types: bool) -> Shapes {
    let mut shapes = Shapes::new();
    for one in declarations {
        let declared = match (one.strip_prefix("typedef "), one.split_once("(*")) {
            (Some(declared), Some(_)) if of_types && !one.contains('{') => {
                declared.replacen("(*", "", 1).replacen(')', "", 1)
            }
            (None, _) if !of_types && !one.contains('{') && one.contains('(') => one.clone(),
            _ => continue,
        };
        let (before, parameters) = declared.split_once('(').unwrap();
        let at = before
            .rfind(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap()
            + 1;
        let (result, name) = before.split_at(at);
        let parameters = parameters.trim_end_matches(')');
        let parameters = parameters.split(',').filter(|p| p.trim() != "void");
        let types = std::iter::once(c_type(&format!("{result}x"))).chain(parameters.map(c_type));
        shapes.insert(name.to_owned(), types.collect());
    }
    shapes
}

fn rust_functions(source: &str) -> Shapes {
    let mut shapes = Shapes::new();
    for part in source.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (parameters, rest) = rest.split_once(')').unwrap();
        if name.is_empty() {
            continue;
        }
        let result = rest.split_once('{').unwrap().0;
        let result = result.trim().trim_start_matches("->");
        let parameters = parameters.split(',').filter(|p| !p.trim().is_empty());
        let parameters = parameters.map(|p| rust_type(p.split_once(':').unwrap().1));
        let types = std::iter::once(rust_type(result)).chain(parameters);
        shapes.insert(name.to_owned(), types.collect());
    }
    shapes
}

/// `DoneFn` and the others, by C's name.
fn rust_function_types(source: &str) -> Shapes {
    let names = [
        ("DoneFn", "tollgate_done_fn"),
        ("HandlerFn", "tollgate_handler_fn"),
        ("ReadyFn", "tollgate_ready_fn"),
        ("RunFn", "tollgate_run_fn"),
        ("GuardFn", "tollgate_guard_fn"),
        ("WriteFn", "tollgate_write_fn"),
    ];
    let shape = |name: &str| {
        let (_, rest) = source.split_once(&format!("type {name} =")).unwrap();
        let declared = words(rest.split_once(';').unwrap().0);
        let (parameters, result) = declared.split_once('(').unwrap().1.split_once(')').unwrap();
        let result = result.trim().trim_start_matches("->");
        let parameters = parameters.split(',').filter(|p| !p.trim().is_empty());
        std::iter::once(rust_type(result))
            .chain(parameters.map(rust_type))
            .collect()
    };
    names.map(|(rust, c)| (c.to_owned(), shape(rust))).into()
}

fn c_structs(declarations: &[String]) -> Shapes {
    let mut shapes = Shapes::new();
    for one in declarations {
        let Some((_, rest)) = one.split_once("typedef struct ") else {
            continue;
        };
        let Some((name, rest)) = rest.split_once(" {") else {
            continue;
        };
        let fields = rest.rsplit_once('}').unwrap().0.split(';');
        let fields = fields
            .filter(|field| !field.trim().is_empty())
            .map(|field| {
                let name = field
                    .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap();
                format!("{name}: {}", c_type(field))
            });
        shapes.insert(name.to_owned(), fields.collect());
    }
    shapes
}

fn rust_structs(source: &str) -> Shapes {
    let mut shapes = Shapes::new();
    for part in source.split("#[repr(C)]").skip(1) {
        let (_, rest) = part.split_once("pub struct ").unwrap();
        let (name, rest) = rest.split_once(" {").unwrap();
        let body = rest.split_once("\n}").unwrap().0;
        let lines = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("///"));
        let fields = lines.map(|line| {
            let line = line.trim_start_matches("pub(crate) ").trim_end_matches(',');
            let (name, of) = line.split_once(": ").unwrap();
            format!("{name}: {}", rust_type(of))
        });
        shapes.insert(name.to_owned(), fields.collect());
    }
    shapes
}

fn compare(header: &Shapes, source: &Shapes, what: &str) {
    assert!(!source.is_empty(), "no {what} were found in the sources");
    let names: BTreeSet<_> = header.keys().chain(source.keys()).collect();
    let differs = names
        .into_iter()
        .filter(|name| header.get(*name) != source.get(*name));
    let findings: Vec<_> = differs
        .map(|name| {
            format!(
                "{name}: the header has {:?}, the library {:?}",
                header.get(name),
                source.get(name)
            )
        })
        .collect();
    assert!(findings.is_empty(), "{what}:\n  {}", findings.join("\n  "));
}

#[test]
fn functions_are_those_of_the_header() {
    let declared = declarations(&header("include/tollgate.h"));
    let source = sources();
    let functions = c_functions(&declared, false);
    assert!(functions.len() > 50, "only {} were found", functions.len());
    compare(&functions, &rust_functions(&source), "functions");
    compare(
        &c_functions(&declared, true),
        &rust_function_types(&source),
        "function types",
    );
}

#[test]
fn structs_are_those_of_the_headers() {
    let mut structs = c_structs(&declarations(&header("include/tollgate.h")));
    let stubs = header("../../marshal-codegen/gen/src/c/tollgate_block.h");
    let source = rust_structs(&sources());
    // Of the stubs' own structs those that the library knows.
    let stubs = c_structs(&declarations(&stubs)).into_iter();
    structs.extend(stubs.filter(|(name, _)| source.contains_key(name)));
    assert_eq!(structs.len(), 10, "{:?}", structs.keys());
    compare(&structs, &source, "structs");
}

#[test]
fn constants_are_those_of_the_header() {
    let text = read("include/tollgate.h");
    let mut header = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        let pair = match line.strip_prefix("#define ") {
            Some(define) => define.split_once(' '),
            None => line.trim_end_matches(',').split_once(" = "),
        };
        if let Some((name, number)) = pair
            && let (Some(name), Ok(number)) =
                (name.strip_prefix("TOLLGATE_"), number.parse::<i64>())
        {
            header.insert(name.to_owned(), number);
        }
    }
    let source = sources();
    let constant = |name: &str| {
        let (_, rest) = source
            .split_once(&format!(" {name}: "))
            .unwrap_or_else(|| panic!("no {name}"));
        let number = rest.split_once("= ").unwrap().1.split_once(';').unwrap().0;
        number.parse::<i64>().unwrap()
    };
    let mut library = BTreeMap::new();
    for line in source.lines().map(str::trim) {
        if let Some((number, name)) = line.split_once(" => c\"")
            && let Ok(number) = number.parse::<i64>()
        {
            library.insert(name.trim_end_matches("\",").to_owned(), number);
        }
    }
    // From tollgate_block.h.
    assert_eq!(library.remove("OK"), Some(0));
    for (c, rust) in [
        ("WOULD_BLOCK", "WOULD_BLOCK"),
        ("END", "END"),
        ("NONBLOCK", "NONBLOCK"),
        ("VERSION_MAJOR", "MAJOR"),
        ("VERSION_MINOR", "MINOR"),
        ("VERSION_PATCH", "PATCH"),
        ("ABI_VERSION", "tollgate_abi_version"),
        ("HEALTH_UNKNOWN", "HEALTH_UNKNOWN"),
        ("HEALTH_SERVING", "HEALTH_SERVING"),
        ("HEALTH_NOT_SERVING", "HEALTH_NOT_SERVING"),
        ("HEALTH_SERVICE_UNKNOWN", "HEALTH_SERVICE_UNKNOWN"),
    ] {
        library.insert(c.to_owned(), constant(rust));
    }
    assert_eq!(header, library);
    let version = ["MAJOR", "MINOR", "PATCH"]
        .map(|part| constant(part).to_string())
        .join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let makefile = read("Makefile");
    assert!(makefile.contains(&format!(
        "VERSION := {version}\nABI := {}\n",
        constant("tollgate_abi_version")
    )));
    let build = read("build.rs");
    assert!(build.contains(&format!(
        "libtollgate.so.{}\"",
        constant("tollgate_abi_version")
    )));
}
