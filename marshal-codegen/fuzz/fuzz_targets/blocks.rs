//! See `tollgate_fuzz::blocks`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::blocks::check(input));
