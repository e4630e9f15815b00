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

use std::fs::File;
use std::io::Error as IoError;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use serde_json::{Value, json};

use crate::audit::{self, Actor, Event, Found, Head, Log, Note, Verification};
use crate::error::{StoreError, contradiction};
use crate::lent::{Held, Lent};
use crate::pair::{self, Restored};
use crate::tables::{
    APPLIED, APPROVALS, AUDIT, BLOCK, CEILINGS, COUNTERS, CREDENTIALS, FORMAT, LAST, META, MODULES,
    PLACEMENTS, POLICIES, SETTINGS, SIZES, SLOTS, TENANTS, TOKENS, builder, last_record,
    newest_lines, prepare,
};

mod applied;
mod approvals;
mod ceilings;
mod credentials;
mod policies;
mod settings;
mod snapshot;
mod tenants;
mod together;

pub use applied::{AppliedObject, DocumentSet};
pub use approvals::NewDecision;
pub use ceilings::changed_values;
pub use credentials::WantedCredential;
pub use snapshot::{Snapshot, StoredCredential};
pub use together::Change;

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
        let log = log.map_err(|error| contradiction(error.to_string()))?;
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
        copy_table(&from, &to, CREDENTIALS)?;
        copy_table(&from, &to, TOKENS)?;
        copy_table(&from, &to, MODULES)?;
        copy_table(&from, &to, SIZES)?;
        copy_table(&from, &to, POLICIES)?;
        copy_table(&from, &to, COUNTERS)?;
        copy_table(&from, &to, SLOTS)?;
        copy_table(&from, &to, SETTINGS)?;
        copy_table(&from, &to, PLACEMENTS)?;
        copy_table(&from, &to, CEILINGS)?;
        copy_table(&from, &to, APPLIED)?;
        copy_table(&from, &to, APPROVALS)?;
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

    // ---- audit ----

    /// Records an event that changes nothing in the store.
    ///
    /// # Errors
    /// The file failed.
    pub fn record(&self, actor: Actor, event: Event, details: Value) -> Result<(), StoreError> {
        self.write(false, |_| Ok(((), vec![note(actor, event, details)])))
    }

    /// The end of the audit log.
    pub fn audit_head(&self) -> Head {
        self.log().head
    }

    /// The audit log's file; `None`: the newest [`AUDIT_RING`](crate::limits::AUDIT_RING) records
    /// are in memory.
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
        self.write(true, |change| {
            let (made, note) = make(change)?;
            Ok((made, vec![note]))
        })
    }

    /// A change, or a record alone. After a failure the files are opened again before the answer,
    /// so that the next change can use them.
    fn write<T>(
        &self,
        changes: bool,
        make: impl FnOnce(&WriteTransaction) -> Result<(T, Vec<Note>), StoreError>,
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
        let lines = self.read(newest_lines)?;
        match made {
            Some((made, written)) if lines.as_ref() == Some(&written) => Ok(made),
            _ => {
                self.health().failure.get_or_insert(error.to_string());
                Err(error)
            }
        }
    }

    fn commit<T>(
        &self,
        change: WriteTransaction,
        make: impl FnOnce(&WriteTransaction) -> Result<(T, Vec<Note>), StoreError>,
        made: &mut Option<(T, String)>,
    ) -> Result<(), StoreError> {
        let mut log = self.log();
        if let Err(error) = log.settle() {
            let error = log_failed(&log, error);
            tracing::error!("{error}");
            return Err(error);
        }
        let (result, notes) = match make(&change) {
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
        if notes.is_empty() {
            // The newest record anchors the log: without one, the log would seem to have no end.
            change.abort()?;
            return Err(contradiction("a change has no record".to_owned()));
        }
        let (lines, head) = audit::lines(&log.head, SystemTime::now(), &notes);
        let block = lines.join("\n");
        let mut audit = change.open_table(AUDIT)?;
        audit.insert(LAST, lines.last().map_or("", String::as_str))?;
        match lines.len() {
            0 | 1 => audit.remove(BLOCK)?,
            _ => audit.insert(BLOCK, block.as_str())?,
        };
        drop(audit);
        *made = Some((result, block.clone()));
        change.commit()?;
        // The change is made. The next change or start appends lines that the file lacks; no other
        // change is made before.
        if let Err(error) = log.committed(block, head) {
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
