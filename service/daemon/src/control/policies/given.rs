//! A schema that comes with a policy because no application has bound one yet. The
//! policy is checked against it; then it is dropped.

use std::sync::Arc;

use tollgate_control::ALL;
use tollgate_control::audit::Actor;
use tollgate_engine::Status;
use tollgate_policy_host::Policy;

use crate::control::apps::applications::Applications;
use crate::control::apps::descriptor_sets::check_size;
use crate::control::apps::schemas::{BoundSchema, parse_all};
use crate::control::policies::attachments::check_fields;
use crate::control::refusals::invalid;

/// Every service of the schema; at least one.
pub(crate) struct Given(Vec<Arc<BoundSchema>>);

/// The schema of a request, a descriptor set, if there is one.
pub(crate) async fn given(
    apps: &Applications,
    actor: &Actor,
    set: Option<Vec<u8>>,
) -> Result<Option<Given>, Status> {
    let Some(set) = set else {
        return Ok(None);
    };
    check_size(&set)?;
    let set = Arc::new(set);
    let read = Arc::clone(&set);
    let turn = apps.turn_of(actor).await?;
    let parsed = turn.on_blocking_thread(move || parse_all(&read)).await??;
    if parsed.is_empty() {
        return Err(invalid("the request's schema has no service"));
    }
    let lent = parsed
        .into_iter()
        .map(|(_, resolved)| apps.schemas.lent(resolved, &set));
    Ok(Some(Given(lent.collect())))
}

impl Given {
    /// The service, or all services.
    pub(crate) fn of(&self, service: &str) -> Result<Vec<Arc<BoundSchema>>, Status> {
        let is_it = |schema: &&Arc<BoundSchema>| service == ALL || schema.layout.name == service;
        let found: Vec<_> = self.0.iter().filter(is_it).cloned().collect();
        if found.is_empty() {
            return Err(invalid(format!(
                "the request's schema has no service {service}; it has {}",
                self.names()
            )));
        }
        Ok(found)
    }

    /// Checks that the schema has everything that a policy reads and changes. Returns a warning if
    /// the policy covers no method of it.
    pub(crate) fn check(&self, policy: &Policy, name: &str) -> Result<Option<String>, Status> {
        let mut is_for_any = false;
        for schema in &self.0 {
            for method in &schema.layout.methods {
                is_for_any |= check_fields(policy, name, schema, method)?;
            }
        }
        Ok((!is_for_any).then(|| {
            let names = self.names();
            format!("nothing was checked: policy {name} covers no method of {names}")
        }))
    }

    fn names(&self) -> String {
        let names: Vec<_> = self
            .0
            .iter()
            .map(|schema| schema.layout.name.as_str())
            .collect();
        names.join(", ")
    }
}
