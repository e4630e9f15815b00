//! The cost of an evaluation in the daemon, and in a separate process: spinning, and asleep.
//!
//! ```text
//! cargo run --profile bench -p tollgate-policy-host --example isolated
//! ```
//!
//! The guest allows everything; a view has 64 bytes. "asleep" posts one order after the process has
//! gone to sleep. The daemon's side yields meanwhile, like a runtime that was woken for other work.
//! Minimum and median of all rounds, interleaved.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_policy_host::isolated::{
    self, Channel, InstanceHandle, InstanceSetup, Order, Process, ProcessConfig,
};
use tollgate_policy_host::{
    Capabilities, Hook, Host, HostConfig, Policy, PolicyTime, Setup, TenantLimits,
};
use tollgate_shm_abi::wait::now_ns;

const GUEST: &str = r#"(module
  (memory (export "memory") 2)
  (func (export "tollgate_abi_v1"))
  (func (export "tollgate_buffer") (param i32) (result i32) (i32.const 1024))
  (func (export "tollgate_configure") (param i32) (result i32) (i32.const 0))
  (func (export "tollgate_request") (param i32) (result i32) (local i32)
    (local.set 1 (i32.const 1024))
    (loop
      (i32.store offset=12 (local.get 1) (i32.const 1))
      (local.set 1 (i32.add (local.get 1) (i32.const 32)))
      (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
    (i32.const 0))
  (@custom "tollgate.manifest" "{\"abi\":1,\"name\":\"t\",\"hooks\":[\"request\"],\"methods\":[{\"method\":\"*\"}]}"))"#;

const ROUNDS: usize = 40;
const VIEW: [u8; 64] = [8; 64];

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == isolated::ARGUMENT) {
        return isolated::main(words);
    }
    let host = Host::new(HostConfig {
        instances: 4,
        ..HostConfig::default()
    });
    let policy = host.unwrap().load(&wat::parse_str(GUEST).unwrap()).unwrap();
    let began = now_ns();
    let config = ProcessConfig {
        spin: Duration::from_millis(1),
        ..ProcessConfig::default()
    };
    let (process, mut channel) = Process::start(&config).unwrap();
    let limits = TenantLimits::default();
    let instance = process.instantiate(&InstanceSetup {
        policy: &policy,
        limits: &limits,
        config: None,
        granted: Capabilities::default(),
        state: "t",
        fresh: false,
    });
    let instance = instance.unwrap();
    println!("started and seated in {} us", (now_ns() - began) / 1000);
    let again = now_ns();
    drop(process.instantiate(&InstanceSetup {
        policy: &policy,
        limits: &limits,
        config: None,
        granted: Capabilities::default(),
        state: "t",
        fresh: false,
    }));
    println!("a second seat in {} us", (now_ns() - again) / 1000);
    println!("ns per call        calls   minimum    median");
    for calls in [1, 8] {
        let mut here = Vec::new();
        let mut spinning = Vec::new();
        let mut piped = Vec::new();
        let mut asleep = Vec::new();
        for _ in 0..ROUNDS {
            here.push(in_process(&policy, &limits, calls));
            spinning.push(one_by_one(&mut channel, &instance, &policy, calls, 2_000));
            piped.push(pipelined(&mut channel, &instance, &policy, calls));
            std::thread::sleep(Duration::from_millis(3));
            asleep.push(sleeping(&mut channel, &instance, &policy, calls));
        }
        for (what, mut all) in [
            ("in the daemon", here),
            ("apart, spinning", spinning),
            ("apart, 16 under way", piped),
            ("apart, asleep", asleep),
        ] {
            all.sort_unstable();
            println!("{what:20} {calls:3} {:9} {:9}", all[0], all[ROUNDS / 2]);
        }
    }
    ExitCode::SUCCESS
}

fn in_process(policy: &Policy, limits: &TenantLimits, calls: usize) -> u64 {
    let mut instance = policy.instantiate(&Setup::new(limits)).unwrap();
    let (began, times) = (now_ns(), 20_000);
    for _ in 0..times {
        let mut batch = instance
            .batch(Hook::Request, calls, VIEW.len() * calls)
            .unwrap();
        for _ in 0..calls {
            batch.push(0, VIEW.len(), write).unwrap();
        }
        batch.evaluate(|_, _| {}).unwrap();
    }
    (now_ns() - began) / (times * calls as u64)
}

fn write(room: &mut [u8]) -> Result<usize, Infallible> {
    room[..VIEW.len()].copy_from_slice(&VIEW);
    Ok(VIEW.len())
}

fn post(channel: &mut Channel, instance: &InstanceHandle, policy: &Policy, calls: usize) {
    let order = Order {
        instance,
        now_ns: now_ns(),
        time: PolicyTime::default(),
        budget_ns: 1_000_000_000,
        fuel_per_call: 0,
    };
    let bytes = VIEW.len() * calls;
    let mut evaluation = channel
        .begin(order, policy, Hook::Request, calls, bytes)
        .unwrap();
    for _ in 0..calls {
        evaluation.push(0, VIEW.len(), write).unwrap();
    }
    evaluation.post().unwrap();
    channel.flush();
}

fn wait(channel: &mut Channel) {
    while channel.take(now_ns()).is_none() {
        rustix::thread::sched_yield();
    }
}

fn one_by_one(
    channel: &mut Channel,
    instance: &InstanceHandle,
    policy: &Policy,
    calls: usize,
    times: u64,
) -> u64 {
    let began = now_ns();
    for _ in 0..times {
        post(channel, instance, policy, calls);
        wait(channel);
    }
    (now_ns() - began) / (times * calls as u64)
}

fn pipelined(
    channel: &mut Channel,
    instance: &InstanceHandle,
    policy: &Policy,
    calls: usize,
) -> u64 {
    let (began, times) = (now_ns(), 2_000);
    for _ in 0..times {
        post(channel, instance, policy, calls);
        while channel.under_way() >= 16 {
            wait(channel);
        }
    }
    while channel.under_way() > 0 {
        wait(channel);
    }
    (now_ns() - began) / (times * calls as u64)
}

/// One order, after the process has gone to sleep; the daemon's side yields, like a runtime with
/// other work.
fn sleeping(
    channel: &mut Channel,
    instance: &InstanceHandle,
    policy: &Policy,
    calls: usize,
) -> u64 {
    one_by_one(channel, instance, policy, calls, 1)
}
