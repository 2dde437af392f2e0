//! Keyring: a codec that encrypts with XChaCha20-Poly1305 of `RustCrypto`, with a key for new values and older ones.

use chacha20poly1305::{
    Key, KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Generate, Payload},
};
use tenure::codec::{Codec, CodecError, Place, Sealed};

const NONCE_BYTES: usize = 24;

// ANCHOR: keyring
/// The keys of this process. The first seals; each of them opens what it has sealed.
pub(crate) struct Keyring {
    keys: Vec<(String, XChaCha20Poly1305)>,
}

impl Keyring {
    /// `keys`: ids and keys, the newest first.
    pub(crate) fn new(keys: &[(&str, [u8; 32])]) -> Self {
        let cipher =
            |(id, key): &(&str, [u8; 32])| ((*id).to_owned(), XChaCha20Poly1305::new(&Key::from(*key)));
        Self { keys: keys.iter().map(cipher).collect() }
    }
}

impl Codec for Keyring {
    fn seal(&self, place: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        let (id, cipher) = self.keys.first().ok_or_else(|| CodecError::failed("there is no key"))?;
        // A random nonce of 24 bytes does not repeat, however many processes seal.
        let nonce = XNonce::try_generate().map_err(|_| CodecError::failed("the system has no randomness"))?;
        let aad = place.to_string();
        let sealed = cipher.encrypt(&nonce, Payload { msg: plain, aad: aad.as_bytes() });
        let sealed = sealed.map_err(|_| CodecError::failed("the encryption failed"))?;
        Ok(Sealed { key: id.clone(), bytes: [nonce.as_slice(), &sealed].concat() })
    }

    fn open(&self, place: Place<'_>, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
        let of_key = self.keys.iter().find(|(id, _)| id == key);
        let (_, cipher) = of_key.ok_or_else(|| CodecError::UnknownKey(key.to_owned()))?;
        let changed =
            || CodecError::failed("it was changed, or belongs to another kind or another part of a job");
        let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES).ok_or_else(changed)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| changed())?;
        let aad = place.to_string();
        cipher.decrypt(&nonce, Payload { msg: sealed, aad: aad.as_bytes() }).map_err(|_| changed())
    }
}
// ANCHOR_END: keyring
