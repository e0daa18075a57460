//! From a document and an observed machine to a plan of steps.
//!
//! Planning must not touch a device. The caller guarantees that nothing is written before the whole
//! plan exists, and that exactly the planned steps are carried out (the hash of the plan is
//! compared).
//!
//! [`decide`] lays the disks out, then runs the planners. Each planner reads the `PlanContext` and
//! the parts of earlier fragments that it names as parameters, and returns its own `Fragment`.
//! `Fragment::append` is the only place where fragments meet. The order of the planners is the
//! order of the steps, and part of the hash of the plan:
//!
//! 1. `plugins::reserve_disks` touches the disks of pending plug-in steps. A touched disk means
//!    that the run writes a new journal, so planners 4, 5, 7, 8 and 10 carry receipts into it.
//! 2. `disks::plan` wipes disks and creates file systems in partitions. Everything else is
//!    written into these partitions.
//! 3. `boot::reserve_disk` touches the boot disk if firmware variables change, so that a run that
//!    changes nothing else has a journal too.
//! 4. `stack::plan` builds arrays, volumes and encrypted devices on the partitions.
//! 5. `image::plan` writes images to partitions, stacked devices and whole disks, and grows their
//!    file systems.
//! 6. `drive::plan` makes the config drive.
//! 7. `files::plan` puts files into file systems, which exist or came with an image by now.
//! 8. `plugins::plan` runs plug-ins on partitions that have all their contents from hoist.
//! 9. `boot::plan` puts boot files and boot code in place. It needs the opened disks of planner 2:
//!    opening a disk clears its boot code.
//! 10. `image::carry_receipts` keeps the receipts of images that this run does not queue. It
//!     needs to know whether any planner before it touched a disk.
//! 11. `stack::stop` stops the stacked devices that planners 4, 5 and 7 assembled. No later step
//!     writes to them.
//! 12. `disks::close` writes the final tables of the opened disks. A disk has its table only when
//!     everything on it is durable.
//! 13. `boot::plan_firmware` sets the firmware variables, when the system that they start is
//!     durable.
//!
//! A planner must not depend on a later one. Facts that several planners need (which devices exist,
//! which get a new file system) are derived from the inputs in `PlanContext::new`.

pub mod boot;
mod context;
pub mod detached;
mod disks;
pub mod drive;
pub mod erase;
mod files;
mod fragment;
mod image;
mod needed;
mod observed;
mod plugins;
mod show;
mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hoist_engine::action::Planner;
use hoist_engine::plan::{Draft, Plan, StepId};
use hoist_engine::record::Record;
use serde::Deserialize as _;
use serde_json::Value;

use crate::bind::lasting;
use crate::claim::{BuiltinClaim, resolve};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::digest::Digest;
use crate::document::{Bytes, DiskMatch, Document, Flow, Id};
use crate::layout::{
    self, Difference, DiskPlan, Entry, Layout, PartitionPlan, TableChange, TablePlan, Work,
};
use crate::manifest::Manifest;
use crate::metadata_area::Marker;
use crate::steps::disks::Task;
use crate::steps::files::Texts;
use crate::steps::stack::Stacks;
use crate::steps::{
    boot as boot_steps, config_drive, disks as disk_steps, erase as erase_steps,
    files as file_steps, images as image_steps,
};

use context::{PlanContext, WriteTarget};
use fragment::{Fragment, in_sequence};

pub use needed::needed_tools;
pub use observed::{
    AvailablePrograms, DiskMetadata, ObservedBoot, ObservedDisks, ObservedImages, ObservedMachine,
};
pub use show::{Becomes, FileChange, FirmwareChange, PlanView, StepView};

/// The built-in actions.
pub const ACTIONS: [&str; 6] = [
    disk_steps::NAME,
    image_steps::NAME,
    config_drive::NAME,
    file_steps::NAME,
    boot_steps::NAME,
    erase_steps::NAME,
];

/// Final actions after all steps; the caller of the plan carries them out.
pub const ENDINGS: [&str; 2] = ["report", "reboot"];

/// The plan for a machine, with everything needed to carry it out.
#[derive(Debug)]
pub struct ProvisionPlan {
    /// The document, with the contributions of all actions and the sizes of images.
    pub document: Document,
    pub layout: Layout,
    pub plan: Arc<Plan>,
    /// Receipts of steps whose result is already on the disks.
    pub done: BTreeMap<StepId, Value>,
    pub disks: PlannedDisks,
    pub changes: PlannedChanges,
    pub inputs: StepInputs,
    /// Images and boot files whose sources did not answer. The plan must not be carried out before
    /// they do.
    pub unanswered: Vec<ProvisionDiagnostic>,
    /// Sources that failed, of images with another source that answered.
    pub silent_sources: Vec<String>,
    /// The plan is for a machine that is known by its facts only, so it cannot be applied.
    pub is_elsewhere: bool,
    hash: String,
    hash_without_teardown: String,
}

/// The disks of a plan.
#[derive(Debug)]
pub struct PlannedDisks {
    /// Disks whose tables are replaced.
    pub opened: BTreeMap<Id, OpenedDisk>,
    /// Disks that the run must hold.
    pub touched: BTreeSet<Id>,
    /// Lasting matches of the disks that hold the installed system.
    pub roots: Vec<DiskMatch>,
}

/// Changes that are shown besides the layout and the steps.
#[derive(Debug)]
pub struct PlannedChanges {
    pub files: Vec<FileChange>,
    pub firmware: Option<FirmwareChange>,
}

/// Inputs of actions that are too large or too shared to be part of a step.
#[derive(Debug)]
pub struct StepInputs {
    /// Chunk manifests by image.
    pub manifests: BTreeMap<Id, Manifest>,
    /// Texts of files.
    pub texts: Texts,
    pub stacks: Stacks,
}

/// A disk whose table is replaced. The disk has an in-progress table until its step `close`.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedDisk {
    pub table: TablePlan,
    pub kept: Vec<PartitionPlan>,
    /// Ranges of old partitions whose contents are destroyed.
    pub to_destroy: Vec<Range<u64>>,
    pub becomes: FinalContent,
    /// The marker of an earlier run.
    pub marker: Option<Marker>,
}

/// The final content of an opened disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalContent {
    /// The planned table.
    Table,
    /// The table of an image.
    Image,
    /// Nothing: the disk stays empty.
    Nothing,
}

impl ProvisionPlan {
    /// The hash of all steps, and of all observations that the layout depends on.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The hash of the plan without the stacks to tear down. Old stacks are stopped before the
    /// disks are locked, so a plan made after that must have the same hash.
    pub fn hash_without_teardown(&self) -> &str {
        &self.hash_without_teardown
    }

    /// The plan, if every image and every boot file has a source that answered.
    pub fn answered(self) -> Result<Self, Vec<ProvisionDiagnostic>> {
        if self.unanswered.is_empty() { Ok(self) } else { Err(self.unanswered) }
    }

    /// Whether the machine is as desired.
    pub fn is_settled(&self) -> bool {
        self.disks.touched.is_empty()
    }
}

/// The document with only these actions queued. The others keep their claims.
pub fn with_actions(mut document: Document, actions: &[String]) -> Document {
    if !actions.is_empty() {
        let flow = document.sections.flow.take().unwrap_or_default();
        let left_out = flow.actions.unwrap_or_default();
        let actions = Some(actions.to_vec());
        document.sections.flow = Some(Flow { actions, left_out, ..flow });
    }
    document
}

/// Makes the plan for a machine, or returns every reason against it.
pub fn decide(
    document: &Document,
    machine: &ObservedMachine,
) -> Result<ProvisionPlan, Vec<ProvisionDiagnostic>> {
    let mut plan = Fragment::default();
    plan.diagnostics.extend(check_actions(document, machine));
    plan.diagnostics.extend(plugins::check(document, machine));
    plan.diagnostics.extend(machine.diagnostics.iter().cloned());
    let (document, layout) = match lay_out(document, machine) {
        Ok(laid_out) => laid_out,
        Err(more) => {
            plan.diagnostics.extend(more);
            return Err(plan.diagnostics);
        }
    };
    let plugin_steps = plugins::steps(&document, &layout, machine).unwrap_or_else(|refused| {
        plan.diagnostics.extend(refused);
        Vec::new()
    });
    let context = PlanContext::new(&document, &layout, machine, plugin_steps);
    plan.append(plugins::reserve_disks(&context));
    plan.append(disks::plan(&context));
    plan.append(boot::reserve_disk(&context));
    plan.append(stack::plan(&context, &plan.touched));
    plan.append(image::plan(&context, &plan.touched));
    plan.append(drive::plan(&context));
    plan.append(files::plan(&context, &plan.touched));
    plan.append(plugins::plan(&context, &plan.touched));
    plan.append(boot::plan(&context, &plan.opened));
    plan.append(image::carry_receipts(&context, &plan.touched));
    plan.append(stack::stop(&context, &plan.assembled));
    plan.append(disks::close(&plan.opened));
    plan.append(boot::plan_firmware(&context));
    plan.diagnostics.extend(check_tools(&context, &plan));
    if plan.diagnostics.is_empty() { finish(&context, plan) } else { Err(plan.diagnostics) }
}

/// Makes the plan of the combined fragments.
fn finish(
    context: &PlanContext<'_>,
    fragment: Fragment,
) -> Result<ProvisionPlan, Vec<ProvisionDiagnostic>> {
    let Fragment { steps, opened, touched, .. } = fragment;
    let (vertices, done) = in_sequence(steps);
    let plan = Plan::new(Draft { vertices, ..Draft::default() }).map_err(|error| {
        vec![ProvisionDiagnostic::new(Code::Contradiction, "", error.to_string())]
    })?;
    let layout = final_layout(context, &touched);
    let mut without_teardown = layout.clone();
    without_teardown.disks.iter_mut().for_each(|disk| disk.tears_down.clear());
    let roots = layout::disks_of_root(context.document);
    let roots = lasting(&roots, context.document, &context.machine.facts);
    let manifests = context.machine.images.manifests.iter();
    Ok(ProvisionPlan {
        document: context.document.clone(),
        done,
        disks: PlannedDisks { opened, touched, roots },
        changes: PlannedChanges {
            files: show::file_changes(context),
            firmware: show::firmware_change(context),
        },
        inputs: StepInputs {
            manifests: manifests.map(|(id, (_, list))| (id.clone(), list.clone())).collect(),
            texts: files::texts(context),
            stacks: context.stacks.clone(),
        },
        unanswered: image::unanswered(context)
            .into_iter()
            .chain(boot::unanswered(context))
            .collect(),
        silent_sources: image::silent_sources(context),
        is_elsewhere: context.machine.is_elsewhere,
        hash: hash(&plan, &layout),
        hash_without_teardown: hash(&plan, &without_teardown),
        plan: Arc::new(plan),
        layout,
    })
}

/// The images that are still to be written, as far as they are known before their sources are asked.
/// `None` if there is no layout.
pub fn images_to_write(document: &Document, machine: &ObservedMachine) -> Option<BTreeSet<Id>> {
    let (document, layout) = lay_out(document, machine).ok()?;
    let context = PlanContext::new(&document, &layout, machine, Vec::new());
    Some(image::unwritten_ids(&context))
}

/// The document with the contributions of all actions, and the layout of its disks.
pub fn lay_out(
    document: &Document,
    machine: &ObservedMachine,
) -> Result<(Document, Layout), Vec<ProvisionDiagnostic>> {
    let document = &erase::without_contents(document);
    // The tables have the partitions of all actions, queued or not: an action that is left out this
    // time has its partition already, or gets it for the next time.
    let own = BuiltinClaim::ALL.iter().map(|need| need as &dyn Planner);
    let others = plugins::claiming(document, machine);
    let others = others.iter().map(|plugin| &***plugin as &dyn Planner);
    let resolved = resolve(document, own.chain(others), &machine.facts)?;
    let sized = with_image_sizes(resolved, machine);
    let mut layout = layout::plan(&sized, &machine.facts)?;
    detached::resume(&sized, &mut layout, machine);
    Ok((sized, layout))
}

fn hash(plan: &Plan, layout: &Layout) -> String {
    let bytes = serde_json::to_vec(&(plan.hash(), layout)).expect("a plain value");
    let text = Digest::of(&bytes).to_string();
    text.strip_prefix("sha256:").unwrap_or(&text).to_owned()
}

/// The layout without changes that the plan does not make: an untouched disk keeps its stacks, and
/// an untouched disk of an image keeps its table.
fn final_layout(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Layout {
    let mut layout = context.layout.clone();
    for plan in &mut layout.stack {
        plan.is_there = show::is_there(context, plan);
    }
    for disk in layout.disks.iter_mut().filter(|disk| !touched.contains(&disk.id)) {
        disk.tears_down.clear();
        if matches!(disk.work, Work::Image(_)) {
            let table = context.disk_facts(disk).and_then(|facts| facts.table.as_ref());
            let parts = table.map_or(&[][..], |table| &table.partitions);
            let kept = |part| {
                let entry = Some(Entry::from(part));
                TableChange { what: Difference::Kept, before: entry.clone(), after: entry }
            };
            disk.changes = parts.iter().map(kept).collect();
            disk.destroys.clear();
        }
    }
    layout
}

/// Refuses requested actions that this program does not have.
fn check_actions(document: &Document, machine: &ObservedMachine) -> Vec<ProvisionDiagnostic> {
    let sections = &document.sections;
    let asked = [
        ("boot", sections.boot.is_some()),
        ("config_drive", sections.config_drive.is_some()),
        ("files", !sections.files.is_empty()),
        ("erase", sections.erase.is_some()),
    ];
    let queued = document.actions();
    let by_section = asked
        .into_iter()
        .filter(|(name, is_asked)| *is_asked && queued.is_none() && !ACTIONS.contains(name));
    let is_known = |name: &&str| ENDINGS.contains(name) || plugins::is_available(name, machine);
    let by_flow =
        queued.unwrap_or_default().iter().map(String::as_str).filter(|name| !is_known(name));
    let names: BTreeSet<&str> = by_section.map(|(name, _)| name).chain(by_flow).collect();
    let unsupported = |name: &str| {
        let what = format!("action `{name}` is not in this program");
        let hint = format!("run the others alone: `--only {}`", ACTIONS.join(","));
        let refused = ProvisionDiagnostic::new(Code::Unsupported, "flow.actions", what).hint(hint);
        refused.evidence(machine.programs.unusable.clone())
    };
    names.into_iter().map(unsupported).collect()
}

/// Adds image sizes that the document leaves out, from manifests and qcow2 headers.
fn with_image_sizes(mut document: Document, machine: &ObservedMachine) -> Document {
    for (id, image) in &mut document.sections.images.0 {
        if let Some((_, manifest)) = machine.images.manifests.get(id) {
            image.size.get_or_insert(Bytes(manifest.size));
        }
        if let Some(size) = machine.images.virtual_sizes.get(id) {
            image.size.get_or_insert(Bytes(*size));
        }
    }
    document
}

/// Refuses a plan whose programs are not installed.
fn check_tools(context: &PlanContext<'_>, plan: &Fragment) -> Vec<ProvisionDiagnostic> {
    let nodes = stack::assembled_nodes(context, &plan.assembled);
    let for_nodes = nodes.iter().map(|node| (node.tool(), &node.id));
    let for_file_systems = plan.tools.iter().map(|(tool, id)| (tool.as_str(), id));
    let tools: BTreeMap<&str, &Id> = for_nodes.chain(for_file_systems).collect();
    let installed = &context.machine.programs.tools;
    let missing = tools.into_iter().filter(|(tool, _)| !installed.contains(*tool));
    let refused = missing.map(|(tool, id)| {
        let what = format!("the program `{tool}` is not installed");
        let drivers = nodes.iter().find(|node| node.tool() == tool).map(|node| node.drivers());
        let drivers = drivers.map(|drivers| format!(" --with {drivers}")).unwrap_or_default();
        let hint = format!(
            "install it, or put it into the agent's image: `hoist agent image --tools \
             {tool}{drivers} …`; nothing was written"
        );
        ProvisionDiagnostic::new(Code::MissingTool, format!("storage.{id}"), what).hint(hint)
    });
    refused.collect()
}

/// Stack nodes that earlier attempts of this run had started to create. All others existed before
/// the run and must not be removed.
pub fn started_nodes(plan: &Plan, records: &[Record]) -> Vec<Digest> {
    let steps = records.iter().filter_map(|record| match record {
        Record::Intent { step, .. } => plan.step(*step),
        _ => None,
    });
    let nodes = steps.filter_map(|step| match Task::deserialize(&step.call.input) {
        Ok(Task::Build { node }) => Some(node.fingerprint()),
        _ => None,
    });
    nodes.collect()
}

/// Whether a partition already exists and keeps its contents.
pub fn is_kept(disk: &DiskPlan, part: &PartitionPlan) -> bool {
    disk.changes.iter().any(|change| {
        let after = change.after.as_ref();
        change.what.keeps_contents() && after.and_then(|a| a.partuuid) == Some(part.partuuid)
    })
}

#[cfg(test)]
mod tests;
