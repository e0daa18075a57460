//! The declared contents of existing partitions, compared with the signatures found in them.

use super::{Context, derive};
use crate::document::{Id, StorageNode};
use crate::facts::{DiskFacts, Signature, SignatureKind, SignaturePlace};
use crate::steps::disks::NewFileSystem;

/// Whether the run leaves the contents of an existing partition alone, or writes the image of the
/// document there. Other contents than the declared ones would be replaced.
pub(super) fn keeps_contents(
    context: &Context<'_>,
    facts: &DiskFacts,
    number: u32,
    part: &Id,
) -> bool {
    let place = SignaturePlace::Partition(number);
    let mut inside = facts.signatures.iter().filter(|signature| signature.place == place);
    let uuid = |id: &Id| derive(context.document.txn, context.document.node_id(), id);
    let is_of = |signature: &Signature, kind, id: &Id| {
        signature.kind == kind && signature.uuid == Some(uuid(id).to_string())
    };
    match context.nodes_on(part).next() {
        Some(StorageNode::Fs(fs)) if fs.retain.is_none() && context.image_of(part).is_none() => {
            let wanted = NewFileSystem::new(&fs.id, fs.kind, uuid(&fs.id), fs.label.as_deref());
            inside.any(|signature| wanted.is(signature))
        }
        Some(StorageNode::Pv(_)) => inside.any(|found| found.kind == SignatureKind::Lvm),
        Some(StorageNode::Md(md)) => inside.any(|found| is_of(found, SignatureKind::Md, &md.id)),
        Some(StorageNode::Luks(luks)) => {
            inside.any(|found| is_of(found, SignatureKind::Luks, &luks.id))
        }
        _ => true,
    }
}
