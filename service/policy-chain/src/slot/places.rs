//! The places of an attachment: which versions are in them, and the state that they hand over.

use tollgate_engine::chain::Which;

use super::Slot;
use crate::context::Meter;
use crate::counts::Counts;
use crate::ids::{AccountId, AttachmentId, VersionNumber};
use crate::isolated::{IsolatedVersion, Processes, Rehearsed, Successor};
use crate::limits::RETIRED_VERSIONS;
use crate::plan::{ChangeError, CpuLimit, How, Installed, Place, Running};
use crate::recorder::Recorder;
use crate::version::Version;
use crate::version::state::HandOver;

/// A version's state for another process to continue from.
pub struct SavedState {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The version's number.
    pub version: VersionNumber,
    /// The state format's number in the manifest.
    pub format: u32,
    /// The state.
    pub bytes: Vec<u8>,
}

impl Slot {
    /// Whether the places can be changed like that.
    pub(crate) fn check(slot: Option<&Slot>, installed: &Installed) -> Result<(), ChangeError> {
        let candidate = slot.and_then(|slot| slot.candidate.as_ref());
        let label = || installed.label.clone();
        match (&installed.stable, &installed.candidate, candidate) {
            (Place::FromCandidate, _, None) => Err(ChangeError::NoCandidate { label: label() }),
            (_, Place::FromCandidate, _) => Err(ChangeError::OwnPlace { label: label() }),
            _ => Ok(()),
        }
    }

    /// Hands the state of the version in force over to new versions. Nothing changes here unless
    /// that version fails while saving: then it is out of order, as after any fault.
    pub(crate) fn hand_over(
        &mut self,
        installed: &mut Installed,
        meter: &mut Meter,
        processes: &mut Processes,
    ) -> Result<(), ChangeError> {
        for place in [&mut installed.stable, &mut installed.candidate] {
            let Place::Put(Running {
                version,
                how,
                inherit: true,
            }) = place
            else {
                continue;
            };
            let Some(stable) = &mut self.stable else {
                continue;
            };
            let handed = match how {
                How::Kept(successor) => stable.hand_over(successor, self.account, meter),
                How::Isolated(successor) => {
                    let successor = IsolatedVersion {
                        version: *version,
                        isolated: successor,
                    };
                    stable.hand_over_isolated(successor, self.id, meter, processes)
                }
                How::Compat(_) | How::Fresh(_) | How::Broken(_) => continue,
            };
            let from = self.number(Which::Stable);
            match handed {
                Ok(()) => {}
                Err(HandOver::Save(fault)) => {
                    let reason = fault.to_string();
                    self.stable_failed(reason.clone(), meter);
                    return Err(self.cannot_save(from, &reason));
                }
                Err(HandOver::Restore(reason)) => {
                    return Err(self.cannot_restore(*version, from, &reason));
                }
            }
        }
        Ok(())
    }

    /// Saves the versions' states for another process. A version that fails to save is out of
    /// order, as after any fault.
    pub(crate) fn save(&mut self, meter: &mut Meter) -> Vec<SavedState> {
        let (id, account) = (self.id, self.account);
        let mut states = Vec::new();
        for which in [Which::Stable, Which::Candidate] {
            let Some(version) = self.place(which) else {
                continue;
            };
            let number = version.number;
            match version.save(account, meter) {
                Ok(None) => {}
                Ok(Some((format, bytes))) => states.push(SavedState {
                    id,
                    version: number,
                    format,
                    bytes,
                }),
                Err(fault) => self.failed(which, fault.to_string(), meter),
            }
        }
        states
    }

    /// Lets a version continue from its state in another process.
    pub(crate) fn restore(&mut self, saved: &SavedState) -> Result<(), ChangeError> {
        let mut versions = self.stable.iter_mut().chain(&mut self.candidate);
        let its = versions.find(|version| version.number == saved.version);
        let restored = its.map_or(Ok(()), |its| its.restore(saved.format, &saved.bytes));
        restored
            .map_err(|fault| self.cannot_restore(saved.version, saved.version, &fault.to_string()))
    }

    pub(crate) fn cannot_save(&self, from: VersionNumber, why: &str) -> ChangeError {
        ChangeError::CannotSave {
            policy: self.name(from),
            why: why.to_owned(),
        }
    }

    pub(crate) fn cannot_restore(
        &self,
        to: VersionNumber,
        from: VersionNumber,
        why: &str,
    ) -> ChangeError {
        ChangeError::CannotRestore {
            policy: self.name(to),
            from: self.name(from),
            why: why.to_owned(),
        }
    }

    /// Asks the version in force whether it could hand its state over to `successor`, which is in a
    /// process.
    pub(crate) fn rehearse(
        &self,
        successor: Successor,
        done: Rehearsed,
        meter: &mut Meter,
        processes: &mut Processes,
    ) {
        let stable = self.stable.as_ref();
        match stable.and_then(Version::isolated_version) {
            Some(from) if from.isolated.process == successor.isolated.process => {
                processes.rehearse(from, successor, self.id, meter.order_time(), done);
            }
            _ => done(Ok(())),
        }
    }

    /// Changes the places, which begins epoch `policy_epoch`. The caller has checked
    /// [`check`](Self::check).
    pub(crate) fn install(
        &mut self,
        installed: Installed,
        account: Option<AccountId>,
        policy_epoch: u32,
    ) {
        let before = self.assignment();
        self.note_successors(&installed, policy_epoch);
        self.label = installed.label;
        self.party = installed.party;
        self.account = account;
        self.on_fault = installed.on_fault;
        self.max_worse = installed.max_worse;
        match &mut self.recorder {
            Some(recorder) if installed.record > 0 => recorder.resize(installed.record),
            recorder => *recorder = Recorder::new(installed.record),
        }
        match installed.stable {
            Place::Keep => {}
            Place::Empty => self.replace(Which::Stable, policy_epoch),
            Place::Put(running) => self.put(Which::Stable, running, policy_epoch),
            Place::FromCandidate => {
                let candidate = self.candidate.take();
                self.replace(Which::Stable, policy_epoch);
                self.stable = candidate;
            }
        }
        match installed.candidate {
            Place::Keep | Place::FromCandidate => {}
            Place::Empty => self.replace(Which::Candidate, policy_epoch),
            Place::Put(running) => self.put(Which::Candidate, running, policy_epoch),
        }
        self.trial = installed.trial.filter(|_| self.candidate.is_some());
        let was_there = before.stable.is_some() || before.candidate.is_some();
        if was_there && before != self.assignment() {
            self.past.note(policy_epoch, before);
        }
    }

    /// The slot has moved to another runtime: the account has a new id, and the slot isn't in the
    /// list of those that have run.
    pub(crate) fn moved(&mut self, account: Option<AccountId>) {
        self.account = account;
        self.has_run = false;
    }

    /// Changes the limits of the evaluation of one call.
    pub(crate) fn limit_cpu(&mut self, limit: CpuLimit) {
        let there = self.stable.iter_mut().chain(&mut self.candidate);
        for version in there.chain(self.past.kept_mut()) {
            version.limit_cpu(limit);
        }
    }

    /// Puts a version in a place. A fresh instance of the version that is already there keeps its
    /// counts.
    fn put(&mut self, which: Which, running: Running, policy_epoch: u32) {
        if let Some(version) = self.place(which)
            && version.number == running.version
        {
            return version.run(running.how);
        }
        self.replace(which, policy_epoch);
        let known = self
            .retired
            .iter()
            .position(|(number, _)| *number == running.version);
        let counts = known.map_or_else(Counts::default, |at| self.retired.remove(at).1);
        self.serials += 1;
        *self.place(which) = Some(Version::new(running, self.serials, counts));
    }

    /// Empties a place, which begins epoch `policy_epoch`. The old version is kept if it may have
    /// replies to evaluate.
    fn replace(&mut self, which: Which, policy_epoch: u32) {
        if let Some(mut version) = self.retire(which)
            && version.evaluates_replies()
            && version.may_evaluate_reply(policy_epoch.wrapping_sub(1))
        {
            // Later evaluations are counted for a retired version.
            version.counts = Counts::default();
            self.past.keep(version.serial, version);
        }
    }

    /// Empties a place. The version's counts are kept for a while.
    pub(super) fn retire(&mut self, which: Which) -> Option<Version> {
        let mut version = self.place(which).take()?;
        self.note_last_logs(&mut version);
        if self.retired.len() >= RETIRED_VERSIONS {
            self.retired.remove(0);
        }
        self.retired.push((version.number, version.counts));
        Some(version)
    }

    pub(super) fn note_last_logs(&mut self, version: &mut Version) {
        if let Some((lines, dropped)) = version.take_log()
            && self.last_logs.len() < RETIRED_VERSIONS
        {
            self.last_logs.push((version.number, lines, dropped));
        }
    }
}
