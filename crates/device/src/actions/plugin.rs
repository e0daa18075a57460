//! Plug-ins on disks. A plug-in gets open descriptors of the partitions that its step names and no
//! other access to disks. The kernel confines a descriptor to its partition.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::{Call, Step};
use hoist_engine::plugin::{LentDescriptor, Loan, Plugin};
use hoist_provision::partition_table::Partition;
use hoist_provision::steps::plugin::{Receipt, Task};
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

use super::{HeldDisks, diagnostics, failed, task, wrong};
use crate::kernel;

/// Most bytes of a plug-in's receipt that are stored; the journal is small.
pub const MAX_SAID: usize = 4 * 1024;

/// A plug-in as an action on these disks.
#[derive(Debug)]
pub struct OnDisks {
    pub plugin: Arc<Plugin>,
    pub held: Arc<HeldDisks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Look,
    Write,
}

/// The descriptors lent to a plug-in, and their description.
struct Devices {
    loan: Loan,
    told: Map<String, Value>,
    files: Vec<File>,
}

impl OnDisks {
    /// Calls the plug-in with the devices of its step.
    fn with<T>(
        &self,
        task: &Task,
        access: Access,
        ask: impl FnOnce(Map<String, Value>, Loan) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.held.lend(&task.disk, |path| {
            let Devices { loan, told, files } = devices(task, path, access)?;
            let fields = Map::from_iter([("devices".to_owned(), Value::Object(told))]);
            let answer = ask(fields, loan)?;
            for file in files.iter().filter(|_| access == Access::Write) {
                file.sync_all().map_err(|error| failed(&error))?;
            }
            Ok(answer)
        })?
    }

    fn planned(step: &Step, task: &Task) -> Step {
        let call = Call { input: task.input.clone(), ..step.call.clone() };
        Step { call, ..step.clone() }
    }
}

fn devices(task: &Task, disk: &Path, access: Access) -> Result<Devices, Failure> {
    let parts = task.table.iter().flat_map(|table| &table.partitions);
    let wanted: Vec<Partition> = parts.clone().map(Partition::from).collect();
    let known = if task.partitions().next().is_some() {
        kernel::set_partitions(disk, &wanted).map_err(|error| failed(&error))?
    } else {
        Vec::new()
    };
    let mut devices = Devices { loan: Loan::default(), told: Map::new(), files: Vec::new() };
    if access == Access::Write && !task.devices.is_empty() {
        // The plug-in may change the kernel's settings of the disk of its step, and of no other.
        let name = disk.file_name().unwrap_or_default();
        devices.loan.settings.push(Path::new("/sys/block").join(name).join("queue"));
    }
    for (name, id) in &task.devices {
        let disk_name = disk.file_name().unwrap_or_default().to_string_lossy();
        let mut about = json!({"disk": task.disk, "disk_kernel_name": disk_name});
        if let Some(id) = id {
            let part = parts.clone().find(|part| part.id == *id);
            let part = part.ok_or_else(|| wrong(format!("`{id}` is in no table of this run")))?;
            let node = known.iter().find(|known| known.number == part.number);
            let node = node.ok_or_else(|| wrong(format!("`{id}` has no device")))?;
            let is_it = (node.start, node.length) == (part.start, part.len);
            if !is_it {
                return Err(wrong(format!(
                    "device `{}` is not partition `{id}`",
                    node.kernel_name
                )));
            }
            let path = Path::new("/dev").join(&node.kernel_name);
            let file = open(&path, access).map_err(|error| failed(&error))?;
            let fd = file.try_clone().map_err(|error| failed(&error))?.into();
            about["partition"] = json!(id);
            about["kernel_name"] = json!(node.kernel_name);
            about["size"] = json!(part.len);
            let is_written = access == Access::Write;
            devices.loan.descriptors.push(LentDescriptor { name: name.clone(), fd, is_written });
            devices.files.push(file);
        }
        devices.told.insert(name.clone(), about);
    }
    Ok(devices)
}

/// Opens the partition exclusively.
fn open(path: &Path, access: Access) -> std::io::Result<File> {
    let flags = OFlags::CLOEXEC | OFlags::EXCL;
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::Write);
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

impl Action for OnDisks {
    fn describe(&self) -> Description {
        Action::describe(&*self.plugin)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let task = task::<Task>(&step.call.input)?;
        let planned = Self::planned(step, &task);
        let done = self.with(&task, Access::Write, |fields, loan| {
            self.plugin.apply_with(&planned, fields, loan, ctx)
        })?;
        let size = done.receipt.to_string().len();
        let said = if size <= MAX_SAID { done.receipt } else { Value::Null };
        let plugin = step.call.action.clone();
        let receipt = Receipt { plugin, task: task.fingerprint(), said };
        let receipt = serde_json::to_value(receipt).map_err(|error| wrong(error.to_string()))?;
        Ok(ApplyOutcome { changed: done.changed, receipt })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task = task::<Task>(&step.call.input)?;
        let planned = Self::planned(step, &task);
        self.with(&task, Access::Look, |fields, loan| {
            self.plugin.verify_with(&planned, fields, loan, ctx)
        })
    }
}
