//! Tenants with their tokens, and the overrides of their placements.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, ReadableTableMetadata};
use serde_json::{Value, json};

use super::{Store, note};
use crate::audit::{Actor, Event};
use crate::error::{StoreError, full, no_tenant};
use crate::limits;
use crate::model::{Holdings, Token, TokenDigest, check_name};
use crate::policy::{Owner, PolicyVersion};
use crate::rows::{forget_version, holdings, require_owner_in, successor};
use crate::tables::{
    COUNTERS, PLACEMENTS, POLICIES, RETIRING, SLOTS, TENANTS, TOKENS, key_of, table,
};

impl Store {
    /// Adds a tenant. The token is returned only this once.
    ///
    /// # Errors
    /// The name is invalid or taken, or there are too many tenants.
    pub fn add_tenant(&self, actor: Actor, tenant: &str) -> Result<Token, StoreError> {
        check_name("tenant", tenant)?;
        let token = Token::random()?;
        self.change(|change| {
            let mut tenants = change.open_table(TENANTS)?;
            if tenants.get(tenant)?.is_some() {
                return Err(StoreError::TenantExists {
                    tenant: tenant.to_owned(),
                });
            }
            if tenants.len()? >= limits::MAX_TENANTS {
                return Err(full("tenants", limits::MAX_TENANTS as usize));
            }
            let digest = token.digest().0;
            tenants.insert(tenant, digest)?;
            change.open_table(TOKENS)?.insert(digest, tenant)?;
            Ok(((), note(actor, Event::TenantAdd, json!({"tenant": tenant}))))
        })?;
        Ok(token)
    }

    /// Gives a tenant another token, which is returned only this once. The former token opens
    /// sessions for `grace` longer; a still older one ends now.
    ///
    /// # Errors
    /// There is no such tenant, or the grace period is too long.
    pub fn rotate_token(
        &self,
        actor: Actor,
        tenant: &str,
        grace: Duration,
    ) -> Result<Token, StoreError> {
        check_grace(grace)?;
        let token = Token::random()?;
        self.change(|change| {
            let mut tenants = change.open_table(TENANTS)?;
            let digest = token.digest().0;
            let before = tenants.insert(tenant, digest)?.map(|before| before.value());
            let before = before.ok_or_else(|| no_tenant(tenant))?;
            let mut tokens = change.open_table(TOKENS)?;
            tokens.remove(before)?;
            tokens.insert(digest, tenant)?;
            let (now, mut retiring) = (unix_ms(), change.open_table(RETIRING)?);
            retiring.retain(|_, (whose, until)| whose != tenant && now < until)?;
            let grace_ms = grace.as_millis() as u64;
            if grace_ms > 0 {
                retiring.insert(before, (tenant, now.saturating_add(grace_ms)))?;
            }
            let details = json!({"tenant": tenant, "grace_ms": grace_ms});
            Ok(((), note(actor, Event::TenantRotate, details)))
        })?;
        Ok(token)
    }

    /// Removes a tenant: its tokens, policies, attachments and placement, and the provider's
    /// attachments that name it. Returns what it had.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn remove_tenant(&self, actor: Actor, tenant: &str) -> Result<Holdings, StoreError> {
        self.change(|change| {
            let mut tenants = change.open_table(TENANTS)?;
            let digest = tenants.remove(tenant)?.map(|digest| digest.value());
            let digest = digest.ok_or_else(|| no_tenant(tenant))?;
            change.open_table(TOKENS)?.remove(digest)?;
            let mut retiring = change.open_table(RETIRING)?;
            retiring.retain(|_, (whose, _)| whose != tenant)?;
            change.open_table(PLACEMENTS)?.remove(tenant)?;
            let mut slots = change.open_table(SLOTS)?;
            let had = holdings(&change.open_table(POLICIES)?, &slots, tenant)?;
            for attachment in &had.attachments {
                slots.remove(key_of(attachment, attachment.target.owner().key()))?;
            }
            for policy in &had.policies {
                forget_version(change, tenant, policy)?;
            }
            let after = successor(tenant);
            let mut counters = change.open_table(COUNTERS)?;
            counters.retain_in((tenant, "")..(after.as_str(), ""), |_, _| false)?;
            let details = json!({
                "tenant": tenant, "policies": names_of(&had.policies), "versions": had.policies.len(),
                "attachments": had.attachments.len(),
            });
            Ok((had, note(actor, Event::TenantRemove, details)))
        })
    }

    /// A tenant's objects, which would end with it.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn holdings(&self, tenant: &str) -> Result<Holdings, StoreError> {
        self.read(|read| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            holdings(
                &read.open_table(POLICIES)?,
                &read.open_table(SLOTS)?,
                tenant,
            )
        })
    }

    /// The tenant with this token, or `None`. The look-up is by digest, so its duration reveals
    /// nothing about tokens.
    ///
    /// # Errors
    /// The file failed.
    pub fn authenticate(&self, token: &str) -> Result<Option<String>, StoreError> {
        self.tenant_of(&TokenDigest::of(token))
    }

    /// Like [`authenticate`](Self::authenticate), for a caller that has the token's digest.
    ///
    /// # Errors
    /// The file failed.
    pub fn tenant_of(&self, token: &TokenDigest) -> Result<Option<String>, StoreError> {
        self.read(|read| {
            let tokens = read.open_table(TOKENS)?;
            if let Some(tenant) = tokens.get(token.0)? {
                return Ok(Some(tenant.value().to_owned()));
            }
            let Some(retiring) = table(read, RETIRING)? else {
                return Ok(None);
            };
            let row = retiring.get(token.0)?;
            let row = row.as_ref().map(|row| row.value());
            let valid = row.filter(|(_, until)| unix_ms() < *until);
            Ok(valid.map(|(tenant, _)| tenant.to_owned()))
        })
    }

    /// The tenant's current token.
    ///
    /// # Errors
    /// The file failed.
    pub fn token_of(&self, tenant: &str) -> Result<Option<TokenDigest>, StoreError> {
        self.read(|read| {
            let digest = read.open_table(TENANTS)?.get(tenant)?;
            Ok(digest.map(|digest| TokenDigest(digest.value())))
        })
    }

    /// The time until a rotated token ends next; `None` if there is none.
    ///
    /// # Errors
    /// The file failed.
    pub fn next_token_ends(&self) -> Result<Option<Duration>, StoreError> {
        self.read(|read| {
            let Some(retiring) = table(read, RETIRING)? else {
                return Ok(None);
            };
            let (now, mut next) = (unix_ms(), None::<u64>);
            for row in retiring.iter()? {
                let (_, until) = row?.1.value();
                if now < until {
                    next = Some(next.map_or(until, |next| next.min(until)));
                }
            }
            Ok(next.map(|until| Duration::from_millis(until - now)))
        })
    }

    /// All tenants, by name.
    ///
    /// # Errors
    /// The file failed.
    pub fn tenants(&self) -> Result<Vec<String>, StoreError> {
        self.read(|read| {
            let tenants = read.open_table(TENANTS)?;
            let names = tenants.iter()?.map(|row| Ok(row?.0.value().to_owned()));
            names.collect()
        })
    }

    /// Checks that an owner exists; the provider always does.
    ///
    /// # Errors
    /// The owner doesn't exist, or the file failed.
    pub fn require_owner(&self, owner: &Owner) -> Result<(), StoreError> {
        self.read(|read| require_owner_in(&read.open_table(TENANTS)?, owner))
    }

    /// Tenants whose runtime an operator has set, with its number.
    ///
    /// # Errors
    /// The file failed.
    pub fn placements(&self) -> Result<BTreeMap<String, u32>, StoreError> {
        self.read(|read| {
            let placements = read.open_table(PLACEMENTS)?;
            let owned = |row: Result<_, redb::StorageError>| {
                let (tenant, runtime): (redb::AccessGuard<&str>, redb::AccessGuard<u32>) = row?;
                Ok((tenant.value().to_owned(), runtime.value()))
            };
            placements.iter()?.map(owned).collect()
        })
    }

    /// Sets a tenant's runtime; `None` removes the override.
    ///
    /// # Errors
    /// The tenant doesn't exist.
    pub fn place(
        &self,
        actor: Actor,
        details: Value,
        tenant: &str,
        runtime: Option<u32>,
    ) -> Result<(), StoreError> {
        self.change(|change| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&change.open_table(TENANTS)?, &owner)?;
            let mut placements = change.open_table(PLACEMENTS)?;
            match runtime {
                Some(runtime) => placements.insert(tenant, runtime)?,
                None => placements.remove(tenant)?,
            };
            Ok(((), note(actor, Event::TenantMove, details)))
        })
    }
}

/// The names of policies, each once.
fn names_of(policies: &[PolicyVersion]) -> BTreeSet<&str> {
    policies.iter().map(|policy| policy.name.as_str()).collect()
}

fn check_grace(grace: Duration) -> Result<(), StoreError> {
    let longest = limits::MAX_GRACE;
    if grace <= longest {
        return Ok(());
    }
    let most = longest.as_secs() / 3_600;
    let value = u32::try_from(grace.as_secs() / 3_600).unwrap_or(u32::MAX);
    Err(StoreError::OutOfRange {
        what: "grace in hours",
        value,
        least: 0,
        most: most as u32,
    })
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
