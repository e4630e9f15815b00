//! The services of this host that a runtime serves.
//!
//! Invariants: parallel to the engine's services, so both are added here together. A service stays
//! for as long as the runtime, also without servers, and so does its id. One tenant's service with
//! one name and one schema has one id.

use std::sync::Arc;

use tollgate_engine::{Engine, ServiceId, Status};
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;
use tollgate_shm_abi::status::Code;

use crate::binds::ServiceSchema;
use crate::limits::MAX_SERVICES_PER_TENANT;
use crate::ports::Service;
use crate::report::ServiceReport;

/// The services, by id.
#[derive(Default)]
pub(crate) struct Services {
    services: Vec<Service>,
}

/// Why a BIND finds no service.
pub(crate) enum Refusal {
    /// It is served with another schema.
    Differs(ServiceId),
    /// No application serves it.
    Absent(Status),
}

impl Services {
    #[inline]
    pub(crate) fn get(&self, service: ServiceId) -> Option<&Service> {
        self.services.get(service.0 as usize)
    }

    /// A method of a service.
    #[inline]
    pub(crate) fn method(&self, service: ServiceId, method: u16) -> Option<&Arc<Method>> {
        self.get(service)?.schema.methods.get(usize::from(method))
    }

    /// As [`method`](Self::method), for a method that an engine has named. Services stay, so it
    /// exists.
    #[inline]
    pub(crate) fn served(&self, service: ServiceId, method: u16) -> Result<&Arc<Method>, Status> {
        let text = "the daemon lost a method that it serves";
        let lost = || Status::new(Code::INTERNAL, text);
        self.method(service, method).ok_or_else(lost)
    }

    /// The schema of a service that [`find`](Self::find) has named.
    pub(crate) fn schema(&self, service: ServiceId) -> &Arc<ServiceSchema> {
        &self.services[service.0 as usize].schema
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ServiceId, &Service)> {
        let ids = (0u32..).map(ServiceId);
        ids.zip(&self.services)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.services.len()
    }

    /// The services of a tenant.
    pub(crate) fn of(&self, tenant: &str) -> impl Iterator<Item = (ServiceId, &Service)> {
        self.iter()
            .filter(move |(_, service)| *service.tenant == *tenant)
    }

    /// The id of a service; it is added if it is new.
    pub(crate) fn add(&mut self, service: Service, engine: &mut Engine<Box<Message>>) -> ServiceId {
        if let Some(id) = self.known(&service) {
            return id;
        }
        let schema = &service.schema;
        let id = engine.add_service(&schema.name, schema.methods.len());
        self.services.push(service);
        id
    }

    /// As [`add`](Self::add), unless the tenant has as many services as it may.
    pub(crate) fn add_within_limit(
        &mut self,
        service: Service,
        engine: &mut Engine<Box<Message>>,
    ) -> Result<ServiceId, Status> {
        let tenant = &service.tenant;
        let is_full = || self.of(tenant).count() >= MAX_SERVICES_PER_TENANT;
        if self.known(&service).is_none() && is_full() {
            let text = format!(
                "tenant {tenant} has served {MAX_SERVICES_PER_TENANT} services and schemas, which is the limit"
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        Ok(self.add(service, engine))
    }

    /// Adds a service that the engine of another process had.
    pub(crate) fn resume(&mut self, service: Service) {
        self.services.push(service);
    }

    fn known(&self, service: &Service) -> Option<ServiceId> {
        let is_same = |known: &Service| {
            known.tenant == service.tenant
                && known.schema.name == service.schema.name
                && known.schema.hash == service.schema.hash
        };
        let mut services = self.iter();
        let known = services.find(|(_, known)| is_same(known));
        known.map(|(id, _)| id)
    }

    /// The service that a client of `tenant` with this schema reaches on this host, or the reason
    /// why there is none.
    pub(crate) fn find(
        &self,
        tenant: &str,
        name: &str,
        hash: &[u8; 32],
        engine: &Engine<Box<Message>>,
    ) -> Result<ServiceId, Refusal> {
        let mut known = None;
        let named = self
            .of(tenant)
            .filter(|(_, service)| service.schema.name == name);
        for (id, service) in named {
            let served = engine.servers_of(id) > 0;
            match (served, service.schema.hash == *hash) {
                (true, true) => return Ok(id),
                // Of several services, the one that was served last.
                (true, false) => known = Some(Some(id)),
                (false, _) => known = known.or(Some(None)),
            }
        }
        Err(match known {
            Some(Some(id)) => Refusal::Differs(id),
            Some(None) => Refusal::Absent(Status::new(
                Code::UNAVAILABLE,
                format!("no application of tenant {tenant} serves {name} at the moment"),
            )),
            None => Refusal::Absent(Status::new(
                Code::UNIMPLEMENTED,
                format!("no application of tenant {tenant} serves {name} on this host"),
            )),
        })
    }

    /// The services that are served at the moment.
    pub(crate) fn report(&self, engine: &Engine<Box<Message>>) -> Vec<ServiceReport> {
        let with_servers = self
            .iter()
            .map(|(id, service)| (engine.servers_of(id), service));
        let served = with_servers.filter(|(servers, _)| *servers > 0);
        served
            .map(|(servers, service)| service.report(servers))
            .collect()
    }
}

impl Service {
    pub(crate) fn report(&self, servers: usize) -> ServiceReport {
        let methods = &self.schema.methods;
        let count = |is: fn(&Method) -> bool| methods.iter().filter(|method| is(method)).count();
        ServiceReport {
            tenant: self.tenant.to_string(),
            service: self.schema.name.clone(),
            servers,
            schema: self
                .schema
                .hash
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            methods: methods.len(),
            compiled: count(Method::is_compiled),
            compiled_wire: count(Method::is_wire_compiled),
        }
    }
}
