//! Tenants' credentials and their tokens.
//!
//! A token ends when its credential ends, is revoked or gets another token; then it may have a
//! grace. The look-up is by digest, so its duration reveals nothing about tokens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, WriteTransaction};
use serde_json::{Value, json};

use super::{Store, note};
use crate::audit::{Actor, Event, rfc3339};
use crate::error::{StoreError, full};
use crate::limits;
use crate::model::{Credential, Identity, Role, Token, TokenDigest, check_name};
use crate::policy::Owner;
use crate::rows::{require_owner, require_owner_in, successor};
use crate::tables::{CREDENTIALS, CredentialKey, CredentialRow, Digest, NEVER, TENANTS, TOKENS};

impl Store {
    /// Adds a credential, which expires after `lifetime` if there is one. The token is returned
    /// only this once.
    ///
    /// # Errors
    /// There is no such tenant, the name is invalid or taken, the tenant has too many credentials,
    /// or the lifetime is out of range.
    pub fn add_credential(
        &self,
        actor: Actor,
        tenant: &str,
        name: &str,
        role: Role,
        lifetime: Option<Duration>,
    ) -> Result<Token, StoreError> {
        check_name("credential", name)?;
        let end = lifetime.map_or(Ok(NEVER), end_of)?;
        let token = Token::random()?;
        self.change(|change| {
            require_owner(change, &Owner::Tenant(tenant.to_owned()))?;
            let credentials = change.open_table(CREDENTIALS)?;
            if credentials.get((tenant, name))?.is_some() {
                return Err(StoreError::CredentialExists {
                    tenant: tenant.to_owned(),
                    credential: name.to_owned(),
                });
            }
            if names_of(&credentials, tenant)?.len() >= limits::MAX_CREDENTIALS {
                return Err(full("credentials of this tenant", limits::MAX_CREDENTIALS));
            }
            drop(credentials);
            put_credential(change, (tenant, name, role), token.digest(), end, None)?;
            let expires = time_of(end).map(rfc3339);
            let details = json!({"tenant": tenant, "credential": name, "role": role.name(), "expires": expires});
            Ok(((), note(actor, Event::CredentialAdd, details)))
        })?;
        Ok(token)
    }

    /// Gives a credential another token, which is returned only this once. The former token is
    /// valid for `grace` longer; a still older one ends now.
    ///
    /// # Errors
    /// There is no such tenant or credential, or the grace period is too long.
    pub fn rotate_credential(
        &self,
        actor: Actor,
        tenant: &str,
        name: &str,
        grace: Duration,
    ) -> Result<Token, StoreError> {
        check_grace(grace)?;
        let token = Token::random()?;
        self.change(|change| {
            require_owner(change, &Owner::Tenant(tenant.to_owned()))?;
            let (former, role, end) = forget(change, tenant, name)?;
            let grace_ms = grace.as_millis() as u64;
            let former = (grace_ms > 0).then_some(former);
            put_credential(change, (tenant, name, role), token.digest(), end, former)?;
            if let Some(former) = former {
                let until = unix_ms().saturating_add(grace_ms).min(end);
                let mut tokens = change.open_table(TOKENS)?;
                tokens.insert(former, (tenant, name, until))?;
            }
            let details = json!({"tenant": tenant, "credential": name, "grace_ms": grace_ms});
            Ok(((), note(actor, Event::CredentialRotate, details)))
        })?;
        Ok(token)
    }

    /// Ends a credential with all its tokens.
    ///
    /// # Errors
    /// There is no such tenant or credential.
    pub fn revoke_credential(
        &self,
        actor: Actor,
        tenant: &str,
        name: &str,
    ) -> Result<(), StoreError> {
        self.change(|change| {
            let details = revoke(change, tenant, name)?;
            Ok(((), note(actor, Event::CredentialRevoke, details)))
        })
    }

    /// A tenant's credentials, by name, also expired ones.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn credentials(&self, tenant: &str) -> Result<Vec<Credential>, StoreError> {
        self.read(|read| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            let (credentials, tokens) = (read.open_table(CREDENTIALS)?, read.open_table(TOKENS)?);
            let names = names_of(&credentials, tenant)?.into_iter();
            let found = names.map(|name| {
                let (_, role, end, former) = row_of(&credentials, tenant, &name)?;
                let former = former
                    .map(|digest| tokens.get(digest))
                    .transpose()?
                    .flatten();
                let former = former.map(|row| row.value().2);
                Ok(Credential {
                    role: Role::from_code(role),
                    expires: time_of(end),
                    former_until: former.filter(|end| unix_ms() < *end).and_then(time_of),
                    name,
                })
            });
            found.collect()
        })
    }

    /// Whose token this is, or `None`.
    ///
    /// # Errors
    /// The file failed.
    pub fn authenticate(&self, token: &str) -> Result<Option<Identity>, StoreError> {
        self.identity_of(&TokenDigest::of(token))
    }

    /// Like [`authenticate`](Self::authenticate), for a caller that has the token's digest.
    ///
    /// # Errors
    /// The file failed.
    pub fn identity_of(&self, token: &TokenDigest) -> Result<Option<Identity>, StoreError> {
        self.read(|read| {
            let tokens = read.open_table(TOKENS)?;
            let row = tokens.get(token.0)?;
            let row = row.as_ref().map(|row| row.value());
            let Some((tenant, name, _)) = row.filter(|(_, _, end)| unix_ms() < *end) else {
                return Ok(None);
            };
            let (_, role, ..) = row_of(&read.open_table(CREDENTIALS)?, tenant, name)?;
            Ok(Some(Identity {
                tenant: tenant.to_owned(),
                credential: name.to_owned(),
                role: Role::from_code(role),
            }))
        })
    }

    /// A credential's tokens: the current one, and the one before if that had a grace.
    ///
    /// # Errors
    /// There is no such tenant or credential, or the file failed.
    pub fn tokens_of(&self, tenant: &str, name: &str) -> Result<Vec<TokenDigest>, StoreError> {
        self.read(|read| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            let (current, _, _, former) = row_of(&read.open_table(CREDENTIALS)?, tenant, name)?;
            let tokens = std::iter::once(current).chain(former);
            Ok(tokens.map(TokenDigest).collect())
        })
    }

    /// The time until a valid token ends next; `None` if none ends.
    ///
    /// # Errors
    /// The file failed.
    pub fn next_token_ends(&self) -> Result<Option<Duration>, StoreError> {
        self.read(|read| {
            let (now, mut next) = (unix_ms(), NEVER);
            for row in read.open_table(TOKENS)?.iter()? {
                let (_, _, end) = row?.1.value();
                if now < end {
                    next = next.min(end);
                }
            }
            Ok((next != NEVER).then(|| Duration::from_millis(next - now)))
        })
    }
}

/// Adds a credential, or gives it this token. `former` is the token before, if it has a grace.
pub(super) fn put_credential(
    change: &WriteTransaction,
    (tenant, name, role): (&str, &str, Role),
    token: TokenDigest,
    end: u64,
    former: Option<Digest>,
) -> Result<(), StoreError> {
    let digest = token.0;
    let row = (digest, role.code(), end, former);
    change
        .open_table(CREDENTIALS)?
        .insert((tenant, name), row)?;
    let mut tokens = change.open_table(TOKENS)?;
    tokens.insert(digest, (tenant, name, end))?;
    Ok(())
}

/// Revokes a credential. Returns the details of the record.
pub(super) fn revoke(
    change: &WriteTransaction,
    tenant: &str,
    name: &str,
) -> Result<Value, StoreError> {
    require_owner(change, &Owner::Tenant(tenant.to_owned()))?;
    forget(change, tenant, name)?;
    Ok(json!({"tenant": tenant, "credential": name}))
}

/// A credential as documents describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedCredential {
    /// What its bearer may do.
    pub role: Role,
    /// Its token; `None`: it keeps the one that it has.
    pub token: Option<TokenDigest>,
    /// When it ends; `None`: when it is revoked. A time in the past is one at which it has ended.
    pub expires: Option<SystemTime>,
}

/// Adds a credential, or gives it this role, end and token. Another token ends the former one at
/// once. Returns the event and the details of the record.
pub(super) fn set_credential(
    change: &WriteTransaction,
    tenant: &str,
    name: &str,
    wanted: &WantedCredential,
) -> Result<(Event, Value), StoreError> {
    check_name("credential", name)?;
    require_owner(change, &Owner::Tenant(tenant.to_owned()))?;
    let end = wanted.expires.map_or(Ok(NEVER), stored_end)?;
    let known = {
        let credentials = change.open_table(CREDENTIALS)?;
        let row = credentials.get((tenant, name))?.map(|row| row.value());
        if row.is_none() && names_of(&credentials, tenant)?.len() >= limits::MAX_CREDENTIALS {
            return Err(full("credentials of this tenant", limits::MAX_CREDENTIALS));
        }
        row
    };
    let known = known.map(|_| forget(change, tenant, name)).transpose()?;
    let before = known.as_ref().map(|known| known.0);
    let token = wanted.token.or(before.map(TokenDigest));
    let token = token.ok_or_else(|| StoreError::NoToken {
        tenant: tenant.to_owned(),
        credential: name.to_owned(),
    })?;
    if change.open_table(TOKENS)?.get(token.0)?.is_some() {
        return Err(StoreError::TokenTaken {
            tenant: tenant.to_owned(),
            credential: name.to_owned(),
        });
    }
    put_credential(change, (tenant, name, wanted.role), token, end, None)?;
    let event = match before {
        None => Event::CredentialAdd,
        Some(before) if before != token.0 => Event::CredentialRotate,
        Some(_) => Event::CredentialChange,
    };
    let expires = time_of(end).map(rfc3339);
    let details = json!({
        "tenant": tenant, "credential": name, "role": wanted.role.name(), "expires": expires,
    });
    Ok((event, details))
}

/// The end of a credential with this end, as it is stored.
///
/// # Errors
/// It is too far away.
fn stored_end(end: SystemTime) -> Result<u64, StoreError> {
    let since = end.duration_since(UNIX_EPOCH).unwrap_or_default();
    let end = u64::try_from(since.as_millis()).unwrap_or(NEVER);
    let lifetime = end.saturating_sub(unix_ms());
    match lifetime <= limits::MAX_LIFETIME.as_millis() as u64 {
        true => Ok(end),
        false => Err(StoreError::Lifetime {
            seconds: lifetime / 1_000,
        }),
    }
}

/// Ends all credentials of a tenant.
pub(super) fn forget_credentials(
    change: &WriteTransaction,
    tenant: &str,
) -> Result<(), StoreError> {
    let names = names_of(&change.open_table(CREDENTIALS)?, tenant)?;
    for name in names {
        forget(change, tenant, &name)?;
    }
    Ok(())
}

/// Ends a credential with all its tokens. Returns its current token, its role and its end.
fn forget(
    change: &WriteTransaction,
    tenant: &str,
    name: &str,
) -> Result<(Digest, Role, u64), StoreError> {
    let mut credentials = change.open_table(CREDENTIALS)?;
    let (digest, role, end, former) = row_of(&credentials, tenant, name)?;
    credentials.remove((tenant, name))?;
    let mut tokens = change.open_table(TOKENS)?;
    tokens.remove(digest)?;
    if let Some(former) = former {
        tokens.remove(former)?;
    }
    Ok((digest, Role::from_code(role), end))
}

fn names_of(
    credentials: &impl ReadableTable<CredentialKey, CredentialRow>,
    tenant: &str,
) -> Result<Vec<String>, StoreError> {
    let after = successor(tenant);
    let rows = credentials.range((tenant, "")..(after.as_str(), ""))?;
    rows.map(|row| Ok(row?.0.value().1.to_owned())).collect()
}

fn row_of(
    credentials: &impl ReadableTable<CredentialKey, CredentialRow>,
    tenant: &str,
    name: &str,
) -> Result<CredentialRow, StoreError> {
    let row = credentials.get((tenant, name))?.map(|row| row.value());
    row.ok_or_else(|| StoreError::NoCredential {
        tenant: tenant.to_owned(),
        credential: name.to_owned(),
    })
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

/// The end of a credential that is added now.
fn end_of(lifetime: Duration) -> Result<u64, StoreError> {
    if (limits::MIN_LIFETIME..=limits::MAX_LIFETIME).contains(&lifetime) {
        return Ok(unix_ms().saturating_add(lifetime.as_millis() as u64));
    }
    let seconds = lifetime.as_secs();
    Err(StoreError::Lifetime { seconds })
}

pub(super) fn time_of(end: u64) -> Option<SystemTime> {
    (end != NEVER).then(|| UNIX_EPOCH + Duration::from_millis(end))
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

#[cfg(test)]
impl Store {
    /// Moves a token's end, and its credential's, into the past.
    pub(crate) fn end_token(&self, token: &TokenDigest) {
        let ended = self.change(|change| {
            let mut tokens = change.open_table(TOKENS)?;
            let row = tokens.get(token.0)?.map(|row| {
                let (tenant, name, _) = row.value();
                (tenant.to_owned(), name.to_owned())
            });
            let (tenant, name) = row.expect("the token exists");
            tokens.insert(token.0, (&*tenant, &*name, 1))?;
            let mut credentials = change.open_table(CREDENTIALS)?;
            let (digest, role, _, former) = row_of(&credentials, &tenant, &name)?;
            credentials.insert((&*tenant, &*name), (digest, role, 1, former))?;
            Ok(((), note(Actor::Daemon, Event::CredentialRevoke, json!({}))))
        });
        ended.expect("the store can be changed");
    }
}
