//! Bindings that were refused because a policy doesn't fit their schemas. Their applications got an
//! error; `status` tells the operator.
//!
//! If an attachment doesn't fit the schema of a new application, the attachment stays, and the
//! application's binding is refused: a call that can't be evaluated must not pass. This table
//! records the refused bindings; whether a policy still doesn't fit is checked on request.
//!
//! A tenant has [`MISFITS_PER_TENANT`] places; further ones evict the tenant's own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use tollgate_control::Side;

use crate::control::apps::schemas::BoundSchema;
use crate::limits::{MAX_MISFITS, MISFIT_SHOWN, MISFITS_PER_TENANT};

/// A refused binding.
pub(crate) struct Misfit {
    pub(crate) tenant: String,
    pub(crate) schema: Arc<BoundSchema>,
    pub(crate) side: Side,
    /// The number of tries.
    pub(crate) times: u64,
    last: Instant,
}

/// The newest refused bindings, oldest first.
#[derive(Default)]
pub(crate) struct Misfits(VecDeque<Misfit>);

impl Misfits {
    /// Notes a refused binding.
    pub(crate) fn note(
        &mut self,
        tenant: &str,
        schema: &Arc<BoundSchema>,
        side: Side,
        now: Instant,
    ) {
        let is_it = |known: &Misfit| {
            known.tenant == tenant
                && known.side == side
                && known.schema.layout.hash == schema.layout.hash
        };
        let known = self.0.iter().position(is_it);
        let known = known.and_then(|at| self.0.remove(at));
        let its = |kept: &&Misfit| kept.tenant == tenant;
        if self.0.iter().filter(its).count() >= MISFITS_PER_TENANT {
            let oldest = self.0.iter().position(|kept| kept.tenant == tenant);
            let _makes_room = oldest.and_then(|at| self.0.remove(at));
        } else if self.0.len() >= MAX_MISFITS {
            self.0.pop_front();
        }
        self.0.push_back(Misfit {
            tenant: tenant.to_owned(),
            schema: Arc::clone(schema),
            side,
            times: known.map_or(0, |known| known.times) + 1,
            last: now,
        });
    }

    /// Those with a recent try.
    pub(crate) fn lately(&self, now: Instant) -> impl Iterator<Item = &Misfit> {
        let is_recent = move |misfit: &&Misfit| now < misfit.last + MISFIT_SHOWN;
        self.0.iter().filter(is_recent)
    }

    /// Drops a tenant's entries.
    pub(crate) fn forget(&mut self, tenant: &str) {
        self.0.retain(|misfit| misfit.tenant != tenant);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::control::apps::schemas::{Schemas, SetKey, parse};

    fn schema(field: &str) -> Arc<BoundSchema> {
        let proto = format!(
            r#"syntax = "proto3"; package p; message M {{ string {field} = 1; }} service S {{ rpc Do(M) returns (M); }}"#
        );
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s.proto");
        std::fs::write(&file, proto).unwrap();
        let schema = tollgate_schema::Schema::compile_proto(&[&file], &[directory.path()]).unwrap();
        let set = schema.descriptor_set();
        let layout = parse(set, "p.S").unwrap();
        let mut schemas = Schemas::new(tollgate_jit::on_demand::queue(1).0);
        schemas
            .intern(SetKey::new(set, "p.S"), layout, set, &None)
            .unwrap()
    }

    #[test]
    fn a_binding_is_kept_once_for_an_hour_and_a_tenant_has_a_share() {
        let (mut misfits, start) = (Misfits::default(), Instant::now());
        let schemas: Vec<_> = (0..MISFITS_PER_TENANT + 2)
            .map(|k| schema(&format!("f{k}")))
            .collect();
        misfits.note("zeus", &schemas[0], Side::Server, start);
        for schema in &schemas {
            misfits.note("acme", schema, Side::Server, start);
            misfits.note("acme", schema, Side::Server, start);
        }
        let shown = |misfits: &Misfits, at: Instant| {
            let all = misfits.lately(at);
            all.map(|m| (m.tenant.clone(), m.times)).collect::<Vec<_>>()
        };
        let mut want = vec![("zeus".to_owned(), 1)];
        want.extend(vec![("acme".to_owned(), 2); MISFITS_PER_TENANT]);
        assert_eq!(shown(&misfits, start), want);
        misfits.note(
            "zeus",
            &schemas[0],
            Side::Client,
            start + Duration::from_secs(9),
        );
        let later = start + MISFIT_SHOWN;
        assert_eq!(shown(&misfits, later), [("zeus".to_owned(), 1)]);
        misfits.forget("zeus");
        assert!(shown(&misfits, later).is_empty());
        for tenant in 0..=MAX_MISFITS {
            misfits.note(&tenant.to_string(), &schemas[0], Side::Client, start);
        }
        let kept = shown(&misfits, start);
        assert_eq!((kept.len(), kept[0].0.as_str()), (MAX_MISFITS, "1"));
    }
}
