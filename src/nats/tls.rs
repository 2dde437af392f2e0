//! TLS: the client's configuration for NATS.
//!
//! It names the cryptography provider. A program whose crates choose several providers for rustls has no default one,
//! and a client that asks for the default panics at its first connection with TLS.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::connect::NatsError;
use crate::config::Config;

/// The certificates that the system trusts, some 150, which are read once. Without any, the client refuses a server
/// with TLS by its certificate; other servers need none.
fn roots_of_the_system() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return roots.clone();
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Arc::new(roots) } else { ROOTS.get_or_init(|| Arc::new(roots)).clone() }
}

/// The error about a file that cannot be used. `name` is its setting.
fn unfit(name: &'static str, path: &Path, reason: impl std::fmt::Display) -> NatsError {
    NatsError::Credentials { name, path: path.display().to_string(), reason: reason.to_string() }
}

/// Reads the certificates of a file, at least one.
fn certificates(name: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, NatsError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(unfit(name, path, "it holds no CERTIFICATE in PEM")),
        Ok(all) => Ok(all),
        Err(error) => Err(unfit(name, path, error)),
    }
}

/// Builds the client's configuration, which applies if the server or a setting asks for TLS.
///
/// # Errors
///
/// A file that a setting names cannot be read, or holds something else.
pub(super) fn client(config: &Config) -> Result<ClientConfig, NatsError> {
    let roots = if let Some(path) = &config.nats_ca {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("TENURE_NATS_CA", path)? {
            roots.add(certificate).map_err(|error| unfit("TENURE_NATS_CA", path, error))?;
        }
        Arc::new(roots)
    } else {
        roots_of_the_system()
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| NatsError::Unavailable(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &config.nats_certificate else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("TENURE_NATS_CERT", certificate)?;
    let own = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        let reason = match error {
            rustls::pki_types::pem::Error::NoItemsFound => "it holds no PRIVATE KEY in PEM".to_owned(),
            error => error.to_string(),
        };
        unfit("TENURE_NATS_KEY", key, reason)
    })?;
    builder.with_client_auth_cert(chain, own).map_err(|error| unfit("TENURE_NATS_CERT", certificate, error))
}
