//! Names that a language reserves, packages in a circle, and well-known types: their stubs compile,
//! too.

use std::path::{Path, PathBuf};

use tollgate::codec::{Message, Place, encode_inline};
use tollgate_gen::Language;
use tollgate_schema::Schema;

use crate::c::{build_and_run, compilers};
use crate::python::{directory, python};
use crate::zoo::protos;

#[allow(
    dead_code,
    unreachable_pub,
    non_upper_case_globals,
    clippy::enum_variant_names,
    reason = "names are the test"
)]
mod names {
    include!("../golden/awkward.rs");
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod circle {
    pub mod a {
        include!("../golden/circle.a.rs");
    }
    pub mod b {
        include!("../golden/circle.b.rs");
    }
}

fn own_protos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proto")
}

fn schema() -> Schema {
    let own = own_protos();
    let files = [
        own.join("awkward.proto"),
        own.join("circle/b_second.proto"),
        protos().join("wellknown.proto"),
        PathBuf::from("google/protobuf/descriptor.proto"),
    ];
    Schema::compile_proto(&files, &[own, protos()]).unwrap()
}

#[test]
fn rust_takes_them() {
    let message = names::Class {
        class: 1,
        first: Some(names::class::First::Never("n".to_owned())),
        ..Default::default()
    };
    let block = encode_inline(&message).unwrap();
    assert_eq!(
        names::Class::from_view(names::Class::view(Place::root(&block))),
        message
    );
    // A value has its name from the schema, whatever Rust calls it; of two names, the first.
    use names::class::Yield;
    let called = [
        Yield::crate_.name(),
        Yield::name_.name(),
        names::Fn(0).name(),
    ];
    assert_eq!(called, [Some("crate"), Some("name"), Some("FN_ONE")]);
    assert_eq!(
        format!("{:?} {:?}", Yield::crate_, names::Fn(9)),
        "crate_ Fn(9)"
    );
    let three = circle::b::Three {
        one: Some(circle::a::One::default()),
        ..Default::default()
    };
    let block = encode_inline(&three).unwrap();
    assert!(circle::b::Three::view(Place::root(&block)).one().is_some());
}

#[test]
fn c_and_cpp_take_them() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-awkward");
    let files = Language::C.generate(&schema()).unwrap();
    tollgate_gen::write(&files, &dir).unwrap();
    // Each order of inclusion, for packages in a circle.
    for first in files.keys() {
        let mut source = format!("#include \"{first}\"\n");
        for header in files.keys().rev() {
            source += &format!("#include \"{header}\"\n");
        }
        // In C++ the library's header calls this before main, and the library isn't linked.
        source += "void tollgate_guard_with(tollgate_guard_fn guard) { (void)guard; }\n";
        source +=
            "int main(void) { return awkward_class_yield_least == -2147483647 - 1 ? 0 : 1; }\n";
        let name = format!("{first}.c");
        std::fs::write(dir.join(&name), &source).unwrap();
        std::fs::write(dir.join(format!("{name}c")), &source).unwrap();
        let flags = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
        for compiler in compilers(&["clang"], "cc") {
            build_and_run(&dir, compiler, &[&["-std=c11"], &flags[..]].concat(), &name);
        }
        for compiler in compilers(&["clang++"], "c++") {
            build_and_run(
                &dir,
                compiler,
                &[&["-std=c++17"], &flags[..]].concat(),
                &format!("{name}c"),
            );
        }
    }
}

const AWKWARD: &str = "
import importlib, sys
names = sys.argv[2:]
package, directory = sys.argv[1].split(':')
sys.path.insert(0, directory)
for first in names:
    for name in [n for n in sys.modules if n.endswith(('_tollgate', 'tollgate_block')) or n + '.' == package]:
        del sys.modules[name]
    for name in [first, *names]:
        importlib.import_module(package + name)
stub = lambda name: sys.modules[package + name]
a = stub('awkward_tollgate')
message = getattr(a, 'class_')(class_=1, import_=2, lambda_=3, list=[1], dict=[2], self_=False, never='n', match=None)
message.linux = {'k': type(message).struct(self_=type(message).yield_(-2147483648))}
message.nothing, message.True_ = type(message).None_(True_=5), 6
assert type(message).from_block(message.to_block()) == message
assert message.which('first') == 'never'
assert (int(a.fn.TWO), int(a.fn.FN_TWO), a.fn.FN_ALSO_ONE is a.fn.FN_ONE) == (2, 3, True), list(a.fn)
b = stub('circle_b_tollgate')
three = b.Three(ones=[stub('circle_a_tollgate').One(two=b.Two(x=1))])
assert b.Three.from_block(three.to_block()) == three
assert b.Circle.methods[0].reply() is stub('circle_a_tollgate').One
g = stub('google_protobuf_tollgate')
value = g.Value(struct_value=g.Struct(fields={'k': g.Value(number_value=1.5)}))
assert g.Value.from_block(value.to_block()) == value
";

#[test]
fn python_takes_them() {
    let files = Language::Python.generate(&schema()).unwrap();
    let dir = directory("awkward");
    tollgate_gen::write(&files, &dir.join("stubs")).unwrap();
    std::fs::write(dir.join("stubs/__init__.py"), "").unwrap();
    let stubs = files.keys().filter_map(|name| name.strip_suffix(".py"));
    let names: Vec<_> = stubs.filter(|name| name.ends_with("_tollgate")).collect();
    for (package, path) in [("", dir.join("stubs")), ("stubs.", dir)] {
        let place = format!("{package}:{}", path.display());
        crate::c::run(python().arg("-c").arg(AWKWARD).arg(place).args(&names));
    }
}

#[test]
fn packages_that_become_one_module_or_file_are_told() {
    let dir = directory("clash");
    for (file, package) in [
        ("one.proto", "a.foo_bar"),
        ("two.proto", "a.fooBar"),
        ("three.proto", "a_fooBar"),
        ("none.proto", ""),
        ("mark.proto", "_"),
    ] {
        let package = match package {
            "" => String::new(),
            package => format!("package {package};"),
        };
        let text = format!("syntax = \"proto3\"; {package}");
        std::fs::write(dir.join(file), text).unwrap();
    }
    let check = |language: Language, files: [&str; 2], expected: &str| {
        let schema = Schema::compile_proto(&files.map(|file| dir.join(file)), &[&dir]).unwrap();
        let refused = language.generate(&schema).unwrap_err().to_string();
        let rest =
            "rename one of them, or generate each from its own files into a directory of its own";
        assert_eq!(refused, format!("{expected}; {rest}"));
    };
    check(
        Language::Rust,
        ["one.proto", "two.proto"],
        "package `a.fooBar` and package `a.foo_bar` would both be the module a::foo_bar in Rust",
    );
    check(
        Language::Python,
        ["two.proto", "three.proto"],
        "package `a.fooBar` and package `a_fooBar` would both be the file a_fooBar_tollgate.py in Python",
    );
    for (language, name) in [
        (Language::Rust, "_.rs in Rust"),
        (Language::C, "_.tollgate.h in C"),
    ] {
        let expected =
            format!("the package without a name and package `_` would both be the file {name}");
        check(language, ["none.proto", "mark.proto"], &expected);
    }
}
