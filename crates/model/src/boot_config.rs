//! Boot configurations: the declared kernel, initrd and arguments of a set of nodes.

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, Selector};

/// Longest kernel command line worth storing; Linux itself takes 2 to 4 KiB on most machines.
pub const MAX_PARAMS: usize = 16 * 1024;
/// Longest URL of a kernel or initrd.
pub const MAX_URL: usize = 4096;
/// Largest template of a script.
pub const MAX_TEMPLATE: usize = 64 * 1024;
const MAX_INITRDS: usize = 16;

/// The boot configuration of the nodes of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootConfigSpec {
    /// Which nodes; `*` makes it the default for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Among equally specific configurations the highest wins.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// Only for nodes that were put on this profile (`hoist boot set NODE --profile P`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    /// What becomes of a node that boots it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: ConfigMode,
    /// Each node boots it one time only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub once: bool,
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub enabled: bool,
    /// A URL, or `artifact:NAME`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// URLs, or `artifact:NAME`, in the order in which they are loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initrd: Vec<String>,
    /// The kernel's command line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub params: String,
    /// Where cloud-init gets its documents: a seed URL, or `none`; by default the site's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<String>,
    /// An iPXE script of one's own (minijinja), in place of the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// What becomes of a node that boots a configuration.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum ConfigMode {
    /// The node runs the booted system, every time.
    #[default]
    Live,
    /// It installs itself, and from then on boots from its disk.
    Install,
}

/// A boot configuration as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootConfig {
    pub name: Name,
    pub spec: BootConfigSpec,
    pub revision: u64,
}

impl Default for BootConfigSpec {
    fn default() -> Self {
        Self {
            selector: None,
            priority: 0,
            profile: None,
            mode: ConfigMode::Live,
            once: false,
            enabled: true,
            kernel: String::new(),
            initrd: Vec::new(),
            params: String::new(),
            cloud_init: None,
            template: None,
        }
    }
}

/// How a kernel or initrd names an artifact of the site.
pub const ARTIFACT_SCHEME: &str = "artifact:";

impl BootConfigSpec {
    /// The names of the artifacts it needs, and where they stand.
    pub fn artifacts(&self) -> impl Iterator<Item = (String, &str)> {
        let initrds = self.initrd.iter().enumerate();
        let initrds = initrds.map(|(i, initrd)| (format!("initrd[{i}]"), initrd.as_str()));
        let urls = std::iter::once(("kernel".to_owned(), self.kernel.as_str())).chain(initrds);
        let urls = urls.filter_map(|(at, url)| Some((at, url.strip_prefix(ARTIFACT_SCHEME)?)));
        urls.chain(artifacts_in(&self.params).map(|name| ("params".to_owned(), name)))
    }

    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.selector.is_none() {
            let hint = "write `selector: \"*\"` for all nodes, or `role:compute`, `node:n1`, …";
            diagnostics.push(Diagnostic::new("selector", "missing").hint(hint));
        }
        // A template may do without: it can chain, or leave for the disk.
        if self.kernel.is_empty() && self.template.is_none() {
            let hint = "name one by URL, or as `artifact:NAME`";
            diagnostics.push(Diagnostic::new("kernel", "missing").hint(hint));
        }
        diagnostics.extend(check_url("kernel", &self.kernel));
        if self.initrd.len() > MAX_INITRDS {
            diagnostics.push(Diagnostic::new("initrd", format!("more than {MAX_INITRDS}")));
        }
        for (i, initrd) in self.initrd.iter().enumerate() {
            let at = format!("initrd[{i}]");
            if initrd.is_empty() {
                diagnostics.push(Diagnostic::new(&*at, "empty").hint("leave it out"));
            }
            diagnostics.extend(check_url(&at, initrd));
        }
        diagnostics.extend(check_params("params", &self.params));
        if let Some(seed) = &self.cloud_init {
            diagnostics.extend(check_url("cloud_init", seed));
        }
        if self.template.as_ref().is_some_and(|template| template.len() > MAX_TEMPLATE) {
            diagnostics
                .push(Diagnostic::new("template", format!("longer than {MAX_TEMPLATE} bytes")));
        }
        diagnostics
    }
}

/// The artifacts that a command line names: `root=live:artifact:image.squashfs`.
pub fn artifacts_in(line: &str) -> impl Iterator<Item = &str> {
    let names = line.match_indices(ARTIFACT_SCHEME);
    names.map(|(at, scheme)| {
        let rest = &line[at + scheme.len()..];
        &rest[..artifact_name_length(rest)]
    })
}

/// How far the name of an artifact reaches at the start of a text.
pub fn artifact_name_length(text: &str) -> usize {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '+');
    text.find(|c: char| !part(c)).unwrap_or(text.len())
}

/// A URL that goes into a script: one word, one line, of bearable length.
pub fn check_url(at: &str, url: &str) -> Option<Diagnostic> {
    if url.len() > MAX_URL {
        return Some(Diagnostic::new(at, format!("longer than {MAX_URL} bytes")));
    }
    if let Some(bad) = url.chars().find(|c| c.is_control() || c.is_whitespace()) {
        let message = format!("`{}` cannot stand in a URL", bad.escape_debug());
        return Some(
            Diagnostic::new(at, message).hint("write a blank as `%20`; leave out line breaks"),
        );
    }
    let other = breaks_command(url) || url.starts_with('-');
    other.then(|| Diagnostic::new(at, format!("iPXE would not take `{url}` for a URL")))
}

/// A command line: one line, of bearable length.
pub fn check_params(at: &str, params: &str) -> Option<Diagnostic> {
    if params.len() > MAX_PARAMS {
        let message = format!("longer than {MAX_PARAMS} bytes");
        return Some(Diagnostic::new(at, message).hint("no kernel takes that much"));
    }
    if let Some(word) = params.split_whitespace().find(|word| breaks_command(word)) {
        let message = format!("`{word}` cannot stand in a command line: iPXE would end it there");
        return Some(Diagnostic::new(at, message).hint("leave it out"));
    }
    // Some count as blanks in one place and as line ends in another: none of them is let in.
    let bad = params.chars().find(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'))?;
    let message = format!("`{}` cannot stand in a command line", bad.escape_debug());
    Some(Diagnostic::new(at, message).hint("keep it on one line, without control characters"))
}

/// Words that iPXE does not pass on: they end the command, or make the rest of it a comment.
pub fn breaks_command(word: &str) -> bool {
    matches!(word, "||" | "&&" | ";") || word.starts_with('#')
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_breaking_characters_are_refused() {
        let spec = |kernel: &str, params: &str| BootConfigSpec {
            selector: Some(Selector::everything()),
            kernel: kernel.to_owned(),
            params: params.to_owned(),
            ..BootConfigSpec::default()
        };
        assert!(spec("http://a/vmlinuz", "quiet console=ttyS0").check().is_empty());
        for (kernel, params) in [
            ("", ""),
            ("http://a/b c", ""),
            ("http://a\n", ""),
            ("k", "a\nb"),
            ("k", "a\u{0}"),
            ("k", "a || shell"),
            ("k", "quiet ; shell"),
            ("k", "#x"),
            (";", ""),
            ("#k", ""),
            ("--name", ""),
        ] {
            assert_eq!(spec(kernel, params).check().len(), 1, "{kernel:?} {params:?}");
        }
        assert_eq!(spec("k", &"x".repeat(MAX_PARAMS + 1)).check().len(), 1);
        assert_eq!(BootConfigSpec::default().check().len(), 2);
    }
}
