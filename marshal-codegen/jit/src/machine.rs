//! Code memory, and calls into it. This file and `helpers` hold all `unsafe` of this crate.
//!
//! A [`Compiled`] owns its code: writable while it is made, then executable and never written
//! again, freed on drop. Its entry points are called with buffers borrowed from safe callers, so
//! the code can't use them after the call; its helpers access those buffers only through the
//! [`Context`] on the caller's stack.
//!
//! The emitted functions never unwind, and neither do the helpers: nothing in them can panic.

use cranelift_jit::JITModule;
use cranelift_module::FuncId;
use std::mem::transmute;
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_marshal::extents::{Gathered, Placed};
use tollgate_marshal::limits::MAX_VIEW;
use tollgate_marshal::program::{Op, Program};
use tollgate_marshal::{Fault, FaultCode, MAX_EXTENTS, MAX_MESSAGE, Projection, interpreter};

use crate::error::CompileError;
use crate::helpers::{Context, DecodeContext, Extents};
use crate::unit::{Shape, Unit};
use crate::{decode, encode, validate, view};

pub(crate) const WALK: Shape = Shape {
    params: validate::PARAMS,
    helpers: validate::HELPERS,
};
pub(crate) const VIEW: Shape = Shape {
    params: view::PARAMS,
    helpers: view::HELPERS,
};
pub(crate) const ENCODE: Shape = Shape {
    params: encode::PARAMS,
    helpers: encode::HELPERS,
};
pub(crate) const DECODE: Shape = Shape {
    params: decode::PARAMS,
    helpers: decode::HELPERS,
};

/// See `validate`.
type WalkFn = unsafe extern "C" fn(*const u8, u64, *const u8, u64, *mut Context<'_>, u64) -> i64;
/// See `encode`.
type EncodeFn = unsafe extern "C" fn(*const u8, u64, *const u8, *mut u8, *mut u8, u64) -> i64;
/// See `decode`.
type DecodeFn = unsafe extern "C" fn(
    *const u8,
    *const u8,
    *mut u8,
    u64,
    u64,
    *mut DecodeContext<'_>,
    u64,
) -> i64;
/// See `view`.
type ProjectFn = unsafe extern "C" fn(*const u8, u64, *const u32, u64, *mut u8, u64) -> i64;

/// `gather` and `accept` of one message type as machine code.
pub struct Compiled {
    program: Arc<Program>,
    /// The bytes of the root's fixed part.
    root_size: usize,
    walk: WalkFn,
    code: Code,
}

/// `encode` and `decode` of one message type as machine code.
pub struct CompiledWire {
    program: Arc<Program>,
    /// The bytes of the root's fixed part.
    root_size: usize,
    encode: EncodeFn,
    decode: DecodeFn,
    code: Code,
}

/// One projection as machine code.
pub struct CompiledProjection {
    projection: Arc<Projection>,
    project: ProjectFn,
    code: Code,
}

impl Compiled {
    /// Compiles a program.
    pub(crate) fn new(program: &Arc<Program>) -> Result<Compiled, CompileError> {
        let program = &program.alone();
        let mut unit = Unit::new(steps_of(program))?;
        let root = unit.structs(program, WALK, validate::emit_walk)?;
        let code = Code::new(unit)?;
        // SAFETY: `root` was defined with the signature of a walk: six pointer-sized integers to
        // one `i64`, in the host's C calling convention. The code lives as long as `code`, which is
        // dropped with this value.
        let walk = unsafe { transmute::<*const u8, WalkFn>(code.address(root)) };
        Ok(Compiled {
            program: Arc::clone(program),
            root_size: program.structs()[0].size as usize,
            walk,
            code,
        })
    }

    /// Like [`tollgate_marshal::interpreter::gather`].
    pub fn gather(&self, block: &[u8], lens: &mut [u32; MAX_EXTENTS]) -> Result<usize, Fault> {
        self.admit(block.len(), block.len())?;
        let mut context = Context {
            program: &self.program,
            extents: Extents::Gather(Gathered::new(block.len(), lens)),
        };
        // SAFETY: `block` is readable for its length, which is the inline length; `admit` has found
        // the root in it. The context outlives the call. In gather nothing is written but the
        // context.
        let end = unsafe { self.run(block.as_ptr(), block.len(), &mut context) }?;
        if end != block.len() {
            return Err(self.program.fault(FaultCode::Trailing));
        }
        match context.extents {
            Extents::Gather(gathered) => Ok(gathered.count()),
            Extents::Accept { .. } => unreachable!("the helper never changes the kind"),
        }
    }

    /// Like [`tollgate_marshal::interpreter::accept`].
    pub fn accept(&self, image: &mut [u8], inline_len: usize) -> Result<(), Fault> {
        let len = image.len();
        self.admit(len, inline_len)?;
        let base = image.as_mut_ptr();
        let mut context = Context {
            program: &self.program,
            extents: Extents::Accept {
                image: base,
                len,
                placed: Placed::new(inline_len),
            },
        };
        // SAFETY: `image` is readable and writable for its length, and `admit` has found that the
        // inline length isn't longer and contains the root. Code and helper reach it only through
        // `base`, one after the other.
        let end = unsafe { self.run(base, inline_len, &mut context) }?;
        let Extents::Accept { placed, .. } = context.extents else {
            unreachable!("the helper never changes the kind")
        };
        if end != inline_len || placed.end() != len {
            return Err(self.program.fault(FaultCode::Trailing));
        }
        Ok(())
    }

    /// The bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }

    /// Like [`Program::admit`], without a call if there is no fault.
    #[inline]
    fn admit(&self, image_len: usize, inline_len: usize) -> Result<(), Fault> {
        if image_len <= MAX_MESSAGE && inline_len <= image_len && inline_len >= self.root_size {
            return Ok(());
        }
        self.program.admit(image_len, inline_len)
    }

    /// Walks the root at `base`.
    ///
    /// # Safety
    ///
    /// `base` is readable for `inline_len` bytes, and the root's fixed part is within them;
    /// `context` matches it.
    unsafe fn run(
        &self,
        base: *const u8,
        inline_len: usize,
        context: &mut Context<'_>,
    ) -> Result<usize, Fault> {
        let root_size = self.root_size as u64;
        // SAFETY: the caller's obligations are the function's: what `validate` emits reads only
        // inside structs and parts that it has found to lie in `base..base + inline_len`, starting
        // from the root.
        let end = unsafe { (self.walk)(base, inline_len as u64, base, root_size, context, 1) };
        answer(end, || self.program.fault(FaultCode::Truncated))
    }
}

impl CompiledWire {
    /// Compiles a program.
    pub(crate) fn new(program: &Arc<Program>) -> Result<CompiledWire, CompileError> {
        let program = &program.alone();
        let fields: usize = program.structs().iter().map(|s| 1 + s.wire.len()).sum();
        let mut unit = Unit::new(2 * fields)?;
        let encode = unit.structs(program, ENCODE, encode::emit_encode)?;
        let decode = unit.structs(program, DECODE, decode::emit_decode)?;
        let code = Code::new(unit)?;
        // SAFETY: as in `Compiled::new`: six pointer-sized integers to one.
        let encode = unsafe { transmute::<*const u8, EncodeFn>(code.address(encode)) };
        // SAFETY: as in `Compiled::new`: seven pointer-sized integers to one.
        let decode = unsafe { transmute::<*const u8, DecodeFn>(code.address(decode)) };
        Ok(CompiledWire {
            program: Arc::clone(program),
            root_size: program.structs()[0].size as usize,
            encode,
            decode,
            code,
        })
    }

    /// Like [`tollgate_marshal::interpreter::encode`].
    pub fn encode(&self, image: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        if image.len() < self.root_size {
            return Err(self.program.fault(FaultCode::Truncated));
        }
        if out.len() < FIRST_ROOM {
            out.resize(FIRST_ROOM, 0);
        }
        loop {
            // At most the room of the longest message, so that the interpreter decides about longer
            // ones.
            let skipped = out.len().saturating_sub(MAX_MESSAGE);
            let room = &mut out[skipped..];
            let ends = room.as_mut_ptr_range();
            // SAFETY: image and room are borrowed slices, given as start and length and as start
            // and end; the root's fixed part is inside the image. What `encode` emits reads only
            // parts that it has found to lie in the image, and writes only where it has found room.
            let start = unsafe {
                (self.encode)(
                    image.as_ptr(),
                    image.len() as u64,
                    image.as_ptr(),
                    ends.start,
                    ends.end,
                    1,
                )
            };
            if start != encode::NO_ROOM {
                let start = answer(start, || self.program.fault(FaultCode::Truncated))?;
                return Ok(skipped + (start - ends.start as usize));
            }
            if out.len() >= MAX_MESSAGE {
                return interpreter::encode(&self.program, image, out);
            }
            out.resize(out.len() * 2, 0);
        }
    }

    /// Like [`tollgate_marshal::interpreter::decode`].
    pub fn decode(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.decode_in_order(bytes, out) {
            return Ok(());
        }
        interpreter::decode(&self.program, bytes, out)
    }

    /// Decodes a message whose records are in order; returns whether they were.
    fn decode_in_order(&self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if bytes.len() > MAX_MESSAGE {
            return false;
        }
        let root = self.root_size;
        out.clear();
        out.reserve(FIRST_ROOM.max(root + bytes.len()));
        loop {
            let room = out.capacity().min(MAX_MESSAGE);
            out.resize(root, 0);
            let mut context = DecodeContext {
                room: room as u64,
                number: 0,
                program: &self.program,
            };
            let ends = bytes.as_ptr_range();
            // SAFETY: the records are a borrowed slice, given by its ends. `out` is exclusively
            // borrowed, writable for its capacity, which is at least the room, and begins with the
            // root's fixed part, all zero. What `decode` emits reads only between the ends and
            // writes only parts that it has found to lie in the room. The context outlives the
            // call.
            let cursor = unsafe {
                (self.decode)(
                    ends.start,
                    ends.end,
                    out.as_mut_ptr(),
                    0,
                    root as u64,
                    &mut context,
                    1,
                )
            };
            if let Ok(len) = usize::try_from(cursor) {
                assert!(len <= room, "parts end in the room");
                // SAFETY: `len` is at most the capacity. Every byte before it belongs to a part,
                // which was written whole, or to the gap before one, which was zeroed with it.
                unsafe { out.set_len(len) };
                return true;
            }
            if cursor != encode::NO_ROOM || room == MAX_MESSAGE {
                return false;
            }
            out.clear();
            out.reserve(2 * room);
        }
    }

    /// The bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }
}

impl CompiledProjection {
    /// Compiles a projection.
    pub(crate) fn new(projection: &Arc<Projection>) -> Result<CompiledProjection, CompileError> {
        let fields = projection.fields().iter();
        let steps: usize = fields.map(|f| 1 + f.hops.len()).sum();
        let spare = projection.entries() - projection.fields().len();
        let mut unit = Unit::new(steps + spare)?;
        let id = unit.function(VIEW, |emit, params| {
            view::emit_projection(emit, params, projection)
        })?;
        let code = Code::new(unit)?;
        // SAFETY: as in `Compiled::new`; a projection has the same signature of six integers to
        // one.
        let project = unsafe { transmute::<*const u8, ProjectFn>(code.address(id)) };
        Ok(CompiledProjection {
            projection: Arc::clone(projection),
            project,
            code,
        })
    }

    /// Like [`tollgate_marshal::interpreter::project`].
    pub fn project(
        &self,
        image: &[u8],
        extent_offsets: &[u32],
        view: &mut [u8],
    ) -> Result<usize, Fault> {
        let room = view.len().min(MAX_VIEW);
        if image.len() < self.projection.root_size() {
            return Err(self.projection.fault(FaultCode::Truncated));
        }
        if self.projection.fixed_len() > room {
            return Err(self.projection.fault(FaultCode::ViewTooLarge));
        }
        // SAFETY: each pointer comes from a slice and goes with its length (`room` is at most the
        // view's). The root's fixed part is inside the image and the entries are inside the room;
        // all other accesses are checked by the code that `view` emits. The view is exclusively
        // borrowed, so it overlaps neither of the others.
        let end = unsafe {
            (self.project)(
                image.as_ptr(),
                image.len() as u64,
                extent_offsets.as_ptr(),
                extent_offsets.len() as u64,
                view.as_mut_ptr(),
                room as u64,
            )
        };
        answer(end, || self.projection.fault(FaultCode::Truncated))
    }

    /// The bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }
}

/// The shortest buffer for encoding or decoding, in bytes.
const FIRST_ROOM: usize = 1024;

/// A function's result: a length or a raw fault. The code emits no other negative numbers;
/// `unknown` is for them.
#[inline]
fn answer(returned: i64, unknown: impl FnOnce() -> Fault) -> Result<usize, Fault> {
    match usize::try_from(returned) {
        Ok(len) => Ok(len),
        Err(_) => Err(Fault::from_raw(returned).unwrap_or_else(unknown)),
    }
}

/// The steps of a program; inlined structs count at each use, and each member of a oneof counts.
fn steps_of(program: &Program) -> usize {
    let cost = |op: &Op| match op {
        Op::Case { members, .. } => 1 + members.len() / 16,
        Op::Struct { callee, .. } | Op::Structs { callee, .. } => {
            let callee = &program.structs()[*callee];
            if validate::is_inlined(callee) {
                1 + callee.steps.len()
            } else {
                1
            }
        }
        _ => 1,
    };
    program
        .structs()
        .iter()
        .flat_map(|s| &s.steps)
        .map(|step| cost(&step.op))
        .sum()
}

/// Finished code. Freed on drop; the owner keeps it as long as its entry points.
struct Code {
    /// Used only for its addresses; the mutex makes it shareable.
    module: Mutex<Option<JITModule>>,
    bytes: usize,
}

impl Code {
    fn new(unit: Unit) -> Result<Code, CompileError> {
        let (module, bytes) = unit.finish()?;
        Ok(Code {
            module: Mutex::new(Some(module)),
            bytes,
        })
    }

    fn address(&self, id: FuncId) -> *const u8 {
        let module = self.module.lock().unwrap_or_else(PoisonError::into_inner);
        module
            .as_ref()
            .expect("taken on drop only")
            .get_finalized_function(id)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let module = self
            .module
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = module.take() {
            // SAFETY: entry points are private to `Compiled` and `CompiledProjection`, whose
            // methods borrow them: while this runs, no call is under way, and afterwards the owner
            // of the pointer is gone.
            unsafe { module.free_memory() }
        }
    }
}

#[cfg(test)]
mod tests;
