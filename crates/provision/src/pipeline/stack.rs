//! What is made of partitions: what of it is there, and what is to be made.

use std::collections::BTreeSet;
use std::ops::Range;

use super::erase::is_erased;
use super::{Notes, Planning, as_value, is_kept};
use crate::actions::Place;
use crate::actions::disks::{self, Making, Task};
use crate::actions::stack::{Node, Receipt, What};
use crate::device::table::{DOOMED, FIRST_PARTITION, Geometry, IN_PROGRESS};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Fs, Id, StorageNode};
use crate::facts::{PartitionFacts, Signature, SignatureKind, SignaturePlace};
use crate::images::Digest;
use crate::layout::{DiskPlan, PartitionPlan, StackPlan};

impl<'a> Planning<'a> {
    fn planned(&self, id: &Id) -> Option<&'a StackPlan> {
        self.layout.stack.iter().find(|plan| plan.id == *id)
    }

    fn built(&self, id: &Id, task: &Digest) -> Option<&'a Receipt> {
        let mut built = self.seen.notes.values().flat_map(|notes| &notes.built);
        built.find(|receipt| receipt.made == *id && receipt.task == *task)
    }

    /// Whether a partition, or what is made of partitions, is there as it shall be.
    pub(super) fn stands(&self, id: &Id) -> bool {
        let part = self.layout.partition(id).map(|(disk, part)| is_kept(disk, part));
        part.unwrap_or_else(|| self.standing.contains(id))
    }

    /// What is made of partitions and is there. Only what is on the partitions themselves can be seen
    /// while it is not put together; what lies on that is known by what says that it was made.
    pub(super) fn find_standing(&mut self) {
        for node in &self.stacks.nodes {
            let is_there = self.built(&node.id, &node.fingerprint()).is_some()
                && node.on.iter().all(|on| self.stands(on) && self.is_marked_as(node, on));
            if is_there {
                self.standing.insert(node.id.clone());
            }
        }
    }

    /// Whether a partition says of itself what it is a part of; others say nothing to us.
    fn is_marked_as(&self, node: &Node, on: &Id) -> bool {
        let Some((disk, part)) = self.layout.partition(on) else { return true };
        let is_it = |found: &Signature| {
            let is_uuid = found.uuid.as_ref() == Some(&node.uuid.to_string());
            match node.what {
                What::Md => found.kind == SignatureKind::Md && is_uuid,
                What::Luks { .. } => found.kind == SignatureKind::Luks && is_uuid,
                What::Pv => found.kind == SignatureKind::Lvm,
                What::Vg { .. } | What::Lv { .. } => true,
            }
        };
        let place = SignaturePlace::Partition(part.number);
        let found = self.facts(disk).map_or(&[][..], |facts| &facts.signatures);
        found.iter().any(|found| found.place == place && is_it(found))
    }

    /// What is made here and is not there.
    fn missing(&self) -> Vec<&Node> {
        let is_ours = |node: &&Node| self.planned(&node.id).is_some_and(|plan| !plan.retained);
        let nodes = self.stacks.nodes.iter().filter(is_ours);
        nodes.filter(|node| !self.stands(&node.id)).collect()
    }

    /// Whether something is made of a partition that is not there now.
    pub(super) fn is_built_on(&self, part: &Id) -> bool {
        self.missing().iter().any(|node| node.on.contains(part))
    }

    /// File systems on what is made of partitions.
    fn stacked(&self) -> Vec<(&'a StackPlan, &'a Fs)> {
        let all = self.layout.stack.iter().filter_map(|plan| {
            let fs = self.document.storage(&plan.id).and_then(StorageNode::as_fs)?;
            let is_stacked = self.layout.partition(&fs.on).is_none();
            (is_stacked && !plan.retained && plan.image.is_none()).then_some((plan, fs))
        });
        all.collect()
    }

    fn making(plan: &StackPlan, fs: &Fs) -> Task {
        let making = Making::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
        Task::Make { place: Place::Device(fs.on.clone()), fs: making }
    }

    pub(super) fn has_file_system(&self, plan: &StackPlan, fs: &Fs) -> bool {
        self.stands(&fs.on) && self.built(&fs.id, &Self::making(plan, fs).fingerprint()).is_some()
    }

    /// Whether anything is still to be made of the partitions of a disk.
    pub(super) fn needs_stack(&self, disk: &Id) -> bool {
        let is_on = |id: &Id| self.stacks.disks_below(id).contains(disk);
        self.missing().iter().any(|node| is_on(&node.id))
            || self
                .stacked()
                .iter()
                .any(|(plan, fs)| is_on(&fs.on) && !self.has_file_system(plan, fs))
    }

    /// It has to be put together, on disks that nobody else has.
    pub(super) fn raise(&mut self, id: &Id) {
        self.touched.extend(self.stacks.disks_below(id).iter().cloned());
        self.raised.insert(id.clone());
    }

    /// Each behind what it lies on. What is there goes on into the next journal, if there is one.
    pub(super) fn stacks(&mut self) {
        for node in self.stacks.nodes.clone() {
            if self.planned(&node.id).is_none_or(|plan| plan.retained && !self.stands(&node.id)) {
                continue;
            }
            let is_there = self.stands(&node.id);
            if is_there && self.touched.is_empty() {
                continue;
            }
            let receipt = self.built(&node.id, &node.fingerprint()).filter(|_| is_there).cloned();
            if receipt.is_none() {
                self.raise(&node.id);
            }
            let kind = self.planned(&node.id).map_or("", |plan| &plan.kind);
            let on: Vec<_> = node.on.iter().map(Id::as_str).collect();
            let name = format!("make {kind} {} of {}", node.id, on.join(" and "));
            let id = self.step(name, disks::NAME, Task::Build { node }, true);
            self.done.extend(receipt.map(|receipt| (id, as_value(&receipt))));
        }
        for (plan, fs) in self.stacked() {
            let is_there = self.has_file_system(plan, fs);
            if is_there && self.touched.is_empty() {
                continue;
            }
            let task = Self::making(plan, fs);
            let receipt = self.built(&fs.id, &task.fingerprint()).filter(|_| is_there).cloned();
            if receipt.is_none() {
                self.raise(&fs.on);
                self.makes.push(Making::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref()));
            }
            let name = format!("make {} {} in {}", fs.kind, fs.id, fs.on);
            let id = self.step(name, disks::NAME, task, true);
            self.done.extend(receipt.map(|receipt| (id, as_value(&receipt))));
        }
    }

    /// When nothing more comes to it. The installed system puts it together by itself.
    pub(super) fn stop(&mut self) {
        let below = self.raised.iter().flat_map(|id| self.stacks.disks_below(id));
        let disks: BTreeSet<Id> = below.cloned().collect();
        if disks.is_empty() {
            return;
        }
        let names: Vec<_> = disks.iter().map(Id::as_str).collect();
        let name = format!("stop what was made of {}", names.join(" and "));
        self.step(name, disks::NAME, Task::Stop { disks }, true);
    }

    /// Everything that is put together on the way.
    pub(super) fn raised_nodes(&self) -> Vec<&Node> {
        let (mut waiting, mut seen) = (self.raised.iter().cloned().collect::<Vec<_>>(), Vec::new());
        while let Some(id) = waiting.pop() {
            let Some(node) = self.stacks.node(&id) else { continue };
            if !seen.iter().any(|known: &&Node| known.id == id) {
                waiting.extend(node.on.iter().cloned());
                seen.push(node);
            }
        }
        seen.sort_by(|a, b| a.id.cmp(&b.id));
        seen
    }

    /// Whether this transaction has made it, and what it lies on still has it, but not as it shall be
    /// now, or not all of it. Nothing on the disks would say what is lost with it.
    fn holds_other(&self, node: &Node) -> bool {
        let is_ours = |notes: &&Notes| {
            notes.marker.as_ref().is_none_or(|marker| marker.txn == self.document.txn)
        };
        let mut built = self.seen.notes.values().filter(is_ours).flat_map(|notes| &notes.built);
        built.any(|receipt| receipt.made == node.id)
            && node.on.iter().any(|on| self.stands(on) && self.is_marked_as(node, on))
    }

    fn losses(&self) -> Vec<Diagnostic> {
        let lost = self.missing().into_iter().filter(|node| self.holds_other(node));
        let say = |node: &Node| {
            let what = "it was made before, and not as the document has it now: made anew, it would \
                        lose all that it holds";
            let hint = "leave it as it was, say `retain` of it and of what lies on it, or install \
                        anew, with another `txn` and with `wipe`";
            Diagnostic::new(Code::ForeignData, format!("storage.{}", node.id), what).hint(hint)
        };
        lost.map(say).collect()
    }

    /// What cannot be put together, or would be lost.
    pub(super) fn refused_stacks(&self) -> Vec<Diagnostic> {
        let mut found = self.losses();
        for node in self.raised_nodes() {
            let mut say = |field: &str, what: String, hint: &str| {
                let place = format!("storage.{}{field}", node.id);
                found.push(Diagnostic::new(Code::Unsupported, place, what).hint(hint));
            };
            let is_kept = self.planned(&node.id).is_some_and(|plan| plan.retained);
            if is_kept && !self.stands(&node.id) {
                let what = "it stays as it is, and nothing says that hoist made it, so it is not \
                            put together"
                    .to_owned();
                say("", what, "write only to what the document makes");
            }
            if let What::Luks { key } = &node.what
                && !self.seen.secrets.has(key)
            {
                let what = format!("`{key}` is not known here");
                say(".key", what, "by hand, name the directory of its file with --secrets");
            }
        }
        found
    }

    /// Partitions that something was in that is destroyed. Where they were nothing may be found later,
    /// also if other partitions begin elsewhere. When the work has begun, the table says where they
    /// were, and these are the same ranges: a run that is cut off knows its own plan again.
    pub(super) fn old_legs(&self, disk: &DiskPlan, kept: &[&PartitionPlan]) -> Vec<Range<u64>> {
        // Of what is erased nothing is left, and nothing says what was there.
        if kept.is_empty() && is_erased(self.document, &disk.id) {
            return Vec::new();
        }
        let table = self.facts(disk).and_then(|facts| facts.table.as_ref());
        let numbers: BTreeSet<SignaturePlace> =
            disk.destroys.iter().map(|signature| signature.place).collect();
        let parts = table.map_or(&[][..], |table| &table.partitions).iter();
        // What only says that somebody is at work is no place of anything.
        let parts = parts.filter(|part| part.type_guid != Some(IN_PROGRESS));
        let doomed = parts.filter(|part| {
            part.type_guid == Some(DOOMED)
                || numbers.contains(&SignaturePlace::Partition(part.number))
        });
        let is_free = |range: &Range<u64>| {
            let is_writable = |w: &Range<u64>| w.start <= range.start && range.end <= w.end;
            let overlaps = |part: &&&PartitionPlan| {
                part.start < range.end && range.start < part.start + part.len
            };
            disk.writable.iter().any(is_writable) && !kept.iter().any(|part| overlaps(&part))
        };
        let first = kept.iter().map(|part| part.start).min().unwrap_or(FIRST_PARTITION);
        let first = first.min(FIRST_PARTITION);
        let last = Geometry { size: disk.size, sector: disk.sector.into() }.usable().end;
        // Before and behind these are the table and the notes of the run, whatever was there.
        let within = |range: Range<u64>| range.start.max(first)..range.end.min(last);
        apart(doomed.map(PartitionFacts::range).filter(is_free).map(within).collect())
    }
}

/// Ranges that do not overlap, with every beginning and every end of these.
fn apart(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
    let edges: BTreeSet<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
    let pieces = edges.iter().zip(edges.iter().skip(1)).map(|(start, end)| *start..*end);
    let is_of_one =
        |piece: &Range<u64>| ranges.iter().any(|r| r.start <= piece.start && piece.end <= r.end);
    pieces.filter(is_of_one).collect()
}
