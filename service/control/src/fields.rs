//! Patterns of fields in a ceiling: `SERVICE/METHOD:PATH`.
//!
//! Each part is a name, or the beginning of one with `*` behind it: `hotel.Reservation/*:guest.*`.
//! What isn't known, such as the method of an attachment to all of them, is taken at its worst: a
//! denying pattern matches it, and an allowing one only if it allows any.

use std::fmt;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPattern {
    service: Part,
    method: Part,
    path: Part,
}

/// A field of a method's messages. `None`: any.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The service's full name.
    pub service: &'a str,
    /// The method's name.
    pub method: Option<&'a str>,
    /// The dotted path.
    pub path: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    text: String,
    is_prefix: bool,
}

impl FieldPattern {
    /// A pattern, if the text is one.
    pub(crate) fn parse(text: &str) -> Option<FieldPattern> {
        let (service, rest) = text.split_once('/')?;
        let (method, path) = rest.split_once(':')?;
        Some(FieldPattern {
            service: Part::parse(service)?,
            method: Part::parse(method)?,
            path: Part::parse(path)?,
        })
    }

    /// Whether it matches some of what the field may be. A message's path matches if a field in it
    /// does.
    fn may_match(&self, field: &Field<'_>) -> bool {
        let is_inside = |path: &str| {
            let inner = self.path.text.strip_prefix(path);
            inner.is_some_and(|inner| inner.starts_with('.'))
        };
        let is_path = field
            .path
            .is_none_or(|path| self.path.is(path) || is_inside(path));
        self.service.is(field.service) && field.method.is_none_or(|m| self.method.is(m)) && is_path
    }

    /// Whether it matches all that the field may be.
    fn matches_all(&self, field: &Field<'_>) -> bool {
        self.service.is(field.service)
            && self.method.is_all(field.method)
            && self.path.is_all(field.path)
    }
}

impl fmt::Display for FieldPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.service, self.method, self.path)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        write!(f, "{}{star}", self.text)
    }
}

impl Part {
    fn parse(text: &str) -> Option<Part> {
        let (name, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
        let is_good = name.bytes().all(is_name) && (is_prefix || !name.is_empty());
        is_good.then(|| Part {
            text: name.to_owned(),
            is_prefix,
        })
    }

    fn is(&self, name: &str) -> bool {
        match self.is_prefix {
            true => name.starts_with(&self.text),
            false => name == self.text,
        }
    }

    fn is_all(&self, name: Option<&str>) -> bool {
        match name {
            Some(name) => self.is(name),
            None => self.is_prefix && self.text.is_empty(),
        }
    }
}

/// The key of a ceiling that forbids a field, and its value in words: a denying pattern that
/// matches the field, or the allowing ones if none of them does. `None`: the field is allowed.
pub(crate) fn forbids(
    allow: Option<&[FieldPattern]>,
    deny: &[FieldPattern],
    field: &Field<'_>,
) -> Option<(&'static str, String)> {
    if let Some(pattern) = deny.iter().find(|one| one.may_match(field)) {
        let value = match deny.len() {
            1 => pattern.to_string(),
            many => format!("{many} patterns, {pattern} among them"),
        };
        return Some(("fields_deny", value));
    }
    let allow = allow?;
    if allow.iter().any(|one| one.matches_all(field)) {
        return None;
    }
    let value = match allow {
        [] => "none".to_owned(),
        [only] => only.to_string(),
        many => format!("{} patterns, and none of them matches", many.len()),
    };
    Some(("fields_allow", value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pattern(text: &str) -> FieldPattern {
        FieldPattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_have_three_parts_of_names_and_a_star_at_the_end() {
        for text in ["a.B/C:d", "a.*/*:*", "*/*:guest.*", "a.B/C*:d_1"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        for text in [
            "", "*", "a.B/C", "a.B:d", "a.B/:d", "a*b/C:d", "a/b/c:d", "a.B/C:é", "a.B/C:d ",
        ] {
            assert!(FieldPattern::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_taken_at_its_worst() {
        let (allow, deny) = (
            pattern("hotel.*/Reserve:guest.*"),
            pattern("hotel.*/Reserve:guest.name"),
        );
        let of = |method, path| Field {
            service: "hotel.Reservation",
            method,
            path,
        };
        let both = |field: &Field<'_>| (allow.matches_all(field), deny.may_match(field));
        assert_eq!(both(&of(Some("Reserve"), Some("guest.name"))), (true, true));
        assert_eq!(both(&of(Some("Reserve"), Some("guest.age"))), (true, false));
        assert_eq!(
            both(&of(Some("Cancel"), Some("guest.name"))),
            (false, false)
        );
        assert_eq!(both(&of(None, Some("guest.name"))), (false, true));
        assert_eq!(both(&of(Some("Reserve"), None)), (false, true));
        // A whole message has its fields.
        assert_eq!(both(&of(Some("Reserve"), Some("guest"))), (false, true));
        assert_eq!(both(&of(Some("Reserve"), Some("gues"))), (false, false));
        let other = Field {
            service: "motel.Reservation",
            ..of(None, None)
        };
        assert_eq!(both(&other), (false, false));
        let any = pattern("*/*:*");
        assert!(any.matches_all(&of(None, None)) && any.may_match(&of(None, None)));
        assert_eq!(forbids(None, &[], &of(None, None)), None);
    }

    #[test]
    fn a_forbidden_field_names_the_key_and_its_pattern() {
        let [any, guests, name] =
            ["*/*:*", "hotel.*/*:guest.*", "*/*:guest.name"].map(|text| [pattern(text)]);
        let both = [name.clone(), guests.clone()].concat();
        let field = |path| Field {
            service: "hotel.Reservation",
            method: Some("Reserve"),
            path: Some(path),
        };
        let (any, guests, name, both) = (&any[..], &guests[..], &name[..], &both[..]);
        let none: &[FieldPattern] = &[];
        for (allow, deny, path, expected) in [
            (
                Some(any),
                name,
                "guest.name",
                Some(("fields_deny", "*/*:guest.name")),
            ),
            (
                None,
                both,
                "guest.age",
                Some(("fields_deny", "2 patterns, hotel.*/*:guest.* among them")),
            ),
            (Some(none), none, "room", Some(("fields_allow", "none"))),
            (
                Some(guests),
                none,
                "room",
                Some(("fields_allow", "hotel.*/*:guest.*")),
            ),
            (
                Some(both),
                none,
                "room",
                Some(("fields_allow", "2 patterns, and none of them matches")),
            ),
            (Some(both), none, "guest.age", None),
        ] {
            let found = forbids(allow, deny, &field(path));
            let expected = expected.map(|(key, value)| (key, value.to_owned()));
            assert_eq!(found, expected, "{path}");
        }
    }
}
