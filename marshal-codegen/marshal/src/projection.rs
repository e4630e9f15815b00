//! The fields of a message that a policy sees, and the format of its view.
//!
//! # The view
//!
//! A policy gets a view instead of the message. A view is little endian:
//!
//! ```text
//!  0  u32  total length of the view in bytes
//!  4  u32  number of fields
//!  8  per declared field, 16 bytes:
//!       +0  u32  present: 0 or 1; for a path from a configuration its type instead of 1
//!       +4  u32  length in bytes, for string and bytes; else 0
//!       +8  u64  value: integers sign- or zero-extended, enum as a sign-extended i32, bool 0 or 1,
//!                float its bits in the low half, double its bits, string and bytes their offset in the view
//!     then the bytes of strings and bytes fields, in order, without padding
//! ```
//!
//! A field is present if every message on its path is present, and the field is set or has no
//! explicit presence. An absent field's entry is all zero. Undeclared fields need no hiding: their
//! bytes are never copied.
//!
//! A field that the policy declares but that wasn't granted has an entry, so that other fields keep
//! their places. That entry is all zero whatever the message holds: nothing on its path is read.
//! The policy can't tell it from an absent field.
//!
//! Spare entries may follow the fields' entries. They count as fields and are all zero. A caller
//! that shows a policy more than the message holds fills them in.
//!
//! A module that is built for a schema knows the types of its fields. One that gets its paths from
//! a configuration doesn't, so the entry of such a path has the field's type ([`FieldType::tag`]).
//!
//! Absent: repeated fields, maps, and whole messages. Attaching a policy fails if one of its paths
//! names such a field.

use std::fmt;

use tollgate_schema::spelling::did_you_mean;
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageId, MessageLayout};

use crate::bytes::u32_at;
use crate::guard::Guard;
use crate::limits::MAX_VIEW_FIELDS;
use crate::{Fault, FaultCode, MAX_DEPTH};

/// Bytes before the first entry.
pub const HEADER_LEN: usize = 8;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 16;

/// A list of paths, resolved against one message type.
#[derive(Debug, PartialEq, Eq)]
pub struct Projection {
    root: MessageId,
    root_size: u32,
    fields: Vec<Field>,
    spare: usize,
}

/// One path.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The messages on the path.
    pub hops: Vec<Hop>,
    /// Offset of the leaf in the last message's fixed part.
    pub at: u32,
    /// The kind of the leaf.
    pub leaf: Leaf,
    /// Tells whether it is set.
    pub guard: Guard,
    /// Message type and field index of the leaf, for faults.
    pub place: (MessageId, u16),
    /// Without a grant the field is always absent, and no message on its path is read.
    pub granted: bool,
    /// The first word of its entry if it is present: 1, or the tag of its type.
    pub present: u32,
}

/// A path that is to be resolved.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'p> {
    /// Names with dots between them.
    pub path: &'p str,
    /// See [`Field::granted`].
    pub granted: bool,
    /// For a path from a configuration: the types that it may have. Its entry has the type.
    pub accepts: Option<FieldTypes>,
    /// A message type without this field is no error: there the field is always absent.
    pub may_lack: bool,
}

impl<'p> Wanted<'p> {
    /// A path that the policy's author has written.
    pub fn declared(path: &'p str, granted: bool) -> Wanted<'p> {
        Wanted {
            path,
            granted,
            accepts: None,
            may_lack: false,
        }
    }
}

/// The type of a field, as policies know it. The numbers are those of the policy ABI: 1 is no type,
/// but the first word of a declared field's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the variants are named after types")]
pub enum FieldType {
    Bool = 2,
    Int = 3,
    Uint = 4,
    Float = 5,
    Double = 6,
    String = 7,
    Bytes = 8,
    Enum = 9,
}

impl FieldType {
    /// All types, by their tags.
    pub const ALL: [FieldType; 8] = [
        FieldType::Bool,
        FieldType::Int,
        FieldType::Uint,
        FieldType::Float,
        FieldType::Double,
        FieldType::String,
        FieldType::Bytes,
        FieldType::Enum,
    ];

    /// The type of a field of this kind; `None` for a message.
    pub fn of(kind: Kind) -> Option<FieldType> {
        Some(match kind {
            Kind::Bool => FieldType::Bool,
            Kind::I32 | Kind::I64 => FieldType::Int,
            Kind::U32 | Kind::U64 => FieldType::Uint,
            Kind::F32 => FieldType::Float,
            Kind::F64 => FieldType::Double,
            Kind::String => FieldType::String,
            Kind::Bytes => FieldType::Bytes,
            Kind::Enum => FieldType::Enum,
            Kind::Message(_) => return None,
        })
    }

    /// Its number in the entry of a view.
    pub fn tag(self) -> u32 {
        self as u32
    }

    /// Its name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            FieldType::Bool => "bool",
            FieldType::Int => "int",
            FieldType::Uint => "uint",
            FieldType::Float => "float",
            FieldType::Double => "double",
            FieldType::String => "string",
            FieldType::Bytes => "bytes",
            FieldType::Enum => "enum",
        }
    }
}

/// A set of types: one bit per [`FieldType::tag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldTypes(u32);

impl FieldTypes {
    /// The set with these bits; others are ignored.
    pub fn of_bits(bits: u32) -> FieldTypes {
        let known = FieldType::ALL.iter();
        FieldTypes(bits & known.fold(0, |bits, one| bits | 1 << one.tag()))
    }

    /// Whether the type is in the set.
    pub fn contains(self, one: FieldType) -> bool {
        self.0 & 1 << one.tag() != 0
    }
}

impl fmt::Display for FieldTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = FieldType::ALL.into_iter();
        let names: Vec<_> = all.filter(|one| self.contains(*one)).collect();
        let names: Vec<_> = names.into_iter().map(FieldType::name).collect();
        f.write_str(&names.join(", "))
    }
}

/// A message on the path to a leaf.
#[derive(Debug, PartialEq, Eq)]
pub struct Hop {
    /// Offset of the reference in the fixed part of the previous message.
    pub reference: u32,
    /// Tells whether it is set.
    pub guard: Guard,
    /// Bytes of its fixed part.
    pub size: u32,
}

/// The conversion of a leaf to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// One byte.
    Bool,
    /// Four bytes, sign-extended: signed integers and enums.
    I32,
    /// Four bytes, zero-extended: unsigned integers and floats.
    U32,
    /// Eight bytes.
    Word,
    /// The bytes that a slot refers to.
    Bytes {
        /// They are text, and are checked unless that has happened before.
        utf8: bool,
    },
}

/// The reason why a list of paths can't be projected. The fault is the policy manifest's, or that
/// of the schema that lacks the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProjectError {
    /// A name on the path is no field of its message.
    #[error("field {path:?}: message {message} has no field {field:?}{meant}")]
    UnknownField {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The missing name.
        field: String,
        /// `; did you mean ...?`, or nothing.
        meant: String,
    },
    /// A name on the path is that of a oneof. Its members are fields of the message.
    #[error(
        "field {path:?}: {message}.{oneof} is a oneof; name one of its members without it: {members}"
    )]
    Oneof {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The oneof.
        oneof: String,
        /// Its members, with commas between them.
        members: String,
    },
    /// A field has a type that the policy doesn't take.
    #[error("field {path:?}: {message}.{field} is of type {found}; the policy takes {accepts}")]
    WrongType {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The field.
        field: String,
        /// Its type.
        found: &'static str,
        /// The types that the policy takes.
        accepts: FieldTypes,
    },
    /// A field on the path is repeated or a map.
    #[error(
        "field {path:?}: {message}.{field} is repeated or a map; a policy can only read and change singular fields"
    )]
    Repeated {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The field.
        field: String,
    },
    /// The path ends at a message.
    #[error("field {path:?}: {message}.{field} is a message; name one of its fields")]
    EndsAtMessage {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The field.
        field: String,
    },
    /// The path continues after a field that isn't a message.
    #[error(
        "field {path:?}: {message}.{field} is not a message, so nothing can be named inside it"
    )]
    NotAMessage {
        /// The whole path.
        path: String,
        /// The message's full name.
        message: String,
        /// The field.
        field: String,
    },
    /// The path has too many names.
    #[error("field {path:?} passes through more than {MAX_DEPTH} messages")]
    TooDeep {
        /// The whole path, cut.
        path: String,
    },
    /// Too many paths.
    #[error("{count} fields are declared, the limit is {limit}")]
    TooManyFields {
        /// The number of paths.
        count: usize,
        /// The limit for a view, or for a list of changes.
        limit: usize,
    },
}

impl Projection {
    /// Resolves dotted paths such as `customer_name` or `stay.in_date` in messages of type `root`.
    pub fn new(
        layouts: &Layouts,
        root: MessageId,
        paths: &[impl AsRef<str>],
    ) -> Result<Projection, ProjectError> {
        let all: Vec<_> = paths.iter().map(|path| (path, true)).collect();
        Projection::new_granted(layouts, root, &all)
    }

    /// Like [`Projection::new`], but some of the paths aren't granted. They must exist all the
    /// same: a manifest's validity doesn't depend on grants.
    pub fn new_granted(
        layouts: &Layouts,
        root: MessageId,
        paths: &[(impl AsRef<str>, bool)],
    ) -> Result<Projection, ProjectError> {
        let all: Vec<_> = paths
            .iter()
            .map(|(path, granted)| Wanted::declared(path.as_ref(), *granted))
            .collect();
        Projection::of_wanted(layouts, root, &all)
    }

    /// Resolves paths, some of which may come from a configuration.
    pub fn of_wanted(
        layouts: &Layouts,
        root: MessageId,
        paths: &[Wanted<'_>],
    ) -> Result<Projection, ProjectError> {
        if paths.len() > MAX_VIEW_FIELDS {
            return Err(ProjectError::TooManyFields {
                count: paths.len(),
                limit: MAX_VIEW_FIELDS,
            });
        }
        let fields = paths.iter().map(|wanted| {
            let field = resolve_wanted(layouts, root, wanted)?;
            Ok(field.unwrap_or_else(|| lacking(root)))
        });
        Ok(Projection {
            root,
            root_size: layouts.get(root).size,
            fields: fields.collect::<Result<_, _>>()?,
            spare: 0,
        })
    }

    /// The same, with this number of spare entries after those of the fields.
    pub fn with_spare(self, spare: usize) -> Result<Projection, ProjectError> {
        let count = self.fields.len().saturating_add(spare);
        if count > MAX_VIEW_FIELDS {
            let limit = MAX_VIEW_FIELDS;
            return Err(ProjectError::TooManyFields { count, limit });
        }
        Ok(Projection { spare, ..self })
    }

    /// In the order of the paths.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of the root's fixed part.
    pub fn root_size(&self) -> usize {
        self.root_size as usize
    }

    /// Bytes of a view before the first string's: the length of a view with only empty strings.
    pub fn fixed_len(&self) -> usize {
        HEADER_LEN + self.entries() * ENTRY_LEN
    }

    /// Entries of a view: those of the fields, and the spare ones.
    pub fn entries(&self) -> usize {
        self.fields.len() + self.spare
    }

    /// A fault of the message as a whole.
    pub fn fault(&self, code: FaultCode) -> Fault {
        Fault {
            code,
            message: self.root,
            field: None,
        }
    }
}

impl Field {
    /// A fault at this field.
    pub fn fault(&self, code: FaultCode) -> Fault {
        Fault {
            code,
            message: self.place.0,
            field: Some(self.place.1),
        }
    }
}

/// Follows a field's path to its struct; `None` if a message on the path isn't set.
pub(crate) fn find_struct(field: &Field, image: &[u8]) -> Result<Option<usize>, FaultCode> {
    let mut at = 0;
    for hop in &field.hops {
        if !is_set(hop.guard, image, at)? {
            return Ok(None);
        }
        let reference = u32_at(image, at + hop.reference as usize);
        let off = reference.ok_or(FaultCode::Truncated)?;
        if off == 0 {
            return Ok(None);
        }
        at = off as usize;
        if image
            .len()
            .checked_sub(hop.size as usize)
            .is_none_or(|last| at > last)
        {
            return Err(FaultCode::Truncated);
        }
    }
    Ok(Some(at))
}

/// Whether the struct at `at` marks a field as set.
pub(crate) fn is_set(guard: Guard, image: &[u8], at: usize) -> Result<bool, FaultCode> {
    let u32_in = |at| u32_at(image, at).ok_or(FaultCode::Truncated);
    Ok(match guard {
        Guard::None => true,
        Guard::Bit { word, mask } => u32_in(at + word as usize)? & mask != 0,
        Guard::Case { at: case, number } => u32_in(at + case as usize)? == number,
    })
}

/// The place of a field that a message type lacks: always absent.
fn lacking(root: MessageId) -> Field {
    Field {
        hops: Vec::new(),
        at: 0,
        leaf: Leaf::Bool,
        guard: Guard::None,
        place: (root, 0),
        granted: false,
        present: 0,
    }
}

/// Resolves a path, and checks its type; `None` if the message lacks the field and may.
pub(crate) fn resolve_wanted(
    layouts: &Layouts,
    root: MessageId,
    wanted: &Wanted<'_>,
) -> Result<Option<Field>, ProjectError> {
    let field = match resolve(layouts, root, wanted.path) {
        Err(ProjectError::UnknownField { .. }) if wanted.may_lack => return Ok(None),
        other => other?,
    };
    let granted = wanted.granted;
    let Some(accepts) = wanted.accepts else {
        return Ok(Some(Field { granted, ..field }));
    };
    let (message, index) = field.place;
    let message = layouts.get(message);
    let leaf = &message.fields[usize::from(index)];
    let found = FieldType::of(leaf.kind);
    let Some(found) = found.filter(|found| accepts.contains(*found)) else {
        return Err(ProjectError::WrongType {
            path: wanted.path.to_owned(),
            message: message.name.clone(),
            field: leaf.name.clone(),
            found: found.map_or("message", FieldType::name),
            accepts,
        });
    };
    Ok(Some(Field {
        granted,
        present: found.tag(),
        ..field
    }))
}

/// Resolves one path to a field that may be copied or changed.
fn resolve(layouts: &Layouts, root: MessageId, path: &str) -> Result<Field, ProjectError> {
    let mut hops = Vec::new();
    let mut id = root;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let message = layouts.get(id);
        let (index, field) = named(message, name, path)?;
        let guard = Guard::of(field, message);
        let place = (path.to_owned(), message.name.clone(), field.name.clone());
        let leaf = match (field.kind, names.peek().is_some()) {
            (Kind::Message(next), true) => {
                if hops.len() + 1 >= MAX_DEPTH {
                    return Err(ProjectError::TooDeep {
                        path: path.chars().take(80).collect(),
                    });
                }
                hops.push(Hop {
                    reference: field.offset,
                    guard,
                    size: layouts.get(next).size,
                });
                id = next;
                continue;
            }
            (Kind::Message(_), false) => {
                let (path, message, field) = place;
                return Err(ProjectError::EndsAtMessage {
                    path,
                    message,
                    field,
                });
            }
            (_, true) => {
                let (path, message, field) = place;
                return Err(ProjectError::NotAMessage {
                    path,
                    message,
                    field,
                });
            }
            (kind, false) => leaf_of(kind),
        };
        return Ok(Field {
            hops,
            at: field.offset,
            leaf,
            guard,
            place: (id, index),
            granted: true,
            present: 1,
        });
    }
    unreachable!("split yields at least one name, and the last one returns")
}

fn named<'l>(
    message: &'l MessageLayout,
    name: &str,
    path: &str,
) -> Result<(u16, &'l FieldLayout), ProjectError> {
    let (path, message_name) = (path.to_owned(), message.name.clone());
    let Some(index) = message.fields.iter().position(|f| f.name == name) else {
        let oneof = message.oneofs.iter().position(|oneof| oneof.name == name);
        if let Some(oneof) = oneof {
            let is_member = |field: &&FieldLayout| matches!(field.cardinality, Cardinality::Oneof { index } if index as usize == oneof);
            let members = message.fields.iter().filter(is_member);
            let members: Vec<_> = members.map(|field| field.name.as_str()).collect();
            return Err(ProjectError::Oneof {
                path,
                message: message_name,
                oneof: name.to_owned(),
                members: members.join(", "),
            });
        }
        // Any letter is near to any other.
        let names = message.fields.iter().map(|field| field.name.as_str());
        let names = names.filter(|_| name.len() > 2);
        return Err(ProjectError::UnknownField {
            path,
            message: message_name,
            field: name.to_owned(),
            meant: did_you_mean(name, names),
        });
    };
    let field = &message.fields[index];
    if matches!(field.cardinality, Cardinality::Repeated | Cardinality::Map) {
        return Err(ProjectError::Repeated {
            path,
            message: message_name,
            field: field.name.clone(),
        });
    }
    Ok((index as u16, field))
}

fn leaf_of(kind: Kind) -> Leaf {
    match kind {
        Kind::Bool => Leaf::Bool,
        Kind::I32 | Kind::Enum => Leaf::I32,
        Kind::U32 | Kind::F32 => Leaf::U32,
        Kind::I64 | Kind::U64 | Kind::F64 => Leaf::Word,
        Kind::String => Leaf::Bytes { utf8: true },
        Kind::Bytes => Leaf::Bytes { utf8: false },
        Kind::Message(_) => unreachable!("the caller has handled messages"),
    }
}
