//! The input and the verdict of a compat module.

use tollgate_shm_abi::metadata::{check_key, check_value};

use crate::{Fault, Hook};

/// One call as a compat module may see it. The caller has removed everything that isn't granted.
#[derive(Clone, Copy, Debug)]
pub struct CompatCall<'a> {
    /// The same number for a call's request and its reply, and for no other call in flight.
    pub call: u64,
    /// Request or reply.
    pub hook: Hook,
    /// `package.Service/Method`.
    pub path: &'a str,
    /// The granted pairs of its metadata, in order. Keys may repeat.
    pub metadata: &'a [(&'a str, &'a [u8])],
    /// The visible part of the message.
    pub message: Shown<'a>,
}

/// The visible part of a message for a compat module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// Nothing.
    Nothing,
    /// All of it, as protobuf; at most [`crate::limits::COMPAT_BODY_BYTES`].
    Protobuf(&'a [u8]),
    /// Some of its fields, as a JSON object; at most [`crate::limits::COMPAT_BODY_BYTES`].
    Json(&'a str),
}

impl Shown<'_> {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Shown::Nothing => 0,
            Shown::Protobuf(bytes) => bytes.len(),
            Shown::Json(text) => text.len(),
        }
    }
}

/// A compat module's decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompatVerdict {
    /// Let it pass.
    Allow,
    /// End it with an error.
    Deny {
        /// The gRPC status code, 1 to 16.
        code: u32,
        /// Text for the caller, at most [`crate::limits::MESSAGE_BYTES`].
        message: String,
    },
    /// Let it pass, with these changes.
    Change(CompatChange),
}

/// A compat module's changes: only those that its description allows. Each key and value is valid
/// metadata. Not checked yet: whether there is room for them, and whether the body is a valid
/// message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompatChange {
    /// Each key once.
    pub metadata: Vec<KeyChange>,
    /// The message, as protobuf.
    pub body: Option<Vec<u8>>,
}

/// A key's new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Never a reserved one.
    pub key: String,
    /// All its values; none: the key is removed.
    pub values: Vec<Vec<u8>>,
}

impl KeyChange {
    /// The change of a key that the module may change.
    ///
    /// # Errors
    /// The key, or one of the values, isn't valid metadata: the policy's fault.
    pub(crate) fn new(key: &str, values: Vec<Vec<u8>>) -> Result<KeyChange, Fault> {
        let key = check_key(key.as_bytes());
        let checked = key.and_then(|key| {
            let mut values = values.iter();
            values.try_for_each(|value| check_value(key, value))?;
            Ok(key.to_owned())
        });
        let key =
            checked.map_err(|why| Fault::BadAnswer(format!("it can't be metadata: {why}")))?;
        Ok(KeyChange { key, values })
    }
}
