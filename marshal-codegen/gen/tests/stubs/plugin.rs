//! The protoc plugin: hand-made requests, and protoc itself if it is installed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tollgate_gen::{Files, Language};
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::prost_types::compiler::{
    CodeGeneratorRequest, CodeGeneratorResponse,
};
use tollgate_schema::prost_reflect::prost_types::{FileDescriptorSet, SourceCodeInfo};

use crate::c::run;
use crate::python::directory;
use crate::zoo::{compile, protos};

const PLUGIN: &str = env!("CARGO_BIN_EXE_protoc-gen-tollgate");

/// protoc's request for these files.
fn request(files: &[&str], parameter: &str) -> CodeGeneratorRequest {
    let set = compile(files);
    let mut set = FileDescriptorSet::decode(set.descriptor_set()).unwrap();
    for file in &mut set.file {
        // protoc always sends it.
        file.source_code_info = Some(SourceCodeInfo {
            location: vec![Default::default()],
        });
    }
    CodeGeneratorRequest {
        file_to_generate: files.iter().map(|name| format!("{name}.proto")).collect(),
        parameter: Some(parameter.to_owned()),
        proto_file: set.file,
        compiler_version: None,
    }
}

fn ask(request: &[u8]) -> (bool, Vec<u8>, String) {
    let mut plugin = Command::new(PLUGIN);
    let plugin = plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut plugin = plugin.spawn().unwrap();
    plugin.stdin.take().unwrap().write_all(request).unwrap();
    let output = plugin.wait_with_output().unwrap();
    (
        output.status.success(),
        output.stdout,
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn respond(request: &CodeGeneratorRequest) -> CodeGeneratorResponse {
    let (success, out, error) = ask(&request.encode_to_vec());
    assert!(success, "{error}");
    CodeGeneratorResponse::decode(&out[..]).unwrap()
}

fn files(response: CodeGeneratorResponse) -> Files {
    assert_eq!(response.error, None);
    response
        .file
        .into_iter()
        .map(|f| (f.name.unwrap(), f.content.unwrap()))
        .collect()
}

#[test]
fn it_writes_what_the_library_writes() {
    for language in Language::ALL {
        let response = respond(&request(&["hotel"], &format!("lang={language}")));
        // Optional fields of proto3, and editions.
        assert_eq!(response.supported_features, Some(3));
        assert_eq!(
            files(response),
            language.generate(&compile(&["hotel"])).unwrap()
        );
    }
}

#[test]
fn packages_that_are_only_imported_are_written_on_request() {
    let names = |parameter| {
        files(respond(&request(&["legacy"], parameter)))
            .into_keys()
            .collect::<Vec<_>>()
    };
    assert_eq!(names("lang=rust"), ["legacy.rs"]);
    assert_eq!(
        names("lang=rust,imports=true"),
        ["google.protobuf.rs", "legacy.rs"]
    );
    assert_eq!(
        names("lang=c"),
        [
            "legacy.tollgate.h",
            "legacy.tollgate_service.h",
            "tollgate_block.h"
        ]
    );
}

#[test]
fn what_is_wrong_is_told_in_the_response() {
    let check = |change: &dyn Fn(&mut CodeGeneratorRequest), expected: &str| {
        let mut request = request(&["hotel"], "lang=c");
        change(&mut request);
        let response = respond(&request);
        assert_eq!(
            (response.error.as_deref(), response.file.len()),
            (Some(expected), 0)
        );
    };
    check(
        &|r| r.parameter = None,
        "no language is given: use lang=rust, lang=c or lang=python",
    );
    check(
        &|r| r.parameter = Some("lang=go".to_owned()),
        "\"go\" isn't a language of stubs; use rust, c or python",
    );
    check(
        &|r| r.parameter = Some("lang=c,speed=high".to_owned()),
        "there is no parameter \"speed=high\"; there are lang=rust|c|python and imports=true|false",
    );
    check(
        &|r| r.file_to_generate.push("other.proto".to_owned()),
        "the request names other.proto, but doesn't contain it",
    );
    let twice = |r: &mut CodeGeneratorRequest| {
        let again = r.proto_file[0].message_type[0].clone();
        r.proto_file[0].message_type.push(again);
    };
    check(
        &twice,
        "hotel.ReserveRequest is declared in \"hotel.proto\" and again in \"hotel.proto\"",
    );
}

#[test]
fn help_is_an_answer_and_other_words_are_refused() {
    for (word, is_fine) in [("--help", true), ("-h", true), ("hotel.proto", false)] {
        let said = Command::new(PLUGIN).arg(word).output().unwrap();
        assert_eq!(said.status.success(), is_fine, "{word}");
        let text = if is_fine { said.stdout } else { said.stderr };
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("--tollgate_out=DIR"), "{word}: {text}");
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let (success, out, error) = ask(b"\xff\xff");
    assert!(!success && out.is_empty());
    assert!(
        error.starts_with("protoc-gen-tollgate: protoc's input isn't a CodeGeneratorRequest"),
        "{error}"
    );
    // A file that ends in the middle of a field: protoc never sends one.
    let (success, out, _) = ask(&[
        0x12, 6, b'l', b'a', b'n', b'g', b'=', b'c', 0x7a, 2, 0x0a, 9,
    ]);
    let response = CodeGeneratorResponse::decode(&out[..]).unwrap();
    assert!(success);
    assert_eq!(
        response.error.as_deref(),
        Some("the request's file 0 is cut off")
    );
}

/// protoc from the path, or the one in Python's `grpc_tools`; `PROTOC` overrides it.
fn protoc() -> Option<Command> {
    let mut candidates = vec![Command::new("protoc")];
    if let Some(path) = std::env::var_os("PROTOC") {
        candidates.insert(0, Command::new(path));
    }
    let mut of_python = Command::new("python3");
    of_python.args(["-m", "grpc_tools.protoc"]);
    candidates.push(of_python);
    let works = |command: &mut Command| {
        command
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
    };
    candidates.into_iter().find_map(|mut command| {
        let mut again = Command::new(command.get_program());
        again.args(command.get_args());
        works(&mut command).then_some(again)
    })
}

/// Without protoc, only the hand-made requests are tested; `make test` reports whether there is
/// one.
#[test]
fn protoc_gets_what_the_library_writes() {
    let Some(mut command) = protoc() else {
        println!("there is no protoc: not tested with it");
        return;
    };
    let dir = directory("protoc");
    run(command
        .arg(format!("--plugin=protoc-gen-tollgate={PLUGIN}"))
        .arg(format!("--tollgate_out={}", dir.display()))
        .arg("--tollgate_opt=lang=python")
        .arg("-I")
        .arg(protos())
        .args(["hotel.proto", "everything.proto", "wellknown.proto"].map(|f| protos().join(f))));
    let expected = Language::Python
        .generate(&compile(&["hotel", "everything", "wellknown"]))
        .unwrap();
    for name in [
        "hotel_tollgate.py",
        "everything_tollgate.py",
        "wellknown_tollgate.py",
        "tollgate_block.py",
    ] {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        // protoc writes descriptor sets in its own order.
        assert_eq!(code(&text), code(&expected[name]), "{name}");
    }
    assert!(!Path::new(&dir).join("google_protobuf_tollgate.py").exists());
}

fn code(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("b\"\\x"))
        .collect()
}
