//! The tables of the state: their layout, how the file is opened, and how rows are read.
//!
//! ```text
//!   meta         "format"                                           -> 3;  "sequence" -> next place in a chain
//!   owners       tenant                                             -> nothing
//!   credentials  (tenant, credential)                               -> (SHA-256 of its token, role, end in ms since 1970, SHA-256 of the token before)
//!   digests      SHA-256 of a token                                 -> (tenant, credential, end in ms since 1970)
//!   modules      SHA-256 of a module                                -> (versions that use it, module)
//!   sizes        SHA-256 of a module                                -> its bytes
//!   policies     (owner, policy, version)                           -> (SHA-256 of its module, configuration or none)
//!   counters     (owner, policy)                                    -> the last version given out
//!   slots        (owner, tenant, service, method, side, party, policy) -> (place in the chain, versions and options as JSON)
//!   settings     a setting of the daemon's                          -> what it was set to at run time
//!   placements   a tenant that doesn't live where its name says     -> the number of its runtime
//!   ceilings     (tenant or, for the default, nothing; key)            -> value
//!   applied      (owner, who applied it, set, object)               -> nothing
//!   approvals    (tenant, number of a request)                         -> (SHA-256 of the token that asked, end in ms since 1970, what as JSON, the order)
//!   audit        "last"                                             -> the audit log's newest line
//!                "block"                                            -> the lines of the last transaction, if it had several
//! ```
//!
//! An owner is a tenant's name, or nothing for the provider; operators' credentials have nothing as
//! their tenant. An end of [`NEVER`] is none. A credential's current token ends with it; a token
//! that was replaced ends after its grace. A request for approval that is decided has no end and no
//! order.
//!
//! A file of an older format is carried over when it is opened, as a whole. Format 2 had one token
//! per tenant: `tenants` (tenant -> SHA-256 of its token), `tokens` (the reverse) and `retiring`
//! (SHA-256 of a token that was rotated -> tenant, end). Each token becomes the credential
//! [`FIRST_CREDENTIAL`], which opens sessions and administers nothing, as before. Format 1 had no
//! owners either, and `attachments` (tenant, service, method, side, policy) -> (place, version)
//! instead of `slots`.
//!
//! Invariants: every tenant of a credential, ceiling or request exists; `digests` has the
//! credentials' tokens, each with its credential's end, their tokens before that have a grace, and
//! no others; every policy's module is in `modules` with the number of its users, and no other;
//! `sizes` has the bytes of each of them; every version that a slot names is in `policies`.
//! [`crate::check`] compares them.

use redb::{
    Builder, Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, TableDefinition, TableError, WriteTransaction,
};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::limits;
use crate::model::{Attachment, FIRST_CREDENTIAL, Options, Party, Role, Side, Target};
use crate::slot::Slot;

pub(crate) type Digest = [u8; 32];

pub(crate) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(crate) const TENANTS: TableDefinition<&str, ()> = TableDefinition::new("owners");
pub(crate) const CREDENTIALS: TableDefinition<CredentialKey, CredentialRow> =
    TableDefinition::new("credentials");
pub(crate) const TOKENS: TableDefinition<Digest, TokenRow> = TableDefinition::new("digests");
pub(crate) const MODULES: TableDefinition<Digest, (u32, &[u8])> = TableDefinition::new("modules");
pub(crate) const SIZES: TableDefinition<Digest, u64> = TableDefinition::new("sizes");
pub(crate) const POLICIES: TableDefinition<PolicyKey, PolicyRow> = TableDefinition::new("policies");
pub(crate) const COUNTERS: TableDefinition<(&str, &str), u32> = TableDefinition::new("counters");
pub(crate) const SLOTS: TableDefinition<Place, (u64, &[u8])> = TableDefinition::new("slots");
pub(crate) const SETTINGS: TableDefinition<&str, &str> = TableDefinition::new("settings");
pub(crate) const PLACEMENTS: TableDefinition<&str, u32> = TableDefinition::new("placements");
pub(crate) const CEILINGS: TableDefinition<(&str, &str), &str> = TableDefinition::new("ceilings");
pub(crate) const APPLIED: TableDefinition<AppliedKey, ()> = TableDefinition::new("applied");
pub(crate) const APPROVALS: TableDefinition<ApprovalKey, ApprovalRow> =
    TableDefinition::new("approvals");
pub(crate) const AUDIT: TableDefinition<&str, &str> = TableDefinition::new("audit");

/// Of formats 1 and 2.
pub(crate) const TENANTS_2: TableDefinition<&str, Digest> = TableDefinition::new("tenants");
pub(crate) const TOKENS_2: TableDefinition<Digest, &str> = TableDefinition::new("tokens");
pub(crate) const RETIRING_2: TableDefinition<Digest, (&str, u64)> =
    TableDefinition::new("retiring");

/// Of format 1.
pub(crate) const ATTACHMENTS_1: TableDefinition<Place1, (u64, u32)> =
    TableDefinition::new("attachments");

/// Tenant, credential.
pub(crate) type CredentialKey = (&'static str, &'static str);

/// The current token's digest, the [role](crate::model::Role)'s code, the end, and the digest of
/// the token that was replaced last, if that had a grace.
pub(crate) type CredentialRow = (Digest, u8, u64, Option<Digest>);

/// Tenant, credential, and the end.
pub(crate) type TokenRow = (&'static str, &'static str, u64);

/// The object's owner; the tenant whose credential applied it, or nothing for an operator; the set;
/// the object.
pub(crate) type AppliedKey = (&'static str, &'static str, &'static str, &'static str);
/// Tenant, number.
pub(crate) type ApprovalKey = (&'static str, u64);

/// The digest of the token that asked, the end, what it is about, and the order.
pub(crate) type ApprovalRow = (Digest, u64, &'static [u8], &'static [u8]);

/// The end of what doesn't end.
pub(crate) const NEVER: u64 = u64::MAX;

/// Owner, policy, version.
pub(crate) type PolicyKey = (&'static str, &'static str, u32);

/// The module's digest, and the configuration.
pub(crate) type PolicyRow = (Digest, Option<&'static [u8]>);

/// Owner, tenant, service, method, side, party, policy.
pub(crate) type Place = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    u8,
    u8,
    &'static str,
);

/// Tenant, service, method, side, policy.
pub(crate) type Place1 = (&'static str, &'static str, &'static str, u8, &'static str);

/// What a slot's row has beside its place.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    pub(crate) options: Options,
}

/// The file's layout, as documented above.
pub(crate) const FORMAT: u32 = 3;

/// The key of the audit log's newest line.
pub(crate) const LAST: &str = "last";

/// The key of the lines of the last transaction, if it had several.
pub(crate) const BLOCK: &str = "block";

/// How the database is opened, wherever it is.
pub(crate) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(limits::CACHE_BYTES);
    builder
}

/// Makes the tables; carries a file of an older format over, and says which that was.
pub(crate) fn prepare(database: &Database, path: &str) -> Result<Option<u32>, StoreError> {
    // A start that has nothing to write needs no room.
    if is_prepared(&database.begin_read()?)? {
        return Ok(None);
    }
    let change = database.begin_write()?;
    let prepared = (|| {
        let mut meta = change.open_table(META)?;
        let found = meta.get("format")?.map(|format| format.value());
        let found = u32::try_from(found.unwrap_or(FORMAT.into())).unwrap_or(u32::MAX);
        if !(1..=FORMAT).contains(&found) {
            return Err(StoreError::Format {
                path: path.to_owned(),
                found,
                expected: FORMAT,
            });
        }
        meta.insert("format", u64::from(FORMAT))?;
        change.open_table(TENANTS)?;
        change.open_table(CREDENTIALS)?;
        change.open_table(TOKENS)?;
        change.open_table(MODULES)?;
        change.open_table(POLICIES)?;
        change.open_table(COUNTERS)?;
        change.open_table(SLOTS)?;
        change.open_table(SETTINGS)?;
        change.open_table(PLACEMENTS)?;
        change.open_table(CEILINGS)?;
        change.open_table(APPLIED)?;
        change.open_table(APPROVALS)?;
        change.open_table(AUDIT)?;
        measure_modules(&change)?;
        if found == 1 {
            attachments_to_slots(&change)?;
        }
        if found <= 2 {
            tokens_to_credentials(&change)?;
        }
        Ok((found != FORMAT).then_some(found))
    })();
    match prepared {
        Ok(_) => change.commit()?,
        Err(_) => change.abort()?,
    }
    prepared
}

pub(crate) fn format_of(read: &ReadTransaction) -> Result<Option<u64>, StoreError> {
    let Some(meta) = table(read, META)? else {
        return Ok(None);
    };
    Ok(meta.get("format")?.map(|format| format.value()))
}

pub(crate) fn is_prepared(read: &ReadTransaction) -> Result<bool, StoreError> {
    Ok(format_of(read)? == Some(FORMAT.into())
        && table(read, TENANTS)?.is_some()
        && table(read, CREDENTIALS)?.is_some()
        && table(read, TOKENS)?.is_some()
        && are_measured(read)?
        && table(read, POLICIES)?.is_some()
        && table(read, COUNTERS)?.is_some()
        && table(read, SLOTS)?.is_some()
        && table(read, SETTINGS)?.is_some()
        && table(read, PLACEMENTS)?.is_some()
        && table(read, CEILINGS)?.is_some()
        && table(read, APPLIED)?.is_some()
        && table(read, APPROVALS)?.is_some()
        && table(read, AUDIT)?.is_some())
}

/// Whether every module has its size. A daemon that predates the sizes may have added modules.
fn are_measured(read: &ReadTransaction) -> Result<bool, StoreError> {
    Ok(match (table(read, MODULES)?, table(read, SIZES)?) {
        (Some(modules), Some(sizes)) => modules.len()? == sizes.len()?,
        _ => false,
    })
}

/// Notes the size of every module: a module is read as a whole to learn it.
fn measure_modules(change: &WriteTransaction) -> Result<(), StoreError> {
    let (modules, mut sizes) = (change.open_table(MODULES)?, change.open_table(SIZES)?);
    if modules.len()? == sizes.len()? {
        return Ok(());
    }
    sizes.retain(|_, _| false)?;
    for row in modules.iter()? {
        let (digest, row) = row?;
        sizes.insert(digest.value(), row.value().1.len() as u64)?;
    }
    Ok(())
}

/// Format 1's attachments, each a version that decides under today's default conditions, which are
/// those that it had.
fn attachments_to_slots(change: &WriteTransaction) -> Result<(), StoreError> {
    {
        let old = change.open_table(ATTACHMENTS_1)?;
        let mut slots = change.open_table(SLOTS)?;
        for row in old.iter()? {
            let (key, value) = row?;
            let ((tenant, service, method, side, name), (place, version)) =
                (key.value(), value.value());
            let row = encode(&Slot::enforcing(version), &Options::default())?;
            let party = Party::Tenant.code();
            let key = (tenant, tenant, service, method, side, party, name);
            slots.insert(key, (place, row.as_slice()))?;
        }
    }
    change.delete_table(ATTACHMENTS_1)?;
    Ok(())
}

/// Format 2's tokens, each a credential that can do as much as the token could: open sessions.
fn tokens_to_credentials(change: &WriteTransaction) -> Result<(), StoreError> {
    {
        let (old, retiring) = (
            change.open_table(TENANTS_2)?,
            change.open_table(RETIRING_2)?,
        );
        let mut tenants = change.open_table(TENANTS)?;
        let mut credentials = change.open_table(CREDENTIALS)?;
        let mut tokens = change.open_table(TOKENS)?;
        for row in old.iter()? {
            let (tenant, digest) = row?;
            let (tenant, digest) = (tenant.value(), digest.value());
            tenants.insert(tenant, ())?;
            let key = (tenant, FIRST_CREDENTIAL);
            credentials.insert(key, (digest, Role::Application.code(), NEVER, None))?;
            tokens.insert(digest, (tenant, FIRST_CREDENTIAL, NEVER))?;
        }
        // At most one of a tenant.
        for row in retiring.iter()? {
            let (former, row) = row?;
            let (former, (tenant, until)) = (former.value(), row.value());
            let key = (tenant, FIRST_CREDENTIAL);
            let Some((digest, role, end, _)) = credentials.get(key)?.map(|row| row.value()) else {
                continue;
            };
            credentials.insert(key, (digest, role, end, Some(former)))?;
            tokens.insert(former, (tenant, FIRST_CREDENTIAL, until))?;
        }
    }
    change.delete_table(TENANTS_2)?;
    change.delete_table(TOKENS_2)?;
    change.delete_table(RETIRING_2)?;
    Ok(())
}

/// `None`: there is no such table.
pub(crate) fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    read: &ReadTransaction,
    table: TableDefinition<K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, StoreError> {
    match read.open_table(table) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// The audit log's newest lines, of one transaction; none in a database without tables, too.
pub(crate) fn last_record(database: &Database) -> Result<Option<String>, StoreError> {
    newest_lines(&database.begin_read()?)
}

/// Like [`last_record`], within a transaction.
pub(crate) fn newest_lines(read: &ReadTransaction) -> Result<Option<String>, StoreError> {
    let Some(audit) = table(read, AUDIT)? else {
        return Ok(None);
    };
    let last = audit.get(LAST)?.map(|line| line.value().to_owned());
    let block = audit.get(BLOCK)?.map(|lines| lines.value().to_owned());
    // A daemon that predates blocks leaves an older one behind its own line.
    let is_last = |block: &String| block.lines().next_back() == last.as_deref();
    Ok(block.filter(is_last).or(last))
}

pub(crate) fn encode(slot: &Slot, options: &Options) -> Result<Vec<u8>, StoreError> {
    let row = Row {
        slot: slot.clone(),
        options: options.clone(),
    };
    serde_json::to_vec(&row).map_err(|error| StoreError::Unreadable { error })
}

/// Owner, tenant, service, method, side, party, policy.
pub(crate) type KeyOf<'a> = (&'a str, &'a str, &'a str, &'a str, u8, u8, &'a str);

pub(crate) fn key_of<'a>(attachment: &'a Attachment, owner: &'a str) -> KeyOf<'a> {
    let Target {
        party,
        tenant,
        service,
        method,
        side,
    } = &attachment.target;
    let (side, party) = (side.code(), party.code());
    (
        owner,
        tenant,
        service,
        method,
        side,
        party,
        &attachment.policy,
    )
}

/// Rows as attachments, in the order in which they were attached.
pub(crate) fn in_order(
    rows: redb::Range<'_, Place, (u64, &'static [u8])>,
) -> Result<Vec<Attachment>, StoreError> {
    let mut placed = Vec::new();
    for row in rows {
        let (key, value) = row?;
        let ((_, tenant, service, method, side, party, name), (place, row)) =
            (key.value(), value.value());
        let target = Target {
            party: Party::from_code(party),
            tenant: tenant.to_owned(),
            service: service.to_owned(),
            method: method.to_owned(),
            side: Side::from_code(side),
        };
        let row = serde_json::from_slice(row).map_err(|error| StoreError::Unreadable { error });
        let Row { slot, options } = row?;
        let policy = name.to_owned();
        placed.push((
            place,
            Attachment {
                target,
                policy,
                slot,
                options,
            },
        ));
    }
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed
        .into_iter()
        .map(|(_, attachment)| attachment)
        .collect())
}
