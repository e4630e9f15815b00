//! Isolation: a tenant leaves no data behind for another, and its failures cost other tenants
//! nothing.

use std::convert::Infallible;
use std::fmt::Write;

use proptest::prelude::*;
use tollgate_policy_host::{
    Capabilities, Effects, EvaluateError, Fault, FieldChange, Hook, Host, HostConfig, Instance,
    MetadataChange, PolicyTime, Setup, TenantLimits, Value, Verdict, limits,
};

use crate::guests::{limits, view, write};
use crate::wat::{ALLOW, Parts, configure, request};

/// A pool with one slot: every next instance gets it.
fn host_of_one() -> Host {
    Host::new(HostConfig {
        instances: 1,
        ..HostConfig::default()
    })
    .unwrap()
}

/// Set-up may read all of memory with every opcode.
fn generous() -> TenantLimits {
    TenantLimits {
        fuel_for_setup: u64::MAX / 2,
        ..limits()
    }
}

/// Fills 4 MiB of memory, 8,192 elements of its table, and its globals.
fn canaries() -> Parts {
    Parts {
        memory: r#"(memory (export "memory") 64)"#,
        configure: configure(
            "(memory.fill (i32.const 0) (i32.const 0xca) (i32.const 0x400000))
             (table.fill $t (i32.const 0) (ref.func $f) (i32.const 8192))
             (global.set $i (i32.const 0xcacacaca)) (global.set $l (i64.const 0xcacacacacacacaca)) i32.const 0",
        ),
        rest: "(table $t 8192 funcref) (func $f) (elem declare func $f)
               (global $i (mut i32) (i32.const 1)) (global $l (mut i64) (i64.const 1))"
            .to_owned(),
        ..Parts::default()
    }
}

/// The load opcodes, each with the number of bytes that it reads and a test that they are zero.
const LOADS: [(&str, u32, &str); 14] = [
    ("i32.load", 4, "i32.eqz"),
    ("i32.load8_s", 1, "i32.eqz"),
    ("i32.load8_u", 1, "i32.eqz"),
    ("i32.load16_s", 2, "i32.eqz"),
    ("i32.load16_u", 2, "i32.eqz"),
    ("i64.load", 8, "i64.eqz"),
    ("i64.load8_s", 1, "i64.eqz"),
    ("i64.load8_u", 1, "i64.eqz"),
    ("i64.load16_s", 2, "i64.eqz"),
    ("i64.load16_u", 2, "i64.eqz"),
    ("i64.load32_s", 4, "i64.eqz"),
    ("i64.load32_u", 4, "i64.eqz"),
    ("f32.load", 4, "i32.eqz (i32.reinterpret_f32"),
    ("f64.load", 8, "i64.eqz (i64.reinterpret_f64"),
];

/// Searches its 4 MiB with every load opcode at every offset, its table and its globals, before the
/// host writes anything: in the start function. A non-zero byte is a trap. The number of loads is
/// in the global that `configure` reports.
fn searcher(pages: u32) -> Parts {
    let bytes = pages << 16;
    let mut search = String::new();
    for (load, width, zero) in LOADS {
        let close = ")".repeat(zero.matches('(').count());
        write!(
            search,
            "(local.set $at (i32.const 0))
             (loop $next
               (if ({zero} ({load} (local.get $at)){close}) (then) (else unreachable))
               (global.set $loads (i64.add (global.get $loads) (i64.const 1)))
               (br_if $next (i32.le_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (i32.const {}))))",
            bytes - width
        )
        .unwrap();
    }
    let table = "(local.set $at (i32.const 0))
        (loop $next
          (if (ref.is_null (table.get $t (local.get $at))) (then) (else unreachable))
          (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (i32.const 8192))))";
    Parts {
        memory: Box::leak(format!(r#"(memory (export "memory") {pages})"#).into()),
        // As a configuration error: the count's 8 bytes, each as a letter.
        configure: configure(
            "(local $k i32)
             (loop $next
               (i32.store8 (i32.add (i32.const 1024) (local.get $k))
                 (i32.add (i32.const 65) (i32.wrap_i64 (i64.and (i64.const 15) (i64.shr_u (global.get $loads) (i64.extend_i32_u (i32.shl (local.get $k) (i32.const 2))))))))
               (br_if $next (i32.lt_u (local.tee $k (i32.add (local.get $k) (i32.const 1))) (i32.const 16))))
             i32.const 16",
        ),
        rest: format!(
            "(table $t 8192 funcref) (global $loads (mut i64) (i64.const 0)) (global $zero (mut i64) (i64.const 0))
             (func $search (local $at i32) {search} {table}
               (if (i64.ne (global.get $zero) (i64.const 0)) (then unreachable)))
             (start $search)"
        ),
        ..Parts::default()
    }
}

/// The number of the searcher's loads.
fn loads(text: &str) -> u64 {
    text.bytes()
        .rev()
        .fold(0, |sum, letter| sum << 4 | u64::from(letter - b'A'))
}

#[test]
fn a_reused_place_is_zero_wherever_and_however_one_looks() {
    let host = host_of_one();
    let (a, b) = (
        host.load(&canaries().wasm()).unwrap(),
        host.load(&searcher(64).wasm()).unwrap(),
    );
    let limits = generous();
    for _ in 0..3 {
        let first = a.instantiate(&Setup::new(&limits)).unwrap();
        drop(first);
        let refused = b.instantiate(&Setup::new(&limits)).unwrap_err().to_string();
        let text = refused
            .split('"')
            .nth(1)
            .unwrap_or_else(|| panic!("{refused}"));
        let widths = LOADS
            .iter()
            .map(|(_, width, _)| (64 << 16) - u64::from(*width) + 1);
        assert_eq!(loads(text), widths.sum::<u64>(), "{refused}");
    }
    // The searcher does find existing bytes.
    let own = Parts {
        rest: searcher(1).rest + r#"(data (i32.const 65535) "x")"#,
        ..searcher(1)
    };
    let found = host.load(&own.wasm()).unwrap();
    let found = found.instantiate(&Setup::new(&limits)).unwrap_err();
    assert!(found.to_string().contains("unreachable"), "{found}");
}

/// Memory that the last owner grew comes back as zeros, also when the next one grows.
#[test]
fn grown_memory_is_zero() {
    let host = host_of_one();
    let grow = |body: &str| {
        let parts = Parts {
            configure: configure(&format!(
                "(local $at i32) (drop (memory.grow (i32.const 63))) {body} i32.const 0"
            )),
            ..Parts::default()
        };
        let policy = host.load(&parts.wasm()).unwrap();
        policy.instantiate(&Setup::new(&generous())).map(drop)
    };
    grow("(memory.fill (i32.const 0) (i32.const 0xca) (i32.const 0x400000))").unwrap();
    grow(
        "(loop $next (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
           (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 0x400000))))",
    )
    .unwrap();
}

#[test]
fn loads_beyond_memory_trap() {
    for (load, width, _) in LOADS {
        for address in [
            65_536 - width + 1,
            65_536,
            0x40_0000,
            u32::MAX - width,
            u32::MAX,
        ] {
            let body = format!("(drop ({load} (i32.const {address}))) {ALLOW} i32.const 0");
            let fault = Fault::Trap("out of bounds memory access".to_owned());
            let mut instance = Parts::with_request(&body).instantiate().unwrap();
            assert_eq!(evaluate(&mut instance), Err(fault), "{load} at {address}");
        }
        // The offset in the instruction counts, too, and nothing wraps around.
        let body = format!("(drop ({load} offset=0xffffffff (i32.const -1))) i32.const 0");
        let mut instance = Parts::with_request(&body).instantiate().unwrap();
        assert!(evaluate(&mut instance).is_err());
    }
}

fn evaluate(instance: &mut Instance) -> Result<Verdict, Fault> {
    let view = view(&["x"]);
    match instance.evaluate::<Infallible>(Hook::Request, 0, view.len(), write(&view)) {
        Ok(verdict) => Ok(verdict),
        Err(EvaluateError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other:?}"),
    }
}

/// Counts the bytes of all its memory that are the letter s, and denies with a message of that
/// length.
fn counter_of_s() -> Parts {
    Parts {
        request: request(
            "(local $at i32) (local $sum i32)
             (loop $next
               (local.set $sum (i32.add (local.get $sum) (i32.eq (i32.const 115) (i32.load8_u (local.get $at)))))
               (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (i32.const 65536))))
             (i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 8))
             (i32.store (i32.const 1048) (local.get $sum)) i32.const 0",
        ),
        ..Parts::default()
    }
}

/// The message's length is capped, so this many counts are distinguishable.
const TOLD: usize = 1000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// (Lengths stay below the letter, which would count itself.) After any earlier views, in any
    /// batches, memory holds exactly as many bytes of this view as were written.
    #[test]
    fn memory_holds_nothing_of_earlier_views(steps in proptest::collection::vec((1usize..6, 0usize..100, any::<bool>()), 1..12)) {
        let limits = TenantLimits { fuel_per_call: u64::MAX >> 8, ..limits() };
        let policy = counter_of_s().load().unwrap();
        let mut instance = policy.instantiate(&Setup::new(&limits)).unwrap();
        for (calls, len, abandon) in steps {
            let secret = vec![b's'; len];
            {
                let room = calls * len.next_multiple_of(8);
                let mut abandoned = instance.batch(Hook::Request, calls, room).unwrap();
                for _ in 0..calls {
                    abandoned.push(0, len, write(&secret)).unwrap();
                }
            }
            if !abandon {
                // It answers for the first call only, which is a fault if there are more: so the
                // batch has one.
                let seen = instance.evaluate(Hook::Request, 0, len, write(&secret));
                let Ok(Verdict::Deny { message, .. }) = seen else { panic!("{seen:?}") };
                prop_assert_eq!(message.len(), len.min(TOLD));
            }
            let seen = instance.evaluate(Hook::Request, 0, 0, write(b""));
            let Ok(Verdict::Deny { message, .. }) = seen else { panic!("{seen:?}") };
            prop_assert_eq!(message.len(), 0);
        }
    }
}

/// Memory is a function of the policy's input: nothing else of the host gets in (a time that isn't
/// granted, another instance's views, views of an earlier instance in the same slot).
#[test]
fn equal_views_leave_equal_memory() {
    // Reports a checksum of all its memory.
    let parts = Parts {
        request: request(
            "(local $at i32) (local $sum i64)
             (loop $next
               (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 0x100000001b3)) (i64.load (local.get $at))))
               (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 65536))))
             (i32.store (i32.const 1036) (i32.const 3)) (i32.store (i32.const 1044) (i32.const 32768)) (i32.store (i32.const 1048) (i32.const 16))
             (i32.store (i32.const 32768) (i32.const 2)) (i64.store (i32.const 32776) (local.get $sum)) i32.const 0",
        ),
        manifest: r#"(@custom "tollgate.manifest" "{\"abi\":1,\"name\":\"t\",\"hooks\":[\"request\"],\"capabilities\":[\"change\"],\"methods\":[{\"method\":\"a.B/C\",\"fields\":[\"x\",\"y\"],\"changes\":[\"x\"]}]}")"#.to_owned(),
        ..Parts::default()
    };
    let limits = TenantLimits {
        fuel_per_call: u64::MAX >> 8,
        ..limits()
    };
    let host = host_of_one();
    let policy = host.load(&parts.wasm()).unwrap();
    let checksum = |withheld: Option<&str>, now_ms: u64| {
        let mut bytes = view(&["shown", withheld.unwrap_or_default()]);
        if withheld.is_none() {
            bytes[24..40].fill(0);
        }
        let mut instance = policy.instantiate(&Setup::new(&limits)).unwrap();
        instance.set_time(PolicyTime {
            unix_ms: now_ms,
            ..PolicyTime::default()
        });
        let verdict = instance.evaluate(Hook::Request, 0, bytes.len(), write(&bytes));
        match verdict {
            Ok(Verdict::Effects(effects)) => match effects.fields[..] {
                [
                    FieldChange {
                        field: 0,
                        value: Value::Bits(sum),
                    },
                ] => sum,
                _ => panic!("{effects:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let without = checksum(None, 0);
    assert_ne!(
        checksum(Some("a"), 1),
        checksum(Some("b"), 1),
        "it sees a byte"
    );
    assert_ne!(checksum(Some(""), 1), without, "it sees presence");
    assert_eq!(checksum(None, 1_800_000_000_000), without);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Each kind of failure costs that instance only, and leaves no memory behind, however often.
#[test]
fn a_thousand_failures_each_leave_nothing() {
    // Resident memory is per process, and other tests run in this process: they would hide a leak,
    // or look like one.
    const ALONE: &str = "TOLLGATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let itself = "isolation::a_thousand_failures_each_leave_nothing";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = alone
            .args(["--exact", itself])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let host = Host::new(HostConfig {
        instances: 4,
        ..HostConfig::default()
    })
    .unwrap();
    let load = |body: &str, rest: &str| {
        let parts = Parts {
            rest: rest.to_owned(),
            ..Parts::with_request(body)
        };
        host.load(&parts.wasm()).unwrap()
    };
    let attacks = [
        load("unreachable", ""),
        load(
            "(call $r)",
            "(func $r (result i32) (i32.add (call $r) (i32.const 1)))",
        ),
        load(
            "(drop (memory.grow (i32.const 63))) (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (memory.fill (i32.const 0x3f0000) (i32.const 1) (i32.const 65536)) unreachable",
            "",
        ),
        load(
            "(loop (drop (table.grow 0 (ref.null func) (i32.const 1))) (br 0)) unreachable",
            "(table 0 funcref)",
        ),
        load(
            "(loop (drop (memory.grow (i32.const 1))) (br 0)) unreachable",
            "",
        ),
    ];
    let limits = limits();
    let mut bystander = load(&format!("{ALLOW} i32.const 0"), "")
        .instantiate(&Setup::new(&limits))
        .unwrap();
    let round = |bystander: &mut Instance| {
        for policy in &attacks {
            let mut instance = policy.instantiate(&Setup::new(&limits)).unwrap();
            assert!(evaluate(&mut instance).is_err() && instance.is_dead());
            assert_eq!(evaluate(bystander), Ok(Verdict::Allow));
        }
    };
    (0..20).for_each(|_| round(&mut bystander));
    let before = resident_bytes();
    (0..1000).for_each(|_| round(&mut bystander));
    let grown = resident_bytes().saturating_sub(before);
    // 5,000 instances of 4 MiB would be 20 GiB.
    assert!(grown < 256 << 20, "{grown} bytes");
}

/// A guest that writes its configuration's words to its first entry, and the rest of it to 8192.
fn forger(config: &[u8]) -> Instance {
    static POLICY: std::sync::LazyLock<tollgate_policy_host::Policy> = std::sync::LazyLock::new(
        || {
            Parts {
            manifest: r#"(@custom "tollgate.manifest" "{\"abi\":1,\"name\":\"t\",\"hooks\":[\"request\"],\"capabilities\":[\"change\",\"delay\",\"priority\",\"route\"],\"methods\":[{\"method\":\"a.B/C\",\"fields\":[\"x\"],\"changes\":[\"a\",\"b\",\"c\"],\"metadata_changes\":[\"k\",\"k-bin\"]}]}")"#.to_owned(),
            configure: configure("(memory.copy (i32.const 8176) (i32.const 1024) (local.get 0)) i32.const 0"),
            ..Parts::with_request("(memory.copy (i32.const 1036) (i32.const 8176) (i32.const 16)) i32.const 0")
        }
        .load()
        .unwrap()
        },
    );
    let limits = limits();
    let setup = Setup {
        config: Some(config),
        granted: Capabilities::ALL,
        ..Setup::new(&limits)
    };
    POLICY.instantiate(&setup).unwrap()
}

fn record() -> impl Strategy<Value = [u32; 4]> {
    let mostly = |range: std::ops::Range<u32>| prop_oneof![9 => range, 1 => any::<u32>()];
    (
        mostly(1..10),
        mostly(0..4),
        mostly(0..66_000),
        mostly(0..66_000),
    )
        .prop_map(|(kind, field, low, high)| match kind {
            // Half of these are valid.
            6..=8 => [kind, field / 2, low % 16, high & 1],
            _ => [kind, field, low, high],
        })
}

/// Whether each record is allowed, if everything else is valid; computed without the host's code.
fn is_sound([kind, field, low, high]: [u32; 4]) -> bool {
    let inside = u64::from(low) + u64::from(high) <= 65_536;
    match kind {
        1 | 2 => field < 3,
        3 => field < 3 && inside,
        // The guest's memory isn't text, unless it is empty.
        4 => inside && high <= 8192 && (field == 1 || (field == 0 && high == 0)),
        5 => field < 2,
        6 => field == 0 && high == 0 && low <= 1_000_000,
        7 => field == 0 && high == 0 && low <= 7,
        // Nor is it a label.
        _ => false,
    }
}

/// The effects of a list of sound records, without the bytes of values.
fn meant(records: &[[u32; 4]]) -> Effects {
    let mut meant = Effects::default();
    for &[kind, field, low, high] in records {
        let bytes = vec![0; high as usize];
        let value = match kind {
            1 => Value::Clear,
            2 => Value::Bits(u64::from(low) | u64::from(high) << 32),
            _ => Value::Bytes(bytes.clone()),
        };
        match kind {
            1..=3 => meant.fields.push(FieldChange { field, value }),
            4 | 5 => meant.metadata.push(MetadataChange {
                key: field,
                value: (kind == 4).then_some(bytes),
            }),
            6 => meant.delay_us = low,
            _ => meant.priority = Some(low as u8),
        }
    }
    meant
}

/// The bytes of values don't matter here.
fn without_bytes(mut effects: Effects) -> Effects {
    for change in &mut effects.fields {
        if let Value::Bytes(bytes) = &mut change.value {
            bytes.fill(0);
        }
    }
    for change in &mut effects.metadata {
        change.value.iter_mut().for_each(|bytes| bytes.fill(0));
    }
    effects
}

proptest! {
    /// Lists of any shape: exactly the lists that the ABI allows are effects, computed here again
    /// without the host's code.
    #[test]
    fn any_effect_list_is_effects_or_a_fault(
        records in proptest::collection::vec(record(), 0..5),
        len in prop_oneof![8 => Just(None), 1 => any::<u32>().prop_map(Some), 1 => (0u32..1000).prop_map(Some)],
        at in prop_oneof![8 => Just(8192u32), 1 => any::<u32>(), 1 => 65_500u32..65_600],
    ) {
        let len = len.unwrap_or(16 * records.len() as u32);
        let words = [3, 0, at, len];
        let config: Vec<u8> = words.iter().chain(records.iter().flatten()).flat_map(|w| w.to_le_bytes()).collect();
        let mut instance = forger(&config);
        let verdict = evaluate(&mut instance);
        let inside = |at: u32, len: u32| u64::from(at) + u64::from(len) <= 65_536;
        let list_is_whole = at == 8192 && len as usize == 16 * records.len();
        // Items that may occur once: a field, a key, each of the other kinds.
        let mut once: Vec<(u32, u32)> = records.iter().map(|r| (match r[0] { 1..=3 => 1, 4 | 5 => 4, kind => kind }, r[1])).collect();
        once.sort_unstable();
        once.dedup();
        let sound = once.len() == records.len()
            && records.iter().all(|r| is_sound(*r))
            && records.iter().filter(|r| [3, 4].contains(&r[0])).map(|r| u64::from(r[3])).sum::<u64>() <= limits::CHANGED_BYTES as u64;
        match verdict {
            Ok(Verdict::Allow) => prop_assert!(len == 0 || (sound && meant(&records).is_empty()) || !list_is_whole),
            Ok(Verdict::Effects(effects)) if list_is_whole => {
                prop_assert!(sound, "{:?}", records);
                prop_assert_eq!(without_bytes(*effects), meant(&records));
            }
            // A list at another address consists of arbitrary bytes; it must lie in memory.
            Ok(Verdict::Effects(_)) => prop_assert!(inside(at, len) && len.is_multiple_of(16)),
            Err(Fault::BadEffect { .. } | Fault::BadMetadata { .. } | Fault::EffectOutside { .. }) => {
                prop_assert!(!list_is_whole || !sound, "{:?}", records);
                prop_assert!(instance.is_dead());
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
