//! A policy with one configuration: the work of a daemon's runtime for one attachment, without
//! calls.
//!
//! A faulted instance is replaced, as the daemon does after a pause. State that the policy keeps
//! through host functions survives, as in the daemon.

use std::time::Duration;

use tollgate_policy_chain::sample::Sample;
use tollgate_policy_host::{
    Capabilities, EvaluateError, Instance, LogLine, Policy, PolicyTime, Rate, Setup, SharedState,
    StateLimits, TenantLimits, Verdict,
};
use tollgate_shm_abi::status::Code;

use crate::ToolError;
use crate::cases::{Grant, Setting};
use crate::target::{Entry, Target};

/// A policy with its configuration, grants and state, and an instance if there is one.
pub(crate) struct Session<'a> {
    policy: &'a Policy,
    limits: TenantLimits,
    config: &'a [u8],
    granted: Capabilities,
    state: SharedState,
    fresh: bool,
    pub(crate) now_ms: u64,
    instance: Option<Instance>,
}

/// The result of one evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The policy wasn't evaluated.
    Unasked,
    /// The policy let the call pass.
    Allow,
    /// The policy ended the call.
    Deny {
        /// With this status.
        code: Code,
        /// And this text.
        message: String,
    },
    /// The policy let the call pass with changes.
    Change(Box<Change>),
    /// The policy faulted, or its changes couldn't be applied.
    Fault(String),
}

/// A call with a policy's changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The message and the metadata, changed or not.
    pub message: Sample,
    /// The call's delay in microseconds.
    pub delay_us: u32,
    /// Its priority, if the policy set one.
    pub priority: Option<u8>,
    /// Its route, if the policy chose one.
    pub route: Option<String>,
}

/// An evaluation with its cost and its log.
#[derive(Debug)]
pub(crate) struct Evaluated {
    pub(crate) seen: Seen,
    pub(crate) fuel: u64,
    pub(crate) log: Vec<LogLine>,
}

impl<'a> Session<'a> {
    /// Sets the policy up, so that errors of the configuration or the grants are found before the
    /// first case.
    pub(crate) fn new(
        policy: &'a Policy,
        setting: &'a Setting,
        rate: Rate,
    ) -> Result<Session<'a>, ToolError> {
        let limits = match setting.cpu_us {
            Some(us) => TenantLimits::for_cpu(Duration::from_micros(us), rate),
            None => TenantLimits::for_cpu(
                Rate::default().time(TenantLimits::default().fuel_per_call),
                rate,
            ),
        };
        let mut session = Session {
            policy,
            limits,
            config: &setting.config,
            granted: granted(&setting.grant, policy)?,
            state: SharedState::new(&StateLimits::default()),
            fresh: setting.fresh,
            now_ms: setting.time_ms,
            instance: None,
        };
        session.instance()?;
        Ok(session)
    }

    /// The instance; a new one if there is none.
    pub(crate) fn instance(&mut self) -> Result<&mut Instance, ToolError> {
        let instance = match self.instance.take() {
            Some(instance) => instance,
            None => self.policy.instantiate(&Setup {
                limits: &self.limits,
                config: Some(self.config),
                granted: self.granted,
                state: Some(&self.state),
            })?,
        };
        let instance = self.instance.insert(instance);
        instance.set_time(PolicyTime {
            unix_ms: self.now_ms,
            monotonic_us: self.now_ms.saturating_mul(1000),
        });
        Ok(instance)
    }

    /// The limit of fuel per call.
    pub(crate) fn fuel_per_call(&self) -> u64 {
        self.limits.fuel_per_call
    }

    /// Evaluates the policy for a message.
    pub(crate) fn evaluate(
        &mut self,
        target: &Target,
        entry: &Entry,
        message: &Sample,
    ) -> Result<Evaluated, ToolError> {
        if self.fresh {
            self.instance = None;
        }
        let instance = self.instance()?;
        let max = message.view_max(&entry.projector, &entry.shown);
        let verdict = instance.evaluate(target.hook, entry.method, max, |view| {
            target.project(entry, message, view)
        });
        let (fuel, (log, _dropped)) = (instance.fuel_used(), instance.take_log());
        let seen = match verdict {
            Ok(Verdict::Allow) => Seen::Allow,
            Ok(Verdict::Deny { code, message }) => Seen::Deny {
                code: Code(code),
                message,
            },
            Ok(Verdict::Effects(effects)) => match target.change(entry, message, &effects) {
                Ok(message) => Seen::Change(Box::new(Change {
                    message,
                    delay_us: effects.delay_us,
                    priority: effects.priority,
                    route: effects.route,
                })),
                Err(unchanged) => {
                    let reason = unchanged.reason();
                    Seen::Fault(format!("its changes can't be applied: {reason}"))
                }
            },
            Err(EvaluateError::View(reason)) => {
                Seen::Fault(format!("it can't be evaluated: {reason}"))
            }
            Err(EvaluateError::Fault(fault)) => Seen::Fault(fault.to_string()),
            Err(EvaluateError::Misuse(misuse)) => return Err(ToolError::internal(misuse)),
        };
        if matches!(seen, Seen::Fault(_)) {
            self.instance = None;
        }
        Ok(Evaluated { seen, fuel, log })
    }
}

/// The policy's capabilities; without a list, all that its manifest declares.
fn granted(grant: &Grant, policy: &Policy) -> Result<Capabilities, ToolError> {
    let Some(names) = &grant.capabilities else {
        return Ok(Capabilities::ALWAYS | policy.manifest().capabilities());
    };
    let mut granted = Capabilities::ALWAYS;
    for name in names {
        let one = name.parse::<Capabilities>();
        granted = granted
            | one.map_err(|e| ToolError::Cases {
                reason: format!("grant.capabilities: {e}"),
            })?;
    }
    Ok(granted)
}
