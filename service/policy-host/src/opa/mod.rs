//! Policies that OPA compiled: `opa build -t wasm`. OPA.md says what a policy is asked and what it may answer.
//!
//! ```text
//!   memory (the host makes it) ─▶ instantiate ─▶ builtins? entrypoints? ─▶ the configuration becomes `data`
//!        ─▶ { input as JSON at the heap's end ─▶ opa_eval ─▶ [{"result": decision}] }*
//! ```
//!
//! Invariants: an evaluation begins with the heap as it was after set-up, so nothing of one adds up with another; the guest has
//! stopped when its answer is read, and the answer is looked for in memory, up to its end and a limit. What the policy can call on the host is one
//! function that ends it, and built-in functions, of which none is offered: who needs one is refused by its name.

mod decision;
mod imports;
mod input;
mod rego;

pub(crate) use imports::{Evaluation, linker, offers};
pub(crate) use rego::Rego;
