//! Parts of the system measured alone, without daemons, by programs in the same directory. Their
//! tables and samples are copied.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A part that is measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The name by which `--only` chooses it, and its key in the samples.
    pub(crate) name: &'static str,
    /// The heading of its part of the results.
    pub(crate) heading: &'static str,
    /// The program that measures it: `--json FILE`, `--smoke`; Markdown on standard output.
    program: &'static str,
}

/// All parts, in the order of the results.
pub(crate) const PARTS: [Part; 2] = [
    Part {
        name: "marshalling",
        heading: "# The marshalling alone",
        program: "marshal-bench",
    },
    Part {
        name: "sandbox",
        heading: "# The sandbox alone",
        program: "policy-bench",
    },
];

/// The results of one part.
pub(crate) struct Found {
    pub(crate) part: Part,
    pub(crate) markdown: String,
    pub(crate) json: Value,
}

pub(crate) fn measure(part: Part, out: &Path, smoke: bool) -> Result<Found, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let program = program.with_file_name(part.program);
    let samples = out.join(format!("{}.json", part.name));
    let mut command = Command::new(&program);
    command.arg("--json").arg(&samples).stderr(Stdio::inherit());
    if smoke {
        command.arg("--smoke");
    }
    eprintln!("[   0s] {}", part.name);
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
    Ok(Found {
        part,
        markdown,
        json,
    })
}

/// The recorded results, cut at the headings.
pub(crate) struct Recorded {
    /// The results of the scenarios.
    pub(crate) scenarios: String,
    /// The results of each of [`PARTS`], including its heading; empty if there are none.
    pub(crate) parts: [String; PARTS.len()],
}

impl Recorded {
    pub(crate) fn cut(markdown: &str) -> Recorded {
        let begins = |part: &Part| markdown.find(part.heading);
        let section = |begin: usize| {
            let later = PARTS.iter().filter_map(begins).filter(|at| *at > begin);
            let end = later.min().unwrap_or(markdown.len());
            format!("{}\n\n", markdown[begin..end].trim_end())
        };
        let first = PARTS.iter().filter_map(begins).min();
        let scenarios = markdown[..first.unwrap_or(markdown.len())].trim_end();
        Recorded {
            scenarios: format!("{scenarios}\n\n"),
            parts: PARTS.map(|part| begins(&part).map_or_else(String::new, section)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_are_cut_at_their_headings() {
        let recorded = Recorded::cut(
            "# Results\n\nfast\n\n# The marshalling alone\n\na\n\n# The sandbox alone\n\nb\n",
        );
        assert_eq!(recorded.scenarios, "# Results\n\nfast\n\n");
        assert_eq!(
            recorded.parts,
            [
                "# The marshalling alone\n\na\n\n",
                "# The sandbox alone\n\nb\n\n"
            ]
        );
        let recorded = Recorded::cut("# Results\n\n# The sandbox alone\n\nb");
        assert_eq!(recorded.scenarios, "# Results\n\n");
        assert_eq!(recorded.parts, ["", "# The sandbox alone\n\nb\n\n"]);
    }
}
