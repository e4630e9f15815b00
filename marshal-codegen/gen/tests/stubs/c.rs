//! C: under the sanitizers, the stubs write each message of the zoo with its reviewed bytes, and
//! read it back.
//!
//! This test makes the C program from the zoo: each message as an initializer, and for each type a
//! function that prints all values from the readers. The expected output comes from the schema
//! crate's reflection.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_gen::Language;
use tollgate_schema::prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use crate::zoo::{PROTOS, SCHEMA, SPECIMENS, Specimen, compile, hex};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
const SANITIZERS: [&str; 3] = [
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

/// The beginning of every program of the zoo.
const PRELUDE: &str = r#"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "everything.tollgate.h"
#include "hotel.tollgate.h"
#include "legacy.tollgate.h"

static unsigned long budget;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void dump_u(FILE *o, uint64_t v) { fprintf(o, "%" PRIu64, v); }
static void dump_i(FILE *o, int64_t v) { fprintf(o, "%" PRId64, v); }
static void dump_f32(FILE *o, float v) { uint32_t b; memcpy(&b, &v, 4); fprintf(o, "%" PRIx32, b); }
static void dump_f64(FILE *o, double v) { uint64_t b; memcpy(&b, &v, 8); fprintf(o, "%" PRIx64, b); }
static void dump_x(FILE *o, const void *data, size_t len)
{
    size_t i;
    for (i = 0; i < len; i++) fprintf(o, "%02x", ((const uint8_t *)data)[i]);
}
static void dump_s(FILE *o, tollgate_str v) { dump_x(o, v.data, v.len); }
static void dump_b(FILE *o, tollgate_bytes v) { dump_x(o, v.data, v.len); }

typedef struct specimen {
    const char *name;
    tollgate_error (*write)(tollgate_writer *w);
    void (*dump)(FILE *o, const void *image, size_t len);
    size_t extent_min;
    const char *block; size_t block_len;
    const char *extents; size_t extents_len;
    const char *image; size_t image_len;
} specimen;

/* Into buffers of every size, each allocated exactly, so that the sanitizer sees the first byte behind them. */
static void check_writing(const specimen *s)
{
    size_t capacity, i, at = 0;
    for (capacity = 0; capacity <= s->block_len; capacity++) {
        tollgate_extent extents[8];
        uint8_t *buffer = (uint8_t *)malloc(capacity > 0 ? capacity : 1);
        tollgate_writer w = tollgate_writer_to(buffer, capacity);
        tollgate_error expected = capacity < s->block_len ? TOLLGATE_TOO_SMALL : TOLLGATE_OK;
        if (s->extent_min > 0) { w.extents = extents; w.extent_capacity = 8; w.extent_min = s->extent_min; }
        CHECK(s->write(&w) == expected);
        CHECK(w.len == s->block_len);
        if (expected == TOLLGATE_OK) {
            CHECK(memcmp(buffer, s->block, s->block_len) == 0);
            for (i = 0; i < w.extent_count; i++) {
                CHECK(extents[i].len <= s->extents_len - at);
                CHECK(memcmp(extents[i].data, s->extents + at, extents[i].len) == 0);
                at += extents[i].len;
            }
            CHECK(at == s->extents_len);
        }
        free(buffer);
    }
}

static uint64_t state = 1;
static uint64_t next(uint64_t below)
{
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

/* Readers of a forged block stay inside it. */
static void check_forged(const specimen *s, FILE *nowhere)
{
    int round;
    for (round = 0; round < 200; round++) {
        size_t len = next(4) == 0 ? next(s->image_len + 1) : s->image_len;
        uint8_t *copy = (uint8_t *)malloc(len > 0 ? len : 1);
        uint64_t flips = next(12);
        memcpy(copy, s->image, len);
        while (flips-- > 0 && len > 0) copy[next(len)] = (uint8_t)(next(2) ? next(256) : next(len));
        budget = 20000;
        s->dump(nowhere, copy, len);
        free(copy);
    }
}
"#;

const MAIN: &str = r#"
int main(void)
{
    FILE *nowhere = fopen("/dev/null", "w");
    size_t i;
    CHECK(nowhere != NULL);
    for (i = 0; i < sizeof zoo / sizeof *zoo; i++) {
        check_writing(&zoo[i]);
        budget = 1000000;
        zoo[i].dump(stdout, zoo[i].image, zoo[i].image_len);
        puts("");
        check_forged(&zoo[i], nowhere);
    }
    fclose(nowhere);
    return 0;
}
"#;

#[test]
fn the_zoo_is_written_and_read() {
    let dir = stubs("zoo");
    std::fs::write(dir.join("zoo.c"), program()).unwrap();
    let expected: Vec<_> = SPECIMENS.iter().map(expected_dump).collect();
    for compiler in compilers(&["clang"], "cc") {
        let flags = [&["-std=c11"], &WARNINGS[..], &SANITIZERS[..]].concat();
        let output = build_and_run(&dir, compiler, &flags, "zoo.c");
        for (line, expected) in output.lines().zip(&expected) {
            assert_eq!(line, expected, "{compiler}");
        }
        assert_eq!(output.lines().count(), expected.len(), "{compiler}");
    }
}

#[test]
fn writers_and_readers_keep_their_limits_in_c_and_cpp() {
    let dir = stubs("limits");
    std::fs::write(dir.join("limits.c"), include_str!("limits.c")).unwrap();
    std::fs::write(dir.join("limits.cc"), include_str!("limits.c")).unwrap();
    for compiler in compilers(&["clang"], "cc") {
        let flags = [&["-std=c11"], &WARNINGS[..], &SANITIZERS[..]].concat();
        build_and_run(&dir, compiler, &flags, "limits.c");
        build_and_run(
            &dir,
            compiler,
            &[&["-std=c11", "-O2"], &WARNINGS[..]].concat(),
            "limits.c",
        );
    }
    for compiler in compilers(&["clang++"], "c++") {
        let flags = [&["-std=c++17"], &WARNINGS[..], &SANITIZERS[..]].concat();
        build_and_run(&dir, compiler, &flags, "limits.cc");
    }
}

/// A directory with the stubs of both packages.
fn stubs(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{name}"));
    let files = Language::C.generate(&compile(&PROTOS)).unwrap();
    tollgate_gen::write(&files, &dir).unwrap();
    dir
}

/// The system's compiler, which must exist, and the other installed ones.
pub(crate) fn compilers(others: &[&'static str], must: &'static str) -> Vec<&'static str> {
    let present = |name: &str| Command::new(name).arg("--version").output().is_ok();
    assert!(present(must), "{must} is needed to test stubs");
    others
        .iter()
        .copied()
        .filter(|name| present(name) && has_sanitizers(name))
        .chain([must])
        .collect()
}

/// Whether clang can link its sanitizers. An installation for policies only may lack their library;
/// clang then prints the bare name.
fn has_sanitizers(clang: &str) -> bool {
    let runtime = run(Command::new(clang).arg("-print-file-name=libclang_rt.asan-x86_64.a"));
    Path::new(runtime.trim()).is_absolute()
}

pub(crate) fn build_and_run(dir: &Path, compiler: &str, flags: &[&str], source: &str) -> String {
    let program = dir.join(format!("{source}.{compiler}"));
    // Headers of services include the C library's.
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../client-libs/c/include");
    let mut build = Command::new(compiler);
    run(build
        .args(flags)
        .arg("-I")
        .arg(dir)
        .arg("-I")
        .arg(library)
        .arg(dir.join(source))
        .arg("-lm")
        .arg("-o")
        .arg(&program));
    run(&mut Command::new(&program))
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn program() -> String {
    let mut text = PRELUDE.to_owned();
    let types = reachable();
    for name in types.keys() {
        let c = c_name(name);
        writeln!(
            text,
            "static __attribute__((unused)) void dump_{c}(FILE *o, {c}_view v);"
        )
        .unwrap();
    }
    for descriptor in types.values() {
        text += &dumper(descriptor);
    }
    for specimen in SPECIMENS.iter() {
        text += &functions(specimen);
    }
    text += "static const specimen zoo[] = {\n";
    for specimen in SPECIMENS.iter() {
        let name = specimen.animal.name;
        let bytes = |bytes: &[u8]| format!("{}, {}", literal(bytes), bytes.len());
        let min = specimen.animal.extent_min.unwrap_or_default();
        let extents = specimen.parts.extents.concat();
        writeln!(
            text,
            "{{\"{name}\", write_{name}, dump_root_{name}, {min}, {}, {}, {}}},",
            bytes(&specimen.parts.inline),
            bytes(&extents),
            bytes(&specimen.image)
        )
        .unwrap();
    }
    text + "};\n" + MAIN
}

/// The message types of the zoo, by name.
fn reachable() -> BTreeMap<String, MessageDescriptor> {
    let all = SCHEMA
        .pool()
        .unwrap()
        .all_messages()
        .filter(|m| !m.is_map_entry());
    all.map(|m| (m.full_name().to_owned(), m)).collect()
}

fn c_name(full_name: &str) -> String {
    full_name.replace('.', "_")
}

/// The functions that write and print one specimen.
fn functions(specimen: &Specimen) -> String {
    let (name, c) = (specimen.animal.name, c_name(specimen.animal.message));
    let unknown = specimen.animal.unknown;
    let unknown = format!(
        ".unknown_ = {{(const uint8_t *){}, {}}}",
        literal(unknown),
        unknown.len()
    );
    format!(
        "static tollgate_error write_{name}(tollgate_writer *w)\n{{\n    const {c}_value value = {{{} {unknown}}};\n    \
         return {c}_write(w, &value);\n}}\n\
         static void dump_root_{name}(FILE *o, const void *image, size_t len)\n{{\n    \
         dump_{c}(o, {c}_read(image, len));\n}}\n",
        fields(&specimen.value)
    )
}

/// The initializers of the set fields.
fn fields(message: &DynamicMessage) -> String {
    let mut text = String::new();
    for (field, value) in message.fields() {
        let name = field.name();
        let initializer = initializer(&field, value);
        match field.containing_oneof() {
            Some(oneof) if !oneof.is_synthetic() => {
                let oneof = oneof.name();
                let number = field.number();
                write!(
                    text,
                    ".{oneof}_case_ = {number}, .{oneof} = {{.{name} = {initializer}}}, "
                )
                .unwrap();
            }
            _ => {
                let is_message = matches!(field.kind(), Kind::Message(_));
                if field.supports_presence() && !is_message {
                    write!(text, ".{name}_is_set_ = true, ").unwrap();
                }
                write!(text, ".{name} = {initializer}, ").unwrap();
            }
        }
    }
    text
}

fn initializer(field: &FieldDescriptor, value: &Value) -> String {
    match value {
        Value::List(items) => {
            let element = element_type(&field.kind());
            let items: Vec<_> = items.iter().map(|item| one(item, false)).collect();
            array(&element, &items)
        }
        Value::Map(map) => {
            let Kind::Message(entry) = field.kind() else {
                unreachable!()
            };
            let items: Vec<_> = sorted(map)
                .into_iter()
                .map(|(key, value)| {
                    let key = one(&Value::from(key.clone()), true);
                    format!("{{.key = {key}, .value = {}}}", one(value, true))
                })
                .collect();
            array(&(c_name(entry.full_name()) + "_value"), &items)
        }
        value => one(value, true),
    }
}

fn array(element: &str, items: &[String]) -> String {
    match items {
        [] => "{NULL, 0}".to_owned(),
        _ => format!(
            "{{(const {element}[]){{{}}}, {}}}",
            items.join(", "),
            items.len()
        ),
    }
}

fn sorted(map: &std::collections::HashMap<MapKey, Value>) -> Vec<(&MapKey, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    entries
}

/// One value; a message by its address in a field, by value in an array.
fn one(value: &Value, by_address: bool) -> String {
    match value {
        Value::Bool(v) => v.to_string(),
        Value::I32(v) | Value::EnumNumber(v) => format!("(int32_t)INT64_C({v})"),
        Value::I64(i64::MIN) => "INT64_MIN".to_owned(),
        Value::I64(v) => format!("INT64_C({v})"),
        Value::U32(v) => format!("UINT32_C({v})"),
        Value::U64(v) => format!("UINT64_C({v})"),
        Value::F32(v) => float(f64::from(*v)),
        Value::F64(v) => float(*v),
        Value::String(v) => format!("{{{}, {}}}", literal(v.as_bytes()), v.len()),
        Value::Bytes(v) => format!("{{(const uint8_t *){}, {}}}", literal(v), v.len()),
        Value::Message(v) => {
            let c = c_name(v.descriptor().full_name());
            let fields = format!("{{{} .unknown_ = {{NULL, 0}}}}", fields(v));
            if by_address {
                format!("&(const {c}_value){fields}")
            } else {
                fields
            }
        }
        Value::List(_) | Value::Map(_) => unreachable!(),
    }
}

fn float(value: f64) -> String {
    match value {
        f64::INFINITY => "HUGE_VAL".to_owned(),
        f64::NEG_INFINITY => "-HUGE_VAL".to_owned(),
        value => format!("{value:?}"),
    }
}

fn literal(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|b| format!("\\x{b:02x}")).collect();
    format!("\"{escaped}\"")
}

fn element_type(kind: &Kind) -> String {
    match kind {
        Kind::Double => "double".to_owned(),
        Kind::Float => "float".to_owned(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "int32_t".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "int64_t".to_owned(),
        Kind::Uint32 | Kind::Fixed32 => "uint32_t".to_owned(),
        Kind::Uint64 | Kind::Fixed64 => "uint64_t".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::String => "tollgate_str".to_owned(),
        Kind::Bytes => "tollgate_bytes".to_owned(),
        Kind::Enum(e) => c_name(e.full_name()),
        Kind::Message(m) => c_name(m.full_name()) + "_value",
    }
}

/// A C function that prints all values from the readers of a message.
fn dumper(descriptor: &MessageDescriptor) -> String {
    let c = c_name(descriptor.full_name());
    let mut text = format!(
        "static __attribute__((unused)) void dump_{c}(FILE *o, {c}_view v)\n{{\n    if (budget == 0) return;\n    budget--;\n"
    );
    for oneof in descriptor.oneofs().filter(|o| !o.is_synthetic()) {
        let name = oneof.name();
        writeln!(
            text,
            "    fprintf(o, \"{name}:%u;\", (unsigned){c}_case_{name}(v));"
        )
        .unwrap();
    }
    for field in descriptor.fields() {
        let name = field.name();
        let show = |kind: &Kind, call: &str| format!("{}(o, {call});", printer(kind));
        if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
            let (key, value) = (
                entry.map_entry_key_field().kind(),
                entry.map_entry_value_field().kind(),
            );
            let value_type = match &value {
                Kind::Message(m) => c_name(m.full_name()) + "_view",
                kind => element_type(kind),
            };
            write!(
                text,
                "    fprintf(o, \"{name}(%zu:\", {c}_count_{name}(v));\n    \
                 for (size_t i = 0; i < {c}_count_{name}(v) && budget > 0; i++) {{\n        {value_type} found;\n        \
                 {} fputs(\"=\", o); {} fputs(\",\", o);\n        \
                 CHECK({c}_find_{name}(v, {c}_key_{name}(v, i), &found));\n    }}\n    fputs(\")\", o);\n",
                show(&key, &format!("{c}_key_{name}(v, i)")),
                show(&value, &format!("{c}_get_{name}(v, i)")),
            )
            .unwrap();
        } else if field.is_list() {
            write!(
                text,
                "    fprintf(o, \"{name}[%zu:\", {c}_count_{name}(v));\n    \
                 for (size_t i = 0; i < {c}_count_{name}(v) && budget > 0; i++) {{ {} fputs(\",\", o); }}\n    \
                 fputs(\"]\", o);\n",
                show(&field.kind(), &format!("{c}_get_{name}(v, i)")),
            )
            .unwrap();
        } else if field.supports_presence() {
            let value = show(&field.kind(), &format!("{c}_get_{name}(v)"));
            let guard = if let Kind::Message(_) = field.kind() {
                format!("if ({c}_has_{name}(v)) ")
            } else {
                String::new()
            };
            writeln!(
                text,
                "    fprintf(o, \"{name}?%d{{\", {c}_has_{name}(v)); {guard}{value} fputs(\"}}\", o);"
            )
            .unwrap();
        } else {
            let value = show(&field.kind(), &format!("{c}_get_{name}(v)"));
            writeln!(text, "    fputs(\"{name}=\", o); {value} fputs(\";\", o);").unwrap();
        }
    }
    text + &format!("    fputs(\"unknown=\", o); dump_b(o, {c}_unknown(v)); fputs(\";\", o);\n}}\n")
}

fn printer(kind: &Kind) -> String {
    match kind {
        Kind::Double => "dump_f64".to_owned(),
        Kind::Float => "dump_f32".to_owned(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum(_) => "dump_i".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "dump_i".to_owned(),
        Kind::Uint32 | Kind::Fixed32 | Kind::Uint64 | Kind::Fixed64 | Kind::Bool => {
            "dump_u".to_owned()
        }
        Kind::String => "dump_s".to_owned(),
        Kind::Bytes => "dump_b".to_owned(),
        Kind::Message(m) => format!("dump_{}", c_name(m.full_name())),
    }
}

fn expected_dump(specimen: &Specimen) -> String {
    dump(&specimen.value, specimen.animal.unknown)
}

fn dump(message: &DynamicMessage, unknown: &[u8]) -> String {
    let descriptor = message.descriptor();
    let mut text = String::new();
    for oneof in descriptor.oneofs().filter(|o| !o.is_synthetic()) {
        let set = oneof.fields().find(|f| message.has_field(f));
        write!(text, "{}:{};", oneof.name(), set.map_or(0, |f| f.number())).unwrap();
    }
    for field in descriptor.fields() {
        let (name, value) = (field.name(), message.get_field(&field));
        match &*value {
            Value::Map(map) => {
                write!(text, "{name}({}:", map.len()).unwrap();
                for (key, value) in sorted(map) {
                    let key = Value::from(key.clone());
                    write!(text, "{}={},", dump_value(&key), dump_value(value)).unwrap();
                }
                text.push(')');
            }
            Value::List(items) => {
                let items: String = items.iter().map(|item| dump_value(item) + ",").collect();
                write!(text, "{name}[{}:{items}]", value.as_list().unwrap().len()).unwrap();
            }
            value if field.supports_presence() => {
                let set = message.has_field(&field);
                // The stubs ignore proto2 defaults.
                let shown = match field.kind() {
                    _ if set => dump_value(value),
                    Kind::String | Kind::Bytes | Kind::Message(_) => String::new(),
                    _ => "0".to_owned(),
                };
                write!(text, "{name}?{}{{{shown}}}", u8::from(set)).unwrap();
            }
            value => write!(text, "{name}={};", dump_value(value)).unwrap(),
        }
    }
    text + &format!("unknown={};", hex(unknown))
}

fn dump_value(value: &Value) -> String {
    match value {
        Value::Bool(v) => u8::from(*v).to_string(),
        Value::I32(v) | Value::EnumNumber(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::F32(v) => format!("{:x}", v.to_bits()),
        Value::F64(v) => format!("{:x}", v.to_bits()),
        Value::String(v) => hex(v.as_bytes()),
        Value::Bytes(v) => hex(v),
        Value::Message(v) => dump(v, &[]),
        Value::List(_) | Value::Map(_) => unreachable!(),
    }
}
