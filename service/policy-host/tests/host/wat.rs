//! Modules as text: the smallest well-behaved one, and a way to replace any part of it.

use tollgate_policy_host::{Instance, LoadError, Policy};

use crate::guests::{HOST, limits, setup};

pub(crate) const MANIFEST: &str =
    r#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"a.B/C","fields":["x"]}]}"#;

/// Parts of a module; the defaults allow everything from a buffer at 1024 in one page of memory.
pub(crate) struct Parts {
    pub(crate) manifest: String,
    pub(crate) imports: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) marker: &'static str,
    pub(crate) buffer: String,
    pub(crate) configure: String,
    pub(crate) request: String,
    pub(crate) rest: String,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts {
            manifest: format!("(@custom \"tollgate.manifest\" {MANIFEST:?})"),
            imports: "",
            memory: r#"(memory (export "memory") 1)"#,
            marker: r#"(func (export "tollgate_abi_v1"))"#,
            buffer: buffer("i32.const 1024"),
            configure: configure("i32.const 0"),
            request: request(&format!("{ALLOW} i32.const 0")),
            rest: String::new(),
        }
    }
}

/// Writes verdict 1 into the first entry of the default buffer.
pub(crate) const ALLOW: &str = "(i32.store (i32.const 1036) (i32.const 1))";

pub(crate) fn buffer(body: &str) -> String {
    format!("(func (export \"tollgate_buffer\") (param i32) (result i32) {body})")
}

pub(crate) fn configure(body: &str) -> String {
    format!("(func (export \"tollgate_configure\") (param i32) (result i32) {body})")
}

pub(crate) fn request(body: &str) -> String {
    format!(
        "(func (export \"tollgate_request\") (param i32) (result i32) (local i32 i64 f64) {body})"
    )
}

impl Parts {
    pub(crate) fn with_request(body: &str) -> Parts {
        Parts {
            request: request(body),
            ..Parts::default()
        }
    }

    pub(crate) fn wasm(&self) -> Vec<u8> {
        let Parts {
            manifest,
            imports,
            memory,
            marker,
            buffer,
            configure,
            request,
            rest,
        } = self;
        let text = format!(
            "(module {imports} {memory} {marker} {buffer} {configure} {request} {rest} {manifest})"
        );
        wat::parse_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    pub(crate) fn load(&self) -> Result<Policy, LoadError> {
        HOST.load(&self.wasm())
    }

    pub(crate) fn instantiate(&self) -> Result<Instance, LoadError> {
        self.load().unwrap().instantiate(&setup(&limits(), None))
    }
}
