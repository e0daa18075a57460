//! Who may take a node's secrets: armed by a person, taken once by one key.
//!
//! A function of what is kept, the token and the key; who calls it keeps the outcome before anything
//! is handed out.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::{digest, signature};
use hoist_inventory::AddressFit;
use hoist_model::NodeId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::token::{NONCE_BYTES, SiteKey, Token};

/// Keys that are remembered as strangers; what comes after them is refused just the same.
pub const MAX_QUARANTINED: usize = 16;

/// Addresses that are remembered besides the one that a token is bound to.
pub const MAX_ELSEWHERE: usize = 16;

/// What an agent's proof begins with: no signature of it for anything else can be one.
const PROOF: &str = "hoist provision";

/// The y-coordinates of all points of small order, in every encoding; the highest bit is the sign of
/// x, and left out. Anybody can make signatures that are good for such a key.
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

/// A node that may be provisioned, from the moment somebody said so until that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arming {
    pub node: NodeId,
    /// Of the node, when it was armed.
    pub generation: u64,
    nonce: [u8; NONCE_BYTES],
    /// The fingerprint of the site's key that its token was made with.
    #[serde(default)]
    site_key: String,
    pub since: Timestamp,
    /// Whoever armed the node said that it gets its secrets without an address of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_without_address: bool,
    /// Where its token was first: in the boot script that was fetched from there, or shown from there.
    /// Of a node that has an address of its own, the inventory says where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<IpAddr>,
    /// Where it was too. The token is refused from there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redeemed: Option<Redeemed>,
    /// Other keys that came with the right token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Redeemed>,
}

/// Which key came, when, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redeemed {
    pub by: KeyPrint,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// What somebody shows, and where.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    pub token: &'a str,
    pub by: KeyPrint,
    pub from: IpAddr,
    pub fit: AddressFit,
    pub at: Timestamp,
}

/// What it means that a token was at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// It may be there.
    Here,
    /// It is bound to this address, once this is kept.
    Bound(Arming),
    /// It must not be there. `Some` is to be kept, and told: the address is new.
    Elsewhere(Option<Arming>),
}

/// What a token comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The first key; it is the one from now on, once this is kept.
    Redeemed(Arming),
    /// The same key again.
    Repeated,
    /// Another key has it. To be kept too, and told: somebody else holds the node's token.
    Quarantined(Arming),
    /// The same stranger again, or one too many to remember.
    StillQuarantined,
    /// The right token at an address that is not the node's; `Some` as in [`Whereabouts`].
    Elsewhere(Option<Arming>),
    /// Not the token of this arming.
    Refused,
}

impl Arming {
    /// `nonce` is random: two armings of one generation have different tokens.
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
            redeemed: None,
            quarantined: Vec::new(),
        }
    }

    /// With the word of whoever arms the node about its secrets.
    #[must_use]
    pub fn with_secrets_without_address(self, allowed: bool) -> Self {
        Self { secrets_without_address: allowed, ..self }
    }

    pub fn is_of(&self, nonce: &[u8; NONCE_BYTES]) -> bool {
        self.nonce == *nonce
    }

    /// What it means that somebody at an address has the boot script with its token, or shows it.
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
    pub fn key_of(&self, fingerprint: &str) -> Option<Redeemed> {
        let fingerprint = fingerprint.to_ascii_lowercase();
        let is_meant = |key: &&Redeemed| {
            let shown = key.by.to_string().len();
            fingerprint.len() >= shown && key.by.whole().starts_with(&fingerprint)
        };
        self.redeemed.iter().chain(&self.quarantined).find(is_meant).copied()
    }

    /// Whether its token is refused, because the node was renewed or the site has another key.
    pub fn is_outdated(&self, site: &SiteKey, generation: u64) -> bool {
        self.generation != generation || self.site_key != site.fingerprint()
    }

    pub fn token(&self, key: &SiteKey) -> Token {
        key.provision(self.node, self.generation, &self.nonce)
    }

    /// `generation` is what the node is of now: an arming of before counts no more.
    pub fn redeem(&self, site: &SiteKey, generation: u64, shown: &Shown<'_>) -> Verdict {
        let Shown { token, by, from, fit, at } = *shown;
        if generation != self.generation || !self.token(site).is(token) {
            return Verdict::Refused;
        }
        let mut next = match self.seen_at(from, fit) {
            Whereabouts::Here => self.clone(),
            Whereabouts::Bound(next) => next,
            Whereabouts::Elsewhere(next) => return Verdict::Elsewhere(next),
        };
        let come = Redeemed { by, at, from: Some(from) };
        match &self.redeemed {
            None => Verdict::Redeemed(Self { redeemed: Some(come), ..next }),
            Some(first) if first.by == by => Verdict::Repeated,
            Some(_) => {
                let known = self.quarantined.iter().any(|stranger| stranger.by == by);
                if known || self.quarantined.len() >= MAX_QUARANTINED {
                    return Verdict::StillQuarantined;
                }
                next.quarantined.push(come);
                Verdict::Quarantined(next)
            }
        }
    }
}

/// What an agent signs with the key that it shows. No time is in it: an agent knows none before it
/// has spoken to a server. Whoever can repeat it has read it inside the TLS connection, or on the
/// agent, where the private key is too.
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
    use crate::token::KEY_BYTES;

    const NODE: NodeId = NodeId::from_bits(5);
    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn key() -> SiteKey {
        SiteKey::new(&[1; KEY_BYTES])
    }

    fn armed() -> Arming {
        Arming::new(&key(), NODE, 2, [9; NONCE_BYTES], NOW)
    }

    fn print(n: u8) -> KeyPrint {
        KeyPrint([n; 32])
    }

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn shown(token: &str, by: KeyPrint) -> Shown<'_> {
        Shown { token, by, from: FROM, fit: AddressFit::Own, at: NOW }
    }

    fn redeem(arming: &Arming, by: KeyPrint) -> Verdict {
        arming.redeem(&key(), 2, &shown(armed().token(&key()).as_str(), by))
    }

    #[test]
    fn a_token_is_bound_to_the_first_address() {
        let Whereabouts::Bound(bound) = armed().seen_at(FROM, AddressFit::Possible) else {
            panic!("not bound")
        };
        assert_eq!(bound.seen_at(FROM, AddressFit::Possible), Whereabouts::Here);
        let token = armed().token(&key());
        let at = |from, fit| Shown { from, fit, ..shown(token.as_str(), print(1)) };
        let verdict = bound.redeem(&key(), 2, &at(OTHER, AddressFit::Possible));
        let Verdict::Elsewhere(Some(told)) = verdict else { panic!("{verdict:?}") };
        assert_eq!((told.elsewhere.as_slice(), told.redeemed), (&[OTHER][..], None));
        let again = told.redeem(&key(), 2, &at(OTHER, AddressFit::Possible));
        assert_eq!(again, Verdict::Elsewhere(None), "told once");
        assert!(matches!(
            told.redeem(&key(), 2, &at(FROM, AddressFit::Possible)),
            Verdict::Redeemed(_)
        ));
        // Where the inventory knows better, whoever came first does not count.
        assert!(matches!(
            told.redeem(&key(), 2, &at(OTHER, AddressFit::Own)),
            Verdict::Redeemed(_)
        ));
        let foreign = armed().redeem(&key(), 2, &at(FROM, AddressFit::Foreign));
        assert!(matches!(foreign, Verdict::Elsewhere(Some(_))), "{foreign:?}");
        // Shown before any script was fetched, it is bound all the same.
        let verdict = armed().redeem(&key(), 2, &at(FROM, AddressFit::Possible));
        let Verdict::Redeemed(taken) = verdict else { panic!("{verdict:?}") };
        assert_eq!(taken.bound, Some(FROM));
    }

    #[test]
    fn a_key_is_meant_by_the_fingerprint_that_is_shown() {
        let Verdict::Redeemed(taken) = redeem(&armed(), print(1)) else { panic!("refused") };
        let Verdict::Quarantined(both) = redeem(&taken, print(0xab)) else { panic!("not told") };
        let found = |text: &str| both.key_of(text).map(|key| key.by);
        assert_eq!(found(&print(1).to_string()), Some(print(1)));
        assert_eq!(found(&"AB".repeat(8)), Some(print(0xab)));
        assert_eq!(found(&"ab".repeat(32)), Some(print(0xab)));
        for wrong in ["", "ab", &"ab".repeat(7), &"ab".repeat(33), &"cd".repeat(8)] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_first_key_takes_it_and_may_repeat_and_another_one_is_quarantined() {
        let Verdict::Redeemed(taken) = redeem(&armed(), print(1)) else { panic!("refused") };
        assert_eq!(redeem(&taken, print(1)), Verdict::Repeated);
        let Verdict::Quarantined(after) = redeem(&taken, print(2)) else { panic!("not told") };
        assert_eq!(after.quarantined, [Redeemed { by: print(2), at: NOW, from: Some(FROM) }]);
        assert_eq!(after.redeemed, taken.redeemed, "the first one keeps it");
        assert_eq!(redeem(&after, print(2)), Verdict::StillQuarantined);
        assert_eq!(redeem(&after, print(1)), Verdict::Repeated);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let Verdict::Redeemed(mut arming) = redeem(&armed(), print(0)) else { panic!("refused") };
        for n in 1..=u8::try_from(MAX_QUARANTINED).unwrap() {
            match redeem(&arming, print(n)) {
                Verdict::Quarantined(next) => arming = next,
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(redeem(&arming, print(200)), Verdict::StillQuarantined);
    }

    #[test]
    fn only_the_token_of_this_arming_in_this_generation_counts() {
        let arming = armed();
        let right = arming.token(&key());
        let refused = |generation, offered: &str| {
            arming.redeem(&key(), generation, &shown(offered, print(1))) == Verdict::Refused
        };
        assert!(!refused(2, right.as_str()));
        assert!(refused(3, right.as_str()), "the node was provisioned anew since");
        assert!(refused(2, key().seed(NODE, 2).as_str()), "the one on the command line");
        let earlier = Arming::new(&key(), NODE, 2, [8; NONCE_BYTES], NOW);
        assert!(refused(2, earlier.token(&key()).as_str()), "of an arming before");
        let other = Arming { node: NodeId::from_bits(6), ..armed() };
        assert!(refused(2, other.token(&key()).as_str()), "of another node");
    }

    #[test]
    fn an_arming_is_outdated_when_its_token_is_refused() {
        let (arming, other) = (armed(), SiteKey::new(&[2; KEY_BYTES]));
        let token = arming.token(&key());
        for (site, generation) in [(key(), 2), (key(), 3), (other.clone(), 2), (other, 3)] {
            let verdict = arming.redeem(&site, generation, &shown(token.as_str(), print(1)));
            assert_eq!(arming.is_outdated(&site, generation), verdict == Verdict::Refused);
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
    fn a_key_that_everybody_can_sign_for_proves_nothing() {
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
    fn an_arming_survives_being_kept() {
        let Verdict::Redeemed(arming) = redeem(&armed(), print(3)) else { panic!("refused") };
        let Verdict::Quarantined(arming) = redeem(&arming, print(4)) else { panic!("not told") };
        let text = serde_json::to_string(&arming).unwrap();
        assert_eq!(serde_json::from_str::<Arming>(&text).unwrap(), arming);
    }
}
