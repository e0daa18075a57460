//! The site key and the tokens of nodes, which stand in for passwords.
//!
//! Every token is `HMAC-SHA256(site key, purpose | node | generation | nonce)`, so that a boot
//! script can carry one without a lookup. The seed token is on the kernel's command line, which
//! every user of the machine can read: it gives documents without secrets. The provision token is
//! minted for one enrollment and claimed once.

use std::fmt;

use aws_lc_rs::{constant_time, hmac};
use hoist_model::{Node, NodeId};

/// Bytes of a site key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 16;

/// Bytes of the code in a token: 160 bits, 32 characters. Command lines are short.
const KEPT: usize = 20;

/// Characters of a token.
pub const TOKEN_LENGTH: usize = KEPT * 8 / 5;

/// No letters that look alike, and none that a URL or a command line stops at.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The key of a site, made ready. It never leaves, not even into a log.
#[derive(Clone)]
pub struct SiteKey(hmac::Key);

/// The purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Seed,
    Provision,
    /// Shown by an agent after it has claimed its provision token.
    Session,
}

/// A token as it is written.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeToken([u8; TOKEN_LENGTH]);

impl Purpose {
    /// Ends with a byte that no word has, so that no word is the beginning of another.
    fn word(self) -> &'static [u8] {
        match self {
            Self::Seed => b"seed\0",
            Self::Provision => b"provision\0",
            Self::Session => b"session\0",
        }
    }
}

impl SiteKey {
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The token of a node's seed, as long as the node is of this generation.
    pub fn seed(&self, node: NodeId, generation: u64) -> NodeToken {
        self.token(Purpose::Seed, node, generation, &[0; NONCE_BYTES])
    }

    /// The provision token of one enrollment of a node.
    pub fn provision(&self, node: NodeId, generation: u64, nonce: &[u8; NONCE_BYTES]) -> NodeToken {
        self.token(Purpose::Provision, node, generation, nonce)
    }

    /// The token of an agent that has claimed the provision token of the same nonce.
    pub fn session(&self, node: NodeId, generation: u64, nonce: &[u8; NONCE_BYTES]) -> NodeToken {
        self.token(Purpose::Session, node, generation, nonce)
    }

    fn token(
        &self,
        purpose: Purpose,
        node: NodeId,
        generation: u64,
        nonce: &[u8; NONCE_BYTES],
    ) -> NodeToken {
        // Everything behind the word has one length: no two questions have the same bytes.
        let mut code = hmac::Context::with_key(&self.0);
        code.update(purpose.word());
        code.update(&node.to_bits().to_be_bytes());
        code.update(&generation.to_be_bytes());
        code.update(nonce);
        NodeToken::of(&code.sign())
    }

    /// Tells keys apart, and is good for nothing else: no token is a code of these bytes.
    pub fn fingerprint(&self) -> String {
        NodeToken::of(&hmac::sign(&self.0, b"fingerprint\0")).as_str().to_owned()
    }

    /// Whether it is the seed token of this very node in its present generation.
    pub fn is_seed(&self, node: &Node, offered: &str) -> bool {
        self.seed(node.id, node.generation).is(offered)
    }
}

impl NodeToken {
    fn of(code: &hmac::Tag) -> Self {
        let mut text = [0; TOKEN_LENGTH];
        for (five, eight) in code.as_ref()[..KEPT].chunks_exact(5).zip(text.chunks_exact_mut(8)) {
            let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            for (at, place) in eight.iter_mut().enumerate() {
                *place = ALPHABET[usize::try_from(bits >> (35 - 5 * at) & 31).expect("5 bits")];
            }
        }
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("characters of the alphabet")
    }

    /// In a time that tells nothing of where they differ.
    pub fn is(&self, offered: &str) -> bool {
        constant_time::verify_slices_are_equal(&self.0, offered.as_bytes()).is_ok()
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteKey")
    }
}

impl fmt::Debug for NodeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
    const NODE: NodeId = NodeId::from_bits(1);

    #[test]
    fn token_is_the_encoded_start_of_the_hmac() {
        let key = SiteKey::new(&KEY);
        let mut message = b"seed\0".to_vec();
        message.extend(NODE.to_bits().to_be_bytes());
        message.extend(3_u64.to_be_bytes());
        message.extend([0; NONCE_BYTES]);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &KEY), &message);
        let bit = |at: usize| usize::from(tag.as_ref()[at / 8] >> (7 - at % 8) & 1);
        let letter = |at: usize| {
            let five = (at * 5..at * 5 + 5).fold(0, |five, at| five << 1 | bit(at));
            char::from(ALPHABET[five])
        };
        let expected: String = (0..TOKEN_LENGTH).map(letter).collect();
        let token = key.seed(NODE, 3);
        assert_eq!(token.as_str(), expected);
        assert!(token.is(&expected));
        assert_eq!(format!("{token:?} {key:?}"), "NodeToken SiteKey", "neither is ever printed");
    }

    #[test]
    fn fingerprint_belongs_to_the_key_and_is_no_token() {
        let key = SiteKey::new(&KEY);
        let print = key.fingerprint();
        assert_eq!(print, SiteKey::new(&KEY).fingerprint());
        assert_ne!(print, SiteKey::new(&[8; KEY_BYTES]).fingerprint());
        assert!(!key.seed(NodeId::from_bits(0), 0).is(&print));
        assert!(!key.provision(NodeId::from_bits(0), 0, &[0; NONCE_BYTES]).is(&print));
    }

    #[test]
    fn tokens_of_other_nodes_generations_and_purposes_are_rejected() {
        let key = SiteKey::new(&KEY);
        let token = key.seed(NODE, 3);
        let nothing = [0; NONCE_BYTES];
        let others = [
            key.seed(NodeId::from_bits(2), 3),
            key.seed(NODE, 2),
            key.seed(NODE, 4),
            key.provision(NODE, 3, &nothing),
            SiteKey::new(&[8; KEY_BYTES]).seed(NODE, 3),
        ];
        for other in &others {
            assert!(!token.is(other.as_str()), "{}", other.as_str());
        }
        assert!(!key.provision(NODE, 3, &[1; NONCE_BYTES]).is(others[3].as_str()));
        let text = token.as_str();
        for wrong in ["", &text[1..], &format!("{text}0"), &text.to_uppercase(), "\u{e9}"] {
            assert!(!token.is(wrong), "{wrong}");
        }
    }
}
