//! What the files here ask of the disk. Lets tests fill it: every write asks here first. Outside of
//! tests there is always room.

use std::fs::File;
use std::io::Result;
use std::path::Path;

#[cfg(test)]
thread_local! {
    /// Writes that this thread may still do before its disk is full.
    pub(crate) static ROOM: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// # Errors
/// A test has filled the disk.
pub(crate) fn has_room() -> Result<()> {
    #[cfg(test)]
    match ROOM.get() {
        u32::MAX => {}
        0 => return Err(std::io::ErrorKind::StorageFull.into()),
        left => ROOM.set(left - 1),
    }
    Ok(())
}

/// Makes the names in a directory survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
