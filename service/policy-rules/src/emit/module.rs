//! The module while it is written: its functions, its constants, and at the end its sections.
//!
//! ```text
//!   memory: | 16 unused | constants and tables | the host's buffer .. | heap: what one evaluation computes ..
//! ```
//!
//! The heap has no free list: it is empty when an evaluation begins. A helper function is written
//! when something calls it, so a module has only those that it needs.

use std::collections::HashMap;

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, CustomSection, DataSection, EntityType, ExportKind,
    ExportSection, Function, FunctionSection, GlobalSection, GlobalType, ImportSection,
    MemorySection, MemoryType, TypeSection, ValType,
};

use crate::emit::code::Code;
use crate::emit::helper::Helper;
use crate::limits;

/// Where the constants begin: nothing is at address 0.
const DATA: u32 = 16;
/// Bytes of a page of memory.
pub(crate) const PAGE: u32 = 65_536;

/// Where the heap ends, during an evaluation.
pub(crate) const HEAP: u32 = 0;
/// Where the heap begins.
pub(crate) const HEAP_BASE: u32 = 1;
/// The list of effects of the current call, or 0.
pub(crate) const EFFECTS: u32 = 2;

/// The host's functions that a module imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    Counter,
    Log,
    Now,
    Monotonic,
    Get,
    Replace,
}

/// A text in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u32,
    pub(crate) len: u32,
}

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    types: Vec<(Vec<ValType>, Vec<ValType>)>,
    imports: Vec<Import>,
    /// The type of each function, and its code once it is written.
    functions: Vec<(u32, Option<Function>)>,
    helpers: Vec<(Helper, u32)>,
    data: Vec<u8>,
    constants: HashMap<Vec<u8>, u32>,
    reasons: Vec<String>,
    reason_ids: HashMap<String, u32>,
    largest: usize,
}

impl Module {
    pub(crate) fn new(imports: Vec<Import>) -> Module {
        Module {
            types: Vec::new(),
            imports,
            functions: Vec::new(),
            helpers: Vec::new(),
            data: Vec::new(),
            constants: HashMap::new(),
            reasons: Vec::new(),
            reason_ids: HashMap::new(),
            largest: 0,
        }
    }

    /// The number of a function's type.
    pub(crate) fn ty(&mut self, parameters: &[ValType], results: &[ValType]) -> u32 {
        let is_same = |ty: &(Vec<ValType>, Vec<ValType>)| ty.0 == parameters && ty.1 == results;
        if let Some(found) = self.types.iter().position(is_same) {
            return found as u32;
        }
        self.types.push((parameters.to_vec(), results.to_vec()));
        self.types.len() as u32 - 1
    }

    /// The type of a block with these results.
    pub(crate) fn block(&mut self, results: &[ValType]) -> BlockType {
        match results {
            [] => BlockType::Empty,
            [one] => BlockType::Result(*one),
            _ => BlockType::FunctionType(self.ty(&[], results)),
        }
    }

    /// The number of an imported function.
    pub(crate) fn import(&self, import: Import) -> u32 {
        let found = self.imports.iter().position(|one| *one == import);
        found.unwrap_or(0) as u32
    }

    /// A new function's number; its code comes later.
    pub(crate) fn declare(&mut self, parameters: &[ValType], results: &[ValType]) -> u32 {
        let ty = self.ty(parameters, results);
        self.functions.push((ty, None));
        (self.imports.len() + self.functions.len()) as u32 - 1
    }

    pub(crate) fn define(&mut self, function: u32, code: Code) {
        self.largest = self.largest.max(code.len());
        let at = function as usize - self.imports.len();
        self.functions[at].1 = Some(code.finish());
    }

    /// A helper's number.
    pub(crate) fn helper(&mut self, helper: Helper) -> u32 {
        if let Some((_, number)) = self.helpers.iter().find(|(one, _)| *one == helper) {
            return *number;
        }
        let (parameters, results) = helper.ty();
        let number = self.declare(parameters, results);
        self.helpers.push((helper, number));
        number
    }

    /// The helpers that were called so far.
    pub(crate) fn helpers(&self) -> &[(Helper, u32)] {
        &self.helpers
    }

    /// A constant's place in memory; equal ones share it.
    pub(crate) fn constant(&mut self, bytes: &[u8]) -> Span {
        let len = bytes.len() as u32;
        if let Some(address) = self.constants.get(bytes) {
            let address = *address;
            return Span { address, len };
        }
        let address = DATA + self.data.len() as u32;
        self.data.extend_from_slice(bytes);
        self.constants.insert(bytes.to_vec(), address);
        Span { address, len }
    }

    /// A table's place in memory, at a multiple of 8.
    pub(crate) fn table(&mut self, bytes: &[u8]) -> u32 {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        self.constant(bytes).address
    }

    /// The number that stands for an error with this text. 0 and 1 are booleans.
    pub(crate) fn reason(&mut self, text: &str) -> u32 {
        if let Some(found) = self.reason_ids.get(text) {
            return *found;
        }
        let number = self.reasons.len() as u32 + 2;
        self.reasons.push(text.to_owned());
        self.reason_ids.insert(text.to_owned(), number);
        number
    }

    /// The table of errors: address and length of each, from number 2 on.
    pub(crate) fn reasons(&mut self) -> u32 {
        let reasons = std::mem::take(&mut self.reasons);
        let spans: Vec<_> = reasons
            .iter()
            .map(|text| self.constant(text.as_bytes()))
            .collect();
        let words = spans.iter().flat_map(|span| [span.address, span.len]);
        let table: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        self.table(&table)
    }

    /// Where the host's buffer begins, once all constants are known.
    pub(crate) fn buffer(&self) -> u32 {
        (DATA + self.data.len() as u32).next_multiple_of(8)
    }

    /// Bytes of the constants.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data.len()
    }

    /// Bytes of the largest function.
    pub(crate) fn largest_function(&self) -> usize {
        self.largest
    }

    /// The module's bytes, with these exports and its manifest.
    pub(crate) fn finish(self, exports: &[(&str, u32)], manifest: &[u8]) -> Vec<u8> {
        let mut module = wasm_encoder::Module::new();
        let mut all_types = self.types.clone();
        let mut imports = ImportSection::new();
        for import in &self.imports {
            let (name, parameters, results): (_, &[ValType], &[ValType]) = match import {
                Import::Counter => ("counter", &[ValType::I32, ValType::I64], &[]),
                Import::Log => ("log", &[ValType::I32, ValType::I32, ValType::I32], &[]),
                Import::Now => ("now_ms", &[], &[ValType::I64]),
                Import::Monotonic => ("monotonic_us", &[], &[ValType::I64]),
                Import::Get => ("state_get", &[ValType::I32; 4], &[ValType::I32]),
                Import::Replace => ("state_replace", &[ValType::I32; 6], &[ValType::I32]),
            };
            all_types.push((parameters.to_vec(), results.to_vec()));
            let ty = all_types.len() as u32 - 1;
            imports.import("tollgate", name, EntityType::Function(ty));
        }
        let mut types = TypeSection::new();
        for (parameters, results) in all_types {
            types.ty().function(parameters, results);
        }
        let (mut functions, mut codes) = (FunctionSection::new(), CodeSection::new());
        for (ty, function) in &self.functions {
            functions.function(*ty);
            if let Some(function) = function {
                codes.function(function);
            }
        }
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: u64::from(self.buffer() / PAGE + 1),
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut globals = GlobalSection::new();
        for _ in [HEAP, HEAP_BASE, EFFECTS] {
            let ty = GlobalType {
                val_type: ValType::I32,
                mutable: true,
                shared: false,
            };
            globals.global(ty, &ConstExpr::i32_const(0));
        }
        let mut exported = ExportSection::new();
        exported.export("memory", ExportKind::Memory, 0);
        for (name, function) in exports {
            exported.export(name, ExportKind::Func, *function);
        }
        let mut data = DataSection::new();
        data.active(
            0,
            &ConstExpr::i32_const(DATA.cast_signed()),
            self.data.iter().copied(),
        );
        module.section(&types);
        if !self.imports.is_empty() {
            module.section(&imports);
        }
        module.section(&functions);
        module.section(&memories);
        module.section(&globals);
        module.section(&exported);
        module.section(&codes);
        if !self.data.is_empty() {
            module.section(&data);
        }
        module.section(&CustomSection {
            name: "tollgate.manifest".into(),
            data: manifest.into(),
        });
        module.finish()
    }
}

/// A module's memory without the buffer and the heap: constants of a file within the limits.
const _: () = assert!(
    limits::DATA_BYTES < 1 << 20,
    "memory has room for a batch of views"
);
