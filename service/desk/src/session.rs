//! A policy at work with one configuration: what a runtime of the daemon does for one attachment, without the calls.
//!
//! After a fault the instance is replaced, as the daemon does after a pause; what the policy keeps through host functions
//! stays, as it does there.

use std::time::Duration;

use tollgate_policy_host::{
    Capabilities, Instance, JudgeError, LogLine, Policy, Rate, Setup, SharedState, StateLimits,
    TenantLimits, Verdict,
};
use tollgate_shm_abi::status::Code;

use crate::DeskError;
use crate::asked::{Asked, Entry, Message};
use crate::cases::{Grant, Setting};

/// A policy, its configuration, grants and state, and an instance while there is one.
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

/// What became of one judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The policy wasn't asked.
    Unasked,
    /// It let the call pass.
    Allow,
    /// It ended the call.
    Deny {
        /// With this status.
        code: Code,
        /// And this text.
        message: String,
    },
    /// It let the call pass, and did something to it.
    Change(Box<Change>),
    /// It failed, or its changes couldn't be made.
    Fault(String),
}

/// A call that a policy has done something to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The message and the metadata, changed or not.
    pub message: Message,
    /// How long the call waits.
    pub delay_us: u32,
    /// Its priority, if that was set.
    pub priority: Option<u8>,
    /// Its route, if one was chosen.
    pub route: Option<String>,
}

/// A judgement with what it cost and left behind.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) seen: Seen,
    pub(crate) fuel: u64,
    pub(crate) log: Vec<LogLine>,
}

impl<'a> Session<'a> {
    /// Sets the policy up, so that what is wrong with configuration or grants is found before the first case.
    pub(crate) fn new(
        policy: &'a Policy,
        setting: &'a Setting,
        rate: Rate,
    ) -> Result<Session<'a>, DeskError> {
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
    pub(crate) fn instance(&mut self) -> Result<&mut Instance, DeskError> {
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
        instance.set_time_ms(self.now_ms);
        Ok(instance)
    }

    /// Fuel for one call.
    pub(crate) fn fuel_per_call(&self) -> u64 {
        self.limits.fuel_per_call
    }

    /// Asks the policy about a message.
    pub(crate) fn judge(
        &mut self,
        asked: &Asked,
        entry: &Entry,
        message: &Message,
    ) -> Result<Judged, DeskError> {
        if self.fresh {
            self.instance = None;
        }
        let instance = self.instance()?;
        let max = entry.view_max(message);
        let verdict = instance.judge(asked.hook, entry.method, max, |view| {
            asked.project(entry, message, view)
        });
        let (fuel, (log, _dropped)) = (instance.fuel_used(), instance.take_log());
        let seen = match verdict {
            Ok(Verdict::Allow) => Seen::Allow,
            Ok(Verdict::Deny { code, message }) => Seen::Deny {
                code: Code(code),
                message,
            },
            Ok(Verdict::Effects(effects)) => match asked.change(entry, message, &effects) {
                Ok(message) => Seen::Change(Box::new(Change {
                    message,
                    delay_us: effects.delay_us,
                    priority: effects.priority,
                    route: effects.route,
                })),
                Err(error) => Seen::Fault(format!("its changes can't be made: {error}")),
            },
            Err(JudgeError::View(reason)) => Seen::Fault(format!("it can't be asked: {reason}")),
            Err(JudgeError::Fault(fault)) => Seen::Fault(fault.to_string()),
            Err(JudgeError::Misuse(misuse)) => return Err(DeskError::internal(misuse)),
        };
        if matches!(seen, Seen::Fault(_)) {
            self.instance = None;
        }
        Ok(Judged { seen, fuel, log })
    }
}

/// What the policy may do; without a list, all that its manifest asks for.
fn granted(grant: &Grant, policy: &Policy) -> Result<Capabilities, DeskError> {
    let Some(names) = &grant.capabilities else {
        return Ok(Capabilities::ALWAYS | policy.manifest().capabilities());
    };
    let mut granted = Capabilities::ALWAYS;
    for name in names {
        let one = name.parse::<Capabilities>();
        granted = granted
            | one.map_err(|e| DeskError::Cases {
                reason: format!("grant.capabilities: {e}"),
            })?;
    }
    Ok(granted)
}
