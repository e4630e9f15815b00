//! See `tollgate_fuzz::links`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::links::check(input));
