//! Between the engine and the chains: calls that are to be judged, those that stop on their way, and those that go on.
//!
//! Invariant: each message that the engine hands over for judging goes back to it exactly once, with a verdict: at once, when its
//! turn has come, or when its call has ended (the engine recalls it then).

use tollgate_engine::{CallKey, ChainId, Stage, Verdict};
use tollgate_shm_abi::wait::now_ns;

use crate::runtime::Runtime;
use crate::wire::credit_bytes;
use tollgate_policy_chain::ids::Why;
use tollgate_policy_chain::limits::JUDGING_SLICE;
use tollgate_policy_chain::parked::Position;
use tollgate_policy_chain::question::Question;

impl Runtime {
    /// Asks a chain about a question, and about those behind it that are for the same chain.
    pub(crate) fn judge(&mut self, question: Question, stage: Stage, chain: ChainId) {
        let position = Position {
            stage,
            chain: Some(chain),
            step: 0,
        };
        if self.policies.must_wait(chain) {
            return self.park(position, question);
        }
        let most = self.policies.at_once(chain);
        let mut questions = std::mem::take(&mut self.questions);
        questions.push(question);
        while questions.len() < most
            && let Some((call, judged_in, message)) = self.engine.poll_same_judge(stage, chain)
        {
            let mut question = Question::new(call, message);
            question.judged_in = judged_in;
            question.notes = self.notes_of(call);
            questions.push(question);
        }
        self.policies
            .judge(position, false, &mut questions, &mut self.pool);
        self.pass_on_events();
        self.settle_all(position, &mut questions);
        self.questions = questions;
    }

    /// Goes on with parked calls that it is time for, for a slice of time. Whether there were any.
    pub(crate) fn turn_parked(&mut self) -> bool {
        if self.policies.parked() == 0 {
            return false;
        }
        let began_ns = now_ns();
        let mut questions = std::mem::take(&mut self.questions);
        self.policies.wake(began_ns, &mut questions);
        let mut worked = !questions.is_empty();
        for question in questions.drain(..) {
            self.give_verdict(question);
        }
        let slice_ns = JUDGING_SLICE.as_nanos() as u64;
        while let Some(position) = self.policies.next_parked(&mut questions) {
            worked = true;
            self.policies
                .judge(position, true, &mut questions, &mut self.pool);
            self.pass_on_events();
            self.settle_all(position, &mut questions);
            if now_ns() - began_ns > slice_ns {
                break;
            }
        }
        self.questions = questions;
        self.act();
        worked
    }

    /// Goes on with calls about which processes have answered. Whether there were any, or a process that is gone.
    pub(crate) fn turn_processes(&mut self) -> bool {
        let mut questions = std::mem::take(&mut self.questions);
        let mut worked = self.policies.processes().expire(self.now_ns);
        while let Some(position) = self.policies.next_answered(&mut questions, &mut self.pool) {
            worked = true;
            // Those behind have stopped again, at the same step.
            let open = questions.partition_point(|question| question.stop.is_none());
            self.policies
                .judge(position, true, &mut questions[..open], &mut self.pool);
            self.pass_on_events();
            self.settle_all(position, &mut questions);
        }
        self.questions = questions;
        if worked {
            self.act();
        }
        worked
    }

    /// A call has ended while it was being judged.
    pub(crate) fn recall(&mut self, call: CallKey) {
        if let Some(question) = self.policies.recall(call) {
            self.give_verdict(question);
        }
    }

    /// Those that stop are parked; the others are told to the engine.
    pub(crate) fn settle_all(&mut self, position: Position, questions: &mut Vec<Question>) {
        self.bytes.send_heap_to_private += std::mem::take(&mut self.pool.copied);
        for question in questions.iter_mut() {
            self.clear_up(question);
            if let Some(notes) = &mut question.notes {
                self.trace_verdicts(question.call, position.stage, notes);
            }
        }
        // Those that stop are the last, and the first of them goes to the front of its queue last.
        let going_on = questions.partition_point(|question| question.stop.is_none());
        for question in questions.drain(going_on..).rev() {
            self.park(position, question);
        }
        for question in questions.drain(..) {
            self.give_verdict(question);
        }
    }

    /// Gives back what came free while a call was judged, and says how large its message is now.
    #[inline]
    fn clear_up(&mut self, question: &mut Question) {
        if let Some(source) = question.freed.take() {
            self.reclaim(source);
        }
        if std::mem::take(&mut question.changed) {
            let bytes = credit_bytes(&question.message);
            self.engine.resized(question.call, bytes);
        }
    }

    fn park(&mut self, position: Position, mut question: Question) {
        let stop = question.stop.take();
        if question.notes.is_some() {
            let why = stop.map_or(Why::Turn, |stop| stop.why);
            self.trace_queued(question.call, why.name());
        }
        let parked = self.policies.park(position, stop, question, self.now_ns);
        if let Err((mut question, full)) = parked {
            question.deny(full);
            self.give_verdict(question);
        }
    }

    fn give_verdict(&mut self, question: Question) {
        let Question {
            call,
            mut message,
            denied,
            denied_by,
            steered,
            is_split,
            ..
        } = question;
        let mut denied = denied.map(|status| *status);
        if let (Some(steered), None) = (steered, &denied) {
            denied = self.steer(call, *steered, &mut message).err();
        }
        if let Some(by) = denied_by.filter(|_| denied.is_some()) {
            self.trace_denied(call, *by);
        }
        let verdict = denied.map_or(Verdict::Allow, Verdict::Deny);
        self.engine.verdict(call, verdict, message);
        if is_split {
            self.engine.forget_era(call);
        }
    }
}
