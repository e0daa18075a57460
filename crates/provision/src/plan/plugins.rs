//! Plug-ins: selecting them for a document, and planning their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_engine::action::{Ability, Action as _, Document as Shared, Planner as _};
use hoist_engine::plan::Step;
use hoist_engine::plugin::{Isolation, MAX_SECRETS, Plugin};
use serde_json::{Value, json};

use super::context::PlanContext;
use super::fragment::{Fragment, PlannedStep};
use super::{ACTIONS, ObservedMachine, is_kept};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{Document, Id, StorageNode};
use crate::layout::{Layout, Work};
use crate::steps::disks;
use crate::steps::plugin::{self, Task};

/// Most steps of one plug-in.
const MAX_STEPS: usize = 64;

/// The field of an input that names the devices of its step.
const DEVICES: &str = "devices";

/// A step that a plug-in asks for.
#[derive(Debug, Clone)]
pub(super) struct PluginStep {
    plugin: String,
    verifies: bool,
    skips: bool,
    timeout_ms: Option<u64>,
    task: Task,
}

/// Whether the document has a section of a plug-in.
fn has_section(document: &Document, plugin: &Plugin) -> bool {
    let about = plugin.describe();
    let mut sections = about.reads.iter().chain(&about.writes);
    sections.any(|name| document.sections.third_party.contains_key(name))
}

/// The plug-ins that the queue names. Without a queue, the plug-ins whose sections are present.
pub(super) fn queued<'a>(
    document: &Document,
    machine: &'a ObservedMachine,
) -> Vec<&'a Arc<Plugin>> {
    let is_queued = |plugin: &Plugin| match document.actions() {
        None => has_section(document, plugin),
        Some(named) => named.contains(&plugin.describe().name),
    };
    machine.programs.plugins.iter().filter(|plugin| is_queued(plugin)).collect()
}

/// The plug-ins that may claim partitions: also those that are not queued this time.
pub(super) fn claiming<'a>(
    document: &Document,
    machine: &'a ObservedMachine,
) -> Vec<&'a Arc<Plugin>> {
    let is_named = |name: &str| {
        document.leaves_out(name)
            || document.actions().is_some_and(|queued| queued.iter().any(|known| known == name))
    };
    let is_claiming =
        |plugin: &Plugin| has_section(document, plugin) || is_named(&plugin.describe().name);
    machine.programs.plugins.iter().filter(|plugin| is_claiming(plugin)).collect()
}

/// Refuses sections that no action reads, and plug-ins that cannot be isolated from other disks.
pub(super) fn check(document: &Document, machine: &ObservedMachine) -> Vec<ProvisionDiagnostic> {
    let mut found = Vec::new();
    // Without its plug-in, the partitions that a section needs are unknown.
    let is_needed = document.actions().is_none() || document.is_queued(disks::NAME);
    let is_read = |section: &String| {
        let mut all = machine.programs.plugins.iter().map(|plugin| plugin.describe());
        all.any(|about| about.reads.contains(section) || about.writes.contains(section))
    };
    let unread = document.sections.third_party.keys().filter(|name| is_needed && !is_read(name));
    for section in unread {
        let what = format!("no action here reads the section `{section}`");
        let hint = "put its plug-in into the plug-in directory, or remove the section";
        let told = ProvisionDiagnostic::new(Code::Unsupported, section.clone(), what).hint(hint);
        found.push(told.evidence(machine.programs.unusable.clone()));
    }
    for plugin in queued(document, machine) {
        if let Isolation::None { why } | Isolation::Missing { why } = plugin.isolation() {
            let name = plugin.describe().name;
            let what = format!("plug-in `{name}` would have every disk of this machine: {why}");
            let hint =
                "a plug-in on disks needs namespaces of its own: unshare(1), setpriv(1), root";
            found
                .push(ProvisionDiagnostic::new(Code::MissingTool, "flow.actions", what).hint(hint));
        }
    }
    found
}

/// Whether an action is built in or offered by a plug-in.
pub(super) fn is_available(name: &str, machine: &ObservedMachine) -> bool {
    ACTIONS.contains(&name)
        || machine.programs.plugins.iter().any(|plugin| plugin.describe().name == name)
}

/// The steps of the queued plug-ins, or all diagnostics about them.
pub(super) fn steps(
    document: &Document,
    layout: &Layout,
    machine: &ObservedMachine,
) -> Result<Vec<PluginStep>, Vec<ProvisionDiagnostic>> {
    let mut all = Vec::new();
    let mut found = Vec::new();
    let sections = serde_json::to_value(&document.sections).unwrap_or_default();
    let shared: Shared = serde_json::from_value(sections).unwrap_or_default();
    let observed = observed(layout);
    for plugin in queued(document, machine) {
        let about = plugin.describe();
        let say = |what: String| {
            ProvisionDiagnostic::new(Code::Contribution, format!("plugin.{}", about.name), what)
        };
        let steps = match plugin.plan(&shared, &observed) {
            Ok(steps) if steps.len() > MAX_STEPS => {
                let what =
                    format!("{} steps are wanted; at most {MAX_STEPS} are taken", steps.len());
                found.push(say(what));
                continue;
            }
            Ok(steps) => steps,
            Err(failure) => {
                found.push(say(failure.reason));
                continue;
            }
        };
        for step in steps {
            let diagnostics = plugin.validate(&step.call.input);
            let diagnostics = diagnostics.into_iter().map(|diagnostic| {
                let at = if diagnostic.at.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", diagnostic.at)
                };
                let mut found = say(format!("{at}{}", diagnostic.message));
                found.diagnostic.hint = diagnostic.hint;
                found
            });
            found.extend(diagnostics);
            match task(document, layout, &about.name, &about.version, &step) {
                Ok(task) => all.push(PluginStep {
                    plugin: about.name.clone(),
                    verifies: about.can.contains(&Ability::Verify),
                    skips: about.skip_when_verified,
                    timeout_ms: step.timeout_ms,
                    task,
                }),
                Err(what) => found.push(say(what)),
            }
        }
    }
    if found.is_empty() { Ok(all) } else { Err(found) }
}

/// The disks and partitions that a plug-in finds when its step runs.
fn observed(layout: &Layout) -> Value {
    let disks: BTreeMap<&Id, Value> = layout
        .disks
        .iter()
        .map(|disk| {
            let about = json!({
                "kernel_name": disk.kernel_name, "size": disk.size, "sector": disk.sector,
            });
            (&disk.id, about)
        })
        .collect();
    let mut partitions: BTreeMap<&Id, Value> = BTreeMap::new();
    for disk in &layout.disks {
        let Work::Table(table) = &disk.work else { continue };
        for part in &table.partitions {
            let about = json!({
                "disk": disk.id, "number": part.number, "size": part.len,
                "partuuid": part.partuuid, "name": part.name,
            });
            partitions.insert(&part.id, about);
        }
    }
    json!({"disks": disks, "partitions": partitions})
}

/// The task of a step, or the reason why the step is refused.
fn task(
    document: &Document,
    layout: &Layout,
    name: &str,
    version: &str,
    step: &Step,
) -> Result<Task, String> {
    if step.call.action != name {
        return Err(format!(
            "the plug-in asks for a step of `{}`; a plug-in can only do its own steps",
            step.call.action
        ));
    }
    let input = &step.call.input;
    let named = input.get(DEVICES).and_then(Value::as_object).filter(|named| !named.is_empty());
    let named = named.ok_or("the step names no devices; add `devices` with a name for each")?;
    if named.len() > MAX_SECRETS {
        return Err(format!(
            "{} devices are named; at most {MAX_SECRETS} can be lent",
            named.len()
        ));
    }
    let mut disks = Vec::new();
    let mut devices = BTreeMap::new();
    for (name, id) in named {
        let id: Id = id
            .as_str()
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| format!("`devices.{name}` is no id of the document"))?;
        let fs = document.storage(&id).and_then(StorageNode::as_fs);
        let (disk, part) = if let Some((disk, part)) = layout.partition(fs.map_or(&id, |fs| &fs.on))
        {
            let is_retained = !disk
                .writable
                .iter()
                .any(|range| range.start <= part.start && part.start + part.len <= range.end);
            if is_retained {
                return Err(format!("`{id}` is retained and must not be written"));
            }
            (disk, Some(part.id.clone()))
        } else if let Some(disk) = layout.disks.iter().find(|disk| disk.id == id) {
            (disk, None)
        } else {
            return Err(format!(
                "`devices.{name}`: `{id}` is no partition and no disk of this run"
            ));
        };
        disks.push(disk);
        devices.insert(name.clone(), part);
    }
    let disk = disks[0];
    if disks.iter().any(|other| other.id != disk.id) {
        return Err("its devices are on several disks; make a step for each disk".to_owned());
    }
    let table = match &disk.work {
        Work::Table(table) => Some(table.clone()),
        _ => None,
    };
    let input = input.clone();
    let version = version.to_owned();
    let disk = disk.id.clone();
    Ok(Task { input, version, disk, table, devices })
}

/// The receipt of a finished step whose partitions still exist.
fn receipt<'a>(context: &PlanContext<'a>, step: &PluginStep) -> Option<&'a plugin::Receipt> {
    let fingerprint = step.task.fingerprint();
    let mut receipts = context.all_metadata().flat_map(|metadata| &metadata.plugins);
    let is_kept =
        |id: &Id| context.layout.partition(id).is_some_and(|(disk, part)| is_kept(disk, part));
    let exist = step.task.partitions().all(is_kept);
    receipts.find(|receipt| receipt.task == fingerprint).filter(|_| exist)
}

/// Whether a plug-in is still to write to a partition of this disk.
pub(super) fn is_pending(context: &PlanContext<'_>, disk: &Id) -> bool {
    let mut steps = context.plugin_steps.iter().filter(|step| step.task.disk == *disk);
    steps.any(|step| step.task.partitions().next().is_some() && receipt(context, step).is_none())
}

/// Touches the disks of pending plug-in steps. The planners of stacks, images and files must know
/// them before [`plan`] runs.
pub(super) fn reserve_disks(context: &PlanContext<'_>) -> Fragment {
    let pending = context.plugin_steps.iter().filter(|step| receipt(context, step).is_none());
    let touched = pending.map(|step| step.task.disk.clone()).collect();
    Fragment { touched, ..Fragment::default() }
}

/// Plans the steps of plug-ins. A receipt is carried into the next journal if the run touches its
/// disk: `touched` has the disks that earlier planners touch.
pub(super) fn plan(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Fragment {
    let mut fragment = Fragment::default();
    for step in &context.plugin_steps {
        let PluginStep { plugin, verifies, skips, timeout_ms, task } = step;
        let receipt = receipt(context, step);
        if receipt.is_some() && !touched.contains(&task.disk) {
            continue;
        }
        let name = format!("{plugin} on {}", task.partitions().next().unwrap_or(&task.disk));
        let mut planned = if *verifies {
            PlannedStep::new(name, plugin, task)
        } else {
            PlannedStep::unverified(name, plugin, task)
        };
        planned.step.timeout_ms = *timeout_ms;
        planned.step.skip_when_done = *verifies && *skips;
        fragment.steps.push(planned.with_receipt(receipt));
    }
    fragment
}
