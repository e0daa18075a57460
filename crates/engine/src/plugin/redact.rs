//! Secrets that a plug-in was given, taken out of what it says.

use serde_json::Value;

/// What stands where a secret stood.
const HIDDEN: &str = "[hidden]";

/// Lines of a secret that are shorter are not looked for by themselves: `}` is a line of many keys.
const SHORTEST_LINE: usize = 8;

/// What must not be told.
#[derive(Default)]
pub(super) struct Redact(Vec<String>);

impl Redact {
    pub(super) fn add(&mut self, secret: &str) {
        let lines = secret.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE);
        let whole = Some(secret.trim()).filter(|whole| !whole.is_empty());
        self.0.extend(whole.into_iter().chain(lines).map(str::to_owned));
        // What holds others goes first.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        self.0.dedup();
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for secret in &self.0 {
            out = replace(&out, secret.as_bytes());
        }
        out
    }

    /// A line of which the end is gone: it may end in the middle of a secret.
    pub(super) fn cut_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = self.bytes(bytes);
        let begun = |secret: &String| {
            (1..secret.len()).rev().find(|length| out.ends_with(&secret.as_bytes()[..*length]))
        };
        let part = self.0.iter().filter_map(begun).max().unwrap_or(0);
        out.truncate(out.len() - part);
        out
    }

    pub(super) fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN))
    }

    pub(super) fn value(&self, value: Value) -> Value {
        if self.0.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(entries) => entries
                .into_iter()
                .map(|(key, value)| (self.text(&key), self.value(value)))
                .collect(),
            plain => plain,
        }
    }
}

fn replace(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(secret.len()).position(|window| window == secret) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(HIDDEN.as_bytes());
        rest = &rest[at + secret.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_gone_wherever_they_stand() {
        let mut redact = Redact::default();
        redact.add("hunter2\n");
        redact.add("-----KEY-----\n{\nabcdefgh\n");
        redact.add("");
        assert_eq!(redact.bytes(b"\xffhunter2hunter2."), b"\xff[hidden][hidden].");
        assert_eq!(redact.text("line abcdefgh { of it"), "line [hidden] { of it");
        let value = json!({"a hunter2": ["hunter2", {"b": 7}]});
        assert_eq!(redact.value(value), json!({"a [hidden]": ["[hidden]", {"b": 7}]}));
    }

    #[test]
    fn of_a_line_that_was_cut_no_beginning_of_a_secret_is_left() {
        let mut redact = Redact::default();
        redact.add("hunter2");
        assert_eq!(redact.cut_bytes(b"hunter2, password: hunte"), b"[hidden], password: ");
        assert_eq!(redact.cut_bytes(b"password"), b"password");
        assert_eq!(Redact::default().cut_bytes(b"hunte"), b"hunte");
    }
}
