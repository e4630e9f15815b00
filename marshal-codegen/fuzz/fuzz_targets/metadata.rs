//! See `tollgate_fuzz::metadata`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::metadata::check(input));
