//! The question which clusters are on the network.

use super::wire::{DecodeError, FieldError, Reader};
use super::{QUERY_BYTES, VERSION};
use crate::id::ClusterId;

const MAGIC: [u8; 4] = *b"hstQ";

const ANY_CLUSTER: u8 = 0;
const ONE_CLUSTER: u8 = 1;

/// A random number that ties an answer to its query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// `bytes` must come from a source of cryptographic randomness: an answer cannot be made before
    /// its query is known.
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The question of a machine to all controllers on its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    pub nonce: Nonce,
    /// Only this cluster should answer.
    pub cluster: Option<ClusterId>,
}

impl Query {
    pub fn concerns(&self, cluster: ClusterId) -> bool {
        self.cluster.is_none_or(|wanted| wanted == cluster)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(QUERY_BYTES);
        message.extend_from_slice(&MAGIC);
        message.push(VERSION);
        message.extend_from_slice(self.nonce.as_bytes());
        match &self.cluster {
            None => message.push(ANY_CLUSTER),
            Some(cluster) => {
                message.push(ONE_CLUSTER);
                message.extend_from_slice(cluster.as_bytes());
            }
        }
        message.resize(QUERY_BYTES, 0);
        message
    }

    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        if message.len() != QUERY_BYTES {
            return Err(DecodeError::QuerySize(message.len()));
        }
        let mut reader = Reader::new(message, MAGIC)?;
        let nonce = Nonce::from_random(reader.array("nonce")?);
        let cluster = match reader.byte("cluster")? {
            ANY_CLUSTER => None,
            ONE_CLUSTER => Some(ClusterId::from_random(reader.array("cluster")?)),
            _ => return Err(FieldError { field: "cluster", problem: "is neither 0 nor 1" }.into()),
        };
        if reader.rest().iter().any(|byte| *byte != 0) {
            return Err(FieldError { field: "padding", problem: "has bytes other than 0" }.into());
        }
        Ok(Self { nonce, cluster })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queries() -> impl Strategy<Value = Query> {
        (any::<[u8; 16]>(), any::<Option<[u8; 16]>>()).prop_map(|(nonce, cluster)| Query {
            nonce: Nonce::from_random(nonce),
            cluster: cluster.map(ClusterId::from_random),
        })
    }

    #[test]
    fn query_for_one_cluster_concerns_no_other() {
        let one = ClusterId::from_random([1; 16]);
        let other = ClusterId::from_random([2; 16]);
        let nonce = Nonce::from_random([0; 16]);
        let query = Query { nonce, cluster: Some(one) };
        assert!(query.concerns(one) && !query.concerns(other));
        assert!(Query { nonce, cluster: None }.concerns(other));
    }

    #[test]
    fn errors_name_the_wrong_part_of_a_query() {
        let query = Query { nonce: Nonce::from_random([7; 16]), cluster: None };
        let with = |place: usize, byte: u8| {
            let mut message = query.encode();
            message[place] = byte;
            Query::decode(&message).unwrap_err().to_string()
        };
        assert_eq!(with(0, b'x'), "the message does not start with the mark of the beacon");
        assert!(with(4, 2).starts_with("version 2 of the beacon is not supported"));
        assert_eq!(with(21, 2), "field `cluster` is neither 0 nor 1");
        assert_eq!(with(QUERY_BYTES - 1, 1), "field `padding` has bytes other than 0");
        let short = Query::decode(&query.encode()[..QUERY_BYTES - 1]);
        assert_eq!(short, Err(DecodeError::QuerySize(QUERY_BYTES - 1)));
    }

    proptest! {
        #[test]
        fn queries_survive_their_encoding(query in queries()) {
            let message = query.encode();
            prop_assert_eq!(message.len(), QUERY_BYTES);
            prop_assert_eq!(Query::decode(&message), Ok(query));
        }

        #[test]
        fn query_has_one_encoding(query in queries(), place in 0..QUERY_BYTES, bit in 0..8_u32) {
            let mut message = query.encode();
            message[place] ^= 1 << bit;
            if let Ok(other) = Query::decode(&message) {
                prop_assert_ne!(other, query);
                prop_assert_eq!(other.encode(), message);
            }
        }

        #[test]
        fn decoding_of_queries_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..QUERY_BYTES + 8),
            rest in proptest::collection::vec(any::<u8>(), QUERY_BYTES - 4),
        ) {
            let _ = Query::decode(&bytes);
            let _ = Query::decode(&[&MAGIC[..], &rest].concat());
        }
    }
}
