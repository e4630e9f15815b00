//! Full names: each stands for one declaration.

use std::collections::{HashMap, HashSet};

use super::symbol::Symbol;
use crate::SchemaError;
use crate::error::shown;
use crate::limits::MAX_NAME;

/// The symbol of every full name outside of messages and services, nested types included.
#[derive(Debug, Default)]
pub(super) struct Names {
    symbols: HashMap<Box<str>, (Symbol, u32)>,
    files: Vec<Box<str>>,
}

impl Names {
    pub(super) fn find(&self, full_name: &str) -> Option<Symbol> {
        self.symbols.get(full_name).map(|(symbol, _)| *symbol)
    }

    /// Attributes the next declarations to this file.
    pub(super) fn enter_file(&mut self, file: &str) {
        self.files.push(file.into());
    }

    /// Declares a package and the packages around it.
    pub(super) fn declare_package(&mut self, package: &str) -> Result<(), SchemaError> {
        if package.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        for part in package.split('.') {
            let outer = package[..from].trim_end_matches('.');
            check(part, if outer.is_empty() { self.file() } else { outer })?;
            self.insert(&package[..from + part.len()], Symbol::Package)?;
            from += part.len() + 1;
        }
        Ok(())
    }

    /// Declares `name` in a package or message and returns its full name.
    pub(super) fn declare(
        &mut self,
        scope: &str,
        name: &str,
        symbol: Symbol,
    ) -> Result<String, SchemaError> {
        check(name, if scope.is_empty() { self.file() } else { scope })?;
        let full_name = join(scope, name);
        self.insert(&full_name, symbol)?;
        Ok(full_name)
    }

    fn insert(&mut self, full_name: &str, symbol: Symbol) -> Result<(), SchemaError> {
        check_length(full_name, full_name.len())?;
        if let Some((first, file)) = self.symbols.get(full_name) {
            if (*first, symbol) == (Symbol::Package, Symbol::Package) {
                return Ok(());
            }
            return Err(self.duplicate(full_name.to_owned(), *file));
        }
        let file = self.files.len().saturating_sub(1) as u32;
        self.symbols.insert(full_name.into(), (symbol, file));
        Ok(())
    }

    fn duplicate(&self, name: String, first: u32) -> SchemaError {
        let first = self.files.get(first as usize).map_or("", |f| f);
        SchemaError::DuplicateSymbol {
            name,
            first: shown(first),
            second: shown(self.file()),
        }
    }

    fn file(&self) -> &str {
        self.files.last().map_or("", |f| f)
    }
}

/// The names inside one message or service, each to be used once.
pub(super) struct Members<'m, 'a> {
    scope: &'m str,
    names: HashSet<&'a str>,
}

impl<'m, 'a> Members<'m, 'a> {
    pub(super) fn new(scope: &'m str, count: usize) -> Members<'m, 'a> {
        Members {
            scope,
            names: HashSet::with_capacity(count),
        }
    }

    pub(super) fn add(&mut self, name: &'a str, all: &Names) -> Result<(), SchemaError> {
        check(name, self.scope)?;
        check_length(name, self.scope.len() + 1 + name.len())?;
        if self.names.insert(name) {
            return Ok(());
        }
        Err(all.duplicate(
            join(self.scope, name),
            all.files.len().saturating_sub(1) as u32,
        ))
    }
}

/// Numbers in sorted ranges that may overlap.
pub(super) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// Makes ranges from starts and exclusive ends.
    pub(super) fn new(ranges: impl Iterator<Item = (i64, i64)>) -> Ranges {
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        // Each end becomes the furthest end so far. Then the last range that starts below a number
        // decides.
        let mut furthest = i64::MIN;
        for (_, end) in &mut ranges {
            furthest = furthest.max(*end);
            *end = furthest;
        }
        Ranges(ranges)
    }

    pub(super) fn contain(&self, number: i32) -> bool {
        let number = i64::from(number);
        let after = self.0.partition_point(|(start, _)| *start <= number);
        after > 0 && number < self.0[after - 1].1
    }
}

/// Checks that `name` is a valid name; `scope` is its place.
pub(super) fn check(name: &str, scope: &str) -> Result<(), SchemaError> {
    let mut bytes = name.bytes();
    let begins = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if begins && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(());
    }
    Err(SchemaError::InvalidName {
        name: shown(name),
        scope: shown(scope),
    })
}

/// File names may contain any characters.
pub(super) fn check_file_name(name: &str) -> Result<(), SchemaError> {
    check_length(name, name.len())
}

/// The full name of a declaration in a package or message.
pub(super) fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() {
        return name.to_owned();
    }
    [scope, ".", name].concat()
}

fn check_length(name: &str, bytes: usize) -> Result<(), SchemaError> {
    if bytes <= MAX_NAME {
        return Ok(());
    }
    Err(SchemaError::NameTooLong {
        name: shown(name),
        bytes,
    })
}
