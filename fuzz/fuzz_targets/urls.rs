#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| redlock_fuzz::fuzz::urls(data));
