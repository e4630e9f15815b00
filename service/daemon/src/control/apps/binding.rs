//! Binds a session to a service: its schema, the policies' chains, and the runtime's handles.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use tollgate_control::Side;
use tollgate_datapath::binds::{BindAs, BindOutcome, Bound as ServedBinding};
use tollgate_datapath::target::Found;
use tollgate_datapath::{Command, log_limited};
use tollgate_engine::Status;
use tollgate_shm_abi::messages::{
    Bind, Bound, BoundMethod, ResponseBody, SIDE_CLIENT, SIDE_SERVER,
};
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::answers::Answer;
use crate::control::apps::callers;
use crate::control::apps::descriptor_sets::{descriptor_set, intern, one_descriptor};
use crate::control::apps::fitting;
use crate::control::apps::names::Names;
use crate::control::apps::peers::Peers;
use crate::control::apps::schemas;
use crate::control::apps::session::Open;
use crate::control::placement::running::Runtimes;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::LiveBinding;
use crate::control::refusals::exhausted;
use crate::control::state::Control;
use crate::targets;
use tollgate_policy_chain::plan::PolicyChange;

/// Binds a session to a service. Calls may come to a server's binding, which is returned, once
/// [`Command::Serve`] says so.
pub(super) async fn bind(
    control: &Rc<Control>,
    open: &Open,
    request: Bind,
    fds: Vec<OwnedFd>,
) -> Result<(Answer, Option<ServedBinding>), Status> {
    let invalid = |text: String| Status::new(Code::INVALID_ARGUMENT, text);
    open.place.bind().map_err(exhausted)?;
    // Checked before waiting: a waiting binding holds only this descriptor.
    one_descriptor("a binding", &fds)?;
    // The set is read only after this: a tenant's sets in memory are limited.
    let turn = control.apps.turns.of(&open.tenant).await?;
    let bytes = descriptor_set("a binding", &fds)?;
    let side = match request.role {
        SIDE_CLIENT => Side::Client,
        SIDE_SERVER => Side::Server,
        other => {
            return Err(invalid(format!(
                "role {other} is neither client (0) nor server (1)"
            )));
        }
    };
    fitting::check_name(&request.service)?;
    let by = Some(open.tenant.as_str().into());
    let schema = intern(&control.apps.schemas, &turn, &by, bytes, &request.service).await?;
    drop(turn);
    fitting::check_names(&schema.layout)?;
    let wanted = match side {
        Side::Server => BindAs::Server,
        Side::Client => {
            let (names, config) = (&control.apps.names, control.config());
            let (tenant, target) = (&open.tenant, &request.target);
            let peer = reach(names, &control.peers, &config, tenant, target).await?;
            BindAs::Client { peer }
        }
    };
    let (runtime, session) = open.at.get();
    let policies = &control.policies;
    let generation = policies.generation();
    let misfits = |_: &Status| policies.note_misfit(&open.tenant, &schema, side);
    let caller = callers::on(side, &open.tenant, &open.application);
    let chains = policies.chains_for(runtime, (&open.tenant, &caller), &schema, side);
    let chains = chains.inspect_err(misfits)?;
    let service = Arc::clone(&schema.service);
    let bind = |bind, chains| {
        control.runtimes.ask(runtime, |reply| Command::Bind {
            session,
            schema: Arc::clone(&service),
            bind,
            chains,
            reply,
        })
    };
    let outcome =
        bind(wanted, chains.clone())
            .await
            .map_err(|status| match request.target.as_str() {
                "" => status,
                peer => Status::new(
                    status.code,
                    format!("peer {peer} didn't accept the binding: {}", status.message),
                ),
            })??;
    let outcome = match outcome {
        BindOutcome::Differs {
            service: id,
            served,
        } => {
            let turn = control.apps.turns.of(&open.tenant).await?;
            let matches = schemas::compare(&turn, &service, served.description.clone()).await;
            let service = id;
            bind(BindAs::Across { service, matches }, chains).await??
        }
        bound => bound,
    };
    let BindOutcome::Bound(bound) = outcome else {
        let text = "the schemas still differ after the daemon compared them";
        return Err(Status::new(Code::INTERNAL, text));
    };
    let binding = LiveBinding {
        runtime,
        session,
        tenant: open.tenant.clone(),
        caller,
        schema: Arc::clone(&schema),
        first_handle: bound.first_handle,
        service: bound.service,
    };
    let settled = settle(policies, &control.runtimes, binding, generation).await;
    settled.inspect_err(misfits)?;
    let methods = schema.layout.methods.iter().zip(bound.first_handle..);
    let mut methods: Vec<_> = methods
        .map(|(method, handle)| BoundMethod {
            name: method.name.clone(),
            handle,
            refused: String::new(),
        })
        .collect();
    if let Some((first, reason)) = bound.refused.first() {
        log_limited!(
            warn,
            "methods refused",
            &open.tenant,
            "application session {} of tenant {} can't call {} of the {} methods of {}, {} among them: {reason}",
            session.0,
            open.tenant,
            bound.refused.len(),
            methods.len(),
            schema.layout.name,
            methods[usize::from(*first)].name,
        );
    }
    for (k, reason) in &bound.refused {
        let method = &mut methods[usize::from(*k)];
        method.refused.clone_from(reason);
    }
    let serving = bound.service.map(|_| bound);
    Ok((ResponseBody::Bound(Bound { methods }).into(), serving))
}

/// Records a binding. If policies have changed since it began, it gets their chains now, before any
/// call.
async fn settle(
    policies: &LivePolicies,
    runtimes: &Runtimes,
    binding: LiveBinding,
    generation: u64,
) -> Result<(), Status> {
    let runtime = binding.runtime;
    let chains = policies.add_binding(binding, generation)?;
    if chains.is_empty() {
        return Ok(());
    }
    let change = PolicyChange {
        chains,
        ..Default::default()
    };
    runtimes.apply(runtime, change).await
}

/// The peer for a client's calls, if that target is allowed; `None`: this host.
async fn reach(
    names: &Names,
    peers: &Peers,
    config: &Config,
    tenant: &str,
    target: &str,
) -> Result<Option<Found>, Status> {
    if target.is_empty() {
        return Ok(None);
    }
    let target = &*targets::canonical(target)?;
    if targets::is_own(peers.listen(), target) {
        return Ok(None);
    }
    targets::allow(config, target)?;
    if peers.are_impossible() {
        let text = format!(
            "this daemon has no key, so it can't reach peer {target:?}: give both daemons the same key (--psk-file), or --unauthenticated-loopback"
        );
        return Err(Status::new(Code::FAILED_PRECONDITION, text));
    }
    names.find(tenant, target).await
}
