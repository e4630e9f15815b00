//! Between the engine and the chains: calls to be evaluated, calls that are parked, and calls that
//! continue.
//!
//! Invariant: each message that the engine hands over for evaluation returns to it exactly once,
//! with a verdict: at once, in a later turn, or when its call has ended (the engine recalls it
//! then).

use tollgate_engine::{CallKey, ChainId, Stage, Verdict};
use tollgate_shm_abi::wait::now_ns;

use crate::calls::steering::steer;
use crate::links::wire::credit_bytes;
use crate::runtime::Runtime;
use tollgate_policy_chain::evaluation::Evaluation;
use tollgate_policy_chain::ids::Why;
use tollgate_policy_chain::limits::EVALUATING_SLICE;
use tollgate_policy_chain::message::Message;
use tollgate_policy_chain::parked::Position;

impl Runtime {
    /// A message that the engine hands over for evaluation.
    #[inline]
    pub(crate) fn evaluation(
        &self,
        call: CallKey,
        evaluated_in: u32,
        message: Box<Message>,
    ) -> Evaluation {
        let mut evaluation = Evaluation::new(call, message);
        evaluation.evaluated_in = evaluated_in;
        evaluation.notes = self.observer.notes_of(&self.engine, call);
        evaluation
    }

    /// Evaluates a call in a chain, together with the calls behind it that are for the same chain.
    pub(crate) fn evaluate(&mut self, evaluation: Evaluation, stage: Stage, chain: ChainId) {
        let position = Position {
            stage,
            chain: Some(chain),
            step: 0,
        };
        if self.policies.must_wait(chain) {
            return self.park(position, evaluation);
        }
        let most = self.policies.at_once(chain);
        let mut evaluations = std::mem::take(&mut self.evaluations);
        evaluations.push(evaluation);
        while evaluations.len() < most
            && let Some((call, evaluated_in, message)) =
                self.engine.poll_same_evaluate(stage, chain)
        {
            let evaluation = self.evaluation(call, evaluated_in, message);
            evaluations.push(evaluation);
        }
        self.policies
            .evaluate(position, false, &mut evaluations, &mut self.pool);
        self.pass_on_events();
        self.settle_all(position, &mut evaluations);
        self.evaluations = evaluations;
    }

    /// Continues parked calls that are due, for one time slice. Whether there were any.
    pub(crate) fn turn_parked(&mut self) -> bool {
        if self.policies.parked() == 0 {
            return false;
        }
        let began_ns = now_ns();
        let mut evaluations = std::mem::take(&mut self.evaluations);
        self.policies.wake(began_ns, &mut evaluations);
        let mut worked = !evaluations.is_empty();
        for evaluation in evaluations.drain(..) {
            self.give_verdict(evaluation);
        }
        let slice_ns = EVALUATING_SLICE.as_nanos() as u64;
        while let Some(position) = self.policies.next_parked(&mut evaluations) {
            worked = true;
            self.policies
                .evaluate(position, true, &mut evaluations, &mut self.pool);
            self.pass_on_events();
            self.settle_all(position, &mut evaluations);
            if now_ns() - began_ns > slice_ns {
                break;
            }
        }
        self.evaluations = evaluations;
        self.act();
        worked
    }

    /// Continues calls that processes have answered. Whether there were any, or a process has gone.
    pub(crate) fn turn_processes(&mut self) -> bool {
        let mut evaluations = std::mem::take(&mut self.evaluations);
        let mut worked = self.policies.processes().expire(self.now_ns);
        while let Some(position) = self
            .policies
            .next_answered(&mut evaluations, &mut self.pool)
        {
            worked = true;
            // The calls behind have stopped again, at the same step.
            let open = evaluations.partition_point(|evaluation| evaluation.stop.is_none());
            self.policies
                .evaluate(position, true, &mut evaluations[..open], &mut self.pool);
            self.pass_on_events();
            self.settle_all(position, &mut evaluations);
        }
        self.evaluations = evaluations;
        if worked {
            self.act();
        }
        worked
    }

    /// A call has ended during its evaluation.
    pub(crate) fn recall(&mut self, call: CallKey) {
        if let Some(evaluation) = self.policies.recall(call) {
            self.give_verdict(evaluation);
        }
    }

    /// Parks the stopped calls, and gives the others' verdicts to the engine.
    pub(crate) fn settle_all(&mut self, position: Position, evaluations: &mut Vec<Evaluation>) {
        self.bytes.send_heap_to_private += std::mem::take(&mut self.pool.copied);
        for evaluation in evaluations.iter_mut() {
            self.clear_up(evaluation);
            if let Some(notes) = &mut evaluation.notes {
                self.observer
                    .verdicts(&self.engine, evaluation.call, position.stage, notes);
            }
        }
        // Stopped calls are at the end. The first of them is put to the front of its queue last.
        let going_on = evaluations.partition_point(|evaluation| evaluation.stop.is_none());
        for evaluation in evaluations.drain(going_on..).rev() {
            self.park(position, evaluation);
        }
        for evaluation in evaluations.drain(..) {
            self.give_verdict(evaluation);
        }
    }

    /// Frees the memory that evaluation has released, and updates the message's size.
    #[inline]
    fn clear_up(&mut self, evaluation: &mut Evaluation) {
        if let Some(source) = evaluation.freed.take() {
            self.sessions.reclaim(source);
        }
        if std::mem::take(&mut evaluation.changed) {
            let bytes = credit_bytes(&evaluation.message);
            self.engine.resized(evaluation.call, bytes);
        }
    }

    fn park(&mut self, position: Position, mut evaluation: Evaluation) {
        let stop = evaluation.stop.take();
        if evaluation.notes.is_some() {
            let why = stop.map_or(Why::Turn, |stop| stop.why);
            self.observer
                .queued(&self.engine, evaluation.call, why.name());
        }
        let parked = self.policies.park(position, stop, evaluation, self.now_ns);
        if let Err((mut evaluation, full)) = parked {
            evaluation.deny(full);
            self.give_verdict(evaluation);
        }
    }

    fn give_verdict(&mut self, evaluation: Evaluation) {
        let Evaluation {
            call,
            mut message,
            denied,
            denied_by,
            steered,
            is_split,
            ..
        } = evaluation;
        let mut denied = denied.map(|status| *status);
        if let (Some(steered), None) = (steered, &denied) {
            let (engine, pool) = (&mut self.engine, &mut self.pool);
            let steered = steer(engine, &self.links, pool, call, *steered, &mut message);
            denied = steered.err();
        }
        if let Some(by) = denied_by.filter(|_| denied.is_some()) {
            let watch = &self.options.tuning.telemetry;
            self.observer.denied(&self.engine, call, *by, watch);
        }
        let verdict = denied.map_or(Verdict::Allow, Verdict::Deny);
        self.engine.verdict(call, verdict, message);
        if is_split {
            self.engine.forget_policy_epoch(call);
        }
    }
}
