//! Scripts of people's own: templates that know the node and what it boots.

use std::collections::HashMap;
use std::sync::Arc;

use hoist_model::{BootConfig, Name};
use hoist_template::{NodeValues, TemplateError};
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

/// The templates of all configurations, compiled.
#[derive(Debug)]
pub struct Templates {
    compiled: hoist_template::Templates,
    broken: HashMap<Name, TemplateError>,
}

impl Templates {
    pub fn of<'a>(configs: impl Iterator<Item = &'a Arc<BootConfig>>) -> Self {
        let (mut compiled, mut broken) = (hoist_template::Templates::new(FUEL), HashMap::new());
        for config in configs {
            let Some(source) = &config.spec.template else { continue };
            if let Err(error) = compiled.add(config.name.to_string(), source.clone()) {
                broken.insert(config.name.clone(), error);
            }
        }
        Self { compiled, broken }
    }

    pub fn render(&self, config: &Name, view: &View<'_>) -> Result<String, TemplateError> {
        if let Some(error) = self.broken.get(config) {
            return Err(error.clone());
        }
        let script = self.compiled.render(config, view, MAX_SCRIPT)?;
        if !script.starts_with("#!ipxe") {
            return Err(TemplateError::new("the script does not start with `#!ipxe`"));
        }
        Ok(script)
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
