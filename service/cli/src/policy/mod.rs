//! `tollgate policy …`: from arguments to a request, and from the daemon's report to lines.
//!
//! ```text
//! args     what can be typed ──┬─ push         a module, its signatures and its description, to the daemon
//! against  a schema to check   ├─ attachments  where a policy evaluates: attach, detach, upgrade and the steps after it
//!                              └─ versions     what versions there are, and what they decide: list, show, diff, delete
//! ```

mod against;
mod args;
mod attachments;
mod push;
mod versions;

pub(crate) use args::Policy;

use std::path::Path;

use tollgate_shm_abi::messages::{STEP_PROMOTE, STEP_RELEASE, STEP_ROLLBACK};

use crate::failure::Failure;
use crate::policy::attachments::{attach, detach, step, upgrade};
use crate::policy::push::push;
use crate::policy::versions::{delete, diff, list, show};

/// Carries out one command.
pub(crate) fn policy(socket: &Path, command: &Policy) -> Result<String, Failure> {
    match command {
        Policy::Push(args) => push(socket, args),
        Policy::Attach(args) => attach(socket, args),
        Policy::Detach(args) => detach(socket, args),
        Policy::Upgrade(args) => upgrade(socket, args),
        Policy::Promote(args) => step(socket, args, STEP_PROMOTE),
        Policy::Rollback(args) => step(socket, args, STEP_ROLLBACK),
        Policy::Release(args) => step(socket, args, STEP_RELEASE),
        Policy::Show(args) => show(socket, args),
        Policy::Diff(args) => diff(socket, args),
        Policy::Delete(args) => delete(socket, args),
        Policy::Tool(_) => unreachable!("main runs what needs no daemon"),
        Policy::List => list(socket),
    }
}
