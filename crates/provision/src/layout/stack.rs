//! Sizes of the nodes above partitions, in the order of their creation.

use super::guid::derive;
use super::{Context, Layout, Sizes, StackPlan};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::size::{KIB, MIB};
use crate::document::{Bytes, Id, Lv, MdLevel, Pv, Size, StorageNode};

/// The data offset of array devices. It is passed to mdadm, so that sizes are known before.
pub const MD_DATA_OFFSET: u64 = 2 * MIB;
/// Bytes of a LUKS2 header.
pub const LUKS_HEADER: u64 = 16 * MIB;
/// LVM gives out room in pieces of this.
pub const EXTENT: u64 = 4 * MIB;

/// The nodes above the partitions, each behind the nodes that it lies on.
pub(super) fn stack(
    context: &Context<'_>,
    ordered: &[&StorageNode],
    layout: &Layout,
) -> Result<Vec<StackPlan>, Vec<ProvisionDiagnostic>> {
    let mut sizes = Sizes::new();
    let mut stack = Vec::new();
    let mut found = Vec::new();
    for &node in ordered {
        let size = match node {
            StorageNode::Part(part) => layout.partition(&part.id).map_or(0, |(_, plan)| plan.len),
            StorageNode::Lv(lv) => match volume(context, &sizes, lv) {
                Ok(size) => size,
                Err(diagnostic) => {
                    found.push(diagnostic);
                    0
                }
            },
            other => size_of(other, &sizes),
        };
        if size == 0 && !matches!(node, StorageNode::Lv(_) | StorageNode::Part(_)) {
            let what = format!("no room is left for it on `{}`", names(node.on()));
            let found_here =
                ProvisionDiagnostic::new(Code::NoRoom, format!("storage.{}", node.id()), what);
            found.push(found_here.hint("enlarge the device below it"));
        }
        sizes.insert(node.id().clone(), size);
        if !matches!(node, StorageNode::Part(_)) {
            stack.push(planned(context, node, size));
        }
    }
    if found.is_empty() { Ok(stack) } else { Err(found) }
}

fn names(ids: &[Id]) -> String {
    ids.iter().map(Id::as_str).collect::<Vec<_>>().join("`, `")
}

fn planned(context: &Context<'_>, node: &StorageNode, size: u64) -> StackPlan {
    let document = context.document;
    // Nothing below a file system is made anew where tables stay.
    let is_fs = matches!(node, StorageNode::Fs(_));
    let adopts = document.adopts_tables() && !(is_fs && document.is_queued("disks"));
    let image = match node {
        StorageNode::Fs(fs) => context.image_of(&fs.on).cloned(),
        _ => None,
    };
    StackPlan {
        id: node.id().clone(),
        kind: node.kind().to_owned(),
        on: node.on().to_vec(),
        size,
        uuid: derive(document.txn, document.node_id(), node.id()),
        is_there: false,
        retained: node.is_retained() || (adopts && image.is_none()),
        image,
    }
}

fn size_of(node: &StorageNode, sizes: &Sizes) -> u64 {
    let below = |id: &Id| sizes.get(id).copied().unwrap_or(0);
    match node {
        StorageNode::Md(md) => {
            let devices = md.on.len().saturating_sub(md.spares as usize) as u64;
            let smallest = md.on.iter().map(below).min().unwrap_or(0);
            let each = smallest.saturating_sub(MD_DATA_OFFSET);
            match md.level {
                MdLevel::Raid0 => each.saturating_mul(devices),
                MdLevel::Raid1 => each,
                MdLevel::Raid5 => each.saturating_mul(devices.saturating_sub(1)),
                MdLevel::Raid6 => each.saturating_mul(devices.saturating_sub(2)),
                MdLevel::Raid10 => each.saturating_mul(devices) / 2,
            }
        }
        StorageNode::Pv(pv) => below(&pv.on).saturating_sub(data_start(pv)),
        StorageNode::Vg(vg) => vg.on.iter().map(|pv| below(pv) / EXTENT * EXTENT).sum(),
        StorageNode::Luks(luks) => below(&luks.on).saturating_sub(LUKS_HEADER),
        StorageNode::Fs(fs) => below(&fs.on),
        StorageNode::Part(_) | StorageNode::Lv(_) => 0,
    }
}

/// Where the first extent of a physical volume begins.
fn data_start(pv: &Pv) -> u64 {
    let notes = pv.metadata_size.map_or(0, |Bytes(bytes)| bytes);
    notes.saturating_add(4 * KIB).div_ceil(MIB).saturating_mul(MIB)
}

/// A volume among its siblings.
fn volume(context: &Context<'_>, sizes: &Sizes, lv: &Lv) -> Result<u64, ProvisionDiagnostic> {
    let whole = sizes.get(&lv.on).copied().unwrap_or(0);
    let bytes = |size: Size| match size {
        Size::Exact(Bytes(bytes)) => bytes.div_ceil(EXTENT).saturating_mul(EXTENT),
        Size::Percent(share) => share.of(whole) / EXTENT * EXTENT,
        Size::Rest => 0,
    };
    let siblings = context.nodes().iter().filter_map(|node| match node {
        StorageNode::Lv(other) if other.on == lv.on => Some(other),
        _ => None,
    });
    let all = siblings.map(|other| bytes(other.size)).fold(0, u64::saturating_add);
    let size = match lv.size {
        Size::Rest => whole.saturating_sub(all),
        other => bytes(other),
    };
    if all > whole || size == 0 {
        let what = format!("no room for {} in `{}`", lv.size, lv.on);
        let seen = [format!("all of it has {}, and {} are asked for", Bytes(whole), Bytes(all))];
        let found = ProvisionDiagnostic::new(Code::NoRoom, format!("storage.{}.size", lv.id), what);
        return Err(found
            .evidence(seen)
            .hint("make volumes smaller, or enlarge the devices of the group"));
    }
    Ok(size)
}
