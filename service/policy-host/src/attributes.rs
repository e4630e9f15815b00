//! Attributes: what the daemon knows of who calls, from sources that no application can forge.
//!
//! A policy declares them among the metadata keys that it reads, and each attribute that is known
//! has one value. Their names begin with a colon, as those of HTTP/2's pseudo-header fields do
//! (RFC 9113, section 8.3): no metadata key can, so nothing that an application sends is mistaken
//! for one. No policy changes them.

/// The attributes.
///
/// | name | value | known |
/// |---|---|---|
/// | `:application` | the name of the credential that opened the application's session | on the client's side |
/// | `:gid` | group of the process that connected, in decimal, from the kernel (`SO_PEERCRED`, unix(7)) | on the client's side |
/// | `:pid` | its process id when it connected, in decimal, in the daemon's namespace | on the client's side |
/// | `:side` | `client` or `server`: where the policy is evaluated | always |
/// | `:tenant` | the tenant of the call | always |
/// | `:uid` | user of the process that connected, in decimal, from the kernel | on the client's side |
pub const ATTRIBUTES: [&str; 6] = [":application", ":gid", ":pid", ":side", ":tenant", ":uid"];

/// Whether a key is the name of an attribute, known or not, and no metadata key.
pub fn is_attribute(key: &str) -> bool {
    key.starts_with(':')
}

/// A name that isn't an attribute's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a caller has no attribute {0:?}; there are {all}", all = ATTRIBUTES.join(" ").replace(':', ""))]
pub struct UnknownAttribute(pub String);

/// Values of attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes([Option<Box<str>>; ATTRIBUTES.len()]);

impl Attributes {
    /// Attributes by their names without the colon, as people write them.
    ///
    /// # Errors
    /// There is no such attribute.
    pub fn of<'a>(
        named: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Attributes, UnknownAttribute> {
        let mut attributes = Attributes::default();
        for (name, value) in named {
            if !attributes.set(&format!(":{name}"), value) {
                return Err(UnknownAttribute(name.clone()));
            }
        }
        Ok(attributes)
    }

    /// Gives an attribute a value. Returns whether there is such an attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let at = ATTRIBUTES.iter().position(|known| *known == name);
        at.is_some_and(|at| {
            self.0[at] = Some(value.into());
            true
        })
    }

    /// An attribute's value, if it is known.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = ATTRIBUTES.iter().position(|known| *known == name)?;
        self.0[at].as_deref()
    }
}
