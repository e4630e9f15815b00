//! The cost of instances: to create, keep, swap and lose one.

use std::convert::Infallible;

use tollgate_bench_sandbox::evaluating::view_of;
use tollgate_bench_sandbox::guests::{Guests, TRAP};
use tollgate_policy_host::{Hook, Instance, Policy, SharedState, StateLimits};

use crate::clock::Clock;
use crate::effort::Effort;

/// The results.
pub(crate) struct Life {
    /// Instances alive at once. Each belongs to another tenant and has evaluated a call.
    pub(crate) instances: u32,
    /// Their share of the process's resident memory, in bytes.
    pub(crate) resident: u64,
    /// Nanoseconds for each, in places of the pool that were never used before.
    pub(crate) first_ns: f64,
    /// Nanoseconds of each operation on one instance after the other, by repetition.
    pub(crate) each: Vec<(&'static str, Vec<f64>)>,
}

/// The names of [`Life::each`].
pub(crate) const AGAIN: &str = "an instance of null in a used place, and its end";
const FRESH: &str = "a fresh instance of null per call";
const FRESH_ACL: &str = "a fresh instance of the ACL with 10 names per call";
const SWAP: &str = "swap to a compiled module";
const SWAP_STATE: &str = "swap with 48 KiB of state";
const TRAPPED: &str = "a judgement that traps";

pub(crate) fn measure(effort: Effort) -> Result<Life, String> {
    let guests = Guests::new(effort.instances)?;
    // The memory that the first one touches isn't counted for any instance.
    drop(evaluated(guests.start(&guests.null, None)?)?);
    let (resident, first_ns) = alive_at_once(&guests, effort.instances)?;
    let mut each: Vec<(&'static str, Vec<f64>)> = Vec::new();
    for _ in 0..effort.repetitions {
        for (name, ns) in lives(&guests, effort.lives)? {
            match each.iter_mut().find(|(known, _)| *known == name) {
                Some((_, all)) => all.push(ns),
                None => each.push((name, vec![ns])),
            }
        }
    }
    Ok(Life {
        instances: effort.instances,
        resident,
        first_ns,
        each,
    })
}

fn alive_at_once(guests: &Guests, count: u32) -> Result<(u64, f64), String> {
    let before = resident()?;
    let mut all = Vec::with_capacity(count as usize);
    let clock = Clock::start();
    for _ in 0..count {
        all.push(guests.start(&guests.null, None)?);
    }
    let first_ns = clock.ns_each(count);
    // A tenant's policy also has a state, and has evaluated a call.
    let states: Vec<_> = all
        .iter()
        .map(|_| SharedState::new(&StateLimits::default()))
        .collect();
    let all: Vec<_> = all.into_iter().map(evaluated).collect::<Result<_, _>>()?;
    let after = resident()?;
    drop((all, states));
    Ok((after.saturating_sub(before), first_ns))
}

/// Lets it evaluate a call.
fn evaluated(mut instance: Instance) -> Result<Instance, String> {
    let verdict = instance.evaluate::<Infallible>(Hook::Request, 0, 8, |room| {
        room.copy_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0]);
        Ok(8)
    });
    verdict.map_err(|error| error.to_string())?;
    Ok(instance)
}

/// This process' resident memory.
fn resident() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read /proc/self/status: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .ok_or_else(|| "/proc/self/status has no VmRSS".to_owned())
}

fn lives(guests: &Guests, count: u32) -> Result<Vec<(&'static str, f64)>, String> {
    let timed = |once: &mut dyn FnMut() -> Result<(), String>| {
        let clock = Clock::start();
        for _ in 0..count {
            once()?;
        }
        Ok::<_, String>(clock.ns_each(count))
    };
    let (config, honest) = (names(10), view_of("honest customer"));
    let (null, acl, deed) = (&guests.null, &guests.acl, guests.deed("")?);
    let mut stable = guests.start(null, None)?;
    let mut stateful = guests.start(&deed, None)?;
    Ok(vec![
        (AGAIN, timed(&mut || guests.start(null, None).map(drop))?),
        (
            FRESH,
            timed(&mut || evaluated(guests.start(null, None)?).map(drop))?,
        ),
        (
            FRESH_ACL,
            timed(&mut || evaluated_by(guests, acl, &config, &honest))?,
        ),
        (
            SWAP,
            timed(&mut || {
                stable = guests.start(null, None)?;
                Ok(())
            })?,
        ),
        (
            SWAP_STATE,
            timed(&mut || {
                let mut successor = guests.start(&deed, None)?;
                let saved = stateful.save().map_err(|fault| fault.to_string())?;
                let saved = saved.ok_or("the module has a state")?;
                successor
                    .restore(1, &saved)
                    .map_err(|fault| fault.to_string())?;
                stateful = successor;
                Ok(())
            })?,
        ),
        (TRAPPED, trapped(guests, count.min(50))?),
    ])
}

fn names(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|k| format!("customer {k}")).collect();
    serde_json::json!({ "blocked": names }).to_string()
}

/// Evaluates a call by a customer who isn't on the list.
fn evaluated_by(guests: &Guests, policy: &Policy, config: &str, view: &[u8]) -> Result<(), String> {
    let mut instance = guests.start(policy, Some(config.as_bytes()))?;
    let verdict = instance.evaluate::<Infallible>(Hook::Request, 0, view.len(), |room| {
        room.copy_from_slice(view);
        Ok(view.len())
    });
    verdict.map(drop).map_err(|error| error.to_string())
}

/// Times only the evaluations. The instances are made before and end afterwards.
fn trapped(guests: &Guests, count: u32) -> Result<f64, String> {
    let policy = guests.deed(TRAP)?;
    let mut all = (0..count)
        .map(|_| guests.start(&policy, None))
        .collect::<Result<Vec<_>, _>>()?;
    let clock = Clock::start();
    for instance in &mut all {
        let verdict = instance.evaluate::<Infallible>(Hook::Request, 0, 8, |_| Ok(8));
        if verdict.is_ok() {
            return Err("a module that traps has returned a verdict".to_owned());
        }
    }
    Ok(clock.ns_each(count))
}
