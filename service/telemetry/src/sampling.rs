//! Decides which calls are traced: once when they come, and again when they fail.
//!
//! ```text
//!  the caller's own span      sampled        ─▶ traced, as its child
//!                             not sampled    ─▶ not; but if the call fails, by `errors`, as its child
//!  none                       one in so many ─▶ traced, a trace begins
//!                             the others     ─▶ not; but if the call fails, by `errors`, in a trace of its own
//! ```
//!
//! The random number is an argument, and so are a tenant's own settings. Absent on purpose: a rate
//! per second, which would need a clock, and decisions by a message's content.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::w3c::{Context, SpanId, TraceId};

/// The denominator of ratios.
pub const MILLION: u32 = 1_000_000;

/// The sampling of one tenant's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Number of calls without a parent, of a million, that begin a trace.
    pub per_million: u32,
    /// Whether failed calls are always recorded.
    pub errors: bool,
}

/// The sampling of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampler {
    /// Applies to tenants that aren't named below.
    pub default: Sampling,
    /// The settings of individual tenants.
    pub tenants: Arc<BTreeMap<String, Sampling>>,
}

impl Sampler {
    /// The settings of a tenant.
    pub fn of(&self, tenant: &str) -> Sampling {
        self.tenants.get(tenant).copied().unwrap_or(self.default)
    }
}

impl Sampling {
    /// Whether a call with this parent is traced; `chance` is a random number.
    #[inline]
    pub fn is_traced(&self, parent: Option<&Context>, chance: u32) -> bool {
        match parent {
            Some(parent) => parent.sampled,
            None => {
                let part = (u64::from(chance) * u64::from(MILLION)) >> 32;
                part < u64::from(self.per_million)
            }
        }
    }
}

/// The source of ids and random numbers, with a seed that nobody outside knows.
#[derive(Clone, Debug)]
pub struct IdGenerator(fastrand::Rng);

impl IdGenerator {
    /// Different seeds yield different ids.
    pub fn new(seed: u64) -> IdGenerator {
        IdGenerator(fastrand::Rng::with_seed(seed))
    }

    /// Seeds randomly: daemons that start at the same time have different ids.
    pub fn random() -> IdGenerator {
        let seed = getrandom::u64();
        IdGenerator::new(seed.unwrap_or_else(|_| fastrand::u64(..)))
    }

    /// For [`Sampling::is_traced`].
    #[inline]
    pub fn chance(&mut self) -> u32 {
        self.0.u32(..)
    }

    /// A new trace id.
    pub fn trace(&mut self) -> TraceId {
        loop {
            if let Some(trace) = TraceId::new(self.0.u128(..).to_be_bytes()) {
                return trace;
            }
        }
    }

    /// A new span id.
    pub fn span(&mut self) -> SpanId {
        loop {
            if let Some(span) = SpanId::new(self.0.u64(..).to_be_bytes()) {
                return span;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn traced(per_million: u32, calls: u32) -> u32 {
        let sampling = Sampling {
            per_million,
            errors: false,
        };
        let mut rng = IdGenerator::new(1);
        (0..calls)
            .map(|_| u32::from(sampling.is_traced(None, rng.chance())))
            .sum()
    }

    #[test]
    fn one_in_so_many_is_traced() {
        assert_eq!(traced(0, 10_000), 0);
        assert_eq!(traced(MILLION, 10_000), 10_000);
        let found = traced(10_000, 100_000);
        assert!((850..1_150).contains(&found), "{found} of 100,000 at 1 %");
    }

    #[test]
    fn a_parent_decides() {
        let text = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let sampled = Context::parse(text).unwrap();
        let unsampled = Context {
            sampled: false,
            ..sampled
        };
        for per_million in [0, MILLION] {
            let sampling = Sampling {
                per_million,
                errors: true,
            };
            assert!(sampling.is_traced(Some(&sampled), u32::MAX));
            assert!(!sampling.is_traced(Some(&unsampled), 0));
        }
    }

    #[test]
    fn a_tenant_may_have_its_own() {
        let own = Sampling {
            per_million: 7,
            errors: true,
        };
        let tenants = BTreeMap::from([("acme".to_owned(), own)]);
        let sampler = Sampler {
            default: Sampling::default(),
            tenants: Arc::new(tenants),
        };
        assert_eq!(sampler.of("acme"), own);
        assert_eq!(sampler.of("other"), Sampling::default());
    }

    #[test]
    fn ids_differ() {
        let (mut one, mut other) = (IdGenerator::random(), IdGenerator::random());
        assert_ne!(one.trace(), other.trace());
        assert_ne!(one.span(), one.span());
    }
}
