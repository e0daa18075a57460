//! One way in (`FromStr`) and one way out (`Display`) for every type that is written as text,
//! reused by serde and the JSON Schema.

/// Implements `Serialize`, `Deserialize` and `JsonSchema` through `FromStr` and `Display`.
/// Deserializing borrows the text, so reading a hundred thousand nodes makes no throw-away strings.
macro_rules! as_text {
    ($type:ty, $title:expr, $expecting:expr, $pattern:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                d.deserialize_str(Text)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $title.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let pattern: Option<&str> = $pattern;
                match pattern {
                    Some(pattern) => schemars::json_schema!({
                        "type": "string", "description": $expecting, "pattern": pattern
                    }),
                    None => schemars::json_schema!({
                        "type": "string", "description": $expecting
                    }),
                }
            }
        }
    };
}

pub(crate) use as_text;
