//! The daemon's objects per message type and per projection: interpreted at first, faster once
//! compiled.

use std::sync::{Arc, OnceLock};
use tollgate_marshal::{Fault, MAX_EXTENTS, Program, ProjectError, Projection, interpreter};
use tollgate_schema::{Layouts, MessageId};

use crate::error::CompileError;
use crate::machine::{Compiled, CompiledProjection, CompiledWire};

/// `gather`, `accept`, `encode` and `decode` of one message type.
///
/// Shared between threads: one of them may call [`Codec::compile`] while others use it. The results
/// are the same before and after.
pub struct Codec {
    program: Arc<Program>,
    compiled: OnceLock<Compiled>,
    wire: OnceLock<CompiledWire>,
}

/// `project` for one list of fields.
///
/// Like [`Codec`]: compiling changes only the speed.
pub struct Projector {
    projection: Arc<Projection>,
    compiled: OnceLock<CompiledProjection>,
}

impl Codec {
    /// A codec for messages of type `id`, interpreted for now.
    pub fn new(layouts: &Arc<Layouts>, id: MessageId) -> Codec {
        Codec::of(Program::new(layouts, id))
    }

    /// A codec for a program that may share its steps with others, interpreted for now.
    pub fn of(program: Arc<Program>) -> Codec {
        Codec {
            program,
            compiled: OnceLock::new(),
            wire: OnceLock::new(),
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Like [`interpreter::gather`].
    #[inline]
    pub fn gather(&self, block: &[u8], lens: &mut [u32; MAX_EXTENTS]) -> Result<usize, Fault> {
        match self.compiled.get() {
            Some(compiled) => compiled.gather(block, lens),
            None => interpreter::gather(&self.program, block, lens),
        }
    }

    /// Like [`interpreter::accept`].
    #[inline]
    pub fn accept(&self, image: &mut [u8], inline_len: usize) -> Result<(), Fault> {
        match self.compiled.get() {
            Some(compiled) => compiled.accept(image, inline_len),
            None => interpreter::accept(&self.program, image, inline_len),
        }
    }

    /// Like [`interpreter::encode`].
    #[inline]
    pub fn encode(&self, image: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        match self.wire.get() {
            Some(wire) => wire.encode(image, out),
            None => interpreter::encode(&self.program, image, out),
        }
    }

    /// Like [`interpreter::decode`].
    #[inline]
    pub fn decode(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match self.wire.get() {
            Some(wire) => wire.decode(bytes, out),
            None => interpreter::decode(&self.program, bytes, out),
        }
    }

    /// Compiles `gather` and `accept` to machine code, unless they are compiled. Takes hundreds of
    /// microseconds: call it off the datapath.
    pub fn compile(&self) -> Result<(), CompileError> {
        if self.compiled.get().is_none() {
            // If another thread was faster, its code is kept and this thread's is freed.
            let _ = self.compiled.set(Compiled::new(&self.program)?);
        }
        Ok(())
    }

    /// Like [`Codec::compile`], for `encode` and `decode`.
    pub fn compile_wire(&self) -> Result<(), CompileError> {
        if self.wire.get().is_none() {
            let _ = self.wire.set(CompiledWire::new(&self.program)?);
        }
        Ok(())
    }

    /// Whether machine code is in use.
    pub fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }

    /// A message about a fault that this codec found, with the field's name.
    pub fn explain(&self, fault: &Fault) -> String {
        self.program.explain(fault)
    }
}

impl Projector {
    /// Resolves `paths` in messages of type `id`; interpreted for now.
    pub fn new(
        layouts: &Layouts,
        id: MessageId,
        paths: &[impl AsRef<str>],
    ) -> Result<Projector, ProjectError> {
        Ok(Projector::of(Projection::new(layouts, id, paths)?))
    }

    /// Like [`Projector::new`], for paths of which some aren't granted; see
    /// [`Projection::new_granted`].
    pub fn new_granted(
        layouts: &Layouts,
        id: MessageId,
        paths: &[(impl AsRef<str>, bool)],
    ) -> Result<Projector, ProjectError> {
        Ok(Projector::of(Projection::new_granted(layouts, id, paths)?))
    }

    /// A projector for an existing projection.
    pub fn of(projection: Projection) -> Projector {
        Projector {
            projection: Arc::new(projection),
            compiled: OnceLock::new(),
        }
    }

    /// The projection.
    pub fn projection(&self) -> &Arc<Projection> {
        &self.projection
    }

    /// Like [`interpreter::project`].
    #[inline]
    pub fn project(
        &self,
        image: &[u8],
        extent_offsets: &[u32],
        view: &mut [u8],
    ) -> Result<usize, Fault> {
        match self.compiled.get() {
            Some(compiled) => compiled.project(image, extent_offsets, view),
            None => interpreter::project(&self.projection, image, extent_offsets, view),
        }
    }

    /// Compiles to machine code, unless it is compiled. Call it off the datapath.
    pub fn compile(&self) -> Result<(), CompileError> {
        if self.compiled.get().is_none() {
            // If another thread was faster, its code is kept and this thread's is freed.
            let _ = self
                .compiled
                .set(CompiledProjection::new(&self.projection)?);
        }
        Ok(())
    }

    /// Whether machine code is in use.
    pub fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }
}
