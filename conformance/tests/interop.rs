//! Every client library against every server, on one host and across two: one suite of cases, run
//! for each pair.
//!
//! `TOLLGATE_BLESS=1 cargo test --test interop` writes `conformance/RESULTS.md`, which otherwise
//! must match the results.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tollgate_conformance::c_library::{self, Kit, Way};
use tollgate_conformance::cases::{Case, cases, difference, goldens};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::process::{self, Process, program};
use tollgate_conformance::testbed::{SOON, proto_file, stubs};

/// A library's two programs, each with arguments that precede the others.
struct Library {
    name: &'static str,
    client: Vec<PathBuf>,
    server: Vec<PathBuf>,
}

fn libraries(place: &Path) -> Vec<Library> {
    vec![rust(), c(place), python(place)]
}

fn rust() -> Library {
    Library {
        name: "Rust",
        client: vec![program("interop-client")],
        server: vec![program("interop-server")],
    }
}

/// With the sanitizers, under which everything must be correct, too.
fn c(place: &Path) -> Library {
    let kit = Kit::install(&place.join("c"));
    let build = |name: &str| {
        let source = c_library::sources().join("interop").join(name);
        vec![kit.build(Way::Sanitized, &source)]
    };
    Library {
        name: "C",
        client: build("interop_client.c"),
        server: build("interop_server.c"),
    }
}

/// In the virtual environment from `.ci/python`.
fn python(place: &Path) -> Library {
    let python = process::python();
    let place = place.join("python");
    let protos = ["interop.proto", "everything.proto"].map(proto_file);
    stubs("python", &protos, &place.join("stubs"));
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-libs/python/interop");
    let run = |name: &str| {
        // A program imports from its own directory.
        let copy = place.join(name);
        std::fs::copy(programs.join(name), &copy).unwrap();
        vec![
            python.clone(),
            "-B".into(),
            "-W".into(),
            "error".into(),
            copy,
        ]
    };
    Library {
        name: "Python",
        client: run("interop_client.py"),
        server: run("interop_server.py"),
    }
}

/// Runs all cases with a library's client; returns the error of each, in order.
fn run(
    library: &Library,
    socket: &Path,
    token: &str,
    target: &str,
    cases: &[Case],
) -> Vec<Option<String>> {
    let (first, rest) = library.client.split_first().unwrap();
    let mut client = Command::new(first)
        .args(rest)
        .arg(socket)
        .args([token, target])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} can't be run: {error}", first.display()));
    let mut told = client.stdin.take().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
    let outcomes = cases.iter().map(|case| {
        let sent = writeln!(told, "{}", case.told);
        let line = match (sent, said.next()) {
            (Ok(()), Some(Ok(line))) => line,
            _ => return Some("the client ended".to_owned()),
        };
        match serde_json::from_str::<Value>(&line) {
            Ok(came) => difference(case, &came),
            Err(error) => Some(format!("{error}: {line}")),
        }
    });
    let outcomes = outcomes.collect();
    drop(told);
    let _ended = client.kill();
    let _reaped = client.wait();
    outcomes
}

/// Starts a library's server, and waits until it serves.
fn serve(library: &Library, socket: &Path, token: &str) -> Process {
    let (first, rest) = library.server.split_first().unwrap();
    let arguments = rest.iter().map(|argument| argument.as_os_str());
    let arguments = arguments.chain([socket.as_os_str(), token.as_ref()]);
    let server = Process::start(first, arguments).unwrap();
    server
        .line(SOON, |line| line == "serving")
        .unwrap_or_else(|said| panic!("the {} server doesn't serve: {said:?}", library.name));
    server
}

#[test]
fn every_client_understands_every_server() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    let cases: Vec<_> = cases().into_iter().chain(goldens()).collect();
    let libraries = libraries(&place);
    let mut table = BTreeMap::new();
    let mut wrong = Vec::new();
    for (at, server) in libraries.iter().enumerate() {
        // Separate daemons, so that there are no other servers.
        let hosts = Hosts::new();
        let _servers = [
            serve(server, hosts.a.socket(), &hosts.tokens[0]),
            serve(server, hosts.b.socket(), &hosts.tokens[1]),
        ];
        for client in &libraries {
            for (place, target) in [
                ("one host", String::new()),
                ("two hosts", hosts.b.listen().to_string()),
            ] {
                let outcomes = run(client, hosts.a.socket(), &hosts.tokens[0], &target, &cases);
                let right = outcomes.iter().filter(|outcome| outcome.is_none()).count();
                table.insert((client.name, at, place), right);
                let named = cases.iter().zip(outcomes);
                wrong.extend(named.filter_map(|(case, outcome)| {
                    let outcome = outcome?;
                    Some(format!(
                        "{} client, {} server, {place}: {}: {outcome}",
                        client.name, server.name, case.name
                    ))
                }));
            }
        }
    }
    let results = results(&cases, &libraries, &table);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("RESULTS.md");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&file, &results).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        committed, results,
        "run with TOLLGATE_BLESS=1, and review the difference"
    );
}

fn results(
    cases: &[Case],
    libraries: &[Library],
    table: &BTreeMap<(&str, usize, &str), usize>,
) -> String {
    let mut text = String::from(
        "# Client libraries against each other\n\nWritten by `tests/interop.rs`. Each cell: cases that came out right on one host \
         and across two, of how many.\n\n| client \\ server |",
    );
    for server in libraries {
        write!(text, " {} |", server.name).unwrap();
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(libraries.len()));
    for client in libraries {
        write!(text, "\n| {} |", client.name).unwrap();
        for at in 0..libraries.len() {
            let right = |place| table[&(client.name, at, place)];
            write!(
                text,
                " {}, {} of {} |",
                right("one host"),
                right("two hosts"),
                cases.len()
            )
            .unwrap();
        }
    }
    text.push_str("\n\nThe cases, each of which says its call's type by its method:\n\n");
    for case in cases {
        let method = case.told["method"].as_str().unwrap_or_default();
        writeln!(text, "- {} (`{method}`)", case.name).unwrap();
    }
    text
}
