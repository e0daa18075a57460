//! Templates as people write them into documents: minijinja, reduced to what cannot grow, with the
//! node as what they know.
//!
//! A template is bounded in work and size, and fails on anything undefined. Values are put in as
//! single lines: one with a line break is an error, so no label can add a line to a text. For texts
//! in which more than lines count, [`Templates::marking`] says which parts of a text are values.

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

/// Longest template. What is longer is not even read.
pub const MAX_SOURCE: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl TemplateError {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
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
            return Err(TemplateError(format!("it is longer than {MAX_SOURCE} bytes")));
        }
        language::check(&source, syntax())?;
        if self.marks {
            marks::check_source(&source)?;
        }
        let (fuel, marks) = (self.fuel, self.marks);
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
        let environment = environment.ok_or_else(|| TemplateError::new("there is no template"))?;
        let template = environment.get_template(name).map_err(|error| told(&error))?;
        let mut page = Page { text: Vec::new(), max, is_full: false };
        let rendered = template.render_captured_to(view, &mut page);
        if page.is_full {
            return Err(too_long(max));
        }
        rendered.map_err(|error| told(&error))?;
        String::from_utf8(page.text).map_err(|_| TemplateError::new("what it makes is not UTF-8"))
    }
}

/// What a text is written to, as long as there is room.
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
    TemplateError(format!("what it makes is longer than {max} bytes"))
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
                "a value with a line break or control character cannot be put in",
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

/// The error with its line; what minijinja adds below is for terminals.
fn told(error: &minijinja::Error) -> TemplateError {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    TemplateError(format!("{line}{}{detail}", error.kind()))
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
