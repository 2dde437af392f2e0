//! Codec: seals what the jobs of a kind carry, so that neither Postgres nor NATS holds a plain byte of it.
//!
//! A sealed value is JSON, too, `{"tenure.sealed": {"key": "2026-11", "kind": "card.charge", "data": "…"}}`, and stands
//! wherever the plain one would: the statements that move jobs, dead letters and results do not know of it.
//!
//! Not here: who seals and opens (`client::enqueue`, `codec::run`).

use std::{collections::HashMap, fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

/// What a value is to its job. A codec that authenticates binds a value to its part and its kind: an output does not
/// open where a payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// What the producer enqueued.
    Payload,
    /// What the handler returned.
    Output,
    /// What the handler saved with [`save_checkpoint`](crate::JobContext::save_checkpoint).
    Checkpoint,
    /// What [`step`](crate::JobContext::step) or [`once`](crate::JobContext::once) recorded.
    Result,
}

impl Part {
    /// Its word: `payload`, `output`, `checkpoint` or `result`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Output => "output",
            Self::Checkpoint => "checkpoint",
            Self::Result => "result",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a value belongs: the associated data of an AEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place<'p> {
    /// The kind of the job.
    pub kind: &'p str,
    /// What the value is to the job.
    pub part: Part,
}

impl fmt::Display for Place<'_> {
    /// The kind and the part, such as `card.charge/payload`: no kind contains a `/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.part)
    }
}

/// A sealed value, as a [`Codec`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the key, 1 to 100 bytes. It is stored in the clear, and shown to operators.
    pub key: String,
    /// The sealed bytes. The codec puts its nonce among them.
    pub bytes: Vec<u8>,
}

/// Why a value was not sealed or opened. The text is stored and logged: it must not quote the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// This process has no key of this id. A worker puts the job off, for one that has it.
    #[error("this process has no key {0:?}")]
    UnknownKey(String),
    /// This process has no codec for the kind. A worker puts the job off.
    #[error("this process has no codec for the kind {0:?}")]
    UnknownKind(String),
    /// Anything else: the value was changed, belongs elsewhere, or the codec does not work. Counts as a failure of the
    /// attempt.
    #[error("{0}")]
    Failed(String),
}

impl CodecError {
    /// A failure with this text, which must not quote the value.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }

    /// Whether another process may have what this one lacks.
    pub(crate) fn is_of_this_process(&self) -> bool {
        matches!(self, Self::UnknownKey(_) | Self::UnknownKind(_))
    }
}

/// Encrypts, or compresses, what the jobs of a kind carry: their payloads, outputs, checkpoints and the results of
/// their steps and of `once`.
///
/// tenure has no cryptography of its own: `examples/sealed` has a codec with an AEAD of `RustCrypto`, and two keys.
/// Each value is sealed and opened where it is used, on the caller's thread: fetch keys from a service before, and keep
/// them in memory.
///
/// Not sealed: the names of queues, kinds, lanes, tags and keys, the stage and the message of progress, the payloads of
/// events, and the texts of errors that a handler returns.
pub trait Codec: Send + Sync + 'static {
    /// Seals a value with the newest key.
    ///
    /// # Errors
    ///
    /// [`CodecError::Failed`]: the call that needed it fails.
    fn seal(&self, place: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError>;

    /// Opens a value that was sealed with this key.
    ///
    /// # Errors
    ///
    /// [`CodecError::UnknownKey`] if this process lacks the key; [`CodecError::Failed`] if the value is not what
    /// [`Codec::seal`] returned for this place.
    fn open(&self, place: Place<'_>, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError>;
}

/// The codecs of this process, by kind: see [`TenureBuilder::codecs`](crate::TenureBuilder::codecs). Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct Codecs(Arc<HashMap<String, Arc<dyn Codec>>>);

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the JSON of a sealed value begins, as tenure and as Postgres write it.
const BEGIN: [&str; 2] = [r#"{"tenure.sealed":{"#, r#"{"tenure.sealed": {"#];
const KEY_BYTES_MAX: usize = 100;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer<E> {
    #[serde(rename = "tenure.sealed")]
    sealed: E,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'e> {
    #[serde(borrow)]
    key: std::borrow::Cow<'e, str>,
    #[serde(borrow)]
    kind: std::borrow::Cow<'e, str>,
    #[serde(borrow)]
    data: std::borrow::Cow<'e, str>,
}

/// Reads a sealed value. `None`: the JSON is no sealed value.
fn envelope(json: &str) -> Option<Envelope<'_>> {
    if !BEGIN.iter().any(|begin| json.starts_with(begin)) {
        return None;
    }
    serde_json::from_str(json).ok().map(|Outer { sealed }| sealed)
}

/// Whether JSON is a sealed value.
pub(crate) fn is_sealed(json: &str) -> bool {
    envelope(json).is_some()
}

/// What a sealed value shows without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SealedWith {
    /// The id of the key.
    pub key: String,
}

impl SealedWith {
    /// Reads the beginning of a sealed value: the rest may be cut off. `None`: the JSON is not one.
    #[must_use]
    pub fn of(json: &str) -> Option<Self> {
        // Also as an editor lays it out.
        let begin = ["{", r#""tenure.sealed""#, ":", "{", r#""key""#, ":"];
        let key = begin.iter().try_fold(json, |json, token| json.trim_start().strip_prefix(token))?;
        let key = serde_json::Deserializer::from_str(key).into_iter::<String>().next()?.ok()?;
        Some(Self { key })
    }
}

impl fmt::Display for SealedWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sealed with key {:?}", self.key)
    }
}

impl Codecs {
    /// Returns no codecs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the codec of a kind, in the place of an earlier one.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>, codec: impl Codec) -> Self {
        Arc::make_mut(&mut self.0).insert(kind.into(), Arc::new(codec));
        self
    }

    /// Whether the kind has a codec.
    #[must_use]
    pub fn has(&self, kind: &str) -> bool {
        self.0.contains_key(kind)
    }

    /// Seals JSON text for its place, as an enqueue does: a submission's producer sends what this returns. Text of a
    /// kind without a codec comes back as it is.
    ///
    /// # Errors
    ///
    /// [`CodecError::Failed`]: the codec did not seal it.
    pub fn seal(&self, kind: &str, part: Part, json: String) -> Result<String, CodecError> {
        let Some(codec) = self.0.get(kind) else { return Ok(json) };
        let Sealed { key, bytes } = codec.seal(Place { kind, part }, json.as_bytes())?;
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) || key.contains(char::is_control) {
            return Err(CodecError::failed(format!(
                "the codec of the kind {kind:?} names a key of {} bytes; it must have 1 to {KEY_BYTES_MAX}, without \
                 control characters",
                key.len()
            )));
        }
        let sealed = Envelope { key: key.into(), kind: kind.into(), data: STANDARD.encode(bytes).into() };
        serde_json::to_string(&Outer { sealed }).map_err(|error| CodecError::failed(error.to_string()))
    }

    /// Opens JSON text that was sealed for this part of a job of any kind. Text that is not sealed comes back as it is.
    ///
    /// # Errors
    ///
    /// [`CodecError`]: this process lacks the key or the codec, or the text was changed or belongs elsewhere.
    pub fn open(&self, part: Part, json: String) -> Result<String, CodecError> {
        Ok(self.opened(None, part, &json)?.unwrap_or(json))
    }

    /// Opens a value of a job of this kind. `None`: it is not sealed.
    pub(crate) fn open_of(&self, kind: &str, part: Part, json: &str) -> Result<Option<String>, CodecError> {
        self.opened(Some(kind), part, json)
    }

    fn opened(&self, of: Option<&str>, part: Part, json: &str) -> Result<Option<String>, CodecError> {
        let Some(Envelope { key, kind, data }) = envelope(json) else { return Ok(None) };
        if let Some(of) = of.filter(|of| *of != kind) {
            return Err(CodecError::failed(format!("it was sealed for the kind {kind:?}, not for {of:?}")));
        }
        let codec = self.0.get(&*kind).ok_or_else(|| CodecError::UnknownKind(kind.clone().into_owned()))?;
        let bytes =
            STANDARD.decode(data.as_bytes()).map_err(|_| CodecError::failed("its data is not base64"))?;
        let plain = codec.open(Place { kind: &kind, part }, &key, &bytes)?;
        match String::from_utf8(plain) {
            Ok(json) => Ok(Some(json)),
            Err(_) => Err(CodecError::failed("the codec opened it as bytes that are not UTF-8")),
        }
    }
}

/// What is wrong with JSON that does not fit a type. serde quotes the value, of which no server may see a byte if it is
/// sealed.
pub(crate) fn misfit(error: &serde_json::Error, is_sealed: bool) -> String {
    if !is_sealed {
        return error.to_string();
    }
    format!(
        "another type is expected at line {} column {}; the value is sealed",
        error.line(),
        error.column()
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Reverses bytes, and knows one key.
    struct Mirror;

    impl Codec for Mirror {
        fn seal(&self, place: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
            let mut bytes: Vec<_> = plain.iter().rev().copied().collect();
            bytes.extend(place.to_string().bytes());
            Ok(Sealed { key: "k1".into(), bytes })
        }

        fn open(&self, place: Place<'_>, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
            if key != "k1" {
                return Err(CodecError::UnknownKey(key.into()));
            }
            let plain = sealed.strip_suffix(place.to_string().as_bytes());
            let plain = plain.ok_or_else(|| CodecError::failed("it belongs elsewhere"))?;
            Ok(plain.iter().rev().copied().collect())
        }
    }

    fn codecs() -> Codecs {
        Codecs::new().kind("a", Mirror).kind("b", Mirror)
    }

    #[test]
    fn what_is_sealed_opens_at_its_place_alone() {
        let json = r#"{"card": "4111", "n": 12345678901234567890}"#.to_owned();
        let sealed = codecs().seal("a", Part::Payload, json.clone()).unwrap();
        assert!(!sealed.contains("4111"), "{sealed}");
        assert_eq!(codecs().open(Part::Payload, sealed.clone()), Ok(json.clone()));
        assert_eq!(codecs().open_of("a", Part::Payload, &sealed), Ok(Some(json)));
        for wrong in [
            codecs().open(Part::Output, sealed.clone()).unwrap_err(),
            codecs().open_of("b", Part::Payload, &sealed).unwrap_err(),
            codecs().open_of("b", Part::Payload, &sealed.replace("\"a\"", "\"b\"")).unwrap_err(),
        ] {
            assert!(matches!(wrong, CodecError::Failed(_)), "{wrong}");
        }
        let of_another = sealed.replace("k1", "k2");
        assert_eq!(codecs().open(Part::Payload, of_another), Err(CodecError::UnknownKey("k2".into())));
        let none = Codecs::new().open(Part::Payload, sealed.clone());
        assert_eq!(none, Err(CodecError::UnknownKind("a".into())));
        let spaced = sealed.replace(':', " :\n ").replace('{', "{ \n");
        for shown in [&sealed[..], &sealed[..sealed.len() / 2], &spaced] {
            assert_eq!(SealedWith::of(shown).unwrap().to_string(), "sealed with key \"k1\"");
        }
    }

    #[test]
    fn what_postgres_wrote_opens_and_what_is_plain_stays() {
        let sealed = codecs().seal("a", Part::Output, "[1]".into()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        let of = &value["tenure.sealed"];
        let jsonb = format!(
            r#"{{"tenure.sealed": {{"key": {}, "data": {}, "kind": {}}}}}"#,
            of["key"], of["data"], of["kind"]
        );
        assert_eq!(codecs().open(Part::Output, jsonb), Ok("[1]".into()));
        for plain in [
            "1",
            r#"{"tenure.sealed": 1}"#,
            r#"{"tenure.sealed": {"key": "k1", "kind": "a"}}"#,
            r#"{"tenure.sealed": {"key": "k1", "kind": "a", "data": ""}, "more": 1}"#,
            r#" {"tenure.sealed": {"key": "k1", "kind": "a", "data": ""}}"#,
        ] {
            assert_eq!(codecs().open(Part::Output, plain.into()), Ok(plain.into()));
            assert!(!is_sealed(plain));
        }
        assert_eq!(codecs().seal("plain", Part::Payload, "1".into()), Ok("1".into()));
    }
}
