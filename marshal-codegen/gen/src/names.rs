//! Naming rules common to all languages: words, enum values without their enum's name, siblings
//! with equal names, and unique package names.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::GenError;
use crate::language::Language;

/// The taken names in one scope: a module, a class, a struct.
///
/// A taken name gets underscores at its end until it is free, so nothing is ever refused. The first
/// item to take a name keeps it. A user's declarations precede generated items. Among siblings, the
/// exact spellings of the schema come first. So a name stays as it is whatever else is added,
/// unless the new item has precedence.
#[derive(Default)]
pub(crate) struct Scope {
    taken: BTreeSet<String>,
}

impl Scope {
    /// A scope in which these names are taken.
    pub(crate) fn without<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Scope {
        Scope {
            taken: names.into_iter().map(Into::into).collect(),
        }
    }

    /// All names that are taken.
    pub(crate) fn into_taken(self) -> BTreeSet<String> {
        self.taken
    }

    /// Takes the name, or a free variant of it.
    pub(crate) fn take(&mut self, name: String) -> String {
        // A raw identifier is the same identifier as the plain one.
        let mut bare = name.trim_start_matches("r#").to_owned();
        if self.taken.insert(bare.clone()) {
            return name;
        }
        while !self.taken.insert(bare.clone()) {
            bare.push('_');
        }
        bare
    }

    /// Names siblings in their order. `spell` converts a protobuf name to the language.
    pub(crate) fn take_all<'n>(
        &mut self,
        names: impl Iterator<Item = &'n str>,
        spell: impl Fn(&str) -> String,
    ) -> Vec<String> {
        let names: Vec<_> = names.collect();
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&i| spell(names[i]) != names[i]);
        let mut taken = vec![String::new(); names.len()];
        for i in order {
            taken[i] = self.take(spell(names[i]));
        }
        taken
    }
}

/// Refuses two packages with the same name in a language.
pub(crate) fn no_two<'p>(
    language: Language,
    packages: impl Iterator<Item = &'p str>,
    called: impl Fn(&str) -> String,
) -> Result<(), GenError> {
    let mut met: BTreeMap<String, &str> = BTreeMap::new();
    for second in packages {
        let name = called(second);
        if let Some(first) = met.insert(name.clone(), second) {
            return Err(GenError::NameClash {
                language: match language {
                    Language::Rust => "Rust",
                    Language::C => "C",
                    Language::Python => "Python",
                },
                name,
                first: first.to_owned(),
                second: second.to_owned(),
            });
        }
    }
    Ok(())
}

/// Turns `Color` and `COLOR_DARK_RED` into `DARK_RED`, if the value's name begins with the enum's
/// and more follows.
pub(crate) fn enum_value<'a>(enum_name: &str, value: &'a str) -> &'a str {
    let prefix = words(enum_name).join("_").to_ascii_uppercase() + "_";
    match value.strip_prefix(&prefix) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest,
        _ => value,
    }
}

/// Splits at underscores and before a capital that begins a word; all lower case.
pub(crate) fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (i, c) in chars.iter().enumerate() {
        let previous_lower = i > 0 && !chars[i - 1].is_ascii_uppercase() && chars[i - 1] != '_';
        let next_lower = chars.get(i + 1).is_some_and(char::is_ascii_lowercase);
        let inside_acronym = i > 0 && chars[i - 1].is_ascii_uppercase();
        let starts = c.is_ascii_uppercase() && (previous_lower || (inside_acronym && next_lower));
        if *c == '_' || starts {
            words.push(String::new());
        }
        if *c != '_' {
            words
                .last_mut()
                .expect("there is always one")
                .push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_values_lose_their_enums_name() {
        assert_eq!(enum_value("RoomKind", "ROOM_KIND_SUITE"), "SUITE");
        assert_eq!(enum_value("RoomKind", "SUITE"), "SUITE");
        assert_eq!(enum_value("RoomKind", "ROOM_KIND_2"), "ROOM_KIND_2");
    }

    #[test]
    fn siblings_keep_the_names_that_they_are_spelled_with() {
        let upper = |name: &str| name.to_ascii_uppercase();
        let mut scope = Scope::without(["A"]);
        let names = scope.take_all(["b", "B", "a", "c", "B_"].into_iter(), upper);
        assert_eq!(names, ["B__", "B", "A_", "C", "B_"]);
        assert_eq!(scope.take("r#C".to_owned()), "C_");
    }
}
