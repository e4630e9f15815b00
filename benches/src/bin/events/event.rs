//! How events are measured: what happens, to which hosts, and what is observed.
//!
//! Each event has fresh hosts. For each of its loads the capacity is measured first. Then the load
//! runs alternately without the event and with it, so that the machine's own pauses are known. The
//! claims about the numbers are in [`crate::report`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::chain::Chain;
use tollgate_conformance::module::stamping;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, Testbed, policy_file, run};

use crate::load::{Clock, Evaluated, Lane, Load, SERVICE, STAMPS, Tenant, evaluated_so_far};
use crate::model::{
    AFTERMATH_NS, CRASH, Event, FAILED, HUNG, LIMIT, ROLLING, SHARES, STEADY, SWAP, Sample, Share,
    UPGRADE, UPGRADE_SERVER,
};
use crate::recording::{MS, Mark, Recording};

const TENANT: &str = "bench";

/// Number of repetitions, and lengths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Number of turns with and without the event.
    turns: usize,
    capacity_ms: u64,
    /// Time before and after the event, in ms.
    around_ms: u64,
    swap_ms: u64,
    /// Length of each phase of a rate limit, in ms: with it, with an unreachable one, without.
    phase_ms: u64,
    limits: usize,
    /// Upgrades in each turn.
    upgrades: usize,
    /// Failures of each kind in each turn.
    failures: usize,
    rolling_turns: usize,
    crashes: usize,
}

impl Size {
    /// For results.
    pub(crate) const FULL: Size = Size {
        turns: 5,
        capacity_ms: 500,
        around_ms: 100,
        swap_ms: 1_000,
        phase_ms: 200,
        limits: 2,
        upgrades: 20,
        failures: 2,
        rolling_turns: 2,
        crashes: 5,
    };

    /// For a smoke test.
    pub(crate) const SHORT: Size = Size {
        turns: 1,
        capacity_ms: 100,
        around_ms: 30,
        swap_ms: 300,
        phase_ms: 60,
        limits: 2,
        upgrades: 2,
        failures: 1,
        rolling_turns: 1,
        crashes: 1,
    };
}

/// Time between two events of one kind, in ms.
const APART_MS: u64 = 60;

/// The rate of swaps per second, a little higher than the claim.
const SWAPS_PER_S: f64 = 1_010.0;

/// The relative tolerance of a rate limit within ten milliseconds, because its clock ticks once in
/// ten milliseconds.
const TOLERANCE: f64 = 0.2;

/// One load on the hosts of an event, and its measured facts.
struct Trial<'l> {
    lane: &'l Lane,
    load: Load,
    evaluated: Evaluated,
    size: Size,
    sample: Sample,
}

impl<'l> Trial<'l> {
    fn new(
        event: &'static Event,
        share: &'static Share,
        lane: &'l Lane,
        evaluated: Evaluated,
        size: Size,
    ) -> Result<Trial<'l>, String> {
        let mut trial = Trial {
            lane,
            load: Load {
                in_flight: share.in_flight,
                rate: None,
            },
            evaluated,
            size,
            sample: Sample::new(event, share),
        };
        let all = trial.run(|clock| {
            clock.wait(size.capacity_ms);
            Ok(())
        })?;
        let capacity = all.rate(all.until_ns / 5, all.until_ns);
        if capacity < 2.0 {
            return Err(format!("no call is answered: {:?}", all.failures));
        }
        trial.sample.push("capacity", capacity);
        trial.load.rate = share.share.map(|share| (capacity * share) as u32);
        trial.sample.push("offered", trial.offered());
        Ok(trial)
    }

    /// The offered rate, in calls per second.
    fn offered(&self) -> f64 {
        let capacity = || self.sample.last("capacity");
        self.load.rate.map_or_else(capacity, f64::from)
    }

    /// Runs the load while something happens.
    fn run(
        &mut self,
        happens: impl FnOnce(&mut Clock<'_>) -> Result<(), String>,
    ) -> Result<Recording, String> {
        let (recording, ()) = self.lane.under(self.load, self.evaluated, happens)?;
        let counts = recording.counts(|number| self.lane.served(number));
        self.sample.count(counts, &recording.failures);
        Ok(recording)
    }

    /// One run without the event and one with it, in either order.
    fn pair(
        &mut self,
        turn: usize,
        quiet_ms: u64,
        happens: impl FnOnce(&mut Clock<'_>) -> Result<(), String>,
    ) -> Result<[Recording; 2], String> {
        let around_ms = self.size.around_ms;
        let quiet = |clock: &mut Clock<'_>| {
            clock.wait(quiet_ms + 2 * around_ms + AFTERMATH_NS / MS);
            Ok(())
        };
        let eventful = |clock: &mut Clock<'_>| {
            clock.wait(around_ms);
            happens(clock)?;
            clock.wait(around_ms);
            Ok(())
        };
        let (quiet, eventful) = if turn.is_multiple_of(2) {
            let quiet = self.run(quiet)?;
            (quiet, self.run(eventful)?)
        } else {
            let eventful = self.run(eventful)?;
            (self.run(quiet)?, eventful)
        };
        if turn == 0 {
            self.sample.draw(&eventful);
        }
        Ok([quiet, eventful])
    }

    /// Like [`pair`](Self::pair), and looks for the longest gap around each mark. In the run
    /// without the event it looks in intervals of the same lengths.
    fn gaps(
        &mut self,
        turn: usize,
        quiet_ms: u64,
        happens: impl FnOnce(&mut Clock<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let [quiet, eventful] = self.pair(turn, quiet_ms, happens)?;
        let mut from_ns = self.size.around_ms * MS;
        for mark in &eventful.marks {
            let gap = eventful.longest_gap_ns(mark.from_ns, mark.to_ns + AFTERMATH_NS);
            self.sample.push("gap_ms", ms(gap));
            let to_ns = from_ns + mark.to_ns - mark.from_ns + AFTERMATH_NS;
            // If not even one interval fits, because the event took longer than it should, the
            // comparison uses the available part of the run.
            if to_ns <= quiet.until_ns || eventful.marks.len() == 1 {
                self.sample
                    .push("quiet_gap_ms", ms(quiet.longest_gap_ns(from_ns, to_ns)));
                from_ns = to_ns;
            }
        }
        Ok(())
    }
}

fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

/// One or two hosts, with calls between their applications.
struct Stage {
    lane: Lane,
    a: Daemon,
    b: Option<Daemon>,
    /// The program that replaces the daemons.
    next: PathBuf,
    bed: Testbed,
}

impl Stage {
    fn options() -> Options {
        Options {
            // This measurement isn't about how a tenant pays for its policies.
            config: "[policies]\ncpu_share_percent = 100\n".to_owned(),
            ..Options::default()
        }
    }

    fn one_host(options: &Options) -> Result<Stage, String> {
        let bed = Testbed::new();
        let a = bed.daemon_with("a", options);
        let token = a.tenant(TENANT);
        let own = Tenant::of(&a, &token);
        let lane = Lane::between(own, own)?;
        Ok(Stage {
            lane,
            a,
            b: None,
            next: successor(&bed),
            bed,
        })
    }

    fn two_hosts() -> Result<Stage, String> {
        let bed = Testbed::new();
        let [a, b] = ["a", "b"].map(|name| bed.daemon_with(name, &Stage::options()));
        let (token, its) = (a.tenant(TENANT), b.tenant(TENANT));
        let lane = Lane::between(Tenant::of(&a, &token), Tenant::of(&b, &its))?;
        Ok(Stage {
            lane,
            a,
            b: Some(b),
            next: successor(&bed),
            bed,
        })
    }
}

fn successor(bed: &Testbed) -> PathBuf {
    bed.successor("next", &program("tollgated").display().to_string())
}

/// Runs the event, and returns a sample per load.
pub(crate) fn measure(event: &'static Event, size: Size) -> Result<Vec<Sample>, String> {
    match event.name {
        _ if event == &SWAP => swaps(size),
        _ if event == &LIMIT => limits(size),
        _ if event == &UPGRADE => upgrades(event, Stage::one_host(&Stage::options())?, size),
        _ if event == &FAILED => failures(size),
        _ if event == &HUNG => hangs(size),
        _ if event == &ROLLING => rolls(size),
        _ if event == &CRASH => crashes(size),
        _ => upgrades(event, Stage::two_hosts()?, size),
    }
}

fn swaps(size: Size) -> Result<Vec<Sample>, String> {
    let Stage {
        lane,
        a,
        b: _b,
        bed: _bed,
        ..
    } = Stage::two_hosts()?;
    let mut admin = Admin::connect(&a);
    let place = Place::client(TENANT, SERVICE);
    for stamp in STAMPS {
        let pushed = admin.push(&place, "stamp", &stamping(stamp), None);
        pushed.map_err(|failure| format!("the policy is refused: {failure:?}"))?;
    }
    let attached = admin.attach(&place, "stamp", 1);
    attached.map_err(|failure| format!("the policy can't be attached: {failure:?}"))?;
    let (mut version, mut alone) = (1, 0);
    let mut samples: Vec<Sample> = Vec::new();
    for share in &STEADY {
        let mut trial = Trial::new(&SWAP, share, &lane, Evaluated::Stamped, size)?;
        for turn in 0..size.turns {
            let mut per_s = 0.0;
            let storm = |clock: &mut Clock<'_>| {
                clock.mark("swaps", || {
                    let (begun, until) = (Instant::now(), Duration::from_millis(size.swap_ms));
                    let mut swaps = 0;
                    while begun.elapsed() < until {
                        version = 3 - version;
                        let swapped = admin.swap(&place, "stamp", version);
                        swapped.map_err(|failure| format!("a swap is refused: {failure:?}"))?;
                        swaps += 1;
                        let due = Duration::from_secs_f64(f64::from(swaps) / SWAPS_PER_S);
                        std::thread::sleep(due.saturating_sub(begun.elapsed()));
                    }
                    per_s = f64::from(swaps) / begun.elapsed().as_secs_f64();
                    Ok(())
                })
            };
            trial.gaps(turn, size.swap_ms, storm)?;
            trial.sample.push("swaps_per_s", per_s);
            // Each swap has handed the policy's counter over to the next version.
            let evaluated = evaluated_so_far(lane.call()?);
            alone += 1;
            let before = samples.iter().map(|sample| sample.last("calls"));
            let all = before.sum::<f64>() as u64 + trial.sample.last("calls") as u64 + alone;
            let off = all.wrapping_sub(evaluated) % (1 << 24);
            trial.sample.push("state_off", off as f64);
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}

fn limits(size: Size) -> Result<Vec<Sample>, String> {
    let Stage {
        lane,
        a,
        b: _b,
        bed: _bed,
        ..
    } = Stage::two_hosts()?;
    let mut admin = Admin::connect(&a);
    let place = Place::client(TENANT, SERVICE).granting(&["state", "clock"]);
    let module = std::fs::read(policy_file("rate_limit"))
        .map_err(|error| format!("the policy can't be read: {error}"))?;
    let push = |admin: &mut Admin, limit: RateLimit| {
        let RateLimit { per_second, burst } = limit;
        let config = format!(
            r#"{{"fields": ["customer_name"], "methods": ["hotel.Reservation/Reserve"],
                "per_second": {per_second}, "burst": {burst}}}"#
        );
        let pushed = admin.push(&place, "rate-limit", &module, Some(config.as_bytes()));
        pushed.map_err(|failure| format!("the policy is refused: {failure:?}"))
    };
    let endless = push(
        &mut admin,
        RateLimit {
            per_second: 1e6,
            burst: 1e6,
        },
    )?;
    let mut samples = Vec::new();
    for share in SHARES {
        let mut trial = Trial::new(&LIMIT, share, &lane, Evaluated::Limited, size)?;
        let per_second = (trial.offered() / 2.0).round().max(1.0);
        // The calls that it lets through in two ticks of its clock.
        let burst = (per_second / 500.0).ceil();
        let limit = RateLimit { per_second, burst };
        let limited = push(&mut admin, limit)?;
        trial.sample.push("limit", per_second);
        for turn in 0..size.turns {
            let failed = |failure| format!("a rate limit is refused: {failure:?}");
            let cycles = |clock: &mut Clock<'_>| {
                for _ in 0..size.limits {
                    clock.wait(size.phase_ms);
                    clock
                        .mark("limit", || admin.attach(&place, "rate-limit", limited))
                        .map_err(failed)?;
                    clock.wait(size.phase_ms);
                    clock
                        .mark("endless", || admin.attach(&place, "rate-limit", endless))
                        .map_err(failed)?;
                    clock.wait(size.phase_ms);
                    clock
                        .mark("none", || admin.detach(&place, "rate-limit"))
                        .map_err(failed)?;
                    clock.wait(size.phase_ms);
                }
                Ok(())
            };
            let quiet_ms = size.limits as u64 * size.phase_ms * 4;
            let [quiet, eventful] = trial.pair(turn, quiet_ms, cycles)?;
            for cycle in eventful.marks.chunks_exact(3) {
                followed(&mut trial, cycle, limit, &eventful, &quiet);
            }
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}

/// The calls that a rate limit lets through.
#[derive(Debug, Clone, Copy)]
struct RateLimit {
    per_second: f64,
    burst: f64,
}

/// How the rate followed a limit's attachment, its end, and the end of the policy.
fn followed(
    trial: &mut Trial<'_>,
    cycle: &[Mark],
    limit: RateLimit,
    eventful: &Recording,
    quiet: &Recording,
) {
    let [attached, raised, detached] = cycle else {
        return;
    };
    let phase_ns = trial.size.phase_ms * MS;
    let before_ns = attached.from_ns - phase_ns;
    let before = eventful.rate(before_ns, attached.from_ns);
    let mut follows = |key: &str, from_ns: u64, to_ns: u64, rate: f64| {
        let found = eventful.follows_ns(from_ns, to_ns, rate, TOLERANCE);
        // Not found within the interval.
        let found = found.unwrap_or(to_ns - from_ns);
        trial.sample.push(key, ms(found));
    };
    follows("limit_ms", attached.to_ns, raised.from_ns, limit.per_second);
    // With an unreachable limit, calls take a little longer than without a policy. So the rate has
    // to reach its own level with that limit.
    let unlimited = eventful.rate(raised.to_ns + AFTERMATH_NS, detached.from_ns);
    follows("raise_ms", raised.to_ns, detached.from_ns, unlimited);
    // The machine stalls now and then, and so do the callers. That also happens in a run without
    // the event.
    let (from_ns, to_ns) = (raised.to_ns, detached.from_ns);
    let level = quiet.rate(from_ns + AFTERMATH_NS, to_ns);
    let quietly = quiet.follows_ns(from_ns, to_ns, level, TOLERANCE);
    let quietly = quietly.unwrap_or(to_ns - from_ns);
    trial.sample.push("quiet_raise_ms", ms(quietly));
    let after_ns = detached.to_ns + AFTERMATH_NS;
    let after = |recording: &Recording| recording.rate(after_ns, detached.to_ns + phase_ns);
    trial
        .sample
        .push("after_to_before", after(eventful) / before);
    trial.sample.push("endless_to_before", unlimited / before);
    let quietly = after(quiet) / quiet.rate(before_ns, attached.from_ns);
    trial.sample.push("quiet_after_to_before", quietly);

    let limited_s = (raised.from_ns - attached.to_ns) as f64 / 1e9;
    let served = eventful.rate(attached.to_ns, raised.from_ns) * limited_s;
    let in_flight = trial.load.in_flight as f64;
    // The clock is the wall clock, which may be adjusted.
    let most = limit.burst + limit.per_second * (limited_s * 1.05 + 0.002) + in_flight;
    trial.sample.push("over_limit", (served - most).max(0.0));
    let refused = |from_ns, to_ns| eventful.refused(from_ns, to_ns) as f64;
    trial
        .sample
        .push("refused", refused(attached.from_ns, raised.to_ns));
    let late = refused(raised.to_ns, detached.to_ns + phase_ns) - in_flight;
    trial.sample.push("refused_late", late.max(0.0));
}

/// Runs `tollgate upgrade`, which has to succeed. Returns the daemon's report of how long calls
/// stood still.
fn upgrade(daemon: &Daemon, next: &std::path::Path) -> Result<f64, String> {
    let program = next.display().to_string();
    let outcome = daemon.tollgate(["upgrade", "--binary", &program, "--json"]);
    let done = succeeded("an upgrade", &outcome)?;
    let done: serde_json::Value =
        serde_json::from_str(done).map_err(|error| format!("{error} in {done}"))?;
    Ok(done["pause_us"].as_f64().unwrap_or_default() / 1e3)
}

fn succeeded<'o>(what: &str, outcome: &'o Outcome) -> Result<&'o str, String> {
    match outcome.code {
        0 => Ok(&outcome.out),
        _ => Err(format!("{what} failed: {outcome}")),
    }
}

fn upgrades(event: &'static Event, stage: Stage, size: Size) -> Result<Vec<Sample>, String> {
    let daemon = match &stage.b {
        Some(b) if event == &UPGRADE_SERVER => b,
        _ => &stage.a,
    };
    let mut samples = Vec::new();
    for share in &STEADY {
        let mut trial = Trial::new(event, share, &stage.lane, Evaluated::Plainly, size)?;
        for turn in 0..size.turns {
            let mut pauses = Vec::new();
            let upgrades = |clock: &mut Clock<'_>| {
                for _ in 0..size.upgrades {
                    pauses.push(clock.mark("upgrade", || upgrade(daemon, &stage.next))?);
                    clock.wait(APART_MS);
                }
                Ok(())
            };
            trial.gaps(turn, size.upgrades as u64 * APART_MS, upgrades)?;
            for pause in pauses {
                trial.sample.push("pause_ms", pause);
            }
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}

fn failures(size: Size) -> Result<Vec<Sample>, String> {
    let stage = Stage::one_host(&Stage::options())?;
    let bed = &stage.bed;
    let crashes_late = format!("{} late-ends", program("false-successor").display());
    let kinds = [
        ("no program", bed.file("data", "no program"), "20s"),
        (
            "crash",
            bed.executable("dies", "#!/bin/sh\nkill -9 $$\n"),
            "20s",
        ),
        (
            "late crash",
            bed.successor("late-ends", &crashes_late),
            "20s",
        ),
        (
            "time-out",
            bed.executable("slow", "#!/bin/sh\nexec sleep 100\n"),
            "200ms",
        ),
    ];
    fail(&FAILED, &stage, &kinds, size)
}

fn hangs(size: Size) -> Result<Vec<Sample>, String> {
    let stage = Stage::one_host(&Stage::options())?;
    let waits = format!("{} late-waits", program("false-successor").display());
    let hangs = stage.bed.successor("late-waits", &waits);
    // Each failure takes seconds.
    let size = Size {
        turns: 1,
        failures: 2,
        ..size
    };
    fail(&HUNG, &stage, &[("hangs", hangs, "20s")], size)
}

/// Upgrades to programs that mustn't take over: the name of each, and its time to become ready.
fn fail(
    event: &'static Event,
    stage: &Stage,
    kinds: &[(&str, PathBuf, &str)],
    size: Size,
) -> Result<Vec<Sample>, String> {
    let mut samples = Vec::new();
    for share in &STEADY {
        let mut trial = Trial::new(event, share, &stage.lane, Evaluated::Plainly, size)?;
        for turn in 0..size.turns {
            let upgrades = |clock: &mut Clock<'_>| {
                for (what, program, timeout) in
                    kinds.iter().cycle().take(kinds.len() * size.failures)
                {
                    let program = program.display().to_string();
                    let line = ["upgrade", "--timeout", timeout, "--binary", &program];
                    let outcome = clock.mark(what, || stage.a.tollgate(line));
                    if outcome.code == 0 {
                        return Err(format!("`{what}` has taken over: {outcome}"));
                    }
                    clock.wait(APART_MS);
                }
                Ok(())
            };
            let count = (kinds.len() * size.failures) as u64;
            trial.gaps(turn, count * 2 * APART_MS, upgrades)?;
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}

fn rolls(size: Size) -> Result<Vec<Sample>, String> {
    let chain = Arc::new(Chain::on_networks());
    let lane = Lane::through(&chain);
    let next = chain.successor().display().to_string();
    let fleet = chain.fleet(|_| String::new()).display().to_string();
    let line = [
        "fleet", "upgrade", "run", "--binary", &next, "--fleet", &fleet,
    ];
    let mut samples = Vec::new();
    for share in &STEADY {
        let mut trial = Trial::new(&ROLLING, share, &lane, Evaluated::Plainly, size)?;
        for turn in 0..size.rolling_turns {
            let upgrades = |clock: &mut Clock<'_>| {
                let outcome = clock.mark("upgrade", || run(&program("tollgate"), line, b""));
                succeeded("the fleet's upgrade", &outcome).map(drop)
            };
            trial.gaps(turn, size.capacity_ms, upgrades)?;
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}

fn crashes(size: Size) -> Result<Vec<Sample>, String> {
    let options = Options {
        durable: true,
        ..Stage::options()
    };
    let mut stage = Stage::one_host(&options)?;
    let list = stage.bed.file("list.json", r#"{"blocked": ["Mallory"]}"#);
    let acl = format!("--tenant {TENANT}");
    let acl = stage.a.push(&acl, "acl", "acl", Some(&list));
    stage.a.ok(&format!(
        "policy attach {acl} --tenant {TENANT} --service {SERVICE} --side server"
    ));
    let mut samples = Vec::new();
    for share in &STEADY {
        let mut trial = Trial::new(&CRASH, share, &stage.lane, Evaluated::Plainly, size)?;
        for turn in 0..size.turns {
            let (daemon, bed) = (&mut stage.a, &stage.bed);
            let crashes = |clock: &mut Clock<'_>| {
                for _ in 0..size.crashes {
                    clock.mark("down", || {
                        daemon.process().kill();
                        *daemon = bed.daemon_with("a", &options);
                    });
                    clock.wait_for_service()?;
                    clock.wait(2 * APART_MS);
                }
                Ok(())
            };
            let [_, eventful] = trial.pair(turn, size.crashes as u64 * APART_MS, crashes)?;
            for mark in &eventful.marks {
                let again = eventful.served_again_ns(mark.from_ns);
                let again = again.ok_or("the calls after a crash show none")?;
                trial.sample.push("again_ms", ms(again - mark.from_ns));
                trial.sample.push("start_ms", ms(mark.to_ns - mark.from_ns));
            }
        }
        samples.push(trial.sample);
    }
    Ok(samples)
}
