//! `tollgate top`: a live view of a daemon.
//!
//! ```text
//!  daemon ─ sample.rs   what one report says ─┐
//!                                             ├─ rows.rs   what was between two ─ table.rs   as text ─ screen.rs   as a frame
//!  daemon ─ sample.rs ────────────────────────┘                                                              │
//!                                                                        terminal.rs   keys, time, and the terminal as it was
//! ```
//!
//! The viewer polls and computes; the daemon keeps nothing for it. Absent on purpose: history,
//! which Prometheus has, and single calls, which traces have.

mod args;
mod ask;
mod rows;
mod sample;
mod screen;
mod table;
mod terminal;

pub(crate) use args::Top;

use std::io::IsTerminal;
use std::path::Path;

use crate::failure::Failure;
use crate::output;
use crate::tenant::require_tenant;
use crate::top::ask::Asker;
use crate::top::rows::View;
use crate::top::screen::Model;

/// Shows the view until the user quits, or returns the result of one interval.
pub(crate) fn top(socket: &Path, args: &Top) -> Result<String, Failure> {
    let asker = Asker {
        socket: socket.to_owned(),
        remote: args.acting.remote.clone(),
        token: args.acting.token()?,
    };
    let is_own = asker.token.is_some() || asker.remote.endpoint().is_some();
    if let (Some(tenant), false) = (&args.tenant, is_own) {
        require_tenant(socket, tenant)?;
    }
    let first = asker.ask()?;
    let is_seen = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_seen && !args.once && !args.json {
        let mut model = Model::new(first, args.sort, args.tenant.clone());
        model.is_colored = std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
        return terminal::run(asker, args.interval, model).map(|()| String::new());
    }
    std::thread::sleep(args.interval);
    let mut view = View::between(&first, &asker.ask()?, args.tenant.as_deref());
    view.sort(args.sort);
    Ok(match args.json {
        true => output::json(&view.json()),
        false => table::plain(&view, args.sort),
    })
}
