//! See `tollgate_fuzz::manifest`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::manifest::check(input));
