//! Files of the installed system.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_engine::action::{
    Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Secrets, Verdict,
};
use hoist_engine::plan::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::mounted::{Mounted, Rights};
use super::{Held, Place, failed, faults, task, wrong};
use crate::document::{FsKind, Id, SecretRef};
use crate::fat::{FatError, Stored, Volume};
use crate::images::Digest;

pub const NAME: &str = "files";

/// One step: all files of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub place: Place,
    pub fs: Id,
    pub kind: FsKind,
    pub files: Vec<Wanted>,
}

/// A file as it shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// From the root of its file system, without the slash before it.
    pub path: String,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub content: Holds,
}

/// What is in a file. Texts themselves stand in the document, and secrets nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    Text(Stored),
    Secret(SecretRef),
}

/// What is left in the journal: that these very files are in this very place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub files_on: Id,
    /// Of the task.
    pub task: Digest,
}

impl Task {
    /// Of the files and of where they are; how the rest of the disk is does not matter.
    pub fn fingerprint(&self) -> Digest {
        let part = self.place.partition().map(|part| part.partuuid);
        let all = (&self.fs, part, self.place.id(), &self.files);
        Digest::of(&serde_json::to_vec(&all).expect("a plain value"))
    }
}

/// Whether files can be put into such file systems here, as far as the kernel says. FAT is read and
/// written without it.
pub fn is_known(kind: FsKind) -> bool {
    kind == FsKind::Vfat || mounted::is_known(kind)
}

/// Texts by file system and path.
pub type Texts = BTreeMap<(Id, String), String>;

/// The action.
#[derive(Debug)]
pub struct Files {
    pub held: Arc<Held>,
    pub texts: Texts,
}

impl Files {
    fn bytes(&self, task: &Task, file: &Wanted, secrets: &dyn Secrets) -> Result<Vec<u8>, Failure> {
        match &file.content {
            Holds::Secret(secret) => secrets.get(secret.name()).map(String::into_bytes),
            Holds::Text(stored) => {
                let text = self.texts.get(&(task.fs.clone(), file.path.clone()));
                let text = text.filter(|text| Stored::of(text.as_bytes()) == *stored);
                let lost = || wrong(format!("nobody knows what is in `{}`", file.path));
                text.map(|text| text.clone().into_bytes()).ok_or_else(lost)
            }
        }
    }

    /// Lets the kernel have the file system, for as long as the work takes.
    fn mounted<T>(
        &self,
        task: &Task,
        is_read_only: bool,
        work: impl FnOnce(&Mounted) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.held.lend_place(&task.place, |node| {
            let mounted = Mounted::mount(node, task.kind, is_read_only);
            work(&mounted.map_err(|error| self::at(&task.fs, "mounted", &error))?)
        })
    }

    fn put(&self, task: &Task, secrets: &dyn Secrets) -> Result<(), Failure> {
        let contents: Result<Vec<_>, Failure> =
            task.files.iter().map(|file| Ok((file, self.bytes(task, file, secrets)?))).collect();
        let contents = contents?;
        if task.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(&task.place)?;
            let fat = |error: FatError| failed(&error);
            let volume = Volume::open(&*io, range).map_err(fat)?;
            for (file, bytes) in &contents {
                volume.put_bytes(&file.path, bytes).map_err(fat)?;
            }
            volume.finish().map_err(fat)?;
            return io.sync().map_err(|error| failed(&error));
        }
        self.mounted(task, false, |mounted| {
            for (file, bytes) in &contents {
                let put = mounted.put(&file.path, bytes, file.rights());
                put.map_err(|error| at(&file.path, "written", &error))?;
            }
            mounted.sync().map_err(|error| at(&task.fs, "made durable", &error))
        })
    }

    /// The first file that is not as it shall be, and why.
    fn difference(&self, task: &Task, secrets: &dyn Secrets) -> Result<Option<String>, Failure> {
        if task.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(&task.place)?;
            let volume = Volume::read_only(&*io, range).map_err(|error| failed(&error))?;
            for file in &task.files {
                let wanted = Stored::of(&self.bytes(task, file, secrets)?);
                let is = volume.stored(&file.path, wanted.size).map_err(|error| failed(&error))?;
                if is != Some(wanted) {
                    return Ok(Some(format!("`{}` is not as it shall be", file.path)));
                }
            }
            return Ok(None);
        }
        self.mounted(task, true, |mounted| {
            for file in &task.files {
                let wanted = self.bytes(task, file, secrets)?;
                let is = mounted.get(&file.path, wanted.len() as u64);
                if is.ok().flatten() != Some((wanted, file.rights())) {
                    return Ok(Some(format!("`{}` is not as it shall be", file.path)));
                }
            }
            Ok(None)
        })
    }
}

impl Wanted {
    fn rights(&self) -> Rights {
        Rights { mode: self.mode, uid: self.uid, gid: self.gid }
    }
}

/// Something about a file that does not work.
fn at(what: impl std::fmt::Display, done: &str, error: &std::io::Error) -> Failure {
    let Failure { kind, reason } = failed(error);
    Failure { kind, reason: format!("`{what}` cannot be {done}: {reason}") }
}

impl Action for Files {
    fn describe(&self) -> Description {
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "files of the installed system".to_owned(),
            reads: vec![NAME.to_owned()],
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        let task: Task = task(&step.call.input)?;
        self.put(&task, ctx.secrets)?;
        let receipt = Receipt { task: task.fingerprint(), files_on: task.fs };
        let receipt = serde_json::to_value(receipt).expect("a plain value");
        Ok(Done { changed: true, receipt })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let difference = self.difference(&task(&step.call.input)?, ctx.secrets)?;
        Ok(difference.map_or(Verdict::Holds, |reason| Verdict::DoesNot { reason }))
    }
}
