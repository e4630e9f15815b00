//! Modules that `load` refuses, and the sentence of each refusal.

use std::convert::Infallible;

use proptest::prelude::*;
use tollgate_policy_host::{Absent, Capabilities, Hook, Host, HostConfig, LoadError, limits};

use crate::guests::{HOST, guest, setup};
use crate::wat::{MANIFEST, Parts};

/// The sentence with which `load` refuses.
fn refusal(parts: &Parts) -> String {
    parts.load().unwrap_err().to_string()
}

fn check_contains(text: &str, expected: &str) {
    assert!(text.contains(expected), "{text:?} lacks {expected:?}");
}

#[test]
fn the_default_parts_are_fine() {
    let policy = Parts::default().load().unwrap();
    assert_eq!(policy.manifest().name(), "t");
    assert_eq!(policy.wasm_bytes(), Parts::default().wasm().len());
}

#[test]
fn policies_of_the_catalogue_load() {
    for (file, name) in [("null", "null"), ("hotel_acl", "acl"), ("spin", "spin")] {
        assert_eq!(guest(file).manifest().name(), name);
    }
    let acl = guest("hotel_acl");
    let index = acl
        .manifest()
        .method_index("hotel.Reservation", "Reserve")
        .unwrap();
    assert_eq!(
        acl.manifest().methods()[index as usize].fields(Hook::Request),
        ["customer_name"]
    );
    assert_eq!(
        acl.manifest()
            .method_index("hotel.Reservation", "CheckAvailability"),
        None
    );
    assert_ne!(acl.digest(), guest("null").digest());
}

#[test]
fn bytes_that_are_no_module() {
    let cases: [(&[u8], &str); 5] = [
        (b"", "this is not a WebAssembly module: it is empty"),
        (
            b"\x7fELF",
            "this is not a WebAssembly module: it begins with \"\\x7fELF\"",
        ),
        (
            b"\0asm\x0d\0\x01\0",
            "it is a component; build a core module",
        ),
        (
            b"\0asm\x01\0\0\0",
            "the module has 0 tollgate.manifest sections; exactly one is needed",
        ),
        (
            b"\0asm\x01\0\0\0\x01\xff",
            "the module is not valid here: unexpected end-of-file",
        ),
    ];
    for (bytes, expected) in cases {
        check_contains(&HOST.load(bytes).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_module_is_measured_before_it_is_read() {
    let garbage = vec![0xa5; limits::MODULE_BYTES + 1];
    assert_eq!(
        HOST.load(&garbage).unwrap_err(),
        LoadError::TooLarge {
            bytes: limits::MODULE_BYTES + 1,
            max: limits::MODULE_BYTES
        }
    );
}

#[test]
fn every_missing_export_is_named() {
    let none = String::new;
    let cases = [
        (
            Parts {
                memory: "(memory 1)",
                ..Parts::default()
            },
            "memory",
        ),
        (
            Parts {
                marker: "",
                ..Parts::default()
            },
            "tollgate_abi_v1",
        ),
        (
            Parts {
                buffer: none(),
                ..Parts::default()
            },
            "tollgate_buffer",
        ),
        (
            Parts {
                configure: none(),
                ..Parts::default()
            },
            "tollgate_configure",
        ),
        (
            Parts {
                request: none(),
                ..Parts::default()
            },
            "tollgate_request",
        ),
    ];
    for (parts, name) in cases {
        check_contains(
            &refusal(&parts),
            &format!("the module's export {name:?} is missing; ABI 1 needs"),
        );
    }
    let reply = MANIFEST.replace("request", "reply");
    let parts = Parts {
        manifest: section(&reply),
        ..Parts::default()
    };
    check_contains(
        &refusal(&parts),
        "the module's export \"tollgate_reply\" is missing",
    );
}

#[test]
fn exports_of_another_type_are_named() {
    let marker = |marker| {
        refusal(&Parts {
            marker,
            ..Parts::default()
        })
    };
    check_contains(
        &marker(r#"(func (export "tollgate_abi_v1") (param f32))"#),
        r#""tollgate_abi_v1" is function (f32); ABI 1 needs a function () or a global"#,
    );
    assert!(
        Parts {
            marker: r#"(global (export "tollgate_abi_v1") i32 (i32.const 1))"#,
            ..Parts::default()
        }
        .load()
        .is_ok()
    );
    let request = r#"(func (export "tollgate_request") (param i64) (result i32) i32.const 0)"#;
    check_contains(
        &refusal(&Parts {
            request: request.to_owned(),
            ..Parts::default()
        }),
        r#""tollgate_request" is function (i64) -> (i32); ABI 1 needs function (i32) -> (i32)"#,
    );
    let memory = r#"(memory 1) (func (export "memory"))"#;
    check_contains(
        &refusal(&Parts {
            memory,
            ..Parts::default()
        }),
        r#""memory" is function ()"#,
    );
}

#[test]
fn compat_imports_are_named() {
    let import = |imports| {
        refusal(&Parts {
            imports,
            ..Parts::default()
        })
    };
    assert_eq!(
        import(r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#),
        "the module imports \"fd_write\" of WASI, but its manifest doesn't declare it; build for a target without WASI, or declare \"wasi\": true"
    );
    assert_eq!(
        import(r#"(import "env" "fd_write" (func))"#),
        "the module imports \"env\" \"fd_write\", which isn't offered; guest-sdk/ABI.md lists what tollgate offers"
    );
    check_contains(
        &import(r#"(import "tollgate" "clock" (func))"#),
        r#""tollgate" "clock""#,
    );
    check_contains(
        &import(r#"(import "env" "memory" (memory 1))"#),
        r#""env" "memory""#,
    );
    assert_eq!(
        import(r#"(import "tollgate" "log" (func (param i64)))"#),
        "the module imports tollgate \"log\" as function (i64); it is function (i32, i32, i32)"
    );
    check_contains(
        &import(r#"(import "tollgate" "counter" (global i32))"#),
        "as a global; it is",
    );
}

/// A module that imports WASI, and says so.
fn with_wasi(parts: Parts) -> Parts {
    let manifest = MANIFEST.replacen('{', r#"{"wasi":true,"#, 1);
    Parts {
        manifest: section(&manifest),
        ..parts
    }
}

#[test]
fn a_declared_wasi_has_the_functions_and_bounds_of_compat_modules() {
    let write = r#"(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))"#;
    let parts = |imports| {
        with_wasi(Parts {
            imports,
            ..Parts::default()
        })
    };
    assert!(parts(write).load().is_ok());
    check_contains(
        &refusal(&parts(
            r#"(import "wasi_snapshot_preview1" "sock_accept" (func))"#,
        )),
        r#""sock_accept", which isn't offered"#,
    );
    check_contains(
        &refusal(&parts(
            r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#,
        )),
        "the module doesn't compile: ",
    );
    // An instance has the memory of compat modules.
    let large = with_wasi(Parts {
        memory: r#"(memory (export "memory") 128)"#,
        ..Parts::default()
    });
    assert!(large.instantiate().is_ok());
    let own = Parts {
        memory: r#"(memory (export "memory") 128)"#,
        ..Parts::default()
    };
    let refused = own.instantiate().unwrap_err().to_string();
    check_contains(&refused, "wants 8388608 bytes of memory");
    // 2,000 nested blocks are above both bounds, 600 above that of other modules.
    let nested = |depth: usize| {
        let body = format!("{}{}", "(block ".repeat(depth), ")".repeat(depth));
        format!("(func {body})")
    };
    let deep = |depth| Parts {
        rest: nested(depth),
        ..Parts::default()
    };
    assert!(with_wasi(deep(600)).load().is_ok());
    check_contains(&refusal(&deep(600)), "513 nested blocks");
    check_contains(&refusal(&with_wasi(deep(2_000))), "1025 nested blocks");
    // A module for another host has WASI anyway.
    let compat = r#"{"abi":1,"name":"t","wasi":true,"hooks":["request"],"methods":[{"method":"*"}],"foreign":{"abi":"opa"}}"#;
    check_contains(&manifest_refusal(compat), "declares wasi");
}

#[test]
fn features_that_are_off_are_refused() {
    let cases = [
        (r#"(memory 1)"#, "multiple memories"),
        (r#"(func (result v128) (v128.const i64x2 0 0))"#, "SIMD"),
        (r#"(func (return_call 0 (i32.const 0)))"#, "tail calls"),
        (r#"(tag)"#, "exceptions"),
        (r#"(type (struct))"#, "gc"),
        (
            r#"(func (drop (i32.atomic.load (i32.const 0))))"#,
            "threads",
        ),
        (r#"(func (param externref))"#, ""),
        (
            r#"(func (param v128) (drop (i32x4.relaxed_trunc_f32x4_s (local.get 0))))"#,
            "SIMD",
        ),
        (
            r#"(type $f (func)) (func (param (ref $f)))"#,
            "function references",
        ),
        (
            r#"(func (drop (i64.add128 (i64.const 0) (i64.const 0) (i64.const 0) (i64.const 0))) drop)"#,
            "wide arithmetic",
        ),
        (
            r#"(global i32 (i32.add (i32.const 1) (i32.const 2)))"#,
            "constant expression",
        ),
        (r#"(type $f (func)) (type $c (cont $f))"#, "stack switching"),
        (r#"(table i64 1 funcref)"#, "memory64"),
    ];
    for (rest, expected) in cases {
        let parts = Parts {
            rest: rest.to_owned(),
            ..Parts::default()
        };
        let refusal = refusal(&parts);
        check_contains(&refusal, "the module is not valid here: ");
        check_contains(&refusal, expected);
    }
}

#[test]
fn memories_of_other_kinds_are_refused() {
    for (memory, expected) in [
        (r#"(memory (export "memory") i64 1)"#, "memory64"),
        (r#"(memory (export "memory") 1 1 shared)"#, "threads"),
        (
            r#"(memory (export "memory") 1 (pagesize 1))"#,
            "custom page sizes",
        ),
    ] {
        let refusal = refusal(&Parts {
            memory,
            ..Parts::default()
        });
        check_contains(&refusal, expected);
    }
}

/// The default manifest with another entry.
fn extended(entry: &str) -> String {
    MANIFEST.replacen("{", &format!("{{{entry},"), 1)
}

fn section(manifest: &str) -> String {
    format!("(@custom \"tollgate.manifest\" {manifest:?})")
}

fn manifest_refusal(manifest: &str) -> String {
    // wat's strings accept Rust's escapes for the characters that appear here.
    refusal(&Parts {
        manifest: section(manifest),
        ..Parts::default()
    })
}

#[test]
fn there_is_exactly_one_manifest() {
    let twice = section(MANIFEST).repeat(2);
    check_contains(
        &refusal(&Parts {
            manifest: twice,
            ..Parts::default()
        }),
        "has 2 tollgate.manifest",
    );
    check_contains(
        &refusal(&Parts {
            manifest: String::new(),
            ..Parts::default()
        }),
        "has 0 tollgate.manifest",
    );
}

#[test]
fn garbled_manifests_are_explained() {
    let cases = [
        ("", "the manifest doesn't parse: EOF"),
        ("{", "the manifest doesn't parse: EOF"),
        (r#"{"abi":1}"#, "missing field `name`"),
        (
            &MANIFEST.replace("\"abi\":1", "\"abi\":2"),
            "asks for ABI 2; this host speaks 1",
        ),
        (
            &MANIFEST.replace("\"abi\"", "\"colour\":1,\"abi\""),
            "unknown field `colour`",
        ),
        (&MANIFEST.replace("\"t\"", "\"\""), "names the policy \"\""),
        (
            &MANIFEST.replace("\"t\"", "\"Not a name\""),
            "names the policy \"Not a name\"",
        ),
        (
            &MANIFEST.replace("\"t\"", &format!("{:?}", "n".repeat(65))),
            "a name is 1 to 64",
        ),
        (
            &MANIFEST.replace("\"request\"", ""),
            "lists 0 hooks; 1 to 3 are allowed",
        ),
        (
            &MANIFEST.replace("\"request\"", "\"request\",\"request\""),
            "lists Request twice in hooks",
        ),
        (
            &MANIFEST.replace("\"request\"", "\"tock\""),
            "unknown variant `tock`",
        ),
        (
            &MANIFEST.replace("a.B/C", "a.B"),
            "has the method \"a.B\"; write package.Service/Method",
        ),
        (&MANIFEST.replace("a.B/C", "/C"), "has the method \"/C\""),
        (
            &MANIFEST.replace("a.B/C", "a.*/C"),
            "has the method \"a.*/C\"",
        ),
        (
            &MANIFEST.replace("a.B/C", "*"),
            "declares the field \"x\" for *",
        ),
        (
            &MANIFEST.replace("a.B/C", "a.B/*"),
            "declares the field \"x\" for a.B/*",
        ),
        (
            &MANIFEST.replace("\"x\"", "\"x\",\"x\""),
            "lists \"x\" twice in fields of a.B/C",
        ),
        (&MANIFEST.replace("\"x\"", "\"\""), "has a field of 0 bytes"),
        (
            &MANIFEST.replace("\"fields\"", "\"changes\""),
            "lists \"x\" among the changes of a.B/C, but doesn't declare the capability change",
        ),
        (
            &MANIFEST.replace("\"fields\"", "\"metadata_changes\""),
            "lists \"x\" among the metadata_changes of a.B/C, but doesn't declare the capability change",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\"X\"]"),
            "lists a wrong key in metadata of a.B/C: the metadata key \"X\" has the byte 0x58",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"reply_metadata\":[\"\"]"),
            "lists a wrong key in reply_metadata of a.B/C: a metadata key's length of 0 bytes",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\"grpc-timeout\"]"),
            "lists \"grpc-timeout\" in metadata of a.B/C; keys that begin with grpc- or tollgate- are",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\":colour\"]"),
            "lists \":colour\" in metadata of a.B/C: a caller has no attribute \"colour\"; there are application gid pid",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\":uid\",\":uid\"]"),
            "lists \":uid\" twice in metadata",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\"x\",\"*\"]"),
            "the metadata key \"*\" has the byte 0x2a",
        ),
        (
            &MANIFEST.replace("\"fields\":[\"x\"]", "\"metadata\":[\"x\",\"x\"]"),
            "lists \"x\" twice in metadata of a.B/C",
        ),
        (
            &extended(r#""capabilities":["fly"]"#),
            "there is no capability \"fly\"; there are log, metrics, state, clock, random, change, delay, priority and route",
        ),
        (
            &extended(r#""capabilities":["log","log"]"#),
            "lists \"log\" twice in capabilities",
        ),
        (
            &extended(r#""tick_ms":500"#),
            "has a tick_ms, but not the hook tick",
        ),
        (
            &MANIFEST.replace("\"request\"", "\"request\",\"tick\""),
            "has the hook tick, but no tick_ms",
        ),
        (
            &extended(r#""tick_ms":99"#).replace("\"request\"", "\"tick\""),
            "has the tick_ms 99; 100 to 3600000 are allowed",
        ),
        (
            &extended(r#""tick_ms":3600001"#).replace("\"request\"", "\"tick\""),
            "has the tick_ms 3600001; 100 to 3600000 are allowed",
        ),
        (&extended(r#""state":{}"#), "missing field `version`"),
        (
            &MANIFEST.replace("\"x\"", &format!("{:?}", "f".repeat(257))),
            "has a field of 257 bytes",
        ),
    ];
    for (manifest, expected) in cases {
        check_contains(&manifest_refusal(manifest), expected);
    }
}

#[test]
fn a_long_reason_is_cut() {
    let field = "f".repeat(10_000);
    let manifest = MANIFEST.replace("\"abi\"", &format!("\"{field}\":1,\"abi\""));
    let reason = manifest_refusal(&manifest);
    assert!(reason.starts_with("the manifest doesn't parse: unknown field `fff"));
    assert_eq!(reason.len(), "the manifest ".len() + limits::REASON_BYTES);
}

#[test]
fn manifest_limits_hold_at_their_edges() {
    let list =
        |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(",");
    let fields = |n| MANIFEST.replace("\"x\"", &list(n, &|i| format!("\"x{i}\"")));
    let methods = |n| {
        MANIFEST.replace(
            r#"{"method":"a.B/C","fields":["x"]}"#,
            &list(n, &|i| format!("{{\"method\":\"a.B/M{i}\"}}")),
        )
    };
    let metrics = |kind: &'static str| {
        move |n| {
            let names: Vec<_> = (0..n).map(|i| format!("\"c{i}\"")).collect();
            extended(&format!("\"{kind}\":[{}]", names.join(",")))
        }
    };
    let changes = |n| {
        extended("\"capabilities\":[\"change\"]").replace(
            "\"fields\":[\"x\"]",
            &format!("\"changes\":[{}]", list(n, &|i| format!("\"x{i}\""))),
        )
    };
    let keys = |n| {
        MANIFEST.replace(
            "\"fields\":[\"x\"]",
            &format!("\"metadata\":[{}]", list(n, &|i| format!("\"x{i}\""))),
        )
    };
    let key_bytes = |n| {
        let key = "k".repeat(n);
        MANIFEST.replace(
            "\"fields\":[\"x\"]",
            &format!("\"reply_metadata\":[\"{key}\"]"),
        )
    };
    let changed_keys = |n| keys(n).replace("\"metadata\"", "\"metadata_changes\"");
    let changed_keys = |n| changed_keys(n).replacen('{', "{\"capabilities\":[\"change\"],", 1);
    let padded = |n: usize| format!("{MANIFEST}{}", " ".repeat(n - MANIFEST.len()));
    type Make<'a> = &'a dyn Fn(usize) -> String;
    let cases: [(Make<'_>, usize, &str); 10] = [
        (&fields, limits::FIELDS, "lists 33 fields of a.B/C; 0 to 32"),
        (&methods, limits::METHODS, "lists 65 methods; 1 to 64"),
        (
            &changes,
            limits::CHANGES,
            "lists 33 changes of a.B/C; 0 to 32",
        ),
        (
            &keys,
            limits::METADATA_KEYS,
            "lists 17 metadata of a.B/C; 0 to 16",
        ),
        (
            &changed_keys,
            limits::METADATA_KEYS,
            "lists 17 metadata_changes of a.B/C; 0 to 16",
        ),
        (&key_bytes, 128, "a metadata key's length of 129 bytes"),
        (
            &metrics("counters"),
            limits::COUNTERS,
            "lists 65 counters; 0 to 64",
        ),
        (
            &metrics("gauges"),
            limits::GAUGES,
            "lists 65 gauges; 0 to 64",
        ),
        (
            &metrics("histograms"),
            limits::HISTOGRAMS,
            "lists 65 histograms; 0 to 64",
        ),
        (
            &padded,
            limits::MANIFEST_BYTES,
            "has 16385 bytes, above the limit of 16384",
        ),
    ];
    for (make, max, expected) in cases {
        let parts = Parts {
            manifest: section(&make(max)),
            ..Parts::default()
        };
        parts.load().unwrap();
        check_contains(&manifest_refusal(&make(max + 1)), expected);
    }
}

/// A manifest may leave its metadata keys to the configuration, which then decides what the policy
/// is shown, within the same rules.
#[test]
fn a_configuration_names_the_keys_that_a_manifest_leaves_to_it() {
    let manifest = r#"{"abi":1,"name":"t","hooks":["request"],"capabilities":["change"],"methods":[
        {"method":"*","metadata":["*"],"reply_metadata":["fixed"],"metadata_changes":["*"]}]}"#;
    let policy = Parts {
        manifest: section(manifest),
        ..Parts::default()
    };
    let policy = policy.load().unwrap();
    let config = br#"{"metadata":["x-a",":uid"],"reply_metadata":["ignored"],"rest":1}"#;
    let configured = policy.configured(Some(config)).unwrap();
    let entry = &configured.manifest().methods()[0];
    assert_eq!(entry.metadata(Hook::Request), ["x-a", ":uid"]);
    assert_eq!(entry.metadata(Hook::Reply), ["fixed"]);
    assert_eq!(
        entry.metadata_changes(Hook::Request),
        [""; 0],
        "none are named"
    );
    // An instance has the policy as its configuration makes it, whichever of the two is
    // instantiated.
    for policy in [&policy, &configured] {
        let limits = crate::guests::limits();
        let instance = policy.instantiate(&crate::guests::setup(&limits, Some(config)));
        let instance = instance.unwrap();
        let entry = &instance.policy().manifest().methods()[0];
        assert_eq!(entry.metadata(Hook::Request), ["x-a", ":uid"]);
    }
    let many: Vec<String> = (0..17).map(|i| format!("k{i}")).collect();
    for (config, expected) in [
        (
            "",
            "the configuration is missing, and this policy takes fields or metadata keys from it",
        ),
        ("{", "the configuration isn't a JSON object: EOF"),
        ("[]", "the configuration isn't a JSON object: "),
        (
            r#"{"metadata":"x"}"#,
            "the configuration has a \"metadata\" that isn't a list of keys",
        ),
        (
            r#"{"metadata":["*"]}"#,
            "the configuration lists the key \"*\" in \"metadata\"",
        ),
        (
            r#"{"metadata_changes":["A"]}"#,
            "the configuration lists a wrong key in \"metadata_changes\": the metadata key \"A\"",
        ),
        (
            r#"{"metadata_changes":[":uid"]}"#,
            "lists \":uid\" in \"metadata_changes\": policies can't change what the daemon knows of a caller",
        ),
        (
            r#"{"metadata":[":user"]}"#,
            "lists \":user\" in \"metadata\": a caller has no attribute \"user\"; there are",
        ),
        (
            r#"{"metadata":["tollgate-route"]}"#,
            "lists \"tollgate-route\" in \"metadata\"; keys that begin with",
        ),
        (
            &serde_json::json!({ "metadata": many }).to_string(),
            "lists 17 \"metadata\"; 0 to 16 are allowed",
        ),
    ] {
        let refused = policy.configured(Some(config.as_bytes())).unwrap_err();
        check_contains(&refused.to_string(), expected);
    }
}

/// A policy that takes fields from two lists of its configuration.
fn configurable() -> tollgate_policy_host::Policy {
    let manifest = r#"{"abi":1,"name":"t","hooks":["request"],"capabilities":["change"],"methods":[
        {"method":"*","fields":[{"config":"mask","types":["string","bytes"]},{"config":"rest"}],
         "changes":[{"config":"mask"}],"reply_fields":["*"]},
        {"method":"a.B/C","fields":["name",{"config":"rest"}]}]}"#;
    let policy = Parts {
        manifest: section(manifest),
        ..Parts::default()
    };
    policy.load().unwrap()
}

/// So may its fields, in lists with names of their own.
#[test]
fn a_configuration_names_the_fields_that_a_manifest_leaves_to_it() {
    let policy = configurable();
    let entry = &policy.manifest().methods()[0];
    assert_eq!(entry.fields(Hook::Request), [""; 0], "none are known yet");
    assert!(policy.manifest().takes_fields());
    let config = br#"{"mask":["user.name"],"rest":["a","b_1.c"],"reply_fields":["id"],
        "absent":"skip","methods":["a.B/*","c.D/E"],"other":1}"#;
    let configured = policy.configured(Some(config)).unwrap();
    let manifest = configured.manifest();
    let [any, exact] = manifest.methods() else {
        panic!("two entries");
    };
    assert_eq!(any.fields(Hook::Request), ["user.name", "a", "b_1.c"]);
    let types: Vec<_> = any.field_types(Hook::Request).iter().flatten().collect();
    let names = |at: usize| types[at].names().collect::<Vec<_>>();
    assert_eq!(names(0), ["string", "bytes"]);
    assert_eq!((names(1).len(), names(2).len()), (8, 8));
    assert_eq!(any.changes(Hook::Request), ["user.name"]);
    assert_eq!(any.fields(Hook::Reply), ["id"]);
    assert_eq!(exact.fields(Hook::Request), ["name", "a", "b_1.c"]);
    assert!(exact.field_types(Hook::Request)[0].is_none());
    assert_eq!(manifest.absent(), Absent::Skip);
    // Only the configured methods are covered; of those, as before, the most exact entry applies.
    for (service, method, expected) in [
        ("a.B", "C", Some(1)),
        ("a.B", "D", Some(0)),
        ("c.D", "E", Some(0)),
        ("c.D", "F", None),
        ("x.Y", "Z", None),
    ] {
        assert_eq!(manifest.method_index(service, method), expected);
    }
    let scopes: Vec<_> = manifest.scopes().map(|(_, pattern)| pattern).collect();
    assert_eq!(scopes, ["a.B/*", "c.D/E", "a.B/C"]);
    // A configured policy stays as it is.
    let again = configured.configured(Some(b"{}")).unwrap();
    assert_eq!(again.manifest(), manifest);
}

#[test]
fn a_configuration_with_wrong_fields_is_refused_with_the_list_and_the_path() {
    let policy = configurable();
    let limit = |n: usize| (0..n).map(|i| format!("f{i}")).collect::<Vec<_>>();
    let most = serde_json::json!({ "mask": limit(32), "rest": [] }).to_string();
    assert!(policy.configured(Some(most.as_bytes())).is_ok());
    let long = "x".repeat(limits::NAME_BYTES);
    let longest = serde_json::json!({ "rest": [long] }).to_string();
    assert!(policy.configured(Some(longest.as_bytes())).is_ok());
    for (config, expected) in [
        (
            r#"{"mask":"name"}"#.to_owned(),
            "the configuration has a \"mask\" that isn't a list of fields' paths",
        ),
        (
            r#"{"mask":[7]}"#.to_owned(),
            "the configuration has a \"mask\" that isn't a list of fields' paths",
        ),
        (
            r#"{"mask":["a"],"rest":["a"]}"#.to_owned(),
            "the configuration lists \"a\" twice in \"mask\" and \"rest\"",
        ),
        (
            serde_json::json!({ "mask": limit(20), "rest": vec!["g"; 13] }).to_string(),
            "the configuration lists 33 fields in \"mask\" and \"rest\"; 0 to 32 are allowed",
        ),
        (
            serde_json::json!({ "rest": limit(32) }).to_string(),
            "the configuration lists 32 fields in \"rest\"; 0 to 31 are allowed",
        ),
        (
            serde_json::json!({ "rest": [format!("{long}x")] }).to_string(),
            "the configuration has a path of 257 bytes in \"rest\"; 1 to 256 are allowed",
        ),
        (
            r#"{"absent":"ignore"}"#.to_owned(),
            "the configuration has \"absent\": \"ignore\"; there are \"refuse\", \"skip\" and \"empty\"",
        ),
        (
            r#"{"methods":"*"}"#.to_owned(),
            "the configuration has a \"methods\" that isn't a list of methods",
        ),
        (
            r#"{"methods":[]}"#.to_owned(),
            "the configuration lists 0 methods in \"methods\"; 1 to 64 are allowed",
        ),
        (
            serde_json::json!({ "methods": limit(65) }).to_string(),
            "the configuration lists 65 methods in \"methods\"; 1 to 64 are allowed",
        ),
        (
            r#"{"methods":["a.B"]}"#.to_owned(),
            "the configuration has the method \"a.B\"; write package.Service/Method",
        ),
        (
            r#"{"methods":["a.B/C","a.B/C"]}"#.to_owned(),
            "the configuration lists \"a.B/C\" twice in \"methods\"",
        ),
    ] {
        let refused = policy.configured(Some(config.as_bytes())).unwrap_err();
        check_contains(&refused.to_string(), expected);
    }
    for path in ["", ".", "a.", ".a", "a..b", "a b", "a[0]", "a-b", "*", "é"] {
        let config = serde_json::json!({ "mask": [path] }).to_string();
        let refused = policy.configured(Some(config.as_bytes())).unwrap_err();
        check_contains(
            &refused.to_string(),
            &format!("lists {path:?} in \"mask\"; a path is a field's name, or several"),
        );
    }
}

#[test]
fn a_manifest_with_a_wrong_list_is_refused() {
    let method = |lists: &str| {
        manifest_refusal(&format!(
            r#"{{"abi":1,"name":"t","hooks":["request"],"methods":[{{"method":"*",{lists}}}]}}"#
        ))
    };
    let long = "x".repeat(limits::NAME_BYTES + 1);
    for (lists, expected) in [
        (
            r#""fields":[{"config":"absent"}]"#.to_owned(),
            "takes fields from \"absent\" of the configuration, a key that the daemon itself reads",
        ),
        (
            r#""fields":[{"config":""}]"#.to_owned(),
            "has a list's name of 0 bytes",
        ),
        (
            format!(r#""fields":[{{"config":"{long}"}}]"#),
            "has a list's name of 257 bytes",
        ),
        (
            r#""fields":[{"config":"a"},{"config":"a"}]"#.to_owned(),
            "lists \"a\" twice in fields of *",
        ),
        (
            r#""fields":[{"config":"a","types":["text"]}]"#.to_owned(),
            "there is no type \"text\"; there are bool, int, uint, float, double, string, bytes and enum",
        ),
        (
            r#""fields":[{"config":"a","types":[]}]"#.to_owned(),
            "a list of types names at least one",
        ),
        (
            r#""fields":[{"list":"a"}]"#.to_owned(),
            "unknown field `list`, expected `config` or `types`",
        ),
        (
            r#""fields":[7]"#.to_owned(),
            "expected a field's path, or an object such as {\"config\": \"fields\"}",
        ),
        (
            r#""fields":["name"]"#.to_owned(),
            "declares the field \"name\" for *; only an exact method has a known schema",
        ),
        (
            r#""changes":[{"config":"a"}]"#.to_owned(),
            "lists \"a of the configuration\" among the changes of *, but doesn't declare the capability change",
        ),
    ] {
        check_contains(&method(&lists), expected);
    }
    let foreign = r#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"*","fields":["*"]}],"foreign":{"abi":"opa"}}"#;
    check_contains(
        &manifest_refusal(foreign),
        "leaves fields of * to the configuration, which a description of a module of opa can't",
    );
}

#[test]
fn the_most_exact_method_applies() {
    let manifest = r#"{"abi":1,"name":"t","hooks":["request"],"methods":[
        {"method":"*"},{"method":"a.B/*"},{"method":"a.B/C"}]}"#;
    let policy = Parts {
        manifest: section(manifest),
        ..Parts::default()
    }
    .load()
    .unwrap();
    let index = |service, method| policy.manifest().method_index(service, method);
    assert_eq!(index("a.B", "C"), Some(2));
    assert_eq!(index("a.B", "D"), Some(1));
    assert_eq!(index("x.Y", "C"), Some(0));
}

#[test]
fn compile_bombs_are_refused_before_they_are_compiled() {
    let nested = format!("(func {} {})", "block ".repeat(600), "end ".repeat(600));
    let locals = format!("(func (local {}))", "i32 ".repeat(1025));
    let table = format!("(func (br_table {} (i32.const 0)))", "0 ".repeat(1026));
    let product = format!(
        "(func (local {}) {})",
        "i32 ".repeat(1000),
        "block end ".repeat(301)
    );
    let body = format!("(func {})", "i32.const 0 drop ".repeat(22_000));
    let functions = "(func)".repeat(limits::FUNCTIONS as usize);
    let total = format!("(func {})", "nop ".repeat(60_000)).repeat(17);
    let exports = (0..260)
        .map(|i| format!("(export \"e{i}\" (func 0))"))
        .collect::<Vec<_>>()
        .join("");
    let globals = "(global i32 (i32.const 0))".repeat(1025);
    let data = "(data (i32.const 0) \"\")".repeat(4097);
    let elements = "(elem declare func 0)".repeat(4097);
    let types = (0..4097)
        .map(|i| {
            let params: String = (0..13)
                .map(|b| if i >> b & 1 == 1 { "i32 " } else { "i64 " })
                .collect();
            format!("(type (func (param {params})))")
        })
        .collect::<String>();
    let cases = [
        (nested, "513 nested blocks, above the limit of 512"),
        (
            locals,
            "1025 locals in one function, above the limit of 1024",
        ),
        (table, "1025 targets in one branch, above the limit of 1024"),
        (product, "301000 blocks times locals in one function"),
        (body, "bytes in one function, above the limit of 65536"),
        (functions, "functions, above the limit of 10000"),
        (total, "units of compile cost, above the limit of 1000000"),
        (exports, "exports, above the limit of 256"),
        (globals, "1025 globals, above the limit of 1024"),
        (data, "4097 data segments, above the limit of 4096"),
        (elements, "4097 element segments, above the limit of 4096"),
        (types, "types, above the limit of 4096"),
        (
            "(table 16385 funcref)".to_owned(),
            "16385 elements in one table, above the limit of 16384",
        ),
        (
            "(table 1 funcref) (table 1 funcref)".to_owned(),
            "2 tables, above the limit of 1",
        ),
    ];
    for (rest, expected) in cases {
        check_contains(
            &refusal(&Parts {
                rest,
                ..Parts::default()
            }),
            expected,
        );
    }
    let imports: &'static str = Box::leak(
        r#"(import "tollgate" "log" (func (param i32 i32 i32)))"#
            .repeat(17)
            .into(),
    );
    check_contains(
        &refusal(&Parts {
            imports,
            ..Parts::default()
        }),
        "17 imports, above the limit of 16",
    );
}

#[test]
fn too_much_memory_from_the_start() {
    let parts = Parts {
        memory: r#"(memory (export "memory") 1000)"#,
        ..Parts::default()
    };
    // The pool's own limit, found by the compiler or by the host.
    assert!(parts.load().is_err());
    let parts = Parts {
        memory: r#"(memory (export "memory") 65)"#,
        ..Parts::default()
    };
    assert_eq!(
        parts.instantiate().unwrap_err(),
        LoadError::Memory {
            bytes: 65 << 16,
            max: limits::MEMORY_BYTES as u64
        }
    );
}

#[test]
fn the_default_pool_fits_into_the_address_space() {
    let host = Host::new(HostConfig::default()).unwrap();
    host.load(&Parts::default().wasm()).unwrap();
}

proptest! {
    #[test]
    fn damaged_modules_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut wasm = Parts::default().wasm();
        for (index, byte) in damage {
            let at = index.index(wasm.len());
            wasm[at] = byte;
        }
        if let Some(index) = cut {
            wasm.truncate(index.index(wasm.len()));
        }
        let Ok(policy) = HOST.load(&wasm) else { return Ok(()) };
        let Ok(mut instance) = policy.instantiate(&setup(&crate::guests::limits(), None)) else { return Ok(()) };
        let _ = instance.evaluate::<Infallible>(Hook::Request, 0, 8, |_| Ok(8));
    }

    #[test]
    fn garbage_behind_the_preamble_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(HOST.load(&[b"\0asm\x01\0\0\0".as_slice(), &bytes].concat()).is_err());
    }
}

/// Names, patterns, words and numbers, right and wrong.
fn json_word() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    let word = prop_oneof![
        Just("a.B/C".to_owned()),
        Just("*".to_owned()),
        Just("request".to_owned()),
        Just("tick".to_owned()),
        Just("change".to_owned()),
        Just("clock".to_owned()),
        "[a-c.*/]{0,6}",
        "\\PC{0,6}",
    ];
    prop_oneof![
        8 => word.prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(json!(null)),
        1 => Just(json!({})),
    ]
}

proptest! {
    /// A manifest of plausible parts is refused with a sentence, or all its content is within
    /// bounds.
    #[test]
    fn any_manifest_is_in_bounds_or_refused(
        hooks in proptest::collection::vec(json_word(), 0..4),
        method in json_word(),
        fields in proptest::collection::vec(json_word(), 0..4),
        changes in proptest::collection::vec(json_word(), 0..4),
        keys in proptest::collection::vec(json_word(), 0..4),
        capabilities in proptest::collection::vec(json_word(), 0..4),
        tick_ms in proptest::option::of(prop_oneof![0u64..200, any::<u64>()]),
        version in proptest::option::of(any::<u64>()),
        gauges in proptest::collection::vec(json_word(), 0..3),
    ) {
        use serde_json::json;
        let mut manifest = json!({
            "abi": 1, "name": "t", "hooks": hooks, "capabilities": capabilities, "gauges": gauges,
            "methods": [{ "method": method, "fields": fields, "changes": changes, "metadata": keys }],
        });
        if let Some(ms) = tick_ms {
            manifest["tick_ms"] = ms.into();
        }
        if let Some(version) = version {
            manifest["state"] = json!({ "version": version });
        }
        let rest = r#"(func (export "tollgate_reply") (param i32) (result i32) i32.const 0)
            (func (export "tollgate_save") (result i64) i64.const 0)
            (func (export "tollgate_restore") (param i32 i32) (result i32) i32.const 0)
            (func (export "tollgate_tick") (result i32) i32.const 0)"#;
        let bytes = manifest.to_string();
        let escaped: String = bytes.bytes().map(|b| format!("\\{b:02x}")).collect();
        let parts = Parts {
            manifest: format!("(@custom \"tollgate.manifest\" \"{escaped}\")"),
            rest: rest.to_owned(),
            ..Parts::default()
        };
        match parts.load() {
            Err(LoadError::Manifest(text)) => prop_assert!(!text.is_empty() && text.len() < 1000),
            Err(other) => prop_assert!(false, "{other}"),
            Ok(policy) => {
                let manifest = policy.manifest();
                let ms = manifest.tick().map(|t| t.as_millis());
                prop_assert!(ms.is_none_or(|ms| (100..=3_600_000).contains(&ms)));
                prop_assert_eq!(ms.is_some(), hooks.iter().any(|h| h == "tick"));
                let entry = &manifest.methods()[0];
                prop_assert!(changes.is_empty() || manifest.capabilities().contains(Capabilities::CHANGE));
                prop_assert_eq!(entry.changes(Hook::Request).len(), changes.len());
                prop_assert_eq!(entry.fields(Hook::Request).len(), fields.len());
                prop_assert_eq!(entry.metadata(Hook::Request).len(), keys.len());
            }
        }
    }
}
