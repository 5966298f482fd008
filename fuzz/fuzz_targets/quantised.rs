#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| convoke_fuzz::quantised::check(data));
