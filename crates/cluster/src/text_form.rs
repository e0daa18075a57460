//! One way in (`FromStr`) and one way out (`Display`) for every type that is written as text.

/// Characters of a text that an error repeats. The text may come from the network.
const MAX_REPEATED: usize = 80;

/// A text that is not the identity it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseIdError {
    text: String,
    expected: &'static str,
}

impl ParseIdError {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.chars().take(MAX_REPEATED).collect(), expected }
    }
}

/// Text forms that are nothing but hexadecimal digits.
macro_rules! hexadecimal_text {
    ($type:ty, $expected:literal) => {
        impl std::str::FromStr for $type {
            type Err = $crate::text_form::ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let bytes = $crate::hexadecimal::read(text);
                bytes
                    .map(Self)
                    .ok_or_else(|| $crate::text_form::ParseIdError::new(text, Self::EXPECTED))
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::hexadecimal::write(f, &self.0)
            }
        }

        impl $type {
            const EXPECTED: &str = $expected;
        }
    };
}

/// `Debug`, serde and JSON Schema by way of the text form.
macro_rules! as_text {
    ($type:ident, $pattern:literal) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string", "description": Self::EXPECTED, "pattern": $pattern
                })
            }
        }
    };
}

pub(crate) use {as_text, hexadecimal_text};
