//! Checks of a tenant's policies against its ceiling.

use std::collections::BTreeSet;

use tollgate_admin::proto::PolicyProof;
use tollgate_control::{
    Attachment, Ceiling, Field, FieldPattern, FieldRefusal, Owner, StoreError, at_ceiling,
};
use tollgate_engine::Status;
use tollgate_policy_chain::plan::CpuLimit;
use tollgate_policy_host::compat::Body;
use tollgate_policy_host::{Capabilities, Policy, TenantLimits};
use tollgate_shm_abi::status::Code;

use crate::control::policies::origin;
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;

/// Bytes of patterns that a refusal shows.
const PATTERNS_SHOWN_BYTES: usize = 256;

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

    /// Limits of an instance of an owner's policy, under its stored ceiling.
    pub(in crate::control) fn limits_of(
        &self,
        owner: &Owner,
        cpu_us: Option<u32>,
        policy: &Policy,
    ) -> Result<TenantLimits, Status> {
        let ceiling = self.ceiling_of(owner)?;
        Ok(self.limits_under(ceiling.as_ref(), cpu_us, policy))
    }

    /// Limits of an instance of a policy whose owner has this ceiling. One that begins with more
    /// memory than the ceiling has was attached before the ceiling was lowered: it stays, and can't
    /// grow.
    pub(in crate::control) fn limits_under(
        &self,
        ceiling: Option<&Ceiling>,
        cpu_us: Option<u32>,
        policy: &Policy,
    ) -> TenantLimits {
        let cpu_us = self.cpu_us(ceiling, cpu_us);
        let limits = self.modules.limits_for(&self.config(), cpu_us);
        match ceiling {
            None => limits,
            Some(ceiling) => {
                let most = ceiling.memory_bytes.max(policy.memory_bytes());
                TenantLimits {
                    memory_bytes: limits.memory_bytes.min(most),
                    compat_memory_bytes: limits.compat_memory_bytes.min(most),
                    ..limits
                }
            }
        }
    }

    /// The CPU limit of one call's evaluation, where the owner has this ceiling.
    pub(in crate::control) fn cpu_under(
        &self,
        ceiling: Option<&Ceiling>,
        cpu_us: Option<u32>,
    ) -> CpuLimit {
        let cpu_us = self.cpu_us(ceiling, cpu_us);
        self.modules.cpu_limit(&self.config(), cpu_us)
    }

    /// CPU time per call in microseconds: an attachment's own, or what the settings give all
    /// others, if the ceiling has as much. An own one was checked when it was set.
    fn cpu_us(&self, ceiling: Option<&Ceiling>, own: Option<u32>) -> u32 {
        own.unwrap_or_else(|| {
            let most = ceiling.map_or(u32::MAX, |ceiling| ceiling.cpu_us);
            self.config().policies.cpu_us.min(most)
        })
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

/// Refuses a module that has more bytes than its owner's ceiling allows.
pub(in crate::control) fn check_module(
    tenant: &str,
    ceiling: &Ceiling,
    wasm: &[u8],
    name: &str,
) -> Result<(), Status> {
    let above = ceiling.module_above(tenant, name, wasm.len());
    above.map_or(Ok(()), |text| {
        Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
    })
}

/// Refuses a module whose instances begin with more memory than its owner's ceiling has.
pub(in crate::control) fn check_memory(
    tenant: &str,
    ceiling: &Ceiling,
    policy: &Policy,
    name: &str,
) -> Result<(), Status> {
    let bytes = policy.memory_bytes();
    if bytes <= ceiling.memory_bytes {
        return Ok(());
    }
    let has = format!("an instance of policy {name} begins with {bytes} bytes of memory");
    let text = at_ceiling(tenant, has, "memory_mib", ceiling.memory_bytes >> 20);
    Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
}

/// Refuses a module that none of its owner's signers has signed.
pub(in crate::control) fn check_signers(
    tenant: &str,
    ceiling: &Ceiling,
    (wasm, proof): (&[u8], Option<&PolicyProof>),
    name: &str,
) -> Result<(), Status> {
    let keys = origin::signers(&ceiling.signers);
    // Keys that a later daemon has stored and this one can't read have signed nothing.
    let checked = keys
        .map_err(|error| invalid(error.to_string()))
        .and_then(|keys| origin::check(&keys, wasm, proof));
    checked.map_err(|status| {
        let has = format!(
            "policy {name} lacks a signature that is needed: {}",
            status.message
        );
        let value = match ceiling.signers.len() {
            1 => "1 key".to_owned(),
            many => format!("{many} keys"),
        };
        let text = at_ceiling(tenant, has, "signers", value);
        Status::new(Code::PERMISSION_DENIED, text)
    })
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

/// Refuses a version that reads or changes fields above its owner's ceiling.
pub(in crate::control) fn check_fields(
    tenant: &str,
    ceiling: &Ceiling,
    attachment: &Attachment,
    policy: &Policy,
    name: &str,
) -> Result<(), Status> {
    let Some(above) = field_above(ceiling, attachment, policy) else {
        return Ok(());
    };
    let (key, patterns, why) = match above.refusal {
        FieldRefusal::NotAllowed => {
            let patterns = ceiling.fields_allow.as_deref().unwrap_or_default();
            ("fields_allow", patterns, "no pattern allows".to_owned())
        }
        FieldRefusal::Denied(pattern) => {
            let why = format!("the pattern {pattern} denies");
            ("fields_deny", &*ceiling.fields_deny, why)
        }
    };
    let way_out = match above.is_granted {
        true => " (`--fields` can leave it out)",
        false => "",
    };
    let has = format!("policy {name} {}{way_out}, which {why}", above.what);
    let text = at_ceiling(tenant, has, key, text_of_patterns(patterns));
    Err(Status::new(Code::PERMISSION_DENIED, text))
}

/// Patterns as a value; only their number if they are long.
fn text_of_patterns(patterns: &[FieldPattern]) -> String {
    let texts: Vec<_> = patterns.iter().map(FieldPattern::to_string).collect();
    match texts.join(",") {
        empty if empty.is_empty() => "none".to_owned(),
        short if short.len() <= PATTERNS_SHOWN_BYTES => short,
        _ => format!("{} patterns", patterns.len()),
    }
}

/// A field above a ceiling that a policy reads or changes where it is attached.
pub(in crate::control) struct FieldAbove<'a> {
    /// Such as "reads guest.name of hotel.Reservation/Reserve".
    pub(in crate::control) what: String,
    refusal: FieldRefusal<'a>,
    /// Whether the attachment's list of fields can leave it out.
    is_granted: bool,
}

/// The first such field.
pub(in crate::control) fn field_above<'a>(
    ceiling: &'a Ceiling,
    attachment: &Attachment,
    policy: &Policy,
) -> Option<FieldAbove<'a>> {
    let Attachment {
        target, options, ..
    } = attachment;
    let manifest = policy.manifest();
    let granted = |list: &Option<Vec<String>>, item: &str| {
        let listed = list.as_ref();
        listed.is_none_or(|list| list.iter().any(|granted| granted == item))
    };
    let hooks = manifest.hooks().iter().copied();
    let hooks = hooks.filter(|hook| granted(&options.hooks, &hook.to_string()));
    let hooks: Vec<_> = hooks.collect();
    let refusal = |method: Option<&str>, path: Option<&str>| {
        let service = target.service.as_str();
        ceiling.field_refusal(&Field {
            service,
            method,
            path,
        })
    };
    for (entry, pattern) in manifest.scopes() {
        let (service, method) = match pattern.split_once('/') {
            None => (None, None),
            Some((service, "*")) => (Some(service), None),
            Some((service, method)) => (Some(service), Some(method)),
        };
        let own = Some(target.method.as_str()).filter(|method| !method.is_empty());
        let is_other = service.is_some_and(|service| service != target.service)
            || matches!((method, own), (Some(method), Some(own)) if method != own);
        if is_other {
            continue;
        }
        let method = method.or(own);
        let place = format!("{}/{}", target.service, method.unwrap_or("*"));
        for hook in &hooks {
            let reads = entry.fields(*hook).iter();
            let reads = reads.filter(|path| granted(&options.fields, path));
            for (verb, path) in reads
                .map(|path| ("reads", path))
                .chain(entry.changes(*hook).iter().map(|path| ("changes", path)))
            {
                if let Some(refusal) = refusal(method, Some(path)) {
                    return Some(FieldAbove {
                        what: format!("{verb} {path} of {place}"),
                        refusal,
                        is_granted: verb == "reads",
                    });
                }
            }
            let body = manifest.compat().map_or(Body::None, |its| its.body(*hook));
            let refusal = refusal(method, None).filter(|_| body != Body::None);
            if let Some(refusal) = refusal {
                return Some(FieldAbove {
                    what: format!("reads whole messages of {place}"),
                    refusal,
                    is_granted: false,
                });
            }
        }
    }
    None
}

/// The capabilities that a policy uses and that aren't in this set.
pub(in crate::control) fn above(policy: &Policy, allowed: &BTreeSet<String>) -> Vec<&'static str> {
    let used = policy.manifest().capabilities();
    let used = used.without(Capabilities::ALWAYS).names();
    used.filter(|name| !allowed.contains(*name)).collect()
}

#[cfg(test)]
mod tests {
    use tollgate_control::CeilingValues;

    use super::*;
    use crate::control::tests::control;

    #[test]
    fn an_attachment_without_cpu_time_of_its_own_has_no_more_than_the_ceiling() {
        let (control, _runtime) = control();
        let least = CeilingValues::from([("cpu_us".to_owned(), "5".to_owned())]);
        let ceiling = Ceiling::of(&least, &CeilingValues::new());
        let fuel = |ceiling, own| control.cpu_under(ceiling, own).fuel_per_call;
        assert_eq!(fuel(Some(&ceiling), None), fuel(None, Some(5)));
        assert!(fuel(Some(&ceiling), None) < fuel(None, None));
        // It was checked when it was set.
        assert_eq!(fuel(Some(&ceiling), Some(50)), fuel(None, Some(50)));
    }

    #[test]
    fn an_empty_set_has_a_name() {
        assert_eq!(text_of(&BTreeSet::new()), "none");
        let two = BTreeSet::from(["state".to_owned(), "clock".to_owned()]);
        assert_eq!(text_of(&two), "clock,state");
    }
}
