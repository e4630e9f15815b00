//! One attachment's versions, and the steps that change them.
//!
//! ```text
//!             attach v                      upgrade w            promote
//!   (empty) ───────────▶ stable v ───────────────────▶ stable v ────────▶ stable w
//!      │                     ▲                         candidate w         previous v
//!      │ attach w --mode     │ promote                    │ rollback           │ rollback
//!      ▼                     │                            ▼                    ▼
//!   candidate w ─────────────┘                         stable v             stable v
//! ```
//!
//! Pure: each step is a function from a slot to the next one, or an error. Operators take the same
//! steps as the daemon, which acts when a candidate fails or has passed its probation.

use serde::{Deserialize, Serialize};

/// The calls that a version on trial decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trial {
    /// None: it is evaluated, and its decisions are counted.
    Shadow,
    /// This percentage of calls, 1 to 100.
    Canary(u8),
}

impl Trial {
    /// Whether the candidate decides every call, and the stable version none.
    pub fn decides_all(self) -> bool {
        matches!(self, Trial::Canary(100..))
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trial::Shadow => f.write_str("shadow"),
            Trial::Canary(percent) => write!(f, "canary {percent}%"),
        }
    }
}

/// A version on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The version's number.
    pub version: u32,
    /// The calls that it decides.
    pub trial: Trial,
    /// After this time without a failure the candidate is promoted automatically; none: an operator
    /// promotes it. A restart of the daemon starts the time again: unobserved time doesn't count.
    #[serde(default)]
    pub probation_ms: Option<u64>,
}

/// The versions of a policy at one target. An empty slot evaluates nothing: a trial ended there
/// without a stable version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slot {
    /// The version that decides.
    pub stable: Option<u32>,
    /// The version on trial.
    pub candidate: Option<Candidate>,
    /// The version that decided before the stable one.
    pub previous: Option<u32>,
    /// Why the stable version gets no fresh instance any more.
    pub quarantine: Option<String>,
}

/// Why a step is impossible: the rest of a sentence that begins with the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum SlotError {
    #[error(
        "{policy}@{stable} decides already; put another version on trial with `policy upgrade`"
    )]
    StableDecides { policy: String, stable: u32 },
    #[error("no version of {policy} decides; attach one, or promote the one on trial")]
    NothingDecides { policy: String },
    #[error("{policy}@{version} decides already, so it can't be on trial")]
    SameVersion { policy: String, version: u32 },
    #[error("{policy}@{candidate} is on trial already; promote it or roll it back first")]
    TrialRuns { policy: String, candidate: u32 },
    #[error("no version of {policy} is on trial, so none can be promoted")]
    NoTrial { policy: String },
    #[error(
        "no version of {policy} is on trial and none decided before, so no rollback is possible"
    )]
    NoPrevious { policy: String },
}

/// Why a slot needs a version. Shown as the rest of a sentence that begins with the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It decides.
    Decides,
    /// It is on trial.
    OnTrial,
    /// It decided before.
    RollbackTarget,
}

impl Need {
    /// What frees the version.
    pub fn way_out(self) -> &'static str {
        match self {
            Need::Decides => "upgrade to another version there, or detach it, first",
            Need::OnTrial => "promote it, or roll it back, first",
            Need::RollbackTarget => "the next upgrade there frees it, or detaching it",
        }
    }
}

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Need::Decides => "decides",
            Need::OnTrial => "is on trial",
            Need::RollbackTarget => "is the target of a rollback",
        })
    }
}

impl Slot {
    /// A slot with the stable version `version`.
    pub fn enforcing(version: u32) -> Slot {
        Slot {
            stable: Some(version),
            ..Slot::default()
        }
    }

    /// Every version that the slot needs.
    pub fn versions(&self) -> impl Iterator<Item = u32> {
        let candidate = self.candidate.map(|candidate| candidate.version);
        [self.stable, candidate, self.previous]
            .into_iter()
            .flatten()
    }

    /// Why the slot needs a version, if it does.
    pub fn need_of(&self, version: u32) -> Option<Need> {
        let is_candidate = self.candidate.is_some_and(|c| c.version == version);
        if self.stable == Some(version) {
            return Some(Need::Decides);
        }
        if is_candidate {
            return Some(Need::OnTrial);
        }
        (self.previous == Some(version)).then_some(Need::RollbackTarget)
    }

    /// Makes `version` decide; or, with a trial, puts it on trial where no version decides yet.
    ///
    /// # Errors
    /// There is a trial, and a version decides already.
    pub fn attach(
        &self,
        policy: &str,
        version: u32,
        trial: Option<Trial>,
    ) -> Result<Slot, SlotError> {
        let Some(trial) = trial else {
            let replaced = self.stable.filter(|stable| *stable != version);
            return Ok(Slot {
                stable: Some(version),
                previous: replaced.or(self.previous.filter(|previous| *previous != version)),
                ..Slot::default()
            });
        };
        if let Some(stable) = self.stable {
            let policy = policy.to_owned();
            return Err(SlotError::StableDecides { policy, stable });
        }
        Ok(Slot {
            candidate: Some(Candidate {
                version,
                trial,
                probation_ms: None,
            }),
            ..self.clone()
        })
    }

    /// Puts a version on trial beside the stable one, or changes the version's trial. This counts
    /// as an operator's action and ends a quarantine.
    ///
    /// # Errors
    /// No version decides, `version` decides already, or another version is on trial.
    pub fn upgrade(&self, policy: &str, candidate: Candidate) -> Result<Slot, SlotError> {
        let policy = policy.to_owned();
        match (self.stable, self.candidate) {
            (None, _) => Err(SlotError::NothingDecides { policy }),
            (Some(version), _) if version == candidate.version => {
                Err(SlotError::SameVersion { policy, version })
            }
            (_, Some(other)) if other.version != candidate.version => Err(SlotError::TrialRuns {
                policy,
                candidate: other.version,
            }),
            _ => Ok(Slot {
                candidate: Some(candidate),
                quarantine: None,
                ..self.clone()
            }),
        }
    }

    /// Makes another version decide without a trial; ends a quarantine.
    ///
    /// # Errors
    /// No version decides, `version` decides already, or another version is on trial.
    pub fn replace(&self, policy: &str, version: u32) -> Result<Slot, SlotError> {
        let candidate = Candidate {
            version,
            trial: Trial::Canary(100),
            probation_ms: None,
        };
        self.upgrade(policy, candidate)?.promote(policy)
    }

    /// Makes the candidate decide.
    ///
    /// # Errors
    /// There is no candidate.
    pub fn promote(&self, policy: &str) -> Result<Slot, SlotError> {
        let Some(candidate) = self.candidate else {
            let policy = policy.to_owned();
            return Err(SlotError::NoTrial { policy });
        };
        Ok(Slot {
            stable: Some(candidate.version),
            previous: self.stable.or(self.previous),
            ..Slot::default()
        })
    }

    /// Ends the trial; without one, the previous version decides again.
    ///
    /// # Errors
    /// There is neither a trial nor a previous version.
    pub fn roll_back(&self, policy: &str) -> Result<Slot, SlotError> {
        if self.candidate.is_some() {
            return Ok(Slot {
                candidate: None,
                ..self.clone()
            });
        }
        match self.previous {
            Some(previous) => Ok(Slot::enforcing(previous)),
            None => Err(SlotError::NoPrevious {
                policy: policy.to_owned(),
            }),
        }
    }

    /// Marks that the stable version gets no fresh instance until it is released or upgraded.
    pub fn quarantined(&self, reason: &str) -> Slot {
        Slot {
            quarantine: Some(reason.to_owned()),
            ..self.clone()
        }
    }

    /// Ends the quarantine.
    pub fn released(&self) -> Slot {
        Slot {
            quarantine: None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot on one line: `1`, `1+2s`, `1+2c10`, `-+2s`, each with `<` and the previous version.
    fn show(slot: Result<Slot, SlotError>) -> String {
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return error.to_string(),
        };
        let mut text = slot.stable.map_or("-".to_owned(), |v| v.to_string());
        if let Some(Candidate { version, trial, .. }) = slot.candidate {
            text += &match trial {
                Trial::Shadow => format!("+{version}s"),
                Trial::Canary(percent) => format!("+{version}c{percent}"),
            };
        }
        text += &slot.previous.map_or(String::new(), |v| format!("<{v}"));
        text + slot.quarantine.as_deref().map_or("", |_| " quarantined")
    }

    /// Every step from every kind of slot. The table is reviewed like code.
    #[test]
    fn every_step_from_every_slot() {
        let on = |version, trial| {
            Some(Candidate {
                version,
                trial,
                probation_ms: None,
            })
        };
        let slots = [
            Slot::default(),
            Slot {
                candidate: on(2, Trial::Shadow),
                ..Slot::default()
            },
            Slot::enforcing(1),
            Slot {
                candidate: on(2, Trial::Canary(10)),
                ..Slot::enforcing(1)
            },
            Slot {
                previous: Some(4),
                ..Slot::enforcing(1)
            },
            Slot {
                candidate: on(2, Trial::Shadow),
                previous: Some(4),
                ..Slot::enforcing(1)
            }
            .quarantined("why"),
        ];
        let upgrade = |slot: &Slot, version, trial| {
            slot.upgrade(
                "acl",
                Candidate {
                    version,
                    trial,
                    probation_ms: None,
                },
            )
        };
        let mut table = String::new();
        for slot in slots {
            let steps = [
                ("attach 1", slot.attach("acl", 1, None)),
                ("attach 2", slot.attach("acl", 2, None)),
                (
                    "attach 2 shadow",
                    slot.attach("acl", 2, Some(Trial::Shadow)),
                ),
                ("upgrade 1 shadow", upgrade(&slot, 1, Trial::Shadow)),
                ("upgrade 2 canary", upgrade(&slot, 2, Trial::Canary(50))),
                ("upgrade 3 shadow", upgrade(&slot, 3, Trial::Shadow)),
                ("replace 1", slot.replace("acl", 1)),
                ("replace 2", slot.replace("acl", 2)),
                ("replace 3", slot.replace("acl", 3)),
                ("promote", slot.promote("acl")),
                ("rollback", slot.roll_back("acl")),
                ("release", Ok(slot.released())),
            ];
            for (step, next) in steps {
                table += &format!(
                    "{:18} | {step:16} | {}\n",
                    show(Ok(slot.clone())),
                    show(next)
                );
            }
        }
        let reviewed = include_str!("slot.txt");
        assert!(table == reviewed, "the table is now:\n{table}");
    }

    #[test]
    fn a_slot_needs_all_of_its_versions() {
        let slot = Slot {
            previous: Some(4),
            ..Slot::enforcing(1)
        };
        let slot = slot.upgrade(
            "acl",
            Candidate {
                version: 7,
                trial: Trial::Shadow,
                probation_ms: None,
            },
        );
        assert_eq!(
            slot.map(|slot| slot.versions().collect::<Vec<_>>()),
            Ok(vec![1, 7, 4])
        );
    }
}
