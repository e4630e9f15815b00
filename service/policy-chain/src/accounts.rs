//! CPU time that tenants' policies consume, and which tenants are throttled: one account per tenant
//! on this runtime.
//!
//! Invariant: an account outlives its attachments, so a tenant can't refill its account by
//! attaching again.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::Status;
use tollgate_engine::chain::Account;
use tollgate_shm_abi::status::Code;

use crate::counts::AccountReport;
use crate::events::PolicyEvent;
use crate::ids::{AccountId, OwnShares};
use crate::limits::LOG_LINES_PER_SECOND;

#[derive(Clone)]
struct Entry {
    tenant: Arc<str>,
    /// The tenant is placed on this runtime. Otherwise the account was moved away with it.
    is_here: bool,
    account: Account,
    throttled: u64,
    /// Rejected calls that no event has reported yet.
    untold: u64,
    log: LogBudget,
}

/// An account that is moving to another runtime.
pub(crate) struct Moving(Entry);

/// Budget of log lines: a bucket that refills over time.
#[derive(Clone, Copy)]
struct LogBudget {
    lines: u32,
    at_ns: u64,
}

impl LogBudget {
    const FULL: LogBudget = LogBudget {
        lines: LOG_LINES_PER_SECOND,
        at_ns: 0,
    };
    const LINE_NS: u64 = 1_000_000_000 / LOG_LINES_PER_SECOND as u64;

    /// How many of `lines` may be logged.
    fn take(&mut self, lines: usize, now_ns: u64) -> usize {
        let filled = now_ns.saturating_sub(self.at_ns) / Self::LINE_NS;
        self.at_ns += filled * Self::LINE_NS;
        let filled = u32::try_from(filled).unwrap_or(u32::MAX);
        self.lines = self.lines.saturating_add(filled).min(LOG_LINES_PER_SECOND);
        let taken = self.lines.min(u32::try_from(lines).unwrap_or(u32::MAX));
        self.lines -= taken;
        taken as usize
    }
}

/// All accounts of one runtime.
pub(crate) struct Accounts {
    share_percent: u8,
    own_shares: OwnShares,
    entries: Vec<Entry>,
    by_tenant: HashMap<Arc<str>, AccountId>,
    /// Budget of the provider's log lines.
    provider_log: LogBudget,
}

impl Accounts {
    pub(crate) fn new(share_percent: u8) -> Self {
        Self {
            share_percent,
            own_shares: OwnShares::default(),
            entries: Vec::new(),
            by_tenant: HashMap::new(),
            provider_log: LogBudget::FULL,
        }
    }

    /// Sets the share of a core at which accounts refill, and those of single tenants.
    pub(crate) fn set_shares(&mut self, share_percent: u8, own_shares: OwnShares, now_ns: u64) {
        self.share_percent = share_percent;
        self.own_shares = own_shares;
        for entry in &mut self.entries {
            let own = self.own_shares.get(&*entry.tenant).copied();
            let share = own.unwrap_or(share_percent);
            entry.account.set_share_percent(share, now_ns);
        }
    }

    fn share_of(&self, tenant: &str) -> u8 {
        let own = self.own_shares.get(tenant).copied();
        own.unwrap_or(self.share_percent)
    }

    /// How many of `lines` the policies of an account, or the provider's policies, may log now.
    pub(crate) fn may_log(&mut self, id: Option<AccountId>, lines: usize, now_ns: u64) -> usize {
        let budget = match id {
            Some(id) => &mut self.entries[id.0 as usize].log,
            None => &mut self.provider_log,
        };
        budget.take(lines, now_ns)
    }

    /// The account of a tenant; `None` for the provider, whose name is empty.
    pub(crate) fn of(&mut self, tenant: &Arc<str>, now_ns: u64) -> Option<AccountId> {
        if tenant.is_empty() {
            return None;
        }
        if let Some(&known) = self.by_tenant.get(tenant) {
            self.entries[known.0 as usize].is_here = true;
            return Some(known);
        }
        let id = AccountId(self.entries.len() as u32);
        self.entries.push(Entry {
            tenant: Arc::clone(tenant),
            is_here: true,
            account: Account::new(self.share_of(tenant), now_ns),
            throttled: 0,
            untold: 0,
            log: LogBudget::FULL,
        });
        self.by_tenant.insert(Arc::clone(tenant), id);
        Some(id)
    }

    /// Takes the account of a tenant that moves to another runtime. A tenant that returns brings
    /// its account along.
    pub(crate) fn part(&mut self, tenant: &str) -> Option<Moving> {
        let id = self.by_tenant.get(tenant)?;
        let entry = &mut self.entries[id.0 as usize];
        let moving = Moving(entry.clone());
        entry.is_here = false;
        entry.untold = 0;
        Some(moving)
    }

    /// Adopts the account of a tenant that has moved here.
    pub(crate) fn absorb(&mut self, Moving(mut entry): Moving, now_ns: u64) -> Option<AccountId> {
        let id = self.of(&entry.tenant, now_ns)?;
        let share = self.share_of(&entry.tenant);
        entry.account.set_share_percent(share, now_ns);
        self.entries[id.0 as usize] = entry;
        Some(id)
    }

    #[inline]
    pub(crate) fn may_spend(&mut self, id: AccountId, now_ns: u64) -> bool {
        self.entries[id.0 as usize].account.may_spend(now_ns)
    }

    /// Whether the account can pay now, or when it can.
    pub(crate) fn funds(&mut self, id: AccountId, now_ns: u64) -> Funds {
        let account = &mut self.entries[id.0 as usize].account;
        match account.may_spend(now_ns) {
            true => Funds::There,
            false => Funds::At(account.filled_at_ns()),
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, id: AccountId, ns: u64) {
        self.entries[id.0 as usize].account.charge(ns);
    }

    /// Counts a call that is rejected because the account stays overdrawn. Returns the caller's
    /// status.
    #[cold]
    pub(crate) fn throttle(&mut self, id: AccountId) -> Status {
        let entry = &mut self.entries[id.0 as usize];
        entry.throttled += 1;
        entry.untold += 1;
        let text = format!(
            "tenant {} has used up its CPU share for policies ({}% of a core); an operator can change it: `cpu_share_percent`",
            entry.tenant,
            entry.account.share_percent()
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    }

    /// Reports the calls rejected since the last report to the control plane.
    pub(crate) fn tell(&mut self, events: &mut Vec<PolicyEvent>) {
        for entry in self.entries.iter_mut().filter(|entry| entry.untold > 0) {
            events.push(PolicyEvent::Throttled {
                tenant: Arc::clone(&entry.tenant),
                refused: std::mem::take(&mut entry.untold),
            });
        }
    }

    pub(crate) fn report(&self, waiting: impl Fn(&str) -> usize) -> Vec<AccountReport> {
        let report = |entry: &Entry| AccountReport {
            tenant: entry.tenant.to_string(),
            share_percent: entry.account.share_percent(),
            cpu_ns: entry.account.spent_ns(),
            throttled: entry.throttled,
            waiting: waiting(&entry.tenant),
        };
        let here = self.entries.iter().filter(|entry| entry.is_here);
        here.map(report).collect()
    }
}

/// Whether an account can pay.
pub(crate) enum Funds {
    /// It can pay.
    There,
    /// It can pay at this time, if nothing more is charged.
    At(u64),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_tenants_own_share_counts_and_ends_with_its_entry() {
        let mut accounts = Accounts::new(25);
        let shares = |accounts: &Accounts| -> Vec<u8> {
            let report = accounts.report(|_| 0);
            report.iter().map(|its| its.share_percent).collect()
        };
        accounts.of(&"a".into(), 0);
        let own = OwnShares::new(BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 70)]));
        accounts.set_shares(50, own, 1);
        accounts.of(&"b".into(), 2);
        accounts.of(&"c".into(), 2);
        assert_eq!(shares(&accounts), [3, 70, 50]);
        // A tenant that moves here from a runtime that was told otherwise.
        let moving = accounts.part("b").map(|Moving(mut entry)| {
            entry.account.set_share_percent(9, 3);
            Moving(entry)
        });
        let back = moving.and_then(|moving| accounts.absorb(moving, 4));
        assert!(back.is_some());
        assert_eq!(shares(&accounts), [3, 70, 50]);
        accounts.set_shares(25, OwnShares::default(), 5);
        assert_eq!(shares(&accounts), [25, 25, 25]);
    }

    #[test]
    fn lines_are_limited_per_second_and_owner() {
        let mut accounts = Accounts::new(100);
        let [a, b] = ["a", "b"].map(|tenant| accounts.of(&tenant.into(), 0));
        let second = 1_000_000_000;
        let start = 77 * second;
        assert_eq!(accounts.may_log(a, 1_000, start), 200, "a full bucket");
        assert_eq!(accounts.may_log(a, 1, start), 0);
        assert_eq!(accounts.may_log(b, 50, start), 50, "another owner's");
        assert_eq!(accounts.may_log(None, 1_000, start), 200, "the provider's");
        assert_eq!(accounts.may_log(a, 1_000, start + second / 10), 20);
        let mut logged = 0;
        for step in 1..=1_000 {
            let now_ns = start + second / 10 + step * second / 100;
            logged += accounts.may_log(a, 7, now_ns);
        }
        assert!((1_990..=2_010).contains(&logged), "{logged} in 10 s");
        assert_eq!(
            accounts.may_log(a, 1_000, start + 3_600 * second),
            200,
            "and no more"
        );
    }
}
