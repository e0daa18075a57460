//! Files of the installed system.

mod private_mount;

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Secrets, Verdict,
};
use hoist_engine::plan::Step;
use hoist_provision::document::FsKind;
use hoist_provision::steps::files::{FileContent, FileSpec, NAME, Receipt, Task, Texts};
use hoist_provision::volume::StoredFile;
use serde_json::Value;

use self::private_mount::{PrivateMount, Rights};
use super::{HeldDisks, diagnostics, failed, task, wrong};
use crate::fat::{self, FatError, Volume};

/// Whether files can be written to this kind of file system. FAT needs no kernel support. For the
/// others, the kernel's answer counts.
pub fn is_known(kind: FsKind) -> bool {
    kind == FsKind::Vfat || private_mount::is_known(kind)
}

/// The action.
#[derive(Debug)]
pub struct Files {
    pub held: Arc<HeldDisks>,
    pub texts: Texts,
}

impl Files {
    fn bytes(
        &self,
        task: &Task,
        file: &FileSpec,
        secrets: &dyn Secrets,
    ) -> Result<Vec<u8>, Failure> {
        match &file.content {
            FileContent::Secret(secret) => secrets.get(secret.name()).map(String::into_bytes),
            FileContent::Text(stored) => {
                let text = self.texts.get(&(task.fs.clone(), file.path.clone()));
                let text = text.filter(|text| StoredFile::of(text.as_bytes()) == *stored);
                let lost = || wrong(format!("the contents of `{}` are missing", file.path));
                text.map(|text| text.clone().into_bytes()).ok_or_else(lost)
            }
        }
    }

    /// Mounts the file system while `work` runs.
    fn mounted<T>(
        &self,
        task: &Task,
        is_read_only: bool,
        work: impl FnOnce(&PrivateMount) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.held.lend_place(&task.place, |node| {
            let mounted = PrivateMount::mount(node, task.kind, is_read_only);
            work(&mounted.map_err(|error| self::at(&task.fs, "mounted", &error))?)
        })
    }

    fn put(&self, task: &Task, secrets: &dyn Secrets) -> Result<(), Failure> {
        let contents: Result<Vec<_>, Failure> =
            task.files.iter().map(|file| Ok((file, self.bytes(task, file, secrets)?))).collect();
        let contents = contents?;
        if task.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(&task.place)?;
            let failed = |error: FatError| failed(&error);
            fat::repair(&io, &range).map_err(failed)?;
            let volume = Volume::open(&*io, range).map_err(failed)?;
            for (file, bytes) in &contents {
                volume.put_bytes(&file.path, bytes).map_err(failed)?;
            }
            volume.finish().map_err(failed)?;
            return io.sync().map_err(|error| self::failed(&error));
        }
        self.mounted(task, false, |mounted| {
            for (file, bytes) in &contents {
                let put = mounted.put(&file.path, bytes, rights(file));
                put.map_err(|error| at(&file.path, "written", &error))?;
            }
            mounted.sync().map_err(|error| at(&task.fs, "made durable", &error))
        })
    }

    /// The first file that differs from the plan, and how.
    fn difference(&self, task: &Task, secrets: &dyn Secrets) -> Result<Option<String>, Failure> {
        if task.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(&task.place)?;
            let volume = Volume::read_only(&*io, range).map_err(|error| failed(&error))?;
            for file in &task.files {
                let wanted = StoredFile::of(&self.bytes(task, file, secrets)?);
                let is = volume.stored(&file.path, wanted.size).map_err(|error| failed(&error))?;
                if is != Some(wanted) {
                    return Ok(Some(format!("`{}` differs from the document", file.path)));
                }
            }
            return Ok(None);
        }
        self.mounted(task, true, |mounted| {
            for file in &task.files {
                let wanted = self.bytes(task, file, secrets)?;
                let is = mounted.get(&file.path, wanted.len() as u64);
                if is.ok().flatten() != Some((wanted, rights(file))) {
                    return Ok(Some(format!("`{}` differs from the document", file.path)));
                }
            }
            Ok(None)
        })
    }
}

fn rights(file: &FileSpec) -> Rights {
    Rights { mode: file.mode, uid: file.uid, gid: file.gid }
}

/// A failure of one operation on a file or file system.
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
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let task: Task = task(&step.call.input)?;
        self.put(&task, ctx.secrets)?;
        let receipt = Receipt { task: task.fingerprint(), files_on: task.fs };
        let receipt = serde_json::to_value(receipt).expect("a plain value");
        Ok(ApplyOutcome { changed: true, receipt })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let difference = self.difference(&task(&step.call.input)?, ctx.secrets)?;
        Ok(difference.map_or(Verdict::Holds, Verdict::fails))
    }
}
