//! What a command of `work --exec` writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tenure::fuzz::exec_output(data));
