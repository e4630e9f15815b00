//! The compiler's cache: machine code of accepted modules, and the reasons for refusing others.
//!
//! Both are bounded, by count and (code) by bytes. Code is kept in a directory if one is
//! configured, otherwise in memory. With a directory, a restarted daemon compiles nothing.
//!
//! Invariants:
//!
//! - Code is read back only if no user but this process's own can write it.
//! - A file appears under its name when it is complete.
//! - A damaged file is deleted, and its module is compiled again.

use std::collections::{HashMap, VecDeque};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::artifact::{Artifact, Key};
use crate::{LoadError, limits};

/// The result of a look-up in the code cache.
pub(crate) enum Found {
    Nothing,
    /// The file existed and is deleted.
    Damaged,
    Code(Artifact),
}

/// Compiled modules; the least recently used are evicted.
pub(crate) struct Artifacts {
    place: Place,
    entries: HashMap<Key, Entry>,
    bytes: u64,
    /// Rises with every use.
    clock: u64,
}

struct Entry {
    bytes: u64,
    used: u64,
}

enum Place {
    Memory(HashMap<Key, Vec<u8>>),
    Directory(PathBuf),
}

impl Artifacts {
    /// Keeps code in memory.
    pub(crate) fn in_memory() -> Artifacts {
        Artifacts::new(Place::Memory(HashMap::new()))
    }

    fn new(place: Place) -> Artifacts {
        Artifacts {
            place,
            entries: HashMap::new(),
            bytes: 0,
            clock: 0,
        }
    }

    /// Keeps code in `directory`, which is created if it is missing. Finds an earlier process's
    /// code for `engine`, and deletes code for other engines.
    pub(crate) fn in_directory(directory: &Path, engine: u64) -> io::Result<Artifacts> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let meta = std::fs::metadata(directory)?;
        if !ours_alone(&meta) {
            let text = "others than the daemon's user can write there, and code that is loaded from it runs in the daemon";
            return Err(io::Error::other(text));
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            match key_of(&path).filter(|key| key.engine == engine) {
                Some(key) => found.push((meta.modified()?, key, meta.len())),
                // A temporary file, or code for an older engine.
                None if is_ours(&path) => std::fs::remove_file(&path)?,
                None => {}
            }
        }
        found.sort_by_key(|(used, ..)| *used);
        let mut artifacts = Artifacts::new(Place::Directory(directory.to_owned()));
        for (_, key, bytes) in found {
            artifacts.note(key, bytes);
        }
        artifacts.make_room();
        Ok(artifacts)
    }

    pub(crate) fn find(&mut self, key: &Key) -> Found {
        let Some(entry) = self.entries.get_mut(key) else {
            return Found::Nothing;
        };
        self.clock += 1;
        entry.used = self.clock;
        let file = match &self.place {
            Place::Memory(files) => files.get(key).cloned(),
            Place::Directory(directory) => read(&directory.join(name_of(key))).ok(),
        };
        match file.and_then(|file| Artifact::from_file(file, key)) {
            Some(artifact) => Found::Code(artifact),
            None => {
                self.remove(key);
                Found::Damaged
            }
        }
    }

    /// Keeps `artifact`, unless it is larger than the total limit.
    pub(crate) fn keep(&mut self, key: Key, artifact: &Artifact) -> io::Result<()> {
        let file = artifact.to_file(&key);
        let bytes = file.len() as u64;
        if bytes > self.most_bytes() {
            return Ok(());
        }
        match &mut self.place {
            Place::Memory(files) => {
                files.insert(key, file);
            }
            Place::Directory(directory) => write(directory, &name_of(&key), &file)?,
        }
        self.note(key, bytes);
        self.make_room();
        Ok(())
    }

    fn most_bytes(&self) -> u64 {
        match self.place {
            Place::Memory(_) => limits::ARTIFACTS_IN_MEMORY_BYTES,
            Place::Directory(_) => limits::ARTIFACTS_BYTES,
        }
    }

    fn note(&mut self, key: Key, bytes: u64) {
        self.clock += 1;
        let entry = Entry {
            bytes,
            used: self.clock,
        };
        self.bytes += bytes;
        if let Some(replaced) = self.entries.insert(key, entry) {
            self.bytes -= replaced.bytes;
        }
    }

    fn make_room(&mut self) {
        while self.entries.len() > limits::ARTIFACTS || self.bytes > self.most_bytes() {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some((&key, _)) = oldest else { return };
            self.remove(&key);
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
        }
        match &mut self.place {
            Place::Memory(files) => {
                files.remove(key);
            }
            Place::Directory(directory) => {
                // It may be gone already: then there is nothing to do.
                let _gone = std::fs::remove_file(directory.join(name_of(key)));
            }
        }
    }
}

const SUFFIX: &str = ".code";
const TEMPORARY: &str = ".code.new";

fn name_of(key: &Key) -> String {
    let module: String = key.module.iter().map(|b| format!("{b:02x}")).collect();
    format!("{module}-{:016x}{SUFFIX}", key.engine)
}

fn key_of(path: &Path) -> Option<Key> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    let (hex, engine) = name.split_once('-')?;
    let engine = u64::from_str_radix(engine, 16).ok()?;
    let mut module = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (i, byte) in module.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    let key = Key { module, engine };
    (path.file_name()?.to_str()? == name_of(&key)).then_some(key)
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(TEMPORARY)) || key_of(path).is_some()
}

fn ours_alone(meta: &std::fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || !ours_alone(&meta) || meta.len() > limits::ARTIFACTS_BYTES {
        return Err(io::Error::other(
            "not a file that this user alone can write",
        ));
    }
    let mut bytes = Vec::new();
    (&file)
        .take(limits::ARTIFACTS_BYTES)
        .read_to_end(&mut bytes)?;
    // The order of eviction after the next start. If setting the time fails, only this order
    // changes.
    let _unordered = file.set_modified(SystemTime::now());
    Ok(bytes)
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!("{name}{}", &TEMPORARY[SUFFIX.len()..]));
    let made = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(bytes)?;
        std::fs::rename(&temporary, directory.join(name))
    })();
    if made.is_err() {
        let _gone = std::fs::remove_file(&temporary);
    }
    made
}

/// Refused modules and the reasons, so that pushing one again costs only a look-up. The oldest are
/// evicted.
#[derive(Default)]
pub(crate) struct Refusals {
    entries: HashMap<[u8; 32], (LoadError, Option<Instant>)>,
    order: VecDeque<[u8; 32]>,
}

impl Refusals {
    /// The refusal that still holds.
    pub(crate) fn find(&mut self, module: &[u8; 32], now: Instant) -> Option<LoadError> {
        let (error, until) = self.entries.get(module)?;
        let holds = until.is_none_or(|until| now < until);
        let error = error.clone();
        if !holds {
            self.entries.remove(module);
            self.order.retain(|kept| kept != module);
        }
        holds.then_some(error)
    }

    /// Remembers a refusal; `lasting` limits its duration if the machine may have caused it.
    pub(crate) fn keep(
        &mut self,
        module: [u8; 32],
        error: LoadError,
        now: Instant,
        lasting: Option<Duration>,
    ) {
        let until = lasting.map(|lasting| now + lasting);
        if self.entries.insert(module, (error, until)).is_none() {
            self.order.push_back(module);
        }
        if self.order.len() > limits::REFUSALS
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(n: u32) -> Key {
        let mut module = [0; 32];
        module[..4].copy_from_slice(&n.to_le_bytes());
        Key { module, engine: 7 }
    }

    fn code(bytes: u64) -> Artifact {
        Artifact::from_worker(vec![1; usize::try_from(bytes).unwrap()])
    }

    fn is_kept(artifacts: &mut Artifacts, n: u32) -> bool {
        matches!(artifacts.find(&key(n)), Found::Code(_))
    }

    #[test]
    fn code_that_was_not_used_for_longest_makes_room_for_bytes() {
        let mut artifacts = Artifacts::in_memory();
        // With its header each takes a little more than a quarter, so three fit.
        let quarter = limits::ARTIFACTS_IN_MEMORY_BYTES / 4;
        for n in 0..3 {
            artifacts.keep(key(n), &code(quarter)).unwrap();
        }
        assert!(is_kept(&mut artifacts, 0), "used just now");
        artifacts.keep(key(3), &code(quarter)).unwrap();
        assert!(!is_kept(&mut artifacts, 1), "the longest unused");
        assert!([0, 2, 3].into_iter().all(|n| is_kept(&mut artifacts, n)));
        assert!(artifacts.bytes <= limits::ARTIFACTS_IN_MEMORY_BYTES);
        // An artifact above the total limit isn't kept, and evicts nothing.
        let larger = code(limits::ARTIFACTS_IN_MEMORY_BYTES);
        artifacts.keep(key(4), &larger).unwrap();
        assert!(!is_kept(&mut artifacts, 4));
        assert!([0, 2, 3].into_iter().all(|n| is_kept(&mut artifacts, n)));
    }

    #[test]
    fn code_that_was_not_used_for_longest_makes_room_for_others() {
        let mut artifacts = Artifacts::in_memory();
        let most = u32::try_from(limits::ARTIFACTS).unwrap();
        (0..most).for_each(|n| artifacts.keep(key(n), &code(1)).unwrap());
        assert!(is_kept(&mut artifacts, 0));
        // The same artifact again evicts no other.
        artifacts.keep(key(0), &code(2)).unwrap();
        artifacts.keep(key(most), &code(1)).unwrap();
        assert!(!is_kept(&mut artifacts, 1), "the longest unused");
        assert!([0, 2, most].into_iter().all(|n| is_kept(&mut artifacts, n)));
        assert_eq!(artifacts.entries.len(), limits::ARTIFACTS);
    }

    #[test]
    fn files_make_room_in_the_order_of_their_last_use_before_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Artifacts::in_directory(directory.path(), 7).unwrap();
        let most = u32::try_from(limits::ARTIFACTS).unwrap();
        let mut before = open();
        (0..most).for_each(|n| before.keep(key(n), &code(1)).unwrap());
        // File systems may store times with any resolution.
        let path = |n| directory.path().join(name_of(&key(n)));
        let set = |n: u32, age: u64| {
            let file = OpenOptions::new().write(true).open(path(n)).unwrap();
            let at = SystemTime::now() - Duration::from_secs(age);
            file.set_modified(at).unwrap();
        };
        (0..most).for_each(|n| set(n, 1_000));
        set(5, 2_000);
        set(0, 3_000);
        assert!(is_kept(&mut before, 0), "which is a use");
        let mut after = open();
        after.keep(key(most), &code(1)).unwrap();
        assert!(!is_kept(&mut after, 5) && !path(5).exists());
        assert!([0, 1, most].into_iter().all(|n| is_kept(&mut after, n)));
    }
}
