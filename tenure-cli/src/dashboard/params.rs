//! Params: the parameters of an address or a form.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// The characters that an address must encode.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Names and values, in order. An empty value counts as absent.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    pub(super) fn read(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(own, _)| own == name)
    }

    /// The first value of this name.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        // Postgres takes no NUL in a text.
        let value = self.0.iter().find(|(own, value)| own == name && !value.is_empty());
        value.map(|(_, value)| value.replace('\0', "\u{fffd}"))
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The first value of this name, which may be empty.
    pub(super) fn filled_in(&self, name: &str) -> Option<String> {
        let value = self.0.iter().find(|(own, _)| own == name);
        value.map(|(_, value)| value.replace('\0', "\u{fffd}"))
    }

    /// The fields of a form for the log, without a payload and what the page itself adds.
    pub(super) fn for_log(&self) -> String {
        const MOST: usize = 4_000;
        const LEFT_OUT: [&str; 5] = ["csrf", "back", "once", "loaded", "payload"];
        let named = self.0.iter().filter(|(own, is)| !LEFT_OUT.contains(&own.as_str()) && !is.is_empty());
        let mut text = named.map(|(own, is)| format!("{own}={is}")).collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = text.char_indices().nth(MOST) {
            text.truncate(end);
            text.push('…');
        }
        text
    }

    /// The query of an address with this parameter changed; `None` removes it.
    pub(super) fn with(&self, name: &str, value: Option<&str>) -> String {
        let others = self.0.iter().filter(|(own, is)| own != name && own != "live" && !is.is_empty());
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(others);
        if let Some(value) = value {
            text.append_pair(name, value);
        }
        text.finish()
    }
}

/// Decodes a part of a path.
pub(super) fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Encodes a text for a path or a cookie.
pub(super) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, &RESERVED).to_string()
}
