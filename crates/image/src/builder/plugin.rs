//! Fills a tree with an external program: a plug-in of the engine, started in the tree.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_engine::action::{Action, Cancel, Ctx, Output, Stream};
use hoist_engine::execute::{AttemptPrograms, NoSecrets};
use hoist_engine::plan::{Call, Step};
use hoist_engine::plugin::{Isolation, PREFIX, Plugin as Program};
use serde_json::Value;

use super::{FillError, Site};
use crate::build::BuildProgress;
use crate::document::Plugin;

/// How long it may take.
const LONGEST: Duration = Duration::from_hours(2);

pub(super) fn check(plugin: &Plugin, plugins: &Path) -> Result<(), FillError> {
    let program = open(plugin, plugins)?;
    let found = program.validate(&Value::Object(plugin.input.clone()));
    let lines = found.iter().map(|found| {
        let hint = found.hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default();
        let dot = if found.at.is_empty() { "" } else { "." };
        format!("input{dot}{}: {}{hint}", found.at, found.message)
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { Ok(()) } else { Err(FillError::Plugin(lines.join("; "))) }
}

pub(super) fn fill(
    plugin: &Plugin,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
) -> Result<Vec<String>, FillError> {
    let program = open(plugin, site.plugins)?;
    progress.stage(&format!("filling the tree with plug-in {}", plugin.name));
    let input = Value::Object(plugin.input.clone());
    let call = Call { action: plugin.name.clone(), input, undoes: None };
    let step = Step { call, ..Step::default() };
    let cancel = Cancel::default();
    let mut output = PluginOutput { progress };
    let mut ctx = Ctx {
        attempt: "image",
        task: "image",
        subject: "",
        directory: site.tree.path(),
        deadline: Some(Instant::now() + LONGEST),
        cancel: &cancel,
        secrets: &NoSecrets,
        programs: &AttemptPrograms::default(),
        output: &mut output,
    };
    program.apply(&step, &mut ctx).map_err(|failure| FillError::Plugin(failure.reason))?;
    Ok(vec![format!("{PREFIX}{}_{}", plugin.name, program.describe().version)])
}

fn open(plugin: &Plugin, plugins: &Path) -> Result<Program, FillError> {
    let path = plugins.join(format!("{PREFIX}{}", plugin.name));
    if !path.exists() {
        let why = format!("`{}` does not exist; name its directory with --plugins", path.display());
        return Err(FillError::Plugin(why));
    }
    Program::open(&path, &Arc::new(Isolation::required(None)))
        .map_err(|error| FillError::Plugin(error.to_string()))
}

/// Forwards the plug-in's output as progress.
struct PluginOutput<'a> {
    progress: &'a dyn BuildProgress,
}

impl Output for PluginOutput<'_> {
    fn line(&mut self, _: Stream, bytes: &[u8]) {
        self.progress.note(&String::from_utf8_lossy(bytes));
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.progress.progress(done, total.unwrap_or(0));
    }
}
