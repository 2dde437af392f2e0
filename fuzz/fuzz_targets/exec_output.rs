//! What a command of `work --exec` writes.
#![no_main]

#[allow(dead_code, unreachable_pub, reason = "of the program, whose crate has no library")]
#[path = "../../tenure-cli/src/exec/output.rs"]
mod output;

libfuzzer_sys::fuzz_target!(|data: &[u8]| output::try_output(data));
