//! The examples in STUBS.md compile and run.

use tollgate_gen::Language;

use crate::c::{build_and_run, run};
use crate::python::{directory, python};
use crate::zoo::compile;

/// The only example in this language.
fn example(language: &str) -> &'static str {
    let text = include_str!("../../STUBS.md");
    let begin = format!("```{language}\n");
    let (_, after) = text.split_once(&begin).unwrap();
    let (code, rest) = after.split_once("```").unwrap();
    assert!(!rest.contains(&begin), "there is one example in {language}");
    code
}

#[test]
fn the_example_in_c_compiles_and_runs() {
    let dir = directory("documented-c");
    let files = Language::C.generate(&compile(&["hotel"])).unwrap();
    tollgate_gen::write(&files, &dir).unwrap();
    let (includes, body): (Vec<_>, Vec<_>) = example("c").lines().partition(|l| l.starts_with('#'));
    let program = format!(
        "{}\nint main(void)\n{{\n{}\nreturn tollgate_is(name, \"Ada\") ? 0 : 1;\n}}\n",
        includes.join("\n"),
        body.join("\n")
    );
    std::fs::write(dir.join("example.c"), program).unwrap();
    build_and_run(
        &dir,
        "cc",
        &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"],
        "example.c",
    );
}

#[test]
fn the_example_in_python_runs() {
    let dir = directory("documented-python");
    let files = Language::Python.generate(&compile(&["hotel"])).unwrap();
    tollgate_gen::write(&files, &dir.join("stubs")).unwrap();
    std::fs::write(dir.join("stubs/__init__.py"), "").unwrap();
    run(python().arg("-c").arg(example("python")).current_dir(&dir));
}
