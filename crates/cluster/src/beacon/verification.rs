//! The check of an answer: whose signature it has, and how far the clocks differ.

use jiff::{SignedDuration, Timestamp};

use super::answer::{Answer, Delegation, SignedAnswer};
use super::query::Query;
use crate::id::Pin;

/// The value of an answer's signatures to the one who asked. The best is first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signature {
    /// The owner of the pinned root key vouches for the answer.
    ValidUnderPin,
    /// The signatures hold, but no pin says whose they should be: anyone can make such an answer.
    Unverified,
    Invalid {
        reason: InvalidReason,
    },
}

/// The first check that an answer failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidReason {
    #[error("the root key is {presented}, which is not pinned")]
    OtherRoot { presented: Pin },
    #[error("the root key did not sign the beacon key")]
    Delegation,
    #[error("the beacon key did not sign the answer")]
    Answer,
    #[error("the beacon key was valid until {not_after}")]
    Expired { not_after: Timestamp },
}

/// A message that answers another query. It must be ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAnAnswer {
    #[error("the nonce is that of another query")]
    OtherNonce,
    #[error("the query asked for another cluster")]
    OtherCluster,
}

/// The result of all checks of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    pub signature: Signature,
    /// The clock of the sender minus that of the caller. A large difference is no reason to refuse
    /// an answer: a machine that boots for the first time may have a wrong clock.
    pub skew: SignedDuration,
}

impl SignedAnswer {
    /// Checks an answer against the query and the pins of the caller: none, or one, or two while a
    /// root key is being replaced.
    ///
    /// `is_signed(key, message, signature)` checks a signature; the key is a
    /// `SubjectPublicKeyInfo`. It must not panic on any bytes.
    pub fn verify(
        self,
        query: &Query,
        pins: &[Pin],
        now: Timestamp,
        is_signed: impl Fn(&[u8], &[u8], &[u8]) -> bool,
    ) -> Result<(Answer, Verification), NotAnAnswer> {
        if self.answer.nonce != query.nonce {
            return Err(NotAnAnswer::OtherNonce);
        }
        if !query.concerns(self.answer.cluster) {
            return Err(NotAnAnswer::OtherCluster);
        }
        let signature = match self.check_signatures(pins, now, is_signed) {
            Err(reason) => Signature::Invalid { reason },
            Ok(()) if pins.is_empty() => Signature::Unverified,
            Ok(()) => Signature::ValidUnderPin,
        };
        let skew = self.answer.time.duration_since(now);
        Ok((self.answer, Verification { signature, skew }))
    }

    fn check_signatures(
        &self,
        pins: &[Pin],
        now: Timestamp,
        is_signed: impl Fn(&[u8], &[u8], &[u8]) -> bool,
    ) -> Result<(), InvalidReason> {
        let Answer { cluster, root_key, delegation, .. } = &self.answer;
        let Delegation { beacon_key, not_after, signature } = delegation;
        let presented = Pin::of_key(root_key);
        // The pin is checked first: it is cheap, and most forged answers end here.
        if !pins.is_empty() && !pins.contains(&presented) {
            return Err(InvalidReason::OtherRoot { presented });
        }
        let permission = Delegation::message(*cluster, beacon_key, *not_after);
        if !is_signed(root_key, &permission, signature) {
            return Err(InvalidReason::Delegation);
        }
        if !is_signed(beacon_key, &self.answer.signed_bytes(), &self.signature) {
            return Err(InvalidReason::Answer);
        }
        if now > *not_after {
            return Err(InvalidReason::Expired { not_after: *not_after });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::answer::tests::{answers, encode, example, sign};
    use super::*;
    use crate::beacon::Nonce;
    use crate::id::ClusterId;

    fn is_signed(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        sign(key, message) == signature
    }

    fn verify(message: &[u8], query: &Query, pins: &[Pin]) -> Result<Verification, NotAnAnswer> {
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        let signed = SignedAnswer::decode(message).unwrap();
        signed.verify(query, pins, now, is_signed).map(|(_, verification)| verification)
    }

    fn query(answer: &Answer) -> Query {
        Query { nonce: answer.nonce, cluster: None }
    }

    #[test]
    fn pin_decides_about_a_signed_answer() {
        let answer = example();
        let (pin, other) = (Pin::of_key(&answer.root_key), Pin::of_key(b"other"));
        let signature =
            |pins: &[Pin]| verify(&encode(&answer), &query(&answer), pins).unwrap().signature;
        assert_eq!(signature(&[]), Signature::Unverified);
        assert_eq!(signature(&[pin]), Signature::ValidUnderPin);
        assert_eq!(signature(&[other, pin]), Signature::ValidUnderPin);
        let reason = InvalidReason::OtherRoot { presented: pin };
        assert_eq!(signature(&[other]), Signature::Invalid { reason });
    }

    #[test]
    fn answer_to_another_query_is_not_an_answer() {
        let answer = example();
        let other = Query { nonce: Nonce::from_random([0; 16]), cluster: None };
        let elsewhere = ClusterId::from_random([0xee; 16]);
        let elsewhere = Query { cluster: Some(elsewhere), ..query(&answer) };
        let message = encode(&answer);
        assert_eq!(verify(&message, &other, &[]), Err(NotAnAnswer::OtherNonce));
        assert_eq!(verify(&message, &elsewhere, &[]), Err(NotAnAnswer::OtherCluster));
    }

    #[test]
    fn beacon_key_needs_a_valid_delegation() {
        let mut answer = example();
        answer.cluster = ClusterId::from_random([0xc2; 16]);
        let reason = InvalidReason::Delegation;
        let verification = verify(&encode(&answer), &query(&answer), &[]).unwrap();
        assert_eq!(verification.signature, Signature::Invalid { reason });

        let mut answer = example();
        let not_after = "2025-12-31T00:00:00Z".parse().unwrap();
        let permission =
            Delegation::message(answer.cluster, &answer.delegation.beacon_key, not_after);
        answer.delegation.not_after = not_after;
        answer.delegation.signature = sign(&answer.root_key, &permission);
        let reason = InvalidReason::Expired { not_after };
        let verification = verify(&encode(&answer), &query(&answer), &[]).unwrap();
        assert_eq!(verification.signature, Signature::Invalid { reason });
    }

    #[test]
    fn skew_is_reported_and_not_fatal() {
        let mut answer = example();
        answer.time = "2026-01-01T01:00:10Z".parse().unwrap();
        let verification =
            verify(&encode(&answer), &query(&answer), &[Pin::of_key(&answer.root_key)]).unwrap();
        assert_eq!(verification.skew, SignedDuration::from_hours(1));
        assert_eq!(verification.signature, Signature::ValidUnderPin);
    }

    proptest! {
        #[test]
        fn changed_answers_never_verify(
            answer in answers(),
            place: prop::sample::Index,
            bit in 0..8_u32,
        ) {
            let mut message = encode(&answer);
            let place = place.index(message.len());
            message[place] ^= 1 << bit;
            let Ok(signed) = SignedAnswer::decode(&message) else { return Ok(()) };
            let now = Timestamp::MIN;
            for pins in [&[][..], &[Pin::of_key(&answer.root_key)]] {
                let verified = signed.clone().verify(&query(&answer), pins, now, is_signed);
                if let Ok((_, Verification { signature, .. })) = verified {
                    prop_assert!(matches!(signature, Signature::Invalid { .. }), "{signature:?}");
                }
            }
        }
    }
}
