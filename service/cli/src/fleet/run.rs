//! `tollgate fleet upgrade run`: one host after the other, up to the first that isn't as healthy as
//! before.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::Instant;

use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::fleet::args::Run;
use crate::fleet::file::{Fleet, Host};
use crate::fleet::health::{Ill, Picture};
use crate::fleet::journal::{Entry, Journal, Process, State};
use crate::fleet::plan::{self, Plan};
use crate::limits::LOOK_AGAIN;
use crate::output;

/// `tollgate fleet upgrade run`
pub(crate) fn run(args: &Run) -> Result<String, Failure> {
    let fleet = args.which.load()?;
    let _alone = alone(&fleet)?;
    let path = Journal::path(&fleet.path);
    let found = Journal::load(&path)?;
    let mut journal = match (found.filter(|journal| !journal.is_finished()), args.resume) {
        (None, false) => Journal::new(&fleet, &Plan::of(&fleet)?),
        (Some(journal), true) => resumed(journal, &fleet)?,
        (Some(journal), false) => return Err(unfinished(&journal, args, &path)),
        (None, true) => {
            let sentence = format!("no upgrade of {} has stopped", fleet.path.display());
            let failure = Failure::new(Code::FAILED_PRECONDITION, sentence);
            return Err(failure.hint("the same command without --resume"));
        }
    };
    if let Some(host) = &args.accept {
        accept(&mut journal, host)?;
    }
    journal.save(&path)?;
    let mut upgrade = Upgrade {
        args,
        fleet: &fleet,
        journal,
        path,
    };
    while let Some(turn) = upgrade.journal.hosts.iter().position(|e| !e.is_done()) {
        if let Err(failure) = upgrade.host(turn) {
            return Err(upgrade.stopped(turn, &failure));
        }
    }
    Ok(format!("upgraded: {}\n", upgrade.journal.names(true)))
}

/// A lock against concurrent upgrades of the same fleet, until it is dropped. The fleet file and
/// the journal are replaced, so neither can be locked.
fn alone(fleet: &Fleet) -> Result<File, Failure> {
    let path = Journal::path(&fleet.path).with_extension("lock");
    let failed = |error: &dyn std::fmt::Display| {
        let sentence = format!("{} can't be locked: {error}", path.display());
        Failure::new(Code::UNAVAILABLE, sentence)
    };
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| failed(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let sentence = format!(
                "{} is being upgraded by another process",
                fleet.path.display()
            );
            Err(Failure::new(Code::UNAVAILABLE, sentence))
        }
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

/// Continues a journal with the current fleet. All hosts that aren't done must be in it.
fn resumed(mut journal: Journal, fleet: &Fleet) -> Result<Journal, Failure> {
    journal.fit(fleet)?;
    for entry in journal.hosts.iter().filter(|entry| !entry.is_done()) {
        plan::status(host_of(fleet, &entry.host))?;
    }
    Ok(journal)
}

fn unfinished(journal: &Journal, args: &Run, path: &std::path::Path) -> Failure {
    let sentence = format!(
        "an upgrade has stopped; upgraded: {}; not upgraded: {}",
        journal.names(true),
        journal.names(false)
    );
    let hint = format!(
        "{} --resume to go on, or delete {} to begin anew",
        command(args),
        path.display()
    );
    Failure::new(Code::FAILED_PRECONDITION, sentence).hint(hint)
}

fn command(args: &Run) -> String {
    let fleet = args.which.fleet.display();
    format!("tollgate fleet upgrade run --fleet {fleet}")
}

/// Accepts a host as done. Only the host at which the upgrade has stopped can be accepted.
fn accept(journal: &mut Journal, host: &str) -> Result<(), Failure> {
    let stopped = journal.hosts.iter_mut().find(|entry| !entry.is_done());
    match stopped {
        Some(entry) if entry.host == host => {
            entry.enter(State::Accepted);
            Ok(())
        }
        stopped => {
            let at = stopped.map_or("none", |entry| &entry.host);
            let sentence =
                format!("host {host} can't be accepted: the upgrade has stopped at {at}");
            Err(Failure::input(sentence))
        }
    }
}

/// A failure to print doesn't stop an upgrade in the middle. Its last line fails instead.
fn tell_progress(line: &str) {
    let _told_at_the_end = output::print(line);
}

fn host_of<'f>(fleet: &'f Fleet, name: &str) -> &'f Host {
    let host = fleet.find(name);
    &fleet.hosts[host.expect("a journal that fits names hosts of the fleet")]
}

/// An upgrade in progress.
struct Upgrade<'a> {
    args: &'a Run,
    fleet: &'a Fleet,
    journal: Journal,
    path: PathBuf,
}

impl Upgrade<'_> {
    fn entry(&mut self, turn: usize) -> &mut Entry {
        &mut self.journal.hosts[turn]
    }

    fn save(&self) -> Result<(), Failure> {
        self.journal.save(&self.path)
    }

    /// Replaces a host's daemon, and waits until the host is as healthy as before.
    fn host(&mut self, turn: usize) -> Result<(), Failure> {
        let host = host_of(self.fleet, &self.journal.hosts[turn].host);
        let now = self.picture(turn)?;
        if self.journal.hosts[turn].has_settled(&now) {
            self.entry(turn).enter(State::Done);
            self.save()?;
            tell_progress(&format!("{}: serves and calls as before\n", host.name));
            return Ok(());
        }
        let is_now = (now.version.clone(), now.pid);
        // If an attempt has left a host worse, it is compared with the snapshot from before that
        // attempt.
        let before = match self.entry(turn).before.take() {
            Some(first) if first.pid != now.pid => first,
            _ => now,
        };
        self.entry(turn).before = Some(before.clone());
        self.entry(turn).enter(State::Upgrading);
        self.save()?;
        let program = host.binary.as_deref();
        tell_progress(&format!(
            "{}: {}, process {}, is replaced by {}\n",
            host.name,
            is_now.0,
            is_now.1,
            program.unwrap_or("the program that it was started from")
        ));
        let report = host.reach.upgrade(program, self.args.timeout)?;
        let to = Process {
            pid: report["to"]["pid"].as_u64().unwrap_or_default(),
            version: report["to"]["version"].as_str().unwrap_or("?").to_owned(),
        };
        let (pid, version) = (to.pid, to.version.clone());
        self.entry(turn).to = Some(to);
        self.entry(turn).enter(State::Settling);
        self.save()?;
        let began = Instant::now();
        self.settle(turn, &before, pid, began)?;
        self.entry(turn).enter(State::Done);
        self.save()?;
        tell_progress(&format!(
            "{}: {version}, process {pid}, serves and calls as before after {} ms ({})\n",
            host.name,
            began.elapsed().as_millis(),
            before.counted()
        ));
        Ok(())
    }

    fn picture(&self, turn: usize) -> Result<Picture, Failure> {
        let entry = &self.journal.hosts[turn];
        let callers = entry.callers.iter().flat_map(|name| self.fleet.find(name));
        let callers: Vec<_> = callers.collect();
        Picture::of(self.fleet, host_of(self.fleet, &entry.host), &callers)
    }

    fn settle(
        &self,
        turn: usize,
        before: &Picture,
        pid: u64,
        began: Instant,
    ) -> Result<(), Failure> {
        let (mut pause, longest) = LOOK_AGAIN;
        loop {
            let ill = match self.picture(turn) {
                Ok(now) => before.lacks(&now, pid),
                Err(failure) => Some(Ill::NotYet(failure.sentence())),
            };
            let why = match ill {
                None => return Ok(()),
                Some(Ill::ForGood(why)) => {
                    return Err(Failure::new(Code::FAILED_PRECONDITION, why));
                }
                Some(Ill::NotYet(why)) => why,
            };
            let limit = self.args.settle;
            if began.elapsed() >= limit {
                let sentence = format!("{why}, {limit:?} after it was replaced");
                return Err(Failure::new(Code::DEADLINE_EXCEEDED, sentence));
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(longest);
        }
    }

    /// The failure to report when a host fails.
    fn stopped(&mut self, turn: usize, failure: &Failure) -> Failure {
        let why = failure.sentence();
        let entry = self.entry(turn);
        entry.failure = Some(why.clone());
        let (host, was_replaced) = (entry.host.clone(), entry.state == State::Settling);
        let what = match was_replaced {
            true => format!("host {host} was replaced and doesn't serve and call as before"),
            false => format!("host {host} isn't upgraded"),
        };
        let kept = match self.save() {
            Ok(()) => String::new(),
            Err(error) => format!("; {}", error.sentence()),
        };
        let sentence = format!(
            "{what}: {}; upgraded before it: {}; not upgraded: {}{kept}",
            why.trim_end_matches('.'),
            self.journal.names(true),
            self.journal.names(false)
        );
        let command = command(self.args);
        let hint = match was_replaced {
            true => format!(
                "{command} --resume, once the host serves and calls as before or has another program; or with --accept {host}, to leave it as it is"
            ),
            false => format!("{command} --resume, once the cause is removed"),
        };
        Failure::new(failure.code(), sentence).hint(hint)
    }
}
