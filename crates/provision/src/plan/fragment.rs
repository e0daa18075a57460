//! Fragments of a plan: the result of one planner, and how fragments become one plan.

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::plan::{Call, Kind, Repeat, Step, StepId, Vertex};
use serde::Serialize;
use serde_json::Value;

use super::{OpenedDisk, WriteTarget};
use crate::diagnostic::ProvisionDiagnostic;
use crate::document::Id;
use crate::steps::stack::Stacks;

/// The result of one planner. Appended fragments form a fragment again.
#[derive(Debug, Default)]
pub(super) struct Fragment {
    /// Steps in their order. Each step waits for the one before it, across fragments.
    pub(super) steps: Vec<PlannedStep>,
    /// Disks whose tables are replaced.
    pub(super) opened: BTreeMap<Id, OpenedDisk>,
    /// Disks that the run must hold, because a step changes them or its journal is on them.
    pub(super) touched: BTreeSet<Id>,
    /// Stacked devices that a step needs assembled.
    pub(super) assembled: BTreeSet<Id>,
    /// Programs for file systems, each with the storage node that needs it.
    pub(super) tools: Vec<(String, Id)>,
    /// Reasons against the whole plan.
    pub(super) diagnostics: Vec<ProvisionDiagnostic>,
}

/// A step without its place in the plan.
#[derive(Debug)]
pub(super) struct PlannedStep {
    pub(super) name: String,
    pub(super) step: Step,
    /// The receipt of an earlier run. A step with a receipt is not carried out again.
    pub(super) receipt: Option<Value>,
}

impl PlannedStep {
    /// A step that is verified after it ran.
    pub(super) fn new(name: String, action: &str, input: impl Serialize) -> Self {
        let unverified = Self::unverified(name, action, input);
        let after = vec![unverified.step.call.clone()];
        Self { step: Step { after, ..unverified.step }, ..unverified }
    }

    pub(super) fn unverified(name: String, action: &str, input: impl Serialize) -> Self {
        let call = Call { action: action.to_owned(), input: as_value(&input), undoes: None };
        // Every step can be repeated: none relies on results that it did not write itself.
        let step = Step { call, repeat: Repeat::Safe, ..Step::default() };
        Self { name, step, receipt: None }
    }

    pub(super) fn with_receipt(self, receipt: Option<&impl Serialize>) -> Self {
        Self { receipt: receipt.map(as_value), ..self }
    }
}

impl Fragment {
    /// Adds the fragment of the next planner.
    pub(super) fn append(&mut self, next: Self) {
        let Self { steps, opened, touched, assembled, tools, diagnostics } = next;
        self.steps.extend(steps);
        self.opened.extend(opened);
        self.touched.extend(touched);
        self.assembled.extend(assembled);
        self.tools.extend(tools);
        self.diagnostics.extend(diagnostics);
    }

    /// Marks the disks of a target as touched, and a stacked device as assembled.
    pub(super) fn touch(&mut self, target: WriteTarget<'_>, stacks: &Stacks) {
        match target {
            WriteTarget::Part(disk, _) | WriteTarget::Whole(disk) => {
                self.touched.insert(disk.id.clone());
            }
            WriteTarget::Device(plan) => self.assemble(&plan.id, stacks),
        }
    }

    /// Requires a stacked device to be assembled. The run must hold all disks below the device.
    pub(super) fn assemble(&mut self, device: &Id, stacks: &Stacks) {
        self.touched.extend(stacks.disks_below(device).iter().cloned());
        self.assembled.insert(device.clone());
    }
}

/// Numbers the steps and orders them one after the other. Returns also the receipts by step.
pub(super) fn in_sequence(steps: Vec<PlannedStep>) -> (Vec<Vertex>, BTreeMap<StepId, Value>) {
    let mut vertices = Vec::with_capacity(steps.len());
    let mut receipts = BTreeMap::new();
    for (number, PlannedStep { name, step, receipt }) in (0_u32..).zip(steps) {
        let after = number.checked_sub(1).map(StepId).into_iter().collect();
        vertices.push(Vertex { name, after, kind: Kind::Step(Box::new(step)) });
        receipts.extend(receipt.map(|receipt| (StepId(number), receipt)));
    }
    (vertices, receipts)
}

fn as_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("a plain value")
}
