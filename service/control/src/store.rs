//! The store: [tables](crate::tables) in one file, every change one transaction.
//!
//! A change and its audit record are one transaction. A crash or a power cut leaves the state
//! before or after a change, never between. A module is validated before it is pushed: the store
//! takes its caller's word for that, and only bounds its size.
//!
//! The file has a copy beside it, `tollgate.redb.copy`, with the same bytes: see [`crate::pair`]
//! for what a start makes of damaged ones. A change costs three syncs (the file, its copy, the
//! audit log), pages that don't change aren't written again, and the disk holds everything twice,
//! three times while a damaged file is made again.
//!
//! What the disk gives back is checked at the start: each page has a checksum, each module is
//! compared with its digest, and the tables' invariants hold, or the file is damaged
//! ([`crate::check`]). A module is compared with its digest again whenever it is loaded.
//!
//! After an error of a file's, a full disk's say, the library answers nothing any more, not even
//! what it has in memory. So the files are closed and opened again at once, and if they can't be
//! written, they are read only ([`pair::open_to_read`]): applications are let in, policies are
//! found, and each change tries again before it is refused. [`Store::problems`] says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Error as IoError;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableTable, ReadableTableMetadata, StorageBackend,
    TableDefinition, WriteTransaction,
};
use serde_json::{Value, json};

use crate::audit::{self, Actor, Event, Found, Head, Log, Note, Verification};
use crate::check::{check_module, module_lost, sha256};
use crate::error::{StoreError, full, no_policy, no_tenant};
use crate::lent::{Held, Lent};
use crate::limits;
use crate::model::{
    Attachment, Holdings, PolicyBytes, PolicyInfo, Selection, Token, TokenDigest, check_name,
    check_target, hex,
};
use crate::pair::{self, Restored};
use crate::policy::{Owner, PolicyVersion};
use crate::rows::{
    attached_to, forget_version, holdings, kept_versions, make_room, names_kept, names_used, put,
    require_owner, require_owner_in, successor, use_module,
};
use crate::tables::{
    AUDIT, COUNTERS, FORMAT, LAST, META, MODULES, PLACEMENTS, POLICIES, RETIRING, SETTINGS, SLOTS,
    TENANTS, TOKENS, builder, in_order, key_of, last_record, prepare, table,
};

/// The daemon's stored configuration, kept across restarts.
#[derive(Debug)]
pub struct Store {
    database: Lent,
    /// Locked during a complete change, so that records and changes have the same order.
    log: Mutex<Log>,
    restored: Option<Restored>,
    /// The directory; `None` for a store in memory. A copy gets one when it becomes the writable
    /// store.
    state: Mutex<Option<PathBuf>>,
    health: Mutex<Health>,
}

/// The state of the files.
#[derive(Debug, Default)]
struct Health {
    /// Why the last change failed, if a file was the cause.
    failure: Option<String>,
    /// The open files can't be written.
    is_read_only: bool,
}

impl Store {
    /// Opens the state in a directory; creates both if they are missing, accessible to the daemon's
    /// own user only. A damaged file is restored from its copy. If the disk can't be written, the
    /// state is read-only; see [`problems`](Self::problems).
    ///
    /// # Errors
    /// The directory or file can't be used, another daemon has it open, it has another format, or
    /// the file and its copy are damaged.
    pub fn open(state: &Path) -> Result<Store, StoreError> {
        let store = Store::open_somehow(state)?;
        for problem in store.problems() {
            tracing::error!("{problem}");
        }
        Ok(store)
    }

    fn open_somehow(state: &Path) -> Result<Store, StoreError> {
        match Store::open_to_write(state) {
            Err(error) if error.is_disks() => Store::open_to_read(state, error),
            opened => opened,
        }
    }

    fn open_to_read(state: &Path, why: StoreError) -> Result<Store, StoreError> {
        let Some(files) = pair::open_to_read(state)? else {
            return Err(why);
        };
        let database = builder().create_with_backend(files)?;
        prepare(&database, &state.display().to_string())?;
        let anchor = last_record(&database)?;
        let log = Log::as_it_is(state, anchor.as_deref());
        let log = log.map_err(|what| StoreError::Contradiction { what })?;
        Ok(Store {
            log: Mutex::new(log),
            state: Mutex::new(Some(state.to_owned())),
            health: Mutex::new(Health {
                failure: Some(why.to_string()),
                is_read_only: true,
            }),
            ..Store::of(database, Held::Own)
        })
    }

    /// A store with a database, and an audit log in memory.
    fn of(database: Database, held: Held) -> Store {
        Store {
            database: Lent::new(database, held),
            log: Mutex::new(Log::in_memory()),
            restored: None,
            state: Mutex::default(),
            health: Mutex::default(),
        }
    }

    fn open_to_write(state: &Path) -> Result<Store, StoreError> {
        let path = state.display().to_string();
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state);
        made.map_err(|error| StoreError::Directory {
            path: path.clone(),
            error,
        })?;
        let (pair, restored) = pair::open(state)?;
        let mut store = Store::on(pair, state)?;
        if let Some(restored) = &restored {
            store.record(Actor::Daemon, Event::Restored, restored.details())?;
        }
        store.restored = restored;
        // Set last, so that a failure before doesn't open the files again from within.
        *store.directory() = Some(state.to_owned());
        Ok(store)
    }

    /// A store on whole storage, with its audit log in a directory.
    pub(crate) fn on(storage: impl StorageBackend, state: &Path) -> Result<Store, StoreError> {
        let path = state.display().to_string();
        let database = match builder().create_with_backend(storage) {
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(StoreError::InUse { path }),
            opened => opened?,
        };
        let before = prepare(&database, &path)?;
        let anchor = last_record(&database)?;
        let opened = Log::open(state, anchor.as_deref());
        let (log, found) = opened.map_err(|error| audit_failed(state, error))?;
        let store = Store {
            log: Mutex::new(log),
            ..Store::of(database, Held::Own)
        };
        if let Some(from) = before {
            let details = json!({"from": from, "to": FORMAT});
            store.record(Actor::Daemon, Event::Migrated, details)?;
        }
        match found {
            Found::Whole => {}
            Found::Healed { seq } => {
                let details =
                    json!({"record": seq, "why": "the daemon ended before the log had it"});
                store.record(Actor::Daemon, Event::Healed, details)?;
            }
            Found::Broken { ends } => {
                store.record(Actor::Daemon, Event::Broken, json!({"ends": ends}))?;
            }
        }
        Ok(store)
    }

    /// A store in memory, lost when the process ends.
    ///
    /// # Errors
    /// Only if the database itself is broken.
    pub fn in_memory() -> Result<Store, StoreError> {
        let backend = InMemoryBackend::new();
        let database = builder().create_with_backend(backend)?;
        prepare(&database, "memory")?;
        Ok(Store::of(database, Held::Own))
    }

    /// A sentence for the operator about a file that was damaged and has been restored.
    pub fn restored(&self) -> Option<String> {
        self.restored.as_ref().map(Restored::to_string)
    }

    /// Present problems of the files, as sentences for the operator.
    pub fn problems(&self) -> Vec<String> {
        let path = self.directory().clone().unwrap_or_default();
        let mut problems = Vec::new();
        let health = self.health();
        if let Some(why) = &health.failure {
            let path = path.display();
            let effect = match health.is_read_only {
                true => "is read-only at the moment",
                false => "couldn't be written by the last change",
            };
            problems.push(format!("the state in {path} {effect}: {why}"));
        }
        if let Some(why) = self.log().failure() {
            let path = path.join(audit::FILE);
            problems.push(format!(
                "the audit log {} lacks its newest record, and changes are rejected until it is written: {why}",
                path.display()
            ));
        }
        problems
    }

    /// Tries whether unwritable files can be written again. To be called from time to time.
    pub fn retry(&self) {
        if self.database.held() != Held::Own {
            return;
        }
        if self.health().is_read_only {
            let _said_in_the_log = self.reopen();
        }
        let mut log = self.log();
        if log.failure().is_some() {
            let _still = log.settle();
        }
    }

    // ---- from one daemon to the next ----

    /// Rejects changes until [`resume`](Self::resume): another daemon reads a copy, which must stay
    /// complete.
    pub fn hold(&self) {
        self.database.hold(Held::Changes);
    }

    /// Writes everything but the audit log into an empty file, for [`of_copy`](Self::of_copy).
    ///
    /// # Errors
    /// One of the files failed.
    pub fn copy_into(&self, file: File) -> Result<(), StoreError> {
        let copy = builder().create_file(file)?;
        prepare(&copy, "the copy")?;
        let (from, to) = (self.database.begin_read()?, copy.begin_write()?);
        copy_table(&from, &to, META)?;
        copy_table(&from, &to, TENANTS)?;
        copy_table(&from, &to, TOKENS)?;
        copy_table(&from, &to, RETIRING)?;
        copy_table(&from, &to, MODULES)?;
        copy_table(&from, &to, POLICIES)?;
        copy_table(&from, &to, COUNTERS)?;
        copy_table(&from, &to, SLOTS)?;
        copy_table(&from, &to, SETTINGS)?;
        copy_table(&from, &to, PLACEMENTS)?;
        Ok(to.commit()?)
    }

    /// A copy of another daemon's store. It can be read; changes and records are rejected until
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// The file isn't a copy, or it has a later format.
    pub fn of_copy(file: File) -> Result<Store, StoreError> {
        let database = builder().create_file(file)?;
        prepare(&database, "the copy")?;
        Ok(Store::of(database, Held::Everything { asked: false }))
    }

    /// Whether changes are rejected, because they are held or this is a copy.
    pub fn is_held(&self) -> bool {
        self.database.held() != Held::Own
    }

    /// Whether a change or record was rejected because this is a copy.
    pub fn was_touched(&self) -> bool {
        self.database.held() == Held::Everything { asked: true }
    }

    /// Closes the file, so that another daemon can open it.
    pub fn let_go(&self) {
        self.database.let_go();
    }

    /// Makes this store the writable one (again), with the state in a directory, or without one
    /// with its state in memory. Returns the same sentence as [`restored`](Self::restored).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn resume(&self, state: Option<&Path>) -> Result<Option<String>, StoreError> {
        let mut restored = None;
        if let Some(state) = state {
            let opened = Store::open(state)?;
            restored = opened.restored();
            self.take(opened);
        }
        self.database.hold(Held::Own);
        Ok(restored)
    }

    /// Replaces this store's files and log by those of an opened store.
    fn take(&self, opened: Store) {
        let log = opened.log.into_inner();
        *self.log() = log.unwrap_or_else(PoisonError::into_inner);
        let health = opened.health.into_inner();
        *self.health() = health.unwrap_or_else(PoisonError::into_inner);
        let state = opened.state.into_inner();
        *self.directory() = state.unwrap_or_else(PoisonError::into_inner);
        self.database.replace(opened.database);
    }

    /// Closes the files and opens them again: a file failed and the open database doesn't answer
    /// any more, or can't be written.
    fn reopen(&self) -> Result<(), StoreError> {
        let Some(state) = self.directory().clone() else {
            return Ok(());
        };
        let before = self.problems();
        let was_read_only = self.health().is_read_only;
        // The lock belongs to the open directory, not to this process.
        self.database.let_go();
        let opened = Store::open_somehow(&state);
        let failed = match opened {
            Ok(opened) => {
                if let Some(restored) = opened.restored() {
                    tracing::error!("{restored}");
                }
                self.take(opened);
                None
            }
            Err(error) => {
                *self.health() = Health {
                    failure: Some(error.to_string()),
                    is_read_only: true,
                };
                Some(error)
            }
        };
        // This runs repeatedly, so known problems aren't logged again.
        let now = self.problems();
        for problem in now.iter().filter(|problem| !before.contains(problem)) {
            tracing::error!("{problem}");
        }
        if was_read_only && now.is_empty() {
            tracing::info!("the state in {} can be written again", state.display());
        }
        failed.map_or(Ok(()), Err)
    }

    // ---- tenants ----

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

    // ---- placements ----

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

    // ---- settings ----

    /// The settings that were changed at run time, by name. The daemon interprets them.
    ///
    /// # Errors
    /// The file failed.
    pub fn settings(&self) -> Result<BTreeMap<String, String>, StoreError> {
        self.read(|read| {
            let settings = read.open_table(SETTINGS)?;
            let owned = |row: Result<_, redb::StorageError>| {
                let (key, value): (redb::AccessGuard<&str>, redb::AccessGuard<&str>) = row?;
                Ok((key.value().to_owned(), value.value().to_owned()))
            };
            settings.iter()?.map(owned).collect()
        })
    }

    /// Changes settings, all or none; `None` removes a value.
    ///
    /// # Errors
    /// A name or value is too long, or there are too many settings.
    pub fn change_settings(
        &self,
        actor: Actor,
        event: Event,
        details: Value,
        changes: &[(String, Option<String>)],
    ) -> Result<(), StoreError> {
        for (key, value) in changes {
            check_size("setting's name", key.len(), limits::MAX_NAME)?;
            let bytes = value.as_ref().map_or(0, String::len);
            check_size("setting", bytes, limits::MAX_SETTING_BYTES)?;
        }
        self.change(|change| {
            let mut settings = change.open_table(SETTINGS)?;
            for (key, value) in changes {
                match value {
                    Some(value) => settings.insert(key.as_str(), value.as_str())?,
                    None => settings.remove(key.as_str())?,
                };
            }
            if settings.len()? > limits::MAX_SETTINGS {
                return Err(full("settings", limits::MAX_SETTINGS as usize));
            }
            Ok(((), note(actor, event, details)))
        })
    }

    // ---- policies ----

    /// Stores a validated module as the next version of a policy.
    ///
    /// # Errors
    /// The tenant doesn't exist, the name is invalid, the module or configuration is too large, or
    /// there are too many policies.
    pub fn push_policy(
        &self,
        actor: Actor,
        owner: &Owner,
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
            require_owner(change, owner)?;
            let key = owner.key();
            let mut counters = change.open_table(COUNTERS)?;
            let last = counters.get((key, name))?.map(|last| last.value());
            if last.is_none() && names_used(&counters, key)? >= limits::MAX_POLICY_NAMES {
                let limit = limits::MAX_POLICY_NAMES;
                return Err(full("names of policies that this owner has ever used", limit));
            }
            let names = names_kept(&change.open_table(POLICIES)?, key)?;
            if !names.contains(name) && names.len() >= limits::MAX_POLICIES {
                return Err(full("policies of this owner", limits::MAX_POLICIES));
            }
            let exhausted = full("versions of this policy", u32::MAX as usize);
            let version = last.unwrap_or(0).checked_add(1).ok_or(exhausted)?;
            make_room(change, owner, name)?;
            counters.insert((key, name), version)?;
            let digest = sha256(wasm);
            use_module(change, digest, wasm)?;
            change
                .open_table(POLICIES)?
                .insert((key, name, version), (digest, config))?;
            let pushed = PolicyVersion {
                name: name.to_owned(),
                version,
            };
            let details = json!({
                "owner": owner.to_string(), "policy": pushed.to_string(), "module": hex(&digest), "bytes": wasm.len(),
                "configuration": config.map(|config| hex(&sha256(config))),
            });
            Ok((pushed, note(actor, Event::Push, details)))
        })
    }

    /// Deletes a version of a policy, or all versions. Their numbers aren't used again.
    ///
    /// # Errors
    /// The owner or version doesn't exist, or an attachment needs the version.
    pub fn delete_policy(
        &self,
        actor: Actor,
        owner: &Owner,
        name: &str,
        version: Option<u32>,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        self.change(|change| {
            require_owner(change, owner)?;
            let kept = kept_versions(&change.open_table(POLICIES)?, owner.key(), name)?;
            let is_meant = |kept: &u32| version.is_none_or(|version| version == *kept);
            let deleted: Vec<_> = kept.into_iter().filter(is_meant).collect();
            if deleted.is_empty() {
                return Err(match version {
                    Some(version) => {
                        let name = name.to_owned();
                        no_policy(owner, &PolicyVersion { name, version })
                    }
                    None => StoreError::NoPolicyNamed {
                        owner: owner.clone(),
                        policy: name.to_owned(),
                    },
                });
            }
            for attachment in attached_to(&change.open_table(SLOTS)?, owner)? {
                let slot = &attachment.slot;
                let needed = deleted.iter().find_map(|v| Some((*v, slot.need_of(*v)?)));
                if let Some((version, need)) = needed.filter(|_| attachment.policy == name) {
                    let name = name.to_owned();
                    return Err(StoreError::Needed {
                        policy: PolicyVersion { name, version },
                        need,
                        place: attachment.target.to_string(),
                    });
                }
            }
            let of = |version| PolicyVersion {
                name: name.to_owned(),
                version,
            };
            let deleted: Vec<_> = deleted.into_iter().map(of).collect();
            for policy in &deleted {
                forget_version(change, owner.key(), policy)?;
            }
            let shown: Vec<_> = deleted.iter().map(PolicyVersion::to_string).collect();
            let details = json!({"owner": owner.to_string(), "policies": shown});
            Ok((deleted, note(actor, Event::PolicyDelete, details)))
        })
    }

    /// Everything needed to load a version of a policy.
    ///
    /// # Errors
    /// The version doesn't exist, or its module is lost.
    pub fn policy(&self, owner: &Owner, policy: &PolicyVersion) -> Result<PolicyBytes, StoreError> {
        self.read(|read| {
            let row = read.open_table(POLICIES)?;
            let row = row.get((owner.key(), policy.name.as_str(), policy.version))?;
            let row = row.ok_or_else(|| no_policy(owner, policy))?;
            let (digest, config) = row.value();
            let module = read.open_table(MODULES)?.get(digest)?;
            let module = module.ok_or_else(|| module_lost(digest))?;
            let wasm = module.value().1.to_vec();
            check_module(digest, &wasm)?;
            let config = config.map(<[u8]>::to_vec);
            Ok(PolicyBytes {
                digest,
                wasm,
                config,
            })
        })
    }

    /// All versions of all policies, by owner, name and version.
    ///
    /// # Errors
    /// The file failed, or lost a module.
    pub fn policies(&self) -> Result<Vec<PolicyInfo>, StoreError> {
        self.read(|read| {
            let modules = read.open_table(MODULES)?;
            let mut infos = Vec::new();
            for row in read.open_table(POLICIES)?.iter()? {
                let (key, value) = row?;
                let ((owner, name, version), (digest, config)) = (key.value(), value.value());
                let module = modules.get(digest)?;
                let module = module.ok_or_else(|| module_lost(digest))?;
                infos.push(PolicyInfo {
                    owner: Owner::from_key(owner),
                    policy: PolicyVersion {
                        name: name.to_owned(),
                        version,
                    },
                    digest,
                    module_bytes: module.value().1.len() as u64,
                    config_digest: config.map(sha256),
                });
            }
            Ok(infos)
        })
    }

    // ---- attachments ----

    /// Stores attachments, all or none. New ones get the end of their target's chain; others keep
    /// their place.
    ///
    /// # Errors
    /// A target's name is invalid, the tenant or version doesn't exist, an option is out of range,
    /// or there are too many attachments.
    pub fn put(
        &self,
        actor: Actor,
        event: Event,
        details: Value,
        attachments: &[Attachment],
    ) -> Result<(), StoreError> {
        for attachment in attachments {
            check_target(&attachment.target)?;
            check_name("policy", &attachment.policy)?;
            attachment.options.check()?;
        }
        self.change(|change| {
            for attachment in attachments {
                put(change, attachment)?;
            }
            Ok(((), note(actor, event, details)))
        })
    }

    /// Removes a policy's attachments that `which` selects; returns them.
    ///
    /// # Errors
    /// There is no such tenant, or no attachment is selected.
    pub fn detach(
        &self,
        actor: Actor,
        owner: &Owner,
        policy: &str,
        which: &Selection,
    ) -> Result<Vec<Attachment>, StoreError> {
        self.change(|change| {
            require_owner(change, owner)?;
            let mut slots = change.open_table(SLOTS)?;
            let mut ended = attached_to(&slots, owner)?;
            ended.retain(|a| a.policy == policy && which.selects(&a.target));
            if ended.is_empty() {
                let (owner, policy) = (owner.clone(), policy.to_owned());
                return Err(StoreError::NotAttached { owner, policy });
            }
            for attachment in &ended {
                slots.remove(key_of(attachment, owner.key()))?;
            }
            let places = ended.iter().map(|a| a.target.to_string());
            let details = json!({
                "owner": owner.to_string(), "policy": policy, "places": places.collect::<Vec<_>>(),
            });
            Ok((ended, note(actor, Event::Detach, details)))
        })
    }

    /// All attachments; those of one target and party are in the chain's order.
    ///
    /// # Errors
    /// The file failed.
    pub fn attachments(&self) -> Result<Vec<Attachment>, StoreError> {
        self.read(|read| in_order(read.open_table(SLOTS)?.iter()?))
    }

    /// The attachments of an owner, in the same order.
    ///
    /// # Errors
    /// There is no such owner, or the file failed.
    pub fn attachments_of(&self, owner: &Owner) -> Result<Vec<Attachment>, StoreError> {
        self.read(|read| {
            require_owner_in(&read.open_table(TENANTS)?, owner)?;
            attached_to(&read.open_table(SLOTS)?, owner)
        })
    }

    // ---- audit ----

    /// Records an event that changes nothing in the store.
    ///
    /// # Errors
    /// The file failed.
    pub fn record(&self, actor: Actor, event: Event, details: Value) -> Result<(), StoreError> {
        self.write(false, |_| Ok(((), note(actor, event, details))))
    }

    /// The end of the audit log.
    pub fn audit_head(&self) -> Head {
        self.log().head
    }

    /// The audit log's file; `None`: the newest [`limits::AUDIT_RING`] records are in memory.
    pub fn audit_file(&self) -> Option<std::path::PathBuf> {
        self.log().path().map(Path::to_owned)
    }

    /// The newest audit records, oldest first.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn audit_last(&self, count: usize) -> Result<Vec<String>, StoreError> {
        let log = self.log();
        log.last(count).map_err(|error| log_failed(&log, error))
    }

    /// Prepares the verification of the audit log.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn audit_verification(&self) -> Result<Verification, StoreError> {
        let log = self.log();
        log.verification().map_err(|error| log_failed(&log, error))
    }

    /// The expected end of a state directory's audit log. For use without a running daemon.
    ///
    /// # Errors
    /// The directory has no state, or a daemon uses it.
    pub fn audit_anchor(state: &Path) -> Result<Head, StoreError> {
        pair::head(state)
    }

    // ---- inside ----

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one consistent state. Reads again if a file failed meanwhile and the other one is
    /// whole.
    fn read<T>(
        &self,
        look: impl Fn(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let read = || self.database.begin_read().and_then(|read| look(&read));
        // Another daemon may have the files.
        let is_own = self.database.held() == Held::Own;
        let is_lost = is_own && self.health().is_read_only && !self.database.is_open();
        match read() {
            Err(error) if error.needs_reopening() || is_lost => {
                self.reopen()?;
                read()
            }
            looked => looked,
        }
    }

    /// One transaction: everything that `make` does with its record, or nothing if it fails.
    fn change<T>(
        &self,
        make: impl FnOnce(&WriteTransaction) -> Result<(T, Note), StoreError>,
    ) -> Result<T, StoreError> {
        self.write(true, make)
    }

    /// A change, or a record alone. After a failure the files are opened again before the answer,
    /// so that the next change can use them.
    fn write<T>(
        &self,
        changes: bool,
        make: impl FnOnce(&WriteTransaction) -> Result<(T, Note), StoreError>,
    ) -> Result<T, StoreError> {
        if self.health().is_read_only {
            if self.database.held() != Held::Own {
                return Err(StoreError::HandedOver);
            }
            self.reopen()?;
            self.require_writable()?;
        }
        let mut made = None;
        let begun = self.database.begin_write(changes);
        let written = begun.and_then(|change| self.commit(change, make, &mut made));
        match written {
            Ok(()) => {
                if self.health().failure.take().is_some() {
                    tracing::info!("changes of the state succeed again");
                }
                let (made, _) = made.expect("what is committed was made");
                Ok(made)
            }
            Err(error) if error.needs_reopening() => self.failed(error, made),
            Err(error) => Err(error),
        }
    }

    fn require_writable(&self) -> Result<(), StoreError> {
        match &*self.health() {
            Health {
                failure: Some(why),
                is_read_only: true,
            } => Err(StoreError::ReadOnly {
                path: self
                    .directory()
                    .clone()
                    .unwrap_or_default()
                    .display()
                    .to_string(),
                why: why.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Opens both files again after a failure. The change was made if its record is there: one of
    /// the files has it completely.
    fn failed<T>(&self, error: StoreError, made: Option<(T, String)>) -> Result<T, StoreError> {
        tracing::error!("a change of the state failed: {error}");
        self.reopen()?;
        let line = self.read(|read| {
            Ok(read
                .open_table(AUDIT)?
                .get(LAST)?
                .map(|line| line.value().to_owned()))
        })?;
        match made {
            Some((made, written)) if line.as_ref() == Some(&written) => Ok(made),
            _ => {
                self.health().failure.get_or_insert(error.to_string());
                Err(error)
            }
        }
    }

    fn commit<T>(
        &self,
        change: WriteTransaction,
        make: impl FnOnce(&WriteTransaction) -> Result<(T, Note), StoreError>,
        made: &mut Option<(T, String)>,
    ) -> Result<(), StoreError> {
        let mut log = self.log();
        if let Err(error) = log.settle() {
            let error = log_failed(&log, error);
            tracing::error!("{error}");
            return Err(error);
        }
        let (result, note) = match make(&change) {
            Ok(result) => result,
            Err(error) => {
                let aborted = change.abort();
                // After a file error there is nothing to abort, and that error is more precise.
                if !error.needs_reopening() {
                    aborted?;
                }
                return Err(error);
            }
        };
        let (line, head) = audit::line(&log.head, SystemTime::now(), &note);
        change.open_table(AUDIT)?.insert(LAST, line.as_str())?;
        *made = Some((result, line.clone()));
        change.commit()?;
        // The change is made. The next change or start appends a line that the file lacks; no other
        // change is made before.
        if let Err(error) = log.committed(line, head) {
            tracing::error!("the audit log lacks record {}: {error}", head.seq);
        }
        Ok(())
    }
}

fn note(actor: Actor, event: Event, details: Value) -> Note {
    Note {
        actor,
        event,
        details,
    }
}

fn log_failed(log: &Log, error: IoError) -> StoreError {
    audit_failed(log.path().unwrap_or(Path::new("memory")), error)
}

fn audit_failed(path: &Path, error: IoError) -> StoreError {
    let path = path.display().to_string();
    StoreError::Audit { path, error }
}

fn copy_table<K: redb::Key + 'static, V: redb::Value + 'static>(
    from: &ReadTransaction,
    to: &WriteTransaction,
    table: TableDefinition<K, V>,
) -> Result<(), StoreError> {
    let mut copy = to.open_table(table)?;
    for row in from.open_table(table)?.iter()? {
        let (key, value) = row?;
        copy.insert(key.value(), value.value())?;
    }
    Ok(())
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

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes <= limit {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, bytes, limit })
    }
}

#[cfg(test)]
impl Store {
    /// Checks the tables' invariants.
    #[track_caller]
    pub(crate) fn check_invariants(&self) {
        self.database
            .look(crate::check::check)
            .expect("what is changed keeps the invariants");
    }
}
