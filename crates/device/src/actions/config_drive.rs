//! The config drive: a volume with the identity of the installed system.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;
use hoist_provision::document::Content;
use hoist_provision::steps::config_drive::{LABEL, NAME, Task};
use hoist_provision::volume::Contents;
use serde_json::Value;

use super::{HeldDisks, diagnostics, failed, task, wrong};
use crate::fat::{self, FatError, Volume};

/// The action.
#[derive(Debug)]
pub struct ConfigDrive {
    pub held: Arc<HeldDisks>,
    pub files: BTreeMap<String, Content>,
}

impl ConfigDrive {
    fn fill(&self, task: &Task) -> Result<(), Failure> {
        let io = self.held.io(&task.disk)?;
        let fat = |error: FatError| failed(&error);
        // Data of an old system in unused blocks must not reach the new one.
        io.zero(task.range.clone()).map_err(|error| failed(&error))?;
        fat::make(&io, &task.range, Some(LABEL), task.serial).map_err(fat)?;
        let volume = Volume::open(&*io, task.range.clone()).map_err(fat)?;
        for path in task.files.keys() {
            let Some(Content::Text(text)) = self.files.get(path) else {
                return Err(wrong(format!("the contents of `{path}` are missing")));
            };
            volume.put_bytes(path, text.as_bytes()).map_err(fat)?;
        }
        volume.finish().map_err(fat)?;
        io.sync().map_err(|error| failed(&error))
    }
}

/// All contents of the volume, including files that hoist did not write.
fn contents(task: &Task, volume: &Volume<impl fat::Medium>) -> Result<Contents, FatError> {
    let paths = volume.paths()?;
    volume.contents(paths.iter().map(String::as_str), task.most())
}

impl Action for ConfigDrive {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "a volume with the identity of the installed system".to_owned(),
            reads: vec![NAME.to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, _: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        self.fill(&task(&step.call.input)?)?;
        Ok(ApplyOutcome { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let found = Volume::read_only(&*io, task.range.clone());
        let reason = match found.and_then(|volume| contents(&task, &volume)) {
            Ok(found) if task.is(&found) => return Ok(Verdict::Holds),
            Ok(_) => format!("`{}` does not hold the files of the config drive", task.partition),
            Err(error) => hoist_diagnostic::chain(&error),
        };
        Ok(Verdict::fails(reason))
    }
}
