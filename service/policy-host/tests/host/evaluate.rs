//! Evaluating: verdicts, faults, limits, batches, logs and counters.

use std::convert::Infallible;

use proptest::prelude::*;
use tollgate_policy_host::{
    BatchError, EvaluateError, FUEL_PER_MICROSECOND, Fault, Hook, Instance, LogLevel, LogLine,
    Misuse, TenantLimits, Verdict, limits,
};

use crate::guests::{guest, limits, setup, view, write};
use crate::wat::{ALLOW, Parts, buffer};

fn evaluate(instance: &mut Instance) -> Result<Verdict, EvaluateError<Infallible>> {
    let view = view(&["x"]);
    instance.evaluate(Hook::Request, 0, view.len(), write(&view))
}

fn fault(instance: &mut Instance) -> Fault {
    match evaluate(instance) {
        Err(EvaluateError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// The fault of a module with this body of its request function; the instance must be dead then.
fn request_fault(body: &str) -> Fault {
    let mut instance = Parts::with_request(body).instantiate().unwrap();
    let first = fault(&mut instance);
    assert!(instance.is_dead());
    assert_eq!(fault(&mut instance), Fault::Dead);
    assert_eq!(
        instance.batch(Hook::Request, 1, 0).unwrap_err(),
        BatchError::Fault(Fault::Dead)
    );
    first
}

#[test]
fn the_null_policy_allows() {
    let mut instance = guest("null").instantiate(&setup(&limits(), None)).unwrap();
    for _ in 0..1000 {
        assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow));
    }
}

#[test]
fn an_endless_loop_ends() {
    let fuel = limits::FUEL_PER_CALL;
    assert_eq!(
        request_fault("(loop br 0) unreachable"),
        Fault::OutOfFuel { fuel }
    );
    assert_eq!(
        request_fault(
            "(loop (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) br 0) unreachable"
        ),
        Fault::OutOfFuel { fuel }
    );
    let mut spin = guest("spin")
        .instantiate(&setup(&limits(), Some(b"calls 3")))
        .unwrap();
    for _ in 0..3 {
        assert_eq!(evaluate(&mut spin), Ok(Verdict::Allow));
    }
    assert_eq!(fault(&mut spin), Fault::OutOfFuel { fuel });
}

#[test]
fn one_tenants_loop_leaves_the_others_alone() {
    let mut evil = guest("spin").instantiate(&setup(&limits(), None)).unwrap();
    let mut good = guest("null").instantiate(&setup(&limits(), None)).unwrap();
    fault(&mut evil);
    assert_eq!(evaluate(&mut good), Ok(Verdict::Allow));
    let mut again = guest("spin")
        .instantiate(&setup(&limits(), Some(b"calls 1")))
        .unwrap();
    assert_eq!(evaluate(&mut again), Ok(Verdict::Allow));
}

#[test]
fn the_budget_is_per_call_and_exact() {
    let parts = Parts::with_request(&format!(
        "(loop (local.set 1 (i32.add (local.get 1) (i32.const 1))) (br_if 0 (i32.lt_u (local.get 1) (i32.const 1000)))) {ALLOW} i32.const 0"
    ));
    let policy = parts.load().unwrap();
    let with = |fuel_per_call| {
        policy.instantiate(&setup(
            &TenantLimits {
                fuel_per_call,
                ..limits()
            },
            None,
        ))
    };
    let mut enough = with(20_000).unwrap();
    for _ in 0..100 {
        assert_eq!(evaluate(&mut enough), Ok(Verdict::Allow));
    }
    assert_eq!(
        fault(&mut with(5_000).unwrap()),
        Fault::OutOfFuel { fuel: 5_000 }
    );
}

#[test]
fn a_large_view_costs_the_smallest_budget_nothing() {
    let fuel_per_call = limits::CPU_US_MIN * FUEL_PER_MICROSECOND;
    let least = TenantLimits {
        fuel_per_call,
        ..limits()
    };
    let mut null = guest("null").instantiate(&setup(&least, None)).unwrap();
    let text = "y".repeat(limits::VIEW_BYTES - 24);
    let view = view(&[&text]);
    assert_eq!(view.len(), limits::VIEW_BYTES);
    for _ in 0..2 {
        let evaluated = null.evaluate(Hook::Request, 0, view.len(), write(&view));
        assert_eq!(evaluated, Ok(Verdict::Allow));
    }
    // A guest that loops instead of making room is still stopped, and has had little more fuel.
    let loops = Parts {
        buffer: buffer(
            "(if (i32.gt_u (local.get 0) (i32.const 4096)) (then (loop br 0))) i32.const 1024",
        ),
        ..Parts::default()
    };
    let mut loops = loops
        .load()
        .unwrap()
        .instantiate(&setup(&least, None))
        .unwrap();
    let asked = (limits::VIEW_BYTES as u64 + 32).next_power_of_two();
    let fuel = fuel_per_call + asked * limits::FUEL_PER_BUFFER_BYTE;
    let evaluated = loops.evaluate(Hook::Request, 0, view.len(), write(&view));
    assert_eq!(
        evaluated,
        Err(EvaluateError::Fault(Fault::OutOfFuel { fuel }))
    );
}

#[test]
fn traps_are_reported_by_kind() {
    let cases = [
        ("unreachable", "wasm `unreachable` instruction executed"),
        (
            "(i32.div_u (i32.const 1) (i32.const 0))",
            "integer divide by zero",
        ),
        ("(i32.load (i32.const -4))", "out of bounds memory access"),
        (
            "(call_indirect (result i32) (i32.const 9))",
            "undefined element: out of bounds table access",
        ),
    ];
    for (body, expected) in cases {
        let parts = Parts {
            rest: "(table 1 funcref)".to_owned(),
            ..Parts::with_request(body)
        };
        let mut instance = parts.instantiate().unwrap();
        assert_eq!(fault(&mut instance), Fault::Trap(expected.to_owned()));
    }
    let recursion = Parts {
        rest: "(func $r (result i32) (i32.add (call $r) (i32.const 1)))".to_owned(),
        ..Parts::with_request("call $r")
    };
    let mut instance = recursion.instantiate().unwrap();
    assert_eq!(
        fault(&mut instance),
        Fault::Trap("call stack exhausted".to_owned())
    );
}

#[test]
fn a_return_value_other_than_zero_is_a_fault() {
    assert_eq!(
        request_fault(&format!("{ALLOW} i32.const -1")),
        Fault::BadReturn {
            function: "request",
            returned: u32::MAX
        }
    );
}

#[test]
fn a_missing_verdict_is_a_fault() {
    assert_eq!(
        request_fault("i32.const 0"),
        Fault::BadVerdict {
            index: 0,
            verdict: 0
        }
    );
}

#[test]
fn memory_growth_is_capped() {
    // Denies with a message as long as the number of pages it got.
    let parts = Parts::with_request(
        "(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
         (i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 8))
         (i32.store (i32.const 1048) (memory.size)) i32.const 0",
    );
    let policy = parts.load().unwrap();
    for (memory_bytes, pages) in [(limits::MEMORY_BYTES, 64), (3 << 16, 3), (usize::MAX, 256)] {
        let mut instance = policy
            .instantiate(&setup(
                &TenantLimits {
                    memory_bytes,
                    ..limits()
                },
                None,
            ))
            .unwrap();
        let Ok(Verdict::Deny { code: 8, message }) = evaluate(&mut instance) else {
            panic!("denied")
        };
        assert_eq!(message.len(), pages);
    }
}

#[test]
fn table_growth_is_capped() {
    // Denies with a message as long as an eighth of the elements it got.
    let body =
        "(loop (br_if 0 (i32.ne (table.grow 0 (ref.null func) (i32.const 64)) (i32.const -1))))
         (i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 8))
         (i32.store (i32.const 1048) (i32.shr_u (table.size 0) (i32.const 3))) i32.const 0";
    let parts = Parts {
        rest: "(table 0 funcref)".to_owned(),
        ..Parts::with_request(body)
    };
    let policy = parts.load().unwrap();
    for (table_elements, expected) in [(limits::TABLE_ELEMENTS, 1024), (128, 16)] {
        let mut instance = policy
            .instantiate(&setup(
                &TenantLimits {
                    table_elements,
                    ..limits()
                },
                None,
            ))
            .unwrap();
        let Ok(Verdict::Deny { message, .. }) = evaluate(&mut instance) else {
            panic!("denied")
        };
        assert_eq!(message.len(), expected);
    }
}

#[test]
fn a_guest_may_move_its_buffer_when_it_is_asked() {
    // Small buffers at 1024, larger ones at 65,536: the second page.
    let parts = Parts {
        memory: r#"(memory (export "memory") 4)"#,
        buffer: buffer(
            "(global.set $at (select (i32.const 1024) (i32.const 65536) (i32.le_u (local.get 0) (i32.const 4096)))) global.get $at",
        ),
        rest: "(global $at (mut i32) (i32.const 0))".to_owned(),
        ..Parts::with_request("(i32.store offset=12 (global.get $at) (i32.const 1)) i32.const 0")
    };
    let mut instance = parts.instantiate().unwrap();
    assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow));
    let long = view(&[&"y".repeat(30_000)]);
    let verdict = instance.evaluate(Hook::Request, 0, long.len(), write(&long));
    assert_eq!(verdict, Ok(Verdict::Allow));
    assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow));
}

#[test]
fn a_guest_that_cannot_provide_a_larger_buffer_dies() {
    let mut instance = Parts::default().instantiate().unwrap();
    let verdict = instance.evaluate(Hook::Request, 0, 60_000, write(b""));
    let expected = Fault::BadBuffer {
        address: 1024,
        len: 65_536,
        memory: 65_536,
    };
    assert_eq!(verdict, Err(EvaluateError::Fault(expected)));
    assert!(instance.is_dead());
}

#[test]
fn the_largest_view_arrives_whole() {
    // Allows if the view's last byte is Z.
    let parts = Parts {
        memory: r#"(memory (export "memory") 4)"#,
        ..Parts::with_request(
            "(i32.store (i32.const 1036) (i32.eq (i32.const 90)
               (i32.load8_u (i32.add (i32.const 1023) (i32.add (i32.load (i32.const 1024)) (i32.load (i32.const 1028)))))))
             i32.const 0",
        )
    };
    let mut instance = parts.instantiate().unwrap();
    let mut bytes = vec![b'.'; limits::VIEW_BYTES];
    *bytes.last_mut().unwrap() = b'Z';
    let verdict = instance.evaluate(Hook::Request, 0, bytes.len(), write(&bytes));
    assert_eq!(verdict, Ok(Verdict::Allow));
}

#[test]
fn misuse_is_reported_and_kills_nobody() {
    let mut instance = guest("hotel_acl")
        .instantiate(&setup(&limits(), Some(br#"{"blocked":[]}"#)))
        .unwrap();
    let misuse = |result: Result<Verdict, EvaluateError<Infallible>>| match result {
        Err(EvaluateError::Misuse(misuse)) => misuse,
        other => panic!("{other:?}"),
    };
    let i = &mut instance;
    assert_eq!(
        misuse(i.evaluate(Hook::Reply, 0, 8, write(b""))),
        Misuse::NoHook(Hook::Reply)
    );
    assert_eq!(
        misuse(i.evaluate(Hook::Request, 1, 8, write(b""))),
        Misuse::Method { index: 1, count: 1 }
    );
    let long = limits::VIEW_BYTES + 1;
    assert_eq!(
        misuse(i.evaluate(Hook::Request, 0, long, write(b""))),
        Misuse::ViewTooLong {
            len: long,
            max: limits::VIEW_BYTES
        }
    );
    assert_eq!(
        misuse(i.evaluate(Hook::Request, 0, 8, |_| Ok(9))),
        Misuse::ViewTooLong { len: 9, max: 8 }
    );
    assert_eq!(
        i.batch(Hook::Request, limits::BATCH + 1, 0).unwrap_err(),
        BatchError::Misuse(Misuse::BatchTooLong { count: 65, max: 64 })
    );
    let mut batch = i.batch(Hook::Request, 1, 64).unwrap();
    let view = view(&["x"]);
    batch.push(0, view.len(), write(&view)).unwrap();
    let expected = Misuse::BatchTooLong { count: 2, max: 1 };
    assert_eq!(
        batch.push(0, 8, write(b"")),
        Err(EvaluateError::Misuse(expected))
    );
    assert_eq!(evaluate(i), Ok(Verdict::Allow));
}

#[test]
fn a_view_that_fails_asks_nobody() {
    let mut instance = guest("spin").instantiate(&setup(&limits(), None)).unwrap();
    let verdict = instance.evaluate(Hook::Request, 0, 8, |_| Err("too large"));
    assert_eq!(verdict, Err(EvaluateError::View("too large")));
    assert!(!instance.is_dead());
}

#[test]
fn a_batch_is_evaluated_call_by_call() {
    let config = br#"{"blocked":["bob","eve"],"message":"no"}"#;
    let mut acl = guest("hotel_acl")
        .instantiate(&setup(&limits(), Some(config)))
        .unwrap();
    let names: Vec<String> = (0..limits::BATCH)
        .map(|i| {
            if i % 3 == 0 {
                "bob".to_owned()
            } else {
                format!("guest {i}")
            }
        })
        .collect();
    let views: Vec<_> = names.iter().map(|name| view(&[name])).collect();
    let room = views
        .iter()
        .map(|view| view.len().next_multiple_of(8))
        .sum();
    let mut batch = acl.batch(Hook::Request, views.len(), room).unwrap();
    assert!(batch.is_empty());
    for view in &views {
        batch.push(0, view.len(), write(view)).unwrap();
    }
    assert_eq!(batch.len(), views.len());
    let mut seen = Vec::new();
    batch
        .evaluate(|index, verdict| seen.push((index, verdict)))
        .unwrap();
    let expected = names.iter().enumerate().map(|(index, name)| {
        let denial = Verdict::Deny {
            code: 7,
            message: "no".to_owned(),
        };
        (
            index,
            if name == "bob" {
                denial
            } else {
                Verdict::Allow
            },
        )
    });
    assert_eq!(seen, expected.collect::<Vec<_>>());
    assert_eq!(acl.counters(), [22]);
}

#[test]
fn a_batch_can_end_early_or_empty() {
    let mut instance = guest("null").instantiate(&setup(&limits(), None)).unwrap();
    let batch = instance.batch(Hook::Request, 4, 64).unwrap();
    batch
        .evaluate(|_, _| panic!("nobody was asked about"))
        .unwrap();
    let mut batch = instance.batch(Hook::Request, 4, 64).unwrap();
    batch.push(0, 8, write(&view(&[]))).unwrap();
    assert_eq!(
        batch.push(0, 8, |_| Err("broken")),
        Err(EvaluateError::View("broken"))
    );
    batch.push(0, 8, write(&view(&[]))).unwrap();
    let mut count = 0;
    batch
        .evaluate(|_, verdict| count += usize::from(verdict == Verdict::Allow))
        .unwrap();
    assert_eq!(count, 2);
}

#[test]
fn one_bad_verdict_fails_the_batch() {
    // Allows the first call only.
    let mut instance = Parts::default().instantiate().unwrap();
    let mut batch = instance.batch(Hook::Request, 2, 32).unwrap();
    batch.push(0, 8, write(&view(&[]))).unwrap();
    batch.push(0, 8, write(&view(&[]))).unwrap();
    let mut seen = 0;
    let fault = batch.evaluate(|_, _| seen += 1).unwrap_err();
    assert_eq!(
        fault,
        Fault::BadVerdict {
            index: 1,
            verdict: 0
        }
    );
    assert_eq!(seen, 1);
    assert!(instance.is_dead());
}

/// A guest that denies its first call with the 1,000 bytes after the first entry as the message.
fn exhibit() -> Parts {
    Parts::with_request(
        "(i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 8))
         (i32.store (i32.const 1044) (i32.const 1056)) (i32.store (i32.const 1048) (i32.const 1000))
         i32.const 0",
    )
}

/// All bytes that it finds there for this view, without zeros.
fn shown(instance: &mut Instance, bytes: &[u8]) -> String {
    match instance.evaluate(Hook::Request, 0, 900, write(bytes)) {
        Ok(Verdict::Deny { message, .. }) => message.replace('\0', ""),
        other => panic!("{other:?}"),
    }
}

const SECRET: [u8; 900] = [b's'; 900];

#[test]
fn nothing_of_an_earlier_view_is_left_behind() {
    let mut instance = exhibit().instantiate().unwrap();
    assert_eq!(shown(&mut instance, &SECRET).len(), 900);
    assert_eq!(shown(&mut instance, b"short"), "short");
    assert_eq!(shown(&mut instance, b""), "");
}

#[test]
fn nothing_of_a_failed_view_is_left_behind() {
    let mut instance = exhibit().instantiate().unwrap();
    let failed = instance.evaluate(Hook::Request, 0, 900, |room| {
        room.copy_from_slice(&SECRET);
        Err("too large")
    });
    assert_eq!(failed, Err(EvaluateError::View("too large")));
    assert_eq!(shown(&mut instance, b"short"), "short");
}

#[test]
fn nothing_of_an_abandoned_batch_is_left_behind() {
    let mut instance = exhibit().instantiate().unwrap();
    let mut batch = instance.batch(Hook::Request, 2, 904).unwrap();
    batch.push(0, 900, write(&SECRET)).unwrap();
    assert_eq!(shown(&mut instance, b"short"), "short");
    // A batch that announces more entries than it pushes: the unused entries are cleared, too.
    assert_eq!(shown(&mut instance, &SECRET).len(), 900);
    let mut batch = instance.batch(Hook::Request, 3, 64).unwrap();
    batch.push(0, 5, write(b"short")).unwrap();
    batch
        .evaluate(|_, verdict| {
            let Verdict::Deny { message, .. } = verdict else {
                panic!("denied")
            };
            assert_eq!(message.replace('\0', ""), "short");
        })
        .unwrap();
}

#[test]
fn nothing_of_the_configuration_is_left_behind() {
    let mut instance = exhibit()
        .load()
        .unwrap()
        .instantiate(&setup(&limits(), Some(&SECRET)))
        .unwrap();
    assert_eq!(shown(&mut instance, b"short"), "short");
}

#[test]
fn messages_are_cut_and_repaired() {
    // The message is the data segment's content, from 4096 on.
    let message = |data: &str, len: usize| {
        let parts = Parts {
            rest: format!("(data (i32.const 4096) \"{data}\")"),
            ..Parts::with_request(&format!(
                "(i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 8))
                 (i32.store (i32.const 1044) (i32.const 4096)) (i32.store (i32.const 1048) (i32.const {len})) i32.const 0"
            ))
        };
        match evaluate(&mut parts.instantiate().unwrap()) {
            Ok(Verdict::Deny { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    };
    let long = "m".repeat(2000);
    assert_eq!(message(&long, 2000), long[..limits::MESSAGE_BYTES]);
    let euros = "€".repeat(400);
    assert_eq!(message(&euros, 1200), "€".repeat(341));
    let broken = message(&"\\ff".repeat(2000), 2000);
    assert_eq!(broken, "\u{fffd}".repeat(341));
}

#[test]
fn logs_are_bounded_and_collected() {
    let log = |body: &str| {
        let parts = Parts {
            imports: r#"(import "tollgate" "log" (func $log (param i32 i32 i32)))"#,
            rest: "(data (i32.const 4096) \"hello\")".to_owned(),
            ..Parts::with_request(body)
        };
        parts.instantiate().unwrap()
    };
    let mut one = log(&format!(
        "(call $log (i32.const 2) (i32.const 4096) (i32.const 5)) {ALLOW} i32.const 0"
    ));
    evaluate(&mut one).unwrap();
    let line = LogLine {
        level: LogLevel::Warning,
        text: "hello".to_owned(),
    };
    assert_eq!(one.take_log(), (vec![line], 0));
    assert_eq!(one.take_log(), (vec![], 0));
    for _ in 0..limits::LOG_LINES + 3 {
        evaluate(&mut one).unwrap();
    }
    let (lines, dropped) = one.take_log();
    assert_eq!((lines.len(), dropped), (limits::LOG_LINES, 3));

    let mut long = log(&format!(
        "(call $log (i32.const 9) (i32.const 4096) (i32.const 9999)) {ALLOW} i32.const 0"
    ));
    evaluate(&mut long).unwrap();
    let (lines, _) = long.take_log();
    assert_eq!(
        (lines[0].level, lines[0].text.len()),
        (LogLevel::Error, limits::LOG_LINE_BYTES)
    );

    let mut outside = log("(call $log (i32.const 1) (i32.const 65535) (i32.const 2)) i32.const 0");
    assert_eq!(
        fault(&mut outside),
        Fault::Trap("the log line at 65535+2 is outside of memory".to_owned())
    );
    let mut endless =
        log("(loop (call $log (i32.const 1) (i32.const 0) (i32.const 1)) br 0) unreachable");
    assert_eq!(
        fault(&mut endless),
        Fault::OutOfFuel {
            fuel: limits::FUEL_PER_CALL
        }
    );
    assert!(endless.take_log().1 < limits::FUEL_PER_CALL / 500);
}

#[test]
fn counters_count_and_an_unknown_one_is_a_fault() {
    let count = |id: i32| {
        let manifest = crate::wat::MANIFEST.replace("}]}", "}],\"counters\":[\"a\",\"b\"]}");
        let parts = Parts {
            imports: r#"(import "tollgate" "counter" (func $counter (param i32 i64)))"#,
            manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
            ..Parts::with_request(&format!(
                "(call $counter (i32.const {id}) (i64.const 5)) {ALLOW} i32.const 0"
            ))
        };
        parts.instantiate().unwrap()
    };
    let mut second = count(1);
    evaluate(&mut second).unwrap();
    evaluate(&mut second).unwrap();
    assert_eq!(second.counters(), [0, 10]);
    assert_eq!(
        fault(&mut count(2)),
        Fault::Trap("counter 2 is not among the manifest's 2".to_owned())
    );
}

#[test]
fn a_reply_hook_is_its_own_function() {
    let manifest = crate::wat::MANIFEST.replace("\"request\"", "\"request\",\"reply\"");
    let parts = Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        rest: "(func (export \"tollgate_reply\") (param i32) (result i32)
            (i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 9)) i32.const 0)"
            .to_owned(),
        ..Parts::default()
    };
    let mut instance = parts.instantiate().unwrap();
    assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow));
    let verdict = instance.evaluate(Hook::Reply, 0, 8, write(b""));
    assert_eq!(
        verdict,
        Ok(Verdict::Deny {
            code: 9,
            message: String::new()
        })
    );
}

#[test]
fn an_instance_moves_between_threads() {
    let mut instance = guest("null").instantiate(&setup(&limits(), None)).unwrap();
    std::thread::spawn(move || assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow)))
        .join()
        .unwrap();
}

/// A guest that writes its configuration's 16 bytes as verdict, status, msg_off and msg_len.
fn puppet(words: [u32; 4]) -> Instance {
    static POLICY: std::sync::LazyLock<tollgate_policy_host::Policy> =
        std::sync::LazyLock::new(|| {
            Parts {
                configure: crate::wat::configure(
                    "(memory.copy (i32.const 8192) (i32.const 1024) (i32.const 16)) i32.const 0",
                ),
                ..Parts::with_request(
                    "(memory.copy (i32.const 1036) (i32.const 8192) (i32.const 16)) i32.const 0",
                )
            }
            .load()
            .unwrap()
        });
    let config: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    POLICY
        .instantiate(&setup(&limits(), Some(&config)))
        .unwrap()
}

proptest! {
    #[test]
    fn whatever_a_guest_answers_is_a_verdict_or_a_fault(
        verdict in prop_oneof![0u32..5, any::<u32>()],
        status in prop_oneof![0u32..18, any::<u32>()],
        at in prop_oneof![0u32..70_000, any::<u32>()],
        len in prop_oneof![0u32..70_000, any::<u32>()],
    ) {
        let answer = evaluate(&mut puppet([verdict, status, at, len]));
        let inside = len == 0 || u64::from(at) + u64::from(len) <= 65_536;
        match answer {
            Ok(Verdict::Allow) => prop_assert_eq!(verdict, 1),
            Ok(Verdict::Deny { code, message }) => {
                prop_assert!(verdict == 2 && code == status && (1..=16).contains(&code) && inside);
                prop_assert!(message.len() <= limits::MESSAGE_BYTES);
            }
            Err(EvaluateError::Fault(Fault::BadVerdict { index: 0, verdict: v })) => {
                prop_assert!(v == verdict && !(1..=3).contains(&v));
            }
            Err(EvaluateError::Fault(Fault::MayNot { index: 0, .. })) => prop_assert_eq!(verdict, 3),
            Err(EvaluateError::Fault(Fault::BadStatus { index: 0, status: s })) => {
                prop_assert!(s == status && !(1..=16).contains(&s) && verdict == 2);
            }
            Err(EvaluateError::Fault(Fault::BadMessage { .. })) => prop_assert!(!inside && verdict == 2),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
