//! Arbitrary bytes as a policy's module, or as the manifest in one: `[form][bytes]`. Nothing is
//! compiled.
//!
//! The scan refuses them with a reason that is no longer than what is remembered of one, or the
//! manifest is within all limits. Each pattern of it is found by what it stands for. A module that
//! has a manifest can't be described; one that lacks nothing else can, and is then taken.

use tollgate_policy_host::compat::{EVERY_KEY, describe, detect};
use tollgate_policy_host::{Hook, Host, LoadError, Manifest, limits};

/// The shortest module.
const EMPTY: &[u8] = b"\0asm\x01\0\0\0";

/// The shortest manifest, but for spaces.
const PLAIN: &str =
    r#"{"abi": 1, "name": "p", "hooks": ["request"], "methods": [{"method": "*"}]}"#;

/// Manifests that have all there can be, together.
const FULL: [(&str, &str); 4] = [
    (
        "own",
        r#"{"abi": 1, "name": "quota-2.x_y", "version": "2.0", "hooks": ["request", "reply", "tick"],
 "tick_ms": 500, "methods": [
  {"method": "hotel.Reservation/Reserve", "fields": ["customer_name", "room.id"], "reply_fields": ["price"],
   "changes": ["room.id"], "reply_changes": ["price"], "metadata": ["user", "trace-bin"],
   "reply_metadata": ["etag"], "metadata_changes": ["x-user"], "reply_metadata_changes": ["*"]},
  {"method": "hotel.Reservation/*", "metadata": ["*"]}, {"method": "*"}],
 "capabilities": ["log", "metrics", "state", "clock", "random", "change", "delay", "priority", "route"],
 "state": {"version": 3, "stateless_replies": true},
 "counters": ["allowed", "denied"], "gauges": ["open"], "histograms": ["bytes"]}"#,
    ),
    (
        "proxy-wasm",
        r#"{"abi": 1, "name": "auth", "hooks": ["request", "tick"], "methods": [{"method": "*"}], "capabilities": ["change"],
 "compat": {"abi": "proxy-wasm", "metadata": ["authorization"], "reply_metadata": ["*"], "metadata_changes": ["x-user"],
  "reply_metadata_changes": ["*"], "body": "change", "reply_body": "read", "root_id": "auth"}}"#,
    ),
    (
        "opa",
        r#"{"abi": 1, "name": "opa", "hooks": ["reply"], "methods": [{"method": "a.B/C", "fields": ["x"], "reply_fields": ["y"]}],
 "compat": {"abi": "opa", "metadata": ["role"], "entrypoint": "authz/allow"}}"#,
    ),
    ("plain", PLAIN),
];

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let Some((form, bytes)) = input.split_first() else {
        return;
    };
    if form.is_multiple_of(2) {
        return module(bytes);
    }
    let Ok(manifest) = str::from_utf8(bytes) else {
        return;
    };
    module(&described(manifest));
}

/// The shortest module with a manifest.
fn described(manifest: &str) -> Vec<u8> {
    describe(EMPTY, manifest).expect("it has no manifest")
}

fn module(wasm: &[u8]) {
    match Host::scan(wasm) {
        Ok(manifest) => {
            within_limits(&manifest);
            finds_its_methods(&manifest);
            assert_eq!(detect(wasm), Ok(None));
            assert_eq!(describe(wasm, PLAIN), Err(LoadError::Described));
        }
        Err(LoadError::ManifestCount(0)) => {
            let wasm = describe(wasm, PLAIN).expect("it has no manifest");
            assert_eq!(Host::scan(&wasm), Host::scan(&described(PLAIN)));
        }
        Err(error) => can_be_remembered(&error),
    }
}

fn can_be_remembered(error: &LoadError) {
    let longest = match error {
        LoadError::Manifest(text) | LoadError::Invalid(text) | LoadError::NotWasm(text) => {
            text.len()
        }
        LoadError::UnknownImport { module, name }
        | LoadError::UnknownCompatImport { module, name, .. } => module.len().max(name.len()),
        _ => 0,
    };
    assert!(longest <= limits::REASON_BYTES, "{error}");
    assert!(!error.to_string().is_empty());
}

fn within_limits(manifest: &Manifest) {
    let name = manifest.name();
    let is_plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    assert!((1..=limits::POLICY_NAME_BYTES).contains(&name.len()));
    assert!(name.bytes().all(is_plain), "{name:?}");
    manifest.version().into_iter().for_each(is_named);
    if let Some(tick) = manifest.tick() {
        let range = u128::from(limits::TICK_MS_MIN)..=u128::from(limits::TICK_MS_MAX);
        assert!(range.contains(&tick.as_millis()), "{tick:?}");
    }
    listed(manifest.counters(), limits::COUNTERS);
    listed(manifest.gauges(), limits::GAUGES);
    listed(manifest.histograms(), limits::HISTOGRAMS);
    assert!((1..=limits::METHODS).contains(&manifest.methods().len()));
    for method in manifest.methods() {
        is_named(method.pattern());
        for hook in [Hook::Request, Hook::Reply] {
            listed(method.fields(hook), limits::FIELDS);
            listed(method.changes(hook), limits::CHANGES);
            for keys in [method.metadata(hook), method.metadata_changes(hook)] {
                listed(keys, limits::METADATA_KEYS);
                keys.iter().for_each(|key| is_key(key));
            }
        }
    }
    let Some(compat) = manifest.compat() else {
        return;
    };
    for hook in [Hook::Request, Hook::Reply] {
        for keys in [compat.keys(hook), compat.key_changes(hook)] {
            assert!(keys.len() <= limits::COMPAT_KEYS, "{keys:?}");
            keys.iter().for_each(|key| is_key(key));
        }
    }
}

fn is_named(text: &str) {
    assert!((1..=limits::NAME_BYTES).contains(&text.len()), "{text:?}");
}

/// No more than so many names, each once.
fn listed(names: &[String], most: usize) {
    assert!(names.len() <= most, "{names:?}");
    for (at, name) in names.iter().enumerate() {
        is_named(name);
        assert!(!names[..at].contains(name), "{name:?}");
    }
}

/// No policy sees or writes the daemon's own keys.
fn is_key(key: &str) {
    let is_own = key.starts_with("grpc-") || key.starts_with("tollgate-");
    assert!(!is_own, "{key:?}");
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    assert!(key == EVERY_KEY || key.bytes().all(is_allowed), "{key:?}");
}

/// A pattern is found by a method of which it is the most exact one.
fn finds_its_methods(manifest: &Manifest) {
    for (entry, index) in manifest.methods().iter().zip(0..) {
        // No method is called nothing, so that only a pattern for all of them can stand for that.
        let (service, method) = match entry.pattern().split_once('/') {
            Some((service, "*")) => (service, ""),
            Some(exact) => exact,
            None => ("", ""),
        };
        let found = manifest.method_index(service, method);
        assert_eq!(found, Some(index), "{}", entry.pattern());
    }
}

/// Manifests, and modules with and without one, and names for them.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![("empty".to_owned(), [&[0][..], EMPTY].concat())];
    for (name, manifest) in FULL {
        let as_manifest = [&[1][..], manifest.as_bytes()].concat();
        seeds.push((name.to_owned(), as_manifest));
        let as_module = [&[0][..], &described(manifest)].concat();
        seeds.push((format!("{name}-module"), as_module));
    }
    // Two manifests; and a module with a type, an import, a function, a table, a memory, an export
    // and code.
    let section = &described(PLAIN)[EMPTY.len()..];
    let twice = [&[0][..], EMPTY, section, section].concat();
    seeds.push(("twice".to_owned(), twice));
    let parts: [&[u8]; 7] = [
        b"\x01\x06\x01\x60\x01\x7f\x01\x7f",
        b"\x02\x13\x01\x08tollgate\x06now_ms\x00\x00",
        b"\x03\x02\x01\x00",
        b"\x04\x04\x01\x70\x00\x01",
        b"\x05\x03\x01\x00\x01",
        b"\x07\x0a\x01\x06memory\x02\x00",
        b"\x0a\x06\x01\x04\x00\x20\x00\x0b",
    ];
    let code = parts.concat();
    let without = [&[0][..], EMPTY, &code].concat();
    seeds.push(("code".to_owned(), without));
    let with = [&[0][..], EMPTY, &code, section].concat();
    seeds.push(("code-module".to_owned(), with));
    seeds
}
