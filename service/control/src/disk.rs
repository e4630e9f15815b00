//! Where a test fills the disk: everything that is written asks here first. Outside of tests there is always room, until the system says otherwise.

use std::io::Result;

#[cfg(test)]
thread_local! {
    /// How often this thread may write before its disk is full.
    pub(crate) static ROOM: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// # Errors
/// In a test that has filled the disk.
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
