//! Runs `marshal-bench`, which lies beside this program, and takes its tables and samples over.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The name by which `--only` chooses it.
pub(crate) const NAME: &str = "marshalling";

/// Begins its part of the results.
pub(crate) const HEADING: &str = "# The marshalling alone";

/// What it found.
pub(crate) struct Marshalling {
    pub(crate) markdown: String,
    pub(crate) json: Value,
}

pub(crate) fn measure(out: &Path, smoke: bool) -> Result<Marshalling, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let program = program.with_file_name("marshal-bench");
    let samples = out.join("marshalling.json");
    let mut command = Command::new(&program);
    command.arg("--json").arg(&samples).stderr(Stdio::inherit());
    if smoke {
        command.arg("--smoke");
    }
    eprintln!("[   0s] {NAME}");
    let output = command
        .output()
        .map_err(|e| format!("cannot run {}: {e}; build the workspace", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", program.display(), output.status));
    }
    let text = fs::read_to_string(&samples)
        .map_err(|e| format!("cannot read {}: {e}", samples.display()))?;
    let json = serde_json::from_str(&text)
        .map_err(|e| format!("{} is not JSON: {e}", samples.display()))?;
    let markdown = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Marshalling { markdown, json })
}
