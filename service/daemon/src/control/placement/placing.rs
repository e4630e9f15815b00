//! Placement of tenants on runtimes, by a hash of the name or by an operator's override, and moves
//! between runtimes.
//!
//! ```text
//!   shut the gate (no requests of the tenant's applications) ─▶ Part ─▶ (two runtimes) ─▶ Moved
//!   ─▶ update sessions, bindings and attachments here ─▶ store, record ─▶ tell every runtime
//! ```
//!
//! Invariants: one change at a time ([`crate::control::changes`]), and no request about the tenant
//! is in flight: all earlier commands are done when the old runtime parts with the tenant. The
//! stored placement is the actual one; if it can't be stored, the tenant moves back.
//!
//! Events may still be in flight. Those of the old runtime name sessions by their old ids, which
//! are not reused for a long time. Those of the new runtime are kept until the new ids are known
//! here. Attachments keep their ids, and the new runtime starts a comparison of schemas again.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_control::audit::Actor;
use tollgate_control::{Owner, Store};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::error::{self, DaemonError};
use crate::control::placement::homes::Homes;
use crate::control::placement::running::{Runtimes, reply};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use tollgate_datapath::command::Map;
use tollgate_datapath::migration::{Move, MoveError, Moved};
use tollgate_datapath::{Command, Placement, RuntimeIndex};

/// The stored placement.
pub(crate) fn restored(store: &Store, runtimes: usize) -> Result<Placement, DaemonError> {
    let stored = store.placements();
    let stored = stored.map_err(error::store("read"))?;
    let mut placement = Placement::spread(runtimes);
    for (tenant, runtime) in stored {
        let runtime = RuntimeIndex(runtime as usize);
        if runtime.0 >= runtimes {
            tracing::warn!(
                "tenant {tenant} was moved to runtime {runtime}, which does not exist; using default placement"
            );
        }
        placement.assign(&tenant.into(), runtime);
    }
    Ok(placement)
}

/// The answer to `tollgate tenant move`: the tenant's runtime, and what moved.
pub(crate) async fn move_tenant(
    control: &Rc<Control>,
    actor: Actor,
    tenant: &str,
    runtime: Option<u32>,
) -> Result<Value, Status> {
    let _one_at_a_time = control.changes.begin(&actor).await?;
    control
        .changes
        .require_owner(&Owner::Tenant(tenant.to_owned()))?;
    let wanted = runtime.map(|runtime| RuntimeIndex(runtime as usize));
    let runtimes = control.runtimes.count();
    if let Some(wanted) = wanted.filter(|wanted| wanted.0 >= runtimes) {
        return Err(invalid(format!(
            "runtime {wanted} does not exist: this daemon has {runtimes} runtimes, numbered from 0"
        )));
    }
    let mut after = control.homes.placement();
    match wanted {
        Some(wanted) => after.assign(&tenant.into(), wanted),
        None => drop(after.assigned.remove(tenant)),
    }
    let (from, to) = (control.homes.of(tenant), after.home(tenant));
    let gate = control.homes.shut_gate(tenant).await?;
    let moved = match from == to {
        true => None,
        false => Some(control.relocate(tenant, to).await?),
    };
    let details = json!({"tenant": tenant, "from": from, "to": to, "by_name": wanted.is_none()});
    let stored = control
        .changes
        .store()
        .place(actor, details, tenant, runtime);
    if let Err(error) = stored {
        if moved.is_some()
            && let Err(status) = control.relocate(tenant, from).await
        {
            tracing::error!("a move can't be reverted: {}", status.message);
        }
        return Err(store_failed(&error));
    }
    drop(gate);
    control.homes.place(after);
    tell(&control.homes, &control.runtimes).await?;
    let mut report =
        json!({"tenant": tenant, "from": from, "runtime": to, "by_name": wanted.is_none()});
    if let Some(moved) = moved {
        report["sessions"] = moved.sessions.len().into();
        report["links"] = moved.links.into();
        report["calls"] = moved.calls.into();
        report["pause_us"] = (moved.still_ns / 1_000).into();
    }
    Ok(report)
}

impl Control {
    /// Moves a tenant, whose gate is shut. An error says why it stays.
    pub(crate) async fn relocate(&self, tenant: &str, to: RuntimeIndex) -> Result<Moved, Status> {
        let from = self.homes.of(tenant);
        let (reply, answer) = reply();
        let order = Box::new(Move {
            tenant: tenant.into(),
            to,
            attachments: self.policies.ids_of(tenant),
            same: self.policies.same(from, to),
            reply: Some(reply),
        });
        self.apps.sessions.begin_move();
        self.runtimes.send(from, Command::Part { order });
        // Without a timeout: afterwards the tenant's runtime would be unknown.
        let answer = answer.await;
        let early = self.apps.sessions.end_move();
        let answer = answer.map_err(|_dropped| {
            let text = format!("runtime {from} or runtime {to} has ended");
            Status::new(Code::INTERNAL, text)
        })?;
        let stays = |why: MoveError| {
            let text = format!("tenant {tenant} stays on runtime {from}: {why}");
            Status::new(Code::FAILED_PRECONDITION, text)
        };
        let moved = answer.map_err(stays)?;
        self.follow(tenant, from, &moved);
        for (at, reason) in early {
            self.apps.sessions.ended(at, reason);
        }
        match moved.refused {
            Some(why) => Err(stays(why)),
            None => Ok(moved),
        }
    }

    /// Updates the tenant's sessions, bindings and attachments to its new runtime.
    fn follow(&self, tenant: &str, from: RuntimeIndex, moved: &Moved) {
        let to = moved.runtime;
        self.apps.sessions.renamed(from, to, &moved.sessions);
        self.policies.moved(tenant, from, moved);
        let pause = Duration::from_nanos(moved.still_ns);
        tracing::info!(
            "tenant {tenant} moved to runtime {to} in {} us, with {} sessions, {} links and {} calls in flight",
            pause.as_micros(),
            moved.sessions.len(),
            moved.links,
            moved.calls
        );
        let stays = moved.refused.is_none().then_some(to);
        self.homes.moved(tenant, stays, pause);
    }
}

/// Sends the placement to every runtime, and waits until all use it.
pub(in crate::control) async fn tell(homes: &Homes, runtimes: &Runtimes) -> Result<(), Status> {
    let map = Map {
        placement: homes.placement(),
        runtimes: runtimes.handles(),
    };
    let told = runtimes.ask_all(|_, done| {
        let map = Box::new(map.clone());
        Command::Place { map, done }
    });
    told.await.map(drop)
}
