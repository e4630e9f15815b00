//! Credentials of tenants and of operators, and their tokens.
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
    /// There is no such tenant, the role isn't one of this owner's, the name is invalid or taken,
    /// the owner has too many credentials, or the lifetime is out of range.
    pub fn add_credential(
        &self,
        actor: Actor,
        owner: &Owner,
        name: &str,
        role: Role,
        lifetime: Option<Duration>,
    ) -> Result<Token, StoreError> {
        check_name("credential", name)?;
        check_role(owner, role)?;
        let end = lifetime.map_or(Ok(NEVER), end_of)?;
        let token = Token::random()?;
        self.change(|change| {
            require_owner(change, owner)?;
            let credentials = change.open_table(CREDENTIALS)?;
            if credentials.get((owner.key(), name))?.is_some() {
                return Err(StoreError::CredentialExists {
                    owner: owner.clone(),
                    credential: name.to_owned(),
                });
            }
            if names_of(&credentials, owner)?.len() >= limits::MAX_CREDENTIALS {
                return Err(full("credentials of this owner", limits::MAX_CREDENTIALS));
            }
            drop(credentials);
            put_credential(change, (owner, name, role), token.digest(), end, None)?;
            let expires = time_of(end).map(rfc3339);
            let mut details = details_of(owner, name);
            details["role"] = role.name().into();
            details["expires"] = expires.into();
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
        owner: &Owner,
        name: &str,
        grace: Duration,
    ) -> Result<Token, StoreError> {
        check_grace(grace)?;
        let token = Token::random()?;
        self.change(|change| {
            require_owner(change, owner)?;
            let (former, role, end) = forget(change, owner, name)?;
            let grace_ms = grace.as_millis() as u64;
            let former = (grace_ms > 0).then_some(former);
            put_credential(change, (owner, name, role), token.digest(), end, former)?;
            if let Some(former) = former {
                let until = unix_ms().saturating_add(grace_ms).min(end);
                let mut tokens = change.open_table(TOKENS)?;
                tokens.insert(former, (owner.key(), name, until))?;
            }
            let mut details = details_of(owner, name);
            details["grace_ms"] = grace_ms.into();
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
        owner: &Owner,
        name: &str,
    ) -> Result<(), StoreError> {
        self.change(|change| {
            let details = revoke(change, owner, name)?;
            Ok(((), note(actor, Event::CredentialRevoke, details)))
        })
    }

    /// An owner's credentials, by name, also expired ones.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn credentials(&self, owner: &Owner) -> Result<Vec<Credential>, StoreError> {
        self.read(|read| {
            require_owner_in(&read.open_table(TENANTS)?, owner)?;
            let (credentials, tokens) = (read.open_table(CREDENTIALS)?, read.open_table(TOKENS)?);
            let names = names_of(&credentials, owner)?.into_iter();
            let found = names.map(|name| {
                let (_, role, end, former) = row_of(&credentials, owner, &name)?;
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
            let Some((key, name, _)) = row.filter(|(_, _, end)| unix_ms() < *end) else {
                return Ok(None);
            };
            let owner = Owner::from_key(key);
            let (_, role, ..) = row_of(&read.open_table(CREDENTIALS)?, &owner, name)?;
            Ok(Some(Identity {
                owner,
                credential: name.to_owned(),
                role: Role::from_code(role),
            }))
        })
    }

    /// Who acts with a credential, and its current token; `None` if the credential has expired.
    ///
    /// # Errors
    /// There is no such tenant or credential, or the file failed.
    pub fn bearer_of(
        &self,
        owner: &Owner,
        name: &str,
    ) -> Result<Option<(Identity, TokenDigest)>, StoreError> {
        self.read(|read| {
            require_owner_in(&read.open_table(TENANTS)?, owner)?;
            let (token, role, end, _) = row_of(&read.open_table(CREDENTIALS)?, owner, name)?;
            let identity = Identity {
                owner: owner.clone(),
                credential: name.to_owned(),
                role: Role::from_code(role),
            };
            Ok((unix_ms() < end).then_some((identity, TokenDigest(token))))
        })
    }

    /// A credential's tokens: the current one, and the one before if that had a grace.
    ///
    /// # Errors
    /// There is no such tenant or credential, or the file failed.
    pub fn tokens_of(&self, owner: &Owner, name: &str) -> Result<Vec<TokenDigest>, StoreError> {
        self.read(|read| {
            require_owner_in(&read.open_table(TENANTS)?, owner)?;
            let (current, _, _, former) = row_of(&read.open_table(CREDENTIALS)?, owner, name)?;
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
    (owner, name, role): (&Owner, &str, Role),
    token: TokenDigest,
    end: u64,
    former: Option<Digest>,
) -> Result<(), StoreError> {
    let digest = token.0;
    let row = (digest, role.code(), end, former);
    change
        .open_table(CREDENTIALS)?
        .insert((owner.key(), name), row)?;
    let mut tokens = change.open_table(TOKENS)?;
    tokens.insert(digest, (owner.key(), name, end))?;
    Ok(())
}

/// Revokes a credential. Returns the details of the record.
pub(super) fn revoke(
    change: &WriteTransaction,
    owner: &Owner,
    name: &str,
) -> Result<Value, StoreError> {
    require_owner(change, owner)?;
    forget(change, owner, name)?;
    Ok(details_of(owner, name))
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

/// Adds a credential, or gives it this role, end and token. Another token ends all earlier ones at
/// once. If it keeps its token, a former one keeps its grace. Returns the event and the details of
/// the record.
pub(super) fn set_credential(
    change: &WriteTransaction,
    tenant: &str,
    name: &str,
    wanted: &WantedCredential,
) -> Result<(Event, Value), StoreError> {
    check_name("credential", name)?;
    let owner = &Owner::Tenant(tenant.to_owned());
    check_role(owner, wanted.role)?;
    require_owner(change, owner)?;
    let end = wanted.expires.map_or(Ok(NEVER), stored_end)?;
    let known = {
        let credentials = change.open_table(CREDENTIALS)?;
        let row = credentials.get((tenant, name))?.map(|row| row.value());
        if row.is_none() && names_of(&credentials, owner)?.len() >= limits::MAX_CREDENTIALS {
            return Err(full("credentials of this owner", limits::MAX_CREDENTIALS));
        }
        row
    };
    let before = known.map(|(digest, ..)| digest);
    let token = wanted.token.or(before.map(TokenDigest));
    let token = token.ok_or_else(|| StoreError::NoToken {
        tenant: tenant.to_owned(),
        credential: name.to_owned(),
    })?;
    let former = match known {
        Some((digest, .., Some(former))) if digest == token.0 => Some(former),
        _ => None,
    };
    let grace = {
        let tokens = change.open_table(TOKENS)?;
        let row = former.map(|former| tokens.get(former)).transpose()?;
        row.flatten().map(|row| row.value().2)
    };
    if known.is_some() {
        forget(change, owner, name)?;
    }
    if change.open_table(TOKENS)?.get(token.0)?.is_some() {
        return Err(StoreError::TokenTaken {
            tenant: tenant.to_owned(),
            credential: name.to_owned(),
        });
    }
    let former = former.zip(grace);
    let its = (owner, name, wanted.role);
    put_credential(change, its, token, end, former.map(|(digest, _)| digest))?;
    if let Some((digest, until)) = former {
        let mut tokens = change.open_table(TOKENS)?;
        tokens.insert(digest, (tenant, name, until.min(end)))?;
    }
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

/// Operators' credentials have a role that no tenant's has.
fn check_role(owner: &Owner, role: Role) -> Result<(), StoreError> {
    match (role == Role::Operator) == (*owner == Owner::Provider) {
        true => Ok(()),
        false => Err(StoreError::RoleOf {
            owner: owner.clone(),
            role: role.name(),
        }),
    }
}

/// What an audit record says of a credential. An operators' one has no tenant.
fn details_of(owner: &Owner, name: &str) -> Value {
    match owner {
        Owner::Provider => json!({"credential": name}),
        Owner::Tenant(tenant) => json!({"tenant": tenant, "credential": name}),
    }
}

/// Ends all credentials of an owner.
pub(super) fn forget_credentials(
    change: &WriteTransaction,
    owner: &Owner,
) -> Result<(), StoreError> {
    let names = names_of(&change.open_table(CREDENTIALS)?, owner)?;
    for name in names {
        forget(change, owner, &name)?;
    }
    Ok(())
}

/// Ends a credential with all its tokens. Returns its current token, its role and its end.
fn forget(
    change: &WriteTransaction,
    owner: &Owner,
    name: &str,
) -> Result<(Digest, Role, u64), StoreError> {
    let mut credentials = change.open_table(CREDENTIALS)?;
    let (digest, role, end, former) = row_of(&credentials, owner, name)?;
    credentials.remove((owner.key(), name))?;
    let mut tokens = change.open_table(TOKENS)?;
    tokens.remove(digest)?;
    if let Some(former) = former {
        tokens.remove(former)?;
    }
    Ok((digest, Role::from_code(role), end))
}

fn names_of(
    credentials: &impl ReadableTable<CredentialKey, CredentialRow>,
    owner: &Owner,
) -> Result<Vec<String>, StoreError> {
    let after = successor(owner.key());
    let rows = credentials.range((owner.key(), "")..(after.as_str(), ""))?;
    rows.map(|row| Ok(row?.0.value().1.to_owned())).collect()
}

fn row_of(
    credentials: &impl ReadableTable<CredentialKey, CredentialRow>,
    owner: &Owner,
    name: &str,
) -> Result<CredentialRow, StoreError> {
    let row = credentials.get((owner.key(), name))?.map(|row| row.value());
    row.ok_or_else(|| StoreError::NoCredential {
        owner: owner.clone(),
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
                let (key, name, _) = row.value();
                (Owner::from_key(key), name.to_owned())
            });
            let (owner, name) = row.expect("the token exists");
            tokens.insert(token.0, (owner.key(), &*name, 1))?;
            let mut credentials = change.open_table(CREDENTIALS)?;
            let (digest, role, _, former) = row_of(&credentials, &owner, &name)?;
            credentials.insert((owner.key(), &*name), (digest, role, 1, former))?;
            Ok(((), note(Actor::Daemon, Event::CredentialRevoke, json!({}))))
        });
        ended.expect("the store can be changed");
    }
}
