//! Policies in processes of their tenants: rehearsals, and the processes' answers.

use tollgate_engine::Stage;
use tollgate_policy_host::isolated::Outcome;
use tollgate_shm_abi::wait::now_ns;

use super::{Policies, hook_of, set_aside};
use crate::context::EvaluationContext;
use crate::evaluation::{Decision, Evaluation};
use crate::events::PolicyEvent;
use crate::ids::AttachmentId;
use crate::isolated::{
    Answered, Evaluator, InstanceAt, InstanceReport, Processes, Purpose, Rehearsed, Successor,
};
use crate::message::Pool;
use crate::parked::{LaneId, Position};

impl Policies {
    /// The tenants' processes.
    pub fn processes(&mut self) -> &mut Processes {
        &mut self.processes
    }

    /// Asks the version in force whether it could hand its state over to `successor`.
    pub fn rehearse(&mut self, id: AttachmentId, successor: Successor, done: Rehearsed) {
        let mut meter = self.metering.meter();
        match self.installed.get_mut(id.0) {
            Some(slot) => slot.rehearse(successor, done, &mut meter, &mut self.processes),
            None => {
                done(Ok(()));
            }
        }
    }

    /// Handles answers of processes until calls can continue. Returns these in `evaluations`, to be
    /// continued from the returned position; calls that stop again are the last.
    pub fn next_answered(
        &mut self,
        evaluations: &mut Vec<Evaluation>,
        pool: &mut Pool,
    ) -> Option<Position> {
        while let Some(answered) = self.processes.next(now_ns()) {
            if let Some(position) = self.answered(answered, evaluations, pool) {
                return Some(position);
            }
        }
        while let Some((id, reason)) = self.processes.next_ended() {
            let mut meter = self.metering.meter();
            for (_, slot) in self.installed.iter_mut() {
                slot.process_ended(id, &reason, &mut meter);
            }
            self.metering
                .events
                .push(PolicyEvent::ProcessEnded { id, reason });
        }
        None
    }

    fn answered(
        &mut self,
        answered: Answered,
        evaluations: &mut Vec<Evaluation>,
        pool: &mut Pool,
    ) -> Option<Position> {
        let Answered {
            ticket,
            from,
            purpose,
            outcome,
            output,
        } = answered;
        let mut meter = self.metering.meter();
        let (id, number) = match &purpose {
            Purpose::Evaluate { slot, version, .. } | Purpose::Tick { slot, version } => {
                (*slot, *version)
            }
            Purpose::HandOver { slot, from, .. } | Purpose::Rehearse { slot, from, .. } => {
                (*slot, *from)
            }
        };
        let cost_ns = output.cost_ns;
        let mut slot = self.installed.get_mut(id.0);
        if let Some(slot) = &mut slot {
            if let Some(account) = slot.account() {
                meter.accounts.charge(account, output.cost_ns);
            }
            slot.note_run(&mut self.ran);
            slot.note_answer(number, output);
        }
        match purpose {
            Purpose::Evaluate {
                which,
                is_shadow,
                time,
                step,
                ..
            } => {
                let mut parked = self.parked.answered(ticket);
                parked.sort_by_key(|(index, ..)| *index);
                let position = parked.first().map(|(_, _, position, _)| *position);
                let each_ns = cost_ns / parked.len().max(1) as u64;
                let fault = tell(&outcome, parked, evaluations);
                for evaluation in evaluations.iter_mut() {
                    evaluation.note_cost(each_ns);
                }
                let mut context = EvaluationContext {
                    hook: hook_of(position.map_or(Stage::ClientRequest, |at| at.stage)),
                    pool,
                    processes: &mut self.processes,
                    has_stopped: false,
                    is_queued: false,
                    asked: Some(time),
                    meter,
                };
                let evaluator = Evaluator {
                    slot: id,
                    which,
                    version: number,
                    is_shadow,
                    step: &step,
                };
                match slot {
                    Some(slot) => {
                        let report = InstanceReport { from, fault };
                        slot.answered(report, evaluator, &mut context, evaluations);
                    }
                    None => pass_by(evaluations),
                }
                let position = position?;
                if context.has_stopped {
                    set_aside(evaluations, position.step.saturating_sub(1), false);
                }
                Some(position)
            }
            Purpose::Tick { .. } => {
                if let (Some(slot), Outcome::Failed(reason)) = (slot, &outcome) {
                    slot.instance_failed(from, reason, &mut meter);
                }
                None
            }
            Purpose::Rehearse { to, done, .. } => {
                let could = match (&slot, &outcome) {
                    (None, _) | (_, Outcome::Done | Outcome::Evaluated(_)) => Ok(()),
                    (Some(slot), Outcome::Failed(why) | Outcome::Lost(why)) => {
                        Err(slot.cannot_save(number, why))
                    }
                    (Some(slot), Outcome::SuccessorFailed(why)) => {
                        Err(slot.cannot_restore(to, number, why))
                    }
                };
                if let (Some(slot), Outcome::Failed(reason)) = (slot, &outcome) {
                    slot.instance_failed(from, reason, &mut meter);
                }
                done(could);
                None
            }
            Purpose::HandOver { to, successor, .. } => {
                let successor = InstanceAt {
                    instance: successor,
                    ..from
                };
                match (slot, &outcome) {
                    (Some(slot), Outcome::Failed(reason)) => {
                        slot.instance_failed(from, reason, &mut meter);
                        let text = format!("version {number} can't save its state: {reason}");
                        slot.instance_failed(successor, &text, &mut meter);
                    }
                    (Some(slot), Outcome::SuccessorFailed(reason)) => {
                        let text = format!(
                            "version {to} can't restore the state of version {number}: {reason}"
                        );
                        slot.instance_failed(successor, &text, &mut meter);
                    }
                    _ => {}
                }
                None
            }
        }
    }
}

/// Records in each evaluation what the process decided. Returns how the policy failed.
fn tell(
    outcome: &Outcome,
    parked: Vec<(u32, LaneId, Position, Evaluation)>,
    evaluations: &mut Vec<Evaluation>,
) -> Option<String> {
    for (index, _, _, mut evaluation) in parked {
        evaluation.decision = match outcome {
            Outcome::Evaluated(verdicts) => match verdicts.get(index as usize) {
                Some(verdict) => Decision::of(verdict.clone()),
                None => Decision::Failed,
            },
            _ => Decision::Failed,
        };
        evaluations.push(evaluation);
    }
    match outcome {
        Outcome::Evaluated(_) | Outcome::Done => None,
        Outcome::Failed(why) | Outcome::SuccessorFailed(why) | Outcome::Lost(why) => {
            Some(why.clone())
        }
    }
}

/// The attachment has been removed: a denial stands, every other call passes.
fn pass_by(evaluations: &mut [Evaluation]) {
    for evaluation in evaluations {
        if let Decision::Deny(status) = std::mem::take(&mut evaluation.decision) {
            evaluation.denied = Some(status);
        }
    }
}
