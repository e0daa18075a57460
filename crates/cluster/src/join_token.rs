//! Join tokens: the permission of a machine to join a cluster.
//!
//! A token is text: `hj1.<cluster>.<pin>[+<second pin>].<token id>.<secret>`, all parts in
//! hexadecimal digits. The pin lets the joiner check the cluster before it sends anything; a second
//! pin is present while the root key of the cluster is being replaced. The secret is never sent:
//! [`TokenKey::proof`] shows that the joiner has it. The controller stores a [`TokenRecord`].
//!
//! Reading a token from a file and sending a proof do not belong here.

mod proof;
mod record;

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::hexadecimal;
use crate::id::{ClusterIdPrefix, ParseIdError, Pin};
use crate::text_form::{as_text, hexadecimal_text};
pub use proof::{Binding, EXPORTER_BYTES, ParseProofError, Proof, TokenKey};
pub use record::{
    Enrollment, MAX_NAME_PATTERN, NamePattern, ParseNamePatternError, TokenRecord, TokenRefusal,
    TokenScope, TokenUse,
};

/// The most characters of a token, those of one with two pins.
pub const MAX_LENGTH: usize = 200;

/// Bytes of a secret: 160 bits cannot be guessed.
pub const SECRET_BYTES: usize = 20;

const ID_BYTES: usize = 8;
const VERSION: &str = "hj1";

/// The public name of a token, for lists and logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; ID_BYTES]);

hexadecimal_text!(TokenId, "a token id; expected 16 hexadecimal digits");
as_text!(TokenId, "^[0-9a-fA-F]{16}$");

impl TokenId {
    pub const fn from_random(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }
}

/// The secret of a token. It is erased from memory when it is dropped, and never printed.
#[derive(Clone)]
pub struct JoinSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl JoinSecret {
    /// `bytes` must come from a source of cryptographic randomness.
    pub fn from_random(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// The keys that the root of the cluster may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pins {
    pub current: Pin,
    /// The next key, while the root is being replaced.
    pub next: Option<Pin>,
}

impl Pins {
    pub fn contain(&self, pin: Pin) -> bool {
        self.current == pin || self.next == Some(pin)
    }
}

/// A token as its owner has it. `Display` and `Debug` leave the secret out.
#[derive(Debug, Clone)]
pub struct JoinToken {
    pub cluster: ClusterIdPrefix,
    pub pins: Pins,
    pub id: TokenId,
    pub secret: JoinSecret,
}

/// Why a text is not a token. The text itself is in no message: it may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTokenError {
    #[error("a join token has at most {MAX_LENGTH} characters, this text has {0} bytes")]
    TooLong(usize),
    #[error("a join token starts with `{VERSION}.`; check that this is a join token of hoist")]
    Version,
    #[error("a join token has 5 parts separated by `.`, this text has {0}; copy the whole token")]
    Parts(usize),
    #[error("the second part of a join token is the start of a cluster id: 8 hexadecimal digits")]
    Cluster,
    #[error(
        "the third part of a join token is a pin of 64 hexadecimal digits, or two pins joined by `+`"
    )]
    Pins,
    #[error("the fourth part of a join token is its id: 16 hexadecimal digits")]
    Id,
    #[error(
        "the last part of a join token is its secret: 40 hexadecimal digits; this one has {0} \
         bytes; copy the whole token"
    )]
    Secret(usize),
}

impl JoinToken {
    /// The whole token, to hand it to its owner once.
    pub fn reveal(&self) -> Zeroizing<String> {
        // With the full capacity from the start no part of the secret stays in an older buffer.
        let mut text = String::with_capacity(MAX_LENGTH);
        text.push_str(VERSION);
        text.push('.');
        text.push_str(&self.cluster.to_string());
        text.push('.');
        hexadecimal::append(&mut text, self.pins.current.as_bytes());
        if let Some(next) = self.pins.next {
            text.push('+');
            hexadecimal::append(&mut text, next.as_bytes());
        }
        text.push('.');
        text.push_str(&self.id.to_string());
        text.push('.');
        hexadecimal::append(&mut text, self.secret.0.as_slice());
        Zeroizing::new(text)
    }
}

impl FromStr for JoinToken {
    type Err = ParseTokenError;

    /// White space around the token is ignored: a file ends with a newline.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.len() > MAX_LENGTH {
            return Err(ParseTokenError::TooLong(text.len()));
        }
        let parts: Vec<&str> = text.split('.').collect();
        if parts[0] != VERSION {
            return Err(ParseTokenError::Version);
        }
        let [_, cluster, pins, id, secret] = parts[..] else {
            return Err(ParseTokenError::Parts(parts.len()));
        };
        Ok(Self {
            cluster: cluster.parse().map_err(|_: ParseIdError| ParseTokenError::Cluster)?,
            pins: parse_pins(pins).ok_or(ParseTokenError::Pins)?,
            id: id.parse().map_err(|_: ParseIdError| ParseTokenError::Id)?,
            secret: hexadecimal::read(secret)
                .map(JoinSecret::from_random)
                .ok_or(ParseTokenError::Secret(secret.len()))?,
        })
    }
}

fn parse_pins(text: &str) -> Option<Pins> {
    let pin = |digits| hexadecimal::read(digits).map(Pin::from_bytes);
    let (current, next) = match text.split_once('+') {
        Some((current, next)) => (current, Some(next)),
        None => (text, None),
    };
    let next = match next {
        Some(next) => Some(pin(next)?),
        None => None,
    };
    Some(Pins { current: pin(current)?, next })
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "join token {} of cluster {}", self.id, self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::ClusterId;

    fn token(next: Option<Pin>) -> JoinToken {
        JoinToken {
            cluster: ClusterId::from_random([0x1f; 16]).short(),
            pins: Pins { current: Pin::of_key(b"root"), next },
            id: TokenId::from_random([0x2e; 8]),
            secret: JoinSecret::from_random([0x3d; 20]),
        }
    }

    fn error(text: &str) -> ParseTokenError {
        text.parse::<JoinToken>().unwrap_err()
    }

    #[test]
    fn token_has_the_documented_form() {
        let pin = "4813494d137e1631bba301d5acab6e7bb7aa74ce1185d456565ef51d737677b2";
        let secret = "3d".repeat(20);
        let text = token(None).reveal();
        assert_eq!(*text, format!("hj1.1f1f1f1f.{pin}.2e2e2e2e2e2e2e2e.{secret}"));
        let longest = token(Some(Pin::of_key(b"next"))).reveal();
        assert_eq!(longest.len(), MAX_LENGTH);
        assert_eq!(longest.capacity(), MAX_LENGTH);
    }

    #[test]
    fn printing_leaves_the_secret_out() {
        let token = token(None);
        assert_eq!(token.to_string(), "join token 2e2e2e2e2e2e2e2e of cluster 1f1f1f1f");
        let printed = format!("{token:?} {token} {:?}", token.secret);
        assert!(!printed.contains("3d3d"), "{printed}");
        assert!(!printed.contains("61, 61"), "{printed}");
    }

    #[test]
    fn errors_name_the_part_and_never_the_text() {
        let text = token(None).reveal();
        let parts: Vec<&str> = text.split('.').collect();
        let with = |index: usize, part: &str| {
            let mut parts = parts.clone();
            parts[index] = part;
            parts.join(".")
        };
        assert_eq!(error(""), ParseTokenError::Version);
        assert_eq!(error(&with(0, "hj2")), ParseTokenError::Version);
        assert_eq!(error("hj1.1f1f1f1f"), ParseTokenError::Parts(2));
        assert_eq!(error(&with(1, "1f1f1f1")), ParseTokenError::Cluster);
        assert_eq!(error(&with(2, "")), ParseTokenError::Pins);
        assert_eq!(error(&with(2, &format!("{}+", parts[2]))), ParseTokenError::Pins);
        assert_eq!(error(&with(3, "2e2e")), ParseTokenError::Id);
        assert_eq!(error(&text[..text.len() - 1]), ParseTokenError::Secret(39));
        assert_eq!(error(&"hj1.".repeat(60)), ParseTokenError::TooLong(240));
        let message = error(&with(4, "5ec2e7")).to_string();
        assert!(!message.contains("5ec2e7"), "{message}");
    }

    proptest! {
        #[test]
        fn tokens_survive_their_text(key: Vec<u8>, next: Option<Vec<u8>>, id: [u8; 8]) {
            let mut token = token(next.map(|key| Pin::of_key(&key)));
            token.pins.current = Pin::of_key(&key);
            token.id = TokenId::from_random(id);
            let text = format!("  {}\n", *token.reveal());
            let parsed: JoinToken = text.parse().unwrap();
            prop_assert_eq!(parsed.reveal(), token.reveal());
        }

        #[test]
        fn parsing_of_tokens_never_panics(text in "(?s).{0,210}", cut in 0_usize..200) {
            let _ = text.parse::<JoinToken>();
            let token = token(Some(Pin::of_key(b"next"))).reveal();
            prop_assert!(token[..cut].parse::<JoinToken>().is_err());
            let _ = format!("{}{text}", &token[..cut]).parse::<JoinToken>();
        }
    }
}
