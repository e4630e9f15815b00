//! The steps that validate one message type.
//!
//! A struct's steps run in a fixed order, and both executors keep it: cases of oneofs, required
//! fields, bools, then the parts by field number, unknown fields last. Fields that accept any bytes
//! (numbers, open enums) have no step, so a struct of scalars costs nothing, and an array of them
//! costs no loop.
//!
//! ```text
//! walk(struct at, cursor) -> cursor
//!   for step in steps: check, and move the cursor past the part
//! ```
//!
//! `gather` and `accept` run the same steps. They differ only in their handling of extents.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageId, MessageLayout};

pub use crate::guard::Guard;

use crate::wire::{WireField, wire_fields};
use crate::{Fault, FaultCode, MAX_DEPTH, MAX_MESSAGE};

/// The steps of one message type and of all types reachable from it.
#[derive(Debug)]
pub struct Program {
    layouts: Arc<Layouts>,
    structs: Arc<[StructProgram]>,
    /// Index of the root in `structs`.
    root: usize,
    /// Whether `structs` are those of all layouts, indexed by [`MessageId`] and shared with other
    /// roots.
    is_shared: bool,
    depth_checked: bool,
}

/// The steps of all message types of a schema, shared by all programs made from them. So a service
/// with many methods over the same large messages costs as much as its messages, not as much per
/// method.
#[derive(Clone, Debug)]
pub struct Programs {
    layouts: Arc<Layouts>,
    structs: Arc<[StructProgram]>,
    too_deep: Vec<bool>,
}

/// The steps of one struct.
#[derive(Debug)]
pub struct StructProgram {
    /// Its message type.
    pub id: MessageId,
    /// Bytes of its fixed part.
    pub size: u32,
    /// In execution order.
    pub steps: Vec<Step>,
    /// The fields as protobuf records, by number.
    pub wire: Vec<WireField>,
    /// Offset of the slot for unknown fields; `None` for the entry of a map.
    pub unknown: Option<u32>,
}

/// One check and, if the field has a part, its extent in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the field in its layout, for faults; `None` for unknown fields.
    pub field: Option<u16>,
    /// The operation.
    pub op: Op,
}

/// The operation of a step. All offsets are into the struct's fixed part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The case of a oneof is 0 or a member's number.
    Case {
        /// Offset of the case.
        at: u32,
        /// Numbers of the members.
        members: Box<[u32]>,
    },
    /// A bool is 0 or 1, whether it's set or not.
    Bool {
        /// Offset of the byte.
        at: u32,
    },
    /// A required field is set: one of these bits of a presence word or reference is.
    Required {
        /// Offset of the `u32`.
        at: u32,
        /// The bits.
        mask: u32,
    },
    /// A string or bytes value: inline or an extent.
    Bytes {
        /// Offset of the slot.
        slot: u32,
        /// It must be UTF-8.
        utf8: bool,
        /// Tells whether it may be set.
        guard: Guard,
    },
    /// An array of scalars.
    Scalars {
        /// Offset of the slot.
        slot: u32,
        /// Bytes and alignment of an element.
        size: u32,
        /// The elements are bools, which are checked.
        bools: bool,
    },
    /// An array of slots, each a string or bytes value.
    BytesArray {
        /// Offset of the slot.
        slot: u32,
        /// They must be UTF-8.
        utf8: bool,
    },
    /// A struct.
    Struct {
        /// Offset of the reference.
        reference: u32,
        /// Index into [`Program::structs`].
        callee: usize,
        /// Tells whether it may, and for a oneof must, be set.
        guard: Guard,
    },
    /// An array of structs, or a map.
    Structs {
        /// Offset of the slot.
        slot: u32,
        /// Index into [`Program::structs`].
        callee: usize,
    },
    /// Records of unknown fields, never an extent; see [`crate::wire::check_unknown`].
    Unknown {
        /// Offset of the slot.
        slot: u32,
    },
}

impl Program {
    /// The program for messages of type `root`, with the steps of all reachable types; the root's
    /// come first.
    pub fn new(layouts: &Arc<Layouts>, root: MessageId) -> Arc<Program> {
        let mut reached = Reached::default();
        reached.index_of(root);
        let mut structs = Vec::new();
        while let Some(id) = reached.order.get(structs.len()).copied() {
            structs.push(struct_program(layouts, id, |id| reached.index_of(id)));
        }
        let depth_checked = deeper_than_limit(&structs)[0];
        Arc::new(Program {
            layouts: Arc::clone(layouts),
            structs: structs.into(),
            root: 0,
            is_shared: false,
            depth_checked,
        })
    }

    /// The same program with only the steps reachable from its root, the root's first: the input
    /// for machine code.
    pub fn alone(self: &Arc<Self>) -> Arc<Program> {
        match self.is_shared {
            true => Program::new(&self.layouts, self.root()),
            false => Arc::clone(self),
        }
    }

    /// The type of the root.
    pub fn root(&self) -> MessageId {
        self.root_struct().id
    }

    /// The steps of the root.
    pub fn root_struct(&self) -> &StructProgram {
        &self.structs[self.root]
    }

    /// The layouts that the program was made from.
    pub fn layouts(&self) -> &Arc<Layouts> {
        &self.layouts
    }

    /// One program per struct type, indexed by a step's `callee`.
    pub fn structs(&self) -> &[StructProgram] {
        &self.structs
    }

    /// The steps of a message type that is reachable from the root.
    pub(crate) fn struct_of(&self, id: MessageId) -> Option<&StructProgram> {
        match self.is_shared {
            true => self.structs.get(id.0 as usize),
            false => self.structs.iter().find(|of| of.id == id),
        }
    }

    /// Whether a message of this type can nest deeper than `MAX_DEPTH`, so that executors have to
    /// count.
    pub fn depth_checked(&self) -> bool {
        self.depth_checked
    }

    /// The check of both executors before the walk: the image isn't too long, and the root's fixed
    /// part is in bounds.
    pub fn admit(&self, image_len: usize, inline_len: usize) -> Result<(), Fault> {
        if image_len > MAX_MESSAGE {
            return Err(self.fault(FaultCode::TooLarge));
        }
        if inline_len > image_len || inline_len < self.root_struct().size as usize {
            return Err(self.fault(FaultCode::Truncated));
        }
        Ok(())
    }

    /// A fault of the message as a whole.
    pub fn fault(&self, code: FaultCode) -> Fault {
        Fault {
            code,
            message: self.root(),
            field: None,
        }
    }

    /// One sentence about a fault that this program found.
    pub fn explain(&self, fault: &Fault) -> String {
        fault.explain(&self.layouts)
    }
}

impl Programs {
    /// The steps of all message types of these layouts. Linear in their fields.
    pub fn new(layouts: &Arc<Layouts>) -> Programs {
        let ids = (0u32..).map(MessageId).take(layouts.messages.len());
        let structs: Arc<[_]> = ids
            .map(|id| struct_program(layouts, id, |id| id.0 as usize))
            .collect();
        Programs {
            layouts: Arc::clone(layouts),
            too_deep: deeper_than_limit(&structs),
            structs,
        }
    }

    /// The program for messages of type `root`.
    pub fn of(&self, root: MessageId) -> Arc<Program> {
        let index = root.0 as usize;
        Arc::new(Program {
            layouts: Arc::clone(&self.layouts),
            structs: Arc::clone(&self.structs),
            root: index,
            is_shared: true,
            depth_checked: self.too_deep[index],
        })
    }
}

/// The message types reachable from a root, in the order of discovery.
#[derive(Default)]
struct Reached {
    order: Vec<MessageId>,
    indices: HashMap<MessageId, usize>,
}

impl Reached {
    fn index_of(&mut self, id: MessageId) -> usize {
        *self.indices.entry(id).or_insert_with(|| {
            self.order.push(id);
            self.order.len() - 1
        })
    }
}

fn struct_program(
    layouts: &Layouts,
    id: MessageId,
    mut index_of: impl FnMut(MessageId) -> usize,
) -> StructProgram {
    let layout = layouts.get(id);
    let mut cases = Vec::new();
    let mut required = Vec::new();
    let mut bools = Vec::new();
    let mut parts = Vec::new();
    let mut members = members_of_oneofs(layout);
    for (i, field) in layout.fields.iter().enumerate() {
        let step = |op| Step {
            field: Some(i as u16),
            op,
        };
        if field.required {
            required.push(step(required_step(field)));
        }
        // A oneof's case is checked once: at its first member.
        if let Cardinality::Oneof { index } = field.cardinality
            && let Some(members) = members[index as usize].take()
        {
            cases.push(step(Op::Case {
                at: layout.oneofs[index as usize].case_offset,
                members: members.into(),
            }));
        }
        match part_or_bool(layout, field, &mut index_of) {
            Some(op @ Op::Bool { .. }) => bools.push(step(op)),
            Some(op) => parts.push(step(op)),
            None => {}
        }
    }
    if let Some(slot) = layout.unknown {
        let op = Op::Unknown { slot };
        parts.push(Step { field: None, op });
    }
    let steps = cases
        .into_iter()
        .chain(required)
        .chain(bools)
        .chain(parts)
        .collect();
    StructProgram {
        id,
        size: layout.size,
        steps,
        wire: wire_fields(layouts, layout, index_of),
        unknown: layout.unknown,
    }
}

fn required_step(field: &FieldLayout) -> Op {
    match field.cardinality {
        Cardinality::Optional { bit } => Op::Required {
            at: bit / 32 * 4,
            mask: 1 << (bit % 32),
        },
        // A message: its reference isn't 0.
        _ => Op::Required {
            at: field.offset,
            mask: u32::MAX,
        },
    }
}

/// The numbers of each oneof's members.
fn members_of_oneofs(layout: &MessageLayout) -> Vec<Option<Vec<u32>>> {
    let mut members = vec![None; layout.oneofs.len()];
    for field in &layout.fields {
        if let Cardinality::Oneof { index } = field.cardinality {
            let its: &mut Vec<u32> = members[index as usize].get_or_insert_default();
            its.push(field.number);
        }
    }
    members
}

fn part_or_bool(
    layout: &MessageLayout,
    field: &FieldLayout,
    mut index_of: impl FnMut(MessageId) -> usize,
) -> Option<Op> {
    let slot = field.offset;
    let guard = Guard::of(field, layout);
    let array = matches!(field.cardinality, Cardinality::Repeated | Cardinality::Map);
    Some(match field.kind {
        Kind::Message(id) => {
            let callee = index_of(id);
            if array {
                Op::Structs { slot, callee }
            } else {
                Op::Struct {
                    reference: slot,
                    callee,
                    guard,
                }
            }
        }
        Kind::String | Kind::Bytes => {
            let utf8 = field.kind == Kind::String;
            if array {
                Op::BytesArray { slot, utf8 }
            } else {
                Op::Bytes { slot, utf8, guard }
            }
        }
        kind if array => Op::Scalars {
            slot,
            size: kind.scalar_size(),
            bools: kind == Kind::Bool,
        },
        Kind::Bool => Op::Bool { at: slot },
        _ => return None,
    })
}

/// For each struct, whether some path from it has more than `MAX_DEPTH` structs. Computed level by
/// level, backwards from the ends of paths.
fn deeper_than_limit(structs: &[StructProgram]) -> Vec<bool> {
    let goes_on = |of: &StructProgram, deep: &[bool]| {
        of.steps.iter().any(|step| match step.op {
            Op::Struct { callee, .. } | Op::Structs { callee, .. } => deep[callee],
            _ => false,
        })
    };
    let mut deep = vec![true; structs.len()];
    for _ in 0..MAX_DEPTH {
        let next: Vec<_> = structs.iter().map(|of| goes_on(of, &deep)).collect();
        if next == deep {
            break;
        }
        deep = next;
    }
    deep
}
