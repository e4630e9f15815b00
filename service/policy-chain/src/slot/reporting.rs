//! What an attachment reports: failures and their texts for callers, log lines, counters.

use tollgate_engine::Status;
use tollgate_engine::chain::{Party, Which};
use tollgate_shm_abi::status::Code;

use super::Slot;
use crate::accounts::Accounts;
use crate::context::Meter;
use crate::counts::{Counts, PolicyReport, RecordedView, ReportedPlace};
use crate::evaluation::{Decision, Evaluation, Unable, Unchanged};
use crate::events::PolicyEvent;
use crate::ids::{AttachmentId, NamedPolicy, VersionNumber};
use crate::metrics::NamedMetrics;

/// The text for callers when a provider's policy fails.
const BY_PROVIDER: &str = "the call was refused by the provider";

impl Slot {
    /// For example `acl@1 of tenant acme`.
    pub(super) fn name(&self, version: VersionNumber) -> String {
        match self.label.split_once(' ') {
            Some((policy, owner)) => format!("{policy}@{version} {owner}"),
            None => format!("{}@{version}", self.label),
        }
    }

    /// Names one of its versions for traces.
    #[cold]
    pub(super) fn named(&self, number: VersionNumber) -> NamedPolicy {
        // For example `acl of tenant acme`.
        let name = self.label.split(' ').next().unwrap_or_default();
        NamedPolicy {
            policy: format!("{name}@{number}"),
            is_provider: self.party != Party::Tenant,
        }
    }

    /// Records which policy has denied the calls that were just denied.
    #[cold]
    pub(super) fn name_denials(&self, number: VersionNumber, evaluations: &mut [Evaluation]) {
        let denied = |evaluation: &&mut Evaluation| {
            evaluation.denied.is_some() && evaluation.denied_by.is_none()
        };
        for evaluation in evaluations.iter_mut().filter(denied) {
            evaluation.denied_by = Some(Box::new(self.named(number)));
        }
    }

    pub(super) fn number(&self, which: Which) -> VersionNumber {
        let version = match which {
            Which::Stable => &self.stable,
            Which::Candidate => &self.candidate,
        };
        version
            .as_ref()
            .map_or(VersionNumber(0), |version| version.number)
    }

    /// The status of a rejection that isn't a policy's own denial. It never names the provider's
    /// policies.
    pub(super) fn refusal(&self, code: Code, text: String) -> Status {
        match self.party {
            Party::Tenant => Status::new(code, text),
            Party::ProviderPre | Party::ProviderPost => Status::new(Code::INTERNAL, BY_PROVIDER),
        }
    }

    #[cold]
    pub(super) fn out_of_order(&self, number: VersionNumber, decision: &Decision) -> Status {
        let mut there = [&self.stable, &self.candidate].into_iter().flatten();
        let version = there.find(|version| version.number == number);
        let name = self.name(number);
        let why = version
            .and_then(|version| version.last_fault.as_deref())
            .unwrap_or_default();
        let how = match decision {
            Decision::Failed => "failed",
            _ => "is out of order",
        };
        let text = format!("policy {name} {how}, so the call is refused: {why}");
        self.refusal(Code::INTERNAL, text)
    }

    /// The status when the version can't evaluate the call without having failed. `None`: the view
    /// is too large.
    #[cold]
    pub(super) fn unable(&self, number: VersionNumber, why: Option<&Unable>) -> Status {
        let name = self.name(number);
        let (code, text) = match why {
            Some(Unable::NoRoom(why)) => (
                Code::RESOURCE_EXHAUSTED,
                format!("policy {name} can't have an instance for the call: {why}"),
            ),
            Some(Unable::Unreadable(why)) => (
                Code::INVALID_ARGUMENT,
                format!("policy {name} can't be shown the message: {why}"),
            ),
            Some(Unable::Unchanged(Unchanged::Malformed(why))) => (
                Code::INVALID_ARGUMENT,
                format!("the message can't be changed as policy {name} requires: {why}"),
            ),
            Some(Unable::Unchanged(Unchanged::NoRoom(why))) => (
                Code::RESOURCE_EXHAUSTED,
                format!("the call's metadata has no room for the pairs of policy {name}: {why}"),
            ),
            Some(Unable::Unchanged(_)) => (
                Code::FAILED_PRECONDITION,
                format!(
                    "policy {name} was attached after the message was delivered to the receive heap, so it can't change the message"
                ),
            ),
            None => (
                Code::RESOURCE_EXHAUSTED,
                format!(
                    "the fields that policy {name} reads of this message don't fit into its view"
                ),
            ),
        };
        self.refusal(code, text)
    }

    #[cold]
    pub(super) fn failed(&mut self, which: Which, reason: String, meter: &mut Meter) {
        match which {
            Which::Candidate => self.drop_candidate(reason, meter),
            Which::Stable => self.stable_failed(reason, meter),
        }
    }

    pub(super) fn stable_failed(&self, reason: String, meter: &mut Meter) {
        let version = self.number(Which::Stable);
        let id = self.id;
        meter.events.push(PolicyEvent::Faulted {
            id,
            version,
            reason,
        });
    }

    /// Ends the trial.
    #[cold]
    pub(super) fn drop_candidate(&mut self, reason: String, meter: &mut Meter) {
        let version = self.number(Which::Candidate);
        drop(self.retire(Which::Candidate));
        self.trial = None;
        let id = self.id;
        meter.events.push(PolicyEvent::CandidateFailed {
            id,
            version,
            reason,
        });
    }

    /// Adds it to the list of slots that have run, unless it is there.
    #[inline]
    pub(crate) fn note_run(&mut self, ran: &mut Vec<AttachmentId>) {
        if !self.has_run {
            self.has_run = true;
            ran.push(self.id);
        }
    }

    /// Passes its versions' log lines to the control plane, as many as its owner may log.
    pub(crate) fn tell_logs(
        &mut self,
        now_ns: u64,
        accounts: &mut Accounts,
        events: &mut Vec<PolicyEvent>,
    ) {
        self.has_run = false;
        let mut logs = std::mem::take(&mut self.last_logs);
        for version in self.past.kept_mut() {
            let number = version.number;
            logs.extend(
                version
                    .take_log()
                    .map(|(lines, dropped)| (number, lines, dropped)),
            );
        }
        for which in [Which::Stable, Which::Candidate] {
            if let Some(version) = self.place(which)
                && let Some((lines, dropped)) = version.take_log()
            {
                logs.push((version.number, lines, dropped));
            }
        }
        for (number, mut lines, mut dropped) in logs {
            let kept = accounts.may_log(self.account, lines.len(), now_ns);
            dropped += (lines.len() - kept) as u64;
            lines.truncate(kept);
            if let Some(counts) = self.counts_of(number) {
                counts.logged += kept as u64;
                counts.log_dropped += dropped;
            }
            events.push(PolicyEvent::Logged {
                label: self.name(number),
                lines,
                dropped,
            });
        }
    }

    pub(super) fn counts_of(&mut self, number: VersionNumber) -> Option<&mut Counts> {
        let there = [&mut self.stable, &mut self.candidate];
        let there = there.into_iter().flatten();
        let mut counts = there.map(|version| (version.number, &mut version.counts));
        let gone = self.retired.iter_mut();
        let mut gone = gone.map(|(version, counts)| (*version, counts));
        counts
            .find(|(version, _)| *version == number)
            .or_else(|| gone.rfind(|(version, _)| *version == number))
            .map(|(_, counts)| counts)
    }

    pub(crate) fn recorded(&self) -> Vec<RecordedView> {
        self.recorder
            .as_ref()
            .map(|recorder| recorder.views())
            .unwrap_or_default()
    }

    pub(crate) fn report(&self) -> impl Iterator<Item = PolicyReport> {
        let there = [
            (ReportedPlace::Stable, &self.stable),
            (ReportedPlace::Candidate, &self.candidate),
        ];
        let there = there.into_iter().filter_map(|(place, version)| {
            let version = version.as_ref()?;
            Some(PolicyReport {
                id: self.id,
                version: version.number,
                place,
                counts: version.counts,
                alive: version.is_alive(),
                last_fault: version.last_fault.clone(),
                memory_bytes: version.memory_bytes(),
                metrics: version.metrics(),
            })
        });
        let gone = self.retired.iter().map(|&(version, counts)| PolicyReport {
            id: self.id,
            version,
            place: ReportedPlace::Retired,
            counts,
            alive: false,
            last_fault: None,
            memory_bytes: 0,
            metrics: NamedMetrics::default(),
        });
        there.chain(gone)
    }

    #[cfg(test)]
    pub(crate) fn instance(&mut self) -> Option<&mut tollgate_policy_host::Instance> {
        self.stable.as_mut()?.instance()
    }
}
