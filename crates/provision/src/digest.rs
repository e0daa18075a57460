//! Digests of content, as documents and lists of chunks write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// SHA-256, written as `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no digest; write `sha256:` and 64 digits")]
pub struct ParseDigestError(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub fn end(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64);
        let bytes = digits.and_then(|digits| {
            // `from_str_radix` alone would take a sign.
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let byte = |at: usize| u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok();
            is_hex.then(|| (0..32).map(byte).collect::<Option<Vec<u8>>>()).flatten()
        });
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| ParseDigestError(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips_and_other_texts_are_refused() {
        let digest = Digest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.to_uppercase().replace("SHA", "sha").parse(), Ok(digest));
        for bad in ["", "sha256:", &text[..70], &text.replace("ba", "+a"), &text.replace('7', "ä")]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
