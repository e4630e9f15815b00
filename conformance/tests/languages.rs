//! The ABI's vectors against the SDK of each language, through the real host.
//!
//! A witness in each language reports what it reads from the host's views, and answers as
//! instructed; the host must then get the intended result. `guest-sdk/vectors/README.md` has the
//! witness's language.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;
use tollgate_conformance::testbed::{guest_file, policy_file};
use tollgate_policy_host::{
    Capabilities, Effects, FieldChange, Hook, Host, HostConfig, Instance, LoadError,
    MetadataChange, Policy, Setup, TenantLimits, Value as NewValue, Verdict, limits,
};

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let config = HostConfig {
        instances: 50,
        ..HostConfig::default()
    };
    Host::new(config).unwrap()
});

fn load(file: PathBuf) -> Policy {
    HOST.load(&std::fs::read(file).unwrap()).unwrap()
}

/// The same policy in each language. Compiled once: Go's has 2.6 MB.
static WITNESSES: LazyLock<[(&str, Policy); 4]> = LazyLock::new(|| {
    [
        ("Rust", load(policy_file("witness"))),
        ("C", load(guest_file("c/witness"))),
        ("AssemblyScript", load(guest_file("assemblyscript/witness"))),
        ("Go", load(guest_file("go/witness"))),
    ]
});

fn configured(policy: &Policy, config: &str) -> Result<Instance, LoadError> {
    policy.instantiate(&Setup {
        config: Some(config.as_bytes()),
        granted: Capabilities::ALL,
        ..Setup::new(&TenantLimits::default())
    })
}

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/../guest-sdk/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// A field's letter, and a witness's report of it.
fn said(field: &Value) -> (char, String) {
    let (kind, value) = field.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "absent" => ('t', "-".to_owned()),
        "text" => ('t', value.as_str().unwrap().to_owned()),
        "bytes" => ('x', value.as_str().unwrap().to_owned()),
        "values" => match &value.as_array().unwrap()[..] {
            [] => ('v', "-".to_owned()),
            values => {
                let texts: Vec<_> = values.iter().map(|hex| hex.as_str().unwrap()).collect();
                ('v', format!("{}:{}", texts.len(), texts.join(",")))
            }
        },
        "int" => ('i', value.to_string()),
        "uint" => ('u', value.to_string()),
        "bool" => ('b', if value == true { "T" } else { "F" }.to_owned()),
        "float" => ('f', (value.as_f64().unwrap() as f32).to_bits().to_string()),
        "double" => ('d', value.as_f64().unwrap().to_bits().to_string()),
        other => panic!("unknown kind {other}"),
    }
}

/// A call's method and fields, in the witness's configuration and in its report.
fn expected(call: &Value) -> (String, String) {
    let mut kinds = String::new();
    let mut text = call["method"].to_string();
    for field in call["fields"].as_array().unwrap() {
        let (kind, value) = said(field);
        kinds.push(kind);
        text += &format!("|{value}");
    }
    (kinds, text)
}

#[test]
fn every_language_reads_what_the_host_writes() {
    let mut checked = 0;
    for (language, witness) in &*WITNESSES {
        for batch in vectors("batches.json") {
            let calls = batch["calls"].as_array().unwrap();
            let (kinds, texts): (Vec<_>, Vec<_>) = calls.iter().map(expected).unzip();
            for hook in [Hook::Request, Hook::Reply] {
                let config = format!("w\n{}", kinds.join("\n"));
                let mut witness = configured(witness, &config).unwrap();
                let announced = batch["announced"].as_u64().unwrap() as usize;
                let mut room = witness.batch(hook, announced, 4096).unwrap();
                for call in calls {
                    let view = bytes(call["view"].as_str().unwrap());
                    let method = call["method"].as_u64().unwrap() as u32;
                    let write = |room: &mut [u8]| {
                        room[..view.len()].copy_from_slice(&view);
                        Ok::<_, Infallible>(view.len())
                    };
                    room.push(method, view.len(), write).unwrap();
                }
                let mut answers = Vec::new();
                room.evaluate(|_, verdict| answers.push(verdict)).unwrap();
                let denied = texts.iter().map(|text| Verdict::Deny {
                    code: 13,
                    message: text.clone(),
                });
                let denied: Vec<Verdict> = denied.collect();
                assert_eq!(answers, denied, "{language}: {}", batch["name"]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 4 * 2 * 6, "{checked}");
}

/// One evaluation of an empty view by a witness that was told its answer.
fn parrot(witness: &Policy, lines: &str) -> Verdict {
    let mut parrot = configured(witness, &format!("p\n{lines}")).unwrap();
    let empty = [8, 0, 0, 0, 0, 0, 0, 0];
    let write = |room: &mut [u8]| {
        room[..8].copy_from_slice(&empty);
        Ok::<_, Infallible>(8)
    };
    parrot.evaluate(Hook::Request, 0, 8, write).unwrap()
}

fn changed(fields: Vec<FieldChange>) -> Verdict {
    Verdict::Effects(Box::new(Effects {
        fields,
        ..Effects::default()
    }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_host_reads_what_every_language_answers() {
    let mut checked = 0;
    for (language, witness) in &*WITNESSES {
        for answer in vectors("answers.json") {
            let name = &answer["name"];
            let (lines, expected) = if answer["allow"] == true {
                (String::new(), Verdict::Allow)
            } else if let Some(deny) = answer["deny"].as_array() {
                let (code, message) = (
                    deny[0].as_u64().unwrap() as u32,
                    deny[1].as_str().unwrap().to_owned(),
                );
                let lines = format!("d {code} {}", hex(message.as_bytes()));
                (lines, Verdict::Deny { code, message })
            } else {
                continue; // A fault, which no SDK can write.
            };
            assert_eq!(parrot(witness, &lines), expected, "{language}: {name}");
            checked += 1;
        }
    }
    assert!(checked >= 4 * 6, "{checked}");
}

#[test]
fn the_host_reads_every_effect_of_every_language() {
    let mut checked = 0;
    for (language, witness) in &*WITNESSES {
        for effect in vectors("effects.json") {
            // Replies have the same keys, and the witness has the vectors' keys.
            let meant = &effect["effects"];
            if meant.is_null() || effect["hook"] == "reply" {
                continue;
            }
            let (lines, expected) = told(meant);
            assert_eq!(
                parrot(witness, &lines.join("\n")),
                Verdict::Effects(Box::new(expected)),
                "{language}: {}",
                effect["name"]
            );
            checked += 1;
        }
        // The same number differs in meaning for each kind, and the last value counts.
        let lines = "u 0 5\nm 0 61\nw 7\np 1\nl a\nr 0\nw 0\np 2\nl b\nw 9";
        let expected = Effects {
            fields: vec![FieldChange {
                field: 0,
                value: NewValue::Bits(5),
            }],
            metadata: vec![MetadataChange {
                key: 0,
                value: None,
            }],
            delay_us: 9,
            priority: Some(2),
            route: Some("b".to_owned()),
        };
        let verdict = Verdict::Effects(Box::new(expected));
        assert_eq!(parrot(witness, lines), verdict, "{language}: twice");
    }
    assert!(checked >= 4 * 12, "{checked}");
}

/// The witness's instructions, and the host's required result.
fn told(meant: &Value) -> (Vec<String>, Effects) {
    let mut lines = Vec::new();
    let mut effects = Effects::default();
    let list = |key: &str| meant[key].as_array().cloned().unwrap_or_default();
    for change in list("fields") {
        let (field, bits) = (
            change[0].as_u64().unwrap(),
            change[1]["bits"].as_u64().unwrap(),
        );
        lines.push(format!("u {field} {bits}"));
        effects.fields.push(FieldChange {
            field: field as u32,
            value: NewValue::Bits(bits),
        });
    }
    for change in list("metadata") {
        let (key, value) = (change[0].as_u64().unwrap(), change[1].as_str());
        lines.push(match value {
            Some(hex) => format!("m {key} {hex}"),
            None => format!("r {key}"),
        });
        effects.metadata.push(MetadataChange {
            key: key as u32,
            value: value.map(bytes),
        });
    }
    if let Some(us) = meant["delay_us"].as_u64() {
        lines.push(format!("w {us}"));
        effects.delay_us = us as u32;
    }
    if let Some(priority) = meant["priority"].as_u64() {
        lines.push(format!("p {priority}"));
        effects.priority = Some(priority as u8);
    }
    if let Some(route) = meant["route"].as_str() {
        lines.push(format!("l {route}"));
        effects.route = Some(route.to_owned());
    }
    (lines, effects)
}

#[test]
fn the_host_reads_what_every_language_changes() {
    let mut checked = 0;
    for (language, witness) in &*WITNESSES {
        for effect in vectors("effects.json") {
            let name = &effect["name"];
            // The witness declares three fields that it may change.
            let Some(changes) = effect["change"]
                .as_array()
                .filter(|list| list.iter().all(|c| c[0].as_u64() < Some(3)))
            else {
                continue;
            };
            let mut lines = Vec::new();
            let mut expected = Vec::new();
            for change in changes {
                let (field, new) = (change[0].as_u64().unwrap() as u32, &change[1]);
                let value = if let Some(bits) = new["bits"].as_u64() {
                    lines.push(format!("u {field} {bits}"));
                    NewValue::Bits(bits)
                } else if let Some(value) = new["bytes"].as_str() {
                    lines.push(format!("x {field} {value}"));
                    NewValue::Bytes(bytes(value))
                } else {
                    lines.push(format!("c {field}"));
                    NewValue::Clear
                };
                expected.push(FieldChange { field, value });
            }
            assert_eq!(
                parrot(witness, &lines.join("\n")),
                changed(expected),
                "{language}: {name}"
            );
            checked += 1;
        }
        let twice = parrot(witness, "u 1 5\nc 0\nx 1 6869");
        let last = vec![
            FieldChange {
                field: 1,
                value: NewValue::Bytes(b"hi".to_vec()),
            },
            FieldChange {
                field: 0,
                value: NewValue::Clear,
            },
        ];
        assert_eq!(
            twice,
            changed(last),
            "{language}: a field that is changed twice"
        );
    }
    assert!(checked >= 4 * 8, "{checked}");
}

#[test]
fn every_language_refuses_a_configuration_with_its_sentence() {
    for (language, witness) in &*WITNESSES {
        let refused = configured(witness, "x").unwrap_err().to_string();
        assert!(
            refused.contains("the first letter is w or p"),
            "{language}: {refused}"
        );
    }
}

/// The examples of the SDKs, against one table.
#[test]
fn the_room_limit_is_the_same_in_all_languages() {
    for language in ["c", "assemblyscript", "go"] {
        let policy = load(guest_file(&format!("{language}/room_limit")));
        let refused = configured(&policy, "many").unwrap_err().to_string();
        assert!(
            refused.contains("the configuration is the number of rooms, in digits"),
            "{language}: {refused}"
        );
        let mut limit = configured(&policy, "4").unwrap();
        let coupon = changed(vec![FieldChange {
            field: 0,
            value: NewValue::Bytes(b"walk-in".to_vec()),
        }]);
        let deny = |code, message: &str| Verdict::Deny {
            code,
            message: message.to_owned(),
        };
        for (rooms, with_coupon, expected) in [
            (Some(4), true, Verdict::Allow),
            (Some(4), false, coupon),
            (Some(5), true, deny(7, "so many rooms need a group booking")),
            (None, true, deny(9, "the policy isn't shown room_count")),
        ] {
            let mut view = [40u32, 2, 0, 0, 0, 0, 0, 0, 40, 0];
            if let Some(rooms) = rooms {
                (view[2], view[4]) = (1, rooms);
            }
            view[6] = with_coupon.into();
            let view: Vec<u8> = view.iter().flat_map(|word| word.to_le_bytes()).collect();
            let write = |room: &mut [u8]| {
                room[..view.len()].copy_from_slice(&view);
                Ok::<_, Infallible>(view.len())
            };
            let verdict = limit.evaluate(Hook::Request, 0, view.len(), write).unwrap();
            assert_eq!(verdict, expected, "{language}: {rooms:?} {with_coupon}");
        }
        assert_eq!(limit.metrics().counters[..], [1], "{language}");
    }
}

/// A collector that never frees would reach the limit of memory; a slow one, that of fuel.
#[test]
fn collected_garbage_stays_within_memory_and_fuel() {
    let witness = load(guest_file("assemblyscript/witness"));
    let mut parrot = configured(&witness, "p").unwrap();
    let empty = [8, 0, 0, 0, 0, 0, 0, 0];
    for call in 0..100_000 {
        let write = |room: &mut [u8]| {
            room[..8].copy_from_slice(&empty);
            Ok::<_, Infallible>(8)
        };
        let verdict = parrot.evaluate(Hook::Request, 0, 8, write);
        assert_eq!(verdict, Ok(Verdict::Allow), "call {call}");
    }
}

/// Go's collector takes more than the default budget of a call, and no more memory than a module
/// with WASI has.
#[test]
fn go_collects_garbage_within_memory_and_a_larger_budget() {
    const CALLS: usize = 2_000;
    const TEXT: usize = 4_096;
    let (_, witness) = &WITNESSES[3];
    let config = format!("w{}", "\nt".repeat(CALLS));
    let mut witness = configured(witness, &config).unwrap();
    let default = witness.fuel_per_call();
    // `cpu_us = 10000`, the most that an attachment may have.
    witness.set_fuel_per_call(100 * default);
    let mut view = Vec::new();
    for word in [24 + TEXT as u32, 1, 1, TEXT as u32, 24, 0] {
        view.extend(word.to_le_bytes());
    }
    view.resize(24 + TEXT, b'a');
    let mut most = 0;
    for call in 0..CALLS {
        let write = |room: &mut [u8]| {
            room[..view.len()].copy_from_slice(&view);
            Ok::<_, Infallible>(view.len())
        };
        let verdict = witness.evaluate(Hook::Request, 0, view.len(), write);
        assert!(
            matches!(verdict, Ok(Verdict::Deny { code: 13, .. })),
            "call {call}: {verdict:?}"
        );
        most = most.max(witness.fuel_used());
    }
    println!("the dearest call took {most} units of fuel");
    assert!(most > default, "the collector ran: {most} units");
    assert!(witness.memory_bytes() <= limits::COMPAT_MEMORY_BYTES);
}

#[test]
fn a_panic_in_go_is_a_line_in_the_log() {
    let (_, witness) = &WITNESSES[3];
    let mut parrot = configured(witness, "p\nu 0 many").unwrap();
    let empty = [8, 0, 0, 0, 0, 0, 0, 0];
    let write = |room: &mut [u8]| {
        room[..8].copy_from_slice(&empty);
        Ok::<_, Infallible>(8)
    };
    let fault = parrot.evaluate(Hook::Request, 0, 8, write).unwrap_err();
    let text = format!("{fault:?}");
    assert!(text.contains("exit status 2"), "{text}");
    let (log, dropped) = parrot.take_log();
    let lines: Vec<_> = log.iter().map(|line| line.text.as_str()).collect();
    let panic = "panic: strconv.ParseUint: parsing \"many\": invalid syntax";
    assert_eq!((lines, dropped), (vec![panic], 0));
}
