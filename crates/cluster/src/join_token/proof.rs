//! The proof that a joiner has the secret of a token.

use std::fmt;

use aws_lc_rs::hmac;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::JoinSecret;
use crate::hexadecimal;
use crate::id::NodeId;
pub use crate::text_form::ParseIdError as ParseProofError;
use crate::text_form::{as_text, hexadecimal_text};

/// Bytes that a TLS connection exports, see [`Binding::exporter`].
pub const EXPORTER_BYTES: usize = 32;

const KEY_BYTES: usize = 32;

/// Each ends with a byte that no text has, so that neither is the beginning of another.
const KEY_DOMAIN: &[u8] = b"hoist join token key 1\0";
const PROOF_DOMAIN: &[u8] = b"hoist join token proof 1\0";

/// The key that is derived from the secret of a token, and stored by the controller.
///
/// The secret cannot be computed from it. It makes valid proofs all the same: as long as the token
/// is valid, the stored key is as confidential as the token.
#[derive(Clone)]
pub struct TokenKey(Zeroizing<[u8; KEY_BYTES]>);

/// The values that a proof is valid for.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// Keying material exported from the TLS connection. It differs on the two sides of an attacker
    /// in the middle, so a relayed proof is invalid.
    pub exporter: &'a [u8; EXPORTER_BYTES],
    /// The certificate request in DER: the proof is of no use for another key.
    pub request: &'a [u8],
    pub node: &'a NodeId,
}

/// The value that the joiner sends instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proof([u8; KEY_BYTES]);

hexadecimal_text!(Proof, "a proof; expected 64 hexadecimal digits");
as_text!(Proof, "^[0-9a-fA-F]{64}$");

impl TokenKey {
    pub fn of(secret: &JoinSecret) -> Self {
        let mut hash = Sha256::new();
        hash.update(KEY_DOMAIN);
        hash.update(secret.0.as_slice());
        Self(Zeroizing::new(hash.finalize().into()))
    }

    /// Proves that the key is known, for these values only.
    pub fn proof(&self, binding: &Binding<'_>) -> Proof {
        let mut code = hmac::Context::with_key(&self.hmac_key());
        code.update(&binding.message());
        let mut proof = [0; KEY_BYTES];
        proof.copy_from_slice(code.sign().as_ref());
        Proof(proof)
    }

    /// Whether the proof was made with this key for these values. The time that it takes does not
    /// depend on where the proof differs.
    pub fn verify(&self, binding: &Binding<'_>, proof: &Proof) -> bool {
        hmac::verify(&self.hmac_key(), &binding.message(), &proof.0).is_ok()
    }

    fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice())
    }
}

impl Binding<'_> {
    /// Every part follows its length: no two bindings have the same bytes.
    fn message(&self) -> Vec<u8> {
        let mut message = PROOF_DOMAIN.to_vec();
        for part in [self.exporter.as_slice(), self.request, self.node.as_bytes()] {
            message.extend((part.len() as u64).to_be_bytes());
            message.extend_from_slice(part);
        }
        message
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

impl PartialEq for TokenKey {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.0.as_slice(), other.0.as_slice())
            .is_ok()
    }
}

impl Eq for TokenKey {}

impl serde::Serialize for TokenKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES));
        hexadecimal::append(&mut text, self.0.as_slice());
        serializer.serialize_str(&text)
    }
}

impl<'de> serde::Deserialize<'de> for TokenKey {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        let expected = "expected the key of a join token: 64 hexadecimal digits";
        let bytes = hexadecimal::read(&text).map(Zeroizing::new);
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom(expected))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> TokenKey {
        TokenKey::of(&JoinSecret::from_random([byte; 20]))
    }

    #[test]
    fn proof_is_the_documented_hmac() {
        let node = NodeId::of_key(b"key");
        let exporter = [7; EXPORTER_BYTES];
        let binding = Binding { exporter: &exporter, request: b"request", node: &node };
        let mut message = b"hoist join token proof 1\0".to_vec();
        message.extend([0, 0, 0, 0, 0, 0, 0, 32]);
        message.extend(exporter);
        message.extend([0, 0, 0, 0, 0, 0, 0, 7]);
        message.extend(b"request");
        message.extend([0, 0, 0, 0, 0, 0, 0, 32]);
        message.extend(node.as_bytes());
        let mut secret = b"hoist join token key 1\0".to_vec();
        secret.extend([1; 20]);
        let hmac_key = hmac::Key::new(hmac::HMAC_SHA256, &Sha256::digest(&secret));
        let expected = hmac::sign(&hmac_key, &message);
        assert_eq!(key(1).proof(&binding).0, expected.as_ref());
    }

    #[test]
    fn proof_for_other_values_is_invalid() {
        let (node, other_node) = (NodeId::of_key(b"key"), NodeId::of_key(b"other"));
        let (exporter, other_exporter) = ([7; EXPORTER_BYTES], [8; EXPORTER_BYTES]);
        let binding = Binding { exporter: &exporter, request: b"request", node: &node };
        let proof = key(1).proof(&binding);
        assert!(key(1).verify(&binding, &proof));
        assert!(!key(2).verify(&binding, &proof));
        for other in [
            Binding { exporter: &other_exporter, ..binding },
            Binding { request: b"request2", ..binding },
            Binding { node: &other_node, ..binding },
        ] {
            assert!(!key(1).verify(&other, &proof), "{other:?}");
        }
    }

    #[test]
    fn key_is_stored_and_never_printed() {
        let json = serde_json::to_string(&key(1)).unwrap();
        assert_eq!(serde_json::from_str::<TokenKey>(&json).unwrap(), key(1));
        assert_ne!(key(1), key(2));
        assert_eq!(format!("{:?}", key(1)), "TokenKey");
    }

    proptest! {
        #[test]
        fn changed_proofs_are_invalid(request: Vec<u8>, at in 0_usize..32, change in 1_u8..) {
            let node = NodeId::of_key(&request);
            let binding = Binding { exporter: &[3; EXPORTER_BYTES], request: &request, node: &node };
            let mut proof = key(1).proof(&binding);
            prop_assert!(key(1).verify(&binding, &proof));
            proof.0[at] ^= change;
            prop_assert!(!key(1).verify(&binding, &proof));
        }
    }
}
