//! Policies as text, for tests. They are complete except for their work, which is mostly harmful;
//! one leaves a stamp on calls, so that a test knows which version evaluated them.

/// The parts of a module for `hotel.Echo`. By default it does nothing and allows everything.
#[derive(Debug, Clone)]
pub struct Module {
    /// The manifest's entry of methods.
    pub methods: String,
    /// Further manifest entries: `"capabilities": [...],`.
    pub manifest: String,
    /// Imports.
    pub imports: String,
    /// The memory; three pages by default.
    pub memory: String,
    /// Globals, tables, functions, data.
    pub rest: String,
    /// Its work before the verdict; has the locals `$at`, `$n` (32 bits) and `$wide` (64 bits).
    pub request: String,
    /// The verdict, written into the entry `$entry`.
    pub verdict: String,
}

/// The buffer's address: more than 64 KiB of views fit between it and the end of the third page.
pub const BUFFER: u32 = 4096;

/// The verdict to allow.
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
    /// Does this, then allows everything.
    pub fn that(request: &str) -> Module {
        Module {
            request: request.to_owned(),
            ..Module::default()
        }
    }

    /// Returns this verdict.
    pub fn with_verdict(verdict: &str) -> Module {
        Module {
            verdict: verdict.to_owned(),
            ..Module::default()
        }
    }

    /// The module.
    ///
    /// # Panics
    /// If its text isn't WebAssembly: a bug of the test.
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

/// The size of the state that a [`stamping`] policy keeps and hands over.
pub const STAMPS_STATE_BYTES: u32 = 32 << 10;

/// A policy that stamps reservations: it adds `stamp << 24` to the request's `room_count`, and to
/// the reply's `reservation_id` it adds `stamp << 32` and `count << 40`. `count` is the number of
/// requests evaluated by it and its predecessors.
///
/// # Panics
/// If its text isn't WebAssembly: a bug here.
pub fn stamping(stamp: u8) -> Vec<u8> {
    const STATE: u32 = 2 << 16;
    const EFFECTS: u32 = STATE + STAMPS_STATE_BYTES;
    let manifest = r#"{"abi":1,"name":"stamp","hooks":["request","reply"],"capabilities":["change"],"state":{"version":1,"stateless_replies":true},
        "methods":[{"method":"hotel.Reservation/Reserve","fields":["room_count"],"changes":["room_count"],
                    "reply_fields":["reservation_id"],"reply_changes":["reservation_id"]}]}"#;
    // `$entry` allows with one effect, at `$effect`: the first field has the value `$value` +
    // `added`.
    let evaluate = |hook: &str, counts: &str, added: &str| {
        format!(
            r#"(func (export "tollgate_{hook}") (param $count i32) (result i32)
                 (local $entry i32) (local $effect i32) (local $i i32) (local $value i64)
                 (local.set $entry (i32.const {BUFFER}))
                 (local.set $effect (i32.const {EFFECTS}))
                 (loop $next
                   {counts}
                   (local.set $value
                     (i64.load offset=16 (i32.add (i32.const {BUFFER}) (i32.load (local.get $entry)))))
                   (i32.store (local.get $effect) (i32.const 2))
                   (i32.store offset=4 (local.get $effect) (i32.const 0))
                   (i64.store offset=8 (local.get $effect) (i64.add (local.get $value) {added}))
                   (i32.store offset=12 (local.get $entry) (i32.const 3))
                   (i32.store offset=20 (local.get $entry) (local.get $effect))
                   (i32.store offset=24 (local.get $entry) (i32.const 16))
                   (local.set $entry (i32.add (local.get $entry) (i32.const 32)))
                   (local.set $effect (i32.add (local.get $effect) (i32.const 16)))
                   (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $count))))
                 (i32.const 0))"#
        )
    };
    let count = format!(
        "(i64.store (i32.const {STATE}) (i64.add (i64.load (i32.const {STATE})) (i64.const 1)))"
    );
    let (on_request, on_reply) = (u64::from(stamp) << 24, u64::from(stamp) << 32);
    let request = evaluate("request", &count, &format!("(i64.const {on_request})"));
    let reply = evaluate(
        "reply",
        "",
        &format!(
            "(i64.add (i64.const {on_reply}) (i64.shl (i64.load (i32.const {STATE})) (i64.const 40)))"
        ),
    );
    let saved = u64::from(STATE) | u64::from(STAMPS_STATE_BYTES) << 32;
    let text = format!(
        r#"(module (memory (export "memory") 4)
          (func (export "tollgate_abi_v1"))
          (func (export "tollgate_buffer") (param i32) (result i32) (i32.const {BUFFER}))
          (func (export "tollgate_configure") (param i32) (result i32) (i32.const 0))
          (func (export "tollgate_save") (result i64) (i64.const {saved}))
          (func (export "tollgate_restore") (param $version i32) (param $len i32) (result i32)
            (memory.copy (i32.const {STATE}) (i32.const {BUFFER}) (local.get $len)) (i32.const 0))
          {request} {reply}
          (@custom "tollgate.manifest" {manifest:?}))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
