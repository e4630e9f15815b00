//! Filters for Envoy, written as text: their input, their rights, and the handling of misbehaving
//! ones.

use std::time::Duration;

use tollgate_policy_host::compat::{Abi, Body, Description, describe, detect};
use tollgate_policy_host::{
    Capabilities, CompatCall, CompatChange, CompatInstance, CompatVerdict, Fault, Hook, KeyChange,
    LoadError, Setup, SharedState, Shown, StateLimits, TenantLimits, limits,
};

use crate::guests::HOST;

/// A filter with the given callbacks, as text. `$log` logs one byte; memory below 64 KiB is the
/// filter's own, above is its allocator's.
fn module(imports: &str, callbacks: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "env" "proxy_log" (func $proxy_log (param i32 i32 i32) (result i32)))
            {imports}
            (memory (export "memory") 2)
            (global $next (mut i32) (i32.const 65536))
            (func (export "proxy_abi_version_0_2_1"))
            (func (export "proxy_on_memory_allocate") (param i32) (result i32)
                global.get $next
                (global.set $next (i32.add (global.get $next) (i32.and (i32.add (local.get 0) (i32.const 7)) (i32.const -8)))))
            (func $log (param i32)
                (i32.store8 (i32.const 0) (local.get 0))
                (drop (call $proxy_log (i32.const 2) (i32.const 0) (i32.const 1))))
            (func $say (param i32 i32)
                (drop (call $proxy_log (i32.const 2) (local.get 0) (local.get 1))))
            (func $is (param i32 i32) (if (i32.ne (local.get 0) (local.get 1)) (then unreachable)))
            {callbacks}
        )"#
    );
    wat::parse_str(text).unwrap()
}

fn description() -> Description {
    Description {
        abi: None,
        name: "filter".to_owned(),
        hooks: vec!["request".to_owned(), "reply".to_owned(), "tick".to_owned()],
        methods: Vec::new(),
        fields: Vec::new(),
        reply_fields: Vec::new(),
        metadata: Vec::new(),
        reply_metadata: Vec::new(),
        metadata_changes: vec!["x-set".to_owned(), "x-gone".to_owned()],
        reply_metadata_changes: vec!["x-set".to_owned()],
        body: Body::Change,
        reply_body: Body::Read,
        capabilities: Vec::new(),
        root_id: None,
        entrypoint: None,
    }
}

fn described(wasm: &[u8], description: &Description) -> Vec<u8> {
    describe(wasm, &description.to_manifest(wasm).unwrap()).unwrap()
}

fn start(imports: &str, callbacks: &str) -> CompatInstance {
    start_with(imports, callbacks, &description(), b"").unwrap()
}

fn start_with(
    imports: &str,
    callbacks: &str,
    description: &Description,
    config: &[u8],
) -> Result<CompatInstance, LoadError> {
    let policy = HOST.load(&described(&module(imports, callbacks), description))?;
    let limits = TenantLimits::default();
    policy.instantiate_compat(&Setup {
        granted: Capabilities::ALL,
        config: Some(config),
        ..Setup::new(&limits)
    })
}

const CALL: CompatCall<'static> = CompatCall {
    call: 7,
    hook: Hook::Request,
    path: "hotel.Reservation/Reserve",
    metadata: &[("x-user", b"ada"), ("x-gone", b"1")],
    message: Shown::Protobuf(b"\x0a\x03Ada"),
};

const REPLY: CompatCall<'static> = CompatCall {
    hook: Hook::Reply,
    metadata: &[],
    ..CALL
};

fn said(instance: &mut CompatInstance) -> String {
    let (lines, dropped) = instance.take_log();
    assert_eq!(dropped, 0);
    lines
        .into_iter()
        .map(|line| line.text)
        .collect::<Vec<_>>()
        .join(" ")
}

/// All callbacks; each logs a letter.
const LETTERS: &str = r#"
    (func (export "proxy_on_context_create") (param i32 i32) (call $log (i32.const 67)))
    (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (call $log (i32.const 86)) i32.const 1)
    (func (export "proxy_on_configure") (param i32 i32) (result i32) (call $log (i32.const 70)) i32.const 1)
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (call $log (i32.const 104)) i32.const 0)
    (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (call $log (i32.const 98)) i32.const 0)
    (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (call $log (i32.const 114)) i32.const 0)
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (call $log (i32.const 115)) i32.const 0)
    (func (export "proxy_on_done") (param i32) (result i32) (call $log (i32.const 68)) i32.const 1)
    (func (export "proxy_on_log") (param i32) (call $log (i32.const 76)))
    (func (export "proxy_on_delete") (param i32) (call $log (i32.const 88)))
    (func (export "_initialize") (call $log (i32.const 73)))
"#;

#[test]
fn a_call_has_one_context_from_request_to_reply() {
    let mut filter = start("", LETTERS);
    assert_eq!(said(&mut filter), "I C V F");
    assert_eq!(filter.evaluate(&CALL), Ok(CompatVerdict::Allow));
    assert_eq!(said(&mut filter), "C h b");
    assert_eq!(filter.evaluate(&REPLY), Ok(CompatVerdict::Allow));
    assert_eq!(said(&mut filter), "r s D L X");
    // A reply without its request has a context, too.
    assert_eq!(filter.evaluate(&REPLY), Ok(CompatVerdict::Allow));
    assert_eq!(said(&mut filter), "C r s D L X");
    let bare = CompatCall {
        message: Shown::Nothing,
        ..CALL
    };
    assert_eq!(filter.evaluate(&bare), Ok(CompatVerdict::Allow));
    assert_eq!(said(&mut filter), "C h", "no body, no callback");
}

#[test]
fn contexts_whose_reply_never_comes_are_ended_the_oldest_first() {
    let mut filter = start("", LETTERS);
    filter.take_log();
    for call in 0..limits::OPEN_CALLS as u64 {
        filter.evaluate(&CompatCall { call, ..CALL }).unwrap();
        filter.take_log();
    }
    let call = 1 << 40;
    filter.evaluate(&CompatCall { call, ..CALL }).unwrap();
    assert_eq!(said(&mut filter), "D L X C h b");
    // Call 0 is over, call 1 is still open.
    filter.evaluate(&CompatCall { call: 0, ..REPLY }).unwrap();
    assert_eq!(said(&mut filter), "C r s D L X");
    filter.evaluate(&CompatCall { call: 1, ..REPLY }).unwrap();
    assert_eq!(said(&mut filter), "r s D L X");
}

const GET_VALUE: &str = r#"(import "env" "proxy_get_header_map_value" (func $value (param i32 i32 i32 i32 i32) (result i32)))"#;

/// Logs the value of the header at 16, or `?`.
fn says_header(key: &str) -> String {
    format!(
        r#"(data (i32.const 16) "{key}")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (if (call $value (i32.const 0) (i32.const 16) (i32.const {}) (i32.const 4) (i32.const 8))
                (then (call $log (i32.const 63)))
                (else (call $say (i32.load (i32.const 4)) (i32.load (i32.const 8)))))
            i32.const 0)"#,
        key.len()
    )
}

#[test]
fn a_filter_is_shown_a_grpc_call_and_no_more_than_it_was_given() {
    let cases = [
        (":path", "/hotel.Reservation/Reserve"),
        (":method", "POST"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("X-User", "ada"),
        ("authorization", "?"),
    ];
    for (key, value) in cases {
        let mut filter = start(GET_VALUE, &says_header(key));
        filter.evaluate(&CALL).unwrap();
        assert_eq!(said(&mut filter), value, "{key}");
    }
}

const BODY: &str = r#"
    (import "env" "proxy_get_buffer_bytes" (func $get (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_buffer_bytes" (func $set (param i32 i32 i32 i32 i32) (result i32)))"#;

#[test]
fn the_body_is_one_grpc_frame() {
    let callbacks = r#"
        (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
            (call $is (local.get 1) (i32.const 10))
            (call $is (local.get 2) (i32.const 1))
            (call $is (i32.const 0) (call $get (i32.const 0) (i32.const 4) (i32.const 99) (i32.const 4) (i32.const 8)))
            (call $is (i32.load (i32.const 8)) (i32.const 6))
            ;; 5 | 0x0a 0x03 "Ada"
            (call $is (i32.load (i32.load (i32.const 4))) (i32.const 0x41030a05))
            ;; The reply's body isn't there, a buffer 9 never is.
            (call $is (i32.const 1) (call $get (i32.const 1) (i32.const 0) (i32.const 99) (i32.const 4) (i32.const 8)))
            (call $is (i32.const 2) (call $get (i32.const 9) (i32.const 0) (i32.const 99) (i32.const 4) (i32.const 8)))
            i32.const 0)"#;
    assert_eq!(
        start(BODY, callbacks).evaluate(&CALL),
        Ok(CompatVerdict::Allow)
    );
}

/// A filter that replaces the frame's bytes from 4 on with `text`.
fn rewriter(hook: &str, text: &str) -> String {
    let id = u32::from(hook == "response");
    format!(
        r#"(data (i32.const 16) "{text}")
        (func (export "proxy_on_{hook}_body") (param i32 i32 i32) (result i32)
            (call $is (i32.const 0)
                (call $set (i32.const {id}) (i32.const 4) (i32.const 99) (i32.const 16) (i32.const {})))
            i32.const 0)"#,
        text.len() - 2 * text.matches('\\').count()
    )
}

#[test]
fn a_changed_body_must_be_a_frame_and_granted() {
    let mut honest = start(BODY, &rewriter("request", "\\02\\0a\\00"));
    let change = CompatChange {
        metadata: Vec::new(),
        body: Some(b"\x0a\0".to_vec()),
    };
    assert_eq!(honest.evaluate(&CALL), Ok(CompatVerdict::Change(change)));
    let mut broken = start(BODY, &rewriter("request", "redacted"));
    assert!(matches!(broken.evaluate(&CALL), Err(Fault::BadAnswer(_))));
    assert!(broken.is_dead());
    assert_eq!(broken.evaluate(&CALL), Err(Fault::Dead));
    let mut greedy = start(BODY, &rewriter("response", "\\02\\0a\\00"));
    let text = greedy.evaluate(&REPLY).unwrap_err().to_string();
    assert_eq!(
        text,
        "the policy changes the reply's body, which it isn't granted"
    );
}

const REPLACE: &str = r#"(import "env" "proxy_replace_header_map_value" (func $replace (param i32 i32 i32 i32 i32) (result i32)))
       (import "env" "proxy_remove_header_map_value" (func $remove (param i32 i32 i32) (result i32)))"#;

#[test]
fn changed_headers_are_changed_metadata_if_granted() {
    let callbacks = r#"
        (data (i32.const 16) "x-gonex-setnew")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $is (i32.const 0) (call $remove (i32.const 0) (i32.const 16) (i32.const 6)))
            (call $is (i32.const 0)
                (call $replace (i32.const 0) (i32.const 22) (i32.const 5) (i32.const 27) (i32.const 3)))
            ;; The reply's headers can't be changed now.
            (call $is (i32.const 2) (call $remove (i32.const 2) (i32.const 16) (i32.const 6)))
            i32.const 0)"#;
    let change = |key: &str, values: &[&[u8]]| KeyChange {
        key: key.to_owned(),
        values: values.iter().map(|value| value.to_vec()).collect(),
    };
    let expected = CompatChange {
        metadata: vec![change("x-gone", &[]), change("x-set", &[b"new"])],
        body: None,
    };
    let verdict = start(REPLACE, callbacks).evaluate(&CALL);
    assert_eq!(verdict, Ok(CompatVerdict::Change(expected)));
    let less = Description {
        metadata_changes: vec!["x-set".to_owned()],
        ..description()
    };
    let mut filter = start_with(REPLACE, callbacks, &less, b"").unwrap();
    let text = filter.evaluate(&CALL).unwrap_err().to_string();
    assert_eq!(
        text,
        "the policy changes the header \"x-gone\", which it isn't granted"
    );
}

#[test]
fn reserved_keys_are_nobodys_to_change_not_even_of_one_that_may_change_all() {
    let any = Description {
        metadata_changes: vec!["*".to_owned()],
        ..description()
    };
    let verdict = |key: &str, how: &str| {
        let callbacks = format!(
            r#"(data (i32.const 16) "{key}")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (call $is (i32.const 0) {how})
                i32.const 0)"#
        );
        let mut filter = start_with(REPLACE, &callbacks, &any, b"").unwrap();
        filter.evaluate(&CALL).map_err(|fault| fault.to_string())
    };
    let len = 13;
    let set = format!(
        "(call $replace (i32.const 0) (i32.const 16) (i32.const {len}) (i32.const 16) (i32.const {len}))"
    );
    let remove = format!("(call $remove (i32.const 0) (i32.const 16) (i32.const {len}))");
    for how in [&set, &remove] {
        assert!(verdict("x-your-header", how).is_ok());
        for key in ["tollgate-next", "grpc-timeouts", "Tollgate-Next"] {
            let shown = key.to_lowercase();
            let text = format!("the policy changes the header \"{shown}\", which it isn't granted");
            assert_eq!(verdict(key, how), Err(text));
        }
    }
}

const RESPOND: &str = r#"(import "env" "proxy_send_local_response" (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
       (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))"#;

fn deny(code: u32, message: &str) -> Result<CompatVerdict, Fault> {
    Ok(CompatVerdict::Deny {
        code,
        message: message.to_owned(),
    })
}

#[test]
fn a_local_response_denies_and_ends_the_call() {
    let callbacks = LETTERS.replace("(call $log (i32.const 104)) i32.const 0", r#"
        (drop (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 16) (i32.const 6)
            (i32.const 0) (i32.const 0) (i32.const -1)))
        i32.const 1"#);
    let mut filter = start(
        RESPOND,
        &format!("{callbacks} (data (i32.const 16) \"go away\")"),
    );
    filter.take_log();
    assert_eq!(filter.evaluate(&CALL), deny(7, "go awa"));
    assert_eq!(
        said(&mut filter),
        "C D L X",
        "the body isn't shown any more"
    );
}

#[test]
fn a_pause_that_nobody_ends_denies() {
    let with = |body: &str| {
        let callbacks = LETTERS.replace("(call $log (i32.const 98)) i32.const 0", body);
        start(RESPOND, &callbacks).evaluate(&CALL)
    };
    let text = "the filter paused the call, and nothing here would resume it";
    assert_eq!(with("i32.const 1"), deny(14, text));
    let resumed = with("(call $is (i32.const 0) (call $continue (i32.const 0))) i32.const 1");
    assert_eq!(resumed, Ok(CompatVerdict::Allow));
    let headers = LETTERS.replace("(call $log (i32.const 104)) i32.const 0", "i32.const 1");
    assert_eq!(
        start(RESPOND, &headers).evaluate(&CALL),
        Ok(CompatVerdict::Allow),
        "the body's callback decides after the headers'"
    );
}

#[test]
fn calls_to_elsewhere_are_refused() {
    let imports = r#"(import "env" "proxy_http_call"
        (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))"#;
    let zeros = "(i32.const 0)".repeat(10);
    let callbacks = format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $is (i32.const 10) (call $http {zeros})) i32.const 0)"#
    );
    assert_eq!(
        start(imports, &callbacks).evaluate(&CALL),
        Ok(CompatVerdict::Allow)
    );
}

#[test]
fn addresses_outside_of_memory_are_answered_and_change_nothing() {
    let imports = [GET_VALUE, REPLACE, BODY, r#"
        (import "env" "proxy_get_shared_data" (func $shared (param i32 i32 i32 i32 i32) (result i32)))
        (import "env" "proxy_get_property" (func $property (param i32 i32 i32 i32) (result i32)))
        (import "env" "proxy_get_log_level" (func $level (param i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))"#].concat();
    let out = "(i32.const -4)";
    let callbacks = format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $is (i32.const 6) (call $proxy_log (i32.const 2) {out} (i32.const 8)))
            (call $is (i32.const 6) (call $value (i32.const 0) {out} (i32.const 8) (i32.const 4) (i32.const 8)))
            (call $is (i32.const 6) (call $replace (i32.const 0) (i32.const 0) (i32.const 1) {out} (i32.const 8)))
            (call $is (i32.const 6) (call $remove (i32.const 0) {out} (i32.const 8)))
            (call $is (i32.const 6) (call $get (i32.const 7) (i32.const 0) (i32.const 9) {out} (i32.const 8)))
            (call $is (i32.const 6) (call $shared {out} (i32.const 8) (i32.const 4) (i32.const 8) (i32.const 12)))
            (call $is (i32.const 6) (call $property {out} (i32.const 8) (i32.const 4) (i32.const 8)))
            (call $is (i32.const 6) (call $level (i32.const 131069)))
            (call $is (i32.const 21) (call $write (i32.const 1) {out} (i32.const 1) (i32.const 8)))
            i32.const 0)"#
    );
    assert_eq!(
        start(&imports, &callbacks).evaluate(&CALL),
        Ok(CompatVerdict::Allow)
    );
}

#[test]
fn an_allocator_that_lies_is_a_fault_and_one_that_asks_for_more_gets_none() {
    let lying = wat::parse_str(liar()).unwrap();
    let policy = HOST.load(&described(&lying, &description())).unwrap();
    let limits = TenantLimits::default();
    let setup = Setup {
        granted: Capabilities::ALL,
        ..Setup::new(&limits)
    };
    let mut filter = policy.instantiate_compat(&setup).unwrap();
    assert!(matches!(filter.evaluate(&CALL), Err(Fault::Trap(text)) if text.contains("allocator")));
}

/// A filter with an allocator that requests memory itself, and then returns an address outside
/// memory.
fn liar() -> String {
    let callbacks = says_header(":path");
    format!(
        r#"(module
            (import "env" "proxy_log" (func $proxy_log (param i32 i32 i32) (result i32)))
            {GET_VALUE}
            (memory (export "memory") 2)
            (func (export "proxy_abi_version_0_2_0"))
            (func (export "malloc") (param i32) (result i32)
                ;; Asked by the host's own question, it gets an answer and no memory.
                (if (i32.ne (i32.const 10)
                        (call $value (i32.const 0) (i32.const 16) (i32.const 5) (i32.const 4) (i32.const 8)))
                    (then unreachable))
                i32.const -16)
            (func $log (param i32))
            (func $say (param i32 i32))
            {callbacks})"#
    )
}

#[test]
fn loops_and_expensive_calls_meet_the_budget() {
    let headers = |body: &str| {
        format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {body} i32.const 0)"#
        )
    };
    let endless = Fault::OutOfFuel {
        fuel: limits::FUEL_PER_CALL,
    };
    let mut filter = start("", &headers("(loop br 0)"));
    assert_eq!(filter.evaluate(&CALL), Err(endless.clone()));
    assert_eq!(filter.fuel_used(), limits::FUEL_PER_CALL);
    let calls = headers(
        "(loop (drop (call $value (i32.const 0) (i32.const 16) (i32.const 5) (i32.const 4) (i32.const 8))) br 0)",
    );
    assert_eq!(start(GET_VALUE, &calls).evaluate(&CALL), Err(endless));
    let mut traps = start("", &headers("unreachable"));
    assert!(matches!(traps.evaluate(&CALL), Err(Fault::Trap(_))));
    assert_eq!(traps.evaluate(&CALL), Err(Fault::Dead));
}

#[test]
fn work_of_the_host_is_charged_before_any_callback() {
    let body = vec![0; limits::COMPAT_BODY_BYTES];
    let call = CompatCall {
        message: Shown::Protobuf(&body),
        ..CALL
    };
    let mut filter = start("", LETTERS);
    filter.take_log();
    assert!(matches!(
        filter.evaluate(&call),
        Err(Fault::OutOfFuel { .. })
    ));
    assert_eq!(said(&mut filter), "");
}

const SHARED: &str = r#"
    (import "env" "proxy_get_shared_data" (func $get (param i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_shared_data" (func $set (param i32 i32 i32 i32 i32) (result i32)))"#;

#[test]
fn shared_data_is_swapped_only_if_it_is_what_was_seen() {
    let callbacks = r#"
        (data (i32.const 16) "keyonetwo")
        (func $put (param i32 i32 i32)
            (call $is (local.get 2)
                (call $set (i32.const 16) (i32.const 3) (local.get 0) (i32.const 3) (local.get 1))))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $is (i32.const 1)
                (call $get (i32.const 16) (i32.const 3) (i32.const 4) (i32.const 8) (i32.const 12)))
            (call $put (i32.const 19) (i32.const 0) (i32.const 0))
            (call $is (i32.const 0)
                (call $get (i32.const 16) (i32.const 3) (i32.const 4) (i32.const 8) (i32.const 12)))
            (call $say (i32.load (i32.const 4)) (i32.load (i32.const 8)))
            (call $put (i32.const 22) (i32.load (i32.const 12)) (i32.const 0))
            (call $put (i32.const 19) (i32.load (i32.const 12)) (i32.const 8))
            (drop (call $get (i32.const 16) (i32.const 3) (i32.const 4) (i32.const 8) (i32.const 12)))
            (call $say (i32.load (i32.const 4)) (i32.load (i32.const 8)))
            i32.const 0)"#;
    let policy = HOST
        .load(&described(&module(SHARED, callbacks), &description()))
        .unwrap();
    let (limits, state) = (
        TenantLimits::default(),
        SharedState::new(&StateLimits::default()),
    );
    let setup = Setup {
        granted: Capabilities::ALL,
        state: Some(&state),
        ..Setup::new(&limits)
    };
    let mut filter = policy.instantiate_compat(&setup).unwrap();
    filter.evaluate(&CALL).unwrap();
    assert_eq!(said(&mut filter), "one two");
    assert_eq!(state.get(b"key").unwrap()[4..], *b"two");
}

/// Envoy answers all of these with OK: the SDK ends the instance at anything else.
#[test]
fn shared_data_takes_every_key_that_envoy_takes() {
    let callbacks = r#"
        (func $put (param i32 i32)
            (call $is (i32.const 0)
                (call $set (i32.const 1024) (local.get 0) (i32.const 16) (i32.const 3) (local.get 1)))
            (call $is (i32.const 0)
                (call $get (i32.const 1024) (local.get 0) (i32.const 4) (i32.const 8) (i32.const 12)))
            (call $is (i32.const 1) (i32.eq (i32.load (i32.const 8)) (i32.const 3))))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $put (i32.const 3) (i32.const 5))
            (call $put (i32.const 0) (i32.const 0))
            (call $put (i32.const 300) (i32.const 0))
            i32.const 0)"#;
    let mut filter = start(SHARED, callbacks);
    filter.evaluate(&CALL).unwrap();
    assert_eq!(said(&mut filter), "");
}

#[test]
fn a_timer_keeps_to_the_limits_and_needs_its_hook() {
    let imports = r#"(import "env" "proxy_set_tick_period_milliseconds" (func $tick (param i32) (result i32)))"#;
    let callbacks = r#"
        (func (export "proxy_on_configure") (param i32 i32) (result i32) (drop (call $tick (i32.const 1))) i32.const 1)
        (func (export "proxy_on_tick") (param i32) (call $log (i32.const 84)))"#;
    let mut filter = start(imports, callbacks);
    let least = Duration::from_millis(limits::TICK_MS_MIN.into());
    assert_eq!(filter.tick_period(), Some(least));
    filter.tick().unwrap();
    assert_eq!(said(&mut filter), "T");
    let without = Description {
        hooks: vec!["request".to_owned()],
        ..description()
    };
    let mut filter = start_with(imports, callbacks, &without, b"").unwrap();
    assert_eq!(filter.tick_period(), None);
    filter.tick().unwrap();
    assert_eq!(said(&mut filter), "");
}

#[test]
fn wasi_is_harmless() {
    let imports = r#"
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "path_open"
            (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ (param i32 i32) (result i32)))"#;
    let callbacks = |random: u32, time: &str, steady: &str| {
        format!(
            r#"(data (i32.const 16) "\20\00\00\00\05\00\00\00")
            (data (i32.const 32) "hello")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (call $is (i32.const {random}) (call $random (i32.const 40) (i32.const 8)))
                (call $is (i32.const 0) (call $clock (i32.const 0) (i64.const 1) (i32.const 48)))
                (call $is (i32.const 1) (i64.eq (i64.load (i32.const 48)) (i64.const {time})))
                (call $is (i32.const 0) (call $clock (i32.const 1) (i64.const 1) (i32.const 48)))
                (call $is (i32.const 1) (i64.eq (i64.load (i32.const 48)) (i64.const {steady})))
                (call $is (i32.const 58) (call $clock (i32.const 2) (i64.const 1) (i32.const 48)))
                (call $is (i32.const 0) (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 8)))
                (call $is (i32.const 8) (call $write (i32.const 3) (i32.const 16) (i32.const 1) (i32.const 8)))
                (call $is (i32.const 8) (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0)
                    (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0)))
                (call $is (i32.const 0) (call $environ (i32.const 0) (i32.const 4)))
                i32.const 0)"#
        )
    };
    let mut filter = start(imports, &callbacks(52, "0", "1"));
    filter.set_time_ms(1234);
    assert_eq!(filter.evaluate(&CALL), Ok(CompatVerdict::Allow));
    assert_eq!(said(&mut filter), "hello");
    let more = Description {
        capabilities: vec!["clock".to_owned(), "random".to_owned()],
        ..description()
    };
    let mut filter = start_with(
        imports,
        &callbacks(0, "1234000000", "1234000000"),
        &more,
        b"",
    )
    .unwrap();
    filter.set_time_ms(1234);
    assert_eq!(filter.evaluate(&CALL), Ok(CompatVerdict::Allow));
    let exit = r#"(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
    let callbacks = r#"(func (export "_initialize") (call $exit (i32.const 3)))"#;
    let refused = start_with(exit, callbacks, &description(), b"").unwrap_err();
    let text = "the policy failed in its set-up (start): the policy trapped: it ended itself with exit status 3";
    assert_eq!(refused.to_string(), text);
}

#[test]
fn a_filter_can_refuse_its_configuration() {
    let callbacks = r#"
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
            (call $log (i32.const 110))
            (i32.lt_u (local.get 1) (i32.const 3)))"#;
    assert!(start_with("", callbacks, &description(), b"ok").is_ok());
    let refused = start_with("", callbacks, &description(), b"bad").unwrap_err();
    assert_eq!(refused, LoadError::ConfigRefused("n".to_owned()));
    let long = vec![b'a'; limits::CONFIG_BYTES + 1];
    let refused = start_with("", callbacks, &description(), &long).unwrap_err();
    assert!(matches!(refused, LoadError::ConfigTooLarge { .. }));
}

#[test]
fn descriptions_are_checked_and_appended_once() {
    let wasm = module("", "");
    assert_eq!(detect(&wasm), Ok(Some(Abi::ProxyWasm)));
    assert_eq!(detect(b"\0asm\x01\0\0\0"), Ok(None));
    let manifest = description().to_manifest(&wasm).unwrap();
    let once = describe(&wasm, &manifest).unwrap();
    assert_eq!(describe(&once, &manifest), Err(LoadError::Described));
    let policy = HOST.load(&once).unwrap();
    assert_eq!(policy.manifest().name(), "filter");
    assert_eq!(policy.manifest().compat().unwrap().abi(), Abi::ProxyWasm);
    assert_eq!(policy.wasm_bytes(), once.len());
    let limits = TenantLimits::default();
    let setup = Setup {
        granted: Capabilities::ALL,
        ..Setup::new(&limits)
    };
    let refused = policy.instantiate(&setup).unwrap_err();
    assert_eq!(refused, LoadError::WrongInterface { abi: "proxy-wasm" });
    let refused =
        |description: Description| description.to_manifest(&wasm).unwrap_err().to_string();
    assert_eq!(
        refused(Description {
            metadata: vec!["X-User".to_owned()],
            ..description()
        }),
        "the manifest lists \"X-User\" in metadata; a key is 1 to 128 of a-z 0-9 - _ . or *"
    );
    assert_eq!(
        refused(Description {
            reply_metadata_changes: vec!["grpc-timeout".to_owned()],
            ..description()
        }),
        "the manifest lists \"grpc-timeout\" in reply_metadata_changes; keys that begin with grpc- or tollgate- are the daemon's own"
    );
    assert_eq!(
        refused(Description {
            metadata: vec!["a".to_owned(); limits::COMPAT_KEYS + 1],
            ..description()
        }),
        format!(
            "the manifest lists {} metadata; {} are allowed",
            limits::COMPAT_KEYS + 1,
            limits::COMPAT_KEYS
        )
    );
    let opa = Description {
        abi: Some(Abi::Opa),
        ..description()
    };
    assert_eq!(
        refused(opa),
        "the manifest has a body, which modules of opa don't have"
    );
    let unknown = description().to_manifest(b"\0asm\x01\0\0\0").unwrap_err();
    assert_eq!(unknown, LoadError::UnknownAbi);
}

#[test]
fn imports_and_sizes_are_those_of_the_interface() {
    let imports = r#"(import "env" "proxy_get_secret" (func (result i32)))"#;
    let refused = HOST
        .load(&described(&module(imports, ""), &description()))
        .unwrap_err();
    let text = "the module imports \"env\" \"proxy_get_secret\", which isn't offered; service/policy-host/PROXY_WASM.md lists what is";
    assert_eq!(refused.to_string(), text);
    let own = r#"(import "tollgate" "log" (func (param i32 i32 i32)))"#;
    let refused = HOST
        .load(&described(&module(own, ""), &description()))
        .unwrap_err();
    assert!(matches!(refused, LoadError::UnknownCompatImport { .. }));
    // A native policy can't import foreign functions, however many it imports.
    let wasm = describe(
        &module("", ""),
        r#"{"abi": 1, "name": "p", "hooks": ["request"], "methods": [{"method": "*"}]}"#,
    );
    let refused = HOST.load(&wasm.unwrap()).unwrap_err();
    assert!(matches!(refused, LoadError::UnknownImport { .. }));
    // Between the two limits of size: only a compat module may have this length.
    let long = format!(
        "(data (i32.const 0) \"{}\")",
        "a".repeat(limits::MODULE_BYTES)
    );
    let long = module(
        "",
        &format!("(memory $m 20) {long}").replace("(memory $m 20) ", ""),
    );
    assert!(HOST.load(&described(&long, &description())).is_ok());
    let longest = describe(&long, "{}").unwrap();
    assert!(matches!(
        HOST.load(&longest),
        Err(LoadError::TooLarge {
            max: limits::MODULE_BYTES,
            ..
        })
    ));
    let far = vec![0; limits::COMPAT_MODULE_BYTES + 1];
    assert!(matches!(
        describe(&far, "{}"),
        Err(LoadError::TooLarge { .. })
    ));
    let policy = HOST
        .load(&described(&module("", ""), &description()))
        .unwrap();
    let limits = TenantLimits {
        compat_memory_bytes: 65_536,
        ..TenantLimits::default()
    };
    let setup = Setup {
        granted: Capabilities::ALL,
        ..Setup::new(&limits)
    };
    let refused = policy.instantiate_compat(&setup).unwrap_err();
    assert_eq!(
        refused,
        LoadError::Memory {
            bytes: 131_072,
            max: 65_536
        }
    );
}

#[test]
fn a_compat_module_may_grow_to_a_memory_of_its_own_limit() {
    let callbacks = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
        (call $is (i32.const {pages}) (memory.size)) i32.const 0)"#;
    let pages = (limits::COMPAT_MEMORY_BYTES >> 16).to_string();
    let mut filter = start("", &callbacks.replace("{pages}", &pages));
    assert_eq!(filter.evaluate(&CALL), Ok(CompatVerdict::Allow));
}

#[test]
fn what_a_compat_module_has_is_counted_before_it_is_compiled() {
    let refused = |imports: &str, callbacks: &str| {
        let wasm = described(&module(imports, callbacks), &description());
        match HOST.load(&wasm).unwrap_err() {
            LoadError::TooComplex { what, max, .. } => (what, max),
            other => panic!("{other}"),
        }
    };
    let done = r#"(import "env" "proxy_done" (func (result i32)))"#;
    let imports = done.repeat(limits::COMPAT_IMPORTS as usize);
    assert_eq!(
        refused(&imports, ""),
        ("imports", limits::COMPAT_IMPORTS.into())
    );
    let functions = "(func)".repeat(limits::COMPAT_FUNCTIONS as usize);
    assert_eq!(
        refused("", &functions),
        ("functions", limits::COMPAT_FUNCTIONS.into())
    );
    let segments = r#"(data (i32.const 0) "")"#.repeat(limits::COMPAT_DATA_SEGMENTS as usize + 1);
    assert_eq!(
        refused("", &segments),
        ("data segments", limits::COMPAT_DATA_SEGMENTS.into())
    );
    let nested = |blocks| {
        format!(
            "(func {} {})",
            "block ".repeat(blocks),
            "end ".repeat(blocks)
        )
    };
    let branch = |targets| format!("(func (br_table {} (i32.const 0)))", "0 ".repeat(targets));
    let (deep, wide) = (limits::COMPAT_NESTING, limits::COMPAT_BRANCH_TARGETS);
    assert_eq!(
        refused("", &nested(deep as usize + 1)),
        ("nested blocks", deep.into())
    );
    assert_eq!(
        refused("", &branch(wide as usize + 2)),
        ("targets in one branch", wide.into())
    );
    let most = nested(deep as usize) + &branch(wide as usize + 1);
    assert!(
        HOST.load(&described(&module("", &most), &description()))
            .is_ok()
    );
    // 290 blocks times 1,000 locals are expensive, and short.
    let dear = format!(
        "(func (local{}) {})",
        " i32".repeat(1000),
        "block end ".repeat(290)
    );
    let costly = dear.repeat(limits::COMPAT_COMPILE_COST as usize / 36_000);
    assert_eq!(
        refused("", &costly),
        ("units of compile cost", limits::COMPAT_COMPILE_COST)
    );
}

#[test]
fn one_write_has_a_limit_of_parts() {
    let imports = r#"(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))"#;
    let callbacks = format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (call $is (i32.const 0) (call $write (i32.const 2) (i32.const 1024) (i32.const {most}) (i32.const 8)))
            (call $is (i32.const 28) (call $write (i32.const 2) (i32.const 1024) (i32.const {more}) (i32.const 8)))
            i32.const 0)"#,
        most = limits::WRITE_VECTORS,
        more = limits::WRITE_VECTORS + 1
    );
    assert_eq!(
        start(imports, &callbacks).evaluate(&CALL),
        Ok(CompatVerdict::Allow)
    );
}
