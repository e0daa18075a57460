//! Programs that a profile needs and the agent image lacks.

use hoist_boot::agent;
use hoist_model::Node;
use hoist_model::provision_profile::agent_artifacts;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::Document;
use hoist_provision::plan::needed_tools;
use hoist_site::Roster;
use serde_json::Value;

/// A machine would refuse the document when it has booted. Nothing is missing as long as no image
/// says which programs it has.
pub(super) fn missing_tools(
    roster: &Roster,
    node: &Node,
    document: &Value,
) -> Vec<ProvisionDiagnostic> {
    let [_, initrd] = agent_artifacts(agent::arch(node, None));
    let Some(image) = roster.artifact(&initrd) else { return Vec::new() };
    // A document that cannot be read is refused for that.
    let Ok(document) = serde_json::from_value::<Document>(document.clone()) else {
        return Vec::new();
    };
    let needed = needed_tools(&document).into_iter();
    let missing = needed.filter(|(tool, _)| image.spec.has_tool(tool) == Some(false));
    let refused = missing.map(|(tool, id)| {
        let what = format!("the agent image `{initrd}` lacks the program `{tool}`");
        let place = format!("document.storage.{id}");
        let hint = format!("make it again with `hoist agent image --tools {tool} --add --replace`");
        ProvisionDiagnostic::new(Code::MissingTool, place, what).hint(hint)
    });
    refused.collect()
}
