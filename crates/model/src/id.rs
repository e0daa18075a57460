//! The identity of a node: minted once, never reused, derived from nothing.

use std::fmt;
use std::str::FromStr;

use ulid::Ulid;

use crate::text::as_text;

/// 26 characters that sort by the time they were minted. Survives board swaps and renaming.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u128);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a node id; it has 26 characters, digits and capital letters without I, L, O, U"
)]
pub struct ParseNodeIdError(String);

impl NodeId {
    /// From the two things this crate does not have: a clock and a source of randomness.
    pub fn mint(unix_ms: u64, random: u128) -> Self {
        Self(Ulid::from_parts(unix_ms, random).0)
    }

    pub fn to_bits(self) -> u128 {
        self.0
    }

    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

impl FromStr for NodeId {
    type Err = ParseNodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ulid::from_string(text).map(|id| Self(id.0)).map_err(|_| ParseNodeIdError(text.to_owned()))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; ulid::ULID_LEN];
        f.write_str(Ulid(self.0).array_to_str(&mut buffer))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

as_text!(NodeId, "NodeId", "a node id of 26 characters", Some("^[0-7][0-9A-HJKMNP-TV-Z]{25}$"));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_survive_text_and_sort_by_time(ms in 0u64..1 << 47, random: u128) {
            let id = NodeId::mint(ms, random);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.to_string().len(), 26);
            prop_assert!(NodeId::mint(ms + 1, 0).to_string() > id.to_string());
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<NodeId>();
        }
    }
}
