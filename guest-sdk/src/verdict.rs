//! A policy's answer.

use std::borrow::Cow;
use std::time::Duration;

use crate::{Effects, Route};

/// A gRPC status code that is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// The request is invalid.
    pub const INVALID_ARGUMENT: Status = Status(3);
    /// The requested object doesn't exist.
    pub const NOT_FOUND: Status = Status(5);
    /// The caller may not do this.
    pub const PERMISSION_DENIED: Status = Status(7);
    /// A quota is used up.
    pub const RESOURCE_EXHAUSTED: Status = Status(8);
    /// The system's state doesn't allow the call.
    pub const FAILED_PRECONDITION: Status = Status(9);
    /// The policy itself is broken.
    pub const INTERNAL: Status = Status(13);
    /// Try again later.
    pub const UNAVAILABLE: Status = Status(14);
    /// The caller isn't known.
    pub const UNAUTHENTICATED: Status = Status(16);

    /// Any code from 1 to 16.
    pub const fn new(code: u32) -> Option<Status> {
        match code {
            1..=16 => Some(Status(code)),
            _ => None,
        }
    }

    /// The number.
    pub const fn code(self) -> u32 {
        self.0
    }
}

/// A policy's decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It passes.
    Allow,
    /// It passes with effects. Each effect needs its capability: `change`, `delay`, `priority` or
    /// `route`.
    Effects(Effects),
    /// It ends with an error. The caller sees at most 1,024 bytes of the message.
    Deny(Status, Cow<'a, str>),
}

impl<'a> Verdict<'a> {
    /// A denial, with a borrowed or an owned message.
    pub fn deny(status: Status, message: impl Into<Cow<'a, str>>) -> Verdict<'a> {
        Verdict::Deny(status, message.into())
    }

    /// The same verdict with these effects, if it allows the call.
    #[must_use]
    pub fn with_effects(self, more: Effects) -> Verdict<'a> {
        if more.is_empty() {
            return self;
        }
        match self {
            Verdict::Allow => Verdict::Effects(more),
            Verdict::Effects(mut effects) => {
                effects.extend(more);
                Verdict::Effects(effects)
            }
            denial @ Verdict::Deny(..) => denial,
        }
    }

    /// The call passes after a delay of at most 1 s. A denial stays a denial. Needs the capability
    /// `delay`.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Verdict<'a> {
        let mut effects = Effects::new();
        effects.delay(delay);
        self.with_effects(effects)
    }

    /// The call passes with this priority, 0 to 7: 0 is the default, higher priorities go first. A
    /// denial stays a denial. Needs the capability `priority`.
    #[must_use]
    pub fn with_priority(self, priority: u8) -> Verdict<'a> {
        let mut effects = Effects::new();
        effects.priority(priority);
        self.with_effects(effects)
    }

    /// The request passes along this route. A denial stays a denial. For requests only. Needs the
    /// capability `route`.
    #[must_use]
    pub fn with_route(self, route: &Route) -> Verdict<'a> {
        let mut effects = Effects::new();
        effects.route(route);
        self.with_effects(effects)
    }
}
