//! Scripts of people's own: minijinja templates that know the node and what it boots.
//!
//! A template is bounded in work and size, and fails on anything undefined. Values are put in as
//! single lines: one with a line break is an error, so no label can add a line to a script.

use std::collections::HashMap;
use std::sync::Arc;

use hoist_model::{BootConfig, Name};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

/// Instructions one rendering may take; the built-in script would need some hundred.
const FUEL: u64 = 50_000;
/// Largest script worth sending to firmware.
const MAX_SCRIPT: usize = 256 * 1024;

/// What a template sees.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    pub node: NodeValues<'a>,
    /// The name of the configuration.
    pub config: &'a str,
    pub kernel: &'a str,
    pub initrd: &'a [String],
    /// The whole command line.
    pub params: &'a str,
    /// Where this controller is reached.
    pub base: &'a str,
    /// Where to go when something failed.
    pub retry_url: &'a str,
    pub retry_delay: u64,
}

#[derive(Debug, Serialize)]
pub struct NodeValues<'a> {
    pub id: String,
    pub name: &'a str,
    pub xname: Option<String>,
    pub nid: Option<u32>,
    pub role: Option<&'a str>,
    pub subrole: Option<&'a str>,
    pub partition: &'a str,
    pub groups: Vec<String>,
    pub arch: &'a str,
    pub mac: Option<String>,
    pub ip: Option<String>,
    pub labels: HashMap<&'a str, &'a str>,
    pub data: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

/// The templates of all configurations, compiled.
#[derive(Default)]
pub struct Templates {
    environment: Option<Environment<'static>>,
    broken: HashMap<Name, TemplateError>,
}

impl Templates {
    pub fn of<'a>(configs: impl Iterator<Item = &'a Arc<BootConfig>>) -> Self {
        let mut templates = Self::default();
        for config in configs {
            let Some(source) = &config.spec.template else { continue };
            let environment = templates.environment.get_or_insert_with(environment);
            let added = environment.add_template_owned(config.name.to_string(), source.clone());
            if let Err(error) = added {
                templates.broken.insert(config.name.clone(), told(&error));
            }
        }
        templates
    }

    pub fn render(&self, config: &Name, view: &View<'_>) -> Result<String, TemplateError> {
        if let Some(error) = self.broken.get(config) {
            return Err(error.clone());
        }
        let environment = self
            .environment
            .as_ref()
            .ok_or_else(|| TemplateError("there is no template".into()))?;
        let template = environment.get_template(config).map_err(|error| told(&error))?;
        let script = template.render(Serde(view)).map_err(|error| told(&error))?;
        if !script.starts_with("#!ipxe") {
            return Err(TemplateError("the script does not start with `#!ipxe`".into()));
        }
        if script.len() > MAX_SCRIPT {
            return Err(TemplateError(format!("the script is longer than {MAX_SCRIPT} bytes")));
        }
        Ok(script)
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the standard syntax"));
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, state, value| {
        if value.as_str().is_some_and(|text| text.contains(char::is_control)) {
            return Err(minijinja::Error::new(
                minijinja::ErrorKind::BadEscape,
                "a value with a line break or control character cannot go into a script",
            ));
        }
        minijinja::escape_formatter(out, state, value)
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
        f.debug_struct("Templates").field("broken", &self.broken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use hoist_model::BootConfigSpec;

    use super::*;

    fn render(template: &str, label: &str) -> Result<String, String> {
        let name: Name = "own".parse().unwrap();
        let spec = BootConfigSpec { template: Some(template.to_owned()), ..Default::default() };
        let config = Arc::new(BootConfig { name: name.clone(), spec, revision: 1 });
        let view = View {
            node: NodeValues {
                id: "1".to_owned(),
                name: "n1",
                xname: None,
                nid: Some(7),
                role: Some("compute"),
                subrole: None,
                partition: "default",
                groups: Vec::new(),
                arch: "x86_64",
                mac: None,
                ip: None,
                labels: HashMap::from([("rack", label)]),
                data: None,
            },
            config: "own",
            kernel: "http://k?a=1&b=<2>",
            initrd: &["http://i".to_owned()],
            params: "quiet",
            base: "http://h",
            retry_url: "http://h/r",
            retry_delay: 30,
        };
        Templates::of([&config].into_iter()).render(&name, &view).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_sees_the_node_and_what_it_boots() {
        let template =
            "#!ipxe\n# {{ node.name }} {{ node.labels.rack }}\nkernel {{ kernel }} {{ params }}\n";
        let script = render(template, "r1").unwrap();
        assert_eq!(script, "#!ipxe\n# n1 r1\nkernel http://k?a=1&b=<2> quiet\n");
    }

    #[test]
    fn what_fails_says_where_and_why() {
        for (template, expected) in [
            ("#!ipxe\n{{ node.nmae }}", "line 2"),
            ("#!ipxe\n{% if %}", "line 2"),
            ("#!ipxe\n{{ node.labels.rack }}", "line break"),
            ("kernel x", "`#!ipxe`"),
            (
                "#!ipxe\n{% for i in range(100000) %}{% for j in range(100000) %}a{% endfor %}{% endfor %}",
                "line 2",
            ),
            ("#!ipxe\n{{ 'a' * 1000000000 }}", "line 2"),
        ] {
            let error = render(template, "a\nshell").unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }
}
