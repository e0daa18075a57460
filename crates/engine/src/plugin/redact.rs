//! Removes secrets from the answers of a plug-in.

use serde_json::{Map, Value};

use crate::execute::output::Redactions;

/// Redacts a line. The end of a cut line may be the beginning of a secret, and is dropped.
pub(super) fn line(redactions: &Redactions, bytes: &[u8], is_cut: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    redactions.take(&mut bytes.to_vec(), !is_cut, &mut out);
    out
}

pub(super) fn fields(redactions: &Redactions, fields: Map<String, Value>) -> Map<String, Value> {
    let field = |(key, of): (String, Value)| (redactions.text(&key), value(redactions, of));
    fields.into_iter().map(field).collect()
}

fn value(redactions: &Redactions, of: Value) -> Value {
    match of {
        Value::String(text) => Value::String(redactions.text(&text)),
        Value::Array(items) => items.into_iter().map(|item| value(redactions, item)).collect(),
        Value::Object(object) => Value::Object(fields(redactions, object)),
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_redacted_everywhere() {
        let redactions = Redactions::default();
        redactions.add("hunter2");
        let of = json!({"a hunter2": ["hunter2", {"b": 7}]});
        assert_eq!(value(&redactions, of), json!({"a [hidden]": ["[hidden]", {"b": 7}]}));
        assert_eq!(line(&redactions, b"\xff hunter2 hunte", false), b"\xff [hidden] hunte");
    }

    #[test]
    fn cut_line_keeps_no_beginning_of_a_secret() {
        let redactions = Redactions::default();
        redactions.add("hunter2");
        assert_eq!(line(&redactions, b"hunter2, password: hunte", true), b"[hidden], password: ");
        assert_eq!(line(&redactions, b"password", true), b"password");
    }
}
