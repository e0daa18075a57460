//! Signatures of the two keys of the beacon: the root key of a cluster on the curve P-256, and the
//! beacon key on Ed25519.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair,
    UnparsedPublicKey,
};

/// `SubjectPublicKeyInfo` in DER, up to the key itself: Ed25519 has 32 bytes.
pub(crate) const ED25519_PREFIX: &[u8] =
    &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// As above; a point on P-256 has 65 bytes.
const P256_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

const ED25519_KEY: usize = 32;
const P256_KEY: usize = 65;

/// A private key that cannot sign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("the private key is not one on P-256 in PKCS #8: {0}")]
    Rejected(String),
    #[error("the private key cannot sign")]
    Sign,
}

/// Whether a key signed a message. `key_info` is a `SubjectPublicKeyInfo` in DER; keys of other
/// kinds signed nothing.
pub fn verify(key_info: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let ed25519 = key_info.strip_prefix(ED25519_PREFIX).filter(|key| key.len() == ED25519_KEY);
    if let Some(key) = ed25519 {
        return UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok();
    }
    let p256 = key_info.strip_prefix(P256_PREFIX).filter(|key| key.len() == P256_KEY);
    p256.is_some_and(|key| {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
        key.verify(message, signature).is_ok()
    })
}

/// Signs with a root key on P-256, which is in PKCS #8 in DER.
pub fn sign_with_root(pkcs8: &[u8], message: &[u8]) -> Result<Vec<u8>, KeyError> {
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8)
        .map_err(|error| KeyError::Rejected(error.to_string()))?;
    let signature = key.sign(&SystemRandom::new(), message).map_err(|_| KeyError::Sign)?;
    Ok(signature.as_ref().to_vec())
}

#[cfg(test)]
pub(crate) mod tests {
    use aws_lc_rs::encoding::AsDer;
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    /// A new root key: its `SubjectPublicKeyInfo`, and itself in PKCS #8.
    pub(crate) fn root() -> (Vec<u8>, Vec<u8>) {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let info = pair.public_key().as_der().unwrap();
        (info.as_ref().to_vec(), pair.to_pkcs8v1().unwrap().as_ref().to_vec())
    }

    #[test]
    fn signatures_of_a_root_key_verify() {
        let (info, pkcs8) = root();
        let signature = sign_with_root(&pkcs8, b"message").unwrap();
        assert!(verify(&info, b"message", &signature));
        assert!(!verify(&info, b"massage", &signature));
        assert!(!verify(&root().0, b"message", &signature));
        assert!(matches!(sign_with_root(b"no key", b""), Err(KeyError::Rejected(_))));
    }

    #[test]
    fn signatures_of_a_beacon_key_verify() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let info = pair.public_key().as_der().unwrap();
        assert!(info.as_ref().starts_with(ED25519_PREFIX));
        let signature = pair.sign(b"message");
        assert!(verify(info.as_ref(), b"message", signature.as_ref()));
        assert!(!verify(info.as_ref(), b"massage", signature.as_ref()));
    }

    #[test]
    fn unknown_keys_signed_nothing() {
        let with = |prefix: &[u8], length| [prefix, &vec![4; length]].concat();
        let keys = [
            Vec::new(),
            with(ED25519_PREFIX, 31),
            with(ED25519_PREFIX, 33),
            with(P256_PREFIX, 64),
            with(P256_PREFIX, 65),
            with(b"", 200),
        ];
        for key in keys {
            assert!(!verify(&key, b"message", &[0; 64]), "{key:?}");
        }
    }
}
