//! Templates in documents: minijinja, reduced to constructs of bounded size, with the values of a
//! node.
//!
//! A template is bounded in work and size, and fails on undefined values. Values are inserted as
//! single lines: a value with a line break is an error, so no label can add a line to a text. For
//! texts with further syntax, [`Templates::marking`] marks the inserted values.
//!
//! Does not belong here: the documents with templates and the origin of the values.

mod expression;
mod language;
mod marks;
#[cfg(feature = "roster")]
mod node;

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

pub use expression::{Expression, Expressions, Known};
pub use marks::{MarkedText, Part, TrustedText, parts};
#[cfg(feature = "roster")]
pub use node::{NodeValues, sample};

/// Longest template. A longer one must not even be parsed.
pub const MAX_SOURCE: usize = 256 * 1024;

/// Why a template cannot be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    message: String,
    /// The line of the template, counted from 1, of errors that minijinja reports.
    pub line: Option<usize>,
    /// Whether the template uses a value that the node does not have.
    pub is_undefined: bool,
}

impl TemplateError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), line: None, is_undefined: false }
    }
}

/// Compiled templates by name.
pub struct Templates {
    /// Instructions one rendering may take.
    fuel: u64,
    /// Whether values are marked in the text.
    marks: bool,
    /// Made with the first template: most sites have none.
    environment: Option<Environment<'static>>,
}

impl Templates {
    pub fn new(fuel: u64) -> Self {
        Self { fuel, marks: false, environment: None }
    }

    /// For [`Self::render_marked`].
    pub fn marking(fuel: u64) -> Self {
        Self { marks: true, ..Self::new(fuel) }
    }

    pub fn add(&mut self, name: String, source: String) -> Result<(), TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::new(format!(
                "the template is longer than {MAX_SOURCE} bytes"
            )));
        }
        language::check(&source, syntax())?;
        if self.marks {
            marks::check_source(&source)?;
        }
        let fuel = self.fuel;
        let marks = self.marks;
        let environment = self.environment.get_or_insert_with(|| environment(fuel, marks));
        environment.add_template_owned(name, source).map_err(|error| told(&error))
    }

    pub fn is_empty(&self) -> bool {
        self.environment.is_none()
    }

    /// At most `max` bytes of text.
    pub fn render(
        &self,
        name: &str,
        view: &impl Serialize,
        max: usize,
    ) -> Result<String, TemplateError> {
        self.render_value(name, minijinja::Value::from(Serde(view)), max)
    }

    /// As [`Self::render`], with every value marked that is not [`TrustedText`]. The templates must have
    /// been made with [`Self::marking`].
    pub fn render_marked(
        &self,
        name: &str,
        view: &impl Serialize,
        max: usize,
    ) -> Result<MarkedText, TemplateError> {
        // The marks take room too; how much is bounded by the work.
        let room = max.saturating_mul(2);
        let text = self.render_value(name, minijinja::Value::from(Serde(view)), room)?;
        let marked = MarkedText::new(text);
        if marked.text().len() > max {
            return Err(too_long(max));
        }
        Ok(marked)
    }

    /// As [`Self::render`], of values that are shared by many renderings.
    pub fn render_known(
        &self,
        name: &str,
        known: &[(&str, &Known)],
        max: usize,
    ) -> Result<String, TemplateError> {
        self.render_value(name, expression::together(known), max)
    }

    fn render_value(
        &self,
        name: &str,
        view: minijinja::Value,
        max: usize,
    ) -> Result<String, TemplateError> {
        let environment = self.environment.as_ref();
        let environment =
            environment.ok_or_else(|| TemplateError::new("the template does not exist"))?;
        let template = environment.get_template(name).map_err(|error| told(&error))?;
        let mut page = Page { text: Vec::new(), max, is_full: false };
        let rendered = template.render_captured_to(view, &mut page);
        if page.is_full {
            return Err(too_long(max));
        }
        rendered.map_err(|error| told(&error))?;
        String::from_utf8(page.text).map_err(|_| TemplateError::new("the output is not UTF-8"))
    }
}

/// An output buffer of limited size.
struct Page {
    text: Vec<u8>,
    max: usize,
    is_full: bool,
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.max {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the standard syntax")
}

fn too_long(max: usize) -> TemplateError {
    TemplateError::new(format!("the output is longer than {max} bytes"))
}

fn environment(fuel: u64, marks: bool) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(syntax());
    environment.set_fuel(Some(fuel));
    environment.set_formatter(move |out, state, value| {
        if value.as_str().is_some_and(|text| text.contains(char::is_control)) {
            return Err(minijinja::Error::new(
                minijinja::ErrorKind::BadEscape,
                "a value contains a line break or control character",
            ));
        }
        if !marks || value.is_safe() {
            return minijinja::escape_formatter(out, state, value);
        }
        out.write_str(marks::START)?;
        minijinja::escape_formatter(out, state, value)?;
        Ok(out.write_str(marks::END)?)
    });
    environment
}

/// The error with its line, without the excerpt that minijinja adds for terminals.
fn told(error: &minijinja::Error) -> TemplateError {
    let line = error.line();
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let message = format!("{place}{}{detail}", error.kind());
    // minijinja reports some uses of an undefined value as invalid operations on `undefined`.
    let is_undefined = message.contains("undefined");
    TemplateError { message, line, is_undefined }
}

impl std::fmt::Debug for Templates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Templates").field("fuel", &self.fuel).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_is_too_long_is_not_read() {
        let long = "{{ ".to_owned() + &"x".repeat(MAX_SOURCE);
        let add = |text: &str| Templates::new(1).add("one".to_owned(), text.to_owned());
        let error = add(&long).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
        let error = add(&long[..MAX_SOURCE]).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        add(&long[3..]).unwrap();
    }
}
