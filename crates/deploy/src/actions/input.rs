//! Reading the input of an action: everything that is wrong with it, not only the first thing.

use std::collections::BTreeMap;

use hoist_diagnostic::Diagnostic;
use hoist_model::nearest;
use serde_json::{Map, Value};

/// Largest text in an input: plans are kept in memory, and in journals.
pub(super) const MAX_TEXT: usize = 1024 * 1024;

pub(super) struct Input<'a> {
    at: String,
    fields: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
    diagnostics: Vec<Diagnostic>,
}

/// Reads an input with `read`, which asks for every field that there may be.
pub(super) fn parse<'a, T>(
    value: &'a Value,
    read: impl FnOnce(&mut Input<'a>) -> Option<T>,
) -> Result<T, Vec<Diagnostic>> {
    parse_at(value, String::new(), read)
}

pub(super) fn parse_at<'a, T>(
    value: &'a Value,
    at: String,
    read: impl FnOnce(&mut Input<'a>) -> Option<T>,
) -> Result<T, Vec<Diagnostic>> {
    let fields = value.as_object();
    let mut input = Input { at, fields, known: Vec::new(), diagnostics: Vec::new() };
    if fields.is_none() && !value.is_null() {
        input.report("", "expected a mapping");
    }
    let parsed = read(&mut input);
    input.refuse_unknown();
    match parsed {
        Some(parsed) if input.diagnostics.is_empty() => Ok(parsed),
        _ => Err(input.diagnostics),
    }
}

impl<'a> Input<'a> {
    pub(super) fn report(&mut self, field: &str, message: impl Into<String>) {
        let at = match (self.at.is_empty(), field.is_empty()) {
            (true, _) => field.to_owned(),
            (_, true) => self.at.clone(),
            _ => format!("{}.{field}", self.at),
        };
        self.diagnostics.push(Diagnostic { at, message: message.into(), hint: None });
    }

    pub(super) fn extend(&mut self, diagnostics: Vec<Diagnostic>) {
        self.diagnostics.extend(diagnostics);
    }

    pub(super) fn get(&mut self, field: &'static str) -> Option<&'a Value> {
        self.known.push(field);
        self.fields?.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, field: &'static str) -> Option<&'a str> {
        let value = self.get(field)?;
        match value.as_str() {
            Some(text) if text.len() > MAX_TEXT => {
                self.report(
                    field,
                    format!("the text has {} bytes; at most {MAX_TEXT} fit", text.len()),
                );
                None
            }
            Some(text) if text.contains('\0') => {
                self.report(field, "the text has a zero byte; remove it");
                None
            }
            Some(text) => Some(text),
            None => {
                self.report(field, format!("expected text, found `{value}`"));
                None
            }
        }
    }

    /// A text that must be present and not empty.
    pub(super) fn wanted(&mut self, field: &'static str) -> Option<&'a str> {
        let diagnostics = self.diagnostics.len();
        match self.text(field) {
            Some("") => {
                self.report(field, "the text is empty; give it a value");
                None
            }
            None if self.diagnostics.len() == diagnostics => {
                self.report(field, "the field is missing; give it a value");
                None
            }
            found => found,
        }
    }

    pub(super) fn flag(&mut self, field: &'static str) -> bool {
        match self.get(field) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.report(field, format!("expected true or false, found `{other}`"));
                false
            }
        }
    }

    pub(super) fn number(&mut self, field: &'static str) -> Option<u64> {
        let value = self.get(field)?;
        let number = value.as_u64();
        if number.is_none() {
            self.report(field, format!("expected a whole number, found `{value}`"));
        }
        number
    }

    pub(super) fn list(&mut self, field: &'static str) -> Option<&'a Vec<Value>> {
        let value = self.get(field)?;
        let list = value.as_array();
        if list.is_none() {
            self.report(field, format!("expected a list, found `{value}`"));
        }
        list
    }

    pub(super) fn texts(&mut self, field: &'static str) -> Vec<String> {
        let mut texts = Vec::new();
        for value in self.list(field).into_iter().flatten() {
            match scalar(value) {
                Some(text) => texts.push(text),
                None => self.report(field, format!("expected text, found `{value}`")),
            }
        }
        texts
    }

    /// Environment variables by name; numbers become text.
    pub(super) fn variables(&mut self, field: &'static str) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let Some(value) = self.get(field) else { return variables };
        let Some(given) = value.as_object() else {
            self.report(field, format!("expected a mapping, found `{value}`"));
            return variables;
        };
        for (name, value) in given {
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty();
            let value = scalar(value).filter(|value| !value.contains('\0'));
            if !is_name {
                self.report(field, format!("`{name}` cannot be the name of a variable"));
            } else if name.starts_with("HOIST_") {
                self.report(field, format!("`{name}` is set by hoist; choose another name"));
            } else if let Some(value) = value {
                variables.insert(name.clone(), value);
            } else {
                self.report(field, format!("`{name}` wants a text"));
            }
        }
        variables
    }

    /// Octal digits, as a text: numbers that begin with zero mean something else in some files.
    pub(super) fn mode(&mut self, field: &'static str) -> Option<u32> {
        let text = self.text(field)?;
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
        if mode.is_none() {
            self.report(field, format!("`{text}` is no file mode; write it like \"0644\""));
        }
        mode
    }

    fn refuse_unknown(&mut self) {
        for field in self.fields.into_iter().flat_map(Map::keys) {
            if !self.known.contains(&field.as_str()) {
                self.report(field, "unknown field");
                let hint = match nearest(field, self.known.iter().copied()) {
                    Some(close) => format!("did you mean `{close}`?"),
                    None if self.known.is_empty() => "the action has no fields".to_owned(),
                    None => format!("there are {}", self.known.join(", ")),
                };
                self.diagnostics.last_mut().expect("just added").hint = Some(hint);
            }
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
