//! Everything that releases have left on disks and in scripts, and that this version must
//! understand: modules of policies, state directories, configuration files, and the names of
//! commands, options, metrics and JSON keys.
//!
//! `conformance/kept/README.md` describes the files. `TOLLGATE_KEEP=VERSION cargo test --workspace
//! --test kept a_release` writes those of a release, from this build.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tollgate_conformance::ports::free;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, guest_file, policy_file, run, succeed,
};

const SERVICE: &str = "hotel.Reservation";

/// The capabilities that the policy `everything` needs.
const GRANT: &str = "log,metrics,state,clock,random,change,delay,priority,route";

/// Names that scripts, dashboards and programs depend on, by file.
const NAMES: [&str; 3] = ["command-line.txt", "metrics.txt", "status.txt"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kept")
}

/// The directories of all releases, the oldest first.
fn releases() -> Vec<PathBuf> {
    let number = |path: &PathBuf| -> Vec<u32> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let parts = name.split('.').map(|part| part.parse().unwrap());
        parts.collect()
    };
    let entries = fs::read_dir(root()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut releases: Vec<_> = paths.filter(|path| path.is_dir()).collect();
    releases.sort_by_key(number);
    assert!(!releases.is_empty(), "no release is kept in {:?}", root());
    releases
}

/// A daemon with the state of a release, or with a new one.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    proto: PathBuf,
    prometheus: SocketAddr,
}

impl Host {
    fn new(bed: Testbed, release: &Path) -> Host {
        // The daemon binds the port again.
        let prometheus = free();
        let options = Options {
            durable: true,
            config: format!("[telemetry]\nprometheus = \"{prometheus}\"\n"),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        Host {
            bed,
            daemon,
            proto: release.join("policies/hotel.proto"),
            prometheus,
        }
    }

    /// Starts a daemon with a copy of the release's state.
    fn restored(release: &Path) -> Host {
        let bed = Testbed::new();
        let state = bed.path("a.state");
        fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        let kept = release.join("state");
        // Releases keep one of the two equal files.
        for (from, to) in [
            ("tollgate.redb", "tollgate.redb"),
            ("tollgate.redb", "tollgate.redb.copy"),
            ("audit.jsonl", "audit.jsonl"),
        ] {
            let to = state.join(to);
            fs::copy(kept.join(from), &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let verify = ["audit", "verify", "--state", state.to_str().unwrap()];
        let verified = run(&program("tollgate"), verify, b"");
        assert_eq!(verified.code, 0, "{}: {verified}", release.display());
        Host::new(bed, release)
    }

    fn serve(&self, token: &str) -> Process {
        let proto = self.proto.to_str().unwrap();
        let answer = "{\"reservation_id\": 1}";
        let args = ["--token", token, "--proto", proto, "--service", SERVICE];
        self.daemon.serve(args.iter().chain(&["--reply", answer]))
    }

    /// Reserves rooms for a customer; the policies see both.
    fn reserve(&self, token: &str, to: &str, customer: &str, rooms: u32) -> Outcome {
        let request = format!("{{\"customer_name\": \"{customer}\", \"room_count\": {rooms}}}");
        let mut args = vec!["call", "--token", token];
        args.extend(["--proto", self.proto.to_str().unwrap()]);
        if !to.is_empty() {
            args.extend(["--to", to]);
        }
        args.extend(["hotel.Reservation/Reserve", &request]);
        self.daemon.tollgate(args)
    }

    /// `ok`, or the end of the error: the status with its message.
    fn answer(&self, token: &str, customer: &str, rooms: u32) -> String {
        let outcome = self.reserve(token, "", customer, rooms);
        match outcome.code {
            0 => "ok".to_owned(),
            _ => outcome.err.trim().replace("tollgate: ", ""),
        }
    }

    /// Makes the state that a release keeps; returns the token of the tenant `acme`.
    fn fill(&self, release: &Path) -> String {
        let daemon = &self.daemon;
        let [hello, five] = [("hello", "Hello"), ("five", "5")]
            .map(|(name, text)| self.bed.file(name, text).display().to_string());
        let module = |name: &str| release.join("policies").join(name).display().to_string();
        let everything = format!(
            "policy push {} --tenant acme --name everything --config {hello}",
            module("everything.wasm")
        );
        daemon.ok("daemon set runtimes=2 wait_target_us=1000000");
        daemon.tenant("acme");
        daemon.tenant("other");
        let rotated = daemon.ok("tenant rotate acme --grace 60m");
        daemon.ok("tenant move acme --runtime 0");
        daemon.ok(&everything);
        daemon.ok(&format!(
            "policy attach everything@1 --tenant acme --service {SERVICE} --side server --grant {GRANT}"
        ));
        // The slot gets a previous version, a stable one and a candidate.
        daemon.ok(&everything);
        daemon.ok("policy upgrade everything@2 --tenant acme --mode shadow");
        daemon.ok("policy promote everything --tenant acme");
        daemon.ok(&everything);
        daemon.ok("policy upgrade everything@3 --tenant acme --mode shadow");
        daemon.ok(&format!(
            "policy push {} --provider --name room-limit --config {five}",
            module("room-limit-c.wasm")
        ));
        daemon.ok(&format!(
            "policy attach room-limit@1 --provider --service {SERVICE} --side server"
        ));
        rotated.trim().to_owned()
    }

    /// The metrics and the keys of `status --json` after calls within the host, to a peer
    /// and from it.
    fn names(&self, token: &str) -> [BTreeSet<String>; 2] {
        let _server = self.serve(token);
        for customer in ["Ada", "deny", "trap", "metrics", "effects"] {
            self.reserve(token, "", customer, 1);
        }
        // The trap ended the instance. The next one counts anew.
        let counts = || {
            self.reserve(token, "", "metrics", 1);
            self.daemon.status().to_string().contains("calls-now")
        };
        eventually(SOON, counts).unwrap();
        let peer = self.bed.daemon("b");
        let same = peer.tenant("acme");
        let _there = peer.serve_hotel(&same, SERVICE, &["--reply", "{\"reservation_id\": 1}"]);
        let outcome = self.reserve(token, &peer.listen().to_string(), "Ada", 1);
        assert_eq!(outcome.code, 0, "{outcome}");
        let here = self.daemon.listen().to_string();
        let outcome = peer.call_hotel(&same, &here, "hotel.Reservation/Reserve", "{}");
        assert_eq!(outcome.code, 0, "{outcome}");
        let mut metrics = BTreeSet::new();
        for line in scrape(self.prometheus).lines() {
            if let Some(named) = line.strip_prefix("# TYPE ") {
                metrics.insert(named.to_owned());
            }
        }
        let mut keys = BTreeSet::new();
        keys_of(&self.daemon.status(), "", &mut keys);
        [metrics, keys]
    }
}

/// The paths of all keys; those of a list's entries have the list's path.
fn keys_of(value: &Value, at: &str, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = match at {
                    "" => key.clone(),
                    _ => format!("{at}.{key}"),
                };
                keys_of(value, &path, keys);
                keys.insert(path);
            }
        }
        Value::Array(entries) => {
            for entry in entries {
                keys_of(entry, at, keys);
            }
        }
        _ => {}
    }
}

fn scrape(at: SocketAddr) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: kept\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// Commands with their options, from the reference of the command line, which another test compares
/// with the program; and the daemon's options.
fn command_line() -> BTreeSet<String> {
    let reference = root().join("../../docs/src/reference/cli.md");
    let reference = fs::read_to_string(reference).unwrap();
    let help = run(&program("tollgated"), ["--help"], b"").out;
    let mut names = BTreeSet::new();
    let mut command = String::new();
    let lines = reference.lines().chain(["## tollgated"]);
    for line in lines.chain(help.lines()) {
        if line.starts_with("##") {
            command = line.trim_start_matches(['#', ' ']).to_owned();
            names.insert(command.clone());
            continue;
        }
        let words = line.split([' ', ',']).filter(|word| !word.is_empty());
        // `-I, --include <DIR>`
        let begins_with_option = line.trim_start().starts_with('-');
        let options = words.take_while(|word| word.len() > 1 && word.starts_with('-'));
        if begins_with_option {
            names.extend(options.map(|option| format!("{command} {option}")));
        }
    }
    assert!(names.len() > 150, "only {} names were found", names.len());
    names
}

/// The names of this version, in the order of [`NAMES`]; the host has a state that `fill` has made.
fn names_of_now(host: &Host, token: &str) -> [BTreeSet<String>; 3] {
    let [metrics, status] = host.names(token);
    [command_line(), metrics, status]
}

fn token_of(release: &Path) -> String {
    let token = fs::read_to_string(release.join("state/token")).unwrap();
    token.trim().to_owned()
}

#[test]
fn modules_of_each_release_evaluate_their_cases() {
    let mut modules = 0;
    for release in releases() {
        for entry in fs::read_dir(release.join("policies")).unwrap() {
            let module = entry.unwrap().path();
            if module
                .extension()
                .is_none_or(|extension| extension != "wasm")
            {
                continue;
            }
            // `witness-rust.wasm` has the cases of `witness.json`.
            let own = module.with_extension("json");
            let name = own.file_stem().unwrap().to_str().unwrap().to_owned();
            let cases = match name.rsplit_once('-') {
                Some((shared, _)) if !own.exists() => own.with_file_name(format!("{shared}.json")),
                _ => own,
            };
            let [module, cases] = [module, cases].map(|path| path.display().to_string());
            let args = ["policy", "test", &module, "--cases", &cases];
            let outcome = run(&program("tollgate"), args, b"");
            assert_eq!(outcome.code, 0, "{module}: {outcome}");
            modules += 1;
        }
    }
    assert!(modules >= 6, "only {modules} modules were found");
}

#[test]
fn states_of_each_release_serve_and_change() {
    for release in releases() {
        let host = Host::restored(&release);
        let (daemon, token) = (&host.daemon, token_of(&release));
        daemon.ok("check");
        daemon.ok("audit verify");
        assert_eq!(daemon.ok("tenant list"), "acme\nother\n");
        let policies = daemon.ok("policy list");
        assert_eq!(policies.lines().count(), 4, "{policies}");
        let settings = daemon.ok("daemon settings");
        assert!(settings.contains("runtimes=2  run time"), "{settings}");
        let status = daemon.status();
        let moved = status["homes"].as_array().unwrap().iter();
        let moved: Vec<_> = moved.filter(|home| home["moved"] == true).collect();
        assert_eq!(moved.len(), 1, "{status}");

        let _server = host.serve(&token);
        assert_eq!(host.answer(&token, "Ada", 1), "ok");
        assert_eq!(
            host.answer(&token, "deny", 1),
            "PERMISSION_DENIED: Hello",
            "the tenant's policy with its configuration"
        );
        assert_eq!(
            host.answer(&token, "Ada", 9),
            "PERMISSION_DENIED: so many rooms need a group booking",
            "the provider's policy"
        );
        let ticked = || host.answer(&token, "ticks", 1) == "NOT_FOUND: ticked";
        eventually(SOON, ticked).unwrap();

        // Changes: the candidate decides, and the next version takes its state over.
        daemon.ok("policy promote everything --tenant acme");
        assert_eq!(host.answer(&token, "Ada", 1), "ok");
        let calls = host.answer(&token, "calls", 1);
        assert!(calls.starts_with("NOT_FOUND: calls "), "{calls}");
        let module = release.join("policies/everything.wasm");
        let push = format!("policy push {} --tenant acme", module.display());
        daemon.ok(&format!("{push} --name everything"));
        daemon.ok("policy upgrade everything@4 --tenant acme --mode shadow");
        daemon.ok("policy promote everything --tenant acme");
        assert_eq!(host.answer(&token, "calls", 1), calls);
        daemon.ok("audit verify");
    }
}

#[test]
fn configurations_of_each_release_are_read() {
    for release in releases() {
        let config = release.join("tollgated.toml").display().to_string();
        let outcome = run(
            &program("tollgated"),
            ["capacity", "--config", &config],
            b"",
        );
        assert_eq!(outcome.code, 0, "{config}: {outcome}");
    }
}

#[test]
fn names_of_each_release_are_still_there() {
    let releases = releases();
    let newest = releases.last().unwrap();
    let now = names_of_now(&Host::restored(newest), &token_of(newest));
    for release in &releases {
        for (file, now) in NAMES.iter().zip(&now) {
            let text = fs::read_to_string(release.join("names").join(file)).unwrap();
            let gone: Vec<_> = text.lines().filter(|name| !now.contains(*name)).collect();
            assert!(
                gone.is_empty(),
                "{} has names that this version lacks; deprecate a name for one minor release, and \
                 delete its line only then: {gone:#?}",
                release.join("names").join(file).display()
            );
        }
    }
}

/// Files of a release that people write: cases, schemas, the configuration.
fn keep_texts(release: &Path, before: &Path) {
    for entry in fs::read_dir(before.join("policies")).unwrap() {
        let from = entry.unwrap().path();
        let to = release.join("policies").join(from.file_name().unwrap());
        let is_text = from
            .extension()
            .is_some_and(|extension| extension != "wasm");
        if is_text && !to.exists() {
            fs::copy(from, to).unwrap();
        }
    }
    let config = release.join("tollgated.toml");
    if !config.exists() {
        fs::copy(before.join("tollgated.toml"), config).unwrap();
    }
}

fn keep_modules(release: &Path) {
    let assemblyscript = |name: &str| guest_file(&format!("assemblyscript/{name}"));
    for (name, built) in [
        ("null", policy_file("null")),
        ("witness-rust", policy_file("witness")),
        ("witness-assemblyscript", assemblyscript("witness")),
        ("room-limit-c", guest_file("c/room_limit")),
        ("room-limit-assemblyscript", assemblyscript("room_limit")),
    ] {
        let module = fs::read(built).unwrap();
        fs::write(release.join(format!("policies/{name}.wasm")), module).unwrap();
    }
    let mut clang = Command::new("clang");
    clang.args("--target=wasm32 -std=c11 -O2 -mbulk-memory -ffreestanding -nostdlib".split(' '));
    clang.args(["-Wl,--no-entry,--strip-all", "-o"]);
    let module = release.join("policies/everything.wasm");
    clang.args([module, root().join("everything.c")]);
    succeed(&mut clang);
    // The linker makes it executable.
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(release.join("policies/everything.wasm"), mode).unwrap();
}

/// Returns the token of the tenant `acme`.
fn keep_state(release: &Path) -> String {
    let mut host = Host::new(Testbed::new(), release);
    let token = host.fill(release);
    let daemon = host.daemon.process();
    daemon.signal(Signal::TERM);
    let ended = daemon.ended(SOON);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let state = host.bed.path("a.state");
    let [file, copy] =
        ["tollgate.redb", "tollgate.redb.copy"].map(|name| fs::read(state.join(name)).unwrap());
    assert!(file == copy, "the state and its copy differ");
    for name in ["tollgate.redb", "audit.jsonl"] {
        let bytes = fs::read(state.join(name)).unwrap();
        fs::write(release.join("state").join(name), bytes).unwrap();
    }
    fs::write(release.join("state/token"), format!("{token}\n")).unwrap();
    token
}

/// Writes the files of a release; without `TOLLGATE_KEEP` it does nothing.
#[test]
fn a_release_is_kept() {
    let Ok(version) = std::env::var("TOLLGATE_KEEP") else {
        return;
    };
    let release = root().join(version);
    let before = releases().into_iter().rfind(|other| *other != release);
    for directory in ["policies", "state", "names"] {
        fs::create_dir_all(release.join(directory)).unwrap();
    }
    if let Some(before) = before {
        keep_texts(&release, &before);
    }
    keep_modules(&release);
    let token = keep_state(&release);
    let now = names_of_now(&Host::restored(&release), &token);
    for (file, names) in NAMES.iter().zip(now) {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        fs::write(release.join("names").join(file), text).unwrap();
    }
}
