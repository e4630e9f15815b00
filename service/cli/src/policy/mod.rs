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

pub(crate) use against::{Against, schema_of};
pub(crate) use args::{Policy, PolicyCommand};
pub(crate) use push::{doing, fetch};

use std::path::Path;

use crate::api::Api;
use crate::failure::Failure;
use crate::policy::attachments::{attach, detach, promote, release, roll_back, upgrade};
use crate::policy::push::push;
use crate::policy::versions::{delete, diff, list, show};

/// Carries out one command.
pub(crate) fn policy(socket: &Path, args: &PolicyCommand) -> Result<String, Failure> {
    let api = || Api::connect(socket, &args.acting);
    match &args.command {
        Policy::Push(args) => push(&api()?, args),
        Policy::Attach(args) => attach(&api()?, args),
        Policy::Detach(args) => detach(&api()?, args),
        Policy::Upgrade(args) => upgrade(&api()?, args),
        Policy::Promote(args) => promote(&api()?, args),
        Policy::Rollback(args) => roll_back(&api()?, args),
        Policy::Release(args) => release(&api()?, args),
        Policy::Show(args) => show(&api()?, args),
        Policy::Diff(args) => diff(&api()?, args),
        Policy::Delete(args) => delete(&api()?, args),
        Policy::Tool(_) => unreachable!("main runs what needs no daemon"),
        Policy::List(args) => list(&api()?, args),
    }
}
