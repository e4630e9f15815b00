//! The store's file and its copy, for restoring a damaged one.
//!
//! ```text
//!   change ─ write both ─ sync tollgate.redb ─ sync tollgate.redb.copy ─ acknowledged
//! ```
//!
//! Both hold the same bytes, page for page, and each survives a power cut at any moment. A start
//! checks both before it changes either (in an [`Overlay`]): it compares every page with its
//! checksum, even if the files are equal, because one disk may damage both alike. It takes the
//! whole one with the newer audit record:
//!
//! ```text
//!   tollgate.redb   copy            what happens
//!   whole           the same        nothing
//!   whole           anything else   the copy is made anew
//!   damaged, older  whole           the file is renamed and restored from the copy, and the audit log says so
//!   damaged         damaged         the daemon doesn't start, and says what to do
//! ```
//!
//! The daemon doesn't start either if the audit log has a later record than both files: the state
//! is too old, and policies may be missing. Files get their names when they are complete, so an
//! empty or short file is damaged, never new.
//!
//! Files that can't be written, such as on a full disk, are still read: [`open_to_read`] keeps the
//! changes of a start in memory. An outdated copy is overwritten in place, so that it needs no
//! additional room; until that is done, the file is the whole one.
//!
//! Absent on purpose: protection from programs that can write the directory, and a search for pages
//! that decay while the daemon runs: the next start finds these.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::ops::Bound;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use redb::backends::FileBackend;
use redb::{BackendError, Builder, StorageBackend};
use serde_json::{Value, json};

use crate::audit::{self, Head, RecordError};
use crate::error::StoreError;
use crate::{check, disk, limits, tables};

/// The file's name in the state directory.
pub(crate) const FILE: &str = "tollgate.redb";

/// The name of its copy.
pub(crate) const COPY: &str = "tollgate.redb.copy";

/// The suffix of a file's name until the file is complete.
const NEW: &str = ".new";

/// The prefix of a damaged file's new name; the time follows.
const DAMAGED: &str = "tollgate.redb.damaged-";

/// Bytes that are compared, copied or kept in one block.
const BLOCK: usize = 64 << 10;

// ---- writing both ----

/// Two storages with the same bytes.
#[derive(Debug)]
pub(crate) struct Pair<B> {
    pub(crate) first: B,
    pub(crate) copy: B,
    /// The directory, locked until the database is closed.
    pub(crate) _lock: Option<File>,
}

impl<B: StorageBackend> StorageBackend for Pair<B> {
    fn len(&self) -> IoResult<u64> {
        self.first.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        self.first.read(offset, out)
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.first.set_len(len)?;
        self.copy.set_len(len)
    }

    fn sync_data(&self) -> IoResult<()> {
        self.first.sync_data()?;
        self.copy.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.first.write(offset, data)?;
        self.copy.write(offset, data)
    }

    fn close(&self) -> IoResult<()> {
        self.first.close()?;
        self.copy.close()
    }

    // Daemons that predate the copy lock the file.

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.first.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.first.unlock_range(start, end)
    }
}

/// One of the two storages, on the disk.
#[derive(Debug)]
pub(crate) struct OnDisk(FileBackend);

impl StorageBackend for OnDisk {
    fn len(&self) -> IoResult<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        disk::has_room()?;
        self.0.set_len(len)
    }

    fn sync_data(&self) -> IoResult<()> {
        disk::has_room()?;
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        disk::has_room()?;
        self.0.write(offset, data)
    }

    fn close(&self) -> IoResult<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }
}

// ---- opening ----

/// A file that was restored from its copy, for the audit log and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restored {
    file: &'static str,
    why: String,
    /// The new name of the old file.
    kept: Option<String>,
}

impl Restored {
    pub(crate) fn details(&self) -> Value {
        json!({"file": self.file, "why": self.why, "kept": self.kept})
    }
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Restored { file, why, kept } = self;
        write!(f, "the state's file {file} was restored ({why}); ")?;
        match kept {
            Some(kept) => write!(f, "the old file is kept as {kept}"),
            None => f.write_str("nothing of the old file is kept"),
        }
    }
}

/// The state of a file.
#[derive(Debug)]
enum Look {
    Missing,
    Damaged(Damage),
    /// It ends with this record.
    Whole(Head),
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("it can't be read: {0}")]
    Unreadable(IoError),
    #[error("it is empty")]
    Empty,
    #[error("its pages don't match their checksums")]
    Checksums,
    #[error("it is inconsistent")]
    Inconsistent,
    /// The database can't be opened, or its check failed.
    #[error("{sentence}")]
    Database { sentence: String },
    #[error(transparent)]
    Tables(StoreError),
    #[error(transparent)]
    Record(RecordError),
}

impl Damage {
    fn of_database(error: impl fmt::Display) -> Damage {
        Damage::Database {
            sentence: error.to_string(),
        }
    }
}

/// The states of both files of a directory.
struct Found {
    file: Look,
    copy: Look,
    is_same: bool,
}

impl Found {
    fn look(state: &Path) -> Result<Found, StoreError> {
        let (file, copy) = (state.join(FILE), state.join(COPY));
        let is_same = is_same(&file, &copy).map_err(|error| unusable(state, error))?;
        let found = look(&file);
        let copy = match &found {
            Look::Whole(head) if is_same => Look::Whole(*head),
            _ => look(&copy),
        };
        Ok(Found {
            file: found,
            copy,
            is_same,
        })
    }

    /// The end of the newer whole file, and whether that is the copy.
    fn newest(&self, state: &Path) -> Result<(Head, bool), StoreError> {
        match (&self.file, &self.copy) {
            (Look::Whole(file), Look::Whole(copy)) if copy.seq > file.seq => Ok((*copy, true)),
            (Look::Whole(file), _) => Ok((*file, false)),
            (_, Look::Whole(copy)) => Ok((*copy, true)),
            (file, copy) => Err(StoreError::Damaged {
                path: state.display().to_string(),
                file: file.to_string(),
                copy: copy.to_string(),
            }),
        }
    }

    fn is_nothing(&self) -> bool {
        matches!((&self.file, &self.copy), (Look::Missing, Look::Missing))
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Look::Missing => f.write_str("missing"),
            Look::Damaged(why) => why.fmt(f),
            Look::Whole(head) => write!(f, "it ends with record {}", head.seq),
        }
    }
}

/// Locks the directory, and makes both files whole and equal.
pub(crate) fn open(state: &Path) -> Result<(Pair<OnDisk>, Option<Restored>), StoreError> {
    let lock = lock(state)?;
    let mut found = Found::look(state)?;
    if found.is_nothing() {
        check_log(state, Head::default())?;
        create(state)?;
        found = Found::look(state)?;
    }
    let (head, is_copy) = found.newest(state)?;
    check_log(state, head)?;
    let restored = match is_copy {
        false if found.is_same => Ok(None),
        false => make_copy(state, &found.copy),
        true => restore(state, &found).map(Some),
    };
    let restored = restored.map_err(|error| unusable(state, error))?;
    let backend = |name: &str| -> Result<OnDisk, StoreError> {
        let path = state.join(name);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| unusable(state, error))?;
        Ok(OnDisk(FileBackend::new(file)?))
    };
    let pair = Pair {
        first: backend(FILE)?,
        copy: backend(COPY)?,
        _lock: Some(lock),
    };
    Ok((pair, restored))
}

/// Locks the directory and reads the newer whole file; changes neither. `None` if there is no file.
pub(crate) fn open_to_read(state: &Path) -> Result<Option<Overlay>, StoreError> {
    let lock = lock(state)?;
    let found = Found::look(state)?;
    if found.is_nothing() {
        return Ok(None);
    }
    let (head, is_copy) = found.newest(state)?;
    check_log(state, head)?;
    let name = if is_copy { COPY } else { FILE };
    let overlay = File::open(state.join(name)).and_then(Overlay::new);
    let mut overlay = overlay.map_err(|error| unusable(state, error))?;
    overlay.lock = Some(lock);
    Ok(Some(overlay))
}

/// The end of a directory's state, as the next start would find it. Changes nothing.
pub(crate) fn head(state: &Path) -> Result<Head, StoreError> {
    let _lock = lock(state)?;
    let found = Found::look(state)?;
    if found.is_nothing() {
        return Err(unusable(state, IoError::from(ErrorKind::NotFound)));
    }
    Ok(found.newest(state)?.0)
}

/// The state must contain every record of the audit log.
fn check_log(state: &Path, stored: Head) -> Result<(), StoreError> {
    let logged = audit::last_written(state).map_err(|error| unusable(state, error))?;
    if logged.seq <= stored.seq {
        return Ok(());
    }
    Err(StoreError::WentBack {
        path: state.display().to_string(),
        stored: stored.seq,
        logged: logged.seq,
    })
}

fn unusable(state: &Path, error: IoError) -> StoreError {
    StoreError::Directory {
        path: state.display().to_string(),
        error,
    }
}

fn lock(state: &Path) -> Result<File, StoreError> {
    let directory = File::open(state).map_err(|error| unusable(state, error))?;
    match directory.try_lock() {
        Ok(()) => Ok(directory),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
            path: state.display().to_string(),
        }),
        Err(TryLockError::Error(error)) => Err(unusable(state, error)),
    }
}

fn create(state: &Path) -> Result<(), StoreError> {
    let new = state.join(format!("{FILE}{NEW}"));
    let made = new_file(&new).map_err(|error| unusable(state, error))?;
    drop(Builder::new().create_file(made)?);
    complete(state, FILE).map_err(|error| unusable(state, error))
}

fn make_copy(state: &Path, copy: &Look) -> IoResult<Option<Restored>> {
    let from = File::open(state.join(FILE))?;
    match copy {
        // The first copy: a daemon that predates copies made the file, for example.
        Look::Missing => copy_to(state, &from, COPY)?,
        // Damaged or outdated, by a power cut or a full disk.
        _ => overwrite(&from, &state.join(COPY))?,
    }
    let Look::Damaged(why) = copy else {
        return Ok(None);
    };
    Ok(Some(Restored {
        file: COPY,
        why: why.to_string(),
        kept: None,
    }))
}

/// Makes a file equal to another, block by block, in place.
fn overwrite(from: &File, path: &Path) -> IoResult<()> {
    let to = File::options().read(true).write(true).open(path)?;
    disk::has_room()?;
    let len = from.metadata()?.len();
    to.set_len(len)?;
    copy_blocks(from, &to, len)?;
    to.sync_all()
}

fn copy_blocks(from: &File, to: &File, len: u64) -> IoResult<()> {
    let mut block = vec![0; BLOCK];
    for at in (0..len).step_by(BLOCK) {
        let block = &mut block[..len_at(len, at)];
        from.read_exact_at(block, at)?;
        to.write_all_at(block, at)?;
    }
    Ok(())
}

fn restore(state: &Path, found: &Found) -> IoResult<Restored> {
    let kept = match found.file {
        Look::Missing => None,
        _ => Some(keep_aside(state)?),
    };
    copy_to(state, &File::open(state.join(COPY))?, FILE)?;
    let why = match &found.file {
        Look::Whole(_) => format!("{}; of its copy, {}", found.file, found.copy),
        look => look.to_string(),
    };
    Ok(Restored {
        file: FILE,
        why,
        kept,
    })
}

/// Renames the file. The oldest of the kept files are deleted.
fn keep_aside(state: &Path) -> IoResult<String> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(state)? {
        let name = entry?.file_name();
        kept.extend(name.into_string().ok().filter(|n| n.starts_with(DAMAGED)));
    }
    kept.sort();
    while kept.len() >= limits::DAMAGED_FILES {
        std::fs::remove_file(state.join(kept.remove(0)))?;
    }
    let name = format!("{DAMAGED}{}", audit::rfc3339(SystemTime::now()));
    std::fs::rename(state.join(FILE), state.join(&name))?;
    Ok(name)
}

fn copy_to(state: &Path, from: &File, name: &str) -> IoResult<()> {
    let path = state.join(format!("{name}{NEW}"));
    let new = new_file(&path)?;
    if let Err(error) = copy_blocks(from, &new, from.metadata()?.len()) {
        // A full disk shall not keep a partial file.
        let _left_for_the_next_start = std::fs::remove_file(path);
        return Err(error);
    }
    complete(state, name)
}

fn new_file(path: &Path) -> IoResult<File> {
    disk::has_room()?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    options.mode(0o600).open(path)
}

/// Gives a file its name when it is on the disk.
fn complete(state: &Path, name: &str) -> IoResult<()> {
    let new = state.join(format!("{name}{NEW}"));
    File::open(&new)?.sync_all()?;
    std::fs::rename(new, state.join(name))?;
    disk::sync_directory(state)
}

// ---- reading without changes ----

fn look(path: &Path) -> Look {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Look::Missing,
        Err(error) => return Look::Damaged(Damage::Unreadable(error)),
    };
    // The library has checks that panic, and a damaged file may trigger them.
    let looked = std::panic::catch_unwind(AssertUnwindSafe(|| look_into(file)));
    match looked {
        Ok(Ok(head)) => Look::Whole(head),
        Ok(Err(why)) => Look::Damaged(why),
        Err(_panic) => Look::Damaged(Damage::Inconsistent),
    }
}

/// Checks every page against its checksum, every module against its digest, and the tables against
/// each other.
fn look_into(file: File) -> Result<Head, Damage> {
    let overlay = Overlay::new(file).map_err(Damage::of_database)?;
    if overlay.changes().len == 0 {
        return Err(Damage::Empty);
    }
    let mut database = tables::builder()
        .create_with_backend(overlay)
        .map_err(Damage::of_database)?;
    match database.check_integrity() {
        Ok(true) => {}
        Ok(false) => return Err(Damage::Checksums),
        Err(error) => return Err(Damage::of_database(error)),
    }
    check::check(&database).map_err(Damage::Tables)?;
    let line = tables::last_record(&database).map_err(Damage::Tables)?;
    audit::head_of(line.as_deref()).map_err(Damage::Record)
}

/// A file, with changes that are only kept in memory.
#[derive(Debug)]
pub(crate) struct Overlay {
    file: File,
    changes: Mutex<Changes>,
    /// The directory, as in [`Pair`].
    lock: Option<File>,
}

#[derive(Debug)]
struct Changes {
    len: u64,
    /// The length of the file's part that the changes haven't cut off.
    of_file: u64,
    /// By offset.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    fn new(file: File) -> IoResult<Overlay> {
        let len = file.metadata()?.len();
        let changes = Changes {
            len,
            of_file: len,
            blocks: BTreeMap::new(),
        };
        Ok(Overlay {
            file,
            changes: Mutex::new(changes),
            lock: None,
        })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block without changes.
    fn block(&self, of_file: u64, at: u64) -> IoResult<Vec<u8>> {
        let mut block = vec![0; BLOCK];
        self.file
            .read_exact_at(&mut block[..len_at(of_file, at)], at)?;
        Ok(block)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> IoResult<u64> {
        Ok(self.changes().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        let changes = self.changes();
        if offset
            .checked_add(out.len() as u64)
            .is_none_or(|end| end > changes.len)
        {
            return Err(IoError::from(ErrorKind::UnexpectedEof));
        }
        for (block, within, part) in blocks(offset, out.len()) {
            let out = &mut out[part];
            match changes.blocks.get(&block) {
                Some(changed) => out.copy_from_slice(&changed[within..within + out.len()]),
                None => {
                    let at = block + within as u64;
                    let there = len_at(changes.of_file, at).min(out.len());
                    self.file.read_exact_at(&mut out[..there], at)?;
                    out[there..].fill(0);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        let mut changes = self.changes();
        changes.len = len;
        changes.of_file = changes.of_file.min(len);
        changes.blocks.retain(|&at, _| at < len);
        if let Some((&at, last)) = changes.blocks.iter_mut().next_back() {
            last[len_at(len, at)..].fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> IoResult<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let mut changes = self.changes();
        for (block, within, part) in blocks(offset, data.len()) {
            let data = &data[part];
            if !changes.blocks.contains_key(&block) {
                let unchanged = self.block(changes.of_file, block)?;
                changes.blocks.insert(block, unchanged);
            }
            if let Some(changed) = changes.blocks.get_mut(&block) {
                changed[within..within + data.len()].copy_from_slice(data);
            }
        }
        Ok(())
    }
}

/// The blocks of a range: each one's offset, the range's beginning in it, and its part of the
/// range.
fn blocks(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK as u64) as usize;
        let begin = done;
        done = len.min(begin + BLOCK - within);
        (begin < len).then_some((at - within as u64, within, begin..done))
    })
}

/// Bytes of the block at `at` in a file of `len` bytes.
fn len_at(len: u64, at: u64) -> usize {
    usize::try_from(len.saturating_sub(at)).map_or(BLOCK, |rest| rest.min(BLOCK))
}

/// Whether both files exist and have the same bytes.
fn is_same(one: &Path, other: &Path) -> IoResult<bool> {
    let files: IoResult<Vec<File>> = [one, other].into_iter().map(File::open).collect();
    let files = match files {
        Ok(files) => files,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let len = files[0].metadata()?.len();
    if files[1].metadata()?.len() != len {
        return Ok(false);
    }
    let mut read = [vec![0; BLOCK], vec![0; BLOCK]];
    for at in (0..len).step_by(BLOCK) {
        let here = len_at(len, at);
        for (file, block) in files.iter().zip(&mut read) {
            // Unreadable bytes are damage, which a closer look reports.
            if file.read_exact_at(&mut block[..here], at).is_err() {
                return Ok(false);
            }
        }
        if read[0][..here] != read[1][..here] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod power_cuts;
#[cfg(test)]
pub(crate) use power_cuts::scratch;
#[cfg(test)]
mod tests;
