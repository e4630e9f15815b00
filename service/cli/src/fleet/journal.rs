//! The journal of a fleet's upgrade, next to the fleet file: `fleet.toml.upgrade.json`.
//!
//! Invariant: each step on a host is on disk before it is done. Each change replaces the whole
//! file, synced. So a reader, and a resumed upgrade after a power cut, finds one state or the next.
//! The file stays as the record of a finished upgrade, until the next upgrade replaces it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::fleet::file::Fleet;
use crate::fleet::health::Picture;
use crate::fleet::plan::Plan;
use crate::input::read_at_most;
use crate::limits::MAX_JOURNAL_BYTES;

/// The version of a [`Journal`]'s format.
const FORMAT: u32 = 1;

/// The journal of an upgrade of a fleet.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    format: u32,
    /// The hosts, in upgrade order.
    pub(crate) hosts: Vec<Entry>,
}

/// The entry of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) host: String,
    pub(crate) state: State,
    /// When this state began, in seconds since 1970.
    since: u64,
    /// The new program; by default the program that its daemon was started from.
    pub(crate) binary: Option<String>,
    /// The hosts that call it.
    pub(crate) callers: Vec<String>,
    /// The snapshot from before the upgrade, until the host is done.
    pub(crate) before: Option<Picture>,
    /// The process that took over.
    pub(crate) to: Option<Process>,
    /// Why the upgrade has stopped here.
    pub(crate) failure: Option<String>,
}

/// The progress of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// Nothing has been done yet.
    Waiting,
    /// Its daemon is being replaced, has been replaced, or the replacement failed.
    Upgrading,
    /// Its daemon was replaced. The host isn't known to be as healthy as before.
    Settling,
    /// The host is as healthy as before.
    Done,
    /// The operator has accepted the host as done.
    Accepted,
}

/// A process that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    pub(crate) version: String,
}

impl Entry {
    fn new(host: &str, binary: Option<&str>, callers: Vec<String>) -> Entry {
        Entry {
            host: host.to_owned(),
            state: State::Waiting,
            since: now(),
            binary: binary.map(str::to_owned),
            callers,
            before: None,
            to: None,
            failure: None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done | State::Accepted)
    }

    /// Whether the host is as healthy as before after all, with the process that took over when the
    /// upgrade stopped here.
    pub(crate) fn has_settled(&self, now: &Picture) -> bool {
        match (self.state, &self.before, &self.to) {
            (State::Settling, Some(before), Some(to)) => before.lacks(now, to.pid).is_none(),
            _ => false,
        }
    }

    /// Enters the next state. The failure of the state before no longer holds.
    pub(crate) fn enter(&mut self, state: State) {
        (self.state, self.since, self.failure) = (state, now(), None);
        if self.is_done() {
            self.before = None;
        }
    }
}

impl Journal {
    /// The path of a fleet's journal.
    pub(crate) fn path(fleet: &Path) -> PathBuf {
        let mut name = fleet.as_os_str().to_owned();
        name.push(".upgrade.json");
        name.into()
    }

    /// The journal of a new upgrade.
    pub(crate) fn new(fleet: &Fleet, plan: &Plan) -> Journal {
        let entry = |host: usize| {
            let callers = plan
                .known
                .iter()
                .zip(&fleet.hosts)
                .filter_map(|(known, caller)| {
                    let calls =
                        known.calls.contains(&host) && caller.name != fleet.hosts[host].name;
                    calls.then(|| caller.name.clone())
                });
            let of = &fleet.hosts[host];
            Entry::new(&of.name, of.binary.as_deref(), callers.collect())
        };
        Journal {
            format: FORMAT,
            hosts: plan.steps.iter().map(|step| entry(step.host)).collect(),
        }
    }

    /// Loads the existing journal, if there is one.
    pub(crate) fn load(path: &Path) -> Result<Option<Journal>, Failure> {
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(Failure::file(path, &error)),
        }
        let bytes = read_at_most(path, MAX_JOURNAL_BYTES)?;
        let wrong = |why: &dyn std::fmt::Display| {
            let sentence = format!("{} isn't the journal of an upgrade: {why}", path.display());
            Failure::new(Code::FAILED_PRECONDITION, sentence)
        };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
        if value["format"] != FORMAT {
            let why = format!("its format is {}, not {FORMAT}", value["format"]);
            return Err(wrong(&why));
        }
        serde_json::from_value(value)
            .map(Some)
            .map_err(|error| wrong(&error))
    }

    /// Writes it to disk.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let saved = (|| {
            let mut json = serde_json::to_vec_pretty(self)?;
            json.push(b'\n');
            let mut name = path.as_os_str().to_owned();
            name.push(".new");
            let new = PathBuf::from(name);
            let mut file = File::create(&new)?;
            file.write_all(&json)?;
            file.sync_all()?;
            std::fs::rename(&new, path)?;
            let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        })();
        saved.map_err(|error: std::io::Error| {
            let sentence = format!("{} can't be written: {error}", path.display());
            Failure::new(Failure::code_of(&error), sentence)
        })
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.hosts.iter().all(Entry::is_done)
    }

    /// Names of the hosts that are done, or of those that aren't.
    pub(crate) fn names(&self, done: bool) -> String {
        let of = self.hosts.iter().filter(|entry| entry.is_done() == done);
        let names: Vec<_> = of.map(|entry| &*entry.host).collect();
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        }
    }

    /// Adapts it to the current fleet file: the same hosts, possibly with other addresses and
    /// programs.
    pub(crate) fn fit(&mut self, fleet: &Fleet) -> Result<(), Failure> {
        let path = fleet.path.display();
        let refused = |sentence: String| Failure::new(Code::FAILED_PRECONDITION, sentence);
        let known = |name: &str| self.hosts.iter().any(|entry| entry.host == name);
        if let Some(new) = fleet.hosts.iter().find(|host| !known(&host.name)) {
            let name = &new.name;
            let sentence = format!("host {name} was added to {path} since the upgrade began");
            return Err(refused(sentence));
        }
        for entry in &mut self.hosts {
            let Some(host) = fleet.find(&entry.host) else {
                let name = &entry.host;
                let sentence =
                    format!("host {name} was removed from {path} since the upgrade began");
                return Err(refused(sentence));
            };
            let binary = &fleet.hosts[host].binary;
            if !entry.is_done() && entry.binary != *binary {
                // The process that took over doesn't run the new program.
                (entry.binary, entry.to) = (binary.clone(), None);
            }
        }
        Ok(())
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_journal_is_on_disk_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = Journal::path(&directory.path().join("f.toml"));
        assert!(path.ends_with("f.toml.upgrade.json"));
        assert_eq!(Journal::load(&path), Ok(None));
        let mut journal = Journal {
            format: FORMAT,
            hosts: vec![
                Entry::new("b", Some("/new"), vec!["a".to_owned()]),
                Entry::new("a", None, Vec::new()),
            ],
        };
        journal.hosts[0].before = Some(Picture::default());
        journal.save(&path).unwrap();
        assert_eq!(Journal::load(&path).as_ref(), Ok(&Some(journal)));
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "nothing else is left");

        let mut journal = Journal::load(&path).unwrap().unwrap();
        assert_eq!(
            (journal.names(true), journal.names(false)),
            ("none".into(), "b, a".into())
        );
        journal.hosts[0].enter(State::Done);
        assert_eq!(journal.hosts[0].before, None);
        assert!(!journal.is_finished());
        journal.hosts[1].enter(State::Accepted);
        assert!(journal.is_finished());

        let nowhere = directory.path().join("nowhere/f.json");
        let refused = journal.save(&nowhere).unwrap_err().to_string();
        assert!(
            refused.contains("nowhere/f.json can't be written"),
            "{refused}"
        );
    }

    #[test]
    fn what_is_no_journal_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j");
        let check = |content: &str, why: &str| {
            std::fs::write(&path, content).unwrap();
            let refused = Journal::load(&path).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        };
        check("{", "isn't the journal of an upgrade: EOF");
        check("{}", "its format is null, not 1");
        check(r#"{"format": 2, "hosts": []}"#, "its format is 2, not 1");
        check(r#"{"format": 1}"#, "missing field `hosts`");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_JOURNAL_BYTES + 1).unwrap();
        let refused = Journal::load(&path).unwrap_err().to_string();
        assert!(
            refused.contains("is longer than 16777216 bytes"),
            "{refused}"
        );
    }
}
