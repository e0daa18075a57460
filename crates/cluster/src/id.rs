//! The identities of a cluster, its nodes and its root key.
//!
//! Each has one text form, which is also its form in JSON and safe in file names. The hashes cover
//! a `SubjectPublicKeyInfo` in DER, as it stands in certificates and certificate requests.
//!
//! The id of a machine in the inventory (`hoist_model::NodeId`) does not belong here: a machine
//! keeps that one through a reinstall, and gets another [`NodeId`].

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::hexadecimal;
pub use crate::text_form::ParseIdError;
use crate::text_form::{as_text, hexadecimal_text};

const CLUSTER_BYTES: usize = 16;
const CLUSTER_PREFIX_BYTES: usize = 4;
const HASH_BYTES: usize = 32;

/// Hexadecimal digits of [`NodeId::short`]. Among 10,000 nodes two hardly ever agree in so many.
const NODE_SHORT_DIGITS: usize = 12;

/// The identity of a cluster: random, made once when the cluster is founded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId([u8; CLUSTER_BYTES]);

/// The first digits of a [`ClusterId`]: enough to notice a mix-up, not enough to prove anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterIdPrefix([u8; CLUSTER_PREFIX_BYTES]);

/// The identity of a node: the hash of its first public key. Later keys do not change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; HASH_BYTES]);

/// The hash of a public key that a peer must present, for instance of the root of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin([u8; HASH_BYTES]);

impl ClusterId {
    /// `bytes` must come from a source of cryptographic randomness.
    pub const fn from_random(bytes: [u8; CLUSTER_BYTES]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; CLUSTER_BYTES] {
        &self.0
    }

    pub fn short(self) -> ClusterIdPrefix {
        let mut prefix = [0; CLUSTER_PREFIX_BYTES];
        prefix.copy_from_slice(&self.0[..CLUSTER_PREFIX_BYTES]);
        ClusterIdPrefix(prefix)
    }
}

impl NodeId {
    /// The id of the node whose first key this is.
    pub fn of_key(public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(public_key_info).into())
    }

    pub fn as_bytes(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }

    /// The first digits, for people and messages.
    pub fn short(self) -> String {
        let mut text = String::new();
        hexadecimal::append(&mut text, &self.0[..NODE_SHORT_DIGITS / 2]);
        text
    }
}

impl Pin {
    /// The prefix of the text form: the name of the hash.
    const ALGORITHM: &str = "sha256:";

    pub fn of_key(public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(public_key_info).into())
    }

    pub(crate) const fn from_bytes(bytes: [u8; HASH_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }
}

impl FromStr for Pin {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(Self::ALGORITHM);
        let bytes = digits.and_then(hexadecimal::read);
        bytes.map(Self).ok_or_else(|| ParseIdError::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALGORITHM)?;
        hexadecimal::write(f, &self.0)
    }
}

impl Pin {
    const EXPECTED: &str = "a pin; expected `sha256:` and 64 hexadecimal digits";
}

hexadecimal_text!(ClusterId, "a cluster id; expected 32 hexadecimal digits");
hexadecimal_text!(ClusterIdPrefix, "the start of a cluster id; expected 8 hexadecimal digits");
hexadecimal_text!(NodeId, "a node id; expected 64 hexadecimal digits");

as_text!(ClusterId, "^[0-9a-fA-F]{32}$");
as_text!(ClusterIdPrefix, "^[0-9a-fA-F]{8}$");
as_text!(NodeId, "^[0-9a-fA-F]{64}$");
as_text!(Pin, "^sha256:[0-9a-fA-F]{64}$");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hashes_cover_the_whole_key_info() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(NodeId::of_key(b"").to_string(), empty);
        assert_eq!(NodeId::of_key(b"").short(), "e3b0c44298fc");
        assert_eq!(Pin::of_key(b"").to_string(), format!("sha256:{empty}"));
        assert_ne!(NodeId::of_key(b"a"), NodeId::of_key(b"b"));
    }

    #[test]
    fn short_cluster_id_is_the_start_of_the_id() {
        let id = ClusterId::from_random([0xab; 16]);
        assert_eq!(id.short().to_string(), "abababab");
        assert!(id.to_string().starts_with(&id.short().to_string()));
    }

    #[test]
    fn errors_name_the_expected_form() {
        let message = "web1".parse::<NodeId>().unwrap_err().to_string();
        assert_eq!(message, "`web1` is not a node id; expected 64 hexadecimal digits");
        let message = "ab".repeat(32).parse::<Pin>().unwrap_err().to_string();
        assert!(message.ends_with("is not a pin; expected `sha256:` and 64 hexadecimal digits"));
        let long = "x".repeat(10_000).parse::<ClusterId>().unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }

    proptest! {
        #[test]
        fn ids_survive_their_text_and_json(cluster: [u8; 16], key: Vec<u8>) {
            let cluster = ClusterId::from_random(cluster);
            let node = NodeId::of_key(&key);
            let pin = Pin::of_key(&key);
            prop_assert_eq!(cluster.to_string().to_uppercase().parse(), Ok(cluster));
            prop_assert_eq!(node.to_string().parse(), Ok(node));
            prop_assert_eq!(pin.to_string().parse(), Ok(pin));
            let json = serde_json::to_string(&(cluster, node, pin)).unwrap();
            prop_assert_eq!(serde_json::from_str(&json).ok(), Some((cluster, node, pin)));
        }

        #[test]
        fn parsing_of_ids_never_panics(text in "(?s).{0,80}") {
            let _ = (text.parse::<ClusterId>(), text.parse::<NodeId>(), text.parse::<Pin>());
        }
    }
}
