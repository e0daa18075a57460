//! `hoist node show`.

use clap::Args;
use hoist_api::provision::NodeFacts;
use hoist_model::Exit;
use serde_json::Value;

use super::Shell;
use crate::commands::provision::size;
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::{Output, plain};

/// Disks that are named.
const MAX_DISKS: usize = 4;

/// Show everything that is known about a node
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist node show n1\n  hoist node show 52:54:00:00:00:01 -o json\n  \
    hoist node show nid:48"
)]
pub(super) struct ShowArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let node = node_ref::find(&client, &self.node).await?;
        match shell.printer.output() {
            Output::Name => shell.printer.line(node_ref::name_of(&node)?.as_str())?,
            Output::Json => shell.printer.value(&node)?,
            Output::Yaml => shell.printer.yaml(&node)?,
            Output::Table | Output::Wide => {
                shell.printer.yaml(&node)?;
                let id = node_ref::id_of(&node)?.to_string();
                // The node is shown even if its facts are missing or not readable for this token.
                if let Ok(found) = client.facts(&id).await {
                    shell.printer.line(format!("# {}", plain(&summary(&found))))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// A summary of the facts that the node's agent reported.
fn summary(found: &NodeFacts) -> String {
    let facts = &found.facts;
    let size = |value: &Value| value.as_u64().map(size).unwrap_or_default();
    let disks: Vec<_> = facts["disks"].as_array().into_iter().flatten().collect();
    let named = disks.iter().take(MAX_DISKS).map(|disk| {
        let name = disk["kernel_name"].as_str().unwrap_or("?");
        format!("{name} {}", size(&disk["size"]))
    });
    let mut named: Vec<_> = named.collect();
    named.extend((disks.len() > MAX_DISKS).then(|| "…".to_owned()));
    let words = [
        format!("{} disks ({})", disks.len(), named.join(", ")),
        format!("{} of memory", size(&facts["memory"])),
        facts["firmware"].as_str().unwrap_or_default().to_uppercase(),
    ];
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    format!("found at {}: {}; see hoist provision facts {}", found.at, words.join(", "), found.node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hardware_is_summarised_in_one_line() {
        let found: NodeFacts = serde_json::from_value(json!({
            "node": "n1", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "at": "2026-01-02T03:04:05Z",
            "facts": {
                "firmware": "uefi", "memory": 16_u64 << 30,
                "disks": [{"kernel_name": "nvme0n1", "size": 512_u64 << 30}],
            },
        }))
        .unwrap();
        assert_eq!(
            summary(&found),
            "found at 2026-01-02T03:04:05Z: 1 disks (nvme0n1 512 GiB), 16.0 GiB of memory, UEFI; \
             see hoist provision facts n1"
        );
    }
}
