//! Certificate signing requests of machines that want to be members of a cluster.
//!
//! A request proves possession of a key and says nothing else: its subject and the extensions that
//! it asks for are ignored. Names and rights in a certificate are those that its issuer decides.
//!
//! Does not belong here: issuing (`cluster_authority`), and the decision whom to admit.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm,
};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SignatureAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::secret;

/// Longest request, in bytes. One of an accepted key has about 300.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// A request whose signature has been verified: its sender holds the private key.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    key: AcceptedKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateRequestError {
    #[error("the certificate request has more than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    #[error("the certificate request is not a PKCS #10 request in DER")]
    Malformed,
    #[error("the key of the certificate request is not accepted; use ECDSA P-256 or Ed25519")]
    Key,
    #[error("the signature of the certificate request does not verify under its own key")]
    Signature,
}

/// A public key of an accepted algorithm, in its only accepted encoding.
#[derive(Debug, Clone)]
struct AcceptedKey {
    algorithm: &'static SignatureAlgorithm,
    bytes: Vec<u8>,
}

struct KeyKind {
    algorithm: &'static SignatureAlgorithm,
    verification: &'static dyn VerificationAlgorithm,
    /// Of the key itself; for P-256 that is an uncompressed point.
    bytes: usize,
}

const ACCEPTED_KEYS: [KeyKind; 2] = [
    KeyKind {
        algorithm: &PKCS_ECDSA_P256_SHA256,
        verification: &ECDSA_P256_SHA256_ASN1,
        bytes: 65,
    },
    KeyKind { algorithm: &PKCS_ED25519, verification: &ED25519, bytes: 32 },
];

impl CertificateRequest {
    /// Reads a request and verifies its signature.
    pub fn verify(der: &[u8]) -> Result<Self, CertificateRequestError> {
        if der.len() > MAX_REQUEST_BYTES {
            return Err(CertificateRequestError::TooLarge);
        }
        let (rest, request) = X509CertificationRequest::from_der(der)
            .map_err(|_| CertificateRequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(CertificateRequestError::Malformed);
        }
        let info = &request.certification_request_info;
        let (kind, key) = AcceptedKey::read(&info.subject_pki)?;
        UnparsedPublicKey::new(kind.verification, &key.bytes)
            .verify(info.raw, &request.signature_value.data)
            .map_err(|_| CertificateRequestError::Signature)?;
        Ok(Self { key })
    }

    /// The SHA-256 of the public key info, as hexadecimal digits. Equal to
    /// [`spki_sha256`](crate::ca::spki_sha256) of a certificate for the same key.
    pub fn spki_sha256(&self) -> String {
        secret::hex(&secret::sha256(&self.key.subject_public_key_info()))
    }

    pub(crate) fn public_key(&self) -> &impl PublicKeyData {
        &self.key
    }
}

impl AcceptedKey {
    /// One key must have one hash, so any other encoding of it is refused.
    fn read(
        info: &SubjectPublicKeyInfo<'_>,
    ) -> Result<(&'static KeyKind, Self), CertificateRequestError> {
        let bytes = &info.subject_public_key.data;
        ACCEPTED_KEYS
            .iter()
            .filter(|kind| kind.bytes == bytes.len())
            .map(|kind| (kind, Self { algorithm: kind.algorithm, bytes: bytes.to_vec() }))
            .find(|(_, key)| key.subject_public_key_info() == info.raw)
            .ok_or(CertificateRequestError::Key)
    }
}

impl PublicKeyData for AcceptedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize};

    use super::*;

    fn request_of(key: &KeyPair) -> Vec<u8> {
        let params = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
        params.serialize_request(key).unwrap().der().to_vec()
    }

    fn refusal(der: &[u8]) -> CertificateRequestError {
        CertificateRequest::verify(der).unwrap_err()
    }

    #[test]
    fn accepted_keys_have_the_hash_of_their_key_info() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let request = CertificateRequest::verify(&request_of(&key)).unwrap();
            let expected = secret::hex(&secret::sha256(&key.subject_public_key_info()));
            assert_eq!(request.spki_sha256(), expected);
        }
    }

    #[test]
    fn other_keys_are_refused() {
        let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        for key in [p384, rsa] {
            assert_eq!(refusal(&request_of(&key)), CertificateRequestError::Key);
        }
    }

    #[test]
    fn altered_requests_are_refused() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
            let der = request_of(&KeyPair::generate_for(algorithm).unwrap());
            let mut signature = der.clone();
            *signature.last_mut().unwrap() ^= 1;
            assert_eq!(refusal(&signature), CertificateRequestError::Signature);
            let mut name = der.clone();
            let at = der.windows(5).position(|bytes| bytes == b"other").unwrap();
            name[at] ^= 1;
            assert_eq!(refusal(&name), CertificateRequestError::Signature);
        }
    }

    #[test]
    fn other_content_is_refused() {
        let der = request_of(&KeyPair::generate().unwrap());
        let mut longer = der.clone();
        longer.push(0);
        for malformed in [&b"kettle"[..], &[], &der[..der.len() - 1], &longer] {
            assert_eq!(refusal(malformed), CertificateRequestError::Malformed);
        }
        let large = vec![0x30; MAX_REQUEST_BYTES + 1];
        assert_eq!(refusal(&large), CertificateRequestError::TooLarge);
    }
}
