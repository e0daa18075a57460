//! Expressions by themselves: conditions and numbers, in the language of templates.

use std::collections::HashSet;

use minijinja::value::Serde;
use minijinja::{Environment, Value};
use serde::Serialize;

use super::{TemplateError, environment, language, syntax, told};

/// Longest expression.
const MAX_EXPRESSION: usize = 4096;

/// What expressions are compiled with.
pub struct Expressions(Environment<'static>);

impl Expressions {
    /// With the instructions that one evaluation may take.
    pub fn new(fuel: u64) -> Self {
        Self(environment(fuel, false))
    }

    pub fn compile(&self, source: &str) -> Result<Expression<'_>, TemplateError> {
        if source.len() > MAX_EXPRESSION {
            return Err(TemplateError::new(format!(
                "the expression is longer than {MAX_EXPRESSION} bytes"
            )));
        }
        language::check_expression(source, syntax())?;
        let compiled = self.0.compile_expression_owned(source.to_owned());
        compiled.map(Expression).map_err(|error| told(&error))
    }
}

impl std::fmt::Debug for Expressions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expressions")
    }
}

#[derive(Debug)]
pub struct Expression<'a>(minijinja::Expression<'a, 'static>);

/// A value as expressions see it; it costs nothing to give it to many.
#[derive(Debug, Clone)]
pub struct Known(Value);

impl Known {
    pub fn of(value: &impl Serialize) -> Self {
        Self(Value::from(Serde(value)))
    }
}

impl Expression<'_> {
    /// The names that it begins from.
    pub fn names(&self) -> HashSet<String> {
        self.0.undeclared_variables(false)
    }

    /// Whether the expression is true. An undefined value is an error.
    pub fn holds(&self, known: &[(&str, &Known)]) -> Result<bool, TemplateError> {
        self.value(known).map(|value| value.is_true())
    }

    pub fn count(&self, known: &[(&str, &Known)]) -> Result<u32, TemplateError> {
        let value = self.value(known)?;
        u32::try_from(value.clone())
            .map_err(|_| TemplateError::new(format!("the value `{value}` is not a number")))
    }

    fn value(&self, known: &[(&str, &Known)]) -> Result<Value, TemplateError> {
        let value = self.0.eval(together(known)).map_err(|error| told(&error))?;
        if value.is_undefined() {
            return Err(TemplateError {
                is_undefined: true,
                ..TemplateError::new("undefined value")
            });
        }
        Ok(value)
    }
}

pub(crate) fn together(known: &[(&str, &Known)]) -> Value {
    Value::from_pairs(known.iter().map(|(name, known)| (*name, known.0.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_or_not_and_what_is_undefined_is_an_error() {
        let expressions = Expressions::new(10_000);
        let settings = Known::of(&serde_json::json!({"api": {"enabled": true, "places": 3}}));
        let holds = |source: &str| {
            let compiled = expressions.compile(source).map_err(|error| error.to_string())?;
            compiled.holds(&[("settings", &settings)]).map_err(|error| error.to_string())
        };
        assert_eq!(holds("settings.api.enabled"), Ok(true));
        assert_eq!(holds("settings.api.places > 3 or not settings.api.enabled"), Ok(false));
        assert_eq!(holds("settings.db is defined"), Ok(false));
        assert!(holds("settings.api.enabeld").unwrap_err().contains("undefined"));
        assert!(holds("settings.db.on").unwrap_err().contains("undefined"));
        assert!(holds("node.name == 'a'").unwrap_err().contains("undefined"));
        assert!(holds("settings.api..x").is_err());
        assert!(holds("}} {{ 1").is_err());
        assert!(holds("'a' * 1000").unwrap_err().contains("cannot be used"));
        assert!(holds(&"not ".repeat(100_000)).unwrap_err().contains("longer than"));
        assert!(holds(&format!("{}1", "-".repeat(1000))).unwrap_err().contains("more than"));
    }
}
