//! The C library as its users meet it: installed, found by pkg-config, built by gcc and clang as C11 and by g++ as C++17, run plain,
//! under the address sanitizer and under valgrind, against real daemons and against the server in Rust.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tollgate::{Session, SessionOptions, block_on};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::interop::{SemanticsServer, Server};
use tollgate_conformance::process::{Process, program, programs};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, proto_file, run};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Examples that serve themselves, with what each says last.
const ALONE: [(&str, &str); 6] = [
    ("streaming", "both: 128"),
    ("metadata", "trailer: asked = 1"),
    ("errors", "a mistake: INVALID_ARGUMENT: `request` is NULL"),
    ("zero_copy", "1048576 bytes came back, the same"),
    ("cancellation", "the stream's handler noticed: CANCELLED"),
    ("event_loop", "1000 calls, 17000 bytes"),
];

/// Examples in two programs: server, client, and what the client says.
const PAIRS: [(&str, &str, &[&str]); 2] = [
    ("hello_server", "hello_client", &["hello"]),
    (
        "hotel_server",
        "hotel_client",
        &[
            "reservation 1 at 2 hotels",
            "astoria has 7 rooms left",
            "ritz has 4 rooms left",
        ],
    ),
];

/// How a program is built and run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By gcc, with the shared library.
    Shared,
    /// By clang, with the static library.
    Static,
    /// As C++17 by g++.
    Cpp,
    /// With the address sanitizer and the one for undefined behaviour.
    Sanitized,
    /// As [`Shared`](Way::Shared), under valgrind.
    Valgrind,
}

impl Way {
    fn compiler(self) -> &'static str {
        match self {
            Way::Static => "clang",
            Way::Cpp => "g++",
            Way::Shared | Way::Sanitized | Way::Valgrind => "gcc",
        }
    }
}

/// The installed library, and stubs.
struct Kit {
    place: PathBuf,
}

/// The library's sources.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-libs/c")
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        panic!("{program} is needed to test the C library, and can't be run: {error}")
    });
    let [out, err] =
        [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}\n{err}",
        output.status
    );
    out
}

/// Installed once for all tests.
fn kit() -> &'static Kit {
    static KIT: OnceLock<Kit> = OnceLock::new();
    KIT.get_or_init(|| {
        let library = programs().join("libtollgate.so");
        let shown = library.display();
        assert!(
            library.exists(),
            "{shown} is not built; run `cargo build -p tollgate-c` first"
        );
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-library");
        let _nothing_there = std::fs::remove_dir_all(&place);
        let assignment = |name: &str, path: &Path| format!("{name}={}", path.display());
        succeed(
            Command::new("make")
                .args(["--silent", "-C"])
                .arg(sources())
                .arg("install")
                .arg(assignment("PREFIX", &place.join("prefix")))
                .arg(assignment("BUILD", &programs())),
        );
        for proto in ["hotel.proto", "interop.proto"] {
            stubs(&proto_file(proto), &place.join("stubs"));
        }
        Kit { place }
    })
}

fn stubs(proto: &Path, out: &Path) {
    let generate = ["gen", "--lang", "c", "--out"];
    let mut tollgate = Command::new(program("tollgate"));
    succeed(tollgate.args(generate).arg(out).arg(proto));
}

impl Kit {
    fn pkg_config(&self, flags: &[&str]) -> Vec<String> {
        let said = succeed(
            Command::new("pkg-config")
                .args(flags)
                .arg("tollgate")
                .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig")),
        );
        said.split_whitespace().map(str::to_owned).collect()
    }

    fn lib(&self) -> PathBuf {
        self.place.join("prefix/lib")
    }

    /// Builds a program from one source.
    fn build(&self, way: Way, source: &Path) -> PathBuf {
        let name = source.file_stem().unwrap().to_string_lossy();
        let program = self.place.join(format!("{name}.{way:?}"));
        let mut build = Command::new(way.compiler());
        build.args(WARNINGS).args(["-g", "-O2", "-I"]);
        build.arg(self.place.join("stubs"));
        build.args(self.pkg_config(&["--cflags"]));
        match way {
            Way::Cpp => build.args(["-std=c++17", "-x", "c++"]),
            _ => build.arg("-std=c11"),
        };
        if way == Way::Sanitized {
            build.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        build.arg(source).args(["-x", "none", "-pthread"]);
        match way {
            Way::Static | Way::Sanitized => {
                build.arg(self.lib().join("libtollgate.a"));
                let rest = self.pkg_config(&["--libs", "--static"]);
                build.args(rest.iter().filter(|flag| *flag != "-ltollgate"));
            }
            Way::Shared | Way::Cpp | Way::Valgrind => {
                build.args(self.pkg_config(&["--libs"]));
                build.arg(format!("-Wl,-rpath,{}", self.lib().display()));
            }
        }
        succeed(build.arg("-o").arg(&program));
        program
    }

    /// The program and its arguments, as it is to be run.
    fn command(&self, way: Way, program: &Path, args: &[&str]) -> (PathBuf, Vec<String>) {
        let args = args.iter().map(|&arg| arg.to_owned());
        if way != Way::Valgrind {
            return (program.to_owned(), args.collect());
        }
        let suppressions = self.place.join("prefix/share/tollgate/valgrind.supp");
        let checks = [
            "--quiet".to_owned(),
            "--leak-check=full".to_owned(),
            "--error-exitcode=1".to_owned(),
            format!("--suppressions={}", suppressions.display()),
            program.display().to_string(),
        ];
        (
            PathBuf::from("valgrind"),
            checks.into_iter().chain(args).collect(),
        )
    }

    /// Builds an example and runs it to its end; what it printed.
    #[track_caller]
    fn example(&self, way: Way, source: &str, args: &[&str]) -> String {
        let program = self.build(way, &sources().join(source));
        let (program, args) = self.command(way, &program, args);
        let outcome = run(&program, args, b"");
        assert_eq!(outcome.code, 0, "{source}, {way:?}: {outcome}");
        outcome.out
    }
}

fn socket(daemon: &Daemon) -> &str {
    daemon.socket().to_str().unwrap()
}

/// Starts a program and waits until it serves.
fn serve<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Process {
    let process = Process::start(program, args).unwrap();
    process
        .line(SOON, |line| line.starts_with("serving"))
        .unwrap_or_else(|error| panic!("{error}"));
    process
}

#[test]
fn examples_run_in_every_way_they_are_built() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Shared, Way::Static, Way::Sanitized, Way::Valgrind] {
        for (name, last) in ALONE {
            let out = kit().example(
                way,
                &format!("examples/{name}.c"),
                &[socket(&daemon), &token],
            );
            assert_eq!(out.lines().last(), Some(last), "{name}, {way:?}: {out}");
        }
        for (server, client, lines) in PAIRS {
            let program = kit().build(way, &sources().join(format!("examples/{server}.c")));
            let (program, args) = kit().command(way, &program, &[socket(&daemon), &token]);
            let _server = serve(&program, &args);
            let out = kit().example(
                way,
                &format!("examples/{client}.c"),
                &[socket(&daemon), &token],
            );
            assert_eq!(out.lines().collect::<Vec<_>>(), lines, "{client}, {way:?}");
        }
    }
    let out = kit().example(Way::Cpp, "examples/streaming.c", &[socket(&daemon), &token]);
    assert_eq!(out.lines().last(), Some("both: 128"));
}

#[test]
fn a_client_on_one_host_reaches_a_server_on_another() {
    let hosts = Hosts::new();
    let server = kit().build(Way::Shared, &sources().join("examples/hotel_server.c"));
    let _server = serve(&server, &[socket(&hosts.b), &hosts.tokens[1]]);
    let to = hosts.b.listen().to_string();
    let out = kit().example(
        Way::Shared,
        "examples/hotel_client.c",
        &[socket(&hosts.a), &hosts.tokens[0], &to, "3"],
    );
    assert_eq!(out.lines().nth(2), Some("reservation 3 at 2 hotels"));
}

#[test]
fn mistakes_are_refused_and_leaks_told() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Sanitized, Way::Valgrind] {
        let out = kit().example(way, "tests/hostile.c", &[socket(&daemon), &token]);
        assert_eq!(out.trim_end(), "hostile: all checks passed", "{way:?}");
    }
}

#[test]
fn a_daemon_that_dies_is_noticed_by_who_waits() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let start = |name: &str, args: &[&str]| {
        let program = kit().build(Way::Sanitized, &sources().join(name));
        Process::start(&program, args).unwrap()
    };
    let mut server = start("interop/interop_server.c", &[socket(&daemon), &token]);
    server.line(SOON, |line| line == "serving").unwrap();
    let mut client = start("interop/interop_client.c", &[socket(&daemon), &token, ""]);
    let mut calls = client.stdin().unwrap();
    let quick = r#"{"method": "Unary", "requests": [{"number": 1, "responses": 1}]}"#;
    writeln!(calls, "{quick}").unwrap();
    client.line_after(0, SOON).unwrap();
    let slow = r#"{"method": "Chat", "requests": [{"delay_ms": 500}, {"delay_ms": 3000}]}"#;
    writeln!(calls, "{slow}").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    daemon.process().kill();
    let last = client.line_after(1, SOON).unwrap();
    assert!(last.contains("\"code\":14"), "{last}");
    // The server's threads wait, or handle a call that nobody waits for any more, and end.
    assert_eq!(server.ended(SOON).and_then(|end| end.code()), Some(1));
    drop(calls);
    assert!(client.ended(SOON).is_some());
}

#[test]
fn a_daemon_that_comes_back_finds_its_programs_again() {
    let durable = || Options {
        durable: true,
        ..Options::default()
    };
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let start = |name: &str, args: &[&str]| {
        let program = kit().build(Way::Sanitized, &sources().join(name));
        Process::start(&program, args).unwrap()
    };
    let server = start("examples/hello_server.c", &[socket(&daemon), &token]);
    server.line(SOON, |line| line == "serving").unwrap();
    let mut client = start("tests/reconnect.c", &[socket(&daemon), &token, "4"]);
    let mut next = client.stdin().unwrap();
    for time in 0..4 {
        client.line_after(time, SOON).unwrap();
        if time < 3 {
            daemon.process().kill();
            daemon = bed.daemon_with("a", &durable());
        }
        writeln!(next).unwrap();
    }
    assert_eq!(client.ended(SOON).and_then(|end| end.code()), Some(0));
}

#[test]
fn many_threads_and_an_event_loop_lose_nothing() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Sanitized, Way::Static] {
        let out = kit().example(way, "tests/stress.c", &[socket(&daemon), &token]);
        assert_eq!(out.trim_end(), "stress: nothing got lost", "{way:?}");
    }
}

/// The most instructions that a call with one request and one reply may take in the library's own sources, its headers, the stubs and
/// the program, with the library built as for the tests. At one per cycle of 3.3 GHz, which is slow, they take 300 ns.
const MOST_INSTRUCTIONS: u64 = 1_000;

/// Instructions by source file, as callgrind counted them: inlined code counts where it was written.
fn instructions_by_file(profile: &str) -> BTreeMap<String, u64> {
    let (mut files, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut file, mut is_call) = (String::new(), false);
    for line in profile.lines() {
        // `(7) path` gives a file its number, `(7)` names it again.
        let mut named = |said: &str| {
            let (number, path) = said.split_once(' ').unwrap_or((said, ""));
            if !path.is_empty() {
                files.insert(number.to_owned(), path.to_owned());
            }
            files.get(number).cloned().unwrap_or_default()
        };
        let begins = |keys: &[&str]| keys.iter().find_map(|key| line.strip_prefix(key));
        if let Some(said) = begins(&["fl=", "fi=", "fe="]) {
            file = named(said);
        } else if let Some(said) = begins(&["cfi=", "cfl="]) {
            named(said);
        } else if line.starts_with("calls=") {
            // The next line has what was called.
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && !std::mem::take(&mut is_call)
            && let Some(count) = line
                .split(' ')
                .nth(1)
                .and_then(|count| count.parse::<u64>().ok())
        {
            *counts.entry(file.clone()).or_default() += count;
        }
    }
    counts
}

#[test]
fn a_call_takes_few_instructions_beyond_those_of_core() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let server = kit().build(Way::Shared, &sources().join("examples/hello_server.c"));
    let _server = serve(&server, &[socket(&daemon), &token]);
    let program = kit().build(Way::Shared, &sources().join("tests/cost.c"));
    let count = |calls: u32| {
        let file = bed.path(&format!("callgrind.{calls}"));
        let out = format!("--callgrind-out-file={}", file.display());
        let calls = calls.to_string();
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--quiet", "--tool=callgrind", &out])
            .arg(&program);
        succeed(valgrind.args([socket(&daemon), &token, &calls]));
        let counts = instructions_by_file(&std::fs::read_to_string(file).unwrap());
        let is_ours = |file: &&String| {
            let parts = ["client-libs/c/", "/stubs/", "include/tollgate"];
            parts.iter().any(|part| file.contains(part))
        };
        let total: u64 = counts.values().sum();
        let ours: u64 = counts.keys().filter(is_ours).map(|file| counts[file]).sum();
        (ours, total)
    };
    const CALLS: u32 = 2_000;
    let (few, many) = (count(100), count(100 + CALLS));
    let per_call = (many.0 - few.0) / u64::from(CALLS);
    println!(
        "{per_call} instructions per call, of {}",
        (many.1 - few.1) / u64::from(CALLS)
    );
    assert!(
        per_call > 100,
        "only {per_call}: the library's sources aren't recognized in the profile"
    );
    assert!(
        per_call <= MOST_INSTRUCTIONS,
        "a call takes {per_call} instructions in the library"
    );
}

/// Calls of all types, and how each ends: code, count of responses.
fn cases() -> Vec<(Value, u64, usize)> {
    use serde_json::json;
    let kv = json!([
        ["k", "v"],
        ["k", "w\"\u{7f}".trim_end_matches('\u{7f}')],
        ["t-bin", "AP8="]
    ]);
    let echo = |mut ask: Value| {
        ask["echo"] = json!(["k"]);
        ask["echo_as_trailers"] = json!(["t-bin"]);
        ask
    };
    let unary = |ask: Value| json!({"method": "Unary", "requests": [ask]});
    let of = |method: &str, asks: &[Value]| json!({"method": method, "requests": asks});
    let with = |mut case: Value, key: &str, value: Value| {
        case[key] = value;
        case
    };
    let many: Vec<_> = (1..=200)
        .map(|n| json!({"number": n, "payload_len": n * 50, "payload_byte": n}))
        .collect();
    let talk: Vec<_> = (0..100)
        .map(|n| json!({"number": n * 10, "responses": n % 4, "response_bytes": n * 20, "payload_len": 5000}))
        .collect();
    vec![
        (
            with(
                unary(echo(
                    json!({"number": 7, "responses": 1, "response_bytes": 5}),
                )),
                "metadata",
                kv.clone(),
            ),
            0,
            1,
        ),
        (
            unary(
                json!({"number": 1, "payload_len": 300_000, "payload_byte": 7, "responses": 1, "response_bytes": 300_000}),
            ),
            0,
            1,
        ),
        (
            with(
                unary(echo(
                    json!({"code": 9, "message": "not yet \u{e9}", "details": "CAk="}),
                )),
                "metadata",
                kv.clone(),
            ),
            9,
            0,
        ),
        (
            with(
                unary(json!({"responses": 1, "delay_ms": 2000})),
                "timeout_ms",
                json!(50),
            ),
            4,
            0,
        ),
        (
            with(
                of(
                    "Collect",
                    &[
                        json!({"number": 1}),
                        echo(json!({"number": 2, "payload_len": 9})),
                    ],
                ),
                "metadata",
                kv.clone(),
            ),
            0,
            1,
        ),
        (of("Collect", &many), 0, 1),
        (of("Collect", &[]), 0, 1),
        (
            of(
                "Collect",
                &[
                    json!({"number": 1}),
                    json!({"code": 3, "message": "enough"}),
                    json!({"number": 3}),
                ],
            ),
            3,
            0,
        ),
        (
            with(
                of(
                    "Spread",
                    &[echo(
                        json!({"number": 250, "responses": 300, "response_bytes": 10}),
                    )],
                ),
                "metadata",
                kv.clone(),
            ),
            0,
            300,
        ),
        (of("Spread", &[json!({})]), 0, 0),
        (
            of(
                "Spread",
                &[json!({"number": 5, "responses": 2, "code": 5, "message": "gone"})],
            ),
            5,
            2,
        ),
        (
            with(
                of(
                    "Spread",
                    &[json!({"responses": 5000, "response_bytes": 2000})],
                ),
                "cancel_after",
                json!(5),
            ),
            1,
            5,
        ),
        (with(of("Chat", &talk), "metadata", kv.clone()), 0, 150),
        (with(of("Chat", &talk), "lockstep", json!(true)), 0, 150),
        (
            of(
                "Chat",
                &[
                    json!({"number": 1, "responses": 400, "response_bytes": 5000}),
                    json!({"number": 2, "responses": 1}),
                ],
            ),
            0,
            401,
        ),
        (
            of(
                "Chat",
                &[
                    json!({"responses": 2, "code": 10, "message": "abort"}),
                    json!({"responses": 3}),
                ],
            ),
            10,
            2,
        ),
        (with(of("Chat", &talk), "cancel_after", json!(3)), 1, 3),
        (
            with(
                of("Chat", &[json!({"delay_ms": 2000})]),
                "timeout_ms",
                json!(50),
            ),
            4,
            0,
        ),
    ]
}

/// Has the client in C make all the calls; what it answers.
fn converse(way: Way, daemon: &Daemon, token: &str, target: &str) -> Vec<Value> {
    let program = kit().build(way, &sources().join("interop/interop_client.c"));
    let (program, args) = kit().command(way, &program, &[socket(daemon), token, target]);
    let cases = cases();
    let lines: Vec<_> = cases.iter().map(|(case, ..)| format!("{case}\n")).collect();
    let outcome = run(&program, args, lines.concat().as_bytes());
    assert_eq!(outcome.code, 0, "{way:?}: {outcome}");
    let answers: Vec<Value> = outcome
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), cases.len(), "{outcome}");
    for ((case, code, count), answer) in cases.iter().zip(&answers) {
        let responses = answer["responses"].as_array().unwrap();
        assert_eq!(
            (&answer["code"], responses.len()),
            (&Value::from(*code), *count),
            "{case}: {answer}"
        );
        for response in responses {
            let byte = response["number"].as_u64().unwrap() % 256;
            let has_bytes = response["len"].as_u64().unwrap() > 0 && case["method"] != "Collect";
            assert!(!has_bytes || response["byte"] == byte, "{case}: {response}");
        }
    }
    answers
}

#[test]
fn client_and_server_are_those_of_the_rust_library() {
    let hosts = Hosts::new();
    let options = SessionOptions::new(hosts.b.socket(), &*hosts.tokens[1]);
    let rust = Session::open(options).unwrap();
    let server = tollgate::Server::new(&rust).add_service(SemanticsServer::new(Server));
    block_on(&rust, server.bind()).unwrap();
    let to = hosts.b.listen().to_string();
    let by_rust = converse(Way::Shared, &hosts.a, &hosts.tokens[0], &to);
    // What is sent back, once in full.
    let first = r#"{"code":0,"details":"","message":"","metadata":[["k","v"],["k","w\""]],"responses":[{"byte":7,"len":5,"number":7}],"trailers":[["t-bin","AP8="]]}"#;
    assert_eq!(by_rust[0].to_string(), first);
    let failed = &by_rust[2];
    assert_eq!(
        (&failed["message"], &failed["details"]),
        (&"not yet \u{e9}".into(), &"CAk=".into())
    );
    assert_eq!(failed["trailers"].to_string(), r#"[["t-bin","AP8="]]"#);
    drop(rust);

    // The server in C answers the same: on this host, and on the other.
    let ways = [(Way::Sanitized, &hosts.a, 0), (Way::Shared, &hosts.b, 1)];
    for (way, host, token) in ways {
        let program = kit().build(way, &sources().join("interop/interop_server.c"));
        let _server = serve(&program, &[socket(host), &hosts.tokens[token]]);
        let target = if token == 0 { "" } else { &*to };
        for client in [Way::Sanitized, Way::Shared] {
            let by_c = converse(client, &hosts.a, &hosts.tokens[0], target);
            assert_eq!(by_c, by_rust, "server {way:?}, client {client:?}");
        }
    }
}

/// The README's code blocks of a language, in order.
fn blocks<'r>(readme: &'r str, language: &str) -> Vec<&'r str> {
    let fence = format!("```{language}\n");
    let begun = readme.split(&*fence).skip(1);
    begun
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_readme_leads_to_a_call() {
    let readme = std::fs::read_to_string(sources().join("README.md")).unwrap();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let proto = bed.file("greeter.proto", blocks(&readme, "proto")[0]);
    let [server, client] = blocks(&readme, "c")[..] else {
        panic!("the README has a server and a client")
    };
    bed.file("server.c", server);
    bed.file("client.c", client);
    let [generate, build] = blocks(&readme, "sh")[..] else {
        panic!("the README generates and builds")
    };
    assert_eq!(
        generate.trim(),
        "tollgate gen --lang c --out stubs greeter.proto"
    );
    stubs(&proto, &bed.path("stubs"));
    let lib = kit().lib();
    succeed(
        Command::new("sh")
            .args(["-ec", build])
            .current_dir(bed.path(""))
            .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
            .env("LD_RUN_PATH", &lib),
    );
    let args = [socket(&daemon), &token];
    let _server = serve(&bed.path("server"), &args);
    let outcome = run(&bed.path("client"), args, b"");
    assert_eq!(
        (outcome.code, outcome.out.trim_end()),
        (0, "Hello, Ada!"),
        "{outcome}"
    );
}
