//! Lets tests fill the disk: every write asks here first. Outside of tests there is always room.

use std::io::Result;

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

#[cfg(test)]
mod tests;
