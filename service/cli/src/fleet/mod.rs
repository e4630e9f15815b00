//! `tollgate fleet upgrade`: the daemons of several hosts, one after the other, receivers first.
//!
//! ```text
//!  file     which hosts there are ──▶ reach    a socket, or ssh
//!                                       │ status
//!  order    receivers first  ◀───── plan    who calls whom
//!     │
//!     ▼
//!  run      for each host:  health   a picture of it ──▶ upgrade ──▶ the same picture again, within --settle
//!     └───▶ journal         what is done, on disk before each step
//! ```
//!
//! No host knows of the others. Each daemon is upgraded as by `tollgate upgrade`, and each link
//! negotiates by itself the features of both ends. So a fleet may stay half upgraded for as long as
//! the operator needs to look at it, and any host may be upgraded again.

mod args;
mod file;
mod health;
mod journal;
mod order;
mod plan;
mod reach;
mod run;

pub(crate) use args::Fleet;

use crate::failure::Failure;
use crate::fleet::args::Upgrade;
use crate::fleet::plan::Plan;
use crate::output;

/// `tollgate fleet …`
pub(crate) fn fleet(command: &Fleet) -> Result<String, Failure> {
    let Fleet::Upgrade(command) = command;
    match command {
        Upgrade::Plan(args) => {
            let fleet = args.which.load()?;
            let plan = Plan::of(&fleet)?;
            Ok(match args.json {
                true => output::json(&plan.json(&fleet)),
                false => plan.text(&fleet),
            })
        }
        Upgrade::Run(args) => run::run(args),
    }
}
