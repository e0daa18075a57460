//! Values read from a meta-data document of any provider.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Longest document that is read.
const MAX_DOCUMENT: usize = 2 * 1024 * 1024;

/// Deepest nesting in it: deeper ones take more of a stack than a thread may have.
const MAX_DEPTH: usize = 64;

/// Most bytes that are remembered of one document.
pub const MAX_FACTS: usize = 64 * 1024;

/// The extracted values and their paths in a document.
const PLACES: [(&str, &[&str]); 7] = [
    ("hostname", &["hostname"]),
    ("instance-id", &["instance-id"]),
    ("instance-type", &["instance-type"]),
    ("local-hostname", &["local-hostname"]),
    ("local-ipv4", &["hoist", "ip"]),
    ("mac", &["hoist", "mac"]),
    ("region", &["region"]),
];

/// By the names that EC2 has for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub values: BTreeMap<&'static str, String>,
    pub public_keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    #[error("the document is longer than {MAX_DOCUMENT} bytes")]
    TooLong,
    #[error("the document is not UTF-8")]
    NotText,
    #[error("the document is not a YAML map without aliases: {0}")]
    NotMap(String),
}

impl Facts {
    /// Slow for a large document. Values beyond the limits are left out.
    pub fn read(document: &[u8]) -> Result<Self, FactsError> {
        if document.len() > MAX_DOCUMENT {
            return Err(FactsError::TooLong);
        }
        let text = std::str::from_utf8(document).map_err(|_| FactsError::NotText)?;
        let meta: Map<String, Value> = serde_saphyr::from_str_with_options(text, options())
            .map_err(|error| {
                let text = error.without_snippet().to_string();
                FactsError::NotMap(text.lines().next().unwrap_or_default().to_owned())
            })?;
        let mut room = MAX_FACTS;
        let mut fits = |text: &String| {
            let left = room.checked_sub(text.len() + size_of::<String>());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let found = PLACES.iter().filter_map(|(name, place)| Some((*name, find(&meta, place)?)));
        let values = found.filter(|(_, text)| fits(text)).collect();
        let keys = match meta.get("public-keys") {
            Some(Value::Array(keys)) => keys.as_slice(),
            _ => &[],
        };
        let keys = keys.iter().filter_map(Value::as_str).map(str::to_owned);
        Ok(Self { values, public_keys: keys.take_while(fits).collect() })
    }

    pub fn instance_id(&self) -> Option<&str> {
        self.values.get("instance-id").map(String::as_str)
    }

    /// Approximate size in bytes.
    pub fn size(&self) -> usize {
        let texts = self.values.values().chain(&self.public_keys);
        texts.map(|text| text.len() + size_of::<String>()).sum()
    }
}

/// An alias may stand for any number of values: without them a document is as much as it is long.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_documents: 1,
            max_aliases: 0,
        },
    }
}

/// As text, if it is one value and says anything.
fn find(meta: &Map<String, Value>, place: &[&str]) -> Option<String> {
    let (first, rest) = place.split_first()?;
    let value = rest.iter().try_fold(meta.get(*first)?, |value, key| value.get(*key))?;
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Facts, FactsError> {
        Facts::read(text.as_bytes())
    }

    #[test]
    fn facts_are_found_in_documents_of_any_author() {
        for text in [
            "instance-id: i-1\nhoist: {ip: 10.0.0.1, mac: 1}\nx: [a]\npublic-keys: [k, 7]\n",
            r#"{"instance-id": "i-1", "hoist": {"ip": "10.0.0.1", "mac": 1}, "public-keys": ["k"]}"#,
        ] {
            let facts = read(text).unwrap();
            assert_eq!(facts.instance_id(), Some("i-1"));
            assert_eq!(facts.values["local-ipv4"], "10.0.0.1");
            assert_eq!(facts.values["mac"], "1");
            assert_eq!(facts.public_keys, ["k"]);
        }
        assert_eq!(read("instance-id: 17\n").unwrap().instance_id(), Some("17"));
        for nothing in
            ["", "\n", "a: 1\n", "instance-id:\n", "instance-id: ''\n", "instance-id: [a]\n"]
        {
            assert_eq!(read(nothing).unwrap().instance_id(), None, "{nothing}");
        }
    }

    #[test]
    fn document_that_is_no_map_is_skipped() {
        for text in ["<html>login</html>", "- a\n", "a: [", "a: 1\n---\nb: 2\n"] {
            assert!(matches!(read(text), Err(FactsError::NotMap(_))), "{text:?}: {:?}", read(text));
        }
        assert_eq!(Facts::read(b"a: \xff"), Err(FactsError::NotText));
        assert_eq!(read(&"a".repeat(MAX_DOCUMENT + 1)), Err(FactsError::TooLong));
    }

    #[test]
    fn aliases_are_refused_and_nesting_has_an_end() {
        let bomb = "instance-id: i\na: &a [1, 1]\nb: [*a, *a]\n";
        assert!(matches!(read(bomb), Err(FactsError::NotMap(_))), "{:?}", read(bomb));
        let deep = |levels: usize| format!("a: {}{}\n", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&deep(MAX_DEPTH - 1)).is_ok());
        assert!(read(&deep(MAX_DEPTH)).is_err());
    }

    #[test]
    fn keys_that_find_no_room_are_left_out() {
        let keys = format!("- {}\n", "k".repeat(1000)).repeat(100);
        let facts = read(&format!("instance-id: i\npublic-keys:\n{keys}")).unwrap();
        assert_eq!(facts.public_keys.len(), 63);
        assert!(facts.size() <= MAX_FACTS);
    }
}
