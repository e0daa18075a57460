//! TLS of a node: the controller must present a certificate under a root that the node trusts.
//!
//! Before the join the node knows the pin of the root, and the controller must present the root in
//! its chain. Afterwards the node has the root itself. Host names are not compared: the address of
//! a controller is a hint from anyone, and only controllers have server certificates under the
//! root.
//!
//! If only the dates of the certificate are wrong, the connection is made all the same, so that
//! both clocks can be named. [`Presented::is_dated`] says so, and the caller must not send anything
//! about this node then.

use std::sync::Arc;

use hoist_cluster::id::Pin;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

/// What this node trusts.
#[derive(Debug, Clone)]
pub enum Trust {
    /// A root with one of these pins, from the chain that the controller presents.
    Pins(Vec<Pin>),
    /// These roots.
    Roots(Vec<CertificateDer<'static>>),
}

/// The certificates that the controller of the last handshake presented.
#[derive(Debug, Clone, Default)]
pub struct Presented {
    /// The pins of all certificates but the first.
    pub authorities: Vec<Pin>,
    /// Whether one of them is trusted.
    pub is_trusted: bool,
    /// The certificate is not valid at the time of this machine.
    pub is_dated: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    #[error("{0} has no certificate that can be read")]
    NoCertificate(&'static str),
    #[error("the private key of the node cannot be read")]
    Key,
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// TLS settings with a record of the certificates that the controller presents.
#[derive(Debug, Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    presented: Arc<Mutex<Presented>>,
    pins: Vec<Pin>,
}

impl Tls {
    /// For a node without a certificate.
    pub fn new(trust: Trust) -> Result<Self, TrustError> {
        Self::with_identity(trust, None)
    }

    /// For a member: `identity` is its key and its certificate chain in PEM.
    pub fn of_member(roots_pem: &str, identity: &str) -> Result<Self, TrustError> {
        let roots = certificates(roots_pem);
        if roots.is_empty() {
            return Err(TrustError::NoCertificate("`authorities.pem`"));
        }
        Self::with_identity(Trust::Roots(roots), Some(identity))
    }

    fn with_identity(trust: Trust, identity: Option<&str>) -> Result<Self, TrustError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let presented = Arc::default();
        let pins = match &trust {
            Trust::Pins(pins) => pins.clone(),
            Trust::Roots(roots) => roots.iter().filter_map(pin_of).collect(),
        };
        let verifier =
            Verifier { trust, provider: Arc::clone(&provider), presented: Arc::clone(&presented) };
        // Keying material of TLS 1.2 may be the same for two connections.
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = certificates(identity);
                if chain.is_empty() {
                    return Err(TrustError::NoCertificate("`identity.pem`"));
                }
                let key = PrivateKeyDer::from_pem_slice(identity.as_bytes())
                    .map_err(|_| TrustError::Key)?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session presents no certificates, so its chain would not be checked again.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config: Arc::new(config), presented, pins })
    }

    pub fn presented(&self) -> Presented {
        self.presented.lock().clone()
    }

    /// The pins of the trusted roots.
    pub(crate) fn expected(&self) -> Vec<Pin> {
        self.pins.clone()
    }
}

/// All certificates of a PEM text.
pub(crate) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    certificates.unwrap_or_default()
}

/// The pin of a certificate's public key.
pub(crate) fn pin_of(certificate: &CertificateDer<'_>) -> Option<Pin> {
    public_key_info(certificate).map(|info| Pin::of_key(&info))
}

/// The `SubjectPublicKeyInfo` of a certificate in DER.
pub(crate) fn public_key_info(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(parsed.subject_public_key_info().to_vec())
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
    presented: Arc<Mutex<Presented>>,
}

impl Verifier {
    fn roots(&self, chain: &[CertificateDer<'_>]) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        match &self.trust {
            Trust::Roots(trusted) => {
                roots.add_parsable_certificates(trusted.iter().cloned());
            }
            Trust::Pins(pins) => {
                let is_pinned =
                    |one: &&CertificateDer<'_>| pin_of(one).is_some_and(|pin| pins.contains(&pin));
                let pinned = chain.iter().filter(is_pinned);
                roots.add_parsable_certificates(pinned.map(|one| one.clone().into_owned()));
            }
        }
        roots
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let roots = self.roots(intermediates);
        let mut presented = Presented {
            authorities: intermediates.iter().filter_map(pin_of).collect(),
            is_trusted: !roots.is_empty(),
            is_dated: false,
        };
        *self.presented.lock() = presented.clone();
        if roots.is_empty() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let verify = |at: UnixTime| {
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &roots,
                intermediates,
                at,
                self.provider.signature_verification_algorithms.all,
            )
        };
        if let Err(error) = verify(now) {
            // At the time of the certificate only its dates can be in order that were not before.
            verify(valid_time(&error).ok_or(error)?)?;
            presented.is_dated = true;
            *self.presented.lock() = presented;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A time at which the certificate was valid, if only the time was the reason.
fn valid_time(error: &rustls::Error) -> Option<UnixTime> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        }) => Some(*not_before),
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        }) => Some(*not_after),
        _ => None,
    }
}
