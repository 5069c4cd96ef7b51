//! HTTPS: a certificate and its key, and connections that begin with a handshake.
//!
//! In: two PEM files, and sockets. Out: encrypted streams.
//! A build without the feature `tls` has `none.rs` in its place.

use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// An encrypted stream.
pub(crate) type Stream<S> = TlsStream<S>;

/// Who shakes hands.
#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its key.
    ///
    /// # Errors
    /// Where a file cannot be read, holds no PEM, or the key is not that of the certificate.
    pub(crate) fn open(certificate: &Path, key: &Path) -> Result<Self, String> {
        let chain =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| format!("{}: {error}", certificate.display()))?;
        if chain.is_empty() {
            return Err(format!("{}: expected a certificate in PEM, found none", certificate.display()));
        }
        let own = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, own));
        let mut config = config.map_err(|error| format!("{}: {error}", key.display()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Shakes hands; none where the other side does not.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> Option<Stream<S>> {
        self.0.accept(socket).await.ok()
    }
}
