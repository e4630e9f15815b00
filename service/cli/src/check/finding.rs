//! The result of one check, and a list of results as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::output;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    /// It works, but not for long, or not as well as it could.
    Warning,
    /// A part doesn't work.
    Failure,
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) verdict: Verdict,
    pub(super) sentence: String,
    /// How to fix it.
    pub(super) fix: Option<String>,
}

/// A finding without a problem.
pub(super) fn fine(area: &'static str, sentence: impl Into<String>) -> Finding {
    Finding {
        area,
        verdict: Verdict::Ok,
        sentence: sentence.into(),
        fix: None,
    }
}

/// A problem, and how to fix it.
pub(super) fn bad(
    verdict: Verdict,
    area: &'static str,
    sentence: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    Finding {
        area,
        verdict,
        sentence: sentence.into(),
        fix: Some(fix.into()),
    }
}

/// Number of findings with this verdict.
pub(super) fn count(findings: &[Finding], verdict: Verdict) -> usize {
    let those = findings.iter().filter(|finding| finding.verdict == verdict);
    those.count()
}

pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "FAILED",
    }
}

pub(super) fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (number, finding) in (1..).zip(findings) {
        let Finding {
            area,
            verdict,
            sentence,
            fix,
        } = finding;
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "{number:2}  {:7}  {area:8}  {}",
            word(*verdict),
            output::plain(sentence)
        );
        if let Some(fix) = fix {
            let _ = writeln!(text, "{:23}fix: {}", "", output::plain(fix));
        }
    }
    let [warnings, failures] = [Verdict::Warning, Verdict::Failure].map(|of| count(findings, of));
    let _ = writeln!(
        text,
        "checks: {}, warnings: {warnings}, failed: {failures}",
        findings.len()
    );
    text
}

pub(super) fn as_json(findings: &[Finding]) -> String {
    let all = (1..).zip(findings).map(|(number, finding)| {
        json!({
            "number": number, "area": finding.area, "verdict": word(finding.verdict).to_lowercase(),
            "sentence": finding.sentence, "fix": finding.fix,
        })
    });
    output::json(&json!({"checks": all.collect::<Vec<Value>>()}))
}
