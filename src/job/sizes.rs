//! Sizes: how many bytes of JSON Postgres will write, from any door. A limit counts these, as SQL does: 180 KB of
//! `1e-16383` are 328 MB of text.

use serde_json::Value;

use super::unstorable;

/// The most bytes that a JSON text has as Postgres writes it: with a space after each comma and colon and none
/// elsewhere, and with all digits that an exponent stands for.
pub(crate) fn stored_bytes(json: impl AsRef<[u8]>) -> usize {
    let json = json.as_ref();
    let (mut bytes, mut in_text, mut is_escaped) = (json.len(), false, false);
    for (at, byte) in json.iter().enumerate() {
        match *byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b':' if !in_text => bytes += 1,
            b' ' | b'\t' | b'\r' | b'\n' if !in_text => bytes = bytes.saturating_sub(1),
            b'e' | b'E' if !in_text => {
                let exponent = json[at + 1..].iter().skip_while(|byte| matches!(byte, b'+' | b'-'));
                // The `e` of `true` and `false` has no digits after it.
                let digits = exponent.take_while(|byte| byte.is_ascii_digit());
                let more = digits.fold(0, |n: usize, digit| {
                    n.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
                });
                bytes = bytes.saturating_add(more);
            }
            _ => {}
        }
    }
    bytes
}

/// How many bytes more an output may have in Postgres than it has here.
const GROWTH_MAX: usize = 1 << 20;

/// Says why an output grows too much in Postgres, if it does. Outputs have no other limit.
pub(crate) fn grows(json: &str) -> Option<String> {
    let (bytes, stored) = (json.len(), stored_bytes(json));
    // A space after each comma or colon is no more than the text itself.
    (stored > 2 * bytes + GROWTH_MAX).then(|| {
        format!(
            "it has {bytes} bytes, but {stored} as Postgres writes it, with each digit of its numbers; write such \
             numbers as text"
        )
    })
}

/// Says why Postgres cannot hold a value that a handler leaves, or why it grows too much there.
pub(crate) fn unfit(value: &Value) -> Option<String> {
    unstorable(value).map(str::to_owned).or_else(|| grows(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_longer_in_postgres_than_it_was_taken_for() {
        // The text that Postgres 15 writes.
        for (json, stored) in [
            ("[1,1]", 6),
            ("[1, 1]", 6),
            ("  [\n\t1 ,\r\n1 ]  ", 6),
            (r#"{"a":[1,{"b,:e9":"1e5"}]}"#, r#"{"a": [1, {"b,:e9": "1e5"}]}"#.len()),
            ("1e300", 301),
            ("[true,false,null]", 19),
            ("-1.5E-10", "-0.00000000015".len()),
            (r#""\\",1"#, r#""\\", 1"#.len()),
        ] {
            let bytes = stored_bytes(json);
            assert!((stored..stored + 20).contains(&bytes), "{json}: {bytes}, {stored}");
        }
        assert!(stored_bytes("1e99999999999999999999999") > 1 << 40);
    }
}
