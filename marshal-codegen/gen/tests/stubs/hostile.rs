//! Difficult names for each language, in every place that has a name: the stubs of all three
//! compile, or are imported.
//!
//! One test puts each word in each position. The other draws random schemas from these words and
//! from the generators' names, so that items collide. It is seeded and does the work that a second
//! core does in half a minute. `TOLLGATE_HOSTILE_CASES` draws more.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tollgate_gen::Language;
use tollgate_schema::Schema;

use crate::c::{compilers, run};
use crate::python::{directory, python};

/// Keywords, types, methods, macros and builtins of the three languages, and the generators' own
/// words.
const WORDS: &str = "
    Clone Into AsRef ToOwned Drop Borrow New Default From Debug Copy Send Sync Future Iterator Option Some None Ok Err Result Vec
    String Box Self self crate super type match async await dyn impl fn mod move ref box gen try macro_rules T U S u32 i32 std core alloc
    clone into as_ref to_owned drop borrow new default from fmt eq hash next poll unknown_fields encode view from_view store field
    int float bool str bytes list dict object property classmethod staticmethod memoryview NotImplementedError print len id super_
    def class_ lambda pass raise with is not in True False annotations typing builtins dataclasses match_ __init__ __slots__
    to_block to_parts from_block which mro name value real numerator _tb _typing _LAYOUT _VIEW index count keys items
    INT32_MAX SIZE_MAX NAN INFINITY EOF NULL errno stdin stdout linux unix EAGAIN SIGINT BUFSIZ CHAR_BIT st_atime assert offsetof
    int32_t size_t double char auto register union struct namespace template operator delete this nullptr concept requires export
    MAP_SHARED IPC_CREAT SEM_UNDO SHM_RDONLY RLIMIT_CPU ST_RDONLY UIO_MAXIOV SYS_NMLN msg_cbytes GETALL mmap readv P_ALL P_PID
    printf exit time signal log div minor isnan main std__ nan
    tollgate tollgate_view tollgate_str tollgate_call DESCRIPTOR_SET descriptor_set client server serve handlers methods call start
    reply send open receive respond get has write read put case view_ client_ _x x_ x __ request response status channel context
    _Bool _Complex _Static_assert _Atomic _GNU_SOURCE _exit __int128 __null __cplusplus __FILE__ __linux __linux__ ___ __a _1 __1
    message enum service oneof package option reserved stream repeated optional map google protobuf Message Service Status
";

fn words() -> Vec<&'static str> {
    let mut met = BTreeSet::new();
    let words = WORDS.split_whitespace();
    words.filter(|word| met.insert(*word)).collect()
}

/// A schema under construction: `.proto` text, and the taken names in each scope.
struct Writer {
    text: String,
}

impl Writer {
    fn new(package: &str, import: Option<&str>) -> Writer {
        let mut text = "syntax = \"proto2\";\n".to_owned();
        if !package.is_empty() {
            writeln!(text, "package {package};").unwrap();
        }
        if let Some(import) = import {
            writeln!(text, "import \"{import}\";").unwrap();
        }
        Writer { text }
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.text += line.as_ref();
        self.text.push('\n');
    }
}

/// `option` and `reserved` begin statements in enums.
fn is_value(word: &str) -> bool {
    !matches!(word, "option" | "reserved")
}

/// Every word as a message, an enum, a value, a field, a oneof, a service, a method; all in one
/// package.
fn in_every_position(package: &str) -> String {
    let scope = if package.is_empty() {
        String::new()
    } else {
        format!(".{package}")
    };
    let mut proto = Writer::new(package, None);
    for word in words() {
        proto.line(format!("message {word} {{ optional {scope}.{word} {word}_field = 1; optional int32 value = 2; }}"));
    }
    for (i, word) in words().into_iter().enumerate() {
        // A oneof with a member and an inner type of similar names, and enums of each name.
        proto.line(format!("message Inner{i} {{"));
        proto.line(format!(
            "  oneof {word} {{ {scope}.{word} member = 1; string other_{word} = 2; }}"
        ));
        proto.line(format!(
            "  enum {word}_ {{ {word}_VALUE_{i} = 0; }} optional {scope}.Inner{i}.{word}_ of = 3;"
        ));
        proto.line(format!(
            "  message Nested {{ enum {word} {{ V{i} = 0; }} optional {scope}.Inner{i}.Nested.{word} of = 1; }}"
        ));
        proto.line("}");
    }
    let scalars = ["int32", "string", "bytes", "bool", "double", "uint64"];
    for (kind, label) in ["optional", "repeated"].into_iter().enumerate() {
        proto.line(format!("message Fields{kind} {{"));
        for (i, word) in words().into_iter().enumerate() {
            let of = scalars[i % scalars.len()];
            proto.line(format!("  {label} {of} {word} = {};", i + 1));
        }
        proto.line("}");
    }
    proto.line("message Choices { oneof choice {");
    for (i, word) in words().into_iter().enumerate() {
        proto.line(format!(
            "  {} {word} = {};",
            scalars[i % scalars.len()],
            i + 1
        ));
    }
    proto.line("} }");
    proto.line("message Types {");
    for (i, word) in words().into_iter().enumerate() {
        proto.line(format!(
            "  message {word} {{ optional string x = 1; }} optional {scope}.Types.{word} f{i} = {};",
            i + 1
        ));
    }
    proto.line("}");
    proto.line("message Values { enum E {");
    for (i, word) in words().into_iter().filter(|w| is_value(w)).enumerate() {
        proto.line(format!("  {word} = {i};"));
    }
    proto.line("} optional E e = 1; }");
    proto.line("service Methods {");
    for (i, word) in words().into_iter().enumerate() {
        let (input, output) = [
            ("", ""),
            ("", "stream "),
            ("stream ", ""),
            ("stream ", "stream "),
        ][i % 4];
        proto.line(format!(
            "  rpc {word} ({input}{scope}.Choices) returns ({output}{scope}.{word});"
        ));
    }
    proto.line("}");
    proto.text
}

/// A service for each word, in a package without messages of these names.
fn as_services(package: &str) -> String {
    let mut proto = Writer::new(package, None);
    proto.line("message M {}");
    for word in words().into_iter().filter(|word| *word != "M") {
        let rpc = "rpc Get (M) returns (M); rpc List (M) returns (stream M);";
        proto.line(format!("service {word} {{ {rpc} }}"));
    }
    proto.text
}

/// Packages of each name, and one below each; their types are used across them.
fn as_packages() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut used = "syntax = \"proto2\"; package zz.user;\n".to_owned();
    let mut fields = String::new();
    // Rust and Python make one module of two packages that only differ in these.
    let mut met = BTreeSet::new();
    for word in words() {
        let bare = word.replace('_', "").to_ascii_lowercase();
        if bare.is_empty() || !met.insert(bare) {
            continue;
        }
        let at = files.len();
        // A service's stubs contain the whole schema, and rustc needs much memory for each
        // package's.
        let service = match at % 4 {
            0 => "service S { rpc Get (M) returns (M.N); }",
            _ => "",
        };
        let text = format!(
            "syntax = \"proto2\"; package zz.{word}; message M {{ message N {{ optional M m = 1; }} optional N n = 1; }} \
             enum E {{ A = 0; }} {service}"
        );
        writeln!(used, "import \"p{at}.proto\";").unwrap();
        writeln!(
            fields,
            "optional .zz.{word}.M m{at} = {}; optional .zz.{word}.E e{at} = {};",
            2 * at + 1,
            2 * at + 2
        )
        .unwrap();
        files.push((format!("p{at}.proto"), text));
    }
    used += &format!("message User {{ {fields} }}");
    files.push(("user.proto".to_owned(), used));
    files
}

/// Packages that begin with underscores, next to one without a name; types whose names are only
/// underscores.
fn of_underscores() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut used = "syntax = \"proto3\";\n".to_owned();
    let mut fields = String::new();
    // Rust makes one module of `_x` and `x`.
    let packages = ["__", "_x", "__y", "_Z", "__W", "_a._b"];
    for (at, package) in packages.into_iter().enumerate() {
        let text = format!(
            "syntax = \"proto3\"; package {package}; enum E {{ A = 0; }} \
             message M {{ message _ {{ ___ a = 1; __ b = 2; }} message __ {{}} enum ___ {{ V = 0; }} _ c = 1; __ d = 2; ___ e = 3; }} \
             message _ {{ M._ a = 1; }} message __ {{ _ a = 1; }} message __1 {{ __ a = 1; E e = 2; }} \
             service __S {{ rpc _ (_) returns (M.__); rpc __ (__1) returns (stream __); }} service ___ {{}}"
        );
        writeln!(used, "import \"u{at}.proto\";").unwrap();
        files.push((format!("u{at}.proto"), text));
        let number = 3 * at + 1;
        let of = [".M._", ".E", ".__1"].map(|name| format!(".{package}{name}"));
        for (i, of) in of.iter().enumerate() {
            writeln!(fields, "{of} f{} = {};", number + i, number + i).unwrap();
        }
    }
    used += &format!("message User {{ {fields} }}");
    files.push(("user.proto".to_owned(), used));
    files
}

#[test]
fn every_word_is_taken_in_every_position() {
    let one = |text: String| vec![("one.proto".to_owned(), text)];
    check("positions", &one(in_every_position("hostile")));
    check("positions-none", &one(in_every_position("")));
    check("services", &one(as_services("hostile.services")));
    check("packages", &as_packages());
    check("underscores", &of_underscores());
}

/// All identifiers of C that the generator writes into headers by itself: parameters, variables,
/// members.
fn own_words() -> BTreeSet<String> {
    let dir = directory("hostile-probe");
    let probe = "syntax = \"proto3\"; package probe; enum ProbeE { PROBE = 0; }
        message ProbeM { optional int32 probe_a = 1; repeated string probe_b = 2; map<string, ProbeM> probe_c = 3;
          oneof probe_o { ProbeM probe_d = 4; bytes probe_e = 5; ProbeE probe_f = 6; } repeated ProbeM probe_g = 7; ProbeM probe_h = 8;
          map<int64, ProbeE> probe_i = 9; repeated ProbeE probe_j = 10; bool probe_k = 11; }
        message ProbeNone {}
        service ProbeS { rpc ProbeA (ProbeM) returns (ProbeM); rpc ProbeB (stream ProbeM) returns (ProbeM);
          rpc ProbeC (ProbeM) returns (stream ProbeM); rpc ProbeD (stream ProbeM) returns (stream ProbeM); }
        service ProbeT {}";
    let schema = written(&dir, &[("probe.proto".to_owned(), probe.to_owned())]);
    let mut files = Language::C.generate(&schema).unwrap();
    files.retain(|name, _| name.starts_with("probe"));
    let mut words = BTreeSet::new();
    for line in files.values().flat_map(|text| text.lines()) {
        // Comments and strings have lines of their own, or their words do no harm.
        let is_code = !line.trim_start().starts_with(['/', '*', '#']);
        let parts = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_own = |word: &&str| {
            word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && !word.to_ascii_lowercase().contains("probe")
        };
        words.extend(parts.filter(|_| is_code).filter(is_own).map(str::to_owned));
    }
    words
}

#[test]
fn items_without_a_package_are_not_called_like_the_generators_words_in_c() {
    let words = own_words();
    for word in ["items", "count", "key", "value", "view", "handlers"] {
        assert!(words.contains(word), "{word} isn't in {words:?}");
    }
    let (mut enums, mut messages) = (Writer::new("", None), Writer::new("", None));
    let mut services = Writer::new("", None);
    services.line("message M {}");
    for (i, word) in words.iter().enumerate() {
        enums.line(format!("enum {word} {{ VALUE_{i} = 0; }}"));
        messages.line(format!("message {word} {{}}"));
        let uses = format!(
            "message Uses{i} {{ optional .{word} a = 1; repeated .{word} b = 2; map<int32, .{word}> c = 3; map<string, .{word}> d = 4; \
             oneof {word} {{ .{word} e = 5; string f = 6; }} }}"
        );
        enums.line(&uses);
        messages.line(&uses);
        messages.line(format!(
            "service Calls{i} {{ rpc A (.{word}) returns (.{word}); rpc B (stream .{word}) returns (stream .{word}); }}"
        ));
        let rpc = "(M) returns (M); rpc B (stream M) returns (M); rpc C (M) returns (stream M);";
        services.line(format!("service {word} {{ rpc A {rpc} }}"));
    }
    for (kind, proto) in [
        ("enums", enums),
        ("messages", messages),
        ("services", services),
    ] {
        let dir = directory(&format!("hostile-own-{kind}"));
        let file = ("one.proto".to_owned(), proto.text);
        c(&written(&dir, &[file]), &dir);
    }
}

/// In C, `a.b` and `a_b` have one prefix. Python refuses the pair.
#[test]
fn packages_of_one_prefix_share_it_in_c() {
    let of = |package: &str| {
        format!(
            "syntax = \"proto2\"; package {package}; message M {{ optional int32 x = 1; message descriptor_set {{}} }} \
             message descriptor_set {{}} enum E {{ A = 0; B = 1; }} service S {{ rpc Get (M) returns (M); }}"
        )
    };
    let files = [
        ("one.proto".to_owned(), of("a.b")),
        ("two.proto".to_owned(), of("a_b")),
        (
            "three.proto".to_owned(),
            "syntax = \"proto2\"; message a_b_M {} enum a_b_E { A = 0; } message a_b_descriptor_set {}".to_owned(),
        ),
    ];
    let dir = directory("hostile-prefix");
    c(&written(&dir, &files), &dir);
}

/// The choices behind a random schema: each number selects an option, modulo the number of options.
type Choices = Vec<u16>;

struct Drawn<'c> {
    choices: std::iter::Cycle<std::slice::Iter<'c, u16>>,
}

impl Drawn<'_> {
    fn below(&mut self, end: usize) -> usize {
        usize::from(*self.choices.next().unwrap()) % end
    }

    /// A free name in the scope: from few stems, with the generators' prefixes and suffixes, so
    /// that names collide.
    fn name(&mut self, taken: &mut BTreeSet<String>) -> String {
        const STEMS: [&str; 6] = ["foo", "Foo", "fooBar", "FooBar", "foo_bar", "GetURL"];
        const ENDS: [&str; 26] = [
            "",
            "",
            "",
            "_",
            "View",
            "_view",
            "_value",
            "Client",
            "_client",
            "Server",
            "_server",
            "Stub",
            "Servicer",
            "AsyncStub",
            "_get_x",
            "_has_x",
            "_case_",
            "_is_set_",
            "_put_",
            "_methods",
            "_call",
            "Stream",
            "_service",
            "_write",
            "Entry",
            "_x",
        ];
        let all = words();
        for _ in 0..20 {
            let stem = match self.below(3) {
                0 => all[self.below(all.len())],
                _ => STEMS[self.below(STEMS.len())],
            };
            let name = stem.to_owned() + ENDS[self.below(ENDS.len())];
            if is_value(&name) && taken.insert(name.clone()) {
                return name;
            }
        }
        let name = format!("name{}", taken.len());
        taken.insert(name.clone());
        name
    }

    fn message(
        &mut self,
        proto: &mut Writer,
        name: &str,
        full: &str,
        types: &mut Vec<String>,
        depth: usize,
    ) {
        let mut taken = BTreeSet::new();
        proto.line(format!("message {name} {{"));
        types.push(full.to_owned());
        if depth < 2 {
            for _ in 0..self.below(3) {
                let inner = self.name(&mut taken);
                self.message(proto, &inner, &format!("{full}.{inner}"), types, depth + 1);
            }
        }
        let declared = self.name(&mut taken);
        let oneof = self.name(&mut taken);
        let values: Vec<String> = (0..3).map(|_| self.name(&mut taken)).collect();
        let values: String = values
            .iter()
            .zip(0..)
            .map(|(v, i)| format!("{v} = {i}; "))
            .collect();
        proto.line(format!("enum {declared} {{ {values} }}"));
        let mut number = 0;
        let mut field = |drawn: &mut Self, label: &str, proto: &mut Writer| {
            number += 1;
            let name = drawn.name(&mut taken);
            let of = match drawn.below(4) {
                0 => types[drawn.below(types.len())].clone(),
                1 => format!("{full}.{declared}"),
                2 if label == "optional" => "map<string, bytes>".to_owned(),
                _ => ["int32", "string", "bytes", "bool", "double"][drawn.below(5)].to_owned(),
            };
            let (label, of) = match of.starts_with("map") {
                // The entry is an inner message, too.
                true if taken.insert(entry(&name)) => ("", of),
                true => (label, "bool".to_owned()),
                false => (label, of),
            };
            proto.line(format!("{label} {of} {name} = {number};"));
        };
        for _ in 0..4 {
            field(self, "optional", proto);
            field(self, "repeated", proto);
        }
        proto.line(format!("oneof {oneof} {{"));
        for _ in 0..3 {
            field(self, "", proto);
        }
        proto.line("} }");
    }

    fn file(
        &mut self,
        package: &str,
        import: Option<&str>,
        taken: &mut BTreeSet<String>,
        types: &mut Vec<String>,
    ) -> String {
        let mut proto = Writer::new(package, import);
        let scope = if package.is_empty() {
            String::new()
        } else {
            format!(".{package}")
        };
        for _ in 0..3 {
            let name = self.name(taken);
            self.message(&mut proto, &name, &format!("{scope}.{name}"), types, 0);
        }
        for _ in 0..2 {
            let name = self.name(taken);
            proto.line(format!("service {name} {{"));
            let mut methods = BTreeSet::new();
            for _ in 0..4 {
                let (name, stream) = (self.name(&mut methods), ["", "stream "]);
                let (input, output) = (
                    types[self.below(types.len())].clone(),
                    types[self.below(types.len())].clone(),
                );
                let (one, other) = (stream[self.below(2)], stream[self.below(2)]);
                proto.line(format!(
                    "  rpc {name} ({one}{input}) returns ({other}{output});"
                ));
            }
            proto.line("}");
        }
        proto.text
    }
}

/// The message that protobuf makes for a map.
fn entry(field: &str) -> String {
    let parts = field.split('_').filter(|part| !part.is_empty());
    let capital = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
    parts.map(capital).collect::<String>() + "Entry"
}

fn drawn(choices: &Choices) -> Vec<(String, String)> {
    let mut drawn = Drawn {
        choices: choices.iter().cycle(),
    };
    let (mut taken, mut types) = (BTreeSet::new(), Vec::new());
    let outer = ["a", "foo_bar", ""][drawn.below(3)];
    // The second package lies below the first, where a message's module may collide with it.
    let below = ["foo", "foo_bar", "Foo"][drawn.below(3)];
    let inner = [outer, below]
        .into_iter()
        .filter(|p| !p.is_empty())
        .collect::<Vec<_>>()
        .join(".");
    taken.insert(below.to_owned());
    let first = drawn.file(outer, None, &mut taken, &mut types);
    let second = drawn.file(
        &inner,
        Some("first.proto"),
        &mut BTreeSet::new(),
        &mut types,
    );
    vec![
        ("first.proto".to_owned(), first),
        ("second.proto".to_owned(), second),
    ]
}

#[test]
fn names_that_meet_are_told_apart() {
    let cases = std::env::var("TOLLGATE_HOSTILE_CASES").ok();
    let config = Config {
        cases: cases.map_or(6, |cases| cases.parse().unwrap()),
        max_shrink_iters: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, b"names that are hard on languages");
    let mut runner = TestRunner::new_with_rng(config, seed);
    let choices = proptest::collection::vec(any::<u16>(), 40..400);
    let result = runner.run(&choices, |choices| {
        let files = drawn(&choices);
        let caught = std::panic::catch_unwind(|| check("drawn", &files));
        caught.map_err(|_| {
            TestCaseError::fail(files.iter().map(|(_, text)| &**text).collect::<String>())
        })
    });
    result.unwrap();
}

/// Writes the sources, generates stubs for all languages, and has the languages' own tools check
/// them.
fn check(name: &str, files: &[(String, String)]) {
    let dir = directory(&format!("hostile-{name}"));
    let schema = written(&dir, files);
    rust(&schema, &dir);
    c(&schema, &dir);
    imported(&schema, &dir);
}

/// Writes the sources and compiles them.
fn written(dir: &Path, files: &[(String, String)]) -> Schema {
    for (file, text) in files {
        std::fs::write(dir.join(file), text).unwrap();
    }
    let paths: Vec<PathBuf> = files.iter().map(|(file, _)| dir.join(file)).collect();
    Schema::compile_proto(&paths, &[dir]).unwrap()
}

/// All packages in the modules of their names, in one crate.
fn rust(schema: &Schema, dir: &Path) {
    let files = Language::Rust.generate(schema).unwrap();
    tollgate_gen::write(&files, &dir.join("rust")).unwrap();
    let mut tree = Tree::default();
    for file in files.keys() {
        let package = file.strip_suffix(".rs").unwrap();
        let package = if package == "_" { "" } else { package };
        let mut at = &mut tree;
        for module in tollgate_gen::rust_modules(package) {
            at = at.below.entry(module).or_default();
        }
        at.file = Some(dir.join("rust").join(file));
    }
    let mut source = "#![allow(warnings)]\n".to_owned();
    tree.write(&mut source);
    let path = dir.join("rust/lib.rs");
    std::fs::write(&path, source).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=lib", "--emit=metadata"]);
    rustc
        .arg("--extern")
        .arg(format!("tollgate={}", library().display()));
    rustc
        .arg("-L")
        .arg(format!("dependency={}", dependencies().display()));
    run(rustc.arg("--out-dir").arg(dir).arg(path));
}

#[derive(Default)]
struct Tree {
    below: std::collections::BTreeMap<String, Tree>,
    file: Option<PathBuf>,
}

impl Tree {
    fn write(&self, out: &mut String) {
        if let Some(file) = &self.file {
            writeln!(out, "include!({file:?});").unwrap();
        }
        for (name, tree) in &self.below {
            writeln!(out, "pub mod {name} {{").unwrap();
            tree.write(out);
            out.push_str("}\n");
        }
    }
}

/// The directory of this test binary, which holds its dependencies.
fn dependencies() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// The library for generated code; of several builds, the latest.
fn library() -> PathBuf {
    let files = std::fs::read_dir(dependencies()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libtollgate-") && name.ends_with(".rlib")
    };
    let modified = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    files.filter(is_library).max_by_key(modified).unwrap()
}

/// The stubs alone and after the C library's headers, as C and as C++.
fn c(schema: &Schema, dir: &Path) {
    const ISO: [&str; 12] = [
        "assert", "ctype", "errno", "inttypes", "limits", "locale", "math", "signal", "stdio",
        "stdlib", "string", "time",
    ];
    const POSIX: [&str; 17] = [
        "fcntl",
        "netdb",
        "pthread",
        "sys/ipc",
        "sys/mman",
        "sys/msg",
        "sys/resource",
        "sys/sem",
        "sys/shm",
        "sys/socket",
        "sys/stat",
        "sys/statvfs",
        "sys/uio",
        "sys/utsname",
        "sys/wait",
        "termios",
        "unistd",
    ];
    let files = Language::C.generate(schema).unwrap();
    let dir = dir.join("c");
    tollgate_gen::write(&files, &dir).unwrap();
    let headers = |names: &[&str]| -> String {
        names
            .iter()
            .map(|name| format!("#include <{name}.h>\n"))
            .collect()
    };
    let stubs: String = files
        .keys()
        .map(|file| format!("#include \"{file}\"\n"))
        .collect();
    std::fs::write(dir.join("alone.c"), &stubs).unwrap();
    std::fs::write(
        dir.join("behind.c"),
        headers(&ISO) + &headers(&POSIX) + &stubs,
    )
    .unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../client-libs/c/include");
    for source in ["alone.c", "behind.c"] {
        for (compiler, language) in [
            ("cc", ["-xc", "-std=gnu11"]),
            ("c++", ["-xc++", "-std=gnu++17"]),
        ] {
            let mut command = Command::new(compilers(&[], compiler)[0]);
            command.args(language).args([
                "-fsyntax-only",
                "-D_GNU_SOURCE",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-I",
            ]);
            run(command
                .arg(&include)
                .arg("-I")
                .arg(&dir)
                .arg(dir.join(source)));
        }
    }
}

/// Imports Python's stubs, evaluates their annotations and, if mypy is installed, checks them in
/// its strictest mode.
fn imported(schema: &Schema, dir: &Path) {
    let files = Language::Python.generate(schema).unwrap();
    let package = dir.join("python/stubs");
    tollgate_gen::write(&files, &package).unwrap();
    std::fs::write(package.join("__init__.py"), "").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    run(python()
        .arg(root.join("tests/stubs/hostile.py"))
        .arg(dir.join("python"))
        .arg("stubs"));
    // `.ci/test` installs it and sets this variable.
    let Some(mypy) = std::env::var_os("MYPY") else {
        return;
    };
    let mut mypy = Command::new(mypy);
    mypy.arg("--config-file")
        .arg(root.join("../../client-libs/python/pyproject.toml"));
    mypy.arg("--cache-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy"));
    mypy.env("MYPYPATH", root.join("../../client-libs/python/python"));
    run(mypy.current_dir(dir.join("python")).args(["-p", "stubs"]));
}
