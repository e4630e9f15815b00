//! Checks of a tenant's policies against its ceiling.

use std::collections::BTreeSet;

use tollgate_control::{Ceiling, Owner, StoreError, at_ceiling};
use tollgate_engine::Status;
use tollgate_policy_host::{Capabilities, Policy};
use tollgate_shm_abi::status::Code;

use crate::control::refusals::store_failed;
use crate::control::state::Control;

impl Control {
    /// The ceiling of an owner; the provider has none.
    pub(in crate::control) fn ceiling_of(&self, owner: &Owner) -> Result<Option<Ceiling>, Status> {
        let ceiling = owner
            .tenant()
            .map(|tenant| self.changes.store().ceiling(tenant));
        ceiling
            .transpose()
            .map_err(|error: StoreError| store_failed(&error))
    }

    /// Seconds of compilation per hour that an owner may use; the provider's have no limit.
    pub(in crate::control) fn compile_s_per_hour(
        &self,
        owner: &Owner,
    ) -> Result<Option<u32>, Status> {
        let ceiling = self.ceiling_of(owner)?;
        Ok(ceiling.map(|ceiling| ceiling.compile_s_per_hour))
    }
}

/// Refuses a module whose kind is above its owner's ceiling.
pub(in crate::control) fn check_language(
    tenant: &str,
    ceiling: &Ceiling,
    policy: &Policy,
    name: &str,
) -> Result<(), Status> {
    let compat = policy.manifest().compat();
    let language = compat.map_or("tollgate", |compat| compat.abi().name());
    match &ceiling.languages {
        Some(allowed) if !allowed.contains(language) => {
            let has = format!("policy {name} is a module for {language}");
            Err(denied(tenant, has, "languages", allowed))
        }
        _ => Ok(()),
    }
}

/// Refuses a version whose capabilities are above its owner's ceiling.
pub(in crate::control) fn check_capabilities(
    tenant: &str,
    ceiling: &Ceiling,
    policy: &Policy,
    name: &str,
) -> Result<(), Status> {
    let Some(allowed) = &ceiling.capabilities else {
        return Ok(());
    };
    match above(policy, allowed).first() {
        Some(capability) => {
            let has = format!("policy {name} needs the capability {capability}");
            Err(denied(tenant, has, "capabilities", allowed))
        }
        None => Ok(()),
    }
}

fn denied(tenant: &str, has: String, key: &str, allowed: &BTreeSet<String>) -> Status {
    let text = at_ceiling(tenant, has, key, text_of(allowed));
    Status::new(Code::PERMISSION_DENIED, text)
}

/// A set as a value.
fn text_of(names: &BTreeSet<String>) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.iter().cloned().collect::<Vec<_>>().join(","),
    }
}

/// The capabilities that a policy uses and that aren't in this set.
pub(in crate::control) fn above(policy: &Policy, allowed: &BTreeSet<String>) -> Vec<&'static str> {
    let used = policy.manifest().capabilities();
    let used = used.without(Capabilities::ALWAYS).names();
    used.filter(|name| !allowed.contains(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_set_has_a_name() {
        assert_eq!(text_of(&BTreeSet::new()), "none");
        let two = BTreeSet::from(["state".to_owned(), "clock".to_owned()]);
        assert_eq!(text_of(&two), "clock,state");
    }
}
