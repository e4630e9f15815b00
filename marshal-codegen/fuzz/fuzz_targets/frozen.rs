//! See `tollgate_fuzz::frozen`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::frozen::check(input));
