//! Rules about calls beyond a rate.

use serde_json::{Value, json};
use tollgate_policy_host::{
    Capabilities, Hook, LoadError, PolicyTime, Setup, SharedState, StateLimits, TenantLimits,
    Verdict,
};
use tollgate_policy_tools::{Cases, Module, Seen, test};
use tollgate_shm_abi::status::Code;

use crate::bed::{CALL, compiled, refused, rule, schema};

/// The verdicts about these cases, one after the other, from 1,000 s on.
fn verdicts(rules: &str, cases: &[Value]) -> Vec<Seen> {
    let module = Module::load(&compiled(rules).unwrap().module).unwrap();
    let named = cases.iter().enumerate().map(|(at, case)| {
        let mut case = case.clone();
        case["name"] = json!(at.to_string());
        case["method"] = json!(CALL);
        case["expect"] = json!({ "verdict": "allow" });
        case
    });
    let named: Vec<_> = named.collect();
    let file = json!({ "time_ms": 1_000_000, "cases": named });
    let cases = Cases::parse(&file.to_string()).unwrap();
    let report = test(module.policy(), schema(), &cases).unwrap();
    report.outcomes.into_iter().map(|case| case.seen).collect()
}

fn call(s: &str, advance_ms: u64) -> Value {
    json!({ "request": { "s": s }, "advance_ms": advance_ms })
}

fn passed(verdicts: &[Seen]) -> Vec<bool> {
    let passes = |seen: &Seen| !matches!(seen, Seen::Deny { .. });
    verdicts.iter().map(passes).collect()
}

const FIVE: &str = "rate_limit = { per_second = 5, burst = 2, key = 'request.s' }\n";

#[test]
fn a_rule_acts_on_calls_beyond_its_rate() {
    let calls = [
        call("Ada", 0),
        call("Ada", 0),
        call("Ada", 0),
        call("Bob", 0),
        call("Ada", 199),
        call("Ada", 1),
        call("Ada", 0),
        // Full again, and no fuller.
        call("Ada", 60_000),
        call("Ada", 0),
        call("Ada", 0),
    ];
    let seen = verdicts(&rule(&format!("{FIVE}deny = true")), &calls);
    let expected = [
        true, true, false, true, false, true, false, true, true, false,
    ];
    assert_eq!(passed(&seen), expected);
    let denied = |code, text: &str| Seen::Deny {
        code,
        message: text.to_owned(),
    };
    let usual = "too many calls; try again later (rule r, line 2)";
    assert_eq!(seen[2], denied(Code::RESOURCE_EXHAUSTED, usual));
    let own = "deny = { status = 'UNAVAILABLE', text = { cel = \"'not now, ' + request.s\" } }";
    let seen = verdicts(&rule(&format!("{FIVE}{own}")), &calls);
    let text = "not now, Ada (rule r, line 2)";
    assert_eq!(seen[2], denied(Code::UNAVAILABLE, text));
}

#[test]
fn without_a_key_all_calls_have_one_bucket_and_rules_have_their_own() {
    let limit = "rate_limit = { per_second = 0.5 }\n";
    let one = rule(&format!("{limit}deny = true"));
    let calls = [call("Ada", 0), call("Bob", 1_999), call("Bob", 1)];
    assert_eq!(passed(&verdicts(&one, &calls)), [true, false, true]);
    let other = one.replace("name = \"r\"", "name = \"s\"");
    let both = verdicts(&format!("{one}{other}"), &calls);
    assert_eq!(passed(&both), [true, false, true]);
}

/// Only calls that meet the condition take a token.
#[test]
fn the_condition_comes_first() {
    let rules = rule("when = 'request.b'\nrate_limit = { per_second = 1 }\ndeny = true");
    let call = |b: bool| json!({ "request": { "b": b } });
    let seen = verdicts(&rules, &[true, false, true, false, true].map(call));
    assert_eq!(passed(&seen), [true, true, false, true, false]);
}

#[test]
fn any_action_can_be_for_calls_beyond_a_rate() {
    let rules = rule(&format!("{FIVE}route = 'slow'\npriority = 1"));
    let seen = verdicts(&rules, &[call("Ada", 0), call("Ada", 0), call("Ada", 0)]);
    assert_eq!(seen[..2], [Seen::Allow, Seen::Allow]);
    let Seen::Change(change) = &seen[2] else {
        panic!("{:?}", seen[2])
    };
    assert_eq!(
        (change.priority, change.route.as_deref()),
        (Some(1), Some("slow"))
    );
}

#[test]
fn a_key_that_fails_is_an_error_as_any_other() {
    let limit = "rate_limit = { per_second = 1, key = 'metadata.user' }\n";
    let calls = [
        json!({ "request": {} }),
        json!({ "request": {}, "metadata": { "user": "Ada" } }),
        json!({ "request": {}, "metadata": { "user": "Ada" } }),
    ];
    let denying = verdicts(&rule(&format!("{limit}deny = true")), &calls);
    assert_eq!(passed(&denying), [false, true, false]);
    let reason = "rule r (line 2) can't be decided: metadata \"user\" is missing";
    let expected = Seen::Deny {
        code: Code::RESOURCE_EXHAUSTED,
        message: reason.to_owned(),
    };
    assert_eq!(denying[0], expected);
    let skipping = rule(&format!("{limit}on_error = 'skip'\ndeny = true"));
    assert_eq!(passed(&verdicts(&skipping, &calls)), [true, true, false]);
}

#[test]
fn keys_have_their_own_buckets() {
    let rules = rule("rate_limit = { per_second = 0.001, key = 'request.s' }\ndeny = true");
    let calls: Vec<_> = (0..5_000)
        .flat_map(|key| {
            [
                call(&format!("key {key}"), 0),
                call(&format!("key {key}"), 0),
            ]
        })
        .collect();
    let seen = passed(&verdicts(&rules, &calls));
    let first = seen.chunks(2).filter(|pair| pair[0]).count();
    let second = seen.chunks(2).filter(|pair| pair[1]).count();
    assert_eq!(second, 0, "a key has one call");
    assert!(first >= 4_990, "{first}");
}

/// So many keys that some sets are full: those share a bucket, and the state has room for all.
#[test]
fn more_keys_than_a_set_has_room_for_share_buckets() {
    let rules = rule("rate_limit = { per_second = 0.001, key = 'request.s' }\ndeny = true");
    let calls: Vec<_> = (0..10_000)
        .map(|key| call(&format!("customer-{key:05}"), 0))
        .collect();
    let seen = verdicts(&rules, &calls);
    for seen in &seen {
        if let Seen::Deny { message, .. } = seen {
            assert!(message.starts_with("too many calls"), "{message}");
        }
    }
    // A set has 2.4 keys on average, and of some ten keys it has more than eight.
    let shared = passed(&seen).iter().filter(|passes| !**passes).count();
    assert!((1..200).contains(&shared), "{shared}");
}

#[test]
fn a_faster_rate_is_in_force_at_once() {
    let module = |limit: &str| {
        let rules = rule(&format!("rate_limit = {limit}\ndeny = true"));
        Module::load(&compiled(&rules).unwrap().module).unwrap()
    };
    let (slow, fast) = (
        module("{ per_second = 0.001, burst = 1000 }"),
        module("{ per_second = 100, burst = 10 }"),
    );
    let state = SharedState::new(&StateLimits::default());
    let passes = |module: &Module, monotonic_us: u64| {
        let limits = TenantLimits::default();
        let mut instance = module
            .policy()
            .instantiate(&Setup {
                granted: Capabilities::ALL,
                state: Some(&state),
                ..Setup::new(&limits)
            })
            .unwrap();
        instance.set_time(PolicyTime {
            unix_ms: 0,
            monotonic_us,
        });
        // A view without fields.
        let view = |room: &mut [u8]| {
            room[..8].copy_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0]);
            Ok::<_, LoadError>(8)
        };
        let verdict = instance.evaluate(Hook::Request, 0, 8, view).unwrap();
        !matches!(verdict, Verdict::Deny { .. })
    };
    let begin = 1_000_000_000;
    let first = (0..1_000).filter(|_| passes(&slow, begin)).count();
    assert_eq!((first, passes(&slow, begin)), (1_000, false));
    let passed = (0..20).filter(|_| passes(&fast, begin)).count();
    assert_eq!(passed, 10);
    assert!(passes(&fast, begin + 10_000));
}

#[test]
fn a_module_needs_the_capabilities_of_its_buckets() {
    let module = compiled(&rule(&format!("{FIVE}deny = true")))
        .unwrap()
        .module;
    let text = String::from_utf8_lossy(&module);
    assert!(
        text.contains(r#""capabilities":["clock","state"]"#),
        "{text}"
    );
}

#[test]
fn limits_out_of_range_are_refused() {
    for (limit, expected) in [
        ("5", "rate_limit is a table, not an integer"),
        ("{ burst = 5 }", "rate_limit has no per_second"),
        ("{ per_second = 'x' }", "per_second is a number"),
        (
            "{ per_second = 0 }",
            "per_second is 0; 0.001 to 1000000 are allowed",
        ),
        ("{ per_second = nan }", "per_second is NaN; 0.001 to"),
        ("{ per_second = 2e6 }", "per_second is 2000000; 0.001 to"),
        (
            "{ per_second = 1, burst = 0 }",
            "burst is 0; 1 to 1000000 are allowed",
        ),
        (
            "{ per_second = 1, keys = 5 }",
            "rate_limit has no key \"keys\"; there are per_second, burst, key",
        ),
        (
            "{ per_second = 1, key = 'request.i32' }",
            "the key of a rate limit is a string; this is an int",
        ),
        (
            "{ per_second = 1, key = 'request.nme' }",
            "has no field \"nme\"",
        ),
    ] {
        let refused = refused(&rule(&format!("rate_limit = {limit}\ndeny = true")));
        assert!(refused.contains(expected), "{limit}: {refused}");
    }
    let nothing = refused(&rule("rate_limit = { per_second = 1 }"));
    assert!(nothing.contains("the rule does nothing"), "{nothing}");
}
