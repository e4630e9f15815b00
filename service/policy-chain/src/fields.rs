//! The fields that a version reads and may change of one message type.
//!
//! Paths come from the policy's author or from its configuration, and both are resolved here: by
//! the daemon when a version is attached or an application binds, and by the tools for authors.

use tollgate_marshal::projection::{FieldTypes, Wanted};
use tollgate_marshal::{Patch, ProjectError, Projection};
use tollgate_policy_host::{Absent, Hook, Manifest, Method};
use tollgate_schema::{Layouts, MessageId};

/// A manifest's entry, resolved for one message type.
#[derive(Debug)]
pub enum Fields {
    /// The policy is evaluated for the message.
    Of {
        /// The fields that it reads.
        reads: Projection,
        /// The fields that it may change.
        changes: Patch,
    },
    /// The message lacks this field, and the configuration says `"absent": "skip"`: the policy
    /// isn't evaluated.
    Skipped(ProjectError),
}

/// Resolves the fields of a manifest's entry.
///
/// # Errors
/// The message has no such field, or one of another type.
pub fn resolve(
    (layouts, message): (&Layouts, MessageId),
    (manifest, entry): (&Manifest, &Method),
    hook: Hook,
    granted: impl Fn(&str) -> bool,
) -> Result<Fields, ProjectError> {
    let absent = manifest.absent();
    let reads = all(entry.fields(hook), entry.field_types(hook), absent);
    let reads: Vec<_> = reads
        .map(|wanted| Wanted {
            granted: granted(wanted.path),
            ..wanted
        })
        .collect();
    let changes: Vec<_> = all(entry.changes(hook), entry.change_types(hook), absent).collect();
    let resolved = Projection::of_wanted(layouts, message, &reads)
        .and_then(|reads| Ok((reads, Patch::of_wanted(layouts, message, &changes)?)));
    match resolved {
        Ok((reads, changes)) => Ok(Fields::Of { reads, changes }),
        Err(lacking @ ProjectError::UnknownField { .. })
            if absent == Absent::Skip && is_configured(entry, hook, &lacking) =>
        {
            Ok(Fields::Skipped(lacking))
        }
        Err(error) => Err(error),
    }
}

/// The paths of a list; the types of those that the configuration names.
fn all<'p>(
    paths: &'p [String],
    types: &'p [Option<tollgate_policy_host::FieldTypes>],
    absent: Absent,
) -> impl Iterator<Item = Wanted<'p>> {
    paths.iter().zip(types).map(move |(path, types)| Wanted {
        accepts: types.map(|types| FieldTypes::of_bits(types.bits())),
        may_lack: types.is_some() && absent == Absent::Empty,
        ..Wanted::declared(path, true)
    })
}

/// Whether the configuration names the path of an error.
fn is_configured(entry: &Method, hook: Hook, error: &ProjectError) -> bool {
    let ProjectError::UnknownField { path, .. } = error else {
        return false;
    };
    let reads = entry.fields(hook).iter().zip(entry.field_types(hook));
    let changes = entry.changes(hook).iter().zip(entry.change_types(hook));
    let mut its = reads.chain(changes).filter(|(its, _)| *its == path);
    its.any(|(_, types)| types.is_some())
}

/// What the policy's configuration can say about a field that a message lacks, if it can: the end
/// of a sentence about the error.
pub fn hint(entry: &Method, hook: Hook, error: &ProjectError) -> &'static str {
    match is_configured(entry, hook, error) {
        true => {
            " (its configuration can list the `methods` that it is for, or say `\"absent\": \"skip\"` or `\"empty\"`)"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use tollgate_marshal::projection::FieldType;

    /// The manifest's names of types and the view's numbers are defined twice: the policy host
    /// doesn't know schemas.
    #[test]
    fn types_have_the_same_names_and_numbers_on_both_sides() {
        let all = tollgate_policy_host::FieldTypes::default();
        let mut names: Vec<_> = all.names().collect();
        let mut known: Vec<_> = FieldType::ALL.iter().map(|one| one.name()).collect();
        for one in FieldType::ALL {
            let text = format!("[{:?}]", one.name());
            let set: Option<tollgate_policy_host::FieldTypes> = serde_json::from_str(&text).ok();
            assert_eq!(set.map(|set| set.bits()), Some(1 << one.tag()));
        }
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }
}
