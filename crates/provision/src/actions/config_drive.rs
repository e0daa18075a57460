//! The volume from which the installed system learns who it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hoist_engine::action::{Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Held, failed, faults, task, wrong};
use crate::document::{Content, Id};
use crate::fat::{self, Contents, FatError, Stored, Volume};

pub const NAME: &str = "config_drive";

/// What cloud-init looks for.
pub const LABEL: &str = "CONFIG-2";

/// One step: all of the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub disk: Id,
    pub partition: Id,
    pub range: Range<u64>,
    pub serial: u32,
    /// What it holds, by path. Texts themselves stand in the document.
    pub files: BTreeMap<String, Stored>,
}

impl Task {
    /// Whether this is what was made. Nothing else is in it, either.
    pub fn is(&self, found: &Contents) -> bool {
        found.label.as_deref() == Some(LABEL)
            && found.serial == self.serial
            && found.files == self.files
    }

    fn most(&self) -> u64 {
        self.files.values().map(|stored| stored.size).max().unwrap_or(0)
    }

    /// What is in it, whoever put it there.
    fn found(&self, volume: &Volume<impl fat::Medium>) -> Result<Contents, FatError> {
        let paths = volume.paths()?;
        volume.contents(paths.iter().map(String::as_str), self.most())
    }
}

/// The action.
#[derive(Debug)]
pub struct ConfigDrive {
    pub held: Arc<Held>,
    pub files: BTreeMap<String, Content>,
}

impl ConfigDrive {
    fn fill(&self, task: &Task) -> Result<(), Failure> {
        let io = self.held.io(&task.disk)?;
        let fat = |error: FatError| failed(&error);
        // What an old system had in unused places is nobody's business.
        io.zero(task.range.clone()).map_err(|error| failed(&error))?;
        fat::make(&io, &task.range, Some(LABEL), task.serial).map_err(fat)?;
        let volume = Volume::open(&*io, task.range.clone()).map_err(fat)?;
        for path in task.files.keys() {
            let Some(Content::Text(text)) = self.files.get(path) else {
                return Err(wrong(format!("nobody knows what is in `{path}`")));
            };
            volume.put_bytes(path, text.as_bytes()).map_err(fat)?;
        }
        volume.finish().map_err(fat)?;
        io.sync().map_err(|error| failed(&error))
    }
}

impl Action for ConfigDrive {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "a volume that tells the installed system who it is".to_owned(),
            reads: vec![NAME.to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Done, Failure> {
        self.fill(&task(&step.call.input)?)?;
        Ok(Done { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let task: Task = task(&step.call.input)?;
        let io = self.held.io(&task.disk)?;
        let found = Volume::read_only(&*io, task.range.clone());
        let reason = match found.and_then(|volume| task.found(&volume)) {
            Ok(found) if task.is(&found) => return Ok(Verdict::Holds),
            Ok(_) => format!("`{}` does not hold the files of the config drive", task.partition),
            Err(error) => super::chain(&error),
        };
        Ok(Verdict::DoesNot { reason })
    }
}
