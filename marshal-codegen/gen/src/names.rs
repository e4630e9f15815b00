//! What the languages' names have in common: words, and enum values without their enum's name.

/// `Color` and `COLOR_DARK_RED` to `DARK_RED`, if the value's name begins with the enum's and something is left.
pub(crate) fn enum_value<'a>(enum_name: &str, value: &'a str) -> &'a str {
    let prefix = words(enum_name).join("_").to_ascii_uppercase() + "_";
    match value.strip_prefix(&prefix) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest,
        _ => value,
    }
}

/// Splits at underscores and where a capital begins a word; all lower case.
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
}
