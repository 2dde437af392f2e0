//! Encryption of what jobs carry: see [`TenureBuilder::codecs`](crate::TenureBuilder::codecs).

pub(crate) mod job;
#[cfg(feature = "worker")]
pub(crate) mod run;

pub use job::{Codec, CodecError, Codecs, Part, Place, Sealed, SealedWith};
