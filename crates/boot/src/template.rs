//! Scripts of people's own: minijinja templates that know the node and what it boots.
//!
//! A template is bounded in work and size, and fails on anything undefined. Values are put in as
//! single lines: one with a line break is an error, so no label can add a line to a script.

mod language;

use std::collections::HashMap;
use std::io::{self, Write};
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
            let added = language::check(source, syntax()).and_then(|()| {
                let added = environment.add_template_owned(config.name.to_string(), source.clone());
                added.map_err(|error| told(&error))
            });
            if let Err(error) = added {
                templates.broken.insert(config.name.clone(), error);
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
        let mut page = Page::default();
        let rendered = template.render_captured_to(Serde(view), &mut page);
        if page.is_full {
            return Err(TemplateError(format!("the script is longer than {MAX_SCRIPT} bytes")));
        }
        rendered.map_err(|error| told(&error))?;
        let script = String::from_utf8(page.text)
            .map_err(|_| TemplateError("the script is not UTF-8".into()))?;
        if !script.starts_with("#!ipxe") {
            return Err(TemplateError("the script does not start with `#!ipxe`".into()));
        }
        Ok(script)
    }
}

/// What a script is written to, as long as there is room.
#[derive(Default)]
struct Page {
    text: Vec<u8>,
    is_full: bool,
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_SCRIPT {
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

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(syntax());
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
    fn a_template_is_bounded_in_work_and_size() {
        let characters = "{% for c in kernel %}".repeat(9) + &"{% endfor %}".repeat(9);
        let long = format!("#!ipxe\n{}", "{% for c in kernel %}".repeat(3))
            + &"x".repeat(1000)
            + &"{% endfor %}".repeat(3);
        assert!(render(&format!("#!ipxe\n{characters}"), "r").unwrap_err().contains("fuel"));
        assert!(
            render(&long, "r").unwrap_err().contains("longer than"),
            "{:?}",
            render(&long, "r")
        );
    }

    #[test]
    fn values_are_compared_chosen_and_listed() {
        let template = "#!ipxe\n{% if node.nid % 2 == 1 and 'comp' in node.role %}odd{% endif %}\n\
            {% for url in initrd %}initrd {{ url }} {{ loop.index }}{% endfor %}\n\
            {{ node.subrole|default('none')|upper }}{{ initrd[0][:4] }}\n";
        let script = render(template, "r").unwrap();
        assert_eq!(script, "#!ipxe\nodd\ninitrd http://i 1\nNONEhttp\n");
    }

    #[test]
    fn what_fails_says_where_and_why() {
        for (template, expected) in [
            ("#!ipxe\n{{ node.nmae }}", "line 2"),
            ("#!ipxe\n{% if %}", "line 2"),
            ("#!ipxe\n{{ node.labels.rack }}", "line break"),
            ("kernel x", "`#!ipxe`"),
            ("#!ipxe\n{% for i in range(9) %}a{% endfor %}", "line 2: a call"),
            ("#!ipxe\n{{ 'a' * 1000000000 }}", "line 2: `*`"),
            ("#!ipxe\n{% set a = 'aa' %}", "line 2: `set`"),
            ("#!ipxe\n{% with a = 'aa' %}{% endwith %}", "line 2: `with`"),
            ("#!ipxe\n{{ kernel ~ kernel }}", "line 2: `~`"),
            ("#!ipxe\n\n{{ kernel|replace('a', kernel) }}", "line 3: the filter `replace`"),
            ("#!ipxe\n{% for a in [kernel, kernel] %}{% endfor %}", "line 2: a list"),
            ("#!ipxe\n{% for a in (kernel, kernel) %}{% endfor %}", "line 2: a list"),
            ("#!ipxe\n{% if x is in([1]) %}{% endif %}", "line 2: a list"),
        ] {
            let error = render(template, "a\nshell").unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }
}
