//! Policies in a separate process: they evaluate as in the daemon, and a process under an
//! attacker's control achieves nothing.

use std::cell::RefCell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tollgate_policy_host::isolated::{
    self, Answer, Channel, InstanceHandle, InstanceSetup, InstantiateError, Order, Outcome,
    PostError, Process, ProcessConfig, Ticket,
};
use tollgate_policy_host::{
    Capabilities, EvaluateError, Fault, Hook, LogLevel, Policy, PolicyTime, TenantLimits, Verdict,
    limits,
};
use tollgate_shm_abi::wait::now_ns;

use crate::guests::{executable, guest, limits, setup, view, write};
use crate::wat::{ALLOW, Parts, buffer};
use crate::worker::{PROGRAM, check_killed};

const FAKE: &str = env!("CARGO_BIN_EXE_fake-process");

/// A process, its channel, and a runtime's use of them, with waiting.
pub(crate) struct Apart {
    pub(crate) process: Process,
    pub(crate) channel: Channel,
}

fn config() -> ProcessConfig {
    ProcessConfig {
        program: PathBuf::from(PROGRAM),
        ..ProcessConfig::default()
    }
}

/// A policy's default instance, with a budget that an overloaded machine keeps.
fn instance_setup<'a>(policy: &'a Policy, limits: &'a TenantLimits) -> InstanceSetup<'a> {
    InstanceSetup {
        policy,
        limits,
        config: None,
        granted: Capabilities::ALL,
        state: "t",
        fresh: false,
    }
}

fn order(instance: &InstanceHandle) -> Order<'_> {
    Order {
        instance,
        now_ns: now_ns(),
        time: PolicyTime {
            unix_ms: 12_345,
            monotonic_us: 678,
        },
        budget_ns: 10_000_000_000,
        fuel_per_call: 0,
    }
}

impl Apart {
    fn start(config: &ProcessConfig) -> Apart {
        let (process, channel) = Process::start(config).unwrap();
        Apart { process, channel }
    }

    fn instance(&self, policy: &Policy) -> InstanceHandle {
        self.process
            .instantiate(&instance_setup(policy, &limits()))
            .unwrap()
    }

    fn post(
        &mut self,
        order: Order<'_>,
        policy: &Policy,
        hook: Hook,
        views: &[&[u8]],
    ) -> Result<Ticket, PostError> {
        let bytes = views
            .iter()
            .map(|view| view.len().next_multiple_of(8))
            .sum();
        let mut evaluation = self
            .channel
            .begin(order, policy, hook, views.len(), bytes)?;
        for view in views {
            evaluation.push(0, view.len(), write(view)).unwrap();
        }
        let ticket = evaluation.post()?;
        self.channel.flush();
        Ok(ticket)
    }

    /// The next answer, for which the test waits.
    fn answer(&mut self) -> Answer {
        let began = Instant::now();
        loop {
            self.channel.flush();
            if let Some(answer) = self.channel.take(now_ns()) {
                return answer;
            }
            self.channel.look_after();
            self.channel.expire(now_ns());
            assert!(began.elapsed() < Duration::from_secs(30), "no answer");
            std::thread::yield_now();
        }
    }

    fn ask(&mut self, instance: &InstanceHandle, policy: &Policy, views: &[&[u8]]) -> Outcome {
        let ticket = self
            .post(order(instance), policy, Hook::Request, views)
            .unwrap();
        let answer = self.answer();
        assert_eq!((answer.ticket, answer.instance), (ticket, instance.id()));
        answer.outcome
    }
}

thread_local! {
    /// One process per thread that tests: it ends with that thread.
    static SHARED: RefCell<Apart> = RefCell::new(Apart::start(&config()));
}

/// A process's verdict about one request to a module; a fault is in the process's words.
pub(crate) fn evaluate_isolated(parts: &Parts, hook: Hook, view: &[u8]) -> Result<Verdict, String> {
    let policy = parts.load().unwrap();
    SHARED.with_borrow_mut(|shared| {
        let instance = shared.instance(&policy);
        shared
            .post(order(&instance), &policy, hook, &[view])
            .unwrap();
        let outcome = shared.answer().outcome;
        drop(instance);
        shared.channel.flush();
        match outcome {
            Outcome::Evaluated(verdicts) => Ok(verdicts.into_iter().next().unwrap()),
            Outcome::Failed(why) => Err(why),
            other => panic!("{other:?}"),
        }
    })
}

fn evaluate_here(
    policy: &Policy,
    config: Option<&[u8]>,
    views: &[&[u8]],
) -> Result<Vec<Verdict>, Fault> {
    let mut instance = policy.instantiate(&setup(&limits(), config)).unwrap();
    let bytes = views
        .iter()
        .map(|view| view.len().next_multiple_of(8))
        .sum();
    let mut batch = instance.batch(Hook::Request, views.len(), bytes).unwrap();
    for view in views {
        batch.push(0, view.len(), write(view)).unwrap();
    }
    let mut verdicts = Vec::new();
    batch
        .evaluate(|_, verdict| verdicts.push(verdict))
        .map(|()| verdicts)
}

#[test]
fn a_real_policy_evaluates_batches_in_a_process_as_it_does_here() {
    let policy = guest("hotel_acl");
    let list: &[u8] = br#"{"blocked": ["Mallory", "Eve"]}"#;
    let mut isolated = Apart::start(&config());
    let instance = isolated.process.instantiate(&InstanceSetup {
        config: Some(list),
        ..instance_setup(&policy, &limits())
    });
    let instance = instance.unwrap();
    let names = ["Ada", "Mallory", "Eve", "", "Grace", "eve", "Mallory", "Z"];
    for count in 1..=names.len() {
        let views: Vec<Vec<u8>> = names[..count].iter().map(|name| view(&[name])).collect();
        let views: Vec<&[u8]> = views.iter().map(Vec::as_slice).collect();
        let here = evaluate_here(&policy, Some(list), &views).unwrap();
        assert_eq!(
            isolated.ask(&instance, &policy, &views),
            Outcome::Evaluated(here)
        );
    }
}

#[test]
fn a_bad_configuration_is_refused_in_the_same_words() {
    let policy = guest("hotel_acl");
    let isolated = Apart::start(&config());
    let lists = [&b"nonsense"[..], b"[1]"];
    for list in lists {
        let here = policy
            .instantiate(&setup(&limits(), Some(list)))
            .unwrap_err();
        let refused = isolated.process.instantiate(&InstanceSetup {
            config: Some(list),
            ..instance_setup(&policy, &limits())
        });
        assert_eq!(
            refused.unwrap_err(),
            InstantiateError::Refused(here.to_string())
        );
    }
    assert!(isolated.process.ended().is_none());
}

#[test]
fn a_capability_that_is_not_granted_is_refused_there_too() {
    let manifest = r#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"*"}],"capabilities":["clock"]}"#;
    let parts = Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        ..Parts::default()
    };
    let isolated = Apart::start(&config());
    let refused = isolated.process.instantiate(&InstanceSetup {
        granted: Capabilities::default(),
        ..instance_setup(&parts.load().unwrap(), &limits())
    });
    let text = "the policy needs capabilities that aren't granted: clock";
    assert_eq!(
        refused.unwrap_err(),
        InstantiateError::Refused(text.to_owned())
    );
}

#[test]
fn a_fault_ends_its_instance_and_no_other() {
    let trap = Parts::with_request("unreachable").load().unwrap();
    let endless = Parts::with_request("(loop br 0) unreachable")
        .load()
        .unwrap();
    let allow = Parts::default().load().unwrap();
    let mut isolated = Apart::start(&config());
    let instances = [&trap, &endless, &allow].map(|policy| isolated.instance(policy));
    let words = [
        (
            &trap,
            &instances[0],
            "the policy trapped: wasm `unreachable` instruction executed",
        ),
        (
            &endless,
            &instances[1],
            "the policy exceeded its budget of 350000 units (policies.cpu_us or --cpu-us of the attachment sets the budget of an evaluation)",
        ),
    ];
    for (policy, instance, text) in words {
        assert_eq!(
            isolated.ask(instance, policy, &[&[0; 8]]),
            Outcome::Failed(text.to_owned())
        );
        let dead = Fault::Dead.to_string();
        assert_eq!(
            isolated.ask(instance, policy, &[&[0; 8]]),
            Outcome::Failed(dead)
        );
    }
    let allowed = Outcome::Evaluated(vec![Verdict::Allow]);
    assert_eq!(isolated.ask(&instances[2], &allow, &[&[0; 8]]), allowed);
}

const IMPORTS: &str = r#"(import "tollgate" "log" (func $log (param i32 i32 i32)))
  (import "tollgate" "state_add" (func $add (param i32 i32 i64) (result i64)))
  (import "tollgate" "now_ms" (func $now (result i64)))
  (import "tollgate" "monotonic_us" (func $monotonic (result i64)))"#;

/// A policy that denies with a status that it counts in its memory, in the shared state or on its
/// clock, and that logs and ticks.
fn counter(state_version: u32) -> Policy {
    let manifest = format!(
        r#"{{"abi":1,"name":"t","hooks":["request","tick"],"tick_ms":100,"methods":[{{"method":"*"}}],
           "capabilities":["state","clock"],"state":{{"version":{state_version}}}}}"#
    );
    let rest = r#"
      (global $n (mut i32) (i32.const 0))
      (data (i32.const 4096) "key") (data (i32.const 4100) "a line")
      (func $inc (global.set $n (i32.add (global.get $n) (i32.const 1))))
      (func (export "tollgate_tick") (result i32) (call $inc) (i32.const 0))
      (func (export "tollgate_save") (result i64)
        (i32.store (i32.const 4200) (global.get $n)) (i64.const 0x400001068))
      (func (export "tollgate_restore") (param i32 i32) (result i32)
        (if (i32.eq (local.get 0) (i32.const 13)) (then unreachable))
        (global.set $n (i32.load (i32.const 1024))) (i32.const 0))"#;
    let parts = Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        imports: IMPORTS,
        rest: rest.to_owned(),
        ..Parts::with_request(
            r#"(call $inc)
               (call $log (i32.const 3) (i32.const 4100) (i32.const 6))
               (i32.store (i32.const 1036) (i32.const 2))
               (i32.store (i32.const 1040) (i32.add (global.get $n)
                  (i32.add (i32.wrap_i64 (call $add (i32.const 4096) (i32.const 3) (i64.const 1)))
                           (i32.eq (i32.wrap_i64 (i64.add (call $now) (call $monotonic))) (i32.const 13023)))))
               i32.const 0"#,
        )
    };
    parts.load().unwrap()
}

fn code(outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Evaluated(verdicts) => match verdicts[..] {
            [Verdict::Deny { code, .. }] => code,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_shared_state_clock_and_log_are_as_here() {
    let policy = counter(1);
    let mut isolated = Apart::start(&config());
    let (one, two) = (isolated.instance(&policy), isolated.instance(&policy));
    // The instance's calls, plus the calls of both, plus one for the right time.
    let codes =
        [&one, &one, &two].map(|instance| code(isolated.ask(instance, &policy, &[&[0; 8]])));
    assert_eq!(codes, [3, 5, 5]);
    isolated
        .post(order(&one), &policy, Hook::Request, &[&[0; 8]])
        .unwrap();
    let (lines, dropped) = isolated.answer().log;
    assert_eq!((lines.len(), dropped), (1, 0));
    assert_eq!(
        (lines[0].level, lines[0].text.as_str()),
        (LogLevel::Info, "a line")
    );
}

#[test]
fn a_fresh_instance_for_every_call_keeps_the_shared_state_only() {
    let policy = counter(1);
    let mut isolated = Apart::start(&config());
    let instance = isolated.process.instantiate(&InstanceSetup {
        fresh: true,
        ..instance_setup(&policy, &limits())
    });
    let instance = instance.unwrap();
    let ticket = isolated
        .post(
            order(&instance),
            &policy,
            Hook::Request,
            &[&[0; 8], &[0; 8]],
        )
        .unwrap();
    let answer = isolated.answer();
    assert_eq!(answer.ticket, ticket);
    let Outcome::Evaluated(verdicts) = answer.outcome else {
        panic!("{:?}", answer.outcome);
    };
    let codes = verdicts.iter().map(|verdict| match verdict {
        Verdict::Deny { code, .. } => *code,
        other => panic!("{other:?}"),
    });
    assert_eq!(codes.collect::<Vec<_>>(), [3, 4]);
    assert_eq!(answer.log.0.len(), 2, "what both have logged");
}

#[test]
fn a_tick_and_a_hand_over_take_effect_in_their_order() {
    let (old, new) = (counter(1), counter(2));
    let mut isolated = Apart::start(&config());
    let (stable, successor) = (isolated.instance(&old), isolated.instance(&new));
    isolated.channel.tick(order(&stable)).unwrap();
    isolated
        .post(order(&stable), &old, Hook::Request, &[&[0; 8]])
        .unwrap();
    isolated
        .channel
        .hand_over(order(&stable), &successor, 1)
        .unwrap();
    isolated
        .post(order(&successor), &new, Hook::Request, &[&[0; 8]])
        .unwrap();
    assert_eq!(isolated.answer().outcome, Outcome::Done);
    assert_eq!(code(isolated.answer().outcome), 2 + 1 + 1);
    assert_eq!(isolated.answer().outcome, Outcome::Done);
    // It was 2 when it was handed over.
    assert_eq!(code(isolated.answer().outcome), 3 + 2 + 1);
    isolated
        .channel
        .hand_over(order(&stable), &successor, 13)
        .unwrap();
    let text = "the policy trapped: wasm `unreachable` instruction executed".to_owned();
    assert_eq!(isolated.answer().outcome, Outcome::SuccessorFailed(text));
    assert_eq!(
        code(isolated.ask(&stable, &old, &[&[0; 8]])),
        3 + 3 + 1,
        "it lives on"
    );
}

#[test]
fn orders_beyond_the_limit_are_refused_and_nobody_waits() {
    let policy = Parts::with_request("(loop br 0) unreachable")
        .load()
        .unwrap();
    let slow = TenantLimits {
        fuel_per_call: u64::MAX / 2,
        ..limits()
    };
    let mut isolated = Apart::start(&config());
    let instance = isolated
        .process
        .instantiate(&instance_setup(&policy, &slow))
        .unwrap();
    for _ in 0..limits::ISOLATED_ORDERS {
        isolated
            .post(order(&instance), &policy, Hook::Request, &[&[0; 8]])
            .unwrap();
    }
    let one_more = isolated.post(order(&instance), &policy, Hook::Request, &[&[0; 8]]);
    assert_eq!(one_more, Err(PostError::Busy));
    // Killed during a call: all orders in flight are handed back at once, and no new order is
    // accepted.
    let pid = Pid::from_raw(isolated.process.pid()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let mut lost = 0;
    while lost < limits::ISOLATED_ORDERS {
        let outcome = isolated.answer().outcome;
        assert!(
            matches!(&outcome, Outcome::Lost(why) if why.ends_with("it died")),
            "{outcome:?}"
        );
        lost += 1;
    }
    assert!(isolated.channel.take(now_ns()).is_none());
    let ended = isolated.post(order(&instance), &policy, Hook::Request, &[&[0; 8]]);
    assert!(matches!(ended, Err(PostError::Ended(_))), "{ended:?}");
    assert_eq!(
        isolated.process.ended().map(|status| status.to_string()),
        Some("signal: 9 (SIGKILL)".to_owned())
    );
}

#[test]
fn an_order_changes_what_its_instance_may_use() {
    // About 3,000 units.
    let counts = "(local $n i32) (local.set $n (i32.const 500))
        (loop $on (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $on (local.get $n)))";
    let counts = format!("{counts} {ALLOW} i32.const 0");
    let policy = Parts::with_request(&counts).load().unwrap();
    for fresh in [false, true] {
        let mut isolated = Apart::start(&config());
        let limits = limits();
        let setup = InstanceSetup {
            fresh,
            ..instance_setup(&policy, &limits)
        };
        let instance = isolated.process.instantiate(&setup).unwrap();
        let mut evaluated = |fuel_per_call| {
            let order = Order {
                fuel_per_call,
                ..order(&instance)
            };
            isolated
                .post(order, &policy, Hook::Request, &[&[0; 8]])
                .unwrap();
            isolated.answer().outcome
        };
        for fuel_per_call in [0, 100_000, 0] {
            let outcome = evaluated(fuel_per_call);
            assert!(matches!(outcome, Outcome::Evaluated(_)), "{outcome:?}");
        }
        let outcome = evaluated(100);
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }
}

#[test]
fn a_process_that_does_not_answer_in_time_is_killed() {
    let policy = Parts::with_request("(loop br 0) unreachable")
        .load()
        .unwrap();
    let slow = TenantLimits {
        fuel_per_call: u64::MAX / 2,
        ..limits()
    };
    let mut isolated = Apart::start(&config());
    let instance = isolated
        .process
        .instantiate(&instance_setup(&policy, &slow))
        .unwrap();
    let hasty = Order {
        budget_ns: 1_000_000,
        ..order(&instance)
    };
    isolated
        .post(hasty, &policy, Hook::Request, &[&[0; 8]])
        .unwrap();
    let Outcome::Lost(why) = isolated.answer().outcome else {
        panic!("lost");
    };
    let says = why
        .starts_with("the tenant's policy process ended: it was killed: it has not answered for");
    assert!(says, "{why}");
}

#[test]
fn views_and_calls_are_bounded_before_anything_is_posted() {
    let large = Parts {
        memory: r#"(memory (export "memory") 8)"#,
        ..Parts::default()
    };
    let policy = large.load().unwrap();
    let mut isolated = Apart::start(&config());
    let instance = isolated.instance(&policy);
    let beyond = [
        (Hook::Request, limits::ISOLATED_CALLS + 1, 8),
        (Hook::Request, 1, limits::ISOLATED_VIEWS_BYTES),
        (Hook::Reply, 1, 8),
    ];
    for (hook, count, bytes) in beyond {
        let refused = isolated
            .channel
            .begin(order(&instance), &policy, hook, count, bytes);
        assert!(
            matches!(refused, Err(PostError::Misuse(_))),
            "{hook} {count} {bytes}"
        );
    }
    let mut evaluation = isolated
        .channel
        .begin(order(&instance), &policy, Hook::Request, 1, 8)
        .unwrap();
    let refused: [Result<(), EvaluateError<Infallible>>; 2] = [
        evaluation.push(0, 16, |_| Ok(16)),
        evaluation.push(1, 8, |_| Ok(8)),
    ];
    assert!(
        refused
            .iter()
            .all(|r| matches!(r, Err(EvaluateError::Misuse(_)))),
        "{refused:?}"
    );
    evaluation.push(0, 8, write(&[0; 8])).unwrap();
    assert!(
        evaluation.push(0, 0, write(&[])).is_err(),
        "there was room for one"
    );
    drop(evaluation);
    assert_eq!(isolated.channel.under_way(), 0);
    let largest = vec![0; limits::VIEW_BYTES];
    assert_eq!(
        isolated.ask(&instance, &policy, &[&largest]),
        Outcome::Evaluated(vec![Verdict::Allow])
    );
}

#[test]
fn memory_beyond_the_limit_is_refused_to_the_process_as_a_whole() {
    let touch = Parts {
        memory: r#"(memory (export "memory") 60)"#,
        buffer: buffer(
            "(memory.fill (i32.const 4096) (i32.const 1) (i32.const 3900000)) i32.const 1024",
        ),
        ..Parts::default()
    };
    let policy = touch.load().unwrap();
    let isolated = Apart::start(&ProcessConfig {
        memory_bytes: 48 << 20,
        ..config()
    });
    let mut hosted = Vec::new();
    let why = loop {
        match isolated
            .process
            .instantiate(&instance_setup(&policy, &limits()))
        {
            Ok(instance) => hosted.push(instance),
            Err(why) => break why,
        }
        assert!(
            hosted.len() < 12,
            "{} instances of 4 MB in 48 MiB",
            hosted.len()
        );
    };
    assert!(hosted.len() >= 2, "{}: {why}", hosted.len());
    let resident = isolated.process.resident_bytes();
    assert!(
        resident.is_none_or(|bytes| bytes < 64 << 20),
        "{resident:?}"
    );
}

#[test]
fn a_process_has_as_many_seats_as_there_may_be() {
    let policy = Parts::default().load().unwrap();
    let mut isolated = Apart::start(&ProcessConfig {
        memory_bytes: 1 << 30,
        ..config()
    });
    let mut instances: Vec<InstanceHandle> = (0..limits::ISOLATED_INSTANCES)
        .map(|_| isolated.instance(&policy))
        .collect();
    let full = isolated
        .process
        .instantiate(&instance_setup(&policy, &limits()));
    assert_eq!(
        full.unwrap_err(),
        InstantiateError::Full(limits::ISOLATED_INSTANCES)
    );
    instances.pop();
    isolated.channel.flush();
    isolated.instance(&policy);
    assert_eq!(isolated.process.instances(), limits::ISOLATED_INSTANCES - 1);
}

// ---- a process under an attacker's control ----

/// A process that behaves as `what` says.
fn fake(directory: &Path, what: &str) -> Apart {
    let program = directory.join(what);
    executable(&program, &format!("#!/bin/sh\nexec {FAKE} {what} \"$@\"\n"));
    Apart::start(&ProcessConfig {
        program,
        ..ProcessConfig::default()
    })
}

#[test]
fn what_no_honest_process_says_ends_it_and_every_call_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let policy = Parts::default().load().unwrap();
    let cases = [
        ("index-ahead", "producer index is 1000000"),
        ("index-back", "producer index is 4294967295"),
        ("kind", "an answer has the kind 9; 1 to 3 exist"),
        ("offset", "heap"),
        (
            "length",
            "an answer has 4294967295 bytes, above the limit of 1048576",
        ),
        ("short", "its answer lacks verdicts"),
        ("heir", "it blamed a successor, but the order has none"),
        ("other", "it answered order 1 when it was order 0's turn"),
        ("no-verdict", "the policy left verdict 0 for call 0"),
        ("verdict", "the policy left verdict 9 for call 0"),
        ("status", "with status 99; 1 to 16 are errors"),
        ("message", "outside of its 64 bytes of memory"),
        ("effects", "doesn't declare the capability change"),
        ("die", "it died"),
    ];
    for (what, words) in cases {
        let mut isolated = fake(directory.path(), what);
        let instance = isolated.instance(&policy);
        let views: [&[u8]; 2] = [&[0; 8], &[0; 8]];
        for _ in 0..3 {
            isolated
                .post(order(&instance), &policy, Hook::Request, &views)
                .unwrap();
        }
        // The second answer reveals an index that goes back.
        let first = isolated.answer().outcome;
        let first = match what {
            "index-back" if matches!(first, Outcome::Evaluated(_)) => isolated.answer().outcome,
            _ => first,
        };
        let Outcome::Lost(why) = first else {
            panic!("{what}: {first:?}");
        };
        assert!(why.contains(words), "{what}: {why}");
        let mut rest = 0;
        while let Some(answer) = isolated.channel.take(now_ns()) {
            assert_eq!(answer.outcome, Outcome::Lost(why.clone()), "{what}");
            rest += 1;
        }
        assert!(rest >= 1, "{what}: the others are lost with it");
        assert!(isolated.channel.has_ended().is_some(), "{what}");
    }
}

#[test]
fn answering_twice_or_unasked_ends_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let policy = Parts::default().load().unwrap();
    for what in ["twice", "unasked"] {
        let mut isolated = fake(directory.path(), what);
        let instance = isolated.instance(&policy);
        if what == "twice" {
            let allowed = Outcome::Evaluated(vec![Verdict::Allow]);
            assert_eq!(isolated.ask(&instance, &policy, &[&[0; 8]]), allowed);
        }
        let began = Instant::now();
        while isolated.channel.has_ended().is_none() {
            assert!(isolated.channel.take(now_ns()).is_none());
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        }
        let why = isolated.channel.has_ended().unwrap();
        assert!(why.contains("and none is under way"), "{what}: {why}");
    }
}

#[test]
fn reasons_and_logs_of_a_liar_are_cut_and_made_text() {
    let directory = tempfile::tempdir().unwrap();
    let policy = Parts::default().load().unwrap();
    let mut isolated = fake(directory.path(), "reason");
    let instance = isolated.instance(&policy);
    let Outcome::Failed(why) = isolated.ask(&instance, &policy, &[&[0; 8]]) else {
        panic!("failed");
    };
    assert_eq!(why.chars().count(), limits::NAME_BYTES);
    assert!(why.chars().all(|c| c == char::REPLACEMENT_CHARACTER));
    let mut isolated = fake(directory.path(), "log");
    let instance = isolated.instance(&policy);
    isolated
        .post(order(&instance), &policy, Hook::Request, &[&[0; 8]])
        .unwrap();
    let (lines, dropped) = isolated.answer().log;
    assert!(lines.is_empty(), "no line is whole: {lines:?}");
    assert_eq!(dropped, u64::MAX, "as it says");
}

#[test]
fn a_process_that_lies_about_its_set_up_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let policy = Parts::default().load().unwrap();
    for what in ["reply-nonsense", "reply-endless", "seat-other"] {
        let isolated = fake(directory.path(), what);
        let instance = isolated
            .process
            .instantiate(&instance_setup(&policy, &limits()));
        assert!(
            matches!(instance, Err(InstantiateError::Process(_))),
            "{what}: {instance:?}"
        );
        let again = isolated
            .process
            .instantiate(&instance_setup(&policy, &limits()));
        assert!(
            matches!(again, Err(InstantiateError::Process(_))),
            "{what}: {again:?}"
        );
    }
    let none = Process::start(&ProcessConfig {
        program: PathBuf::from("/nonexistent"),
        ..ProcessConfig::default()
    });
    assert!(none.is_err());
    // It may have ended before the descriptors were handed over.
    if let Ok((process, _channel)) = Process::start(&ProcessConfig {
        program: PathBuf::from("/bin/false"),
        ..ProcessConfig::default()
    }) {
        let instance = process.instantiate(&instance_setup(&policy, &limits()));
        assert!(
            matches!(instance, Err(InstantiateError::Process(_))),
            "{instance:?}"
        );
    }
}

// ---- confinement ----

fn attempt(what: &[&str]) -> std::process::ExitStatus {
    let parent = std::process::id().to_string();
    Command::new(PROGRAM)
        .args(["try-apart", &parent, "67108864", "0"])
        .args(what)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

fn system_call(number: i64, arguments: [i64; 6]) -> std::process::ExitStatus {
    let mut words = vec!["system-call".to_owned(), number.to_string()];
    words.extend(arguments.map(|argument| argument.cast_unsigned().to_string()));
    attempt(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_policy_process_reaches_no_file_socket_process_or_thread() {
    assert!(attempt(&["nothing"]).success());
    for what in ["open", "connect", "spawn", "exec", "thread"] {
        check_killed(what, attempt(&[what]), Signal::SYS);
    }
    check_killed("64 MiB", attempt(&["allocate"]), Signal::ABORT);
}

#[test]
fn every_other_system_call_kills_a_policy_process() {
    let listed = |number: &i64| {
        isolated::ALLOWED.contains(number) || isolated::ALLOWED_IN_PART.contains(number)
    };
    // Some kernels exempt the calls of a user-space probe's trampolines from every filter.
    let unlisted = |number: &i64| !listed(number) && ![335, 336].contains(number);
    let mut tried = 0;
    for number in (0..500).filter(unlisted) {
        let status = system_call(number, [0; 6]);
        check_killed(&format!("system call {number}"), status, Signal::SYS);
        tried += 1;
    }
    assert!(
        tried >= 500 - 26,
        "{tried}: the list of what is allowed has grown"
    );
}

#[test]
fn what_a_policy_process_may_call_is_bound_to_its_descriptors() {
    let parent = i64::from(std::process::id());
    let cases: [(&str, i64, [i64; 6]); 9] = [
        ("read from 3", libc::SYS_read, [3, 0, 0, 0, 0, 0]),
        ("read from 1", libc::SYS_read, [1, 0, 0, 0, 0, 0]),
        ("write to 4", libc::SYS_write, [4, 0, 0, 0, 0, 0]),
        ("write to 5", libc::SYS_write, [5, 0, 0, 0, 0, 0]),
        ("wait on 3", libc::SYS_epoll_wait, [3, 0, 0, 0, 0, 0]),
        (
            "executable memory",
            libc::SYS_mmap,
            [0, 4096, 7, 0x22, -1, 0],
        ),
        ("shared memory", libc::SYS_mmap, [0, 4096, 3, 0x21, -1, 0]),
        ("a file's memory", libc::SYS_mmap, [0, 4096, 1, 0x2, 0, 0]),
        (
            "a signal to the daemon",
            libc::SYS_tgkill,
            [parent, parent, 0, 0, 0, 0],
        ),
    ];
    for (what, number, arguments) in cases {
        check_killed(what, system_call(number, arguments), Signal::SYS);
    }
    // A file in memory is refused, and the process survives.
    assert!(system_call(libc::SYS_memfd_create, [0; 6]).success());
}

#[test]
fn instances_share_a_state_by_its_name_only() {
    let policy = counter(1);
    let mut isolated = Apart::start(&config());
    let limits = limits();
    let instances = ["a", "b", "a"].map(|state| {
        let setup = InstanceSetup {
            state,
            ..instance_setup(&policy, &limits)
        };
        isolated.process.instantiate(&setup).unwrap()
    });
    let codes = instances
        .each_ref()
        .map(|instance| code(isolated.ask(instance, &policy, &[&[0; 8]])));
    assert_eq!(codes, [3, 3, 4]);
}
