//! Details of errors: `google.rpc.Status`, with messages of any type.
//!
//! ```text
//!   google.rpc.Status ── code = 1, message = 2, details = 3: google.protobuf.Any, repeated
//!                                               └── type_url = 1, value = 2: a message in protobuf's encoding
//! ```
//!
//! The program encodes and decodes the content of an `Any`, with prost or another library: these
//! types are gRPC's, and peers may use gRPC. Absent: the messages of
//! `google/rpc/error_details.proto`.

use tollgate_core::Status;
use tollgate_core::metadata::MetadataError;

/// The prefix of type names in an `Any`.
const PREFIX: &str = "type.googleapis.com/";

// Tags: a field's number and its wire type.
const CODE: u64 = 1 << 3;
const MESSAGE: u64 = 2 << 3 | BYTES;
const DETAIL: u64 = 3 << 3 | BYTES;
const TYPE_URL: u64 = 1 << 3 | BYTES;
const VALUE: u64 = 2 << 3 | BYTES;
const BYTES: u64 = 2;

/// A message of any type: `google.protobuf.Any`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The message's full name, after a slash and a prefix.
    pub type_url: String,
    /// The message in protobuf's encoding.
    pub value: Vec<u8>,
}

impl Detail {
    /// A message of the type with this full name, such as `google.rpc.BadRequest`, in protobuf's
    /// encoding.
    pub fn new(type_name: &str, value: impl Into<Vec<u8>>) -> Detail {
        Detail {
            type_url: format!("{PREFIX}{type_name}"),
            value: value.into(),
        }
    }

    /// The message's full name.
    pub fn type_name(&self) -> &str {
        self.type_url.rsplit('/').next().unwrap_or_default()
    }
}

/// The error of details that aren't a `google.rpc.Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailsError;

impl std::fmt::Display for DetailsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the peer's error has details that aren't a google.rpc.Status")
    }
}

impl std::error::Error for DetailsError {}

/// Details of a [`Status`] by their types.
pub trait StatusExt: Sized {
    /// This status with these details; code and message are repeated in them, as gRPC does.
    ///
    /// # Errors
    /// The details don't fit into the metadata, which is at most 8 KiB.
    fn with_error_details(self, details: &[Detail]) -> Result<Self, MetadataError>;

    /// The details; none if the server gave none.
    ///
    /// # Errors
    /// The server's details can't be parsed.
    fn error_details(&self) -> Result<Vec<Detail>, DetailsError>;
}

impl StatusExt for Status {
    fn with_error_details(self, details: &[Detail]) -> Result<Status, MetadataError> {
        let mut rich = Vec::new();
        put_varint(&mut rich, CODE);
        // A negative int32 would be written with 64 bits; codes aren't negative.
        put_varint(&mut rich, self.code.0.into());
        put_bytes(&mut rich, MESSAGE, self.message.as_bytes());
        for detail in details {
            let mut any = Vec::new();
            put_bytes(&mut any, TYPE_URL, detail.type_url.as_bytes());
            put_bytes(&mut any, VALUE, &detail.value);
            put_bytes(&mut rich, DETAIL, &any);
        }
        self.with_details(&rich)
    }

    fn error_details(&self) -> Result<Vec<Detail>, DetailsError> {
        let mut details = Vec::new();
        for field in Fields(self.details()) {
            let (tag, value) = field?;
            if tag == DETAIL {
                details.push(detail(value)?);
            }
        }
        Ok(details)
    }
}

fn detail(any: &[u8]) -> Result<Detail, DetailsError> {
    let mut detail = Detail::default();
    for field in Fields(any) {
        let (tag, value) = field?;
        match tag {
            TYPE_URL => {
                let text = std::str::from_utf8(value).map_err(|_| DetailsError)?;
                text.clone_into(&mut detail.type_url);
            }
            VALUE => value.clone_into(&mut detail.value),
            _ => {}
        }
    }
    Ok(detail)
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_bytes(to: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    if !bytes.is_empty() || tag == DETAIL {
        put_varint(to, tag);
        put_varint(to, bytes.len() as u64);
        to.extend_from_slice(bytes);
    }
}

/// The fields of a message in protobuf's encoding: tags, and the bytes of length-delimited fields.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, DetailsError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DetailsError)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DetailsError)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], DetailsError> {
        let len = usize::try_from(len).map_err(|_| DetailsError)?;
        let (taken, rest) = self.0.split_at_checked(len).ok_or(DetailsError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, &'a [u8]), DetailsError> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => self.varint().map(|_| &[][..])?,
            1 => self.take(8)?,
            BYTES => {
                let len = self.varint()?;
                self.take(len)?
            }
            5 => self.take(4)?,
            // Groups, which these messages don't have.
            _ => return Err(DetailsError),
        };
        Ok((tag, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, &'a [u8]), DetailsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}
