//! A region of machine code under construction: declares and defines functions, and adds the
//! helpers.

use cranelift_codegen::ir::{AbiParam, FuncRef, Signature, UserFuncName, Value, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{ArenaMemoryProvider, JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleError, default_libcall_names};
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use tollgate_marshal::program::Program;

use crate::emit::{Emit, HELPERS, Helper};
use crate::error::CompileError;
use crate::helpers;
use crate::limits::{CODE_BYTES_PER_STEP, MAX_STEPS};

/// The signature of one kind of function, and the helpers that it calls.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) params: usize,
    pub(crate) helpers: &'static [Helper],
}

/// Emits the function of one struct type:
/// `(emit, params, program, index, function of another index)`.
pub(crate) type EmitStruct = fn(
    Emit<'_, '_>,
    &[Value],
    &Program,
    usize,
    &mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
);

/// Functions being compiled into one region.
pub(crate) struct Unit {
    module: JITModule,
    context: cranelift_codegen::Context,
    builder: FunctionBuilderContext,
    helpers: [FuncId; HELPERS],
    bytes: usize,
    /// The instructions as text, if requested.
    listing: Option<String>,
}

impl Unit {
    /// A unit for about this many steps, to be run on this host.
    pub(crate) fn new(steps: usize) -> Result<Unit, CompileError> {
        if steps > MAX_STEPS {
            return Err(CompileError::TooLarge {
                steps,
                limit: MAX_STEPS,
            });
        }
        Unit::with_isa(steps, isa()?)
    }

    /// A unit for reading: it records the instructions.
    pub(crate) fn for_listing() -> Result<Unit, CompileError> {
        let mut unit = Unit::with_isa(MAX_STEPS, plain_isa().map_err(unsupported)?)?;
        unit.listing = Some(String::new());
        Ok(unit)
    }

    fn with_isa(steps: usize, isa: OwnedTargetIsa) -> Result<Unit, CompileError> {
        let mut builder = JITBuilder::with_isa(isa, default_libcall_names());
        for (_, name, address, _) in helpers::table() {
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
            helpers: [FuncId::from_u32(0); HELPERS],
            bytes: 0,
            listing: None,
        };
        for (helper, name, _, params) in helpers::table() {
            let signature = unit.signature(params);
            let declared = unit
                .module
                .declare_function(name, Linkage::Import, &signature);
            unit.helpers[helper as usize] = declared.map_err(compiler)?;
        }
        Ok(unit)
    }

    fn signature(&self, params: usize) -> Signature {
        let mut signature = self.module.make_signature();
        signature.params = vec![AbiParam::new(types::I64); params];
        signature.returns = vec![AbiParam::new(types::I64)];
        signature
    }

    fn declare(&mut self, shape: Shape) -> Result<FuncId, CompileError> {
        let signature = self.signature(shape.params);
        self.module
            .declare_anonymous_function(&signature)
            .map_err(compiler)
    }

    /// Compiles one function; `emit` writes its body.
    pub(crate) fn function(
        &mut self,
        shape: Shape,
        emit: impl FnOnce(Emit<'_, '_>, &[Value]),
    ) -> Result<FuncId, CompileError> {
        let id = self.declare(shape)?;
        self.define(id, shape, |_, body, params| emit(body, params))?;
        Ok(id)
    }

    /// Compiles a function per struct type that is reachable from the root and not inlined; returns
    /// the root's.
    pub(crate) fn structs(
        &mut self,
        program: &Program,
        shape: Shape,
        emit: EmitStruct,
    ) -> Result<FuncId, CompileError> {
        let root = self.declare(shape)?;
        let mut functions = HashMap::from([(0, root)]);
        let mut waiting = vec![(0, root)];
        while let Some((index, id)) = waiting.pop() {
            let mut failed = None;
            self.define(id, shape, |unit, body, params| {
                emit(body, params, program, index, &mut |body, callee| {
                    let id = *functions.entry(callee).or_insert_with(|| {
                        let declared = unit.declare(shape);
                        let id = declared.unwrap_or_else(|e| {
                            failed = Some(e);
                            root
                        });
                        waiting.push((callee, id));
                        id
                    });
                    unit.module.declare_func_in_func(id, body.builder.func)
                });
            })?;
            if let Some(e) = failed {
                return Err(e);
            }
        }
        Ok(root)
    }

    fn define(
        &mut self,
        id: FuncId,
        shape: Shape,
        emit: impl FnOnce(&mut Unit, Emit<'_, '_>, &[Value]),
    ) -> Result<(), CompileError> {
        let mut context = std::mem::replace(&mut self.context, cranelift_codegen::Context::new());
        let mut builder_context = std::mem::take(&mut self.builder);
        context.func.signature = self.signature(shape.params);
        context.func.name = UserFuncName::user(0, id.as_u32());
        let mut builder = FunctionBuilder::new(&mut context.func, &mut builder_context);
        let mut helpers = [None; HELPERS];
        for &helper in shape.helpers {
            let id = self.helpers[helper as usize];
            helpers[helper as usize] = Some(self.module.declare_func_in_func(id, builder.func));
        }
        let (body, params) = Emit::open(&mut builder, helpers);
        emit(self, body, &params);
        builder.finalize(self.module.target_config());
        context.set_disasm(self.listing.is_some());
        self.module
            .define_function(id, &mut context)
            .map_err(compiler)?;
        let compiled = context.compiled_code();
        self.bytes += compiled.map_or(0, |code| code.code_buffer().len());
        if let (Some(listing), Some(text)) = (
            &mut self.listing,
            compiled.and_then(|code| code.vcode.as_ref()),
        ) {
            listing.push_str(&format!("function {}:\n{text}\n", id.as_u32()));
        }
        self.module.clear_context(&mut context);
        self.context = context;
        self.builder = builder_context;
        Ok(())
    }

    /// The instructions of all functions.
    pub(crate) fn into_listing(self) -> String {
        self.listing.unwrap_or_default()
    }

    /// Makes the code executable; returns its module, and its size in bytes.
    pub(crate) fn finish(mut self) -> Result<(JITModule, usize), CompileError> {
        self.module.finalize_definitions().map_err(compiler)?;
        Ok((self.module, self.bytes))
    }
}

fn compiler(error: ModuleError) -> CompileError {
    CompileError::Compiler {
        reason: error.to_string(),
    }
}

/// The reason why there is no compiler for this host.
#[derive(Clone, Debug, thiserror::Error)]
enum HostError {
    #[error("it isn't a little-endian 64-bit host")]
    NotLittleEndian64,
    #[error("{sentence}")]
    Compiler { sentence: String },
}

impl HostError {
    fn compiler(error: impl fmt::Display) -> HostError {
        HostError::Compiler {
            sentence: error.to_string(),
        }
    }
}

/// The host's instruction set, detected once.
fn isa() -> Result<OwnedTargetIsa, CompileError> {
    static ISA: OnceLock<Result<OwnedTargetIsa, HostError>> = OnceLock::new();
    let found = ISA.get_or_init(|| {
        if cfg!(not(all(
            target_endian = "little",
            target_pointer_width = "64"
        ))) {
            return Err(HostError::NotLittleEndian64);
        }
        let builder = cranelift_native::builder().map_err(HostError::compiler)?;
        builder.finish(flags()?).map_err(HostError::compiler)
    });
    found.clone().map_err(unsupported)
}

/// A host with only the base features of x86-64.
fn plain_isa() -> Result<OwnedTargetIsa, HostError> {
    let builder = cranelift_codegen::isa::lookup_by_name("x86_64").map_err(HostError::compiler)?;
    builder.finish(flags()?).map_err(HostError::compiler)
}

fn unsupported(error: HostError) -> CompileError {
    CompileError::UnsupportedHost {
        reason: error.to_string(),
    }
}

fn flags() -> Result<settings::Flags, HostError> {
    let mut flags = settings::builder();
    let chosen = [
        // "speed" takes a quarter longer to compile, and its code isn't faster.
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
        flags.set(name, value).map_err(HostError::compiler)?;
    }
    Ok(settings::Flags::new(flags))
}
