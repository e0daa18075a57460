//! The key with which a controller signs its answers.

use std::fmt;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hoist_cluster::beacon::{
    Answer, ControllerAddress, Delegation, EncodeError, FoundingState, Query,
};
use hoist_cluster::id::ClusterId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::keys;

/// A beacon key with its delegation. It can sign answers for one cluster and nothing else; a thief
/// can announce the cluster until the delegation ends, and cannot issue certificates.
pub struct BeaconIdentity {
    cluster: ClusterId,
    /// As `SubjectPublicKeyInfo` in DER.
    root_key: Vec<u8>,
    delegation: Delegation,
    key: Ed25519KeyPair,
    key_pkcs8: Zeroizing<Vec<u8>>,
}

/// The statement of a controller about its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub name: String,
    pub controllers: Vec<ControllerAddress>,
    pub founding: FoundingState,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    #[error("cannot make a beacon key")]
    Generate,
    #[error("the root key did not sign the beacon key")]
    NotDelegated,
    #[error("the file of the beacon key is damaged: {0}")]
    Damaged(String),
}

/// The private file. Bytes are in Base64.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: ClusterId,
    root_key: String,
    beacon_key: Zeroizing<String>,
    not_after: Timestamp,
    delegation: String,
}

impl BeaconIdentity {
    /// Makes a beacon key that may answer for the cluster until `not_after`. `sign_with_root` signs
    /// with the root key whose `SubjectPublicKeyInfo` is `root_key`.
    pub fn create(
        cluster: ClusterId,
        root_key: Vec<u8>,
        not_after: Timestamp,
        sign_with_root: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<Self, IdentityError> {
        // Messages have whole seconds.
        let not_after =
            Timestamp::from_second(not_after.as_second()).map_err(|_| IdentityError::Generate)?;
        let key = Ed25519KeyPair::generate().map_err(|_| IdentityError::Generate)?;
        let pkcs8 = key.to_pkcs8v1().map_err(|_| IdentityError::Generate)?;
        let key_pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
        let beacon_key = key_info(&key)?;
        let signature = sign_with_root(&Delegation::message(cluster, &beacon_key, not_after));
        let delegation = Delegation { beacon_key, not_after, signature };
        Self { cluster, root_key, delegation, key, key_pkcs8 }.checked()
    }

    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The root key that delegated to the beacon key, as `SubjectPublicKeyInfo` in DER.
    pub fn root_key(&self) -> &[u8] {
        &self.root_key
    }

    /// The end of the delegation.
    pub fn not_after(&self) -> Timestamp {
        self.delegation.not_after
    }

    /// The answer to a query, signed; none if the query is for another cluster.
    pub fn answer(
        &self,
        query: &Query,
        statement: &Statement,
        now: Timestamp,
    ) -> Option<Result<Vec<u8>, EncodeError>> {
        if !query.concerns(self.cluster) {
            return None;
        }
        let answer = Answer {
            nonce: query.nonce,
            cluster: self.cluster,
            name: statement.name.clone(),
            controllers: statement.controllers.clone(),
            founding: statement.founding,
            time: now,
            root_key: self.root_key.clone(),
            delegation: self.delegation.clone(),
        };
        Some(answer.encode(|message| self.key.sign(message).as_ref().to_vec()))
    }

    /// The identity with its private key, as JSON. The caller must store it where only it can read.
    pub fn to_json(&self) -> Zeroizing<String> {
        let file = File {
            cluster: self.cluster,
            root_key: BASE64.encode(&self.root_key),
            beacon_key: Zeroizing::new(BASE64.encode(&*self.key_pkcs8)),
            not_after: self.delegation.not_after,
            delegation: BASE64.encode(&self.delegation.signature),
        };
        Zeroizing::new(serde_json::to_string_pretty(&file).expect("text has a form in JSON"))
    }

    /// Reads [`to_json`](Self::to_json), and checks that the root key delegated to the beacon key.
    pub fn from_json(text: &str) -> Result<Self, IdentityError> {
        let damaged = |error: &dyn fmt::Display| IdentityError::Damaged(error.to_string());
        let file: File = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        let decode = |text: &str| BASE64.decode(text).map_err(|error| damaged(&error));
        let key_pkcs8 = Zeroizing::new(decode(&file.beacon_key)?);
        let key = Ed25519KeyPair::from_pkcs8(&key_pkcs8).map_err(|error| damaged(&error))?;
        let delegation = Delegation {
            beacon_key: key_info(&key)?,
            not_after: file.not_after,
            signature: decode(&file.delegation)?,
        };
        let root_key = decode(&file.root_key)?;
        Self { cluster: file.cluster, root_key, delegation, key, key_pkcs8 }.checked()
    }

    /// A wrong signature must be noticed here: joiners only see an impostor.
    fn checked(self) -> Result<Self, IdentityError> {
        let Delegation { beacon_key, not_after, signature } = &self.delegation;
        let message = Delegation::message(self.cluster, beacon_key, *not_after);
        if !keys::verify(&self.root_key, &message, signature) {
            return Err(IdentityError::NotDelegated);
        }
        Ok(self)
    }
}

impl fmt::Debug for BeaconIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeaconIdentity")
            .field("cluster", &self.cluster)
            .field("not_after", &self.delegation.not_after)
            .finish_non_exhaustive()
    }
}

fn key_info(key: &Ed25519KeyPair) -> Result<Vec<u8>, IdentityError> {
    let info = key.public_key().as_der().map_err(|_| IdentityError::Generate)?;
    Ok(info.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use hoist_cluster::beacon::{Nonce, Signature, SignedAnswer};
    use hoist_cluster::id::Pin;
    use jiff::ToSpan;

    use super::*;
    use crate::keys::sign_with_root;
    use crate::keys::tests::root;

    const CLUSTER: ClusterId = ClusterId::from_random([0xc1; 16]);

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn statement() -> Statement {
        let controllers = vec![ControllerAddress::new("10.0.0.1", 8443).unwrap()];
        Statement { name: "lab".to_owned(), controllers, founding: FoundingState::Founded }
    }

    fn identity() -> (BeaconIdentity, Pin) {
        let (info, pkcs8) = root();
        let pin = Pin::of_key(&info);
        let sign = |message: &[u8]| sign_with_root(&pkcs8, message).unwrap();
        (BeaconIdentity::create(CLUSTER, info, now() + 24.hours(), sign).unwrap(), pin)
    }

    #[test]
    fn stored_identity_signs_answers_valid_under_the_pin() {
        let (identity, pin) = identity();
        let identity = BeaconIdentity::from_json(&identity.to_json()).unwrap();
        let query = Query { nonce: Nonce::from_random([1; 16]), cluster: None };
        let message = identity.answer(&query, &statement(), now()).unwrap().unwrap();
        assert!(message.len() < 500, "{}", message.len());
        let signed = SignedAnswer::decode(&message).unwrap();
        let verify = |pins: &[Pin]| {
            let verified = signed.clone().verify(&query, pins, now(), keys::verify);
            verified.unwrap().1.signature
        };
        assert_eq!(verify(&[pin]), Signature::ValidUnderPin);
        assert_eq!(verify(&[]), Signature::Unverified);
        assert!(matches!(verify(&[Pin::of_key(b"other")]), Signature::Invalid { .. }));
    }

    #[test]
    fn query_for_another_cluster_gets_no_answer() {
        let (identity, _) = identity();
        let other = Some(ClusterId::from_random([0xc2; 16]));
        let query = Query { nonce: Nonce::from_random([1; 16]), cluster: other };
        assert!(identity.answer(&query, &statement(), now()).is_none());
    }

    #[test]
    fn signature_of_another_root_is_noticed_at_creation() {
        let ((info, _), (_, other)) = (root(), root());
        let sign = |message: &[u8]| sign_with_root(&other, message).unwrap();
        let created = BeaconIdentity::create(CLUSTER, info, now(), sign);
        assert!(matches!(created, Err(IdentityError::NotDelegated)));
    }

    #[test]
    fn changed_file_is_refused() {
        let text = identity().0.to_json();
        for (from, to) in [("c1c1", "c2c2"), ("2026-01-02", "2027-01-02"), ("\"not_after\"", "x")] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, *text);
            assert!(BeaconIdentity::from_json(&changed).is_err(), "{from}");
        }
    }

    #[test]
    fn debug_output_has_no_private_key() {
        let (identity, _) = identity();
        let text = format!("{identity:?}");
        assert!(text.contains("c1c1") && !text.contains("key"), "{text}");
    }
}
