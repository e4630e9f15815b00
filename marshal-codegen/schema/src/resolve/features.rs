//! Features of a declaration, lowest precedence first: the syntax, each surrounding declaration,
//! the declaration itself.

use crate::SchemaError;
use crate::descriptor::{Features, File};
use crate::error::shown;

/// The features that decide layout or encoding, in force at one declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inherited {
    pub(super) syntax: Syntax,
    pub(super) is_edition: bool,
    pub(super) presence: Presence,
    /// Enums only accept declared values.
    pub(super) is_closed: bool,
    pub(super) is_packed: bool,
    /// Messages are written between two tags.
    pub(super) is_delimited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Proto2,
    Proto3,
    Edition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Explicit,
    Implicit,
    Required,
}

/// Protobuf's number for edition 2023.
const EDITION_2023: i32 = 1000;
/// Edition 2024, which only adds rules for names and visibility.
const EDITION_2024: i32 = 1001;

impl Inherited {
    pub(super) fn of_file(file: &File<'_>) -> Result<Inherited, SchemaError> {
        let unknown = |syntax: String| SchemaError::UnknownSyntax {
            file: shown(file.name),
            syntax,
        };
        let syntax = match file.syntax {
            "" | "proto2" => Syntax::Proto2,
            "proto3" => Syntax::Proto3,
            "editions" if matches!(file.edition, EDITION_2023 | EDITION_2024) => Syntax::Edition,
            "editions" => return Err(unknown(format!("edition number {}", file.edition))),
            other => return Err(unknown(shown(other))),
        };
        let defaults = Inherited {
            syntax,
            is_edition: syntax == Syntax::Edition,
            presence: match syntax {
                Syntax::Proto3 => Presence::Implicit,
                _ => Presence::Explicit,
            },
            is_closed: syntax == Syntax::Proto2,
            is_packed: syntax != Syntax::Proto2,
            is_delimited: false,
        };
        let features = defaults.with(&file.features, || file.name.to_owned())?;
        if features.presence == Presence::Required {
            return Err(invalid(
                file.name,
                "field_presence",
                3,
                "only a field may set",
            ));
        }
        Ok(features)
    }

    /// These features, overridden by the ones that `owner` sets.
    pub(super) fn with(
        self,
        own: &Features,
        owner: impl Fn() -> String,
    ) -> Result<Inherited, SchemaError> {
        if *own == Features::default() {
            return Ok(self);
        }
        let set = [
            ("field_presence", own.field_presence, 1..=3),
            ("enum_type", own.enum_type, 1..=2),
            (
                "repeated_field_encoding",
                own.repeated_field_encoding,
                1..=2,
            ),
            ("utf8_validation", own.utf8_validation, 2..=3),
            ("message_encoding", own.message_encoding, 1..=2),
        ];
        for (feature, value, known) in set {
            let Some(value) = value else { continue };
            if !self.is_edition {
                return Err(invalid(&owner(), feature, value, "only editions have"));
            }
            if !known.contains(&value) {
                return Err(invalid(&owner(), feature, value, "is not a known value"));
            }
        }
        Ok(Inherited {
            presence: match own.field_presence {
                Some(1) => Presence::Explicit,
                Some(2) => Presence::Implicit,
                Some(_) => Presence::Required,
                None => self.presence,
            },
            is_closed: own.enum_type.map_or(self.is_closed, |v| v == 2),
            is_packed: own
                .repeated_field_encoding
                .map_or(self.is_packed, |v| v == 1),
            is_delimited: own.message_encoding.map_or(self.is_delimited, |v| v == 2),
            ..self
        })
    }
}

fn invalid(owner: &str, feature: &'static str, value: i32, reason: &'static str) -> SchemaError {
    SchemaError::InvalidFeature {
        owner: shown(owner),
        feature,
        value,
        reason,
    }
}
