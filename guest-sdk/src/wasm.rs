//! The seam to WebAssembly: the two functions that the host offers, and the exports that make a module of a policy.
//!
//! The crate's only file that needs `unsafe`: for one import that takes an address, and for the exports' fixed names. Outside
//! of WebAssembly the imports do nothing, so that policies can be tested natively.

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something is broken.
    Error = 1,
    /// Something is odd.
    Warning = 2,
    /// Something happened.
    Info = 3,
    /// For whoever debugs the policy.
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
        // It takes numbers only, and the host checks the id: nothing to get wrong.
        #[link_name = "counter"]
        safe fn host_counter(id: u32, delta: u64);
    }

    pub(super) fn log(level: u32, line: &str) {
        // SAFETY: the host reads `len` bytes at `address`, which is what a `&str` guarantees to be there, and keeps
        // no address after it returns.
        unsafe { host_log(level, line.as_ptr(), line.len() as u32) }
    }

    pub(super) fn counter(id: u32, delta: u64) {
        host_counter(id, delta);
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod sys {
    pub(super) fn log(_level: u32, _line: &str) {}

    pub(super) fn counter(_id: u32, _delta: u64) {}
}

/// Makes a module of a [`Policy`](crate::Policy) and its manifest (a constant `&str` of JSON; `ABI.md` has its keys).
#[macro_export]
macro_rules! policy {
    ($policy:ty, $manifest:expr) => {
        #[doc(hidden)]
        pub const MANIFEST: &str = $manifest;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            #[used]
            #[unsafe(link_section = "tollgate.manifest")]
            static SECTION: [u8; MANIFEST.len()] = $crate::rt::section(MANIFEST);

            ::std::thread_local! {
                static RUNTIME: ::core::cell::RefCell<$crate::rt::Runtime<$policy>> =
                    const { ::core::cell::RefCell::new($crate::rt::Runtime::new()) };
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_abi_v1() {}

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_buffer(min_len: u32) -> u32 {
                RUNTIME.with_borrow_mut(|runtime| runtime.buffer(min_len))
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_configure(len: u32) -> u32 {
                $crate::log_panics();
                RUNTIME.with_borrow_mut(|runtime| runtime.configure(len))
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_request(count: u32) -> u32 {
                RUNTIME.with_borrow_mut(|runtime| runtime.request(count))
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_reply(count: u32) -> u32 {
                RUNTIME.with_borrow_mut(|runtime| runtime.reply(count))
            }
        };
    };
}
