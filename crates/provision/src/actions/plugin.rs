//! Actions of others on disks. A plug-in is lent the partitions that its step names, open, and
//! nothing else of any disk: the kernel keeps whoever has a partition inside of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use hoist_engine::action::{Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::plan::{Call, Step};
use hoist_engine::plugin::{Lent, Loan, Plugin};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Held, failed, faults, task, wrong};
use crate::device::kernel;
use crate::device::table::Partition;
use crate::document::Id;
use crate::images::Digest;
use crate::layout::TablePlan;

/// Of what a plug-in wants to remember so much is kept; the journal has little room.
pub const MAX_SAID: usize = 4 * 1024;

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// As the plug-in planned it.
    pub input: Value,
    /// Of the plug-in: another one may do something else.
    pub version: String,
    pub disk: Id,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TablePlan>,
    /// By the names that the plug-in uses: a partition, which is lent, or the whole disk, of which
    /// it only hears.
    pub devices: BTreeMap<String, Option<Id>>,
}

/// What is left in the journal: that this very step was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub plugin: String,
    /// Of the task.
    pub task: Digest,
    /// What the plug-in said.
    pub said: Value,
}

impl Task {
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }

    pub fn partitions(&self) -> impl Iterator<Item = &Id> {
        self.devices.values().flatten()
    }
}

/// A plug-in as an action on these disks.
#[derive(Debug)]
pub struct OnDisks {
    pub plugin: Arc<Plugin>,
    pub held: Arc<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Look,
    Write,
}

/// What a plug-in is lent, and what it is told of it.
struct Devices {
    loan: Loan,
    told: Map<String, Value>,
    files: Vec<File>,
}

impl OnDisks {
    /// Asks the plug-in with everything at hand that its step names.
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
        kernel::tell(disk, &wanted).map_err(|error| failed(&error))?
    } else {
        Vec::new()
    };
    let mut devices = Devices { loan: Loan::default(), told: Map::new(), files: Vec::new() };
    if access == Access::Write && !task.devices.is_empty() {
        // How the kernel uses a disk of the step is the step's business; that of others is not.
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
                return Err(wrong(format!("`{}` is not `{id}`", node.kernel_name)));
            }
            let path = Path::new("/dev").join(&node.kernel_name);
            let file = open(&path, access).map_err(|error| failed(&error))?;
            let fd = file.try_clone().map_err(|error| failed(&error))?.into();
            about["partition"] = json!(id);
            about["kernel_name"] = json!(node.kernel_name);
            about["size"] = json!(part.len);
            let is_written = access == Access::Write;
            devices.loan.descriptors.push(Lent { name: name.clone(), fd, is_written });
            devices.files.push(file);
        }
        devices.told.insert(name.clone(), about);
    }
    Ok(devices)
}

/// Nobody else may have it.
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
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
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
        Ok(Done { changed: done.changed, receipt })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task = task::<Task>(&step.call.input)?;
        let planned = Self::planned(step, &task);
        self.with(&task, Access::Look, |fields, loan| {
            self.plugin.verify_with(&planned, fields, loan, ctx)
        })
    }
}
