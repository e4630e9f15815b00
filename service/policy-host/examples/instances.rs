//! Measures the cost of instances: one per call (`fresh`), and 10,000 at once.
//!
//! ```sh
//! cargo build --profile policy --target wasm32-unknown-unknown -p policy-null
//! cargo run --release -p tollgate-policy-host --example instances -- target/wasm32-unknown-unknown/policy/null.wasm
//! ```

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::time::Instant;

use tollgate_policy_host::{Hook, Host, HostConfig, Policy, Setup, TenantLimits, Verdict};

type Outcome = Result<(), Box<dyn Error>>;

const INSTANCES: u32 = 10_000;

/// The minimum that the ABI allows: one page of memory, no data.
const SMALLEST: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "tollgate_abi_v1"))
  (func (export "tollgate_buffer") (param i32) (result i32) i32.const 1024)
  (func (export "tollgate_configure") (param i32) (result i32) i32.const 0)
  (func (export "tollgate_request") (param i32) (result i32) (i32.store (i32.const 1036) (i32.const 1)) i32.const 0)
  (@custom "tollgate.manifest" "{\"abi\":1,\"name\":\"smallest\",\"hooks\":[\"request\"],\"methods\":[{\"method\":\"*\"}]}"))"#;

fn main() -> Outcome {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: instances NULL.WASM")?;
    let wasm = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
    let before = Process::now()?;
    let host = Host::new(HostConfig {
        instances: INSTANCES,
        ..HostConfig::default()
    })?;
    report("the pool of 10,000", &before, &Process::now()?);
    println!(
        "calibrated: {} units per us",
        host.calibrated().units_per_microsecond()
    );
    for wasm in [wat::parse_str(SMALLEST)?, wasm] {
        let policy = host.load(&wasm)?;
        println!("\n{}, {} bytes", policy.manifest().name(), wasm.len());
        fresh(&policy)?;
        many(&policy)?;
    }
    Ok(())
}

/// An instance per call: created, used once, dropped.
fn fresh(policy: &Policy) -> Outcome {
    let limits = TenantLimits::default();
    let mut samples = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        for _ in 0..500 {
            let mut instance = policy.instantiate(&Setup::new(&limits))?;
            evaluate(&mut instance)?;
        }
        samples.push(start.elapsed().as_nanos() / 500);
    }
    samples.sort_unstable();
    let mut instance = policy.instantiate(&Setup::new(&limits))?;
    let setup_fuel = instance.fuel_used();
    evaluate(&mut instance)?;
    println!(
        "fresh: {} ns per call, at best {} ns; {setup_fuel} units of fuel for the set-up, {} for the call",
        samples[samples.len() / 2],
        samples[0],
        instance.fuel_used()
    );
    Ok(())
}

/// As many as the pool has, alive at once; each has evaluated a call.
fn many(policy: &Policy) -> Outcome {
    let limits = TenantLimits::default();
    let before = Process::now()?;
    let start = Instant::now();
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(policy.instantiate(&Setup::new(&limits))?);
    }
    let took = start.elapsed();
    report("10,000 instances", &before, &Process::now()?);
    let start = Instant::now();
    for instance in &mut instances {
        evaluate(instance)?;
    }
    println!(
        "{:.0} instantiations per second; the first call of each takes {} ns",
        f64::from(INSTANCES) / took.as_secs_f64(),
        start.elapsed().as_nanos() / u128::from(INSTANCES)
    );
    report("after a call of each", &before, &Process::now()?);
    drop(instances);
    report("after their end", &before, &Process::now()?);
    Ok(())
}

fn evaluate(instance: &mut tollgate_policy_host::Instance) -> Outcome {
    let view = [8, 0, 0, 0, 0, 0, 0, 0];
    let verdict = instance.evaluate::<Infallible>(Hook::Request, 0, 8, |room| {
        room.copy_from_slice(&view);
        Ok(8)
    })?;
    assert_eq!(verdict, Verdict::Allow);
    Ok(())
}

/// The kernel's data about this process.
struct Process {
    resident_kib: u64,
    page_tables_kib: u64,
    virtual_gib: u64,
    mappings: usize,
}

impl Process {
    fn now() -> Result<Process, Box<dyn Error>> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let kib = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        Ok(Process {
            resident_kib: kib("VmRSS:"),
            page_tables_kib: kib("VmPTE:"),
            virtual_gib: kib("VmSize:") >> 20,
            mappings: std::fs::read_to_string("/proc/self/maps")?.lines().count(),
        })
    }
}

fn report(what: &str, before: &Process, now: &Process) {
    let mib = |now: u64, before: u64| (now as f64 - before as f64) / 1024.0;
    println!(
        "{what}: {:+.1} MiB resident, {:+.1} MiB of page tables, {:+} GiB of addresses, {:+} mappings ({} in all)",
        mib(now.resident_kib, before.resident_kib),
        mib(now.page_tables_kib, before.page_tables_kib),
        now.virtual_gib as i64 - before.virtual_gib as i64,
        now.mappings as i64 - before.mappings as i64,
        now.mappings
    );
}
