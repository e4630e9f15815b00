//! See `tollgate_fuzz::descriptors`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::descriptors::check(input));
