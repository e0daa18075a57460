//! Which parts of a text are values, for texts in which a value must not mean something of its own.

use serde::{Serialize, Serializer};

use super::TemplateError;

/// Around a value. Neither can be in one: values with control characters are refused.
pub(crate) const START: &str = "\u{1}";
pub(crate) const END: &str = "\u{2}";

/// A value that may hold several words: it is not marked. Filters and slices of it are.
#[derive(Debug, Clone, Copy)]
pub struct TrustedText<'a>(pub &'a str);

impl Serialize for TrustedText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        minijinja::Value::from_safe_string(self.0.to_owned()).serialize(serializer)
    }
}

/// A text with its values marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedText {
    raw: String,
    text: String,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// As it stands in the template, or [`TrustedText`].
    Template(&'a str),
    Value(&'a str),
}

impl MarkedText {
    pub(crate) fn new(raw: String) -> Self {
        let text = raw.replace(START, "").replace(END, "");
        Self { raw, text }
    }

    /// Without marks.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn into_text(self) -> String {
        self.text
    }

    /// The text with its marks, to be cut into words and lines and given to [`parts`].
    pub fn raw(&self) -> &str {
        &self.raw
    }
}

/// The parts of a piece of [`MarkedText::raw`] that begins and ends outside of values; empty values are
/// among them.
pub fn parts(raw: &str) -> impl Iterator<Item = Part<'_>> {
    raw.split(START).enumerate().flat_map(|(at, rest)| {
        let (value, after) = match rest.split_once(END) {
            Some((value, after)) if at > 0 => (Some(Part::Value(value)), after),
            _ => (None, rest),
        };
        value.into_iter().chain(std::iter::once(Part::Template(after)))
    })
}

pub(crate) fn check_source(source: &str) -> Result<(), TemplateError> {
    if source.contains(START) || source.contains(END) {
        return Err(TemplateError::new(
            "a template must not contain the characters U+0001 and U+0002",
        ));
    }
    Ok(())
}
