//! Failures between a loaded policy and an instance.

use tollgate_policy_host::{Fault, Host, HostConfig, LoadError, TenantLimits, limits};

use crate::guests::{guest, limits, setup};
use crate::wat::{Parts, buffer, configure};

const LOOP: &str = "(loop br 0) unreachable";

fn setup_fault(parts: &Parts) -> (&'static str, Fault) {
    match parts.instantiate().unwrap_err() {
        LoadError::Setup { step, fault } => (step, fault),
        other => panic!("{other}"),
    }
}

#[test]
fn loops_end_in_every_step() {
    let endless = Fault::OutOfFuel {
        fuel: limits::FUEL_FOR_SETUP,
    };
    let start = Parts {
        rest: "(func $s (loop br 0)) (start $s)".to_owned(),
        ..Parts::default()
    };
    assert_eq!(setup_fault(&start), ("start", endless.clone()));
    let parts = Parts {
        buffer: buffer(LOOP),
        ..Parts::default()
    };
    assert_eq!(setup_fault(&parts), ("buffer", endless.clone()));
    let parts = Parts {
        configure: configure(LOOP),
        ..Parts::default()
    };
    assert_eq!(setup_fault(&parts), ("configure", endless));
}

#[test]
fn traps_end_in_every_step() {
    let trap = "wasm `unreachable` instruction executed";
    let start = Parts {
        rest: "(func $s unreachable) (start $s)".to_owned(),
        ..Parts::default()
    };
    let parts = Parts {
        configure: configure("unreachable"),
        ..Parts::default()
    };
    assert_eq!(setup_fault(&start), ("start", Fault::Trap(trap.to_owned())));
    assert_eq!(
        setup_fault(&parts),
        ("configure", Fault::Trap(trap.to_owned()))
    );
    let data = Parts {
        rest: "(data (i32.const 65530) \"0123456789\")".to_owned(),
        ..Parts::default()
    };
    assert!(matches!(setup_fault(&data), ("start", Fault::Trap(_))));
}

#[test]
fn a_start_function_that_logs_is_a_fault() {
    let parts = Parts {
        imports: r#"(import "tollgate" "log" (func $log (param i32 i32 i32)))"#,
        rest: "(func $s (call $log (i32.const 1) (i32.const 0) (i32.const 1))) (start $s)"
            .to_owned(),
        ..Parts::default()
    };
    let trap = "log was called before the instance was complete";
    assert_eq!(setup_fault(&parts), ("start", Fault::Trap(trap.to_owned())));
}

#[test]
fn a_harmless_start_function_runs() {
    let parts = Parts {
        rest: "(func $s) (start $s)".to_owned(),
        ..Parts::default()
    };
    parts.instantiate().unwrap();
}

#[test]
fn a_bad_buffer_is_refused() {
    // The first buffer has 4096 bytes; memory has 65,536.
    for (address, good) in [
        (1024, true),
        (61_440, true),
        (61_448, false),
        (1028, false),
        (-8, false),
    ] {
        let parts = Parts {
            buffer: buffer(&format!("i32.const {address}")),
            ..Parts::default()
        };
        if good {
            parts.instantiate().unwrap();
            continue;
        }
        let fault = Fault::BadBuffer {
            address: address as u32,
            len: 4096,
            memory: 65_536,
        };
        assert_eq!(setup_fault(&parts), ("buffer", fault));
    }
}

#[test]
fn a_policy_can_refuse_its_configuration() {
    let refuse = |len: &str| {
        let body = format!("(i32.store (i32.const 1024) (i32.const 0x6f6e0061)) i32.const {len}");
        Parts {
            configure: configure(&body),
            ..Parts::default()
        }
        .instantiate()
        .unwrap_err()
    };
    assert_eq!(refuse("1"), LoadError::ConfigRefused("a".to_owned()));
    assert_eq!(
        refuse("4").to_string(),
        r#"the policy refuses its configuration: "a\0no""#
    );
    let LoadError::ConfigRefused(text) = refuse("-1") else {
        panic!("refused")
    };
    assert_eq!(text.len(), limits::CONFIG_ERROR_BYTES);
}

#[test]
fn the_policies_explain_what_they_dislike() {
    let refusal = |name, config: &str| {
        guest(name)
            .instantiate(&setup(&limits(), Some(config.as_bytes())))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal("hotel_acl", r#"{"blokced": []}"#),
        "the policy refuses its configuration: \"unknown field `blokced`, expected `blocked` or `message` at line 1 column 10\""
    );
    assert!(refusal("hotel_acl", "").contains("there is none, and this policy needs one"));
    assert!(refusal("spin", "faster").contains("isn't `calls N`, `work N` or `configure`"));
    assert!(matches!(
        guest("spin")
            .instantiate(&setup(&limits(), Some(b"configure")))
            .unwrap_err(),
        LoadError::Setup {
            step: "configure",
            fault: Fault::OutOfFuel { .. }
        }
    ));
}

#[test]
fn the_configuration_arrives_whole_up_to_its_limit() {
    // Refuses with the last byte, or with the length if the buffer can't have held it.
    let body = "(i32.store8 (i32.const 65536) (i32.load8_u (i32.add (local.get 0) (i32.const 65535)))) i32.const 1";
    let parts = Parts {
        memory: r#"(memory (export "memory") 20)"#,
        buffer: buffer("i32.const 65536"),
        configure: configure(body),
        ..Parts::default()
    };
    let policy = parts.load().unwrap();
    let mut config = vec![b'.'; limits::CONFIG_BYTES];
    *config.last_mut().unwrap() = b'Z';
    let refusal = policy
        .instantiate(&setup(&limits(), Some(&config)))
        .unwrap_err();
    assert_eq!(refusal, LoadError::ConfigRefused("Z".to_owned()));
    config.push(b'!');
    assert_eq!(
        policy
            .instantiate(&setup(&limits(), Some(&config)))
            .unwrap_err(),
        LoadError::ConfigTooLarge {
            bytes: limits::CONFIG_BYTES + 1,
            max: limits::CONFIG_BYTES
        }
    );
}

#[test]
fn the_pool_has_an_end_and_gives_back() {
    let host = Host::new(HostConfig {
        instances: 2,
        ..HostConfig::default()
    })
    .unwrap();
    let policy = host.load(&Parts::default().wasm()).unwrap();
    let first = policy.instantiate(&setup(&limits(), None)).unwrap();
    let _second = policy.instantiate(&setup(&limits(), None)).unwrap();
    let LoadError::PoolFull(text) = policy.instantiate(&setup(&limits(), None)).unwrap_err() else {
        panic!("the pool has two")
    };
    assert!(text.contains('2'), "{text}");
    drop(first);
    policy.instantiate(&setup(&limits(), None)).unwrap();
}

#[test]
fn limits_are_cut_to_the_hosts() {
    let host = Host::new(HostConfig {
        instances: 1,
        memory_bytes_max: 1 << 16,
        ..HostConfig::default()
    })
    .unwrap();
    let policy = host.load(&Parts::default().wasm()).unwrap();
    let generous = TenantLimits {
        memory_bytes: usize::MAX,
        ..limits()
    };
    policy.instantiate(&setup(&generous, None)).unwrap();
}
