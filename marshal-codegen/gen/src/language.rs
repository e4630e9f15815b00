//! The stubs' languages, and their names on a command line.

use std::fmt;
use std::str::FromStr;

use crate::error::GenError;

/// A target language for stubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// `<package>.rs`, for `include!`, on top of the `tollgate` crate.
    #[default]
    Rust,
    /// `<package>.tollgate.h` for C11 and C++17; they include `tollgate_block.h`.
    C,
    /// `<package>_tollgate.py` for Python 3.9; they import `tollgate_block.py`.
    Python,
}

impl Language {
    /// All languages.
    pub const ALL: [Language; 3] = [Language::Rust, Language::C, Language::Python];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::Python => "python",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = GenError;

    fn from_str(name: &str) -> Result<Language, GenError> {
        let known = Language::ALL.into_iter().find(|l| l.name() == name);
        known.ok_or_else(|| GenError::UnknownLanguage {
            name: name.to_owned(),
        })
    }
}
