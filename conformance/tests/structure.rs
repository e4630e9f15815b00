//! The repository's checks of itself: the imports between crates, the files that may use `unsafe`,
//! and the crates that fence dependencies.
//!
//! The tables below are reviewed like code. They are exact: an edge that is missing in the table
//! fails the test, and so does an entry without its edge, so that the table never grants more than
//! is used. Facts come from `cargo metadata` and from the sources.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_conformance::modules::Modules;
use tollgate_conformance::source::{code_only, lines_with_word};

/// The allowed imports: crate, imports of its code, imports of its tests, examples and build
/// scripts only. Arrows point inward: nothing imports `tollgate-daemon`.
const IMPORTS: &[(&str, &[&str], &[&str])] = &[
    // Shared by both sides of the boundary.
    ("tollgate-shm-abi", &[], &[]),
    ("tollgate-schema", &[], &[]),
    // The client's side.
    ("tollgate-core", &["tollgate-shm-abi"], &[]),
    ("tollgate", &["tollgate-core"], &["tollgate-conformance"]),
    // The same for C: it fences the pointers.
    ("tollgate-c", &["tollgate-core", "tollgate-health"], &[]),
    (
        "tollgate-python",
        &["tollgate-core", "tollgate-health"],
        &[],
    ),
    (
        "tollgate-examples",
        &["tollgate"],
        &["tollgate-core", "tollgate-gen", "tollgate-shm-abi"],
    ),
    ("tollgate-health", &["tollgate"], &["tollgate-gen"]),
    (
        "tollgate-opentelemetry",
        &["tollgate", "tollgate-shm-abi"],
        &["tollgate-conformance"],
    ),
    (
        "tollgate-gen",
        &["tollgate-schema"],
        &["tollgate", "tollgate-marshal"],
    ),
    (
        "tollgate-cli",
        &[
            "tollgate",
            "tollgate-admin",
            "tollgate-policy-rules",
            "tollgate-policy-tools",
            "tollgate-gen",
            "tollgate-registry",
            "tollgate-schema",
            "tollgate-shm-abi",
        ],
        &[],
    ),
    (
        "tollgate-fuzz",
        &[
            "tollgate-engine",
            "tollgate-jit",
            "tollgate-marshal",
            "tollgate-policy-host",
            "tollgate-schema",
            "tollgate-shm-abi",
            "tollgate-transport",
        ],
        &[],
    ),
    // The daemon's side. From shm-abi, the engine uses only status codes, streams' windows and
    // metadata.
    ("tollgate-marshal", &["tollgate-schema"], &[]),
    (
        "tollgate-jit",
        &["tollgate-marshal", "tollgate-schema"],
        &[],
    ),
    ("tollgate-engine", &["tollgate-shm-abi"], &[]),
    ("tollgate-transport", &["tollgate-shm-abi"], &[]),
    // Its tests are the other transport's.
    (
        "tollgate-transport-rdma",
        &["tollgate-shm-abi", "tollgate-transport"],
        &["tollgate-transport"],
    ),
    // Rings, heaps and waiting: a policy process and the daemon trust each other no more than an
    // application and the daemon do.
    ("tollgate-policy-host", &["tollgate-shm-abi"], &[]),
    // What evaluates policies for a call: the engine's decisions, the sandbox, views and patches of
    // messages.
    (
        "tollgate-policy-chain",
        &[
            "tollgate-engine",
            "tollgate-jit",
            "tollgate-marshal",
            "tollgate-policy-host",
            "tollgate-schema",
            "tollgate-shm-abi",
        ],
        &[],
    ),
    // The runtimes' threads: what moves calls between rings, links, chains and the engine.
    (
        "tollgate-datapath",
        &[
            "tollgate-engine",
            "tollgate-jit",
            "tollgate-marshal",
            "tollgate-policy-chain",
            "tollgate-policy-host",
            "tollgate-schema",
            "tollgate-shm-abi",
            "tollgate-telemetry",
            "tollgate-transport",
            "tollgate-transport-rdma",
        ],
        &[],
    ),
    ("tollgate-control", &[], &[]),
    // The export of telemetry: it knows neither the daemon nor the engine.
    ("tollgate-telemetry", &["tollgate-shm-abi"], &[]),
    // The browser's view: it knows pages and sessions, and of their contents only the escaping of
    // text.
    // Both answer HTTP, and have the same limit of connections.
    (
        "tollgate-console",
        &["tollgate-shm-abi", "tollgate-telemetry"],
        &[],
    ),
    // The administrative API: it knows only how its statuses are written.
    ("tollgate-admin", &["tollgate-shm-abi"], &[]),
    // The origins of modules: bytes and signatures; and the network.
    ("tollgate-provenance", &[], &[]),
    ("tollgate-registry", &["tollgate-provenance"], &[]),
    (
        "tollgate-daemon",
        &[
            "tollgate-admin",
            "tollgate-console",
            "tollgate-control",
            "tollgate-datapath",
            "tollgate-engine",
            "tollgate-jit",
            "tollgate-marshal",
            "tollgate-policy-chain",
            "tollgate-policy-host",
            "tollgate-provenance",
            "tollgate-schema",
            "tollgate-shm-abi",
            "tollgate-telemetry",
            "tollgate-transport",
            "tollgate-transport-rdma",
        ],
        &[],
    ),
    // The daemon's processing of a policy without a daemon, for the command line.
    (
        "tollgate-policy-tools",
        &[
            "tollgate-jit",
            "tollgate-marshal",
            "tollgate-policy-chain",
            "tollgate-policy-host",
            "tollgate-schema",
            "tollgate-shm-abi",
        ],
        &[],
    ),
    // From rules to a module, for the command line; its tests run the modules.
    (
        "tollgate-policy-rules",
        &["tollgate-schema", "tollgate-shm-abi"],
        &["tollgate-policy-host", "tollgate-policy-tools"],
    ),
    // The library for policies' authors, and the policies.
    ("tollgate-policy", &["tollgate-policy-macros"], &[]),
    ("tollgate-policy-macros", &["tollgate-schema"], &[]),
    ("policy-null", &["tollgate-policy"], &[]),
    ("policy-acl", &["tollgate-policy"], &[]),
    ("policy-hotel-acl", &["tollgate-policy"], &[]),
    ("policy-spin", &["tollgate-policy"], &[]),
    ("policy-witness", &["tollgate-policy"], &[]),
    ("policy-rate-limit", &["tollgate-policy"], &[]),
    ("policy-traffic-shaping", &["tollgate-policy"], &[]),
    ("policy-quota", &["tollgate-policy"], &[]),
    ("policy-concurrency-limit", &["tollgate-policy"], &[]),
    ("policy-redact", &["tollgate-policy"], &[]),
    ("policy-fault-injection", &["tollgate-policy"], &[]),
    ("policy-access-log", &["tollgate-policy"], &[]),
    ("policy-metadata-edit", &["tollgate-policy"], &[]),
    ("policy-metadata-acl", &["tollgate-policy"], &[]),
    ("policy-priority", &["tollgate-policy"], &[]),
    ("policy-canary-route", &["tollgate-policy"], &[]),
    ("policy-jwt", &["tollgate-policy"], &[]),
    // Attacks, demo, benches: outside of the product.
    (
        "tollgate-conformance",
        &[
            "tollgate",
            "tollgate-admin",
            "tollgate-jit",
            "tollgate-schema",
            "tollgate-shm-abi",
        ],
        &[
            "tollgate-policy-tools",
            "tollgate-gen",
            "tollgate-health",
            "tollgate-marshal",
            "tollgate-policy-host",
            "tollgate-provenance",
            "tollgate-registry",
        ],
    ),
    // An application that uses only the library; its tests have real daemons.
    (
        "tollgate-hotel",
        &["tollgate"],
        &["tollgate-conformance", "tollgate-gen"],
    ),
    (
        "tollgate-bench-marshal",
        &["tollgate-jit", "tollgate-marshal", "tollgate-schema"],
        &[],
    ),
    (
        "tollgate-bench-sandbox",
        &[
            "tollgate-bench-marshal",
            "tollgate-jit",
            "tollgate-policy-host",
        ],
        &[],
    ),
    (
        "tollgate-benches",
        &[
            "tollgate",
            "tollgate-admin",
            "tollgate-conformance",
            "tollgate-shm-abi",
        ],
        &["tollgate-gen"],
    ),
];

/// The crates of either side; both may reach only [`SHARED`]. The command line is on both sides: it
/// calls through the client library, and runs the policies' sandbox for `policy test`.
const CLIENT_SIDE: &[&str] = &[
    "tollgate-core",
    "tollgate",
    "tollgate-opentelemetry",
    "tollgate-c",
    "tollgate-python",
];
const SERVICE_SIDE: &[&str] = &[
    "tollgate-engine",
    "tollgate-transport",
    "tollgate-transport-rdma",
    "tollgate-policy-host",
    "tollgate-policy-chain",
    "tollgate-datapath",
    "tollgate-control",
    "tollgate-telemetry",
    "tollgate-console",
    "tollgate-marshal",
    "tollgate-jit",
    "tollgate-policy-tools",
    "tollgate-daemon",
];
const SHARED: &[&str] = &["tollgate-shm-abi"];

/// Dependencies that a crate fences: each is named in these crates' code and in no other. An entry
/// that ends in `*` stands for a family.
const FENCED: &[(&str, &[&str])] = &[
    ("wasmtime*", &["tollgate-policy-host"]),
    ("cranelift*", &["tollgate-jit"]),
    ("cel", &["tollgate-policy-rules"]),
    ("wasm-encoder", &["tollgate-policy-rules"]),
    ("seccompiler", &["tollgate-policy-host"]),
    // The product's, and an application's.
    ("redb", &["tollgate-control", "tollgate-hotel"]),
    ("rdma-mummy-sys", &["tollgate-transport-rdma"]),
    ("protox", &["tollgate-schema"]),
    ("prost-reflect", &["tollgate-schema"]),
    ("oci-client", &["tollgate-registry"]),
    (
        "tokio",
        &[
            "tollgate-admin",
            "tollgate-benches",
            "tollgate-console",
            "tollgate-daemon",
            "tollgate-hotel",
            "tollgate-registry",
            "tollgate-telemetry",
        ],
    ),
    // An application's, and the daemon's exporters.
    (
        "opentelemetry*",
        &["tollgate-opentelemetry", "tollgate-telemetry"],
    ),
    ("ratatui*", &["tollgate-cli"]),
    ("pyo3", &["tollgate-python"]),
    (
        "tonic*",
        &[
            "tollgate-admin",
            "tollgate-benches",
            "tollgate-hotel",
            "tollgate-telemetry",
        ],
    ),
];

/// The crates with pure decisions (no socket, clock, thread, file or telemetry in their code), with
/// their allowed external dependencies and the [`IMPURE_WORDS`] that they may contain.
const PURE: &[(&str, &[&str], &[&str])] = &[
    ("tollgate-engine", &["foldhash", "serde"], &[]),
    ("tollgate-marshal", &["thiserror"], &[]),
    (
        "tollgate-policy-rules",
        &[
            "cel",
            "regex-automata",
            "regex-syntax",
            "serde_json",
            "thiserror",
            "toml",
            "wasm-encoder",
        ],
        &[],
    ),
    // It measures the cost of evaluations, and policies may ask for the time. `process` is a field.
    (
        "tollgate-policy-chain",
        &["rustix", "serde", "serde_json"],
        &["SystemTime", "process", "rustix"],
    ),
];

/// Dependencies that no file of the crate names, with the reason.
const UNNAMED: &[(&str, &str)] = &[
    // Its tests include a file of tollgate-core's.
    ("tollgate-examples", "prost"),
    ("tollgate-examples", "rustix"),
    ("tollgate-examples", "tollgate-core"),
    // The code that tonic-prost-build generates names them.
    ("tollgate-benches", "prost"),
    ("tollgate-benches", "tonic-prost"),
    ("tollgate-hotel", "prost"),
    ("tollgate-hotel", "tonic-prost"),
    // Its library has another name: webpki.
    ("tollgate-admin", "rustls-webpki"),
];

/// Names that a pure crate's code must not use.
const IMPURE_WORDS: &[&str] = &[
    "net",
    "fs",
    "thread",
    "process",
    "Instant",
    "SystemTime",
    "Mutex",
    "RwLock",
    "Condvar",
    "rustix",
    "tokio",
    "wasmtime",
    "tracing",
    "opentelemetry",
];

/// The files that may use `unsafe`, each for one reason. Everything else is safe code.
const UNSAFE_FILES: &[&str] = &[
    // C's pointers: the arguments of exported functions, and callbacks.
    "client-libs/c/src/args.rs",
    "client-libs/c/src/callbacks.rs",
    "client-libs/c/src/exports/call.rs",
    "client-libs/c/src/exports/client.rs",
    "client-libs/c/src/exports/health.rs",
    "client-libs/c/src/exports/message.rs",
    "client-libs/c/src/exports/metadata.rs",
    "client-libs/c/src/exports/mod.rs",
    "client-libs/c/src/exports/session.rs",
    "client-libs/c/src/exports/status.rs",
    "client-libs/c/src/outgoing.rs",
    // Memory behind Python's memoryviews: the buffer protocol.
    "client-libs/python/src/held.rs",
    // Slices of heap blocks that one side owns.
    "client-libs/shm-abi/src/heap.rs",
    // A sendmsg with parts in shared memory.
    "client-libs/shm-abi/src/io.rs",
    // Mappings, and copies out of them and into them.
    "client-libs/shm-abi/src/segment.rs",
    // Proof that a sealed heap can't be mapped writable: it tries to.
    "client-libs/shm-abi/src/segment/tests.rs",
    // The index words and entries of a ring.
    "client-libs/shm-abi/src/sync.rs",
    // The exports of a guest: their fixed names, and the section of its manifest.
    "guest-sdk/src/export.rs",
    // The imports of a guest, which take addresses.
    "guest-sdk/src/wasm.rs",
    // Calls into code that Cranelift emitted, and helpers that such code calls.
    "marshal-codegen/jit/src/helpers.rs",
    "marshal-codegen/jit/src/machine.rs",
    // Pages without access around the buffers of a test.
    "marshal-codegen/jit/tests/guard.rs",
    // Loading machine code from a compile worker, here or in a policy process.
    "service/policy-host/src/artifact.rs",
    // A system call on all descriptors beyond the standard ones, which a process closes before it
    // opens any, or keeps private.
    "service/policy-host/src/descriptors.rs",
    // System calls by number, to check that they kill a confined process.
    "service/policy-host/src/bin/compile-worker.rs",
    // Verbs: memory that a device reads and writes by address.
    "service/transport-rdma/src/verbs/completions.rs",
    "service/transport-rdma/src/verbs/connection.rs",
    "service/transport-rdma/src/verbs/device.rs",
    "service/transport-rdma/src/verbs/domain.rs",
    "service/transport-rdma/src/verbs/lane.rs",
    "service/transport-rdma/src/verbs/memory.rs",
    "service/transport-rdma/src/verbs/pool.rs",
    "service/transport-rdma/src/verbs/pool_share.rs",
    "service/transport-rdma/src/verbs/queues.rs",
    "service/transport-rdma/src/verbs/queues/attack.rs",
    "service/transport-rdma/src/verbs/queues/sending.rs",
    "service/transport-rdma/src/verbs/side.rs",
    "service/transport-rdma/src/verbs/window.rs",
    "service/transport-rdma/src/verbs/work.rs",
];

/// The crates that fence `unsafe`; every other crate root says `#![forbid(unsafe_code)]`.
const UNSAFE_CRATES: &[&str] = &[
    "tollgate-c",
    "tollgate-python",
    "tollgate-shm-abi",
    "tollgate-jit",
    "tollgate-policy",
    "tollgate-policy-host",
    "tollgate-transport-rdma",
];

#[test]
fn crates_import_what_the_table_says() {
    let actual = workspace();
    let listed: BTreeSet<_> = IMPORTS
        .iter()
        .map(|(name, ..)| (*name).to_owned())
        .collect();
    let mut findings: Vec<String> = Vec::new();
    for name in actual.keys().filter(|name| !listed.contains(*name)) {
        findings.push(format!("crate {name} is not in the import table"));
    }
    for (name, code, tests) in IMPORTS {
        let Some(member) = actual.get(*name) else {
            findings.push(format!(
                "crate {name} is in the import table, but not in the workspace"
            ));
            continue;
        };
        for (what, table, found) in [
            ("its code", code, &member.code),
            ("its tests", tests, &member.tests),
        ] {
            let table: BTreeSet<_> = table.iter().map(|&name| name.to_owned()).collect();
            let found: BTreeSet<_> = found
                .iter()
                .filter(|name| actual.contains_key(*name))
                .cloned()
                .collect();
            for surplus in found.difference(&table) {
                findings.push(format!(
                    "{name} imports {surplus} in {what}, which the table does not allow"
                ));
            }
            for missing in table.difference(&found) {
                findings.push(format!(
                    "the table lets {name} import {missing} in {what}, but it does not"
                ));
            }
        }
    }
    report(&findings);
}

/// The files of every crate have an order in which each comes after all files that it uses.
/// `tollgate_conformance::modules` defines a use.
#[test]
fn no_modules_use_each_other() {
    let mut findings = Vec::new();
    let mut uses = 0;
    for (name, member) in workspace() {
        let circles: Vec<_> = member
            .roots
            .iter()
            .flat_map(|root| {
                let modules = Modules::read(root);
                uses += modules.edges().values().map(BTreeMap::len).sum::<usize>();
                modules.circles()
            })
            .collect();
        if !circles.is_empty() {
            findings.push(format!("{name} has files that use each other:"));
        }
        for circle in circles {
            findings.extend(
                circle
                    .way
                    .iter()
                    .map(|(file, line, used)| format!("    {}:{line} uses {used}", relative(file))),
            );
            findings.push(String::new());
        }
    }
    assert!(uses > 500, "only {uses} uses were found");
    report(&findings);
}

#[test]
fn client_and_service_share_only_the_boundary() {
    let actual = workspace();
    let reach = |side: &[&str]| {
        let mut reached: BTreeSet<String> = BTreeSet::new();
        let mut open: Vec<String> = side.iter().map(|&name| name.to_owned()).collect();
        while let Some(name) = open.pop() {
            if reached.insert(name.clone()) {
                open.extend(
                    actual[&name]
                        .code
                        .iter()
                        .filter(|used| actual.contains_key(*used))
                        .cloned(),
                );
            }
        }
        reached
    };
    let both: BTreeSet<_> = reach(CLIENT_SIDE)
        .intersection(&reach(SERVICE_SIDE))
        .cloned()
        .collect();
    let shared: BTreeSet<_> = SHARED.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(
        both, shared,
        "client and service share exactly these crates"
    );
}

#[test]
fn heavy_dependencies_stay_behind_their_fence() {
    let actual = workspace();
    let mut findings = Vec::new();
    for (dependency, fence) in FENCED {
        let matches = |name: &String| match dependency.strip_suffix('*') {
            Some(family) => name.starts_with(family),
            None => name == dependency,
        };
        let users: BTreeSet<&str> = actual
            .iter()
            .filter(|(_, m)| m.code.iter().any(matches))
            .map(|(name, _)| name.as_str())
            .collect();
        let fence: BTreeSet<&str> = fence.iter().copied().collect();
        findings.extend(
            users
                .difference(&fence)
                .map(|user| format!("{user} uses {dependency}, which is fenced")),
        );
        findings.extend(
            fence
                .difference(&users)
                .map(|user| format!("{user} no longer uses {dependency}")),
        );
    }
    report(&findings);
}

#[test]
fn pure_crates_know_no_socket_clock_or_thread() {
    let actual = workspace();
    let mut findings = Vec::new();
    for (name, allowed, said) in PURE {
        let member = &actual[*name];
        let surplus = member
            .code
            .iter()
            .filter(|used| !actual.contains_key(*used) && !allowed.contains(&used.as_str()));
        findings.extend(surplus.map(|used| format!("{name} is pure and may not use {used}")));
        let is_test = |file: &PathBuf| file.components().any(|part| part.as_os_str() == "tests");
        let files = rust_files(&member.directory.join("src")).into_iter();
        for file in files.filter(|file| !is_test(file)) {
            let code = code_only(&std::fs::read_to_string(&file).unwrap());
            for word in IMPURE_WORDS.iter().filter(|word| !said.contains(word)) {
                let lines = lines_with_word(&code, word);
                findings.extend(
                    lines
                        .iter()
                        .map(|line| format!("{}:{line} says `{word}`", relative(&file))),
                );
            }
        }
    }
    report(&findings);
}

#[test]
fn unsafe_stays_in_the_listed_files() {
    let mut findings = Vec::new();
    let mut found = BTreeSet::new();
    for file in rust_files(&root()) {
        let lines = lines_with_word(
            &code_only(&std::fs::read_to_string(&file).unwrap()),
            "unsafe",
        );
        let name = relative(&file);
        if let Some(line) = lines
            .first()
            .filter(|_| !UNSAFE_FILES.contains(&name.as_str()))
        {
            findings.push(format!(
                "{name}:{line} says `unsafe` and is not on the list"
            ));
        }
        if !lines.is_empty() {
            found.insert(name);
        }
    }
    let idle = UNSAFE_FILES.iter().filter(|file| !found.contains(**file));
    findings.extend(
        idle.map(|file| format!("{file} is on the list of files with `unsafe`, but has none")),
    );
    report(&findings);
}

#[test]
fn every_other_crate_root_forbids_unsafe() {
    let mut findings = Vec::new();
    for (name, member) in workspace() {
        for root in &member.roots {
            let code = code_only(&std::fs::read_to_string(root).unwrap());
            let forbids = code.contains("#![forbid(unsafe_code)]");
            let library = UNSAFE_CRATES.contains(&name.as_str()) && root.ends_with("src/lib.rs");
            let fenced = library || UNSAFE_FILES.contains(&relative(root).as_str());
            if forbids == fenced {
                let problem = if fenced {
                    "forbids unsafe code, so take it off the list"
                } else {
                    "must forbid unsafe_code"
                };
                findings.push(format!("{} {problem}", relative(root)));
            }
        }
    }
    report(&findings);
}

#[test]
fn nothing_names_a_persons_directories() {
    let needles = ["home", "root", "Users", "work"].map(|top| format!("/{top}/"));
    let mut findings = Vec::new();
    for file in files(&root()) {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        for (number, line) in (1..).zip(text.lines()) {
            let mut named = needles.iter().filter(|needle| starts_a_path(line, needle));
            findings.extend(
                named
                    .next()
                    .map(|needle| format!("{}:{number} names {needle}", relative(&file))),
            );
        }
    }
    report(&findings);
}

#[test]
fn every_dependency_says_why() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let entries = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1);
    let mut findings = Vec::new();
    let mut explained = false;
    for line in entries.take_while(|line| !line.starts_with('[')) {
        explained = line.starts_with('#') || (explained && !line.is_empty());
        if !explained && !line.is_empty() && !line.contains("path = ") {
            findings.push(format!("`{line}` has no comment that says why"));
        }
    }
    report(&findings);
}

#[test]
fn every_dependency_is_used() {
    let mut findings = Vec::new();
    for (name, member) in workspace() {
        let sources: Vec<String> = rust_files(&member.directory)
            .iter()
            .filter(|file| nearest_manifest(file) == member.directory)
            .map(|file| std::fs::read_to_string(file).unwrap())
            .collect();
        for dependency in member.code.union(&member.tests) {
            let word = dependency.replace('-', "_");
            let used = sources
                .iter()
                .any(|source| !lines_with_word(source, &word).is_empty());
            if !used && !UNNAMED.contains(&(name.as_str(), dependency.as_str())) {
                findings.push(format!(
                    "{name} depends on {dependency}, which none of its files names"
                ));
            }
        }
    }
    report(&findings);
}

/// The data about one crate of the workspace that the checks need.
struct Member {
    directory: PathBuf,
    /// The packages that its code, respectively its tests and build script, depend on.
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
    /// The root files of its library, binaries, tests, examples and build script.
    roots: Vec<PathBuf>,
}

/// Comments and prose fit in 100 columns, code examples, tables and words without a place to break
/// excepted.
#[test]
fn comments_and_prose_fit_in_100_columns() {
    let mut findings = Vec::new();
    let mut prose = 0;
    for (file, lines) in sentences() {
        prose += lines.len();
        let long = lines.iter().filter(|(_, line)| {
            let longest = line.split(' ').map(str::len).max().unwrap_or_default();
            line.chars().count() > 100 && longest < 60 && !content(line).starts_with('|')
        });
        findings.extend(long.map(|(number, _)| format!("{file}:{number} is longer")));
    }
    assert!(prose > 20_000, "only {prose} lines of prose were found");
    report(&findings);
}

/// Constructions that hide their subject, and what is written instead is in CONTRIBUTING.md.
const CONSTRUCTIONS: &[&str] = &[
    " of before ",
    "beside the request",
    "as if it had never been",
    "which there isn't",
    "of what is there already",
];

#[test]
fn sentences_do_without_the_listed_constructions() {
    let mut findings = Vec::new();
    for (file, lines) in sentences() {
        for (number, line) in lines {
            let used = CONSTRUCTIONS.iter().find(|used| line.contains(*used));
            findings.extend(used.map(|used| format!("{file}:{number} says \"{}\"", used.trim())));
        }
    }
    report(&findings);
}

/// Each step of the path of a CALL in docs/src/internals/call.md names functions that its files
/// define.
#[test]
fn the_path_of_a_call_names_functions_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/src/internals/call.md")).unwrap();
    let begin = text.find("## The path of a CALL").unwrap();
    let path = &text[begin..];
    let path = &path[..path.find("### Where it turns around").unwrap()];
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let (mut steps, mut findings) = (0, Vec::new());
    for line in path.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, step, functions, files, ..] = cells[..] else {
            continue;
        };
        let number = step.trim_start_matches(['C', 'F']);
        if number.parse::<u32>().is_err() {
            continue;
        }
        steps += 1;
        let files: Vec<_> = quoted(files).iter().map(|file| source_of(file)).collect();
        for function in quoted(functions) {
            let name = function.rsplit("::").next().unwrap();
            let is_defined = |text: &String| {
                let code = code_only(text);
                [format!("fn {name}("), format!("fn {name}<")]
                    .iter()
                    .any(|definition| code.contains(definition))
            };
            if !files.iter().any(is_defined) {
                findings.push(format!("step {step}: no file defines {function}"));
            }
        }
    }
    assert!(steps > 40, "only {steps} steps were found");
    report(&findings);
}

/// A source file as that page names it: by its crate, or of the datapath.
fn source_of(file: &str) -> String {
    let path = match file.split_once('/').map(|(krate, _)| krate) {
        None | Some("calls" | "handover" | "links" | "observe" | "runtime") => {
            root().join("service/datapath/src").join(file)
        }
        Some("jit") => root().join("marshal-codegen").join(file),
        Some("shm-abi") => root().join("client-libs").join(file),
        Some(_) => root().join("service").join(file),
    };
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of comments and of prose, with their numbers, by file; not of examples between fences.
/// Generated files, recorded results and the change log stay as they were written.
fn sentences() -> Vec<(String, Vec<(usize, String)>)> {
    let mut all = Vec::new();
    let is_written = |file: &PathBuf| {
        let recorded = [
            "CHANGELOG.md",
            "RESULTS.md",
            "EVENTS.md",
            "HOSTING.md",
            "RDMA.md",
        ];
        let name = file.file_name().and_then(|name| name.to_str());
        let is_golden = file.components().any(|part| part.as_os_str() == "golden");
        !is_golden && !recorded.iter().any(|recorded| name == Some(recorded))
    };
    for file in files(&root()).into_iter().filter(is_written) {
        let extension = file.extension().and_then(|extension| extension.to_str());
        let is_rust = match extension {
            Some("rs") => true,
            Some("md") => false,
            _ => continue,
        };
        let text = std::fs::read_to_string(&file).unwrap();
        let comments = is_rust.then(|| comments(&text));
        let mut is_example = false;
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let is_prose = comments
                .as_ref()
                .is_none_or(|lines| lines.contains(&number));
            if content(line).starts_with("```") {
                is_example = !is_example;
            } else if !is_prose {
                // An example ends with its comment.
                is_example = false;
            } else if !is_example {
                lines.push((number, line.to_owned()));
            }
        }
        all.push((relative(&file), lines));
    }
    all
}

/// A line without what makes it a comment.
fn content(line: &str) -> &str {
    line.trim_start()
        .trim_start_matches(['/', '!'])
        .trim_start()
}

/// The numbers of the lines that are a comment and nothing else: not those of a literal.
fn comments(text: &str) -> BTreeSet<usize> {
    let code = code_only(text);
    let lines = (1..).zip(text.lines().zip(code.lines()));
    let is_comment =
        |line: &str, code: &str| line.trim_start().starts_with("//") && code.trim().is_empty();
    lines
        .filter(|(_, (line, code))| is_comment(line, code))
        .map(|(number, _)| number)
        .collect()
}

fn workspace() -> BTreeMap<String, Member> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let member = |package: Value| {
        let uses = |of_code: bool| {
            let dependencies = list(&package["dependencies"]).into_iter();
            dependencies
                .filter(|d| d["kind"].is_null() == of_code)
                .map(|d| text(&d["name"]))
                .collect()
        };
        let directory = Path::new(&text(&package["manifest_path"]))
            .parent()
            .unwrap()
            .to_owned();
        let roots = list(&package["targets"])
            .iter()
            .map(|target| PathBuf::from(text(&target["src_path"])))
            .collect();
        (
            text(&package["name"]),
            Member {
                directory,
                code: uses(true),
                tests: uses(false),
                roots,
            },
        )
    };
    list(&metadata["packages"])
        .into_iter()
        .map(member)
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn relative(file: &Path) -> String {
    file.strip_prefix(root())
        .unwrap_or(file)
        .display()
        .to_string()
}

/// The directory of the crate that a file is part of.
fn nearest_manifest(file: &Path) -> PathBuf {
    let mut above = file.ancestors().skip(1);
    above
        .find(|directory| directory.join("Cargo.toml").exists())
        .unwrap()
        .to_owned()
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let is_rust = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    files(directory).into_iter().filter(is_rust).collect()
}

/// All files below `directory`, except build output and version control.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && name != ".git" && name != "out" {
                found.extend(files(&path));
            }
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Whether `line` has `needle` at the start of an absolute path.
fn starts_a_path(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| {
            c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '*' | '}' | ')')
        })
    })
}

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "\n  {}\n", findings.join("\n  "));
}
