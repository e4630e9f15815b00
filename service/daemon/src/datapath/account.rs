//! What tenants' policies spend, and who has spent too much: one account per tenant on this runtime.
//!
//! Invariant: an account outlives its attachments, so that nobody gets a full one by attaching again.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tollgate_engine::Status;
use tollgate_engine::chain::Account;
use tollgate_shm_abi::status::Code;

use crate::datapath::command::{AccountReport, Event};
use crate::datapath::parked::Funds;

/// Names one account of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountId(u32);

struct Entry {
    tenant: Arc<str>,
    account: Account,
    throttled: u64,
    /// Of those, how many no event has told of.
    untold: u64,
}

/// All accounts of one runtime.
pub(crate) struct Accounts {
    share_percent: u8,
    entries: Vec<Entry>,
    by_tenant: HashMap<Arc<str>, AccountId>,
}

impl Accounts {
    pub(crate) fn new(share_percent: u8) -> Self {
        Self {
            share_percent,
            entries: Vec::new(),
            by_tenant: HashMap::new(),
        }
    }

    /// The account of a tenant; of the provider, whose name is empty, there is none.
    pub(crate) fn of(&mut self, tenant: &Arc<str>, now_ns: u64) -> Option<AccountId> {
        if tenant.is_empty() {
            return None;
        }
        if let Some(&known) = self.by_tenant.get(tenant) {
            return Some(known);
        }
        let id = AccountId(self.entries.len() as u32);
        self.entries.push(Entry {
            tenant: Arc::clone(tenant),
            account: Account::new(self.share_percent, now_ns),
            throttled: 0,
            untold: 0,
        });
        self.by_tenant.insert(Arc::clone(tenant), id);
        Some(id)
    }

    #[inline]
    pub(crate) fn may_spend(&mut self, id: AccountId, now_ns: u64) -> bool {
        self.entries[id.0 as usize].account.may_spend(now_ns)
    }

    /// Whether something may be spent, or when.
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

    /// Counts a call that is refused because the account stays overdrawn, and says so to the caller.
    #[cold]
    pub(crate) fn throttle(&mut self, id: AccountId) -> Status {
        let entry = &mut self.entries[id.0 as usize];
        entry.throttled += 1;
        entry.untold += 1;
        let text = format!(
            "tenant {} has used up its CPU share for policies ({}% of a core)",
            entry.tenant,
            entry.account.share_percent()
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    }

    /// Tells the control plane of the calls refused since the last time.
    pub(crate) fn tell(&mut self, events: &UnboundedSender<Event>) {
        for entry in self.entries.iter_mut().filter(|entry| entry.untold > 0) {
            let _control_ended = events.send(Event::Throttled {
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
        self.entries.iter().map(report).collect()
    }
}
