//! The functions that the host offers to a module.
//!
//! Needs `unsafe` for the imports that take addresses. Outside of WebAssembly the imports are those
//! of [`crate::testing`], so that policies can be tested natively. A module imports what it calls,
//! and nothing else.

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something is broken.
    Error = 1,
    /// Something is odd.
    Warning = 2,
    /// Something happened.
    Info = 3,
    /// For debugging the policy.
    Debug = 4,
}

/// Writes a line to the policy's log: at most 512 bytes of it, and not many lines at once.
pub fn log(level: Level, line: &str) {
    sys::log(level as u32, line);
}

/// A counter of the manifest's `counters`, by its position there.
///
/// Adding to one that isn't declared ends the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter(pub u32);

impl Counter {
    /// Adds to it.
    pub fn add(self, delta: u64) {
        sys::counter(self.0, delta);
    }
}

/// A gauge of the manifest's `gauges`, by its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge(pub u32);

impl Gauge {
    /// Says what it is now.
    pub fn set(self, value: i64) {
        sys::gauge(self.0, value);
    }
}

/// A histogram of the manifest's `histograms`, by its position there. Its buckets are the powers of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram(pub u32);

impl Histogram {
    /// Counts a value.
    pub fn record(self, value: i64) {
        sys::histogram(self.0, value);
    }
}

/// Milliseconds since 1970, as the host read its clock before this evaluation. Needs the capability
/// `clock`.
pub fn now_ms() -> u64 {
    sys::now_ms()
}

/// Microseconds since an arbitrary time, as the host read its clock before this evaluation: for
/// durations, since it never goes back. The same for all instances. Needs the capability `clock`.
pub fn monotonic_us() -> u64 {
    sys::monotonic_us()
}

/// Fills at most 256 bytes with random ones. Needs the capability `random`.
pub fn random(bytes: &mut [u8]) {
    sys::random(bytes);
}

/// What all instances of this policy share, those of other runtimes and of its next version
/// included. Needs the capability `state`.
pub mod state {
    use super::sys;

    /// Copies the value of a key to the beginning of `room`. Answers the value's length, which may
    /// be more.
    pub fn get(key: &[u8], room: &mut [u8]) -> Option<usize> {
        sys::state_get(key, room)
    }

    /// Sets the value of a key. False if there is no room for it.
    #[must_use]
    pub fn set(key: &[u8], value: &[u8]) -> bool {
        sys::state_set(key, value)
    }

    /// Why a value wasn't replaced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NotReplaced {
        /// The key has another value by now.
        Changed,
        /// There is no room.
        Full,
    }

    /// Replaces the value of a key if it still is `old` (`None`: there is none): compare and swap.
    ///
    /// # Errors
    /// Why it stays as it is.
    pub fn replace(key: &[u8], old: Option<&[u8]>, value: &[u8]) -> Result<(), NotReplaced> {
        match sys::state_replace(key, old, value) {
            0 => Ok(()),
            1 => Err(NotReplaced::Full),
            _ => Err(NotReplaced::Changed),
        }
    }

    /// Forgets a key.
    pub fn delete(key: &[u8]) {
        sys::state_delete(key);
    }

    /// Adds to the integer of a key (8 bytes, 0 if there is none yet) and answers the sum. Ends the
    /// instance if there is no room, or no integer.
    pub fn add(key: &[u8], delta: i64) -> i64 {
        sys::state_add(key, delta)
    }
}

/// Sends the message of a panic to the log: the trap that follows doesn't say much.
#[doc(hidden)]
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| log(Level::Error, &panic.to_string())));
}

#[cfg(target_arch = "wasm32")]
mod sys {
    #[link(wasm_import_module = "tollgate")]
    unsafe extern "C" {
        #[link_name = "log"]
        fn host_log(level: u32, address: *const u8, len: u32);
        #[link_name = "state_get"]
        fn host_state_get(key: *const u8, key_len: u32, out: *mut u8, out_max: u32) -> i32;
        #[link_name = "state_set"]
        fn host_state_set(key: *const u8, key_len: u32, value: *const u8, value_len: u32) -> i32;
        #[link_name = "state_replace"]
        fn host_state_replace(
            key: *const u8,
            key_len: u32,
            old: *const u8,
            old_len: u32,
            value: *const u8,
            value_len: u32,
        ) -> i32;
        #[link_name = "state_delete"]
        fn host_state_delete(key: *const u8, key_len: u32) -> i32;
        #[link_name = "state_add"]
        fn host_state_add(key: *const u8, key_len: u32, delta: i64) -> i64;
        #[link_name = "random"]
        fn host_random(address: *mut u8, len: u32);
        // These take numbers only, and the host checks the id: nothing to get wrong.
        #[link_name = "counter"]
        safe fn host_counter(id: u32, delta: u64);
        #[link_name = "gauge"]
        safe fn host_gauge(id: u32, value: i64);
        #[link_name = "histogram"]
        safe fn host_histogram(id: u32, value: i64);
        #[link_name = "now_ms"]
        safe fn host_now_ms() -> u64;
        #[link_name = "monotonic_us"]
        safe fn host_monotonic_us() -> u64;
    }

    pub(crate) fn log(level: u32, line: &str) {
        // SAFETY: the host reads `len` bytes at `address`, which is what a `&str` guarantees to be
        // there, and keeps no address after it returns.
        unsafe { host_log(level, line.as_ptr(), line.len() as u32) }
    }

    pub(crate) fn counter(id: u32, delta: u64) {
        host_counter(id, delta);
    }

    pub(crate) fn gauge(id: u32, value: i64) {
        host_gauge(id, value);
    }

    pub(crate) fn histogram(id: u32, value: i64) {
        host_histogram(id, value);
    }

    pub(crate) fn now_ms() -> u64 {
        host_now_ms()
    }

    pub(crate) fn monotonic_us() -> u64 {
        host_monotonic_us()
    }

    pub(crate) fn state_get(key: &[u8], out: &mut [u8]) -> Option<usize> {
        // SAFETY: the host reads the key's bytes and writes at most `out.len()` bytes to `out`,
        // which is borrowed mutably; it keeps no address.
        let len = unsafe {
            host_state_get(
                key.as_ptr(),
                key.len() as u32,
                out.as_mut_ptr(),
                out.len() as u32,
            )
        };
        usize::try_from(len).ok()
    }

    pub(crate) fn state_set(key: &[u8], value: &[u8]) -> bool {
        // SAFETY: the host reads the bytes of both slices, and keeps no address.
        let full = unsafe {
            host_state_set(
                key.as_ptr(),
                key.len() as u32,
                value.as_ptr(),
                value.len() as u32,
            )
        };
        full == 0
    }

    pub(crate) fn state_replace(key: &[u8], old: Option<&[u8]>, value: &[u8]) -> i32 {
        let old_len = old.map_or(u32::MAX, |old| old.len() as u32);
        let old = old.unwrap_or_default();
        // SAFETY: the host reads the bytes of the slices, none of `old` if its length is
        // `u32::MAX`, and keeps no address.
        unsafe {
            host_state_replace(
                key.as_ptr(),
                key.len() as u32,
                old.as_ptr(),
                old_len,
                value.as_ptr(),
                value.len() as u32,
            )
        }
    }

    pub(crate) fn state_delete(key: &[u8]) {
        // SAFETY: the host reads the key's bytes, and keeps no address.
        unsafe { host_state_delete(key.as_ptr(), key.len() as u32) };
    }

    pub(crate) fn state_add(key: &[u8], delta: i64) -> i64 {
        // SAFETY: the host reads the key's bytes, and keeps no address.
        unsafe { host_state_add(key.as_ptr(), key.len() as u32, delta) }
    }

    pub(crate) fn random(bytes: &mut [u8]) {
        // SAFETY: the host writes exactly these bytes, which are borrowed mutably, and keeps no
        // address.
        unsafe { host_random(bytes.as_mut_ptr(), bytes.len() as u32) }
    }
}

#[cfg(not(target_arch = "wasm32"))]
use crate::testing::host::calls as sys;
