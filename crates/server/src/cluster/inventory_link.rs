//! The inventory node that a member is.
//!
//! A member without a node could get no work: a node with its name is declared if there is none.

use hoist_api::Code;
use hoist_chassis::audit::Draft;
use hoist_chassis::failure::Failure;
use hoist_model::{Arch, Name, NodeId, NodeSpec};
use hoist_site::Roster;
use hoist_site::registry::{Terms, mint_id};

use super::Cluster;
use crate::audited_commit::AuditedCommit;
use crate::inventory::write_failure;

/// Their names in the kernel and in Rust.
pub(super) fn architecture(text: &str) -> Arch {
    match text {
        "x86_64" | "amd64" => Arch::X86_64,
        "aarch64" | "arm64" => Arch::Aarch64,
        "riscv64" => Arch::Riscv64,
        _ => Arch::Unknown,
    }
}

/// A disabled node takes part in nothing.
pub(super) fn check_enabled(roster: &Roster, name: &Name) -> Result<(), Failure> {
    match roster.by_name(name) {
        Some(node) if !node.spec.enabled => {
            let detail = format!("node `{name}` is disabled in the inventory");
            Err(Failure::new(Code::JoinRefused, detail)
                .with_remedy("enable it, or join under another name"))
        }
        _ => Ok(()),
    }
}

/// The node that hoist installed a machine as: its id, or its name.
pub(super) fn installed_as<'r>(roster: &'r Roster, text: &str) -> Option<&'r hoist_model::Node> {
    let by_id = || roster.by_id(text.parse::<NodeId>().ok()?);
    by_id().or_else(|| roster.by_name(text)).map(AsRef::as_ref)
}

impl Cluster {
    /// Declares the node of a member unless it is declared. `by` is the entry of the audit log.
    pub(super) async fn declare(&self, name: &Name, arch: Arch, by: Draft) -> Result<(), Failure> {
        if self.registry.roster().by_name(name).is_some() {
            return Ok(());
        }
        let id = mint_id();
        let spec = NodeSpec { arch, ..NodeSpec::default() };
        let commit = AuditedCommit::new(&self.chassis.audit, by);
        let written = self.registry.write(Terms::default(), &commit, |draft| {
            // Another request of the same node was faster.
            if draft.id_of(name).is_none() {
                draft.put_node(id, name.clone(), spec.clone());
            }
            Ok(())
        });
        let written = written.await.map_err(write_failure)?;
        if !written.plan.is_empty() {
            let told = serde_json::json!({"revision": written.revision, "by": "cluster"});
            self.publish("inventory.changed", "site", told);
        }
        Ok(())
    }
}
