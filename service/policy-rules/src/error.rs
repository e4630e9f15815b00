//! What is wrong with a file of rules, and where.

/// Why a file of rules can't be compiled. Its author is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct RulesError {
    /// The byte in the file, from 0.
    pub offset: usize,
    /// The line, from 1.
    pub line: usize,
    /// The character in its line, from 1.
    pub column: usize,
    /// What was found there, what would do, and a near name.
    pub reason: String,
}

/// An error at a byte of the file; [`crate::compile`] knows the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorAt {
    pub(crate) at: usize,
    pub(crate) reason: String,
}

impl ErrorAt {
    pub(crate) fn new(at: usize, reason: impl Into<String>) -> ErrorAt {
        ErrorAt {
            at,
            reason: reason.into(),
        }
    }
}

/// An error, as `Err`.
pub(crate) fn fail<T>(at: usize, reason: impl Into<String>) -> Result<T, ErrorAt> {
    Err(ErrorAt::new(at, reason))
}

/// Names for a sentence: the first ones, and how many more there are.
pub(crate) fn some_of<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    const SHOWN: usize = 12;
    let names: Vec<_> = names.into_iter().collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => {
            let more = count - SHOWN;
            format!("{} and {more} more", names[..SHOWN].join(", "))
        }
        _ => names.join(", "),
    }
}

/// A name from the file, cut for a sentence.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN: usize = 64;
    match name.chars().count() > SHOWN {
        true => format!("{:?} (cut)", name.chars().take(SHOWN).collect::<String>()),
        false => format!("{name:?}"),
    }
}
