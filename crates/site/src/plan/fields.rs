//! The difference of two specs, value by value.

use serde::Serialize;
use serde_json::Value;

use super::FieldChange;

/// Every leaf that differs, by its path. Lists are compared as a whole: which element "moved" is a
/// guess, and a guess in a diff misleads.
pub(super) fn changed(before: &impl Serialize, after: &impl Serialize) -> Vec<FieldChange> {
    let value = |spec: serde_json::Result<Value>| spec.expect("specs are plain values");
    let mut changes = Vec::new();
    compare(
        "",
        Some(&value(serde_json::to_value(before))),
        Some(&value(serde_json::to_value(after))),
        &mut changes,
    );
    changes
}

fn compare(at: &str, before: Option<&Value>, after: Option<&Value>, out: &mut Vec<FieldChange>) {
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                compare(&path, before.get(key), after.get(key), out);
            }
        }
        (before, after) if before == after => {}
        (before, after) => {
            out.push(FieldChange { at: at.to_owned(), from: before.cloned(), to: after.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_lists_only_differing_fields() {
        let changes = changed(
            &json!({"a": 1, "b": {"c": [1], "d": 2}, "gone": true}),
            &json!({"a": 1, "b": {"c": [2], "d": 2}, "new": null}),
        );
        let places: Vec<_> = changes.iter().map(|change| change.at.as_str()).collect();
        assert_eq!(places, ["b.c", "gone", "new"]);
    }
}
