//! Values as YAML that every reader takes for the same: what could be read as something else by YAML
//! 1.1 (cloud-init's) or 1.2 is quoted. Texts of several lines stay readable.

use std::fmt::{self, Write};

use serde_json::{Map, Value};

/// Words that YAML 1.1 takes for something else than text.
const WORDS: [&str; 14] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "none", "inf", "nan", "~"];

/// A document of a non-empty map. `verbatim` texts stand in it letter by letter.
pub(crate) fn document(map: &Map<String, Value>, verbatim: fn(&str) -> bool) -> String {
    let mut page = Page { out: String::new(), verbatim };
    page.map(map, 0, false);
    page.out
}

/// How long a map is in a document, as deep in it as `indent` letters.
pub(crate) fn length(map: &Map<String, Value>, verbatim: fn(&str) -> bool, indent: usize) -> usize {
    let mut page = Page { out: Length(0), verbatim };
    page.map(map, indent, false);
    page.out.0
}

/// Counts the bytes of the output.
struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

struct Page<W> {
    out: W,
    verbatim: fn(&str) -> bool,
}

impl<W: Write> Page<W> {
    /// `begun`: the first line is indented already, by the dash of a list.
    fn map(&mut self, map: &Map<String, Value>, indent: usize, begun: bool) {
        for (i, (key, value)) in map.iter().enumerate() {
            if i > 0 || !begun {
                self.indent(indent);
            }
            self.key(key);
            self.put(":");
            match value {
                Value::Object(map) if !map.is_empty() => {
                    self.put("\n");
                    self.map(map, indent + 2, false);
                }
                Value::Array(list) if !list.is_empty() => {
                    self.put("\n");
                    self.list(list, indent + 2, false);
                }
                scalar => {
                    self.put(" ");
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
            self.put("- ");
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
            Value::String(text) if is_plain(text) => self.put(text),
            Value::String(text) => self.quoted(text),
            Value::Null => self.put("null"),
            Value::Bool(value) => self.put(if *value { "true" } else { "false" }),
            Value::Number(number) => self.put(&plain_number(&number.to_string())),
            Value::Array(_) => self.put("[]"),
            Value::Object(_) => self.put("{}"),
        }
        self.put("\n");
    }

    fn key(&mut self, key: &str) {
        if is_plain(key) {
            self.put(key);
        } else {
            self.quoted(key);
        }
    }

    fn is_block(&self, text: &str) -> bool {
        (text.contains('\n') || (self.verbatim)(text)) && fits_block(text)
    }

    fn block(&mut self, text: &str, indent: usize) {
        self.put(if text.ends_with('\n') { "|\n" } else { "|-\n" });
        for line in text.lines() {
            if !line.is_empty() {
                self.indent(indent);
                self.put(line);
            }
            self.put("\n");
        }
    }

    fn quoted(&mut self, text: &str) {
        self.put("\"");
        for c in text.chars() {
            match c {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\t' => self.put("\\t"),
                c if is_printable(c) => self.out.write_char(c).expect(WRITTEN),
                c => write!(self.out, "\\U{:08X}", u32::from(c)).expect(WRITTEN),
            }
        }
        self.put("\"");
    }

    fn indent(&mut self, indent: usize) {
        for _ in 0..indent {
            self.put(" ");
        }
    }

    fn put(&mut self, text: &str) {
        self.out.write_str(text).expect(WRITTEN);
    }
}

const WRITTEN: &str = "writing to memory";

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
                prop_assert_eq!(length(&map, verbatim, 0), text.len());
                prop_assert!(length(&map, verbatim, 2) > text.len());
            }
        }
    }

    #[test]
    fn yaml_reads_as_people_would_write_it() {
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
