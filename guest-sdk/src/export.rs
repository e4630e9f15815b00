//! The exports that make a module of a policy.
//!
//! Needs `unsafe` for the exports' fixed names and the manifest's section.

/// Makes a module of a [`Policy`](crate::Policy) and its manifest (a constant `&str` of JSON;
/// `ABI.md` has its keys).
///
/// [`policy`](crate::policy) writes both for you. This is for a policy whose manifest is beyond it.
#[macro_export]
macro_rules! export {
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

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_tick() -> u32 {
                RUNTIME.with_borrow_mut(|runtime| runtime.tick())
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_save() -> u64 {
                RUNTIME.with_borrow_mut(|runtime| runtime.save())
            }

            #[unsafe(no_mangle)]
            extern "C" fn tollgate_restore(version: u32, len: u32) -> u32 {
                RUNTIME.with_borrow_mut(|runtime| runtime.restore(version, len))
            }
        };
    };
}
