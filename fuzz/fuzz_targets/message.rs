//! A message as anybody may publish it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tenure::fuzz::message(data));
