//! `tollgate daemon`: the settings that change while the daemon runs.
//!
//! The daemon validates settings and refuses with a sentence. So an older command line can change
//! the settings of a newer daemon.

use std::path::Path;
use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::Value;
use tollgate_admin::proto::{ChangeSettingsRequest, SettingChange, ShowSettingsRequest};

use crate::api::{Acting, Api, json_of};
use crate::failure::Failure;
use crate::output;
use crate::render::flat;

/// The daemon's settings.
#[derive(Debug, Args)]
pub(crate) struct DaemonCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    pub(crate) command: Daemon,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Daemon {
    /// Change settings while calls run, all of them or none, until they are reset
    #[command(
        after_help = "The daemon stores them in its state. They override its configuration file and command line, also after a restart.\n\n\
             Examples: tollgate daemon set waiting=sleep\n          \
             tollgate daemon set wait_target_us=1000 policies.cpu_us=50"
    )]
    Set {
        /// A setting, named as in the configuration file, and its new value;
        /// `daemon settings --json` shows the values that it takes
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<SettingValue>,
    },
    /// Remove the run-time values of settings: the command line, the configuration file or the
    /// default applies again
    #[command(after_help = "Example: tollgate daemon reset waiting policies.cpu_us")]
    Reset {
        /// A setting
        #[arg(value_name = "KEY", required = true)]
        settings: Vec<String>,
    },
    /// Show all settings that can change while the daemon runs, with their values and the sources
    /// of these
    Settings {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

/// A setting and its value, `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingValue {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for SettingValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(SettingValue {
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            }),
            _ => Err("a setting is written KEY=VALUE, like spin_us=50".to_owned()),
        }
    }
}

/// `tollgate daemon …`
pub(crate) fn daemon(socket: &Path, args: &DaemonCommand) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let changes: Vec<SettingChange> = match &args.command {
        Daemon::Settings { json } => {
            let report = json_of(api.ask(ShowSettingsRequest {})?.report);
            return Ok(match json {
                true => output::json(&report),
                false => shown(&report),
            });
        }
        Daemon::Set { settings } => {
            let set = settings.iter().map(|setting| SettingChange {
                key: setting.key.clone(),
                value: Some(setting.value.clone()),
            });
            set.collect()
        }
        Daemon::Reset { settings } => {
            let reset = settings.iter().map(|key| SettingChange {
                key: key.clone(),
                value: None,
            });
            reset.collect()
        }
    };
    let changed = api.ask(ChangeSettingsRequest { changes })?;
    Ok(shown(&json_of(changed.report)))
}

/// A setting per line, in the form in which it is set. Behind it the source of its value, and the
/// underlying value if it was set at run time.
fn shown(report: &Value) -> String {
    let of = |name: &str| report[name].as_array().into_iter().flatten();
    let written = |value: &Value| flat(value).replace(' ', ",");
    let settings = of("settings").map(|setting| {
        let (key, value, from) = (
            flat(&setting["key"]),
            written(&setting["value"]),
            flat(&setting["from"]),
        );
        match from.as_str() {
            "run time" => {
                let without = written(&setting["configured"]);
                format!("{key}={value}  run time, otherwise {without}\n")
            }
            from => format!("{key}={value}  {from}\n"),
        }
    });
    let unused = of("unused").map(|setting| {
        let (key, value) = (flat(&setting["key"]), flat(&setting["value"]));
        format!("{key}={value}  unused: {}\n", flat(&setting["why"]))
    });
    settings.chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_setting_is_shown_as_it_would_be_set() {
        let report = json!({
            "settings": [
                {"key": "cores", "value": [0, 1], "from": "file", "configured": [0, 1], "takes": "t"},
                {"key": "spin_us", "value": 0, "from": "run time", "configured": 50, "takes": "t"},
                {"key": "waiting", "value": "adaptive", "from": "default", "configured": "adaptive", "takes": "t"},
            ],
            "unused": [{"key": "turbo", "value": "on", "why": "there is none"}],
        });
        let lines = "cores=0,1  file\nspin_us=0  run time, otherwise 50\nwaiting=adaptive  default\n\
                     turbo=on  unused: there is none\n";
        assert_eq!(shown(&report), lines);
    }
}
