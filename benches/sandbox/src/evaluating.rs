//! The operations per call. Each one has its loop inside, so a call costs the same as in the
//! daemon.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use tollgate_bench_marshal::messages::examples;
use tollgate_jit::Projector;
use tollgate_policy_host::{Hook, Instance, Verdict, limits};

use crate::guests::{DEEDS, Guests, Later, SAVED, access_list, blocked};

/// An operation per call. Its instance is made at first use, and lives as long as the job.
pub struct Job {
    /// Its table.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// Does the operation for this many calls, a multiple of 64.
    pub work: Box<dyn FnMut(u32)>,
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A policy of the catalogue evaluates.
    Evaluation,
    /// A hook of the smallest module.
    Hook,
    /// The cost that a host function adds to an evaluation.
    HostFunction,
}

/// Sizes of batches: a single call, and the daemon's batches.
pub const BATCHES: [usize; 4] = [1, 8, 16, 32];

/// All jobs.
///
/// # Errors
/// A module that isn't built, or isn't accepted.
pub fn jobs(guests: &Guests) -> Result<Vec<Job>, String> {
    let mut all = Vec::new();
    evaluations(guests, &mut all)?;
    hooks(guests, &mut all)?;
    host_functions(guests, &mut all)?;
    Ok(all)
}

/// `policy, alone` or `policy, in batches of n`.
fn named(policy: &str, batch: usize) -> String {
    match batch {
        1 => format!("{policy}, alone"),
        _ => format!("{policy}, in batches of {batch}"),
    }
}

fn evaluations(guests: &Guests, all: &mut Vec<Job>) -> Result<(), String> {
    let mut add = |name, work| {
        all.push(Job {
            part: Part::Evaluation,
            name,
            work,
        });
    };
    let nothing: View = Arc::new(|room| write(room, &EMPTY_VIEW));
    for batch in BATCHES {
        let null = guests.later(&guests.null, None);
        add(
            named("null", batch),
            work(null, Hook::Request, batch, &nothing, 8),
        );
    }
    let config = access_list();
    let acl = || guests.later(&guests.acl, Some(&config));
    // Like the daemon: projects the field of the message into the guest's memory.
    let example = examples().into_iter().find(|e| e.name == "ReserveRequest");
    let example = example.ok_or("the hotel service has reservations")?;
    let projector = Projector::new(&example.layouts, example.id, &["customer_name"]);
    let projector = projector.map_err(|error| error.to_string())?;
    projector.compile().map_err(|error| error.to_string())?;
    let (image, room) = (example.block, projector.projection().fixed_len() + 64);
    let projected: View = Arc::new(move |view| {
        let len = projector.project(black_box(&image), &[], view);
        len.expect("the message is valid and its view is small")
    });
    for batch in BATCHES {
        let name = named("ACL of 1,000 with its projection", batch);
        add(name, work(acl(), Hook::Request, batch, &projected, room));
    }
    let denied: View = {
        let view = view_of(&blocked(500));
        Arc::new(move |room| write(room, &view))
    };
    add(
        "ACL of 1,000, denied with a message".to_owned(),
        work(acl(), Hook::Request, 1, &denied, 64),
    );
    Ok(())
}

fn hooks(guests: &Guests, all: &mut Vec<Job>) -> Result<(), String> {
    let mut add = |name: &str, work| {
        all.push(Job {
            part: Part::Hook,
            name: name.to_owned(),
            work,
        });
    };
    let policy = guests.deed("")?;
    let nothing: View = Arc::new(|room| write(room, &EMPTY_VIEW));
    let instance = || guests.later(&policy, None);
    for (name, hook) in [("request", Hook::Request), ("reply", Hook::Reply)] {
        add(name, work(instance(), hook, 1, &nothing, 8));
    }
    let mut ticking = instance();
    let tick = move |times| {
        let instance = ticking.get();
        for _ in 0..times {
            instance.tick().expect("it ticks");
        }
    };
    add("tick", Box::new(tick));
    let mut saving = instance();
    let save = move |times| {
        let instance = saving.get();
        for _ in 0..times {
            black_box(instance.save().expect("it saves"));
        }
    };
    add("save, 48 KiB", Box::new(save));
    let (mut restoring, saved) = (instance(), [0; SAVED]);
    let restore = move |times| {
        let instance = restoring.get();
        for _ in 0..times {
            instance.restore(1, &saved).expect("it restores");
        }
    };
    add("restore, 48 KiB", Box::new(restore));
    Ok(())
}

fn host_functions(guests: &Guests, all: &mut Vec<Job>) -> Result<(), String> {
    let nothing: View = Arc::new(|room| write(room, &EMPTY_VIEW));
    for (name, deed) in DEEDS {
        let instance = guests.later(&guests.deed(deed)?, None);
        all.push(Job {
            part: Part::HostFunction,
            name: name.to_owned(),
            work: work(instance, Hook::Request, limits::BATCH, &nothing, 8),
        });
    }
    Ok(())
}

/// Writes a view, and returns its length.
type View = Arc<dyn Fn(&mut [u8]) -> usize>;

/// A view without fields.
const EMPTY_VIEW: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0];

/// A view with one string.
pub fn view_of(name: &str) -> Vec<u8> {
    let mut view = Vec::new();
    for word in [24 + name.len() as u32, 1, 1, name.len() as u32, 24, 0] {
        view.extend(word.to_le_bytes());
    }
    view.extend(name.as_bytes());
    view
}

fn write(room: &mut [u8], view: &[u8]) -> usize {
    room[..view.len()].copy_from_slice(view);
    view.len()
}

/// Evaluates in batches of this many, each with a view of at most `view_max` bytes.
fn work(
    mut instance: Later,
    hook: Hook,
    batch: usize,
    view: &View,
    view_max: usize,
) -> Box<dyn FnMut(u32)> {
    let view = Arc::clone(view);
    Box::new(move |calls| {
        let instance = instance.get();
        for _ in 0..calls as usize / batch {
            evaluate(instance, hook, batch, &*view, view_max);
        }
        // Otherwise lines would be dropped instead of logged.
        drop(instance.take_log());
    })
}

#[inline]
fn evaluate(
    instance: &mut Instance,
    hook: Hook,
    count: usize,
    view: &dyn Fn(&mut [u8]) -> usize,
    view_max: usize,
) {
    let bytes = count * view_max.next_multiple_of(8);
    let mut batch = instance.batch(hook, count, bytes).expect("it is alive");
    // Filled like in the daemon.
    let mut filling = batch.fill();
    for _ in 0..count {
        let pushed = filling.push::<Infallible>(0, view_max, |room| Ok(view(room)));
        pushed.expect("the view fits");
    }
    let evaluated = batch.evaluate(|_, verdict| {
        let _: Verdict = black_box(verdict);
    });
    evaluated.expect("it evaluates");
}
