//! Real sandbox, real schema: what becomes of cases, with policies that do one thing each.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use tollgate_policy_tools::{
    Cases, Module, Report, Seen, Setting, ToolError, bench, bench_cases, test,
};
use tollgate_schema::Schema;

/// A policy that gives every call the verdict that `body` leaves in `$verdict`; it may write to the
/// entry at `$entry`, and finds the call's view at `$view`.
fn policy(manifest: &str, imports: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            {imports}
            (memory (export "memory") 2)
            (global $calls (mut i32) (i32.const 0))
            (func (export "tollgate_abi_v1"))
            (func (export "tollgate_buffer") (param i32) (result i32) (i32.const 65536))
            (func (export "tollgate_configure") (param i32) (result i32) (i32.const 0))
            (func $evaluate (param $count i32) (result i32)
                (local $entry i32) (local $view i32) (local $verdict i32)
                (local.set $entry (i32.const 65536))
                (loop $next
                    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                    (local.set $view (i32.add (i32.const 65536) (i32.load (local.get $entry))))
                    {body}
                    (i32.store offset=12 (local.get $entry) (local.get $verdict))
                    (local.set $entry (i32.add (local.get $entry) (i32.const 32)))
                    (local.set $count (i32.sub (local.get $count) (i32.const 1)))
                    (br_if $next (local.get $count)))
                (i32.const 0))
            (export "tollgate_request" (func $evaluate))
            (export "tollgate_reply" (func $evaluate))
            (data (i32.const 1024) "Grace")
            (@custom "tollgate.manifest" {manifest:?}))"#
    );
    wat::parse_str(text).unwrap()
}

fn manifest(method: &str, rest: &str) -> String {
    format!(
        r#"{{"abi":1,"name":"p","version":"1","hooks":["request","reply"],"methods":[{{"method":"hotel.Reservation/Reserve"{method}}}]{rest}}}"#
    )
}

/// Denies with code 7, unless `pass`.
fn denies_unless(pass: &str) -> String {
    format!(
        "(local.set $verdict (select (i32.const 1) (i32.const 2) {pass}))
        (i32.store offset=16 (local.get $entry) (i32.const 7))"
    )
}

/// Lets those pass that have a name.
fn asks_for_names() -> Vec<u8> {
    let manifest = manifest(r#","fields":["customer_name"]"#, "");
    let has_name = "(i32.load offset=12 (local.get $view))";
    policy(&manifest, "", &denies_unless(has_name))
}

/// Lets two calls pass per life of an instance, the third one traps.
fn traps_at_the_third() -> Vec<u8> {
    let body = "(if (i32.gt_u (global.get $calls) (i32.const 2)) (then (unreachable)))
        (local.set $verdict (i32.const 1))";
    policy(&manifest("", ""), "", body)
}

/// Changes the customer's name to Grace and the number of rooms to `rooms`.
fn renames(rooms: u64) -> Vec<u8> {
    let manifest = manifest(
        r#","changes":["customer_name","room_count"]"#,
        r#","capabilities":["change"]"#,
    );
    let body = format!(
        "(i64.store (i32.const 2048) (i64.const 3))
        (i64.store offset=8 (i32.const 2048) (i64.const 0x500000400))
        (i64.store offset=16 (i32.const 2048) (i64.const 0x100000002))
        (i64.store offset=24 (i32.const 2048) (i64.const {rooms}))
        (i32.store offset=20 (local.get $entry) (i32.const 2048))
        (i32.store offset=24 (local.get $entry) (i32.const 32))
        (local.set $verdict (i32.const 3))"
    );
    policy(&manifest, "", &body)
}

fn hotel() -> Schema {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    Schema::compile_proto(&[protos.join("hotel.proto")], &[protos]).unwrap()
}

fn run(wasm: &[u8], cases: &str) -> Result<Report, ToolError> {
    let module = Module::load(wasm)?;
    let cases = Cases::parse(cases)?;
    test(module.policy(), &hotel(), &cases)
}

/// A file with these cases, each of them JSON without its method, which is `Reserve`.
fn file(head: &str, cases: &[&str]) -> String {
    let method = r#""method":"hotel.Reservation/Reserve""#;
    let cases: Vec<_> = cases
        .iter()
        .map(|case| format!("{{{method},{case}}}"))
        .collect();
    format!("{{{head}\"cases\":[{}]}}", cases.join(","))
}

fn differences(report: &Report, at: usize) -> Vec<String> {
    let differences = report.outcomes[at].differences.iter();
    differences
        .map(|d| format!("{}: {} / {}", d.what, d.expected, d.got))
        .collect()
}

fn passed(report: &Report) -> Vec<bool> {
    report
        .outcomes
        .iter()
        .map(|outcome| outcome.passed())
        .collect()
}

#[test]
fn a_verdict_is_compared_with_the_expectation() {
    let cases = [
        r#""name":"a name","request":{"customerName":"Ada"},"expect":{"verdict":"allow"}"#,
        r#""name":"none","request":{},"expect":{"verdict":"deny","status":"PERMISSION_DENIED"}"#,
        r#""name":"wrong","request":{},"expect":{"verdict":"allow"}"#,
        r#""name":"code","request":{},"expect":{"verdict":"deny","status":"INTERNAL","message":"go"}"#,
    ];
    let report = run(&asks_for_names(), &file("", &cases)).unwrap();
    assert_eq!(passed(&report), [true, true, false, false]);
    assert_eq!(report.failed(), 2);
    assert_eq!(
        differences(&report, 2),
        ["verdict: allow / deny PERMISSION_DENIED \"\""]
    );
    assert_eq!(
        differences(&report, 3),
        [
            "status: INTERNAL / PERMISSION_DENIED",
            "message: \"go\" in it / \"\""
        ]
    );
    let text = report.to_string();
    for line in [
        "ok      a name  allow ",
        "FAILED  wrong   deny ",
        "        verdict: expected allow, got deny",
        "4 cases, 2 passed, 2 failed",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let json = report.to_json();
    assert_eq!(json["failed"], 2);
    assert_eq!(json["cases"][1]["status"], "PERMISSION_DENIED");
    assert_eq!(
        json["cases"][3]["differences"][0]["got"],
        "PERMISSION_DENIED"
    );
}

#[test]
fn a_changed_message_is_compared_field_by_field() {
    let cases = [
        r#""name":"a","request":{"hotelIds":["x"],"coupon":"c"},
           "expect":{"verdict":"change","request":{"customerName":"Grace","roomCount":3,"hotelIds":["x"],"coupon":"c"}}"#,
        r#""name":"b","request":{},"expect":{"verdict":"change"}"#,
        r#""name":"c","request":{},"expect":{"verdict":"change","request":{"customerName":"Ada"}}"#,
        r#""name":"d","request":{},"expect":{"verdict":"allow"}"#,
    ];
    let report = run(&renames(3), &file("", &cases)).unwrap();
    assert_eq!(passed(&report), [true, true, false, false]);
    assert_eq!(
        differences(&report, 2),
        [r#"request: {"customerName":"Ada"} / {"customerName":"Grace","roomCount":3}"#]
    );
    assert_eq!(differences(&report, 3), ["verdict: allow / change"]);
    // What the schema doesn't allow is the policy's fault.
    let case = r#""name":"a","request":{},"expect":{"verdict":"fault","message":"\"room_count\": 0x100000000 is no value of type uint32"}"#;
    let report = run(&renames(1 << 32), &file("", &[case])).unwrap();
    assert_eq!(differences(&report, 0), [""; 0]);
    // So is changing without being granted it: the policy isn't set up at all.
    let ungranted = r#""grant":{"capabilities":[]},"#;
    let refused = run(&renames(3), &file(ungranted, &[case])).unwrap_err();
    assert!(matches!(refused, ToolError::Policy(_)), "{refused}");
}

#[test]
fn a_policy_that_failed_is_replaced_and_its_shared_state_stays() {
    let allow = r#""name":"a","request":{},"repeat":2,"expect":{"verdict":"allow"}"#;
    let fault = r#""name":"b","request":{},"expect":{"verdict":"fault","message":"unreachable"}"#;
    let report = run(&traps_at_the_third(), &file("", &[allow, fault, allow])).unwrap();
    assert_eq!(passed(&report), [true; 3]);
    let thrice = allow.replace("2", "3");
    let report = run(&traps_at_the_third(), &file("", &[&thrice])).unwrap();
    assert_eq!(passed(&report), [false]);
    let fresh = run(&traps_at_the_third(), &file(r#""fresh":true,"#, &[&thrice])).unwrap();
    assert_eq!(passed(&fresh), [true]);

    // Counts calls in shared state, and traps at the second.
    let import = r#"(import "tollgate" "state_add" (func $add (param i32 i32 i64) (result i64)))"#;
    let count = "(call $add (i32.const 1024) (i32.const 5) (i64.const 1))";
    let body = format!(
        "(if (i64.eq {count} (i64.const 2)) (then (unreachable)))
        {}",
        denies_unless("(i32.eq (global.get $calls) (i32.const 1))")
    );
    let counts = policy(&manifest("", r#","capabilities":["state"]"#), import, &body);
    let once = allow.replace("2", "1");
    let report = run(&counts, &file("", &[&once, fault, &once])).unwrap();
    assert_eq!(passed(&report), [true; 3]);
}

#[test]
fn the_clock_goes_on_when_a_case_says_so() {
    let import = r#"(import "tollgate" "now_ms" (func $now (result i64)))"#;
    let late = denies_unless("(i64.gt_u (call $now) (i64.const 1500))");
    let wasm = policy(&manifest("", r#","capabilities":["clock"]"#), import, &late);
    let deny = r#""name":"a","request":{},"repeat":3,"expect":{"verdict":"deny"}"#;
    let allow = r#""name":"b","request":{},"advance_ms":501,"expect":{"verdict":"allow"}"#;
    let report = run(&wasm, &file(r#""time_ms":1000,"#, &[deny, allow])).unwrap();
    assert_eq!(passed(&report), [true, true]);
}

#[test]
fn grants_narrow_what_is_shown_and_asked() {
    let named = r#""name":"a","request":{"customerName":"Ada"},"#;
    let expect = |verdict: &str| format!(r#"{named}"expect":{{"verdict":"{verdict}"}}"#);
    for (grant, verdict) in [
        ("{}", "allow"),
        (r#"{"fields":["customer_name"]}"#, "allow"),
        (r#"{"fields":[]}"#, "deny"),
        (r#"{"hooks":["reply"]}"#, "unasked"),
    ] {
        let head = format!(r#""grant":{grant},"#);
        let report = run(&asks_for_names(), &file(&head, &[&expect(verdict)])).unwrap();
        assert_eq!(differences(&report, 0), [""; 0], "{grant}");
    }
    for (grant, words) in [
        (
            r#"{"fields":["name"]}"#,
            "grant.fields: the manifest declares no field \"name\"",
        ),
        (
            r#"{"hooks":["tick"]}"#,
            "grant.hooks: the manifest declares no hook \"tick\"",
        ),
        (r#"{"capabilities":["flight"]}"#, "grant.capabilities: "),
        (r#"{"methods":[]}"#, "unknown field `methods`"),
    ] {
        let head = format!(r#""grant":{grant},"#);
        let refused = run(&asks_for_names(), &file(&head, &[&expect("allow")])).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn a_case_that_the_schema_does_not_know_is_named() {
    let allow = r#""expect":{"verdict":"allow"}"#;
    let one = |case: &str| format!(r#"{{"cases":[{{"name":"a",{case}}}]}}"#);
    let reserve = r#""method":"hotel.Reservation/Reserve""#;
    for (case, words) in [
        (
            format!(r#""method":"hotel.Motel/Reserve","request":{{}},{allow}"#),
            "hotel.Motel",
        ),
        (
            format!(r#""method":"hotel.Reservation/Reverse","request":{{}},{allow}"#),
            "service hotel.Reservation has no method \"Reverse\"; it has Reserve, CheckAvailability",
        ),
        (
            format!(r#"{reserve},"request":{{"customer":1}},{allow}"#),
            "request: ",
        ),
        (
            format!(r#"{reserve},"reply":{{"reservationId":"x"}},{allow}"#),
            "reply: ",
        ),
        (
            format!(
                r#"{reserve},"request":{{}},"expect":{{"verdict":"change","request":{{"roomCount":-1}}}}"#
            ),
            "expect.request: ",
        ),
    ] {
        let refused = run(&asks_for_names(), &one(&case)).unwrap_err().to_string();
        assert!(refused.starts_with("case 1 (\"a\"): "), "{refused}");
        assert!(refused.contains(words), "{refused}");
    }
    // A method that the policy doesn't care about is no mistake, but nobody is asked.
    let other = one(&format!(
        r#""method":"hotel.Echo/Echo","request":{{}},{allow}"#
    ));
    let report = run(&asks_for_names(), &other).unwrap();
    assert_eq!(differences(&report, 0), ["verdict: allow / unasked"]);
    // A field that the manifest declares and the schema lacks is the policy's mistake.
    let misfit = policy(&manifest(r#","fields":["name"]"#, ""), "", "");
    let refused = run(
        &misfit,
        &one(&format!(r#"{reserve},"request":{{}},{allow}"#)),
    );
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("the policy doesn't fit hotel.Reservation/Reserve: field \"name\""),
        "{refused}"
    );
}

#[test]
fn a_loop_ends_with_its_fuel_which_is_the_same_everywhere() {
    let spins = policy(&manifest("", ""), "", "(loop $forever (br $forever))");
    let case = r#""name":"a","request":{},"expect":{"verdict":"fault"}"#;
    let fuel = |head: &str| run(&spins, &file(head, &[case])).unwrap().outcomes[0].fuel;
    assert_eq!(fuel(""), 350_000);
    assert_eq!(fuel(r#""cpu_us":10,"#), 35_000);
    let report = run(&spins, &file("", &[case])).unwrap();
    assert!(matches!(&report.outcomes[0].seen, Seen::Fault(_)));
}

#[test]
fn a_bench_tells_fuel_exactly_and_time_as_a_spread() {
    let module = Module::load(&asks_for_names()).unwrap();
    let without = bench(&module, &Setting::default()).unwrap();
    let names: Vec<_> = without.measured.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "hotel.Reservation/Reserve request, all absent",
            "hotel.Reservation/Reserve reply, all absent"
        ]
    );
    let cases = [
        r#""name":"long","request":{"customerName":"Ada"},"expect":{"verdict":"allow"}"#,
        r#""name":"short","request":{},"expect":{"verdict":"deny"}"#,
    ];
    let cases = Cases::parse(&file("", &cases)).unwrap();
    let with = bench_cases(&module, &hotel(), &cases).unwrap();
    assert_eq!(with.memory_bytes, 2 << 16);
    for measured in with.measured.iter().chain(&without.measured) {
        let times = measured.times.as_ref().unwrap();
        for times in times {
            assert!(times.min_ns > 0.0 && times.min_ns <= times.median_ns);
            assert!(times.median_ns <= times.max_ns);
        }
        assert!((1..350_000).contains(&measured.fuel));
    }
    let json = with.to_json();
    assert_eq!(json["cpu_bound_us"], 100.0);
    assert_eq!(json["calls"][0]["name"], "long");
    assert!(with.to_string().contains("100 us per call, 350000 fuel"));

    // How a policy fails is a result, too.
    let module = Module::load(&traps_at_the_third()).unwrap();
    let fails = bench(&module, &Setting::default()).unwrap();
    assert!(
        fails.measured[0]
            .times
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("unreachable")
    );
}

#[test]
fn an_inspection_tells_what_the_manifest_declares() {
    let module = Module::load(&renames(3)).unwrap();
    let text = module.to_string();
    for line in [
        "policy        p \"1\"",
        "hooks         request, reply",
        "changes in the request: customer_name, room_count",
        "capabilities  log, metrics, change",
        "imports       none",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let json = module.to_json();
    assert_eq!(json["methods"][0]["changes"][1], "room_count");
    assert!(json["code_bytes"].as_u64() > Some(0));
    let refused = Module::load(b"\0asm").unwrap_err();
    assert!(matches!(refused, ToolError::Policy(_)));
}
