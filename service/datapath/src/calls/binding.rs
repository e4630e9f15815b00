//! Sessions of applications are opened, bound to services, and ended.

use std::sync::Arc;

use tollgate_engine::{Encoding, MethodChains, Route, RouteTarget, SessionId, Status};
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_shm_abi::status::Code;

use crate::binds::{BindAs, BindOutcome, BindReply, Bound, ServiceSchema};
use crate::calls::services::Refusal;
use crate::command::Event;
use crate::limits::{MAX_METHODS_PER_SESSION, MAX_METHODS_PER_TENANT};
use crate::ports::{Service, SessionPort, Who};
use crate::runtime::Runtime;
use tollgate_policy_chain::plan::{MethodSteps, Scope};
use tollgate_policy_chain::policies::Policies;

/// Opens, binds and ends sessions.
impl Runtime {
    pub(crate) fn open_session(
        &mut self,
        mut end: DaemonEnd,
        who: Who,
    ) -> Result<SessionId, Status> {
        let full = || {
            Status::new(
                Code::RESOURCE_EXHAUSTED,
                "the daemon's table of sessions is full",
            )
        };
        let session = self.sessions.next_id().ok_or_else(full)?;
        if let Err(error) = self.wakes.watch_session(session, &mut end.doorbell) {
            let text = format!("the daemon can't watch another doorbell: {error}");
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let flow = self.scheduler.of(&who.tenant);
        self.sessions
            .insert(Box::new(SessionPort::new(session, who, flow, end)));
        self.engine.session_opened(session);
        Ok(session)
    }

    /// Frees everything that a session held. Its calls end; calls that it served end with
    /// UNAVAILABLE.
    pub(crate) fn close_session(&mut self, session: SessionId) {
        let Some(mut port) = self.sessions.remove(session) else {
            return;
        };
        for held in std::mem::take(&mut port.held) {
            self.drop_held(session, held);
        }
        for handle in 0..port.handles.len() as u32 {
            if let Some(route) = self.engine.route_mut(session, handle) {
                let chains = std::mem::take(&mut route.chains);
                self.policies.drop_chains(chains);
            }
        }
        self.engine.session_closed(session);
        self.bindings.drop_of(session);
        drop(port);
        self.act();
    }

    /// Ends a session that broke the rules.
    pub(crate) fn expel(&mut self, session: SessionId, reason: &str) {
        self.close_session(session);
        let runtime = self.options.index;
        self.control.tell(Event::SessionEnded {
            runtime,
            session,
            reason: reason.to_owned(),
        });
    }

    pub(crate) fn bind(
        &mut self,
        session: SessionId,
        schema: Arc<ServiceSchema>,
        bind: BindAs,
        chains: Vec<MethodSteps>,
        reply: BindReply,
    ) {
        let Some(port) = self.sessions.get(session) else {
            let _ = reply.send(Err(Status::new(Code::UNAVAILABLE, "the session has ended")));
            return;
        };
        if port.handles.len() + schema.methods.len() > MAX_METHODS_PER_SESSION {
            let text = format!(
                "the application has bound {} methods and wants {} more, the limit is {MAX_METHODS_PER_SESSION}",
                port.handles.len(),
                schema.methods.len()
            );
            let _ = reply.send(Err(Status::new(Code::RESOURCE_EXHAUSTED, text)));
            return;
        }
        let tenant = Arc::clone(&port.who.tenant);
        let of_tenant = self.sessions.methods_of(&tenant);
        if of_tenant + schema.methods.len() > MAX_METHODS_PER_TENANT {
            let text = format!(
                "the applications of tenant {tenant} have bound {of_tenant} methods and want {} more, the limit of one tenant is \
                 {MAX_METHODS_PER_TENANT}: sessions that end make room",
                schema.methods.len()
            );
            let _ = reply.send(Err(Status::new(Code::RESOURCE_EXHAUSTED, text)));
            return;
        }
        if let Err(refusal) = self.policies.check_order(chains.iter(), &[]) {
            let _ = reply.send(Err(Status::new(Code::INTERNAL, refusal.to_string())));
            return;
        }
        match bind {
            BindAs::Server => {
                let bound = self.bind_server(session, &tenant, schema, chains);
                let _ = reply.send(bound.map(BindOutcome::Bound));
            }
            BindAs::Across { service, matches } => {
                let bound = self.bind_across(session, &tenant, schema, chains, service, &matches);
                let _ = reply.send(bound.map(BindOutcome::Bound));
            }
            BindAs::Client { peer: None } => {
                let bound = self.bind_local(session, &tenant, schema, chains);
                let _ = reply.send(bound);
            }
            BindAs::Client { peer: Some(peer) } => {
                self.bind_remote(session, tenant, schema, chains, peer, reply)
            }
        }
    }

    /// Adds method handles to a session: the engine's routes and the port's programs stay parallel.
    pub(crate) fn add_handles(
        &mut self,
        session: SessionId,
        schema: &Arc<ServiceSchema>,
        calls: bool,
        routes: Vec<Route>,
    ) -> Result<u32, Status> {
        let gone = || Status::new(Code::UNAVAILABLE, "the session has ended");
        let port = self.sessions.get_mut(session).ok_or_else(gone)?;
        let first = self.engine.add_routes(session, routes).ok_or_else(gone)?;
        port.add_handles(schema, calls);
        Ok(first)
    }

    fn bind_local(
        &mut self,
        session: SessionId,
        tenant: &Arc<str>,
        schema: Arc<ServiceSchema>,
        chains: Vec<MethodSteps>,
    ) -> Result<BindOutcome, Status> {
        let service = match self
            .services
            .find(tenant, &schema.name, &schema.hash, &self.engine)
        {
            Ok(service) => service,
            Err(Refusal::Absent(status)) => return Err(status),
            Err(Refusal::Differs(service)) => {
                let served = Arc::clone(self.services.schema(service));
                return Ok(BindOutcome::Differs { service, served });
            }
        };
        let routes = client_routes(&mut self.policies, tenant, chains, |method| {
            RouteTarget::Local {
                service,
                method,
                encoding: Encoding::Native,
            }
        })?;
        let first_handle = self.add_handles(session, &schema, true, routes)?;
        Ok(BindOutcome::Bound(Bound {
            first_handle,
            service: None,
            refused: Vec::new(),
        }))
    }

    fn bind_server(
        &mut self,
        session: SessionId,
        tenant: &Arc<str>,
        schema: Arc<ServiceSchema>,
        chains: Vec<MethodSteps>,
    ) -> Result<Bound, Status> {
        let service = Service {
            tenant: Arc::clone(tenant),
            schema: Arc::clone(&schema),
        };
        let service = self.services.add_within_limit(service, &mut self.engine)?;
        let change = chains
            .into_iter()
            .zip(0u16..)
            .map(|(steps, method)| (Scope::Server { service, method }, steps));
        let change = tollgate_policy_chain::plan::PolicyChange {
            chains: change.collect(),
            ..Default::default()
        };
        let applied = self
            .policies
            .apply(change, &mut self.engine, |_| Arc::clone(tenant));
        self.pass_on_events();
        applied.map_err(|refusal| Status::new(Code::RESOURCE_EXHAUSTED, refusal.to_string()))?;
        let not_callable = Status::new(
            Code::UNIMPLEMENTED,
            "the application serves this method and hasn't bound it to call it",
        );
        let route = || Route {
            target: RouteTarget::Broken(not_callable.clone()),
            chains: MethodChains::default(),
        };
        let routes = schema.methods.iter().map(|_| route()).collect();
        let first_handle = self.add_handles(session, &schema, false, routes)?;
        Ok(Bound {
            first_handle,
            service: Some(service),
            refused: Vec::new(),
        })
    }
}

/// The routes of a client's methods, made by `target`.
///
/// # Errors
/// There is no room for their chains.
pub(crate) fn client_routes(
    policies: &mut Policies,
    tenant: &Arc<str>,
    chains: Vec<MethodSteps>,
    target: impl Fn(u16) -> RouteTarget,
) -> Result<Vec<Route>, Status> {
    let chains = policies.make_chains(tenant, chains)?;
    let with_index = chains.into_iter().zip(0u16..);
    let route = |(chains, k)| Route {
        target: target(k),
        chains,
    };
    Ok(with_index.map(route).collect())
}

/// The status for calls that are impossible because two schemas differ.
pub(crate) fn schema_differs(ours: &ServiceSchema, who: &str, reason: &str) -> Status {
    let text = format!(
        "the schema of {} differs between the calling application and {who}: {reason}",
        ours.name
    );
    Status::new(Code::FAILED_PRECONDITION, text)
}

/// The status for a method that the server's schema lacks: gRPC's status for an unknown method.
pub(crate) fn lacks_method(ours: &ServiceSchema, who: &str, reason: &str) -> Status {
    let text = format!("{who} serves another version of {}: {reason}", ours.name);
    Status::new(Code::UNIMPLEMENTED, text)
}
