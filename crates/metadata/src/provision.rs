//! Enrollment: access to a node's secrets, granted by an operator and claimed once by one key.
//!
//! A function of the record, the token and the key. The caller must store the new record durably
//! before it hands out anything.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::{digest, signature};
use hoist_model::NodeId;
use hoist_site::AddressFit;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use hoist_site::site_key::{NONCE_BYTES, NodeToken, SiteKey};

/// Limit of remembered quarantined keys; further ones are refused all the same.
pub const MAX_QUARANTINED: usize = 16;

/// Addresses that are remembered besides the one that a token is bound to.
pub const MAX_ELSEWHERE: usize = 16;

/// Prefix of an agent's proof, so that no other signature of the agent can serve as one.
const PROOF: &str = "hoist provision";

/// The y-coordinates of all points of small order, in every encoding, without the highest bit (the
/// sign of x). Signatures for such a key can be forged.
#[rustfmt::skip]
const SMALL_ORDER: [[u8; 32]; 7] = [
    encoded(0, 0, 0),
    encoded(1, 0, 0),
    [0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
     0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05],
    [0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
     0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a],
    // p - 1, and p and p + 1 for 0 and 1.
    encoded(0xec, 0xff, 0x7f),
    encoded(0xed, 0xff, 0x7f),
    encoded(0xee, 0xff, 0x7f),
];

const fn encoded(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    (bytes[0], bytes[31]) = (first, last);
    bytes
}

fn is_small_order(key: &[u8]) -> bool {
    SMALL_ORDER.iter().any(|small| {
        key.len() == small.len() && key[..31] == small[..31] && key[31] & 0x7f == small[31]
    })
}

/// The SHA-256 of an agent's ephemeral public key.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPrint(pub [u8; 32]);

/// A node that may be provisioned, from the operator's decision until the end of the attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrollment {
    pub node: NodeId,
    /// The generation of the node when it was enrolled.
    pub generation: u64,
    nonce: [u8; NONCE_BYTES],
    /// The fingerprint of the site's key that its token was made with.
    #[serde(default)]
    site_key: String,
    pub since: Timestamp,
    /// The operator allowed the node to get its secrets without an address of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_without_address: bool,
    /// The first address that fetched the boot script with the token, or presented the token.
    /// Not used for a node with an address of its own in the inventory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<IpAddr>,
    /// Further addresses that had the token. The token is refused from there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<KeyClaim>,
    /// Other keys that came with the right token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<KeyClaim>,
}

/// A key that presented the token, when, and from which address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyClaim {
    pub by: KeyPrint,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// A token with the key and address of its client.
#[derive(Debug, Clone, Copy)]
pub struct PresentedToken<'a> {
    pub token: &'a str,
    pub by: KeyPrint,
    pub from: IpAddr,
    pub fit: AddressFit,
    pub at: Timestamp,
}

/// The meaning of a client address for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// It may be there.
    Here,
    /// It is bound to this address, once this is kept.
    Bound(Enrollment),
    /// Must not be there. `Some` must be stored and reported: the address is new.
    Elsewhere(Option<Enrollment>),
}

/// The result of checking a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The first key; it is the one from now on, once this is kept.
    Claimed(Enrollment),
    /// The same key again.
    Repeated,
    /// Another key came with the token. The record must be stored and the operator informed: the
    /// node's token has leaked.
    Quarantined(Enrollment),
    /// The same key again, or one key too many to remember.
    StillQuarantined,
    /// The right token at an address that is not the node's; `Some` as in [`Whereabouts`].
    Elsewhere(Option<Enrollment>),
    /// Not the token of this enrollment.
    Refused,
}

impl Enrollment {
    /// `nonce` is random: two enrollments of one generation have different tokens.
    pub fn new(
        site: &SiteKey,
        node: NodeId,
        generation: u64,
        nonce: [u8; NONCE_BYTES],
        since: Timestamp,
    ) -> Self {
        let site_key = site.fingerprint();
        Self {
            node,
            generation,
            nonce,
            site_key,
            since,
            secrets_without_address: false,
            bound: None,
            elsewhere: Vec::new(),
            claimed: None,
            quarantined: Vec::new(),
        }
    }

    /// Sets whether the node may get its secrets without an address of its own.
    #[must_use]
    pub fn with_secrets_without_address(self, allowed: bool) -> Self {
        Self { secrets_without_address: allowed, ..self }
    }

    pub fn is_of(&self, nonce: &[u8; NONCE_BYTES]) -> bool {
        self.nonce == *nonce
    }

    /// The meaning of a client at an address that got the boot script with the token, or shows the
    /// token.
    pub fn seen_at(&self, from: IpAddr, fit: AddressFit) -> Whereabouts {
        match (fit, self.bound) {
            (AddressFit::Own, _) => Whereabouts::Here,
            (AddressFit::Possible, Some(bound)) if bound == from => Whereabouts::Here,
            (AddressFit::Possible, None) => {
                Whereabouts::Bound(Self { bound: Some(from), ..self.clone() })
            }
            (AddressFit::Possible | AddressFit::Foreign, _) => {
                let is_full = self.elsewhere.len() >= MAX_ELSEWHERE;
                if is_full || self.elsewhere.contains(&from) {
                    return Whereabouts::Elsewhere(None);
                }
                let mut next = self.clone();
                next.elsewhere.push(from);
                Whereabouts::Elsewhere(Some(next))
            }
        }
    }

    /// The key that people mean by a fingerprint: all of it, or as much as they are shown.
    pub fn key_of(&self, fingerprint: &str) -> Option<KeyClaim> {
        let fingerprint = fingerprint.to_ascii_lowercase();
        let is_meant = |key: &&KeyClaim| {
            let shown = key.by.to_string().len();
            fingerprint.len() >= shown && key.by.whole().starts_with(&fingerprint)
        };
        self.claimed.iter().chain(&self.quarantined).find(is_meant).copied()
    }

    /// Whether its token is refused, because the node was renewed or the site has another key.
    pub fn is_outdated(&self, site: &SiteKey, generation: u64) -> bool {
        self.generation != generation || self.site_key != site.fingerprint()
    }

    pub fn token(&self, key: &SiteKey) -> NodeToken {
        key.provision(self.node, self.generation, &self.nonce)
    }

    /// `generation` is the node's current one: an enrollment of an earlier generation is void.
    pub fn claim(&self, site: &SiteKey, generation: u64, shown: &PresentedToken<'_>) -> Verdict {
        let PresentedToken { token, by, from, fit, at } = *shown;
        if generation != self.generation || !self.token(site).is(token) {
            return Verdict::Refused;
        }
        let mut next = match self.seen_at(from, fit) {
            Whereabouts::Here => self.clone(),
            Whereabouts::Bound(next) => next,
            Whereabouts::Elsewhere(next) => return Verdict::Elsewhere(next),
        };
        let come = KeyClaim { by, at, from: Some(from) };
        match &self.claimed {
            None => Verdict::Claimed(Self { claimed: Some(come), ..next }),
            Some(first) if first.by == by => Verdict::Repeated,
            Some(_) => {
                let known = self.quarantined.iter().any(|other| other.by == by);
                if known || self.quarantined.len() >= MAX_QUARANTINED {
                    return Verdict::StillQuarantined;
                }
                next.quarantined.push(come);
                Verdict::Quarantined(next)
            }
        }
    }
}

/// The text that an agent signs with its key. It contains no time, because an agent has no reliable
/// clock before it has spoken to a server. A copy of the signature can only be taken inside the TLS
/// connection, or on the agent, where the private key is too.
pub fn proof_text(node: NodeId, token: &str) -> String {
    format!("{PROOF}\n{node}\n{token}\n")
}

impl KeyPrint {
    /// The print of an Ed25519 public key whose private half signed [`proof_text`].
    pub fn proven(key: &[u8], signature: &[u8], node: NodeId, token: &str) -> Option<Self> {
        if is_small_order(key) {
            return None;
        }
        let public = signature::UnparsedPublicKey::new(&signature::ED25519, key);
        public.verify(proof_text(node, token).as_bytes(), signature).ok()?;
        let hash = digest::digest(&digest::SHA256, key);
        Some(Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes")))
    }

    /// All of its hexadecimal digits.
    fn whole(&self) -> String {
        self.0.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }
}

/// The beginning of it: enough for people to tell keys apart.
impl fmt::Display for KeyPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoist_site::site_key::KEY_BYTES;

    const NODE: NodeId = NodeId::from_bits(5);
    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn key() -> SiteKey {
        SiteKey::new(&[1; KEY_BYTES])
    }

    fn enrolled() -> Enrollment {
        Enrollment::new(&key(), NODE, 2, [9; NONCE_BYTES], NOW)
    }

    fn print(n: u8) -> KeyPrint {
        KeyPrint([n; 32])
    }

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn shown(token: &str, by: KeyPrint) -> PresentedToken<'_> {
        PresentedToken { token, by, from: FROM, fit: AddressFit::Own, at: NOW }
    }

    fn claim(enrollment: &Enrollment, by: KeyPrint) -> Verdict {
        enrollment.claim(&key(), 2, &shown(enrolled().token(&key()).as_str(), by))
    }

    #[test]
    fn a_token_is_bound_to_the_first_address() {
        let Whereabouts::Bound(bound) = enrolled().seen_at(FROM, AddressFit::Possible) else {
            panic!("not bound")
        };
        assert_eq!(bound.seen_at(FROM, AddressFit::Possible), Whereabouts::Here);
        let token = enrolled().token(&key());
        let at = |from, fit| PresentedToken { from, fit, ..shown(token.as_str(), print(1)) };
        let verdict = bound.claim(&key(), 2, &at(OTHER, AddressFit::Possible));
        let Verdict::Elsewhere(Some(told)) = verdict else { panic!("{verdict:?}") };
        assert_eq!((told.elsewhere.as_slice(), told.claimed), (&[OTHER][..], None));
        let again = told.claim(&key(), 2, &at(OTHER, AddressFit::Possible));
        assert_eq!(again, Verdict::Elsewhere(None), "told once");
        assert!(matches!(
            told.claim(&key(), 2, &at(FROM, AddressFit::Possible)),
            Verdict::Claimed(_)
        ));
        // An address of the inventory takes precedence over the first client.
        assert!(matches!(told.claim(&key(), 2, &at(OTHER, AddressFit::Own)), Verdict::Claimed(_)));
        let foreign = enrolled().claim(&key(), 2, &at(FROM, AddressFit::Foreign));
        assert!(matches!(foreign, Verdict::Elsewhere(Some(_))), "{foreign:?}");
        // A token that is presented before any script was fetched is bound all the same.
        let verdict = enrolled().claim(&key(), 2, &at(FROM, AddressFit::Possible));
        let Verdict::Claimed(taken) = verdict else { panic!("{verdict:?}") };
        assert_eq!(taken.bound, Some(FROM));
    }

    #[test]
    fn a_key_is_meant_by_the_fingerprint_that_is_shown() {
        let Verdict::Claimed(taken) = claim(&enrolled(), print(1)) else { panic!("refused") };
        let Verdict::Quarantined(both) = claim(&taken, print(0xab)) else { panic!("not told") };
        let found = |text: &str| both.key_of(text).map(|key| key.by);
        assert_eq!(found(&print(1).to_string()), Some(print(1)));
        assert_eq!(found(&"AB".repeat(8)), Some(print(0xab)));
        assert_eq!(found(&"ab".repeat(32)), Some(print(0xab)));
        for wrong in ["", "ab", &"ab".repeat(7), &"ab".repeat(33), &"cd".repeat(8)] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn first_key_claims_and_another_key_is_quarantined() {
        let Verdict::Claimed(taken) = claim(&enrolled(), print(1)) else { panic!("refused") };
        assert_eq!(claim(&taken, print(1)), Verdict::Repeated);
        let Verdict::Quarantined(after) = claim(&taken, print(2)) else { panic!("not told") };
        assert_eq!(after.quarantined, [KeyClaim { by: print(2), at: NOW, from: Some(FROM) }]);
        assert_eq!(after.claimed, taken.claimed, "the first one keeps it");
        assert_eq!(claim(&after, print(2)), Verdict::StillQuarantined);
        assert_eq!(claim(&after, print(1)), Verdict::Repeated);
    }

    #[test]
    fn retained_claims_are_bounded() {
        let Verdict::Claimed(mut enrollment) = claim(&enrolled(), print(0)) else {
            panic!("refused")
        };
        for n in 1..=u8::try_from(MAX_QUARANTINED).unwrap() {
            match claim(&enrollment, print(n)) {
                Verdict::Quarantined(next) => enrollment = next,
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(claim(&enrollment, print(200)), Verdict::StillQuarantined);
    }

    #[test]
    fn only_the_token_of_this_enrollment_in_this_generation_counts() {
        let enrollment = enrolled();
        let right = enrollment.token(&key());
        let refused = |generation, offered: &str| {
            enrollment.claim(&key(), generation, &shown(offered, print(1))) == Verdict::Refused
        };
        assert!(!refused(2, right.as_str()));
        assert!(refused(3, right.as_str()), "the node was provisioned anew since");
        assert!(refused(2, key().seed(NODE, 2).as_str()), "the one on the command line");
        let earlier = Enrollment::new(&key(), NODE, 2, [8; NONCE_BYTES], NOW);
        assert!(refused(2, earlier.token(&key()).as_str()), "of an enrollment before");
        let other = Enrollment { node: NodeId::from_bits(6), ..enrolled() };
        assert!(refused(2, other.token(&key()).as_str()), "of another node");
    }

    #[test]
    fn enrollment_is_outdated_when_its_token_is_refused() {
        let enrollment = enrolled();
        let other = SiteKey::new(&[2; KEY_BYTES]);
        let token = enrollment.token(&key());
        for (site, generation) in [(key(), 2), (key(), 3), (other.clone(), 2), (other, 3)] {
            let verdict = enrollment.claim(&site, generation, &shown(token.as_str(), print(1)));
            assert_eq!(enrollment.is_outdated(&site, generation), verdict == Verdict::Refused);
        }
    }

    #[test]
    fn a_key_is_proven_for_one_node_and_one_token() {
        use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
        let [own, other] = [[1; 32], [2; 32]]
            .map(|seed| Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed"));
        let public = own.public_key().as_ref();
        let proof = own.sign(proof_text(NODE, "token").as_bytes());
        let proof = proof.as_ref();
        let print = KeyPrint::proven(public, proof, NODE, "token").expect("its own proof");
        assert_eq!(print.0, *digest::digest(&digest::SHA256, public).as_ref());
        let unproven = |key: &[u8], proof: &[u8], node, token: &str| {
            KeyPrint::proven(key, proof, node, token).is_none()
        };
        assert!(unproven(other.public_key().as_ref(), proof, NODE, "token"), "another key");
        assert!(unproven(public, proof, NodeId::from_bits(6), "token"), "another node");
        assert!(unproven(public, proof, NODE, "another"));
        for wrong in [&[][..], &proof[1..], &[0; 64]] {
            assert!(unproven(public, wrong, NODE, "token"));
        }
        assert!(unproven(&public[1..], proof, NODE, "token"));
    }

    /// With R the neutral point and S zero, a signature is good for every text whose hash is a
    /// multiple of the key's order.
    #[test]
    fn weak_key_proves_nothing() {
        let mut signature = [0; 64];
        signature[0] = 1;
        let mut would_be_taken = 0;
        for small in SMALL_ORDER {
            for sign in [0, 0x80] {
                let mut key = small;
                key[31] |= sign;
                let public = signature::UnparsedPublicKey::new(&signature::ED25519, key);
                for token in 0..64 {
                    let token = token.to_string();
                    let text = proof_text(NODE, &token);
                    would_be_taken +=
                        usize::from(public.verify(text.as_bytes(), &signature).is_ok());
                    assert_eq!(KeyPrint::proven(&key, &signature, NODE, &token), None, "{key:?}");
                }
            }
        }
        assert!(would_be_taken > 64, "{would_be_taken}");
    }

    #[test]
    fn enrollment_survives_serialization() {
        let Verdict::Claimed(enrollment) = claim(&enrolled(), print(3)) else { panic!("refused") };
        let Verdict::Quarantined(enrollment) = claim(&enrollment, print(4)) else {
            panic!("not told")
        };
        let text = serde_json::to_string(&enrollment).unwrap();
        assert_eq!(serde_json::from_str::<Enrollment>(&text).unwrap(), enrollment);
    }
}
