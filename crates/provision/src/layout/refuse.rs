//! What must not be done although it could be.

use std::collections::BTreeMap;
use std::ops::Range;

use uuid::Uuid;

use super::guid::{derive, is_derived};
use super::{
    Context, Difference, DiskPlan, Layout, PartitionPlan, Work, below, disks_of_mount,
    disks_of_root,
};
use crate::bind::{differences, identity};
use crate::claim::started_by;
use crate::device::table::{DOOMED, IN_PROGRESS};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::size::MIB;
use crate::document::{Bytes, FsKind, Id, ImageTable, PartRole, StorageNode};
use crate::facts::{
    Bus, BusyReason, DiskFacts, Firmware, Signature, SignatureKind, SignaturePlace, TableFacts,
};

/// Everything that forbids a layout. What is destroyed and torn down is filled in on the way.
pub(super) fn refuse(context: &Context<'_>, layout: &mut Layout) -> Vec<Diagnostic> {
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

/// Ranges of what stays on a disk.
fn kept_ranges(plan: &DiskPlan) -> Vec<Range<u64>> {
    let Work::Table(table) = &plan.work else { return Vec::new() };
    table.partitions.iter().filter(|part| part.retained).map(PartitionPlan::range).collect()
}

/// Whether a signature is inside of something that stays.
fn is_kept(plan: &DiskPlan, facts: &DiskFacts, signature: &Signature) -> bool {
    if matches!(plan.work, Work::None) {
        return true;
    }
    let at = place_of(facts.table.as_ref(), signature);
    kept_ranges(plan).iter().any(|range| range.contains(&at))
}

/// Where it counts: a signature of a partition belongs to it wherever its magic is.
fn place_of(table: Option<&TableFacts>, signature: &Signature) -> u64 {
    let partition = |number| table?.partitions.iter().find(|part| part.number == number);
    match signature.place {
        SignaturePlace::Partition(number) => {
            partition(number).map_or(signature.offset, |part| part.start)
        }
        SignaturePlace::Disk => signature.offset,
    }
}

/// Whether hoist put it there before, for this node. On a disk that it wrote to there may also be
/// what others put there since, and what had to stay when hoist came to it.
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
    let of_image = |marker: &Signature| marker.ours.as_ref().is_some_and(|ours| ours.of_image);
    if signature.kind == SignatureKind::Hoist || markers.any(of_image) {
        return true;
    }
    // What was there before has a number that somebody else gave it.
    let is_made = |partuuid: Option<Uuid>| partuuid.is_some_and(is_derived);
    match signature.place {
        SignaturePlace::Partition(number) => {
            let mut parts = facts.table.iter().flat_map(|table| &table.partitions);
            // What the run that has begun with the disk was to wipe was looked at by that one.
            parts.any(|part| {
                part.number == number && (is_made(part.partuuid) || part.type_guid == Some(DOOMED))
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

/// Whether a partition is only there while somebody is at work on the disk.
fn is_of_run(type_guid: Uuid) -> bool {
    [IN_PROGRESS, DOOMED].contains(&type_guid)
}

/// A table that says that somebody is at work says in which transaction.
fn is_of_this_run(context: &Context<'_>, signature: &Signature) -> bool {
    let txn = context.document.txn.to_string();
    signature.kind == SignatureKind::Hoist && signature.label == Some(txn)
}

fn is_at_work(context: &Context<'_>, facts: &DiskFacts) -> bool {
    facts.signatures.iter().any(|signature| is_of_this_run(context, signature))
}

fn is_marker(context: &Context<'_>, signature: &Signature) -> bool {
    let node = context.document.node_id();
    is_of_this_run(context, signature)
        || (!node.is_empty() && signature.ours.as_ref().is_some_and(|ours| ours.node == node))
}

/// Whether it belongs to what is there already as it shall be: what has a derived GUID is of this
/// very transaction.
fn is_settled(
    context: &Context<'_>,
    plan: &DiskPlan,
    facts: &DiskFacts,
    signature: &Signature,
) -> bool {
    let stays = |change: &&super::Change| {
        matches!(change.what, Difference::Kept | Difference::Resized) && change.after.is_some()
    };
    let is_table = matches!(signature.kind, SignatureKind::Gpt | SignatureKind::Mbr);
    if is_table && signature.place == SignaturePlace::Disk {
        let mut before = plan.changes.iter().filter(|change| change.before.is_some()).peekable();
        return before.peek().is_some() && before.all(|change| stays(&change));
    }
    let Work::Table(table) = &plan.work else { return false };
    let at = place_of(facts.table.as_ref(), signature);
    let (txn, node) = (context.document.txn, context.document.node_id());
    let ours: Vec<_> =
        table.partitions.iter().map(|part| Some(derive(txn, node, &part.id))).collect();
    // Where it was: what it grows over is somebody else's.
    let mut there = plan.changes.iter().filter(stays).filter_map(|change| change.before.as_ref());
    there.any(|entry| ours.contains(&entry.partuuid) && entry.range().contains(&at))
}

/// S4: what others put there stays, unless it is named.
fn foreign(context: &Context<'_>, plan: &mut DiskPlan, facts: &DiskFacts) -> Option<Diagnostic> {
    let adopts = context.document.adopts_tables();
    let wipe = &context.document.sections.disks.get(&plan.id)?.wipe;
    let mut strange = Vec::new();
    for signature in &facts.signatures {
        if is_kept(plan, facts, signature) {
            continue;
        }
        // Tables that stay as they are hold what they held, and our own notes are written over.
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

fn unnamed(plan: &DiskPlan, strange: &[&Signature]) -> Diagnostic {
    let mut kinds: Vec<_> = strange.iter().map(|signature| signature.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let what = format!("disk `{}` holds {}", plan.kernel_name, kinds.join(", "));
    let seen = strange.iter().map(ToString::to_string);
    let hint =
        format!("if all of that may be destroyed, say `wipe: [{}]` of the disk", kinds.join(", "));
    let found = Diagnostic::new(Code::ForeignData, format!("disks.{}.wipe", plan.id), what);
    found.evidence(seen).hint(hint)
}

/// What is made of several disks.
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
            | Kind::Ceph
            | Kind::Drbd
    )
}

/// S6: a stack is taken apart only if all of it may be.
fn shared(context: &Context<'_>, layout: &mut Layout) -> Vec<Diagnostic> {
    // What goes together with a leg may be a leg of something else.
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

/// Where stacks reach that are destroyed: what forbids it, and legs that go with them.
fn reached(context: &Context<'_>, layout: &Layout) -> (Vec<Diagnostic>, Vec<(Id, Signature)>) {
    let mut found = Vec::new();
    let mut also: Vec<(Id, Signature)> = Vec::new();
    for plan in &layout.disks {
        for doomed in plan.destroys.iter().filter(|s| is_stack(s.kind) && s.uuid.is_some()) {
            for (disk, leg) in legs(context, doomed) {
                if disk.kernel_name == plan.kernel_name && leg == doomed {
                    continue;
                }
                let owner = layout.disks.iter().find(|plan| plan.kernel_name == disk.kernel_name);
                match owner {
                    Some(owner) if owner.destroys.contains(leg) => {}
                    Some(owner) if is_bare_leg(context, owner, leg) => {
                        also.push((owner.id.clone(), leg.clone()));
                    }
                    _ => found.push(refused_leg(plan, doomed, disk, leg)),
                }
            }
        }
    }
    (found, also)
}

/// A disk loses a leg, and with it what is in the same place. All else on it stays.
fn empty_of(context: &Context<'_>, plan: &mut DiskPlan, leg: &Signature) -> Option<Diagnostic> {
    let facts = context.fact(&plan.id)?;
    let wipe = &context.document.sections.disks.get(&plan.id)?.wipe;
    let Some(room) = room_of(facts, leg) else {
        let what = format!("disk `{}` has other partitions where its {leg} is", plan.kernel_name);
        let found = Diagnostic::new(Code::ForeignData, format!("disks.{}.wipe", plan.id), what);
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

/// Its partition, if nothing else is there too, or the disk.
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
    doomed: &Signature,
) -> impl Iterator<Item = (&'a DiskFacts, &'a Signature)> {
    let (kind, uuid) = (doomed.kind, doomed.uuid.clone());
    let disks = context.facts.disks.iter();
    let all = disks.flat_map(|disk| disk.signatures.iter().map(move |signature| (disk, signature)));
    all.filter(move |(_, signature)| signature.kind == kind && signature.uuid == uuid)
}

/// The disk was named for nothing but to be emptied of this.
fn is_bare_leg(context: &Context<'_>, owner: &DiskPlan, leg: &Signature) -> bool {
    let wipe = context.document.sections.disks.get(&owner.id).map(|disk| &disk.wipe);
    matches!(owner.work, Work::None) && wipe.is_some_and(|wipe| wipe.covers(leg.kind))
}

fn refused_leg(
    plan: &DiskPlan,
    doomed: &Signature,
    disk: &DiskFacts,
    leg: &Signature,
) -> Diagnostic {
    let name = doomed.label.as_deref().or(doomed.uuid.as_deref()).unwrap_or("?");
    let what = format!(
        "{} `{name}` on disk `{}` reaches to disk `{}`, of which it may not be destroyed",
        doomed.kind, plan.kernel_name, disk.kernel_name
    );
    let found = Diagnostic::new(Code::SharedStack, format!("disks.{}", plan.id), what);
    let seen = [doomed.to_string(), format!("{}: {leg}", identity(disk))];
    let hint = format!("name disk `{}`, too, with `wipe: [{}]`", disk.kernel_name, doomed.kind);
    found.evidence(seen).hint(hint)
}

/// S5: nobody uses it, but for stacks that are destroyed with what they lie on.
fn busy(context: &Context<'_>, plan: &mut DiskPlan, facts: &DiskFacts) -> Option<Diagnostic> {
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
            // Of a run of this very transaction that was killed: its partitions are in no table yet.
            BusyReason::Holder(holder)
                if is_in_no_table
                    && busy.device != facts.kernel_name
                    && is_at_work(context, facts) =>
            {
                plan.tears_down.push(holder.clone());
            }
            // What is there as it shall be is put together already. If anything is done to the disk,
            // it is stopped for as long as that takes.
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
    let found = Diagnostic::new(Code::Busy, format!("disks.{}", plan.id), what);
    Some(found.evidence(using).hint("unmount it, end swapping to it, or take apart what is on it"))
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

/// What stays in a partition is what the document says it is.
fn retained_contents(context: &Context<'_>, layout: &Layout) -> Vec<Diagnostic> {
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
                found.push(Diagnostic::new(Code::NotAsRetained, place, what).evidence(seen));
            }
        }
    }
    found
}

/// S8: an image fits into what it is written to.
fn images(context: &Context<'_>, layout: &Layout) -> Vec<Diagnostic> {
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
            let found_here = Diagnostic::new(Code::ImageTooLarge, format!("images.{id}"), what);
            found.push(found_here.hint("make its target larger"));
        }
    }
    found
}

/// What a program would refuse to make when the disk is wiped already.
fn too_small(context: &Context<'_>, layout: &Layout) -> Vec<Diagnostic> {
    let made = layout.stack.iter().filter(|plan| !plan.retained && plan.image.is_none());
    let told = made.filter_map(|plan| {
        let kind = context.document.storage(&plan.id)?.as_fs()?.kind;
        let least = match kind {
            FsKind::Xfs => 300 * MIB,
            FsKind::Btrfs => 109 * MIB,
            _ => return None,
        };
        let what = format!("{kind} needs {}, and has {}", Bytes(least), Bytes(plan.size));
        let found = Diagnostic::new(Code::NoRoom, format!("storage.{}", plan.id), what);
        (plan.size < least).then(|| found.hint("make what it lies on larger, or take ext4"))
    });
    told.collect()
}

/// S9: the machine can start what is installed.
fn firmware(context: &Context<'_>) -> Vec<Diagnostic> {
    let sections = &context.document.sections;
    let mut found = Vec::new();
    let mut say = |place: String, what: String, hint: &str| {
        found.push(Diagnostic::new(Code::Firmware, place, what).hint(hint));
    };
    let firmware = context.facts.firmware;
    for (id, image) in sections.images.iter() {
        let Some(disk) = context.fact(&image.target) else { continue };
        let place = format!("images.{id}");
        if let Some(sector) = image.sector_size.filter(|sector| *sector != disk.logical_sector) {
            let (name, is) = (&disk.kernel_name, disk.logical_sector);
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
            found.push(Diagnostic::new(Code::Firmware, "boot", what).hint(hint));
        }
    }
    found
}

fn is_part_for(node: &StorageNode, role: PartRole) -> bool {
    matches!(node, StorageNode::Part(part) if part.role == role)
}

/// S13: what the installed system finds by a name is there once.
fn duplicates(context: &Context<'_>, layout: &Layout) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut names: BTreeMap<(&str, String), &Id> = BTreeMap::new();
    for node in context.nodes() {
        let name = match node {
            // FAT has capitals only.
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
            found.push(Diagnostic::new(Code::Duplicate, format!("storage.{}", node.id()), what));
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
                // Arrays may carry whose they are.
                SignatureKind::Md => label.split_once(':').map_or(label, |(_, name)| name),
                _ => label,
            });
            let by_name = label.and_then(|label| names.get(&(name, label.to_owned())).copied());
            let is_uuid = |uuid: &str| layout.stack.iter().find(|s| s.uuid.to_string() == uuid);
            let by_uuid = signature.uuid.as_deref().and_then(is_uuid).map(|plan| &plan.id);
            // What stays by the document is what the document speaks of.
            let part = plan.and_then(|plan| retained_at(plan, disk, signature));
            let is_it =
                |id: &Id| part.is_some_and(|part| below(context.document, id).contains(part));
            if let Some(id) = by_name.or(by_uuid).filter(|id| !is_it(id)) {
                let what = format!("disk `{}` has its name or UUID already", disk.kernel_name);
                let hint = "give it another name, or name that disk with what of it to wipe";
                let place = format!("storage.{id}");
                let seen = [identity(disk), signature.to_string()];
                found.push(Diagnostic::new(Code::Duplicate, place, what).evidence(seen).hint(hint));
            }
        }
        found.extend(cloned(layout, plan, disk));
    }
    found
}

/// Whether somebody else's signature is still there afterwards.
fn remains(
    context: &Context<'_>,
    plan: Option<&DiskPlan>,
    disk: &DiskFacts,
    signature: &Signature,
) -> bool {
    let Some(plan) = plan else { return true };
    let is_untouched = matches!(plan.work, Work::None);
    !plan.destroys.contains(signature)
        && (is_untouched || !is_settled(context, plan, disk, signature))
}

/// The partition that stays and that a signature is in.
fn retained_at<'a>(plan: &'a DiskPlan, facts: &DiskFacts, signature: &Signature) -> Option<&'a Id> {
    let Work::Table(table) = &plan.work else { return None };
    let at = place_of(facts.table.as_ref(), signature);
    let mut kept = table.partitions.iter().filter(|part| part.retained);
    kept.find(|part| part.range().contains(&at)).map(|part| &part.id)
}

/// A partition with the PARTUUID of one that is made here.
fn cloned(layout: &Layout, plan: Option<&DiskPlan>, disk: &DiskFacts) -> Option<Diagnostic> {
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
    let found = Diagnostic::new(Code::Duplicate, format!("storage.{}", will.id), what);
    Some(found.evidence([identity(disk)]).hint("take that disk away, or erase it"))
}

/// S14: the system does not move to another disk unnoticed, by what the document says of the last
/// one and by what disks say of themselves.
fn moved_root(context: &Context<'_>) -> Option<Diagnostic> {
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
    let found = Diagnostic::new(Code::RootMoved, "node.last_root", what);
    let hint = "if that is wanted, `hoist provision start --allow-root-change` allows it for one \
                run, and `policy.allow_root_change` in the document for all";
    let was = had.into_iter().map(|disk| format!("it is on {}", identity(disk)));
    Some(found.evidence(was.chain(bound.into_iter().map(identity))).hint(hint))
}

/// Whether hoist has put this node's system on it. No machine starts from a loop device.
fn has_root(context: &Context<'_>, disk: &DiskFacts) -> bool {
    let node = context.document.node_id();
    let mut ours = disk.signatures.iter().filter_map(|signature| signature.ours.as_ref());
    disk.bus != Some(Bus::Loop)
        && !node.is_empty()
        && ours.any(|ours| ours.node == node && ours.has_root)
}
