//! See `tollgate_fuzz::descriptor_set`.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::descriptor_set::check(input));
