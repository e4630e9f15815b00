//! Checks of a configuration file. The daemon's program reads it, because this program shares no
//! code with the daemon.

use std::path::Path;

use crate::check::daemon::capacity;
use crate::check::finding::{Finding, Verdict, bad};
use crate::up;

/// The sum of the limits of a daemon with this configuration, or why the daemon rejects the file.
pub(super) fn configuration(path: &Path, meminfo: &str) -> Finding {
    let failed = |sentence: String, fix: String| bad(Verdict::Failure, "config", sentence, fix);
    let words = ["capacity".into(), "--config".into(), path.into()];
    let output = match up::ask_program(&words) {
        Ok(output) => output,
        Err(failure) => {
            let edit = || {
                format!(
                    "edit {}; docs/src/reference/settings.md has all settings",
                    path.display()
                )
            };
            let fix = failure.way_out().map_or_else(edit, str::to_owned);
            return failed(failure.sentence(), fix);
        }
    };
    let sum = serde_json::from_slice(&output).ok();
    let found = sum.and_then(|sum| capacity(&sum, "a daemon with this configuration", meminfo));
    found.unwrap_or_else(|| {
        let fix = "install the tollgated of this version";
        failed(
            "tollgated printed no capacity report".to_owned(),
            fix.to_owned(),
        )
    })
}
