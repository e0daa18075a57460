//! Yes or no in a query.

use serde::{Deserialize, Deserializer, de};

/// `1` or `0`, and nothing else: `dry_run=2` must not be a real run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        match text.as_ref() {
            "1" => Ok(Self(true)),
            "0" => Ok(Self(false)),
            other => Err(de::Error::custom(format!("`{other}` is neither 0 nor 1"))),
        }
    }
}
