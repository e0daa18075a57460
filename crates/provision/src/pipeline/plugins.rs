//! Actions of others: which of them a document wants, and what they want to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use hoist_engine::action::{Ability, Action as _, Document as Shared};
use hoist_engine::plan::Step;
use hoist_engine::plugin::{Isolation, MAX_SECRETS, Plugin};
use serde_json::{Value, json};

use super::{ACTIONS, Planning, Seen, as_value, is_kept};
use crate::actions::plugin::{self, Task};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Document, Id, StorageNode};
use crate::layout::{Layout, Work};

/// Steps of one plug-in.
const MAX_STEPS: usize = 64;

/// Where an input says which devices its step is about.
const DEVICES: &str = "devices";

/// A step that a plug-in wants.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    plugin: String,
    verifies: bool,
    skips: bool,
    timeout_ms: Option<u64>,
    task: Task,
}

/// Those that are asked for by name, or whose sections are there where nothing is asked for by name.
pub(super) fn queued<'a>(document: &Document, seen: &'a Seen) -> Vec<&'a Arc<Plugin>> {
    let flow = document.sections.flow.as_ref().map_or(&[][..], |flow| &flow.actions);
    let is_queued = |plugin: &Plugin| {
        let about = plugin.describe();
        let mut sections = about.reads.iter().chain(&about.writes);
        match flow {
            [] => sections.any(|name| document.sections.third_party.contains_key(name)),
            named => named.contains(&about.name),
        }
    };
    seen.plugins.iter().filter(|plugin| is_queued(plugin)).collect()
}

/// Sections that nobody here reads, and plug-ins that cannot be let near a disk.
pub(super) fn refused(document: &Document, seen: &Seen) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let names_some = document.sections.flow.as_ref().is_some_and(|flow| !flow.actions.is_empty());
    let is_read = |section: &String| {
        let mut all = seen.plugins.iter().map(|plugin| plugin.describe());
        all.any(|about| about.reads.contains(section) || about.writes.contains(section))
    };
    let unread = document.sections.third_party.keys().filter(|name| !names_some && !is_read(name));
    for section in unread {
        let what = format!("no action here reads the section `{section}`");
        let hint = "put its plug-in into the plug-in directory, or remove the section";
        let told = Diagnostic::new(Code::Unsupported, section.clone(), what).hint(hint);
        found.push(told.evidence(seen.unusable.clone()));
    }
    for plugin in queued(document, seen) {
        if let Isolation::None { why } | Isolation::Missing { why } = plugin.isolation() {
            let name = plugin.describe().name;
            let what = format!("plug-in `{name}` would have every disk of this machine: {why}");
            let hint =
                "a plug-in on disks needs namespaces of its own: unshare(1), setpriv(1), root";
            found.push(Diagnostic::new(Code::MissingTool, "flow.actions", what).hint(hint));
        }
    }
    found
}

/// Whether an action is here.
pub(super) fn is_here(name: &str, seen: &Seen) -> bool {
    ACTIONS.contains(&name) || seen.plugins.iter().any(|plugin| plugin.describe().name == name)
}

/// What the queued ones want to do, or everything that is wrong with it.
pub(super) fn wanted(
    document: &Document,
    layout: &Layout,
    seen: &Seen,
) -> Result<Vec<Wanted>, Vec<Diagnostic>> {
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    let sections = serde_json::to_value(&document.sections).unwrap_or_default();
    let shared: Shared = serde_json::from_value(sections).unwrap_or_default();
    let observed = observed(layout);
    for plugin in queued(document, seen) {
        let about = plugin.describe();
        let say = |what: String| {
            Diagnostic::new(Code::Contribution, format!("plugin.{}", about.name), what)
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
            let faults = plugin.validate(&step.call.input);
            let faults = faults.into_iter().map(|fault| {
                let at =
                    if fault.at.is_empty() { String::new() } else { format!("{}: ", fault.at) };
                let found = say(format!("{at}{}", fault.message));
                Diagnostic { hint: fault.hint, ..found }
            });
            found.extend(faults);
            match task(document, layout, &about.name, &about.version, &step) {
                Ok(task) => wanted.push(Wanted {
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
    if found.is_empty() { Ok(wanted) } else { Err(found) }
}

/// What there will be when a plug-in has its turn.
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

/// A step as it is carried out, or why it is not.
fn task(
    document: &Document,
    layout: &Layout,
    name: &str,
    version: &str,
    step: &Step,
) -> Result<Task, String> {
    if step.call.action != name {
        return Err(format!("it wants a step of `{}`; it can only do its own", step.call.action));
    }
    let input = &step.call.input;
    let named = input.get(DEVICES).and_then(Value::as_object).filter(|named| !named.is_empty());
    let named = named.ok_or("a step says in `devices` what it is about, by names of its own")?;
    if named.len() > MAX_SECRETS {
        return Err(format!(
            "{} devices are named; at most {MAX_SECRETS} can be lent",
            named.len()
        ));
    }
    let (mut disks, mut devices) = (Vec::new(), BTreeMap::new());
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
                return Err(format!("`{id}` is kept as it is, so nobody writes to it"));
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
    let (input, version, disk) = (input.clone(), version.to_owned(), disk.id.clone());
    Ok(Task { input, version, disk, table, devices })
}

impl Planning<'_> {
    /// What says that a step was done, and that what it was done to is there.
    fn receipt_of(&self, wanted: &Wanted) -> Option<&plugin::Receipt> {
        let fingerprint = wanted.task.fingerprint();
        let mut receipts = self.seen.notes.values().flat_map(|notes| &notes.plugins);
        let is_kept =
            |id: &Id| self.layout.partition(id).is_some_and(|(disk, part)| is_kept(disk, part));
        let is_there = wanted.task.partitions().all(is_kept);
        receipts.find(|receipt| receipt.task == fingerprint).filter(|_| is_there)
    }

    fn is_done(&self, wanted: &Wanted) -> bool {
        self.receipt_of(wanted).is_some()
    }

    /// Whether one of them is still to write to a disk.
    pub(super) fn needs_plugin(&self, disk: &Id) -> bool {
        let mut all = self.plugins.iter().filter(|wanted| wanted.task.disk == *disk);
        all.any(|wanted| wanted.task.partitions().next().is_some() && !self.is_done(wanted))
    }

    /// Disks that something is done to, before anybody asks.
    pub(super) fn expect_plugins(&mut self, plugins: Vec<Wanted>) {
        self.plugins = plugins;
        let pending = self.plugins.iter().filter(|wanted| !self.is_done(wanted));
        let disks: Vec<Id> = pending.map(|wanted| wanted.task.disk.clone()).collect();
        self.touched.extend(disks);
    }

    pub(super) fn plugins(&mut self) {
        let plugins = std::mem::take(&mut self.plugins);
        for wanted in plugins {
            let receipt = self.receipt_of(&wanted).map(as_value);
            if receipt.is_some() && !self.touched.contains(&wanted.task.disk) {
                continue;
            }
            let about = wanted.task.partitions().next().unwrap_or(&wanted.task.disk);
            let name = format!("{} on {about}", wanted.plugin);
            let id = self.step(name, &wanted.plugin, &wanted.task, wanted.verifies);
            if let Some(step) = self.step_mut(id) {
                step.timeout_ms = wanted.timeout_ms;
                step.skip_when_done = wanted.verifies && wanted.skips;
            }
            self.done.extend(receipt.map(|receipt| (id, receipt)));
        }
    }
}
