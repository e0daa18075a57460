//! Values as YAML that every reader takes for the same: what could be read as something else by YAML
//! 1.1 (cloud-init's) or 1.2 is quoted. Texts of several lines stay readable.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Words that YAML 1.1 takes for something else than text.
const WORDS: [&str; 14] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "none", "inf", "nan", "~"];

/// A document of a non-empty map. `verbatim` texts stand in it letter by letter.
pub(crate) fn document(map: &Map<String, Value>, verbatim: fn(&str) -> bool) -> String {
    let mut page = Page { text: String::new(), verbatim };
    page.map(map, 0, false);
    page.text
}

struct Page {
    text: String,
    verbatim: fn(&str) -> bool,
}

impl Page {
    /// `begun`: the first line is indented already, by the dash of a list.
    fn map(&mut self, map: &Map<String, Value>, indent: usize, begun: bool) {
        for (i, (key, value)) in map.iter().enumerate() {
            if i > 0 || !begun {
                self.indent(indent);
            }
            self.key(key);
            self.text.push(':');
            match value {
                Value::Object(map) if !map.is_empty() => {
                    self.text.push('\n');
                    self.map(map, indent + 2, false);
                }
                Value::Array(list) if !list.is_empty() => {
                    self.text.push('\n');
                    self.list(list, indent + 2, false);
                }
                scalar => {
                    self.text.push(' ');
                    self.scalar(scalar, indent + 2);
                }
            }
        }
    }

    fn list(&mut self, list: &[Value], indent: usize, begun: bool) {
        for (i, value) in list.iter().enumerate() {
            if i > 0 || !begun {
                self.indent(indent);
            }
            self.text.push_str("- ");
            match value {
                Value::Object(map) if !map.is_empty() => self.map(map, indent + 2, true),
                Value::Array(list) if !list.is_empty() => self.list(list, indent + 2, true),
                scalar => self.scalar(scalar, indent + 2),
            }
        }
    }

    /// With the end of its line.
    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::String(text) if self.is_block(text) => return self.block(text, indent),
            Value::String(text) if is_plain(text) => self.text.push_str(text),
            Value::String(text) => self.quoted(text),
            Value::Null => self.text.push_str("null"),
            Value::Bool(value) => self.text.push_str(if *value { "true" } else { "false" }),
            Value::Number(number) => self.text.push_str(&plain_number(&number.to_string())),
            Value::Array(_) => self.text.push_str("[]"),
            Value::Object(_) => self.text.push_str("{}"),
        }
        self.text.push('\n');
    }

    fn key(&mut self, key: &str) {
        if is_plain(key) {
            self.text.push_str(key);
        } else {
            self.quoted(key);
        }
    }

    fn is_block(&self, text: &str) -> bool {
        (text.contains('\n') || (self.verbatim)(text)) && fits_block(text)
    }

    fn block(&mut self, text: &str, indent: usize) {
        self.text.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
        for line in text.lines() {
            if !line.is_empty() {
                self.indent(indent);
                self.text.push_str(line);
            }
            self.text.push('\n');
        }
    }

    fn quoted(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\t' => self.text.push_str("\\t"),
                c if is_printable(c) => self.text.push(c),
                c => write!(self.text, "\\U{:08X}", u32::from(c)).expect("writing to a string"),
            }
        }
        self.text.push('"');
    }

    fn indent(&mut self, indent: usize) {
        self.text.extend(std::iter::repeat_n(' ', indent));
    }
}

/// Letters that stand in YAML as they are, and end no line.
fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    let separator = matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{FEFF}');
    !separator && matches!(code, 0x20..=0x7E | 0xA0..=0xD7FF | 0xE000..=0xFFFD | 0x1_0000..)
}

/// A text that a literal block gives back exactly.
fn fits_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    !body.is_empty()
        && !body.starts_with([' ', '\t', '\n'])
        && !body.ends_with('\n')
        && body.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
        && body.split('\n').all(|line| line.is_empty() || !line.trim().is_empty())
}

/// A text that no reader takes for anything else.
fn is_plain(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '/' || c == '_';
    let rest = |c: char| c.is_ascii_alphanumeric() || "/_.-+@= ,".contains(c);
    text.starts_with(first)
        && text.chars().all(rest)
        && !text.ends_with(' ')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// YAML 1.1 wants a point and a sign in numbers with an exponent.
fn plain_number(number: &str) -> String {
    let Some((mantissa, exponent)) = number.split_once('e') else { return number.to_owned() };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn never(_: &str) -> bool {
        false
    }

    fn read(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[a-z #:|>\\-\t\n\r\u{85}\u{2028}\u{7f}{}%]{0,24}".prop_map(Value::from),
            proptest::sample::select(WORDS.to_vec()).prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_reads_back_as_itself(value in any_value()) {
            let map: Map<_, _> = [("x".to_owned(), value)].into_iter().collect();
            for verbatim in [never, |text: &str| text.contains('{')] {
                let text = document(&map, verbatim);
                prop_assert_eq!(&read(&text), &Value::Object(map.clone()), "{}", text);
            }
        }
    }

    #[test]
    fn it_reads_as_people_would_write_it() {
        let value = json!({
            "hostname": "n1",
            "ntp": { "servers": ["10.0.0.1", "ntp.site"], "enabled": true },
            "write_files": [{ "path": "/etc/motd", "content": "a\n  b\n", "mode": "0644" }],
            "empty": {}, "nothing": [], "answer": "no", "script": "x: |", "big": 1e20,
        });
        let expected = "\
hostname: n1
ntp:
  servers:
    - \"10.0.0.1\"
    - ntp.site
  enabled: true
write_files:
  - path: /etc/motd
    content: |
      a
        b
    mode: \"0644\"
empty: {}
nothing: []
answer: \"no\"
script: \"x: |\"
big: 1.0e+20
";
        assert_eq!(document(value.as_object().expect("a map"), never), expected);
    }
}
