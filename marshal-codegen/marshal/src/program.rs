//! The steps that validate one message type.
//!
//! A struct's steps run in a fixed order, and both executors keep it: cases of oneofs, required fields, bools, then the
//! parts by field number, unknown fields last. Fields that any bytes satisfy (numbers, open enums) have no step, so a struct of scalars costs nothing, and
//! an array of them costs no loop.
//!
//! ```text
//! walk(struct at, cursor) -> cursor
//!   for step in steps: check, and move the cursor past the part
//! ```
//!
//! `gather` and `accept` run the same steps. They differ in one thing: what happens when a value is an extent.

use std::sync::Arc;
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageId, MessageLayout};

use crate::wire::{WireField, wire_fields};
use crate::{Fault, FaultCode, MAX_DEPTH, MAX_MESSAGE};

/// The steps of one message type and of all that it reaches.
#[derive(Debug)]
pub struct Program {
    layouts: Arc<Layouts>,
    structs: Vec<StructProgram>,
    depth_checked: bool,
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
    /// What to do.
    pub op: Op,
}

/// What a step does. All offsets are into the struct's fixed part.
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
        /// When it may be set.
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
        /// When it may, and for a oneof must, be set.
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

/// How a struct says whether a field is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// By the value itself.
    None,
    /// By a presence bit.
    Bit {
        /// Offset of the `u32` word.
        word: u32,
        /// The bit in it.
        mask: u32,
    },
    /// By the case of a oneof.
    Case {
        /// Offset of the case.
        at: u32,
        /// The case that stands for this field.
        number: u32,
    },
}

impl Program {
    /// The program for messages of type `root`.
    pub fn new(layouts: &Arc<Layouts>, root: MessageId) -> Arc<Program> {
        let mut reached = vec![root];
        let mut structs = Vec::new();
        while let Some(id) = reached.get(structs.len()).copied() {
            structs.push(struct_program(layouts, id, &mut reached));
        }
        let depth_checked = deeper_than_limit(&structs);
        Arc::new(Program {
            layouts: Arc::clone(layouts),
            structs,
            depth_checked,
        })
    }

    /// The type of the root.
    pub fn root(&self) -> MessageId {
        self.structs[0].id
    }

    /// The layouts that the program was made from.
    pub fn layouts(&self) -> &Arc<Layouts> {
        &self.layouts
    }

    /// One program per struct type; the root's is the first.
    pub fn structs(&self) -> &[StructProgram] {
        &self.structs
    }

    /// Whether a message of this type can nest deeper than `MAX_DEPTH`, so that executors have to count.
    pub fn depth_checked(&self) -> bool {
        self.depth_checked
    }

    /// What both executors check before the walk: the image isn't too long, and the root's fixed part is in bounds.
    pub fn admit(&self, image_len: usize, inline_len: usize) -> Result<(), Fault> {
        if image_len > MAX_MESSAGE {
            return Err(self.fault(FaultCode::TooLarge));
        }
        if inline_len > image_len || inline_len < self.structs[0].size as usize {
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

impl Guard {
    /// The guard of a field.
    pub(crate) fn of(field: &FieldLayout, message: &MessageLayout) -> Guard {
        match field.cardinality {
            Cardinality::Optional { bit } => Guard::Bit {
                word: bit / 32 * 4,
                mask: 1 << (bit % 32),
            },
            Cardinality::Oneof { index } => Guard::Case {
                at: message.oneofs[index as usize].case_offset,
                number: field.number,
            },
            Cardinality::Singular | Cardinality::Repeated | Cardinality::Map => Guard::None,
        }
    }
}

fn struct_program(layouts: &Layouts, id: MessageId, reached: &mut Vec<MessageId>) -> StructProgram {
    let layout = layouts.get(id);
    let mut cases = Vec::new();
    let mut required = Vec::new();
    let mut bools = Vec::new();
    let mut parts = Vec::new();
    for (i, field) in layout.fields.iter().enumerate() {
        let step = |op| Step {
            field: Some(i as u16),
            op,
        };
        if field.required {
            required.push(step(required_step(field)));
        }
        if let Cardinality::Oneof { index } = field.cardinality
            && let Some(case) = case_step(layout, index, i)
        {
            cases.push(step(case));
        }
        match part_or_bool(layout, field, reached) {
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
        wire: wire_fields(layouts, layout, |id| index_of(id, reached)),
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

/// The check of a oneof's case, once: at its first member.
fn case_step(layout: &MessageLayout, index: u32, field: usize) -> Option<Op> {
    let belongs = |f: &&FieldLayout| f.cardinality == Cardinality::Oneof { index };
    if layout.fields[..field].iter().any(|f| belongs(&f)) {
        return None;
    }
    let members = layout
        .fields
        .iter()
        .filter(belongs)
        .map(|f| f.number)
        .collect();
    Some(Op::Case {
        at: layout.oneofs[index as usize].case_offset,
        members,
    })
}

fn part_or_bool(
    layout: &MessageLayout,
    field: &FieldLayout,
    reached: &mut Vec<MessageId>,
) -> Option<Op> {
    let slot = field.offset;
    let guard = Guard::of(field, layout);
    let array = matches!(field.cardinality, Cardinality::Repeated | Cardinality::Map);
    Some(match field.kind {
        Kind::Message(id) => {
            let callee = index_of(id, reached);
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

fn index_of(id: MessageId, reached: &mut Vec<MessageId>) -> usize {
    reached.iter().position(|r| *r == id).unwrap_or_else(|| {
        reached.push(id);
        reached.len() - 1
    })
}

/// Whether some path from the root has more than `MAX_DEPTH` structs: level by level, each type once per level.
fn deeper_than_limit(structs: &[StructProgram]) -> bool {
    let mut level = vec![false; structs.len()];
    level[0] = true;
    for _ in 0..MAX_DEPTH {
        let mut next = vec![false; structs.len()];
        for (program, _) in structs.iter().zip(&level).filter(|(_, on)| **on) {
            for step in &program.steps {
                if let Op::Struct { callee, .. } | Op::Structs { callee, .. } = step.op {
                    next[callee] = true;
                }
            }
        }
        if !next.contains(&true) {
            return false;
        }
        level = next;
    }
    true
}
