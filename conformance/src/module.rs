//! Policies as text, for tests: whole but for what they do when they are asked, which is mostly something bad.

/// Parts of a module that judges `hotel.Echo`. By default it does nothing and allows everything.
#[derive(Debug, Clone)]
pub struct Module {
    /// The manifest's entry of methods.
    pub methods: String,
    /// What else the manifest has: `"capabilities": [...],`.
    pub manifest: String,
    /// Imports.
    pub imports: String,
    /// The memory; three pages by default.
    pub memory: String,
    /// Globals, tables, functions, data.
    pub rest: String,
    /// What it does before it judges; has the locals `$at`, `$n` (32 bits) and `$wide` (64).
    pub request: String,
    /// What it writes into the entry `$entry`.
    pub verdict: String,
}

/// Where the buffer is: 64 KiB of views and more fit between here and the third page's end.
pub const BUFFER: u32 = 4096;

/// The verdict that allows.
pub const ALLOW: &str = "(i32.store offset=12 (local.get $entry) (i32.const 1))";

impl Default for Module {
    fn default() -> Module {
        Module {
            methods: r#"{"method":"hotel.Echo/*"}"#.to_owned(),
            manifest: String::new(),
            imports: String::new(),
            memory: r#"(memory (export "memory") 3)"#.to_owned(),
            rest: String::new(),
            request: String::new(),
            verdict: ALLOW.to_owned(),
        }
    }
}

impl Module {
    /// Does this before it allows everything.
    pub fn that(request: &str) -> Module {
        Module {
            request: request.to_owned(),
            ..Module::default()
        }
    }

    /// Answers with this.
    pub fn with_verdict(verdict: &str) -> Module {
        Module {
            verdict: verdict.to_owned(),
            ..Module::default()
        }
    }

    /// The module.
    ///
    /// # Panics
    /// If its text isn't WebAssembly: a mistake of the test.
    pub fn wasm(&self) -> Vec<u8> {
        let Module {
            methods,
            manifest,
            imports,
            memory,
            rest,
            request,
            verdict,
        } = self;
        let manifest = format!(
            r#"{{"abi":1,"name":"hostile",{manifest}"hooks":["request"],"methods":[{methods}]}}"#
        );
        let text = format!(
            r#"(module {imports} {memory}
              (func (export "tollgate_abi_v1"))
              (func (export "tollgate_buffer") (param i32) (result i32) (i32.const {BUFFER}))
              (func (export "tollgate_configure") (param i32) (result i32) (i32.const 0))
              {rest}
              (func (export "tollgate_request") (param $count i32) (result i32)
                (local $entry i32) (local $i i32) (local $at i32) (local $n i32) (local $wide i64)
                {request}
                (local.set $entry (i32.const {BUFFER}))
                (loop $next
                  {verdict}
                  (local.set $entry (i32.add (local.get $entry) (i32.const 32)))
                  (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $count))))
                (i32.const 0))
              (@custom "tollgate.manifest" {manifest:?}))"#
        );
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}
