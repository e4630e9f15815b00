//! See `tollgate_fuzz::wire`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::wire::check(input));
