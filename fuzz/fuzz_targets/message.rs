//! A message as any NATS client may publish it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tenure::fuzz::message(data));
