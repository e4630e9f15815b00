//! Requests for an operator's approval.

use std::collections::BinaryHeap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::policies::put_checked;
use super::{Store, note};
use crate::approval::{Approval, ApprovalState, Decision, NewApproval};
use crate::audit::{Actor, Event};
use crate::error::{StoreError, full};
use crate::limits;
use crate::model::{Attachment, TokenDigest, check_size};
use crate::policy::Owner;
use crate::rows::{require_owner, require_owner_in, successor};
use crate::tables::{APPROVALS, ApprovalKey, ApprovalRow, NEVER, TENANTS};

/// The keys of the requests that end first, which are the oldest, as far as an answer has room; and
/// whether there are more. A tenant's many requests don't hide others'.
fn oldest<'a>(
    rows: redb::Range<'a, ApprovalKey, ApprovalRow>,
    is_shown: impl Fn(u64) -> bool,
) -> Result<(Vec<(String, u64)>, bool), StoreError> {
    let mut keys: BinaryHeap<(u64, String, u64)> = BinaryHeap::new();
    let mut is_cut = false;
    for row in rows {
        let (key, value) = row?;
        let ((tenant, number), end) = (key.value(), value.value().1);
        if !is_shown(end) {
            continue;
        }
        let newest = keys
            .peek()
            .filter(|_| keys.len() == limits::MAX_APPROVALS_SHOWN);
        if let Some((newest, ..)) = newest {
            is_cut = true;
            if *newest <= end {
                continue;
            }
            keys.pop();
        }
        keys.push((end, tenant.to_owned(), number));
    }
    let keys = keys.into_iter().map(|(_, tenant, number)| (tenant, number));
    Ok((keys.collect(), is_cut))
}

/// What a row has as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    credential: String,
    asked_ms: u64,
    /// Also of a decided request.
    expires_ms: u64,
    state: ApprovalState,
    decided_ms: Option<u64>,
    by: Option<String>,
    reason: Option<String>,
    what: Value,
}

/// The end of a request, as somebody decides it now.
#[derive(Clone, Debug)]
pub struct NewDecision<'d> {
    /// Whose request.
    pub tenant: &'d str,
    /// Its number.
    pub number: u64,
    /// What becomes of it; not [`ApprovalState::Waiting`].
    pub state: ApprovalState,
    /// By whom, in words for the tenant.
    pub by: &'d str,
    /// Why, if an operator says so.
    pub reason: Option<&'d str>,
}

impl Store {
    /// Stores a request for approval; returns its number.
    ///
    /// # Errors
    /// There is no such tenant, the request is too large, or too many of the tenant's wait.
    pub fn ask_approval(&self, actor: Actor, new: &NewApproval) -> Result<u64, StoreError> {
        self.ask_approval_at(actor, new, SystemTime::now())
    }

    pub(crate) fn ask_approval_at(
        &self,
        actor: Actor,
        new: &NewApproval,
        now: SystemTime,
    ) -> Result<u64, StoreError> {
        let tenant = new.tenant.as_str();
        let row = Row {
            credential: new.credential.clone(),
            asked_ms: ms_of(now),
            expires_ms: ms_of(now + limits::APPROVAL_LIFE),
            state: ApprovalState::Waiting,
            decided_ms: None,
            by: None,
            reason: None,
            what: new.what.clone(),
        };
        let text = encode(&row)?;
        check_size(
            "request for approval",
            text.len() + new.order.len(),
            limits::MAX_APPROVAL_BYTES,
        )?;
        self.change(|change| {
            require_owner(change, &Owner::Tenant(tenant.to_owned()))?;
            let mut approvals = change.open_table(APPROVALS)?;
            let (mut waiting, mut last) = (0, 0);
            for one in of_tenant(&approvals, tenant)? {
                let (number, is_waiting) = one?;
                waiting += usize::from(is_waiting);
                last = number;
            }
            if waiting >= limits::MAX_WAITING {
                let what = "requests of this tenant that wait for approval";
                return Err(full(what, limits::MAX_WAITING));
            }
            let number = last + 1;
            let value = (
                new.token.0,
                row.expires_ms,
                text.as_slice(),
                new.order.as_slice(),
            );
            approvals.insert((tenant, number), value)?;
            let details = json!({"tenant": tenant, "request": number, "what": new.what});
            Ok((number, note(actor, Event::ApprovalRequest, details)))
        })
    }

    /// A request for approval.
    ///
    /// # Errors
    /// There is no such tenant or request, or the file failed.
    pub fn approval(&self, tenant: &str, number: u64) -> Result<Approval, StoreError> {
        self.read(|read| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            let approvals = read.open_table(APPROVALS)?;
            let row = approvals.get((tenant, number))?;
            let row = row.ok_or_else(|| no_approval(tenant, number))?;
            read_row((tenant, number), row.value())
        })
    }

    /// Requests of a tenant, or those of all tenants that wait; oldest first. Of more than
    /// [`limits::MAX_APPROVALS_SHOWN`] the second value tells.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn approvals(&self, tenant: Option<&str>) -> Result<(Vec<Approval>, bool), StoreError> {
        self.read(|read| {
            let approvals = read.open_table(APPROVALS)?;
            let (keys, is_cut) = match tenant {
                Some(tenant) => {
                    let owner = Owner::Tenant(tenant.to_owned());
                    require_owner_in(&read.open_table(TENANTS)?, &owner)?;
                    let after = successor(tenant);
                    oldest(approvals.range((tenant, 0)..(after.as_str(), 0))?, |_| true)?
                }
                None => oldest(approvals.iter()?, |end| end != NEVER)?,
            };
            let mut found = Vec::with_capacity(keys.len());
            for (tenant, number) in &keys {
                let key = (tenant.as_str(), *number);
                let row = approvals.get(key)?;
                let row = row.ok_or_else(|| no_approval(tenant, *number))?;
                found.push(read_row(key, row.value())?);
            }
            found.sort_by_key(|one| one.asked);
            Ok((found, is_cut))
        })
    }

    /// Ends a request that isn't carried out.
    ///
    /// # Errors
    /// There is no such tenant or request, it is decided already, or the reason is too long.
    pub fn end_approval(&self, actor: Actor, with: &NewDecision<'_>) -> Result<(), StoreError> {
        let reason = with.reason.unwrap_or_default();
        check_size("reason", reason.len(), limits::MAX_REASON)?;
        let event = match with.state {
            ApprovalState::Withdrawn => Event::ApprovalWithdraw,
            ApprovalState::Expired => Event::ApprovalExpire,
            _ => Event::ApprovalDeny,
        };
        self.change(|change| {
            require_owner(change, &Owner::Tenant(with.tenant.to_owned()))?;
            let what = decide(change, with, SystemTime::now())?;
            let details = json!({"tenant": with.tenant, "request": with.number, "what": what, "reason": with.reason});
            Ok(((), note(actor, event, details)))
        })
    }

    /// Stores the attachments of an approved request, and that it is approved.
    ///
    /// # Errors
    /// The request is decided already, or has expired; and those of [`put`](Self::put).
    pub fn put_approved(
        &self,
        actor: Actor,
        details: Value,
        with: &NewDecision<'_>,
        attachments: &[Attachment],
    ) -> Result<(), StoreError> {
        self.change(|change| {
            decide(change, with, SystemTime::now())?;
            for attachment in attachments {
                put_checked(change, attachment)?;
            }
            Ok(((), note(actor, Event::ApprovalGrant, details)))
        })
    }

    /// Tenants and numbers of requests whose time is over, and that nobody has decided.
    ///
    /// # Errors
    /// The file failed.
    pub fn overdue_approvals(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.overdue_approvals_at(SystemTime::now())
    }

    pub(crate) fn overdue_approvals_at(
        &self,
        now: SystemTime,
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let now = ms_of(now);
        self.read(|read| {
            let mut overdue = Vec::new();
            for row in read.open_table(APPROVALS)?.iter()? {
                let (key, row) = row?;
                let ((tenant, number), (_, end, ..)) = (key.value(), row.value());
                if end <= now {
                    overdue.push((tenant.to_owned(), number));
                }
            }
            Ok(overdue)
        })
    }
}

/// Removes a tenant's requests.
pub(super) fn forget_approvals(change: &WriteTransaction, tenant: &str) -> Result<(), StoreError> {
    let after = successor(tenant);
    let mut approvals = change.open_table(APPROVALS)?;
    approvals.retain_in((tenant, 0)..(after.as_str(), 0), |_, _| false)?;
    Ok(())
}

/// Notes a decision, drops the order, and drops decided requests that are too many. Returns what
/// the request is about.
fn decide(
    change: &WriteTransaction,
    with: &NewDecision<'_>,
    now: SystemTime,
) -> Result<Value, StoreError> {
    let NewDecision { tenant, number, .. } = *with;
    let mut approvals = change.open_table(APPROVALS)?;
    let found = approvals
        .get((tenant, number))?
        .map(|row| {
            let (token, end, text, _) = row.value();
            decode(text).map(|row| (token, end, row))
        })
        .transpose()?;
    let (token, end, mut row) = found.ok_or_else(|| no_approval(tenant, number))?;
    let is_expired = end <= ms_of(now) && with.state != ApprovalState::Expired;
    if end == NEVER || is_expired {
        let state = if is_expired {
            ApprovalState::Expired
        } else {
            row.state
        };
        return Err(StoreError::Decided {
            tenant: tenant.to_owned(),
            number,
            state: state.name(),
        });
    }
    row.state = with.state;
    row.decided_ms = Some(ms_of(now));
    row.by = Some(with.by.to_owned());
    row.reason = with.reason.map(str::to_owned);
    approvals.insert(
        (tenant, number),
        (token, NEVER, encode(&row)?.as_slice(), &[][..]),
    )?;
    let mut decided = Vec::new();
    for one in of_tenant(&approvals, tenant)? {
        let (number, is_waiting) = one?;
        decided.extend((!is_waiting).then_some(number));
    }
    let surplus = decided.len().saturating_sub(limits::MAX_DECIDED);
    // Never the highest number: it is the last of them, and the next request's is one more.
    for number in decided.into_iter().take(surplus) {
        approvals.remove((tenant, number))?;
    }
    Ok(row.what)
}

/// The numbers of a tenant's requests, and whether each waits.
fn of_tenant(
    approvals: &impl ReadableTable<ApprovalKey, ApprovalRow>,
    tenant: &str,
) -> Result<impl Iterator<Item = Result<(u64, bool), StoreError>>, StoreError> {
    let after = successor(tenant);
    let rows = approvals.range((tenant, 0)..(after.as_str(), 0))?;
    Ok(rows.map(|row| {
        let (key, row) = row?;
        Ok((key.value().1, row.value().1 != NEVER))
    }))
}

fn read_row(
    (tenant, number): (&str, u64),
    (token, end, text, order): (crate::tables::Digest, u64, &[u8], &[u8]),
) -> Result<Approval, StoreError> {
    let row = decode(text)?;
    let state = match row.state {
        ApprovalState::Waiting if end <= ms_of(SystemTime::now()) => ApprovalState::Expired,
        state => state,
    };
    let decision = row.decided_ms.zip(row.by).map(|(at, by)| Decision {
        at: time_of(at),
        by,
        reason: row.reason,
    });
    Ok(Approval {
        tenant: tenant.to_owned(),
        number,
        credential: row.credential,
        token: TokenDigest(token),
        asked: time_of(row.asked_ms),
        expires: time_of(row.expires_ms),
        what: row.what,
        order: order.to_vec(),
        state,
        decision,
    })
}

fn encode(row: &Row) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(row).map_err(|error| StoreError::Unreadable { error })
}

fn decode(text: &[u8]) -> Result<Row, StoreError> {
    serde_json::from_slice(text).map_err(|error| StoreError::Unreadable { error })
}

fn no_approval(tenant: &str, number: u64) -> StoreError {
    let tenant = tenant.to_owned();
    StoreError::NoApproval { tenant, number }
}

fn ms_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn time_of(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}
