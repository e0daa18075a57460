//! Provision profiles: the declared disk content of a set of nodes.
//!
//! The sections are those of a provisioning document; their meaning belongs to the provisioning
//! context.

use std::collections::BTreeMap;

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::boot_config::{MAX_PARAMS, artifacts_in, breaks_command};
use crate::metadata_layer::{Bounds, MAX_LAYER_DEPTH, MAX_LAYER_VALUES};
use crate::node::Arch;
use crate::{Name, Secret, Selector};

/// Largest profile, as JSON: it has to fit into one record of every store.
pub const MAX_PROFILE: usize = 256 * 1024;
/// Most secrets that are named in one.
pub const MAX_PROFILE_SECRETS: usize = 64;
/// Longest time in which an installed system may say that it is up: a day.
pub const MAX_PHONE_HOME_S: u32 = 24 * 60 * 60;

/// Names that only actions of hoist's own have; others come with plug-ins.
pub const OWN_ACTIONS: [&str; 9] =
    ["disks", "images", "config_drive", "boot", "files", "erase", "reboot", "kexec", "report"];

/// Sections that are the controller's to write.
const RESERVED: [(&str, &str); 2] = [
    ("node", "it is written for each node"),
    ("report", "agents report to the controller that gave them their job"),
];

/// The installation of the nodes of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvisionProfileSpec {
    /// The nodes of the profile, unless a run names another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Among equally specific profiles the highest wins.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The sections of the provisioning document. `artifact:NAME` stands for an artifact of the
    /// site; `config_drive: {}` for the node's rendered metadata.
    #[serde(default)]
    pub document: Map<String, Value>,
    /// What `secret://NAME` in it stands for; by default the file of that name among the server's
    /// secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Secret>,
    /// Further words on the command line of the agent's kernel, such as `console=ttyS0`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_params: String,
    /// The installed system has to say that it is up within so many seconds of the agent's last
    /// word; else the node has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_within_s: Option<u32>,
}

/// A profile as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvisionProfile {
    pub name: Name,
    pub spec: ProvisionProfileSpec,
    pub revision: u64,
}

/// The artifacts that nodes of an architecture boot to be provisioned: a kernel and an initrd.
pub fn agent_artifacts(arch: Arch) -> [String; 2] {
    let arch = if arch == Arch::Unknown { Arch::X86_64 } else { arch };
    ["kernel", "initrd"].map(|part| format!("agent-{}-{part}", arch.as_str()))
}

impl ProvisionProfileSpec {
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.selector.is_none() {
            let hint = "write `selector: \"*\"` for all nodes, or `role:compute`, `node:n1`, …";
            diagnostics.push(Diagnostic::new("selector", "missing").hint(hint));
        }
        if let Some(diagnostic) = self.check_size() {
            // A document that is too large must not be examined further.
            diagnostics.push(diagnostic);
            return diagnostics;
        }
        if self.document.is_empty() {
            let hint = "write its sections: `disks`, `storage`, `images`, `boot`, …";
            diagnostics.push(Diagnostic::new("document", "empty").hint(hint));
        }
        for (section, hint) in RESERVED {
            if self.document.contains_key(section) {
                let at = format!("document.{section}");
                diagnostics.push(Diagnostic::new(at, "hoist sets this section itself").hint(hint));
            }
        }
        if self.secrets.len() > MAX_PROFILE_SECRETS {
            diagnostics
                .push(Diagnostic::new("secrets", format!("more than {MAX_PROFILE_SECRETS}")));
        }
        for (name, secret) in &self.secrets {
            if let Err(error) = secret.check() {
                let at = format!("secrets.{name}");
                diagnostics.push(Diagnostic::new(at, error.to_string()));
            }
        }
        diagnostics.extend(self.check_agent_params());
        if self.phone_home_within_s.is_some_and(|s| s == 0 || s > MAX_PHONE_HOME_S) {
            let message = format!("must be 1 to {MAX_PHONE_HOME_S} seconds");
            diagnostics.push(Diagnostic::new("phone_home_within_s", message));
        }
        diagnostics
    }

    /// The names of the artifacts that it needs, each with the place where it stands.
    pub fn artifacts(&self) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        for (section, value) in &self.document {
            collect(&format!("document.{section}"), value, &mut found);
        }
        found
    }

    /// What plug-ins have to bring: actions that its flow names and no agent has, and sections of
    /// others, each with the place where it stands.
    pub fn of_plugins(&self) -> Vec<(String, &str)> {
        let flow = self.document.get("flow").and_then(|flow| flow.get("actions"));
        let flow = flow.and_then(Value::as_array).into_iter().flatten().enumerate();
        let actions = flow.filter_map(|(i, action)| {
            let action = action.as_str().filter(|action| !OWN_ACTIONS.contains(action))?;
            Some((format!("document.flow.actions[{i}]"), action))
        });
        // `vendor.example/raid@1`; sections of hoist have no such names.
        let sections = self.document.keys().filter(|section| section.contains('/'));
        let sections = sections.map(|section| (format!("document.{section}"), section.as_str()));
        actions.chain(sections).collect()
    }

    fn check_size(&self) -> Option<Diagnostic> {
        let bounds = Bounds::of([&self.document]);
        if bounds.depth > MAX_LAYER_DEPTH {
            let message = format!("nested deeper than {MAX_LAYER_DEPTH} levels");
            return Some(Diagnostic::new("document", message));
        }
        let too_large = || serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bounds.values > MAX_LAYER_VALUES || too_large() > MAX_PROFILE {
            let message = format!("more than {MAX_LAYER_VALUES} values or {MAX_PROFILE} bytes");
            let hint = "fetch large contents as images";
            return Some(Diagnostic::new("document", message).hint(hint));
        }
        None
    }

    fn check_agent_params(&self) -> Option<Diagnostic> {
        let params = &self.agent_params;
        if params.len() > MAX_PARAMS {
            return Some(Diagnostic::new(
                "agent_params",
                format!("longer than {MAX_PARAMS} bytes"),
            ));
        }
        let breaks = params.contains(char::is_control) || params.split(' ').any(breaks_command);
        breaks
            .then(|| Diagnostic::new("agent_params", "iPXE would not take it for one command line"))
    }
}

fn collect<'v>(at: &str, value: &'v Value, found: &mut Vec<(String, &'v str)>) {
    match value {
        Value::String(text) => {
            found.extend(artifacts_in(text).map(|name| (at.to_owned(), name)));
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                collect(&format!("{at}[{i}]"), value, found);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                collect(&format!("{at}.{key}"), value, found);
            }
        }
        _ => {}
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> ProvisionProfileSpec {
        serde_json::from_value(value).expect("a spec")
    }

    fn diagnostics(value: Value) -> Vec<String> {
        spec(value)
            .check()
            .into_iter()
            .map(|diagnostic| format!("{}: {}", diagnostic.at, diagnostic.message))
            .collect()
    }

    #[test]
    fn artifacts_are_named_with_their_places() {
        let profile = spec(json!({"selector": "*", "document": {
            "images": {"root": {"sources": ["artifact:os-root", "https://a/b"]}},
            "boot": {"files": {"kernel": {"sources": ["artifact:os-kernel"]}}},
        }}));
        let mut found = profile.artifacts();
        found.sort();
        assert_eq!(
            found,
            [
                ("document.boot.files.kernel.sources[0]".to_owned(), "os-kernel"),
                ("document.images.root.sources[0]".to_owned(), "os-root"),
            ]
        );
        assert!(profile.check().is_empty());
    }

    #[test]
    fn missing_plug_in_parts_are_named_with_their_place() {
        let profile = spec(json!({"selector": "*", "document": {
            "flow": {"actions": ["disks", "raid", "boot"]},
            "vendor.example/raid@1": {}, "disks": {},
        }}));
        let place = |at: &str| format!("document.{at}");
        assert_eq!(
            profile.of_plugins(),
            [
                (place("flow.actions[1]"), "raid"),
                (place("vendor.example/raid@1"), "vendor.example/raid@1"),
            ]
        );
        assert!(
            spec(json!({"document": {"flow": {"actions": ["erase"]}}})).of_plugins().is_empty()
        );
    }

    #[test]
    fn profile_errors_are_reported_with_their_place() {
        let found = diagnostics(json!({
            "document": {"node": {"id": "n1"}},
            "secrets": {"a": {"file": "../x"}},
            "agent_params": "console=ttyS0 || exit",
            "phone_home_within_s": 0,
        }));
        for at in ["selector", "document.node", "secrets.a", "agent_params", "phone_home_within_s"]
        {
            assert!(
                found.iter().any(|diagnostic| diagnostic.starts_with(&format!("{at}: "))),
                "{at} {found:?}"
            );
        }
        assert_eq!(diagnostics(json!({"selector": "*"})), ["document: empty"]);
    }

    #[test]
    fn a_profile_is_as_large_as_a_record_may_be_and_no_larger() {
        let text =
            |bytes: usize| json!({"selector": "*", "document": {"files": "x".repeat(bytes)}});
        assert!(diagnostics(text(MAX_PROFILE - 1024)).is_empty());
        assert_eq!(diagnostics(text(MAX_PROFILE)).len(), 1);
        let mut deep = json!(1);
        for _ in 0..=MAX_LAYER_DEPTH {
            deep = json!([deep]);
        }
        assert!(
            diagnostics(json!({"selector": "*", "document": {"files": deep}}))[0]
                .contains("nested")
        );
        let at_most = json!({"selector": "*", "document": {"flow": {}},
            "phone_home_within_s": MAX_PHONE_HOME_S});
        assert!(diagnostics(at_most).is_empty());
    }

    #[test]
    fn agents_are_known_by_architecture() {
        assert_eq!(agent_artifacts(Arch::Unknown), ["agent-x86_64-kernel", "agent-x86_64-initrd"]);
        for name in agent_artifacts(Arch::Aarch64) {
            assert!(name.parse::<crate::ArtifactName>().is_ok(), "{name}");
        }
    }
}
