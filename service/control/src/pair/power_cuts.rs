//! Power cuts: the store runs on two simulated files, and at some moment a part of the unsynced
//! data is lost.
//!
//! Every write, change of length and sync of both files is recorded in one order, with the audit
//! log at that time. A cut keeps each file's state at its last sync. Of the later writes, each
//! sector, or each byte, or a prefix survives or doesn't; so does a change of the length. The audit
//! log is cut with them. Some starts are cut as well. Then a real start has to find the state after
//! the last acknowledged change, or after the one in progress.
//!
//! 60 seeds; more: `TOLLGATE_POWER_CUTS=20000 cargo test -p tollgate-control power`. A failure
//! names its seed: `TOLLGATE_POWER_CUT=17`.
#![allow(clippy::unwrap_used)]

use std::io::Result as IoResult;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redb::StorageBackend;
use serde_json::json;

use super::{COPY, FILE, Look, Pair, look};
use crate::audit::{self, Actor, Event};
use crate::tests::{Contents, contents_of};
use crate::{
    Attachment, FIRST_CREDENTIAL, Options, Owner, Party, Selection, Side, Slot, Store, Target,
};

/// The largest unit that a disk writes atomically.
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Length(usize),
    Sync,
}

impl Step {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Step::Write(at, bytes) => file[*at..at + bytes.len()].copy_from_slice(bytes),
            Step::Length(len) => file.resize(*len, 0),
            Step::Sync => {}
        }
    }
}

/// The operations on both files, in order.
#[derive(Debug)]
struct Trace {
    steps: Mutex<Vec<Happened>>,
    /// The audit log, a real file: each append is synced before the next step.
    log: PathBuf,
    /// Whether a sync has an effect: the simulation has to notice if not.
    has_syncs: bool,
}

#[derive(Debug)]
struct Happened {
    file: &'static str,
    step: Step,
    log: Vec<u8>,
}

impl Trace {
    fn new(state: &Path, has_syncs: bool) -> Arc<Trace> {
        Arc::new(Trace {
            steps: Mutex::default(),
            log: state.join(audit::FILE),
            has_syncs,
        })
    }

    fn len(&self) -> usize {
        self.steps.lock().unwrap().len()
    }

    fn log(&self) -> Vec<u8> {
        std::fs::read(&self.log).unwrap_or_default()
    }
}

/// A file in memory that records its operations.
#[derive(Debug)]
struct Simulated {
    name: &'static str,
    now: Mutex<Vec<u8>>,
    trace: Arc<Trace>,
}

impl Simulated {
    /// Both files, with their initial contents.
    fn pair(before: &[Vec<u8>; 2], trace: &Arc<Trace>) -> Pair<Simulated> {
        let file = |name, now: &Vec<u8>| Simulated {
            name,
            now: Mutex::new(now.clone()),
            trace: Arc::clone(trace),
        };
        Pair {
            first: file(FILE, &before[0]),
            copy: file(COPY, &before[1]),
            _lock: None,
        }
    }

    fn happens(&self, step: Step) -> IoResult<()> {
        step.apply(&mut self.now.lock().unwrap());
        let happened = Happened {
            file: self.name,
            step,
            log: self.trace.log(),
        };
        self.trace.steps.lock().unwrap().push(happened);
        Ok(())
    }
}

impl StorageBackend for Simulated {
    fn len(&self) -> IoResult<u64> {
        Ok(self.now.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        let at = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.now.lock().unwrap()[at..at + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.happens(Step::Length(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> IoResult<()> {
        match self.trace.has_syncs {
            true => self.happens(Step::Sync),
            false => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.happens(Step::Write(usize::try_from(offset).unwrap(), data.into()))
    }
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }
}

/// How much of the unsynced data reached the disk.
enum Reached {
    /// Each piece of this many bytes separately, with this many chances in ten.
    Pieces(usize, usize),
    /// The first writes, up to this many steps.
    Beginning(usize),
}

impl Reached {
    fn random(random: &mut Random) -> Reached {
        let often = [0, 1, 5, 9, 10][random.below(5)];
        match random.below(3) {
            0 => Reached::Pieces(SECTOR, often),
            1 => Reached::Pieces(1, often),
            _ => Reached::Beginning(random.below(40)),
        }
    }

    /// Whether this piece of the step survives.
    fn keeps(&self, random: &mut Random, step: usize) -> bool {
        match self {
            Reached::Pieces(_, often) => random.below(10) < *often,
            Reached::Beginning(steps) => step < *steps,
        }
    }
}

/// A file after the cut.
fn after_cut<'a>(
    mut image: Vec<u8>,
    steps: impl Iterator<Item = &'a Step>,
    random: &mut Random,
) -> Vec<u8> {
    let mut pending: Vec<&Step> = Vec::new();
    for step in steps {
        pending.push(step);
        if matches!(step, Step::Sync) {
            for step in pending.drain(..) {
                step.apply(&mut image);
            }
        }
    }
    let reached = Reached::random(random);
    let piece = match reached {
        Reached::Pieces(bytes, _) => bytes,
        Reached::Beginning(_) => SECTOR,
    };
    for (k, step) in pending.into_iter().enumerate() {
        match step {
            Step::Length(len) if reached.keeps(random, k) => image.resize(*len, 0),
            Step::Write(at, bytes) => {
                for (n, bytes) in bytes.chunks(piece).enumerate() {
                    let at = at + n * piece;
                    // Data beyond a length that the disk doesn't know is lost.
                    if at + bytes.len() <= image.len() && reached.keeps(random, k) {
                        image[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                }
            }
            _ => {}
        }
    }
    image
}

/// A moment between two changes: the number of operations, and the contents.
struct Acknowledged {
    steps: usize,
    contents: Contents,
    log: Vec<u8>,
}

/// One life of a store, from a start to a power cut.
struct Life {
    before: [Vec<u8>; 2],
    log: Vec<u8>,
    /// The allowed states until the start is over.
    at_start: Vec<Contents>,
    trace: Arc<Trace>,
    moments: Vec<Acknowledged>,
}

/// The required state after a cut.
struct Expected {
    any_of: Vec<Contents>,
    /// The audit log's beginning.
    log: Vec<u8>,
}

fn owner() -> Owner {
    Owner::Tenant("acme".to_owned())
}

/// Makes a random change; many are rejected and have no effect.
pub(super) fn change(store: &Store, random: &mut Random) {
    let name = ["acl", "limit", "log"][random.below(3)];
    match random.below(11) {
        0 => drop(store.add_tenant(Actor::Daemon, &format!("t{}", random.below(9)))),
        1 | 2 => {
            // Some modules are shared, some span pages.
            let bytes = [10, 10, 3_000, 60_000][random.below(4)];
            let module = vec![random.below(4) as u8; bytes];
            let config = random.below(2) == 0;
            let config = config.then_some(&b"{}"[..]);
            drop(store.push_policy(Actor::Daemon, &owner(), name, &module, config));
        }
        3 | 4 => {
            let target = Target {
                party: Party::Tenant,
                tenant: "acme".to_owned(),
                service: format!("s{}", random.below(4)),
                method: String::new(),
                side: Side::Server,
            };
            let attachment = Attachment {
                target,
                policy: name.to_owned(),
                slot: Slot::enforcing(1 + random.below(3) as u32),
                options: Options::default(),
            };
            drop(store.put(Actor::Daemon, Event::Attach, json!({}), &[attachment]));
        }
        5 => drop(store.detach(Actor::Daemon, &owner(), name, &Selection::default())),
        6 => {
            let grace = Duration::from_secs(3_600 * random.below(2) as u64);
            drop(store.rotate_credential(
                Actor::Daemon,
                &Owner::Tenant("acme".to_owned()),
                FIRST_CREDENTIAL,
                grace,
            ));
        }
        7 => {
            let version = random.below(4) as u32;
            let version = (version > 0).then_some(version);
            drop(store.delete_policy(Actor::Daemon, &owner(), name, version));
        }
        8 => drop(store.remove_tenant(Actor::Daemon, &format!("t{}", random.below(9)))),
        9 if random.below(4) == 0 => drop(store.remove_tenant(Actor::Daemon, "acme")),
        9 => drop(store.add_tenant(Actor::Daemon, "acme")),
        _ => {
            let details = json!({"why": "x".repeat(random.below(2_000))});
            drop(store.record(Actor::Daemon, Event::Fault, details));
        }
    }
}

impl Life {
    fn live(
        state: &Path,
        at_start: Vec<Contents>,
        changes: usize,
        has_syncs: bool,
        random: &mut Random,
    ) -> Life {
        let before = [FILE, COPY].map(|name| std::fs::read(state.join(name)).unwrap());
        let trace = Trace::new(state, has_syncs);
        let log = trace.log();
        let store = Store::on(Simulated::pair(&before, &trace), state).unwrap();
        let acknowledged = || Acknowledged {
            steps: trace.len(),
            contents: contents_of(&store),
            log: trace.log(),
        };
        let mut moments = vec![acknowledged()];
        for _ in 0..changes {
            change(&store, random);
            moments.push(acknowledged());
        }
        // The power may also be cut at the end.
        drop(store);
        Life {
            before,
            log,
            at_start,
            trace,
            moments,
        }
    }

    /// Cuts the power and leaves the remains in the directory.
    fn cut(self, state: &Path, random: &mut Random) -> Expected {
        let steps = self.trace.steps.lock().unwrap();
        let cut = random.below(steps.len() + 1);
        for (name, before) in [FILE, COPY].into_iter().zip(self.before) {
            let of_it = steps[..cut].iter().filter(|happened| happened.file == name);
            let image = after_cut(before, of_it.map(|happened| &happened.step), random);
            std::fs::write(state.join(name), image).unwrap();
        }
        let reached = self.moments.iter().rposition(|moment| moment.steps <= cut);
        let Some(reached) = reached else {
            // The start wasn't over.
            let before = cut.checked_sub(1).map(|last| steps[last].log.clone());
            let log = before.unwrap_or(self.log);
            std::fs::write(state.join(audit::FILE), &log).unwrap();
            return Expected {
                any_of: self.at_start,
                // A torn line that was completed may be torn again.
                log: Vec::new(),
            };
        };
        let at = &self.moments[reached];
        let mut left = at.log.clone();
        let log = match reached.checked_sub(1).map(|before| &self.moments[before]) {
            // The power was cut while the newest record was written.
            Some(before) if at.steps == cut && random.below(2) == 0 => {
                let line = at.log[before.log.len()..].to_vec();
                let torn = [
                    Step::Length(at.log.len()),
                    Step::Write(before.log.len(), line),
                ];
                left = after_cut(before.log.clone(), torn.iter(), random);
                before.log.clone()
            }
            _ => at.log.clone(),
        };
        std::fs::write(state.join(audit::FILE), left).unwrap();
        let next = self.moments.get(reached + 1);
        let any_of = [at].into_iter().chain(next);
        Expected {
            any_of: any_of.map(|moment| moment.contents.clone()).collect(),
            log,
        }
    }
}

/// In memory, if possible: the simulation needs no synced disk.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Three lives, each of which ends with a cut; returns the first error.
fn check(seed: u64, has_syncs: bool) -> Result<(), String> {
    let random = &mut Random(seed);
    let directory = scratch();
    let state = directory.path();
    let store = Store::open(state).unwrap();
    store.add_tenant(Actor::Daemon, "acme").unwrap();
    let mut found = contents_of(&store);
    drop(store);
    for _ in 0..3 {
        let changes = random.below(12);
        let life = Life::live(state, vec![found], changes, has_syncs, random);
        let mut expected = life.cut(state, random);
        if random.below(2) == 0 && matches!(look(&state.join(FILE)), Look::Whole(_)) {
            // Another start, up to its cut.
            std::fs::copy(state.join(FILE), state.join(COPY)).unwrap();
            let any_of = expected.any_of;
            let start = Life::live(state, any_of.clone(), 0, has_syncs, random);
            expected = start.cut(state, random);
            expected.any_of = any_of;
        }
        let store = Store::open(state).map_err(|error| error.to_string())?;
        found = contents_of(&store);
        if !expected.any_of.contains(&found) {
            let any_of = expected.any_of;
            return Err(format!("{found:#?}\nshould be one of {any_of:#?}"));
        }
        let logged = std::fs::read(state.join(audit::FILE)).unwrap();
        if !logged.starts_with(&expected.log) {
            return Err("records are lost".to_owned());
        }
        let verified = store.audit_verification().unwrap().run();
        verified.map_err(|edited| edited.to_string())?;
        let newest = store.audit_last(3).unwrap().concat();
        if newest.contains("\"broken\"") {
            return Err(newest);
        }
    }
    Ok(())
}

#[test]
fn the_power_may_go_at_any_moment() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("TOLLGATE_POWER_CUT") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TOLLGATE_POWER_CUTS").unwrap_or(60),
    };
    for seed in seeds {
        check(seed, true).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Checks the simulation: a disk that doesn't sync is noticed.
#[test]
fn a_power_cut_shows_what_was_not_synced() {
    let noticed = (0..20).filter(|&seed| check(seed, false).is_err());
    assert!(noticed.count() > 5);
}

/// The cost of a change: each file is synced once.
#[test]
fn a_change_syncs_each_file_once() {
    let state = tempfile::tempdir().unwrap();
    drop(Store::open(state.path()).unwrap());
    let before = std::fs::read(state.path().join(FILE)).unwrap();
    let trace = Trace::new(state.path(), true);
    let pair = Simulated::pair(&[before.clone(), before], &trace);
    let store = Store::on(pair, state.path()).unwrap();
    store.add_tenant(Actor::Daemon, "acme").unwrap();
    let module = vec![7; 1 << 20];
    let push = |module: &[u8]| {
        store
            .push_policy(Actor::Daemon, &owner(), "acl", module, None)
            .unwrap();
    };
    push(&module);
    let costs = |change: &dyn Fn()| {
        let before = trace.len();
        change();
        let steps = &trace.steps.lock().unwrap()[before..];
        let mut costs = [(0, 0); 2];
        for happened in steps {
            let (syncs, bytes) = &mut costs[usize::from(happened.file == COPY)];
            match &happened.step {
                Step::Sync => *syncs += 1,
                Step::Write(_, written) => *bytes += written.len(),
                Step::Length(_) => {}
            }
        }
        assert_eq!(costs[0], costs[1]);
        costs[0]
    };
    let (syncs, bytes) = costs(&|| push(b"small"));
    assert_eq!(syncs, 1);
    println!("a small change writes {bytes} bytes to each");
    assert!(
        bytes < 1 << 18,
        "{bytes}: the large module isn't written again"
    );
}
