//! What the rules of one method read and change at one hook: the lists of its manifest entry.

use crate::error::{ErrorAt, fail};
use crate::limits;

/// The lists, in the order in which the rules mention what is in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) fields: Vec<String>,
    pub(crate) keys: Vec<String>,
    pub(crate) field_changes: Vec<String>,
    pub(crate) key_changes: Vec<String>,
    pub(crate) uses_clock: bool,
    pub(crate) uses_priority: bool,
    pub(crate) uses_route: bool,
    pub(crate) uses_delay: bool,
    pub(crate) limits_rates: bool,
}

impl Usage {
    pub(crate) fn field(&mut self, at: usize, name: &str) -> Result<usize, ErrorAt> {
        place(&mut self.fields, at, name, limits::FIELDS, "read", "fields")
    }

    pub(crate) fn key(&mut self, at: usize, name: &str) -> Result<usize, ErrorAt> {
        place(
            &mut self.keys,
            at,
            name,
            limits::METADATA_KEYS,
            "read",
            "metadata keys",
        )
    }

    pub(crate) fn field_change(&mut self, at: usize, name: &str) -> Result<usize, ErrorAt> {
        place(
            &mut self.field_changes,
            at,
            name,
            limits::FIELDS,
            "change",
            "fields",
        )
    }

    pub(crate) fn key_change(&mut self, at: usize, name: &str) -> Result<usize, ErrorAt> {
        let most = limits::METADATA_KEYS;
        place(
            &mut self.key_changes,
            at,
            name,
            most,
            "change",
            "metadata keys",
        )
    }

    /// Whether the rules change a message or its metadata.
    pub(crate) fn changes(&self) -> bool {
        !self.field_changes.is_empty() || !self.key_changes.is_empty()
    }
}

/// The place of a name in a list, which it is added to.
fn place(
    list: &mut Vec<String>,
    at: usize,
    name: &str,
    most: usize,
    does: &str,
    what: &str,
) -> Result<usize, ErrorAt> {
    if let Some(found) = list.iter().position(|one| one == name) {
        return Ok(found);
    }
    if list.len() == most {
        return fail(
            at,
            format!("the rules of one method {does} more than {most} {what} of a message"),
        );
    }
    list.push(name.to_owned());
    Ok(list.len() - 1)
}
