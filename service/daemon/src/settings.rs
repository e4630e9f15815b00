//! The settings that an operator can change while the daemon runs, and the source of each value.
//! [`DEFINITIONS`] says which those are.
//!
//! ```text
//!   default ◀── configuration file ◀── command line ◀── set at run time, in the store
//!                                                          each overrides those to its left, until it is reset
//! ```
//!
//! A setting can change if a runtime can take the new value between two calls, or if the value is
//! read when it is needed. The number of runtimes can change, too: tenants move between them. The
//! daemon's name and addresses can't change: others know it by these.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use tollgate_schema::spelling::did_you_mean;

use crate::config::definitions::{DEFINITIONS, Definition, written};
pub use crate::config::source::Source;
use crate::config::{Config, ConfigError};

/// The settings that can change while the daemon runs.
fn settings() -> impl Iterator<Item = &'static Definition> {
    DEFINITIONS
        .iter()
        .filter(|setting| setting.at_run_time.is_some())
}

/// The setting of this name, if it can change while the daemon runs.
fn changeable(key: &str) -> Option<&'static Definition> {
    settings().find(|setting| setting.key == key)
}

/// A change: the setting's name, and its new value; `None` resets it.
pub(crate) type Change = (String, Option<String>);

/// Why a change of settings is rejected. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The value is invalid.
    #[error(transparent)]
    Value(#[from] ConfigError),
    /// The setting doesn't exist, or it can't change.
    #[error(
        "{key:?} can't be changed while the daemon runs; {} can{}",
        all_keys(),
        did_you_mean(key, settings().map(|setting| setting.key))
    )]
    Unknown {
        /// The name in the request.
        key: String,
    },
    /// One command names the setting twice.
    #[error("{key} is named twice")]
    Twice {
        /// The setting.
        key: String,
    },
    /// The kernel doesn't allow this core to the daemon.
    #[error("cores = {value}: this daemon may use {usable}")]
    Core {
        /// The requested cores.
        value: String,
        /// The cores that the daemon may use.
        usable: String,
    },
}

fn all_keys() -> String {
    let keys: Vec<_> = settings().map(|setting| setting.key).collect();
    keys.join(", ")
}

/// All settings of a running daemon.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The values of defaults, file and command line.
    configured: Config,
    /// The values that were set at run time.
    set: BTreeMap<String, String>,
    /// Stored values that can't be used here, each with the reason: another version of the daemon
    /// stored them, or the machine has changed.
    unused: BTreeMap<String, String>,
    in_force: Rc<Config>,
    /// Cores that the kernel allows to this process; empty if the kernel doesn't tell.
    usable_cores: Vec<usize>,
}

impl Settings {
    /// Values set at run time override the configured ones. Unusable values are left aside rather
    /// than refused: a daemon that didn't start couldn't be told to forget them.
    pub(crate) fn new(
        configured: Config,
        set: BTreeMap<String, String>,
        usable_cores: Vec<usize>,
    ) -> Settings {
        let mut settings = Settings {
            in_force: Rc::new(configured.clone()),
            configured,
            set,
            unused: BTreeMap::new(),
            usable_cores,
        };
        let mut config = settings.configured.clone();
        for (key, text) in &settings.set {
            if let Err(why) = settings.put(&mut config, key, text) {
                settings.unused.insert(key.clone(), why.to_string());
            }
        }
        settings.in_force = Rc::new(config);
        settings
    }

    /// The configuration in force.
    pub(crate) fn in_force(&self) -> Rc<Config> {
        Rc::clone(&self.in_force)
    }

    /// Stored values that can't be used, each with the reason.
    pub(crate) fn unused(&self) -> impl Iterator<Item = (&str, &str)> {
        let unused = self.unused.iter();
        unused.map(|(key, why)| (key.as_str(), why.as_str()))
    }

    fn put(&self, config: &mut Config, key: &str, text: &str) -> Result<(), Refused> {
        let Some(setting) = changeable(key) else {
            let key = key.to_owned();
            return Err(Refused::Unknown { key });
        };
        let mut changed = config.clone();
        setting.put(&mut changed, text)?;
        if key == "cores" {
            self.check_cores(&changed)?;
        }
        *config = changed;
        Ok(())
    }

    /// Rejects cores that the kernel doesn't allow to the process.
    fn check_cores(&self, config: &Config) -> Result<(), Refused> {
        let value = || written(&json!(config.cores));
        let is_usable = |core: &usize| self.usable_cores.contains(core);
        if self.usable_cores.is_empty() || config.cores.iter().all(is_usable) {
            return Ok(());
        }
        Err(Refused::Core {
            value: value(),
            usable: written(&json!(self.usable_cores)),
        })
    }

    /// The settings after all changes, and the changes with normalized values; or why none is made.
    pub(crate) fn changed(&self, changes: Vec<Change>) -> Result<(Settings, Vec<Change>), Refused> {
        let mut set = self.set.clone();
        let mut named: Vec<Change> = Vec::new();
        for (key, value) in changes {
            if named.iter().any(|(before, _)| *before == key) {
                return Err(Refused::Twice { key });
            }
            let value = match value {
                Some(text) => Some(self.checked(&key, text.trim())?),
                // A value that another version has stored can be reset, too.
                None if changeable(&key).is_none() && !set.contains_key(&key) => {
                    return Err(Refused::Unknown { key });
                }
                None => None,
            };
            match &value {
                Some(text) => drop(set.insert(key.clone(), text.clone())),
                None => drop(set.remove(&key)),
            }
            named.push((key, value));
        }
        let (configured, usable) = (self.configured.clone(), self.usable_cores.clone());
        Ok((Settings::new(configured, set, usable), named))
    }

    fn checked(&self, key: &str, text: &str) -> Result<String, Refused> {
        let mut config = self.configured.clone();
        self.put(&mut config, key, text)?;
        let setting = changeable(key);
        Ok(setting.map_or_else(String::new, |setting| written(&setting.read(&config))))
    }

    /// The value as the audit log has it.
    pub(crate) fn value_of(&self, key: &str) -> Option<String> {
        let setting = changeable(key)?;
        Some(written(&setting.read(&self.in_force)))
    }

    fn source_of(&self, setting: &Definition) -> Source {
        match self.set.contains_key(setting.key) && !self.unused.contains_key(setting.key) {
            true => Source::RunTime,
            false => self.configured.source_of(setting.key),
        }
    }

    /// The answer to `tollgate daemon settings`: the settings that `wanted` selects.
    pub(crate) fn report(&self, wanted: impl Fn(&str) -> bool) -> Value {
        let settings = settings().filter(|setting| wanted(setting.key));
        let settings = settings.map(|setting| {
            json!({
                "key": setting.key, "value": setting.read(&self.in_force), "from": self.source_of(setting).name(),
                "configured": setting.read(&self.configured), "takes": setting.takes.to_string(),
            })
        });
        let unused = self.unused().filter(|(key, _)| wanted(key));
        let unused =
            unused.map(|(key, why)| json!({"key": key, "value": self.set[key], "why": why}));
        json!({"settings": settings.collect::<Vec<_>>(), "unused": unused.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Scheduling, Waiting};

    fn settings(set: &[(&str, &str)]) -> Settings {
        let set = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Settings::new(Config::default(), set.collect(), vec![0, 1])
    }

    fn set(key: &str, value: &str) -> Change {
        (key.to_owned(), Some(value.to_owned()))
    }

    fn reset(key: &str) -> Change {
        (key.to_owned(), None)
    }

    #[test]
    fn every_setting_takes_what_it_is_reported_with() {
        for setting in super::settings() {
            let mut config = Config::default();
            let text = written(&setting.read(&config));
            setting.put(&mut config, &text).unwrap();
            assert_eq!(config, Config::default(), "{}", setting.key);
        }
    }

    #[test]
    fn what_is_set_overrides_what_is_configured_until_it_is_reset() {
        let configured = Config {
            spin_us: 7,
            ..Config::default()
        };
        let before = Settings::new(configured, BTreeMap::new(), vec![0, 1]);
        let changes = vec![
            set("spin_us", " 0009 "),
            set("waiting", "sleep"),
            set("scheduling", "round-robin"),
            set("cores", "1"),
        ];
        let (after, named) = before.changed(changes).unwrap();
        let config = after.in_force();
        assert_eq!(config.spin_us, 9);
        assert_eq!(named[0], set("spin_us", "9"), "as it would be shown");
        assert_eq!(config.waiting, Waiting::Sleep);
        assert_eq!(config.scheduling, Scheduling::RoundRobin);
        assert_eq!(config.cores, [1]);
        let changes = vec![reset("spin_us"), reset("waiting"), set("cores", "none")];
        let (after, _) = after.changed(changes).unwrap();
        let config = after.in_force();
        assert_eq!((config.spin_us, config.waiting), (7, Waiting::Adaptive));
        assert_eq!(config.scheduling, Scheduling::RoundRobin);
        assert_eq!(config.cores, [0usize; 0]);
    }

    #[test]
    fn a_change_is_made_whole_or_not_at_all_and_a_refusal_says_what_would_do() {
        let settings = settings(&[]);
        let check = |changes: Vec<Change>, expected: &str| {
            let refused = settings.changed(changes).map(drop).unwrap_err();
            assert_eq!(refused.to_string(), expected);
        };
        for (key, value, takes) in [
            ("waiting", "seldom", "adaptive, spin or sleep"),
            ("waiting", "Spin", "adaptive, spin or sleep"),
            ("spin_us", "10001", "0 to 10000"),
            ("spin_us", "-1", "0 to 10000"),
            ("spin_us", "", "0 to 10000"),
            ("scheduling", "round robin", "fair or round-robin"),
            ("wait_target_us", "99", "0 (off), or 100 to 1000000"),
            ("wait_target_us", "1000001", "0 (off), or 100 to 1000000"),
            ("cores", "one", "at most 64 entries below 1024, or none"),
            ("cores", "1024", "at most 64 entries below 1024, or none"),
            ("runtimes", "65", "0 (as many as cores has entries) to 64"),
            ("runtimes", "-1", "0 (as many as cores has entries) to 64"),
            ("link.window_calls", "0", "1 to 1048576"),
            ("link.window_bytes", "1", "33554432 to 1099511627776"),
            ("policies.cpu_us", "4", "5 to 10000"),
            ("policies.cpu_share_percent", "256", "1 to 100"),
            ("policies.memory_kib", "63", "64 to 16384"),
            ("policies.quarantine_faults", "0", "1 to 1000"),
            ("policies.quarantine_window_s", "3601", "1 to 3600"),
        ] {
            let good = set("policies.cpu_us", "50");
            let first = (key != "policies.cpu_us").then_some(good);
            let changes = first.into_iter().chain([set(key, value)]);
            check(changes.collect(), &format!("{key} = {value}: {takes}"));
        }
        check(
            vec![set("cores", "0,2")],
            "cores = 0,2: this daemon may use 0,1",
        );
        check(
            vec![set("cores", "2")],
            "cores = 2: this daemon may use 0,1",
        );
        let twice = vec![set("spin_us", "1"), reset("spin_us")];
        check(twice, "spin_us is named twice");
        let unknown = format!(
            "\"listen\" can't be changed while the daemon runs; {} can",
            all_keys()
        );
        check(vec![set("listen", "127.0.0.1:1")], &unknown);
        check(vec![reset("listen")], &unknown);
    }

    #[test]
    fn what_is_stored_and_cannot_be_used_is_left_aside_and_can_be_forgotten() {
        let stored = [
            ("cores", "0,2"),
            ("spin_us", "3"),
            ("turbo", "9"),
            ("waiting", "often"),
        ];
        let settings = settings(&stored);
        let config = settings.in_force();
        assert_eq!((config.spin_us, config.runtimes()), (3, 1));
        let unused: Vec<_> = settings.unused().map(|(key, _)| key).collect();
        assert_eq!(unused, ["cores", "turbo", "waiting"]);
        let report = settings.report(|_| true);
        assert_eq!(report["unused"][1]["value"], "9");
        let from = |key: &str| {
            let all = report["settings"].as_array().unwrap();
            all.iter().find(|s| s["key"] == key).unwrap()["from"].clone()
        };
        assert_eq!(from("spin_us"), "run time");
        assert_eq!(from("waiting"), "default", "what holds is");
        let forgotten = unused.into_iter().map(reset).collect();
        let (after, _) = settings.changed(forgotten).unwrap();
        assert_eq!(after.unused().count(), 0);
    }
}
