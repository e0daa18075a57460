//! Numeric node ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A site's number for a node, from 0. Unique where it is present.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Nid(u32);

impl Nid {
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a nid; it is a whole number from 0 to 4294967295")]
pub struct ParseNidError(String);

impl std::str::FromStr for Nid {
    type Err = ParseNidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.map(Self).ok_or_else(|| ParseNidError(text.to_owned()))
    }
}

impl std::fmt::Display for Nid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for Nid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Nid;

    #[test]
    fn nids_are_plain_numbers_from_zero() {
        assert_eq!("48".parse::<Nid>().unwrap().get(), 48);
        assert_eq!("0".parse::<Nid>().unwrap().get(), 0);
        for text in ["", "-1", "+1", "1.0", "4294967296", "abc", " 1"] {
            assert!(text.parse::<Nid>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Nid>("-1").is_err());
    }
}
