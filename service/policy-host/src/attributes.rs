//! Attributes: what the daemon knows of who calls, from sources that no application can forge.
//!
//! A policy declares them among the metadata keys that it reads, and each attribute that is known
//! has one value. Their keys begin with a colon, as the names of HTTP/2's pseudo-header fields do
//! (RFC 9113, section 8.3): no metadata key can, so nothing that an application sends is mistaken
//! for one. No policy changes them.

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The name of the credential that opened the application's session. Known on the client's
    /// side.
    Application,
    /// The group of the process that connected, in decimal, from the kernel (`SO_PEERCRED`,
    /// unix(7)). Known on the client's side.
    Gid,
    /// Its process id when it connected, in decimal, in the daemon's namespace. Known on the
    /// client's side.
    Pid,
    /// `client` or `server`: where the policy is evaluated. Always known.
    Side,
    /// The tenant of the call. Always known.
    Tenant,
    /// The user of the process that connected, in decimal, from the kernel. Known on the client's
    /// side.
    Uid,
}

impl Attribute {
    /// All of them, by name.
    pub const ALL: [Attribute; 6] = [
        Attribute::Application,
        Attribute::Gid,
        Attribute::Pid,
        Attribute::Side,
        Attribute::Tenant,
        Attribute::Uid,
    ];

    /// Its name, as people and rules write it.
    pub fn name(self) -> &'static str {
        match self {
            Attribute::Application => "application",
            Attribute::Gid => "gid",
            Attribute::Pid => "pid",
            Attribute::Side => "side",
            Attribute::Tenant => "tenant",
            Attribute::Uid => "uid",
        }
    }

    /// The attribute with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Attribute, UnknownAttribute> {
        let found = Attribute::ALL.into_iter().find(|its| its.name() == name);
        found.ok_or_else(|| UnknownAttribute(name.to_owned()))
    }

    /// The attribute that a key of a manifest names; `None`: it is a metadata key.
    ///
    /// # Errors
    /// It begins with a colon, and there is no such attribute.
    pub fn of_key(key: &str) -> Option<Result<Attribute, UnknownAttribute>> {
        key.strip_prefix(':').map(Attribute::named)
    }
}

/// A name that isn't an attribute's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a caller has no attribute {0:?}; there are {all}", all = Attribute::ALL.map(Attribute::name).join(" "))]
pub struct UnknownAttribute(pub String);

/// Values of attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes([Option<Box<str>>; Attribute::ALL.len()]);

impl Attributes {
    /// Attributes by their names.
    ///
    /// # Errors
    /// There is no such attribute.
    pub fn of<'a>(
        named: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Attributes, UnknownAttribute> {
        let mut attributes = Attributes::default();
        for (name, value) in named {
            attributes.set(Attribute::named(name)?, value);
        }
        Ok(attributes)
    }

    /// Gives an attribute a value.
    pub fn set(&mut self, attribute: Attribute, value: &str) {
        self.0[attribute as usize] = Some(value.into());
    }

    /// An attribute's value, if it is known.
    pub fn get(&self, attribute: Attribute) -> Option<&str> {
        self.0[attribute as usize].as_deref()
    }
}
