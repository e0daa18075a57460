//! Refusals: layouts that are possible, and that a safety rule forbids.
//!
//! Does not belong here: layouts that are impossible (`table`, `stack`).

mod config_drive;

use std::collections::BTreeMap;
use std::ops::Range;

use uuid::Uuid;

use super::contents::keeps_contents;
use super::guid::{derive, is_derived};
use super::{Context, DiskPlan, Layout, PartitionPlan, Work, below, disks_of_mount, disks_of_root};
use crate::bind::{differences, identity};
use crate::claim::started_by;
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::size::MIB;
use crate::document::{BootFirmware, Bytes, FsKind, Id, ImageTable, PartRole, StorageNode};
use crate::facts::{
    Bus, BusyReason, DiskFacts, Firmware, Signature, SignatureKind, SignaturePlace, TableFacts,
};
use crate::partition_table::{IN_PROGRESS, TO_DESTROY};

/// Returns every reason against a layout. Fills in the signatures that the layout destroys and the
/// devices that it tears down.
pub(super) fn refuse(context: &Context<'_>, layout: &mut Layout) -> Vec<ProvisionDiagnostic> {
    let mut found = Vec::new();
    for plan in &mut layout.disks {
        let Some(facts) = context.fact(&plan.id) else { continue };
        found.extend(foreign(context, plan, facts));
    }
    found.extend(shared(context, layout));
    for plan in &mut layout.disks {
        let Some(facts) = context.fact(&plan.id) else { continue };
        found.extend(busy(context, plan, facts));
    }
    found.extend(retained_contents(context, layout));
    found.extend(images(context, layout));
    found.extend(too_small(context, layout));
    found.extend(firmware(context));
    found.extend(duplicates(context, layout));
    found.extend(moved_root(context));
    found
}

/// The retained ranges of a disk.
fn kept_ranges(plan: &DiskPlan) -> Vec<Range<u64>> {
    let Work::Table(table) = &plan.work else { return Vec::new() };
    table.partitions.iter().filter(|part| part.retained).map(PartitionPlan::range).collect()
}

/// Whether a signature is inside a retained range.
fn is_kept(plan: &DiskPlan, facts: &DiskFacts, signature: &Signature) -> bool {
    if matches!(plan.work, Work::None) {
        return true;
    }
    let at = place_of(facts.table.as_ref(), signature);
    kept_ranges(plan).iter().any(|range| range.contains(&at))
}

/// The position of a signature. A signature of a partition counts for the whole partition.
fn place_of(table: Option<&TableFacts>, signature: &Signature) -> u64 {
    let partition = |number| table?.partitions.iter().find(|part| part.number == number);
    match signature.place {
        SignaturePlace::Partition(number) => {
            partition(number).map_or(signature.offset, |part| part.start)
        }
        SignaturePlace::Disk => signature.offset,
    }
}

/// Whether hoist wrote the signature before, for this node. A disk of hoist may also hold foreign
/// signatures: some are newer than the last run, and some were retained by it.
fn is_ours(
    context: &Context<'_>,
    plan: &DiskPlan,
    facts: &DiskFacts,
    signature: &Signature,
) -> bool {
    let mut markers = facts.signatures.iter().filter(|found| is_marker(context, found)).peekable();
    if markers.peek().is_none() {
        return false;
    }
    // Another installation replaces this one. The same installation only completes itself.
    let is_marker = signature.kind == SignatureKind::Hoist;
    if is_finished(context, facts) && matches!(plan.work, Work::Table(_)) && !is_marker {
        return false;
    }
    let of_image = |marker: &Signature| marker.ours.as_ref().is_some_and(|ours| ours.of_image);
    if is_marker || markers.any(of_image) {
        return true;
    }
    // Partitions from before hoist have PARTUUIDs that hoist did not derive.
    let is_made = |partuuid: Option<Uuid>| partuuid.is_some_and(is_derived);
    match signature.place {
        SignaturePlace::Partition(number) => {
            let mut parts = facts.table.iter().flat_map(|table| &table.partitions);
            // The interrupted run already checked the ranges that it had to wipe.
            parts.any(|part| {
                part.number == number
                    && (is_made(part.partuuid) || part.type_guid == Some(TO_DESTROY))
            })
        }
        SignaturePlace::Disk => {
            let gone = plan.changes.iter().filter(|change| change.after.is_none());
            let mut gone = gone.filter_map(|change| change.before.as_ref());
            matches!(signature.kind, SignatureKind::Gpt | SignatureKind::Mbr)
                && gone.all(|e| is_made(e.partuuid) || e.type_guid.is_some_and(is_of_run))
        }
    }
}

/// Whether a partition exists only while a run is in progress on the disk.
fn is_of_run(type_guid: Uuid) -> bool {
    [IN_PROGRESS, TO_DESTROY].contains(&type_guid)
}

/// The transaction of an in-progress table.
fn is_of_this_run(context: &Context<'_>, signature: &Signature) -> bool {
    let txn = context.document.txn.to_string();
    signature.kind == SignatureKind::Hoist && signature.label == Some(txn)
}

fn is_at_work(context: &Context<'_>, facts: &DiskFacts) -> bool {
    facts.signatures.iter().any(|signature| is_of_this_run(context, signature))
}

/// Whether this transaction completed the disk. Since then its partitions hold the data of the
/// installed system, which only `wipe` gives up.
fn is_finished(context: &Context<'_>, facts: &DiskFacts) -> bool {
    let txn = context.document.txn;
    let mut ours = facts.signatures.iter().filter(|signature| is_marker(context, signature));
    ours.any(|signature| signature.ours.as_ref().is_some_and(|ours| ours.txn == txn))
        && !is_at_work(context, facts)
}

fn is_marker(context: &Context<'_>, signature: &Signature) -> bool {
    let node = context.document.node_id();
    is_of_this_run(context, signature)
        || (!node.is_empty() && signature.ours.as_ref().is_some_and(|ours| ours.node == node))
}

/// Whether a signature belongs to a partition that exists and keeps its contents. A derived GUID is
/// of this transaction.
fn is_settled(
    context: &Context<'_>,
    plan: &DiskPlan,
    facts: &DiskFacts,
    signature: &Signature,
) -> bool {
    let stays = |change: &&super::TableChange| change.what.keeps_contents();
    let is_table = matches!(signature.kind, SignatureKind::Gpt | SignatureKind::Mbr);
    if is_table && signature.place == SignaturePlace::Disk {
        let mut before = plan.changes.iter().filter(|change| change.before.is_some()).peekable();
        return before.peek().is_some() && before.all(|change| stays(&change));
    }
    let Work::Table(table) = &plan.work else { return false };
    let at = place_of(facts.table.as_ref(), signature);
    let txn = context.document.txn;
    let node = context.document.node_id();
    let mut there = plan.changes.iter().filter(stays).filter_map(|change| change.before.as_ref());
    let Some(entry) = there.find(|entry| entry.range().contains(&at)) else { return false };
    // While this transaction is in progress, data without a known signature is left of
    // contents that are made again. On a finished disk it may be data of the installed system.
    let is_left = signature.kind == SignatureKind::Unknown && is_at_work(context, facts);
    let mut parts = table.partitions.iter();
    parts.any(|part| {
        entry.partuuid == Some(derive(txn, node, &part.id))
            && (is_left || keeps_contents(context, facts, entry.number, &part.id))
    })
}

/// S4: foreign data stays, unless `wipe` names its kind.
fn foreign(
    context: &Context<'_>,
    plan: &mut DiskPlan,
    facts: &DiskFacts,
) -> Option<ProvisionDiagnostic> {
    let adopts = context.document.adopts_tables();
    let wipe = &context.document.sections.disks.get(&plan.id)?.wipe;
    let mut strange = Vec::new();
    for signature in &facts.signatures {
        if is_kept(plan, facts, signature) {
            continue;
        }
        // Adopted tables keep their contents, and hoist overwrites its own metadata.
        let is_left = (adopts && signature.place == SignaturePlace::Disk)
            || is_settled(context, plan, facts, signature)
            || is_marker(context, signature);
        if is_left && !plan.work.is_of_all() {
            continue;
        }
        if wipe.covers(signature.kind) || is_ours(context, plan, facts, signature) {
            plan.destroys.push(signature.clone());
        } else {
            strange.push(signature);
        }
    }
    (!strange.is_empty()).then(|| unnamed(plan, &strange))
}

fn unnamed(plan: &DiskPlan, strange: &[&Signature]) -> ProvisionDiagnostic {
    let mut kinds: Vec<_> = strange.iter().map(|signature| signature.kind).collect();
    kinds.sort_unstable_by_key(|kind| kind.as_str());
    kinds.dedup();
    let named = |name: fn(SignatureKind) -> &'static str| {
        kinds.iter().map(|kind| name(*kind)).collect::<Vec<_>>().join(", ")
    };
    let what = format!("disk `{}` holds {}", plan.kernel_name, named(SignatureKind::title));
    let seen = strange.iter().map(ToString::to_string);
    let hint = format!(
        "if all of that may be destroyed, say `wipe: [{}]` of the disk",
        named(SignatureKind::as_str)
    );
    let found =
        ProvisionDiagnostic::new(Code::ForeignData, format!("disks.{}.wipe", plan.id), what);
    found.evidence(seen).hint(hint)
}

/// Whether signatures of this kind belong to a device on several disks.
fn is_stack(kind: SignatureKind) -> bool {
    use SignatureKind as Kind;
    matches!(
        kind,
        Kind::Lvm
            | Kind::Md
            | Kind::Luks
            | Kind::Zfs
            | Kind::Btrfs
            | Kind::Bcache
            | Kind::Bcachefs
            | Kind::Ceph
            | Kind::Drbd
            | Kind::Stratis
    )
}

/// S6: a stack is torn down only if every leg of it may be destroyed.
fn shared(context: &Context<'_>, layout: &mut Layout) -> Vec<ProvisionDiagnostic> {
    // A signature that is destroyed together with a leg may be a leg of another stack.
    loop {
        let (mut found, also) = reached(context, layout);
        for (id, leg) in &also {
            let plan = layout.disks.iter_mut().find(|plan| plan.id == *id);
            found.extend(plan.and_then(|plan| empty_of(context, plan, leg)));
        }
        if also.is_empty() || !found.is_empty() {
            return found;
        }
    }
}

/// Follows the destroyed stacks to their other legs. Returns the reasons against it, and the legs
/// that are destroyed with them.
fn reached(
    context: &Context<'_>,
    layout: &Layout,
) -> (Vec<ProvisionDiagnostic>, Vec<(Id, Signature)>) {
    let mut found = Vec::new();
    let mut also: Vec<(Id, Signature)> = Vec::new();
    for plan in &layout.disks {
        for to_destroy in plan.destroys.iter().filter(|s| is_stack(s.kind) && s.uuid.is_some()) {
            for (disk, leg) in legs(context, to_destroy) {
                if disk.kernel_name == plan.kernel_name && leg == to_destroy {
                    continue;
                }
                let owner = layout.disks.iter().find(|plan| plan.kernel_name == disk.kernel_name);
                match owner {
                    Some(owner) if owner.destroys.contains(leg) => {}
                    Some(owner) if is_bare_leg(context, owner, leg) => {
                        also.push((owner.id.clone(), leg.clone()));
                    }
                    _ => found.push(refused_leg(plan, to_destroy, disk, leg)),
                }
            }
        }
    }
    (found, also)
}

/// A disk loses a leg and the other signatures in the same place. The rest of the disk stays.
fn empty_of(
    context: &Context<'_>,
    plan: &mut DiskPlan,
    leg: &Signature,
) -> Option<ProvisionDiagnostic> {
    let facts = context.fact(&plan.id)?;
    let wipe = &context.document.sections.disks.get(&plan.id)?.wipe;
    let Some(room) = room_of(facts, leg) else {
        let what = format!("disk `{}` has other partitions where its {leg} is", plan.kernel_name);
        let found =
            ProvisionDiagnostic::new(Code::ForeignData, format!("disks.{}.wipe", plan.id), what);
        return Some(found.hint("wipe it by hand"));
    };
    let inside = facts.signatures.iter();
    let inside = inside.filter(|found| room.contains(&place_of(facts.table.as_ref(), found)));
    let (named, strange): (Vec<_>, Vec<_>) = inside.partition(|found| wipe.covers(found.kind));
    if !strange.is_empty() {
        return Some(unnamed(plan, &strange));
    }
    for signature in named {
        if !plan.destroys.contains(signature) {
            plan.destroys.push(signature.clone());
        }
    }
    if !plan.writable.contains(&room) {
        plan.writable.push(room);
    }
    None
}

/// The partition of the leg, if the partition holds nothing else; otherwise the disk.
fn room_of(facts: &DiskFacts, leg: &Signature) -> Option<Range<u64>> {
    let SignaturePlace::Partition(number) = leg.place else { return Some(0..facts.size) };
    let parts = &facts.table.as_ref()?.partitions;
    let room = parts.iter().find(|part| part.number == number)?.range();
    let room = room.start..room.end.min(facts.size);
    let overlaps = |range: Range<u64>| range.start < room.end && room.start < range.end;
    let mut others = parts.iter().filter(|part| part.number != number);
    (!room.is_empty() && !others.any(|part| overlaps(part.range()))).then_some(room)
}

fn legs<'a>(
    context: &Context<'a>,
    to_destroy: &Signature,
) -> impl Iterator<Item = (&'a DiskFacts, &'a Signature)> {
    let kind = to_destroy.kind;
    let uuid = to_destroy.uuid.clone();
    let disks = context.facts.disks.iter();
    let all = disks.flat_map(|disk| disk.signatures.iter().map(move |signature| (disk, signature)));
    all.filter(move |(_, signature)| signature.kind == kind && signature.uuid == uuid)
}

/// Whether the document names the disk only to detach this leg.
fn is_bare_leg(context: &Context<'_>, owner: &DiskPlan, leg: &Signature) -> bool {
    let wipe = context.document.sections.disks.get(&owner.id).map(|disk| &disk.wipe);
    matches!(owner.work, Work::None) && wipe.is_some_and(|wipe| wipe.covers(leg.kind))
}

fn refused_leg(
    plan: &DiskPlan,
    to_destroy: &Signature,
    disk: &DiskFacts,
    leg: &Signature,
) -> ProvisionDiagnostic {
    let name = to_destroy.label.as_deref().or(to_destroy.uuid.as_deref()).unwrap_or("?");
    let what = format!(
        "{} `{name}` on disk `{}` reaches to disk `{}`, of which it may not be destroyed",
        to_destroy.kind, plan.kernel_name, disk.kernel_name
    );
    let found = ProvisionDiagnostic::new(Code::SharedStack, format!("disks.{}", plan.id), what);
    let seen = [to_destroy.to_string(), format!("{}: {leg}", identity(disk))];
    let hint = format!("name disk `{}`, too, with `wipe: [{}]`", disk.kernel_name, to_destroy.kind);
    found.evidence(seen).hint(hint)
}

/// S5: the disk is not in use, except by stacks that are destroyed together with their legs.
fn busy(
    context: &Context<'_>,
    plan: &mut DiskPlan,
    facts: &DiskFacts,
) -> Option<ProvisionDiagnostic> {
    if matches!(plan.work, Work::None) && plan.destroys.is_empty() {
        return None;
    }
    let mut using = Vec::new();
    for busy in &facts.busy {
        let numbered = facts.table.iter().flat_map(|table| &table.partitions);
        let part =
            numbered.into_iter().find(|part| part.kernel_name.as_ref() == Some(&busy.device));
        let is_in_no_table = part.is_none_or(|part| part.type_guid.is_some_and(is_of_run));
        let number = part.map(|part| part.number);
        let place = number.map_or(SignaturePlace::Disk, SignaturePlace::Partition);
        match &busy.reason {
            BusyReason::Holder(holder)
                if plan.destroys.iter().any(|s| s.place == place && is_stack(s.kind)) =>
            {
                plan.tears_down.push(holder.clone());
            }
            // A killed run of this transaction: its partitions are in no table yet.
            BusyReason::Holder(holder)
                if is_in_no_table
                    && busy.device != facts.kernel_name
                    && is_at_work(context, facts) =>
            {
                plan.tears_down.push(holder.clone());
            }
            // A stack that exists as desired may be assembled. It is stopped while its disk is
            // changed.
            BusyReason::Holder(holder) if is_settled_stack(context, plan, facts, place) => {
                plan.tears_down.push(holder.clone());
            }
            BusyReason::Holder(_) | BusyReason::Mount(_) | BusyReason::Swap => {
                using.push(busy.to_string());
            }
        }
    }
    plan.tears_down.sort_unstable();
    plan.tears_down.dedup();
    if using.is_empty() {
        return None;
    }
    let what = format!("disk `{}` is in use", plan.kernel_name);
    let found = ProvisionDiagnostic::new(Code::Busy, format!("disks.{}", plan.id), what);
    Some(found.evidence(using).hint("unmount it, stop swapping to it, or stop the stacks on it"))
}

fn is_settled_stack(
    context: &Context<'_>,
    plan: &DiskPlan,
    facts: &DiskFacts,
    place: SignaturePlace,
) -> bool {
    let mut there = facts.signatures.iter().filter(|s| s.place == place && is_stack(s.kind));
    there.any(|signature| is_settled(context, plan, facts, signature))
}

/// Retained contents of a partition must be as the document describes them.
fn retained_contents(context: &Context<'_>, layout: &Layout) -> Vec<ProvisionDiagnostic> {
    let mut found = Vec::new();
    for node in context.nodes().iter().filter(|node| node.is_retained()) {
        let wanted = match node {
            StorageNode::Fs(fs) => fs.kind.signature(),
            StorageNode::Pv(_) => SignatureKind::Lvm,
            StorageNode::Md(_) => SignatureKind::Md,
            StorageNode::Luks(_) => SignatureKind::Luks,
            _ => continue,
        };
        for on in node.on() {
            let Some((plan, part)) = layout.partition(on) else { continue };
            let Some(facts) = context.fact(&plan.id) else { continue };
            let inside: Vec<_> = facts
                .signatures
                .iter()
                .filter(|signature| {
                    part.range().contains(&place_of(facts.table.as_ref(), signature))
                })
                .collect();
            let is_it = |signature: &&&Signature| {
                let retain = node.as_fs().and_then(|fs| fs.retain.as_ref());
                let same = |wanted: Option<&String>, is: &Option<String>| {
                    wanted.is_none_or(|wanted| is.as_ref() == Some(wanted))
                };
                signature.kind == wanted
                    && same(retain.and_then(|retain| retain.label.as_ref()), &signature.label)
                    && same(retain.and_then(|retain| retain.uuid.as_ref()), &signature.uuid)
            };
            if !inside.iter().any(|signature| is_it(&signature)) {
                let what = format!(
                    "it is not in partition {} of disk `{}`",
                    part.number, plan.kernel_name
                );
                let seen = inside.into_iter().map(ToString::to_string);
                let place = format!("storage.{}.retain", node.id());
                found.push(
                    ProvisionDiagnostic::new(Code::NotAsRetained, place, what).evidence(seen),
                );
            }
        }
    }
    found
}

/// S8: an image fits into its target.
fn images(context: &Context<'_>, layout: &Layout) -> Vec<ProvisionDiagnostic> {
    let mut found = Vec::new();
    for (id, image) in context.document.sections.images.iter() {
        let stacked =
            layout.stack.iter().find(|plan| plan.id == image.target).map(|plan| plan.size);
        let parted = layout.partition(&image.target).map(|(_, part)| part.len);
        let whole = context.fact(&image.target).map(|facts| facts.size);
        let room = stacked.or(parted).or(whole);
        if let (Some(Bytes(size)), Some(room)) = (image.size, room)
            && size > room
        {
            let what =
                format!("it has {}, and `{}` only {}", Bytes(size), image.target, Bytes(room));
            let found_here =
                ProvisionDiagnostic::new(Code::ImageTooLarge, format!("images.{id}"), what);
            found.push(found_here.hint("make its target larger"));
        }
    }
    found
}

/// Refuses file systems that their program would refuse, when the disk is wiped already.
fn too_small(context: &Context<'_>, layout: &Layout) -> Vec<ProvisionDiagnostic> {
    let made = layout.stack.iter().filter(|plan| !plan.retained && plan.image.is_none());
    let told = made.filter_map(|plan| {
        let kind = context.document.storage(&plan.id)?.as_fs()?.kind;
        let least = match kind {
            FsKind::Xfs => 300 * MIB,
            FsKind::Btrfs => 109 * MIB,
            _ => return None,
        };
        let what = format!("{kind} needs {}, and has {}", Bytes(least), Bytes(plan.size));
        let found = ProvisionDiagnostic::new(Code::NoRoom, format!("storage.{}", plan.id), what);
        (plan.size < least).then(|| found.hint("enlarge the device below it, or use ext4"))
    });
    told.collect()
}

/// S9: the machine can boot the installed system.
fn firmware(context: &Context<'_>) -> Vec<ProvisionDiagnostic> {
    let sections = &context.document.sections;
    let mut found = Vec::new();
    let mut say = |place: String, what: String, hint: &str| {
        found.push(ProvisionDiagnostic::new(Code::Firmware, place, what).hint(hint));
    };
    let firmware = context.facts.firmware;
    for (id, image) in sections.images.iter() {
        let Some(disk) = context.fact(&image.target) else { continue };
        let place = format!("images.{id}");
        if let Some(sector) = image.sector_size.filter(|sector| *sector != disk.logical_sector) {
            let name = &disk.kernel_name;
            let is = disk.logical_sector;
            let what =
                format!("it was made for sectors of {sector} bytes, and disk `{name}` has {is}");
            say(place.clone(), what, "take an image for this sector size");
        }
        if image.table == Some(ImageTable::Mbr) && firmware == Firmware::Uefi {
            let what = "it has an MBR, and the machine was started by UEFI".to_owned();
            say(place, what, "take an image with a GPT, or start the machine by BIOS");
        }
    }
    let Some(boot) = sections.boot.as_ref().filter(|_| context.document.is_queued("boot")) else {
        return found;
    };
    let (bios, uefi) = started_by(boot, firmware);
    let root = disks_of_mount(context.document, "/");
    // Another machine boots from a loop device.
    let is_booted = |id: &Id| context.fact(id).is_some_and(|disk| disk.bus != Some(Bus::Loop));
    let other = match (boot.firmware, firmware) {
        (BootFirmware::Uefi, Firmware::Bios) => Some(("UEFI", "BIOS")),
        (BootFirmware::Bios, Firmware::Uefi) => Some(("BIOS", "UEFI")),
        _ => None,
    };
    if let Some((only, started)) = other.filter(|_| root.iter().any(is_booted)) {
        let what = format!("the document is for {only} only, and {started} started the machine");
        let hint = format!("start the machine by {only}, or take `both`, or leave it out");
        say("boot.firmware".to_owned(), what, &hint);
    }
    for (id, disk) in root.iter().filter_map(|id| Some((id, context.fact(id)?))) {
        if bios && disk.logical_sector == 4096 {
            let name = &disk.kernel_name;
            let what =
                format!("disk `{name}` has sectors of 4096 bytes; BIOS does not start from it");
            say(format!("disks.{id}"), what, "start the machine by UEFI");
        }
    }
    if root.is_empty() {
        return found;
    }
    let has = |role| context.nodes().iter().any(|node| is_part_for(node, role));
    let how =
        [(bios, PartRole::BiosBoot, "BIOS", "bios_boot"), (uefi, PartRole::Esp, "UEFI", "esp")];
    for (_, role, firmware, word) in how.into_iter().filter(|(is_started, ..)| *is_started) {
        if !has(role) {
            let what =
                format!("{firmware} starts the machine, and no partition has the role `{word}`");
            let hint = "add one, or let the action `boot` claim it";
            found.push(ProvisionDiagnostic::new(Code::Firmware, "boot", what).hint(hint));
        }
    }
    found
}

fn is_part_for(node: &StorageNode, role: PartRole) -> bool {
    matches!(node, StorageNode::Part(part) if part.role == role)
}

/// S13: names by which the installed system finds its devices are unique.
fn duplicates(context: &Context<'_>, layout: &Layout) -> Vec<ProvisionDiagnostic> {
    let mut found = Vec::new();
    let mut names: BTreeMap<(&str, String), &Id> = BTreeMap::new();
    for node in context.nodes() {
        let name = match node {
            // FAT labels have capitals only.
            StorageNode::Fs(fs) if fs.kind == FsKind::Vfat => {
                fs.label.as_ref().map(|label| ("label", label.to_ascii_uppercase()))
            }
            StorageNode::Fs(fs) => fs.label.as_ref().map(|label| ("label", label.clone())),
            StorageNode::Vg(vg) => Some(("volume group", vg.name().to_owned())),
            StorageNode::Md(md) => Some(("array", md.name().to_owned())),
            _ => None,
        };
        let Some(name) = name else { continue };
        if let Some(other) = names.insert(name.clone(), node.id()) {
            let what = format!("{} `{}` is that of `{other}`, too", name.0, name.1);
            found.push(ProvisionDiagnostic::new(
                Code::Duplicate,
                format!("storage.{}", node.id()),
                what,
            ));
        }
    }
    for disk in &context.facts.disks {
        let plan = layout.disks.iter().find(|plan| plan.kernel_name == disk.kernel_name);
        for signature in disk.signatures.iter().filter(|s| remains(context, plan, disk, s)) {
            let name = match signature.kind {
                SignatureKind::Lvm => "volume group",
                SignatureKind::Md => "array",
                _ => "label",
            };
            let label = signature.label.as_deref().map(|label| match signature.kind {
                // The name of an array may begin with its host.
                SignatureKind::Md => label.split_once(':').map_or(label, |(_, name)| name),
                _ => label,
            });
            let by_name = label.and_then(|label| names.get(&(name, label.to_owned())).copied());
            let is_uuid = |uuid: &str| layout.stack.iter().find(|s| s.uuid.to_string() == uuid);
            let by_uuid = signature.uuid.as_deref().and_then(is_uuid).map(|plan| &plan.id);
            // Retained file systems are the ones that the document names.
            let part = plan.and_then(|plan| retained_at(plan, disk, signature));
            let is_it =
                |id: &Id| part.is_some_and(|part| below(context.document, id).contains(part));
            if let Some(id) = by_name.or(by_uuid).filter(|id| !is_it(id)) {
                let what = format!("disk `{}` has its name or UUID already", disk.kernel_name);
                let hint = "give it another name, or name that disk with the kinds to wipe";
                let place = format!("storage.{id}");
                let seen = [identity(disk), signature.to_string()];
                found.push(
                    ProvisionDiagnostic::new(Code::Duplicate, place, what)
                        .evidence(seen)
                        .hint(hint),
                );
            }
        }
        found.extend(cloned(layout, plan, disk));
        found.extend(config_drive::other(context, plan, disk));
    }
    found
}

/// Whether a foreign signature remains after the run.
fn remains(
    context: &Context<'_>,
    plan: Option<&DiskPlan>,
    disk: &DiskFacts,
    signature: &Signature,
) -> bool {
    let Some(plan) = plan else { return true };
    // Content that the run would replace without `wipe` is refused as foreign data.
    match plan.work {
        Work::None => !plan.destroys.contains(signature),
        _ => {
            retained_at(plan, disk, signature).is_some()
                && !is_settled(context, plan, disk, signature)
        }
    }
}

/// The retained partition that holds a signature.
fn retained_at<'a>(plan: &'a DiskPlan, facts: &DiskFacts, signature: &Signature) -> Option<&'a Id> {
    let Work::Table(table) = &plan.work else { return None };
    let at = place_of(facts.table.as_ref(), signature);
    let mut kept = table.partitions.iter().filter(|part| part.retained);
    kept.find(|part| part.range().contains(&at)).map(|part| &part.id)
}

/// Refuses a foreign partition with the PARTUUID of a planned one.
fn cloned(
    layout: &Layout,
    plan: Option<&DiskPlan>,
    disk: &DiskFacts,
) -> Option<ProvisionDiagnostic> {
    if plan.is_some_and(|plan| !matches!(plan.work, Work::None)) {
        return None;
    }
    let mut parts = disk.table.iter().flat_map(|table| &table.partitions);
    let mut all = layout.disks.iter().filter_map(|plan| match &plan.work {
        Work::Table(table) => Some(&table.partitions),
        _ => None,
    });
    let made: Vec<_> = all.by_ref().flatten().collect();
    let (is, will) = parts
        .find_map(|is| Some((is, made.iter().find(|will| is.partuuid == Some(will.partuuid))?)))?;
    let what =
        format!("partition {} of disk `{}` has its PARTUUID already", is.number, disk.kernel_name);
    let found = ProvisionDiagnostic::new(Code::Duplicate, format!("storage.{}", will.id), what);
    Some(found.evidence([identity(disk)]).hint("take that disk away, or erase it"))
}

/// S14: the system must not move to another disk unnoticed. The last disk is known from the
/// document and from the markers of the disks.
fn moved_root(context: &Context<'_>) -> Option<ProvisionDiagnostic> {
    let sections = &context.document.sections;
    if sections.policy.allow_root_change {
        return None;
    }
    let disks = disks_of_root(context.document);
    let bound: Vec<_> = disks.iter().filter_map(|id| context.fact(id)).collect();
    let last = sections.node.as_ref().and_then(|node| node.last_root.as_ref());
    let is_said = |disk: &&DiskFacts| {
        let mut all = last.iter().flat_map(|last| last.disks());
        last.is_none() || all.any(|last| differences(last, disk).is_empty())
    };
    let had: Vec<_> = context.facts.disks.iter().filter(|disk| has_root(context, disk)).collect();
    let is_had = |disk: &&DiskFacts| had.iter().any(|had| had.kernel_name == disk.kernel_name);
    if bound.is_empty()
        || (bound.iter().any(is_said) && (had.is_empty() || bound.iter().any(is_had)))
    {
        return None;
    }
    let what = "the root would be on another disk than the last time";
    let found = ProvisionDiagnostic::new(Code::RootMoved, "node.last_root", what);
    let hint = "if that is wanted, `hoist provision start --allow-root-change` allows it for one \
                run, and `policy.allow_root_change` in the document for all";
    let was = had.into_iter().map(|disk| format!("it is on {}", identity(disk)));
    Some(found.evidence(was.chain(bound.into_iter().map(identity))).hint(hint))
}

/// Whether hoist installed the system of this node on the disk. No machine boots from a loop
/// device.
fn has_root(context: &Context<'_>, disk: &DiskFacts) -> bool {
    let node = context.document.node_id();
    let mut ours = disk.signatures.iter().filter_map(|signature| signature.ours.as_ref());
    disk.bus != Some(Bus::Loop)
        && !node.is_empty()
        && ours.any(|ours| ours.node == node && ours.has_root)
}
