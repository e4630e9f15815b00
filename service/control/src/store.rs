//! The store: six tables in one file, every change one transaction.
//!
//! ```text
//!   meta         "format"                                   -> 1;  "sequence" -> next place in a chain
//!   tenants      tenant                                     -> SHA-256 of its token
//!   tokens       SHA-256 of a token                         -> tenant
//!   modules      SHA-256 of a module                        -> (versions that use it, module)
//!   policies     (tenant, policy, version)                  -> (SHA-256 of its module, configuration or none)
//!   counters     (tenant, policy)                           -> the last version given out
//!   attachments  (tenant, service, method, side, policy)    -> (place in the chain, version)
//! ```
//!
//! Invariants: `tokens` is `tenants` turned round; every policy's module is in `modules` with the number of
//! its users, and no other; every attachment's
//! version is in `policies`. A crash leaves the state before or after a change, never between. A module is validated
//! before it is pushed: the store takes its caller's word for that, and only bounds its size.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition, WriteTransaction,
};
use sha2::{Digest as _, Sha256};

use crate::error::StoreError;
use crate::limits;
use crate::model::{
    Attachment, Detach, PolicyBytes, PolicyInfo, PolicyVersion, Side, Target, Token, check_name,
    check_target, hex,
};

type Digest = [u8; 32];

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const TENANTS: TableDefinition<&str, Digest> = TableDefinition::new("tenants");
const TOKENS: TableDefinition<Digest, &str> = TableDefinition::new("tokens");
const MODULES: TableDefinition<Digest, (u32, &[u8])> = TableDefinition::new("modules");
const POLICIES: TableDefinition<PolicyKey, PolicyRow> = TableDefinition::new("policies");
const COUNTERS: TableDefinition<(&str, &str), u32> = TableDefinition::new("counters");
const ATTACHMENTS: TableDefinition<Place, (u64, u32)> = TableDefinition::new("attachments");

/// Tenant, policy, version.
type PolicyKey = (&'static str, &'static str, u32);

/// The module's digest, and the configuration.
type PolicyRow = (Digest, Option<&'static [u8]>);

/// Tenant, service, method, side, policy.
type Place = (&'static str, &'static str, &'static str, u8, &'static str);

/// The file's layout, as documented above.
const FORMAT: u32 = 1;

/// The file's name in the state directory.
const FILE: &str = "tollgate.redb";

/// What a daemon was told to do, kept across restarts.
#[derive(Debug)]
pub struct Store {
    database: Database,
}

impl Store {
    /// Opens the state in a directory; creates both if missing, for the daemon's own user only.
    ///
    /// # Errors
    /// The directory or file can't be used, another daemon has it open, or it is of another format.
    pub fn open(state: &Path) -> Result<Store, StoreError> {
        let path = state.display().to_string();
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state);
        made.map_err(|error| StoreError::Directory {
            path: path.clone(),
            error,
        })?;
        let opened = Builder::new()
            .set_cache_size(limits::CACHE_BYTES)
            .create(state.join(FILE));
        let database = match opened {
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(StoreError::InUse { path }),
            opened => opened?,
        };
        Store::prepare(database, path)
    }

    /// A store that ends with the process.
    ///
    /// # Errors
    /// Only if the database itself is broken.
    pub fn in_memory() -> Result<Store, StoreError> {
        let backend = InMemoryBackend::new();
        let database = Builder::new()
            .set_cache_size(limits::CACHE_BYTES)
            .create_with_backend(backend)?;
        Store::prepare(database, "memory".to_owned())
    }

    fn prepare(database: Database, path: String) -> Result<Store, StoreError> {
        let store = Store { database };
        store.change(|change| {
            let mut meta = change.open_table(META)?;
            let found = meta.get("format")?.map(|format| format.value());
            let found = u32::try_from(found.unwrap_or(FORMAT.into())).unwrap_or(u32::MAX);
            if found != FORMAT {
                return Err(StoreError::Format {
                    path,
                    found,
                    expected: FORMAT,
                });
            }
            meta.insert("format", u64::from(FORMAT))?;
            change.open_table(TENANTS)?;
            change.open_table(TOKENS)?;
            change.open_table(MODULES)?;
            change.open_table(POLICIES)?;
            change.open_table(COUNTERS)?;
            change.open_table(ATTACHMENTS)?;
            Ok(())
        })?;
        Ok(store)
    }

    // ---- tenants ----

    /// Adds a tenant; the token is returned this once.
    ///
    /// # Errors
    /// The name is none, taken, or one too many.
    pub fn add_tenant(&self, tenant: &str) -> Result<Token, StoreError> {
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
            let digest = sha256(token.reveal().as_bytes());
            tenants.insert(tenant, digest)?;
            change.open_table(TOKENS)?.insert(digest, tenant)?;
            Ok(())
        })?;
        Ok(token)
    }

    /// The tenant whose token this is, or `None`. The look-up is by digest, so its time tells nothing about tokens.
    ///
    /// # Errors
    /// The file failed.
    pub fn authenticate(&self, token: &str) -> Result<Option<String>, StoreError> {
        let tokens = self.database.begin_read()?.open_table(TOKENS)?;
        let tenant = tokens.get(sha256(token.as_bytes()))?;
        Ok(tenant.map(|tenant| tenant.value().to_owned()))
    }

    /// All tenants, by name.
    ///
    /// # Errors
    /// The file failed.
    pub fn tenants(&self) -> Result<Vec<String>, StoreError> {
        let tenants = self.database.begin_read()?.open_table(TENANTS)?;
        tenants
            .iter()?
            .map(|row| Ok(row?.0.value().to_owned()))
            .collect()
    }

    // ---- policies ----

    /// Stores a module, already validated, as the next version of a policy.
    ///
    /// # Errors
    /// The tenant doesn't exist, the name is none, something is too large, or there are too many.
    pub fn push_policy(
        &self,
        tenant: &str,
        name: &str,
        wasm: &[u8],
        config: Option<&[u8]>,
    ) -> Result<PolicyVersion, StoreError> {
        check_name("policy", name)?;
        check_size("module", wasm.len(), limits::MAX_MODULE_BYTES)?;
        check_size(
            "configuration",
            config.map_or(0, <[u8]>::len),
            limits::MAX_CONFIG_BYTES,
        )?;
        self.change(|change| {
            require_tenant(change, tenant)?;
            let mut counters = change.open_table(COUNTERS)?;
            let last = counters.get((tenant, name))?.map(|last| last.value());
            if last.is_none() && policies_of(&counters, tenant)? >= limits::MAX_POLICIES {
                return Err(full("policies of this tenant", limits::MAX_POLICIES));
            }
            let exhausted = full("versions of this policy", u32::MAX as usize);
            let version = last.unwrap_or(0).checked_add(1).ok_or(exhausted)?;
            make_room(change, tenant, name)?;
            counters.insert((tenant, name), version)?;
            let digest = sha256(wasm);
            use_module(change, digest, wasm)?;
            change
                .open_table(POLICIES)?
                .insert((tenant, name, version), (digest, config))?;
            Ok(PolicyVersion {
                name: name.to_owned(),
                version,
            })
        })
    }

    /// Everything needed to load a version of a policy.
    ///
    /// # Errors
    /// There is none, or its module is lost.
    pub fn policy(&self, tenant: &str, policy: &PolicyVersion) -> Result<PolicyBytes, StoreError> {
        let read = self.database.begin_read()?;
        let row = read.open_table(POLICIES)?;
        let row = row.get((tenant, policy.name.as_str(), policy.version))?;
        let row = row.ok_or_else(|| no_policy(tenant, policy))?;
        let (digest, config) = row.value();
        let module = read.open_table(MODULES)?.get(digest)?;
        let module = module.ok_or_else(|| StoreError::ModuleLost {
            digest: hex(&digest),
        })?;
        let config = config.map(<[u8]>::to_vec);
        Ok(PolicyBytes {
            digest,
            wasm: module.value().1.to_vec(),
            config,
        })
    }

    /// All versions of all policies, by tenant, name and version.
    ///
    /// # Errors
    /// The file failed, or lost a module.
    pub fn policies(&self) -> Result<Vec<PolicyInfo>, StoreError> {
        let read = self.database.begin_read()?;
        let modules = read.open_table(MODULES)?;
        let mut infos = Vec::new();
        for row in read.open_table(POLICIES)?.iter()? {
            let (key, value) = row?;
            let ((tenant, name, version), (digest, _)) = (key.value(), value.value());
            let module = modules.get(digest)?;
            let module = module.ok_or_else(|| StoreError::ModuleLost {
                digest: hex(&digest),
            })?;
            infos.push(PolicyInfo {
                tenant: tenant.to_owned(),
                policy: PolicyVersion {
                    name: name.to_owned(),
                    version,
                },
                digest,
                module_bytes: module.value().1.len() as u64,
            });
        }
        Ok(infos)
    }

    // ---- attachments ----

    /// Attaches a policy at the end of the target's chain, or puts this version in the place of another.
    ///
    /// # Errors
    /// The target's names are none, there is no such tenant or policy, or there are too many attachments.
    pub fn attach(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let Attachment { target, policy } = attachment;
        check_target(target)?;
        let tenant = target.tenant.as_str();
        self.change(|change| {
            require_tenant(change, tenant)?;
            let policies = change.open_table(POLICIES)?;
            if policies
                .get((tenant, policy.name.as_str(), policy.version))?
                .is_none()
            {
                return Err(no_policy(tenant, policy));
            }
            let mut attachments = change.open_table(ATTACHMENTS)?;
            let (service, method) = (target.service.as_str(), target.method.as_str());
            let key = (
                tenant,
                service,
                method,
                target.side.code(),
                policy.name.as_str(),
            );
            let place = attachments.get(key)?.map(|row| row.value().0);
            let place = match place {
                Some(place) => place,
                None => {
                    if attached_to(&attachments, tenant)?.len() >= limits::MAX_ATTACHMENTS {
                        return Err(full("attachments of this tenant", limits::MAX_ATTACHMENTS));
                    }
                    next_place(change)?
                }
            };
            attachments.insert(key, (place, policy.version))?;
            Ok(())
        })
    }

    /// Ends a policy's attachments, of whatever version, that `which` selects; returns them.
    ///
    /// # Errors
    /// There is no such tenant, or nothing was selected.
    pub fn detach(
        &self,
        tenant: &str,
        policy: &str,
        which: &Detach,
    ) -> Result<Vec<Attachment>, StoreError> {
        self.change(|change| {
            require_tenant(change, tenant)?;
            let mut attachments = change.open_table(ATTACHMENTS)?;
            let selected = |Attachment {
                                target,
                                policy: version,
                            }: &Attachment| {
                version.name == policy
                    && which
                        .service
                        .as_ref()
                        .is_none_or(|service| *service == target.service)
                    && which
                        .method
                        .as_ref()
                        .is_none_or(|method| *method == target.method)
                    && which.side.is_none_or(|side| side == target.side)
            };
            let mut ended = attached_to(&attachments, tenant)?;
            ended.retain(selected);
            if ended.is_empty() {
                let (tenant, policy) = (tenant.to_owned(), policy.to_owned());
                return Err(StoreError::NotAttached { tenant, policy });
            }
            for Attachment { target, .. } in &ended {
                let (service, method) = (target.service.as_str(), target.method.as_str());
                attachments.remove((tenant, service, method, target.side.code(), policy))?;
            }
            Ok(ended)
        })
    }

    /// All attachments; those of one target follow each other in the chain's order.
    ///
    /// # Errors
    /// The file failed.
    pub fn attachments(&self) -> Result<Vec<Attachment>, StoreError> {
        let attachments = self.database.begin_read()?.open_table(ATTACHMENTS)?;
        in_order(attachments.iter()?)
    }

    // ---- inside ----

    /// One transaction: all of what `make` does, or, if it fails, nothing.
    fn change<T>(
        &self,
        make: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let change = self.database.begin_write()?;
        let made = make(&change);
        match made {
            Ok(_) => change.commit()?,
            Err(_) => change.abort()?,
        }
        made
    }
}

/// Rows as attachments, in the order in which they were attached.
fn in_order(rows: redb::Range<'_, Place, (u64, u32)>) -> Result<Vec<Attachment>, StoreError> {
    let mut placed = Vec::new();
    for row in rows {
        let (key, value) = row?;
        let ((tenant, service, method, side, name), (place, version)) =
            (key.value(), value.value());
        let target = Target {
            tenant: tenant.to_owned(),
            service: service.to_owned(),
            method: method.to_owned(),
            side: Side::from_code(side),
        };
        let policy = PolicyVersion {
            name: name.to_owned(),
            version,
        };
        placed.push((place, Attachment { target, policy }));
    }
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed
        .into_iter()
        .map(|(_, attachment)| attachment)
        .collect())
}

fn attached_to(
    attachments: &impl ReadableTable<Place, (u64, u32)>,
    tenant: &str,
) -> Result<Vec<Attachment>, StoreError> {
    let after = successor(tenant);
    in_order(attachments.range((tenant, "", "", 0, "")..(after.as_str(), "", "", 0, ""))?)
}

fn policies_of(
    counters: &impl ReadableTable<(&'static str, &'static str), u32>,
    tenant: &str,
) -> Result<usize, StoreError> {
    let after = successor(tenant);
    Ok(counters.range((tenant, "")..(after.as_str(), ""))?.count())
}

/// The least string above `text`.
fn successor(text: &str) -> String {
    format!("{text}\0")
}

/// The next place at the end of a chain: one sequence for all, so that places only grow.
fn next_place(change: &WriteTransaction) -> Result<u64, StoreError> {
    let mut meta = change.open_table(META)?;
    let place = meta.get("sequence")?.map_or(0, |next| next.value());
    meta.insert("sequence", place + 1)?;
    Ok(place)
}

/// Drops the oldest version that isn't attached if the policy has as many as are kept.
fn make_room(change: &WriteTransaction, tenant: &str, name: &str) -> Result<(), StoreError> {
    let mut policies = change.open_table(POLICIES)?;
    let mut kept = Vec::new();
    for row in policies.range((tenant, name, 0)..=(tenant, name, u32::MAX))? {
        kept.push(row?.0.value().2);
    }
    if kept.len() < limits::MAX_VERSIONS {
        return Ok(());
    }
    let attached = attached_to(&change.open_table(ATTACHMENTS)?, tenant)?;
    let in_use = |version: u32| {
        attached
            .iter()
            .any(|a| a.policy.name == name && a.policy.version == version)
    };
    let oldest = kept.into_iter().find(|version| !in_use(*version));
    let oldest =
        oldest.ok_or_else(|| full("attached versions of this policy", limits::MAX_VERSIONS))?;
    let digest = policies
        .remove((tenant, name, oldest))?
        .map(|row| row.value().0);
    match digest {
        Some(digest) => drop_module(change, digest),
        None => Ok(()),
    }
}

/// Counts one more user of a module; stores it if it is the first.
fn use_module(change: &WriteTransaction, digest: Digest, wasm: &[u8]) -> Result<(), StoreError> {
    let mut modules = change.open_table(MODULES)?;
    let users = modules.get(digest)?.map_or(0, |row| row.value().0);
    modules.insert(digest, (users + 1, wasm))?;
    Ok(())
}

/// Counts one user of a module less; forgets it after the last.
fn drop_module(change: &WriteTransaction, digest: Digest) -> Result<(), StoreError> {
    let mut modules = change.open_table(MODULES)?;
    let left = modules.remove(digest)?.map(|row| {
        let (users, wasm) = row.value();
        (users.saturating_sub(1), wasm.to_vec())
    });
    if let Some((users @ 1.., wasm)) = left {
        modules.insert(digest, (users, wasm.as_slice()))?;
    }
    Ok(())
}

fn require_tenant(change: &WriteTransaction, tenant: &str) -> Result<(), StoreError> {
    match change.open_table(TENANTS)?.get(tenant)? {
        Some(_) => Ok(()),
        None => Err(StoreError::NoTenant {
            tenant: tenant.to_owned(),
        }),
    }
}

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes <= limit {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, bytes, limit })
    }
}

fn full(what: &'static str, limit: usize) -> StoreError {
    StoreError::Full { what, limit }
}

fn no_policy(tenant: &str, policy: &PolicyVersion) -> StoreError {
    StoreError::NoPolicy {
        tenant: tenant.to_owned(),
        policy: policy.clone(),
    }
}

fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}
