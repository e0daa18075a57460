//! The key of the node: ECDSA P-256, made on the node, never sent.
//!
//! Does not belong here: the file of the key (`state`).

use hoist_cluster::id::NodeId;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use zeroize::{Zeroize, Zeroizing};

pub struct NodeKey(KeyPair);

/// A text that is not a key, or a key that cannot be used. The text is in no message.
#[derive(Debug, thiserror::Error)]
#[error("the key is not usable: {0}")]
pub struct KeyError(#[from] rcgen::Error);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeKey").field(&self.node_id().short()).finish()
    }
}

impl NodeKey {
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// The key in a PEM text, which may continue with certificates.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        Ok(Self(KeyPair::from_pem(text)?))
    }

    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut pem = self.0.serialize_pem();
        // PEM writers end lines as they like; files of hoist have plain newlines.
        let text = Zeroizing::new(pem.replace('\r', ""));
        pem.zeroize();
        text
    }

    /// The `SubjectPublicKeyInfo` in DER.
    pub fn public_key_info(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    /// The id of a node whose first key this is.
    pub fn node_id(&self) -> NodeId {
        NodeId::of_key(&self.public_key_info())
    }

    /// A certificate request (PKCS #10, DER). It names nothing: the controller decides the names.
    pub fn certificate_request(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0)?;
        Ok(request.der().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_its_text() {
        let key = NodeKey::generate().unwrap();
        let again = NodeKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.node_id(), key.node_id());
        assert_ne!(NodeKey::generate().unwrap().node_id(), key.node_id());
        assert!(!format!("{key:?}").contains("PRIVATE"));
        assert!(NodeKey::from_pem("kettle").is_err());
    }

    #[test]
    fn request_has_the_key_of_the_node() {
        let key = NodeKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let info = key.public_key_info();
        assert!(request.windows(info.len()).any(|part| part == info));
    }
}
