//! How the reports format numbers, and how reports are written.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Median, minimum and maximum of a few numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// For an even number of values, the mean of the middle two.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Spread { median, min, max })
    }

    /// `median [least-most]`.
    pub fn show(self, digits: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.digits$} [{min:.digits$}-{max:.digits$}]")
    }
}

/// The measured commit and the machine, as a Markdown list.
pub fn machine_lines(run: &Value) -> String {
    let mut text = String::new();
    for (what, key) in [
        ("Commit", "commit"),
        ("CPU", "cpu"),
        ("Cores", "cores"),
        ("Kernel", "kernel"),
        ("Placement", "placement"),
        ("Load average before", "load_before"),
    ] {
        if !run[key].is_null() {
            line(&mut text, format_args!("- {what}: {}", field(run, key)));
        }
    }
    if let Some(missing) = run["missing"]
        .as_str()
        .filter(|missing| !missing.is_empty())
    {
        line(
            &mut text,
            format_args!("- Not installed, so not measured: {missing}"),
        );
    }
    text.push('\n');
    text
}

/// One field of a run as text.
pub fn field(run: &Value, key: &str) -> String {
    match &run[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Appends a line.
///
/// # Panics
/// Never: writing to a `String` doesn't fail.
pub fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a String takes all that is written");
}

/// Writes a file, and creates its directory.
///
/// # Errors
/// If it can't be written, in one sentence.
pub fn put(path: &Path, text: &str) -> Result<(), String> {
    let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
    directory
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_median_least_and_most() {
        let of = |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.median, s.min, s.max));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some((3.0, 3.0, 3.0)));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some((2.0, 1.0, 9.0)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]), Some((3.0, 1.0, 9.0)));
    }
}
