//! A block of headers as any NATS client may send it: what the client reads of it before tenure does.
#![no_main]

use async_nats::{StatusCode, header};

#[allow(dead_code)]
#[path = "../../vendor/async-nats/src/read.rs"]
mod read;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok((headers, ..)) = read::read_headers(data) else { return };
    assert!(std::str::from_utf8(data).is_ok() && data.starts_with(b"NATS/1.0"));
    for (name, values) in headers.iter() {
        assert!(!AsRef::<str>::as_ref(name).contains(['\n', ':']), "{name:?}");
        assert!(values.iter().all(|value| !value.as_str().contains('\n')), "{values:?}");
    }
});
