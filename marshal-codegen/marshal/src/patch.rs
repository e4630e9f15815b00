//! A policy's changes to a message: a valid image in, another valid image out.
//!
//! ```text
//! image --copy--> inline part --poke each change--> +-- only scalars: done, the rest of the image behind it
//!                                                   +-- otherwise: rebuild, part by part in canonical order
//! ```
//!
//! Changes apply to the fixed parts of a copy, in the order of the list. Each writes a scalar in
//! its place, sets its presence bit or case, and zeroes the oneof's former member. A new string
//! only marks its slot. If any part moved, a walk over the marked copy appends all remaining parts
//! in canonical order and rewrites the offsets. The walk only looks at slots and references, since
//! unset fields have none.
//!
//! The result names its extents by index, as on the wire, so that `accept` takes it. A new value is
//! never an extent: the message is private and copied anyway. Untouched extents stay as they are.
//! Unchanged parts are moved, never interpreted: unknown fields, arrays, maps and sub-messages keep
//! their bytes.
//!
//! The image must be valid; a corrupt one yields an error or a meaningless image, never a panic,
//! and never one above `MAX_MESSAGE`.

use tollgate_schema::layout::align_up;
use tollgate_schema::{
    Cardinality, EXTENT_FLAG, FieldLayout, Kind, Layouts, MessageId, MessageLayout,
};

use crate::bytes::{is_utf8, put, u32_at};
use crate::guard::Guard;
use crate::limits::MAX_CHANGES;
use crate::projection::{self, Field, ProjectError, Wanted};
use crate::{FaultCode, MAX_DEPTH, MAX_EXTENTS, MAX_MESSAGE};

/// A slot's `off` with both bits set: the value is that of the change with the number in the low
/// bits. No valid slot has both bits set, as there are at most `MAX_EXTENTS` extents.
const MARK: u32 = EXTENT_FLAG | 0x4000_0000;

/// The fields that a policy may change, resolved against one message type.
#[derive(Debug, PartialEq, Eq)]
pub struct Patch {
    root: MessageId,
    /// `None`: the message type lacks the field.
    fields: Vec<(String, Option<Field>)>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Index into the paths.
    pub field: u32,
    /// Its new value.
    pub value: NewValue<'a>,
}

/// A field's value after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// Unset; for a field without presence: zero or empty. A field of an absent message is unset
    /// already.
    Clear,
    /// A scalar, in the same form as in a view.
    Bits(u64),
    /// A string or bytes.
    Bytes(&'a [u8]),
}

/// Properties of the new image.
#[derive(Debug, PartialEq, Eq)]
pub struct Patched {
    /// Bytes of its inline part.
    pub inline_len: usize,
    /// The offsets of its extents; slots name them by index.
    pub extents: Vec<u32>,
}

/// The reason why a list of changes is refused. The policy is at fault, except for
/// [`PatchError::Malformed`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// No such field.
    #[error("a change names field {index}; {count} fields are declared as changed")]
    UnknownField {
        /// The given number.
        index: u32,
        /// The number of fields.
        count: usize,
    },
    /// The same field again.
    #[error("field {field:?} is changed twice")]
    Twice {
        /// The path.
        field: String,
    },
    /// A number for a string, or a string for a number.
    #[error("field {field:?} has type {declared}; it can't be set to {given}")]
    WrongKind {
        /// The path.
        field: String,
        /// The type that the schema declares.
        declared: &'static str,
        /// The value's kind and the value.
        given: String,
    },
    /// A number outside the type's range.
    #[error("field {field:?}: {bits:#x} is no value of type {declared}")]
    OutOfRange {
        /// The path.
        field: String,
        /// The type that the schema declares.
        declared: &'static str,
        /// The value.
        bits: u64,
    },
    /// A closed enum doesn't declare this number.
    #[error("field {field:?}: its enum is closed and has no value {number}")]
    Undeclared {
        /// The path.
        field: String,
        /// The value.
        number: i32,
    },
    /// The text isn't UTF-8.
    #[error("field {field:?}: the new text of {len} bytes is not valid UTF-8 at byte {at}")]
    NotUtf8 {
        /// The path.
        field: String,
        /// Its length in bytes.
        len: usize,
        /// The offset of the first bad byte.
        at: usize,
    },
    /// A required field must stay set.
    #[error("field {field:?} is required and can't be cleared")]
    Required {
        /// The path.
        field: String,
    },
    /// The message that would hold the value is absent; a patch makes none.
    #[error("field {field:?} can't be set: the message that it belongs to is absent")]
    ParentAbsent {
        /// The path.
        field: String,
    },
    /// The message's type lacks the field, which its policy's configuration allows.
    #[error("field {field:?} can't be set: the method's message has no such field")]
    Lacking {
        /// The path.
        field: String,
    },
    /// The result would be too long.
    #[error("the changed message would have {len} bytes, the limit is {MAX_MESSAGE}")]
    TooLarge {
        /// Its length in bytes as far as it was written.
        len: usize,
    },
    /// The image isn't valid: the caller is at fault.
    #[error("the message to be changed is malformed: {0}")]
    Malformed(FaultCode),
}

impl From<FaultCode> for PatchError {
    fn from(code: FaultCode) -> PatchError {
        PatchError::Malformed(code)
    }
}

impl Patch {
    /// Resolves dotted paths of singular fields, such as `customer_name` or `stay.in_date`, in
    /// messages of type `root`.
    pub fn new(
        layouts: &Layouts,
        root: MessageId,
        paths: &[impl AsRef<str>],
    ) -> Result<Patch, ProjectError> {
        let all: Vec<_> = paths
            .iter()
            .map(|path| Wanted::declared(path.as_ref(), true))
            .collect();
        Patch::of_wanted(layouts, root, &all)
    }

    /// Resolves paths, some of which may come from a configuration.
    pub fn of_wanted(
        layouts: &Layouts,
        root: MessageId,
        paths: &[Wanted<'_>],
    ) -> Result<Patch, ProjectError> {
        if paths.len() > MAX_CHANGES {
            return Err(ProjectError::TooManyFields {
                count: paths.len(),
                limit: MAX_CHANGES,
            });
        }
        let fields = paths.iter().map(|wanted| {
            let field = projection::resolve_wanted(layouts, root, wanted)?;
            Ok((wanted.path.to_owned(), field))
        });
        Ok(Patch {
            root,
            fields: fields.collect::<Result<_, _>>()?,
        })
    }

    /// Writes `image` with `changes` into `out`, and replaces its content; after an error the
    /// content is unspecified.
    ///
    /// `image` is whole and valid, and its first `inline_len` bytes are the inline part. After
    /// `gather`, `extents` holds the offsets of its extents. After `accept`, its slots hold the
    /// offsets, and `extents` is empty. `layouts` must be the ones that the patch was made with.
    pub fn apply(
        &self,
        layouts: &Layouts,
        image: &[u8],
        inline_len: usize,
        extents: &[u32],
        changes: &[Change<'_>],
        out: &mut Vec<u8>,
    ) -> Result<Patched, PatchError> {
        let inline = image.get(..inline_len).ok_or(FaultCode::Truncated)?;
        if inline_len < layouts.get(self.root).size as usize {
            return Err(FaultCode::Truncated.into());
        }
        out.clear();
        out.extend_from_slice(inline);
        let mut moved = false;
        let mut seen = 0_u32;
        for (number, change) in (0..).zip(changes) {
            let (path, field) = self.field(change.field)?;
            // At most `MAX_CHANGES` fields: one bit each.
            if seen & 1 << change.field != 0 {
                let field = path.to_owned();
                return Err(PatchError::Twice { field });
            }
            seen |= 1 << change.field;
            let Some(field) = field else {
                lack(path, change.value)?;
                continue;
            };
            let target = Target::new(layouts, path, field);
            moved |= target.poke(out, change.value, MARK | number)?;
        }
        let has_placed = extents.is_empty() && image.len() > inline_len;
        if !moved && !has_placed {
            out.extend_from_slice(&image[inline_len..]);
            let extents = extents.to_vec();
            return Ok(Patched {
                inline_len,
                extents,
            });
        }
        Rebuild::new(layouts, image, inline_len, extents, changes, out).run(self.root)
    }

    fn field(&self, index: u32) -> Result<(&str, Option<&Field>), PatchError> {
        let found = self.fields.get(index as usize);
        let (path, field) = found.ok_or(PatchError::UnknownField {
            index,
            count: self.fields.len(),
        })?;
        Ok((path, field.as_ref()))
    }
}

/// A change of a field that the message type lacks: it is unset already.
fn lack(path: &str, value: NewValue<'_>) -> Result<(), PatchError> {
    match value {
        NewValue::Clear => Ok(()),
        _ => Err(PatchError::Lacking {
            field: path.to_owned(),
        }),
    }
}

/// One field and its layout.
struct Target<'a> {
    path: &'a str,
    field: &'a Field,
    message: &'a MessageLayout,
    leaf: &'a FieldLayout,
}

impl<'a> Target<'a> {
    fn new(layouts: &'a Layouts, path: &'a str, field: &'a Field) -> Target<'a> {
        let message = layouts.get(field.place.0);
        Target {
            path,
            field,
            message,
            leaf: &message.fields[usize::from(field.place.1)],
        }
    }

    /// Makes the change in the fixed parts of `block`; a new string leaves `mark` in its slot.
    /// Returns whether a part was added, removed or changed.
    fn poke(&self, block: &mut [u8], value: NewValue<'_>, mark: u32) -> Result<bool, PatchError> {
        self.check(value)?;
        let Some(at) = projection::find_struct(self.field, block)? else {
            return match value {
                NewValue::Clear => Ok(false),
                _ => Err(PatchError::ParentAbsent { field: self.path() }),
            };
        };
        let place = at + self.field.at as usize;
        match value {
            NewValue::Clear => {
                let was_set = clear_guard(block, at, self.field.guard)?;
                Ok(was_set && zero(block, place, self.leaf)?)
            }
            NewValue::Bits(bits) => {
                let dropped = self.set_guard(block, at)?;
                let size = self.leaf.kind.scalar_size() as usize;
                put(block, place, &bits.to_le_bytes()[..size]).ok_or(FaultCode::Truncated)?;
                Ok(dropped)
            }
            NewValue::Bytes(bytes) => {
                let dropped = self.set_guard(block, at)?;
                let had = zero(block, place, self.leaf)?;
                if bytes.is_empty() {
                    return Ok(dropped || had);
                }
                put(block, place, &mark.to_le_bytes()).ok_or(FaultCode::Truncated)?;
                Ok(true)
            }
        }
    }

    fn path(&self) -> String {
        self.path.to_owned()
    }

    /// Whether the field can have this value.
    fn check(&self, value: NewValue<'_>) -> Result<(), PatchError> {
        let declared = self.leaf.proto_type.name();
        let is_bytes = matches!(self.leaf.kind, Kind::String | Kind::Bytes);
        let wrong = |given| PatchError::WrongKind {
            field: self.path(),
            declared,
            given,
        };
        match value {
            NewValue::Clear if self.leaf.required => {
                Err(PatchError::Required { field: self.path() })
            }
            NewValue::Clear => Ok(()),
            NewValue::Bits(bits) if is_bytes => Err(wrong(format!("the number {bits:#x}"))),
            NewValue::Bits(bits) => self.check_scalar(bits),
            NewValue::Bytes(bytes) if !is_bytes => Err(wrong(format!("{} bytes", bytes.len()))),
            NewValue::Bytes(bytes) if bytes.len() > MAX_MESSAGE => {
                let len = bytes.len();
                Err(PatchError::TooLarge { len })
            }
            NewValue::Bytes(text) if self.leaf.kind == Kind::String && !is_utf8(text) => {
                let error = std::str::from_utf8(text).err();
                Err(PatchError::NotUtf8 {
                    field: self.path(),
                    len: text.len(),
                    at: error.map_or(0, |e| e.valid_up_to()),
                })
            }
            NewValue::Bytes(_) => Ok(()),
        }
    }

    fn check_scalar(&self, bits: u64) -> Result<(), PatchError> {
        let signed = i32::try_from(bits.cast_signed());
        let fits = match self.leaf.kind {
            Kind::Bool => bits <= 1,
            Kind::I32 | Kind::Enum => signed.is_ok(),
            Kind::U32 | Kind::F32 => u32::try_from(bits).is_ok(),
            _ => true,
        };
        if !fits {
            return Err(PatchError::OutOfRange {
                field: self.path(),
                declared: self.leaf.proto_type.name(),
                bits,
            });
        }
        match (&self.leaf.closed, signed) {
            (Some(declared), Ok(number)) if declared.binary_search(&number).is_err() => {
                Err(PatchError::Undeclared {
                    field: self.path(),
                    number,
                })
            }
            _ => Ok(()),
        }
    }

    /// Marks the field as set in the struct at `at`; returns whether that dropped a part of another
    /// member.
    fn set_guard(&self, block: &mut [u8], at: usize) -> Result<bool, FaultCode> {
        match self.field.guard {
            Guard::None => Ok(false),
            Guard::Bit { word, mask } => {
                let word = at + word as usize;
                let bits = u32_at(block, word).ok_or(FaultCode::Truncated)?;
                put_u32(block, word, bits | mask)?;
                Ok(false)
            }
            Guard::Case { at: case, number } => {
                let case = at + case as usize;
                let before = u32_at(block, case).ok_or(FaultCode::Truncated)?;
                put_u32(block, case, number)?;
                match self.message.field(before) {
                    Some(other) if before != number => {
                        zero(block, at + other.offset as usize, other)
                    }
                    _ => Ok(false),
                }
            }
        }
    }
}

/// Marks a field as unset in the struct at `at`; returns whether it was set.
fn clear_guard(block: &mut [u8], at: usize, guard: Guard) -> Result<bool, FaultCode> {
    let (word, cleared, was_set) = match guard {
        Guard::None => return Ok(true),
        Guard::Bit { word, mask } => {
            let word = at + word as usize;
            let bits = u32_at(block, word).ok_or(FaultCode::Truncated)?;
            (word, bits & !mask, bits & mask != 0)
        }
        Guard::Case { at: case, number } => {
            let case = at + case as usize;
            let before = u32_at(block, case).ok_or(FaultCode::Truncated)?;
            let was_set = before == number;
            (case, if was_set { 0 } else { before }, was_set)
        }
    };
    put_u32(block, word, cleared)?;
    Ok(was_set)
}

/// Zeroes a field's bytes in the fixed part; returns whether they referred to a part.
fn zero(block: &mut [u8], place: usize, field: &FieldLayout) -> Result<bool, FaultCode> {
    let (size, _) = field.fixed_size_and_align();
    let held = block.get_mut(place..place + size as usize);
    let held = held.ok_or(FaultCode::Truncated)?;
    let has_part = field.kind.scalar_size() == 0 && held.iter().any(|byte| *byte != 0);
    held.fill(0);
    Ok(has_part)
}

fn put_u32(block: &mut [u8], at: usize, value: u32) -> Result<(), FaultCode> {
    put(block, at, &value.to_le_bytes()).ok_or(FaultCode::Truncated)
}

/// Rewrites the parts of the marked copy behind it, and drops the copy at the end.
///
/// `from` is always an offset into the copy, `to` one into the new block.
struct Rebuild<'a> {
    layouts: &'a Layouts,
    image: &'a [u8],
    old_extents: &'a [u32],
    changes: &'a [Change<'a>],
    out: &'a mut Vec<u8>,
    /// Length of the copy.
    inline_len: usize,
    /// Offset of the new block; a multiple of 8.
    base: usize,
    /// For each kept extent, its offset in the old image and its length.
    kept: [(u32, u32); MAX_EXTENTS],
    count: usize,
}

impl<'a> Rebuild<'a> {
    fn new(
        layouts: &'a Layouts,
        image: &'a [u8],
        inline_len: usize,
        old_extents: &'a [u32],
        changes: &'a [Change<'a>],
        out: &'a mut Vec<u8>,
    ) -> Rebuild<'a> {
        let base = align_up(inline_len, 8);
        out.resize(base, 0);
        Rebuild {
            layouts,
            image,
            old_extents,
            changes,
            out,
            inline_len,
            base,
            kept: [(0, 0); MAX_EXTENTS],
            count: 0,
        }
    }

    fn run(mut self, root: MessageId) -> Result<Patched, PatchError> {
        let size = self.layouts.get(root).size as usize;
        let to = self.append(0, size, 8)?;
        self.structure(root, 0, to, 1)?;
        self.out.drain(..self.base);
        let inline_len = self.out.len();
        let mut extents = Vec::with_capacity(self.count);
        for &(start, len) in &self.kept[..self.count] {
            let at = align_up(self.out.len(), 8);
            let bytes = self
                .image
                .get(start as usize..start as usize + len as usize);
            let bytes = bytes.ok_or(FaultCode::Truncated)?;
            room_for(at + bytes.len())?;
            self.out.resize(at, 0);
            self.out.extend_from_slice(bytes);
            extents.push(at as u32);
        }
        Ok(Patched {
            inline_len,
            extents,
        })
    }

    /// Appends the parts of a struct whose fixed part has been appended.
    fn structure(
        &mut self,
        id: MessageId,
        from: usize,
        to: usize,
        depth: usize,
    ) -> Result<(), PatchError> {
        if depth > MAX_DEPTH {
            return Err(FaultCode::TooDeep.into());
        }
        let layouts = self.layouts;
        let message = layouts.get(id);
        for field in &message.fields {
            let (from, to) = (from + field.offset as usize, to + field.offset as usize);
            match (field.cardinality, field.kind) {
                (Cardinality::Repeated | Cardinality::Map, kind) => {
                    self.array(kind, from, to, depth)?;
                }
                (_, Kind::String | Kind::Bytes) => self.bytes(from, to)?,
                (_, Kind::Message(id)) => {
                    let part = self.old_u32(from)? as usize;
                    if part != 0 {
                        let new = self.append(part, layouts.get(id).size as usize, 8)?;
                        self.put_u32(to, new)?;
                        self.structure(id, part, new, depth + 1)?;
                    }
                }
                _ => {}
            }
        }
        if let Some(slot) = message.unknown {
            self.array_of(1, 1, from + slot as usize, to + slot as usize)?;
        }
        Ok(())
    }

    /// Appends an array and its elements' parts.
    fn array(
        &mut self,
        kind: Kind,
        from: usize,
        to: usize,
        depth: usize,
    ) -> Result<(), PatchError> {
        let (size, align) = match kind {
            Kind::Message(id) => (self.layouts.get(id).size as usize, 8),
            Kind::String | Kind::Bytes => (8, 4),
            scalar => (scalar.scalar_size() as usize, scalar.scalar_size() as usize),
        };
        let Some((old, new, count)) = self.array_of(size, align, from, to)? else {
            return Ok(());
        };
        for at in (0..count).map(|i| i * size) {
            match kind {
                Kind::Message(id) => self.structure(id, old + at, new + at, depth + 1)?,
                Kind::String | Kind::Bytes => self.bytes(old + at, new + at)?,
                _ => break,
            }
        }
        Ok(())
    }

    /// Appends the elements of the given slot; returns their old offset, new offset and number, or
    /// `None` if there are none.
    fn array_of(
        &mut self,
        size: usize,
        align: usize,
        from: usize,
        to: usize,
    ) -> Result<Option<(usize, usize, usize)>, PatchError> {
        let (old, count) = (self.old_u32(from)? as usize, self.old_u32(from + 4)?);
        if count == 0 {
            return Ok(None);
        }
        let count = count as usize;
        let new = self.append(old, count * size, align)?;
        self.put_u32(to, new)?;
        Ok(Some((old, new, count)))
    }

    /// Appends the value of a slot, or keeps its extent for later.
    fn bytes(&mut self, from: usize, to: usize) -> Result<(), PatchError> {
        let (off, len) = (self.old_u32(from)?, self.old_u32(from + 4)?);
        if off & MARK == MARK {
            let change = self.changes.get((off & !MARK) as usize);
            let Some(NewValue::Bytes(value)) = change.map(|change| change.value) else {
                return Err(FaultCode::ExtentOrder.into());
            };
            let at = self.out.len() - self.base;
            room_for(at + value.len())?;
            self.out.extend_from_slice(value);
            self.put_u32(to, at)?;
            return self.put_u32(to + 4, value.len());
        }
        if len == 0 {
            return Ok(());
        }
        let start = if off & EXTENT_FLAG != 0 {
            let index = (off & !EXTENT_FLAG) as usize;
            *self
                .old_extents
                .get(index)
                .ok_or(FaultCode::ExtentMissing)?
        } else if off as usize >= self.inline_len {
            off
        } else {
            let new = self.append(off as usize, len as usize, 1)?;
            return self.put_u32(to, new);
        };
        let kept = self.kept.get_mut(self.count);
        *kept.ok_or(FaultCode::TooManyExtents)? = (start, len);
        self.put_u32(to, EXTENT_FLAG as usize | self.count)?;
        self.count += 1;
        Ok(())
    }

    /// Copies a part to its place in the canonical order; returns that place.
    fn append(&mut self, from: usize, len: usize, align: usize) -> Result<usize, PatchError> {
        let end = from.saturating_add(len);
        if end > self.inline_len {
            return Err(FaultCode::Truncated.into());
        }
        let at = align_up(self.out.len() - self.base, align);
        room_for(at + len)?;
        self.out.resize(self.base + at, 0);
        self.out.extend_from_within(from..end);
        Ok(at)
    }

    fn old_u32(&self, at: usize) -> Result<u32, FaultCode> {
        let copy = self.out.get(..self.inline_len);
        copy.and_then(|copy| u32_at(copy, at))
            .ok_or(FaultCode::Truncated)
    }

    fn put_u32(&mut self, to: usize, value: usize) -> Result<(), PatchError> {
        Ok(put_u32(self.out, self.base + to, value as u32)?)
    }
}

fn room_for(len: usize) -> Result<(), PatchError> {
    if len > MAX_MESSAGE {
        Err(PatchError::TooLarge { len })
    } else {
        Ok(())
    }
}
