//! The shared library's name within programs: it changes with the ABI.

#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtollgate.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
