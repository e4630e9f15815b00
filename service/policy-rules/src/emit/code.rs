//! The code of one function while it is written: labels by name instead of depth, and locals that
//! are used again.

use wasm_encoder::{BlockType, Function, InstructionSink, MemArg, ValType};

/// A block that code can branch out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(u32);

/// A local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local(pub(crate) u32);

/// A function.
#[derive(Debug, Default)]
pub(crate) struct Code {
    bytes: Vec<u8>,
    parameters: u32,
    locals: Vec<ValType>,
    free: Vec<Local>,
    depth: u32,
}

impl Code {
    /// A function whose first locals are its parameters.
    pub(crate) fn new(parameters: u32) -> Code {
        Code {
            parameters,
            ..Code::default()
        }
    }

    /// Writes instructions.
    pub(crate) fn op(&mut self) -> InstructionSink<'_> {
        InstructionSink::new(&mut self.bytes)
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A local that nobody uses now.
    pub(crate) fn local(&mut self, ty: ValType) -> Local {
        let is_free = |local: &Local| self.locals[(local.0 - self.parameters) as usize] == ty;
        if let Some(at) = self.free.iter().position(is_free) {
            return self.free.swap_remove(at);
        }
        self.locals.push(ty);
        Local(self.parameters + self.locals.len() as u32 - 1)
    }

    /// The local may be used for something else.
    pub(crate) fn free(&mut self, local: Local) {
        self.free.push(local);
    }

    pub(crate) fn free_all<const N: usize>(&mut self, locals: [Local; N]) {
        self.free.extend(locals);
    }

    pub(crate) fn get(&mut self, local: Local) -> &mut Code {
        self.op().local_get(local.0);
        self
    }

    pub(crate) fn set(&mut self, local: Local) -> &mut Code {
        self.op().local_set(local.0);
        self
    }

    pub(crate) fn tee(&mut self, local: Local) -> &mut Code {
        self.op().local_tee(local.0);
        self
    }

    pub(crate) fn i32(&mut self, value: u32) -> &mut Code {
        self.op().i32_const(value.cast_signed());
        self
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Code {
        self.op().i64_const(value);
        self
    }

    pub(crate) fn call(&mut self, function: u32) -> &mut Code {
        self.op().call(function);
        self
    }

    pub(crate) fn block(&mut self, ty: BlockType) -> Label {
        self.op().block(ty);
        self.opened()
    }

    pub(crate) fn begin_loop(&mut self) -> Label {
        self.op().loop_(BlockType::Empty);
        self.opened()
    }

    pub(crate) fn begin_if(&mut self, ty: BlockType) -> Label {
        self.op().if_(ty);
        self.opened()
    }

    pub(crate) fn begin_else(&mut self) {
        self.op().else_();
    }

    fn opened(&mut self) -> Label {
        self.depth += 1;
        Label(self.depth)
    }

    pub(crate) fn end(&mut self) {
        self.depth -= 1;
        self.op().end();
    }

    pub(crate) fn br(&mut self, label: Label) {
        let relative = self.depth - label.0;
        self.op().br(relative);
    }

    pub(crate) fn br_if(&mut self, label: Label) {
        let relative = self.depth - label.0;
        self.op().br_if(relative);
    }

    /// The depth of a label seen from here, for a table of branches.
    pub(crate) fn relative(&self, label: Label) -> u32 {
        self.depth - label.0
    }

    /// The finished function.
    pub(crate) fn finish(mut self) -> Function {
        self.op().end();
        let mut function = Function::new_with_locals_types(self.locals);
        function.raw(self.bytes);
        function
    }
}

/// An aligned word at an offset from an address.
pub(crate) fn at(offset: u32) -> MemArg {
    MemArg {
        offset: offset.into(),
        align: 2,
        memory_index: 0,
    }
}

/// Bytes at an offset from any address.
pub(crate) fn unaligned(offset: u32) -> MemArg {
    MemArg {
        offset: offset.into(),
        align: 0,
        memory_index: 0,
    }
}

/// A parameter of a function.
pub(crate) fn parameter(at: u32) -> Local {
    Local(at)
}

/// A loop that ends when `left`, a number, is 0; the body must change it.
pub(crate) fn while_not_zero(c: &mut Code, left: Local, body: impl FnOnce(&mut Code, Label)) {
    let done = c.block(BlockType::Empty);
    let top = c.begin_loop();
    c.get(left).op().i32_eqz();
    c.br_if(done);
    body(c, done);
    c.br(top);
    c.end();
    c.end();
}

/// `local += amount`.
pub(crate) fn add(c: &mut Code, local: Local, amount: u32) {
    c.get(local).i32(amount).op().i32_add();
    c.set(local);
}
