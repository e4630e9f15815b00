//! Policies compiled by OPA: `opa build -t wasm`. OPA.md describes their input and their decisions.
//!
//! ```text
//!   memory (the host makes it) ─▶ instantiate ─▶ builtins? entrypoints? ─▶ the configuration becomes `data`
//!        ─▶ { input as JSON at the heap's end ─▶ opa_eval ─▶ [{"result": decision}] }*
//! ```
//!
//! Invariants:
//!
//! - An evaluation begins with the heap as it was after set-up, so evaluations don't accumulate
//!   memory.
//! - The guest has stopped when its answer is read. The answer is searched for in memory, up to the
//!   memory's end and a limit.
//! - The policy can call only one host function, which ends the policy, and built-in functions. No
//!   built-in function is offered: a policy that needs one is refused, with the function's name.

mod decision;
mod imports;
mod input;
mod rego;

pub(crate) use imports::{Evaluation, linker, offers};
pub(crate) use rego::Rego;
