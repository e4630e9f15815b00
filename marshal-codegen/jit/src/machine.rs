//! Code memory, calls into it, and the helpers that it calls. The only file of this crate with `unsafe`.
//!
//! A [`Compiled`] owns its code: writable while it is made, then executable and never written again, freed on drop. Its
//! entry points are called with buffers borrowed from safe callers, so they can't outlive the call, and its helpers see
//! those buffers only through the [`Context`] on the caller's stack.
//!
//! The emitted functions never unwind, and neither do the helpers: nothing in them can panic.

use cranelift_codegen::ir::{AbiParam, FuncRef, Signature, UserFuncName, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{ArenaMemoryProvider, JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleError, default_libcall_names};
use std::collections::HashMap;
use std::mem::transmute;
use std::slice;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tollgate_marshal::extents::{Gathered, Placed};
use tollgate_marshal::limits::MAX_VIEW;
use tollgate_marshal::program::{Op, Program};
use tollgate_marshal::wire::check_unknown;
use tollgate_marshal::{Fault, FaultCode, MAX_EXTENTS, Projection, is_utf8};
use tollgate_schema::MessageId;

use crate::CompileError;
use crate::emit::{Emit, Helpers};
use crate::limits::{CODE_BYTES_PER_STEP, MAX_STEPS};
use crate::{validate, view};

/// See `validate`.
type WalkFn = unsafe extern "C" fn(*const u8, u64, *const u8, u64, *mut Context<'_>, u64) -> i64;
/// See `view`.
type ProjectFn = unsafe extern "C" fn(*const u8, u64, *const u32, u64, *mut u8, u64) -> i64;

/// `gather` and `accept` of one message type as machine code.
pub struct Compiled {
    program: Arc<Program>,
    walk: WalkFn,
    code: Code,
}

/// One projection as machine code.
pub struct CompiledProjection {
    projection: Arc<Projection>,
    project: ProjectFn,
    code: Code,
}

/// What helpers work on during one walk.
struct Context<'a> {
    program: &'a Program,
    extents: Extents<'a>,
}

/// What happens to extents.
enum Extents<'a> {
    Gather(Gathered<'a>),
    Accept {
        image: *mut u8,
        len: usize,
        placed: Placed,
    },
}

impl Compiled {
    /// Compiles a program.
    pub(crate) fn new(program: &Arc<Program>) -> Result<Compiled, CompileError> {
        let steps = steps_of(program);
        let mut unit = Unit::new(steps)?;
        let mut functions = HashMap::new();
        let root = unit.declare(validate::PARAMS)?;
        functions.insert(0, root);
        let mut waiting = vec![(0, root)];
        while let Some((index, id)) = waiting.pop() {
            let mut failed = None;
            unit.define(id, validate::PARAMS, |unit, emit, params| {
                validate::emit_walk(emit, params, program, index, &mut |emit, callee| {
                    let id = *functions.entry(callee).or_insert_with(|| {
                        match unit.declare(validate::PARAMS) {
                            Ok(id) => {
                                waiting.push((callee, id));
                                id
                            }
                            Err(e) => {
                                failed = Some(e);
                                root
                            }
                        }
                    });
                    unit.module.declare_func_in_func(id, emit.builder.func)
                });
            })?;
            if let Some(e) = failed {
                return Err(e);
            }
        }
        let code = unit.finish()?;
        // SAFETY: `root` was defined with the signature of a walk: six pointer-sized integers to one `i64`, in the
        // host's C calling convention. The code lives as long as `code`, which is dropped with this value.
        let walk = unsafe { transmute::<*const u8, WalkFn>(code.address(root)) };
        Ok(Compiled {
            program: Arc::clone(program),
            walk,
            code,
        })
    }

    /// As [`tollgate_marshal::interpreter::gather`].
    pub fn gather(&self, block: &[u8], lens: &mut [u32; MAX_EXTENTS]) -> Result<usize, Fault> {
        self.program.admit(block.len(), block.len())?;
        let mut context = Context {
            program: &self.program,
            extents: Extents::Gather(Gathered::new(block.len(), lens)),
        };
        // SAFETY: `block` is readable for its length, which is the inline length; `admit` has found the root in it. The
        // context outlives the call. In gather nothing is written but the context.
        let end = unsafe { self.run(block.as_ptr(), block.len(), &mut context) }?;
        if end != block.len() {
            return Err(self.program.fault(FaultCode::Trailing));
        }
        match context.extents {
            Extents::Gather(gathered) => Ok(gathered.count()),
            Extents::Accept { .. } => unreachable!("the helper never changes the kind"),
        }
    }

    /// As [`tollgate_marshal::interpreter::accept`].
    pub fn accept(&self, image: &mut [u8], inline_len: usize) -> Result<(), Fault> {
        let len = image.len();
        self.program.admit(len, inline_len)?;
        let base = image.as_mut_ptr();
        let mut context = Context {
            program: &self.program,
            extents: Extents::Accept {
                image: base,
                len,
                placed: Placed::new(inline_len),
            },
        };
        // SAFETY: `image` is readable and writable for its length, and `admit` has found that the inline length isn't
        // longer and contains the root. Code and helper reach it only through `base`, one after the other.
        let end = unsafe { self.run(base, inline_len, &mut context) }?;
        let Extents::Accept { placed, .. } = context.extents else {
            unreachable!("the helper never changes the kind")
        };
        if end != inline_len || placed.end() != len {
            return Err(self.program.fault(FaultCode::Trailing));
        }
        Ok(())
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }

    /// Walks the root at `base`.
    ///
    /// # Safety
    ///
    /// `base` is readable for `inline_len` bytes, and the root's fixed part is within them; `context` matches it.
    unsafe fn run(
        &self,
        base: *const u8,
        inline_len: usize,
        context: &mut Context<'_>,
    ) -> Result<usize, Fault> {
        let root_size = u64::from(self.program.structs()[0].size);
        // SAFETY: the caller's obligations are the function's: what `validate` emits reads only inside structs and
        // parts that it has found to lie in `base..base + inline_len`, starting from the root.
        let end = unsafe { (self.walk)(base, inline_len as u64, base, root_size, context, 1) };
        answer(end, || self.program.fault(FaultCode::Truncated))
    }
}

impl CompiledProjection {
    /// Compiles a projection.
    pub(crate) fn new(projection: &Arc<Projection>) -> Result<CompiledProjection, CompileError> {
        let steps = projection.fields().iter().map(|f| 1 + f.hops.len()).sum();
        let mut unit = Unit::new(steps)?;
        let id = unit.declare(view::PARAMS)?;
        unit.define(id, view::PARAMS, |_, emit, params| {
            view::emit_projection(emit, params, projection)
        })?;
        let code = unit.finish()?;
        // SAFETY: as in `Compiled::new`; a projection has the same signature of six integers to one.
        let project = unsafe { transmute::<*const u8, ProjectFn>(code.address(id)) };
        Ok(CompiledProjection {
            projection: Arc::clone(projection),
            project,
            code,
        })
    }

    /// As [`tollgate_marshal::interpreter::project`].
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
        // SAFETY: each pointer comes from a slice and goes with its length (`room` is at most the view's). The root's
        // fixed part is inside the image and the entries are inside the room; all other accesses are checked by the code
        // that `view` emits. The view is exclusively borrowed, so it overlaps neither of the others.
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

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes
    }
}

/// What a function returned: a length or a raw fault. The code emits no other negative numbers; `unknown` is for them.
fn answer(returned: i64, unknown: impl FnOnce() -> Fault) -> Result<usize, Fault> {
    match usize::try_from(returned) {
        Ok(len) => Ok(len),
        Err(_) => Err(Fault::from_raw(returned).unwrap_or_else(unknown)),
    }
}

/// Steps of a program, counting inlined structs where they are used, and each member of a oneof.
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

/// Finished code. Freed on drop; the owner keeps it as long as the entry points that it calls.
struct Code {
    /// Never used but for its addresses; the mutex only makes it shareable.
    module: Mutex<Option<JITModule>>,
    bytes: usize,
}

impl Code {
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
            // SAFETY: entry points are private to `Compiled` and `CompiledProjection`, whose methods borrow them: while
            // this runs, no call is under way, and afterwards the owner of the pointer is gone.
            unsafe { module.free_memory() }
        }
    }
}

/// Functions being compiled into one region.
struct Unit {
    module: JITModule,
    context: cranelift_codegen::Context,
    builder: FunctionBuilderContext,
    helpers: [FuncId; 5],
    bytes: usize,
}

/// The helpers' names, addresses and numbers of parameters, in the order of [`Unit::helpers`].
fn helper_table() -> [(&'static str, *const u8, usize); 5] {
    [
        ("is_utf8", helper_is_utf8 as *const u8, 2),
        ("are_bools", helper_are_bools as *const u8, 2),
        ("extent", helper_extent as *const u8, 4),
        ("unknown", helper_unknown as *const u8, 4),
        ("copy", helper_copy as *const u8, 3),
    ]
}

impl Unit {
    fn new(steps: usize) -> Result<Unit, CompileError> {
        if steps > MAX_STEPS {
            return Err(CompileError::TooLarge {
                steps,
                limit: MAX_STEPS,
            });
        }
        let mut builder = JITBuilder::with_isa(isa()?, default_libcall_names());
        for (name, address, _) in helper_table() {
            builder.symbol(name, address);
        }
        // One reserved region: functions call each other by 32-bit distances.
        let arena = ArenaMemoryProvider::new_with_size((steps + 16) * CODE_BYTES_PER_STEP);
        builder.memory_provider(Box::new(arena.map_err(|e| CompileError::Compiler {
            reason: e.to_string(),
        })?));
        let module = JITModule::new(builder);
        let mut unit = Unit {
            context: module.make_context(),
            module,
            builder: FunctionBuilderContext::new(),
            helpers: [FuncId::from_u32(0); 5],
            bytes: 0,
        };
        for (i, (name, _, params)) in helper_table().into_iter().enumerate() {
            let signature = unit.signature(params);
            let declared = unit
                .module
                .declare_function(name, Linkage::Import, &signature);
            unit.helpers[i] = declared.map_err(compiler)?;
        }
        Ok(unit)
    }

    fn signature(&self, params: usize) -> Signature {
        let mut signature = self.module.make_signature();
        signature.params = vec![AbiParam::new(types::I64); params];
        signature.returns = vec![AbiParam::new(types::I64)];
        signature
    }

    fn declare(&mut self, params: usize) -> Result<FuncId, CompileError> {
        let signature = self.signature(params);
        self.module
            .declare_anonymous_function(&signature)
            .map_err(compiler)
    }

    /// Compiles the function `id`, whose body `emit` writes.
    fn define(
        &mut self,
        id: FuncId,
        params: usize,
        emit: impl FnOnce(&mut Unit, Emit<'_, '_>, &[cranelift_codegen::ir::Value]),
    ) -> Result<(), CompileError> {
        let mut context = std::mem::replace(&mut self.context, cranelift_codegen::Context::new());
        let mut builder_context = std::mem::take(&mut self.builder);
        context.func.signature = self.signature(params);
        context.func.name = UserFuncName::user(0, id.as_u32());
        let mut builder = FunctionBuilder::new(&mut context.func, &mut builder_context);
        let [is_utf8, are_bools, extent, unknown, copy] = self
            .helpers
            .map(|helper| -> FuncRef { self.module.declare_func_in_func(helper, builder.func) });
        let helpers = Helpers {
            is_utf8,
            are_bools,
            extent,
            unknown,
            copy,
        };
        let (body, params) = Emit::open(&mut builder, helpers);
        emit(self, body, &params);
        builder.finalize(self.module.target_config());
        self.module
            .define_function(id, &mut context)
            .map_err(compiler)?;
        self.bytes += context
            .compiled_code()
            .map_or(0, |code| code.code_buffer().len());
        self.module.clear_context(&mut context);
        self.context = context;
        self.builder = builder_context;
        Ok(())
    }

    fn finish(mut self) -> Result<Code, CompileError> {
        self.module.finalize_definitions().map_err(compiler)?;
        Ok(Code {
            module: Mutex::new(Some(self.module)),
            bytes: self.bytes,
        })
    }
}

fn compiler(error: ModuleError) -> CompileError {
    CompileError::Compiler {
        reason: error.to_string(),
    }
}

/// The host's instruction set, found once.
fn isa() -> Result<OwnedTargetIsa, CompileError> {
    static ISA: OnceLock<Result<OwnedTargetIsa, String>> = OnceLock::new();
    let found = ISA.get_or_init(|| {
        if cfg!(not(all(
            target_endian = "little",
            target_pointer_width = "64"
        ))) {
            return Err("it isn't a little-endian 64-bit host".to_owned());
        }
        let mut flags = settings::builder();
        let chosen = [
            // "speed" takes a quarter longer to compile and its code runs no faster.
            ("opt_level", "none"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            ("unwind_info", "false"),
            (
                "enable_verifier",
                if cfg!(debug_assertions) {
                    "true"
                } else {
                    "false"
                },
            ),
        ];
        for (name, value) in chosen {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let builder = cranelift_native::builder().map_err(str::to_owned)?;
        builder
            .finish(settings::Flags::new(flags))
            .map_err(|e| e.to_string())
    });
    found
        .clone()
        .map_err(|reason| CompileError::UnsupportedHost { reason })
}

/// Whether the text is UTF-8.
unsafe extern "C" fn helper_is_utf8(text: *const u8, len: u64) -> i64 {
    // SAFETY: the code calls this for parts that it has found to be in bounds, of a buffer that its caller borrows.
    let text = unsafe { slice::from_raw_parts(text, len as usize) };
    i64::from(is_utf8(text))
}

/// Whether every byte is 0 or 1.
unsafe extern "C" fn helper_are_bools(bytes: *const u8, len: u64) -> i64 {
    // SAFETY: as in `helper_is_utf8`.
    let bytes = unsafe { slice::from_raw_parts(bytes, len as usize) };
    i64::from(bytes.iter().all(|b| *b <= 1))
}

/// A value that is an extent: its slot lies at offset `at` and says `slot`. Answers 0 or a fault's code.
unsafe extern "C" fn helper_extent(
    context: *mut Context<'_>,
    at: u64,
    slot: u64,
    utf8: i64,
) -> i64 {
    let (off, len) = (slot as u32, (slot >> 32) as u32);
    // SAFETY: the context is the one that `gather` or `accept` put on its stack for this call, and passed exclusively.
    let done = match unsafe { &mut (*context).extents } {
        Extents::Gather(gathered) => gathered.extent(off, len),
        Extents::Accept {
            image,
            len: image_len,
            placed,
        } => {
            // SAFETY: pointer and length are those of the image that `accept` has borrowed exclusively; the code holds
            // no reference into it, and this one ends before the code goes on.
            let image = unsafe { slice::from_raw_parts_mut(*image, *image_len) };
            placed.extent(image, at as usize, off, len, utf8 != 0)
        }
    };
    done.map_or_else(|code| i64::from(code as u8), |()| 0)
}

/// Unknown fields of message type `id`. Answers 0 or a fault's code.
unsafe extern "C" fn helper_unknown(
    context: *mut Context<'_>,
    records: *const u8,
    len: u64,
    id: i64,
) -> i64 {
    // SAFETY: as in `helper_extent`; only the shared reference to the program is read.
    let program = unsafe { (*context).program };
    // SAFETY: as in `helper_is_utf8`.
    let records = unsafe { slice::from_raw_parts(records, len as usize) };
    check_unknown(program, MessageId(id as u32), records)
        .map_or_else(|code| i64::from(code as u8), |()| 0)
}

/// Copies a value into a view.
unsafe extern "C" fn helper_copy(to: *mut u8, from: *const u8, len: u64) -> i64 {
    // SAFETY: the code has found the source to be in the image and the destination in the view's room; the view is
    // exclusively borrowed, so they don't overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len as usize) };
    0
}
