//! `hoist deploy import-fuel`: Fuel's deployment tasks as a task file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hoist_compat::fuel::read::{self, CorpusError, MAX_FILES};
use hoist_compat::fuel::task::Corpus;
use hoist_compat::fuel::{self, Conditions, Import, Options, TaskDiagnostic};
use hoist_diagnostic::Diagnostic;
use hoist_model::Exit;
use serde_json::{Value, json};

use super::offline;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Tone};

/// Directories inside of each other that are looked into.
const MAX_DEPTH: usize = 32;
/// Diagnostics of one kind that are shown; `-o wide` and `-o json` have all of them.
const SHOWN: usize = 3;

/// Convert Fuel's deployment tasks to a task file
///
/// Reads a tree of `tasks.yaml` files with its plug-ins, or one normalised JSON file. Entries that
/// change their meaning, or never had one, are reported.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hoist deploy import-fuel /etc/puppet/modules --out fuel.yaml\n  \
    hoist deploy import-fuel fuel-tasks.json --graph default --conditions true --out fuel.yaml\n  \
    hoist deploy import-fuel fuel-tasks.json --out - | hoist deploy lint -")]
pub(super) struct ImportFuelArgs {
    #[arg(value_name = "DIR|FILE")]
    from: PathBuf,

    /// Which of its graphs
    #[arg(long, value_name = "NAME", default_value = "default")]
    graph: String,

    /// What conditions are that cannot be said in hoist's words; `ask` leaves them to a person
    #[arg(long, value_enum, default_value_t)]
    conditions: ConditionsArg,

    /// What stands for `{NAME}` in Fuel's parameters, such as `CLUSTER_ID=7`
    #[arg(long = "set", value_name = "NAME=VALUE")]
    values: Vec<String>,

    /// Fuel's data of the cluster in YAML, for what Fuel computed from it
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// Refuse names that mean no task
    #[arg(long)]
    strict: bool,

    /// Where to write the task file; `-` is standard output
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    out: Option<PathBuf>,

    /// Replace the file
    #[arg(long)]
    force: bool,

    /// Report the result, write nothing
    #[arg(long, conflicts_with = "out")]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ConditionsArg {
    True,
    False,
    #[default]
    Ask,
}

impl ImportFuelArgs {
    pub(super) fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let corpus = corpus(&self.from)?;
        let options = Options {
            conditions: match self.conditions {
                ConditionsArg::True => Conditions::True,
                ConditionsArg::False => Conditions::False,
                ConditionsArg::Ask => Conditions::Ask,
            },
            settings: self.settings.as_deref().map(settings).transpose()?.unwrap_or_default(),
            values: self.values.iter().map(|one| value(one)).collect::<Result<_, _>>()?,
            is_strict: self.strict,
        };
        let import = fuel::import(&corpus, &self.graph, &options)
            .map_err(|error| Failure::usage(error.to_string()))?;
        match self.out.as_deref() {
            Some(path) if path.as_os_str() == "-" => {
                shell.printer.text(&import.text)?;
                for line in told(&import) {
                    shell.printer.note(&line);
                }
                return Ok(Exit::Done);
            }
            Some(path) => offline::write(path, &import.text, self.force)?,
            None => {}
        }
        let Import { tasks, barriers, diagnostics, .. } = &import;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&json!({
                "graph": self.graph,
                "tasks": tasks,
                "barriers": barriers,
                "diagnostics": diagnostics,
                "written": self.out,
            }))?,
            Output::Name => {
                diagnostics
                    .iter()
                    .try_for_each(|diagnostic| printer.line(diagnostic.to_string()))?;
            }
            Output::Table => told(&import).into_iter().try_for_each(|line| printer.line(line))?,
            Output::Wide => {
                for diagnostic in diagnostics {
                    printer.toned(Tone::Changed, &diagnostic.to_string())?;
                }
                printer.line(summary(&import))?;
            }
        }
        match &self.out {
            Some(path) => printer.note(&format!(
                "written to `{0}`; check it with `hoist deploy lint {0}`",
                path.display()
            )),
            None => return Ok(Exit::WouldChange),
        }
        Ok(Exit::Done)
    }
}

fn value(given: &str) -> Result<(String, String), Failure> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(format!("`{given}` is not `NAME=VALUE`"))),
    }
}

fn settings(path: &Path) -> Result<Value, Failure> {
    serde_saphyr::from_slice(&input::read_whole(path)?)
        .map_err(|error| Failure::usage(format!("`{}`: {error}", path.display())))
}

/// A summary of the notes: some of each kind.
fn told(import: &Import) -> Vec<String> {
    let mut by_code: BTreeMap<&str, Vec<&TaskDiagnostic>> = BTreeMap::new();
    for diagnostic in &import.diagnostics {
        by_code.entry(diagnostic.code).or_default().push(diagnostic);
    }
    let mut lines = Vec::new();
    for (code, diagnostics) in &by_code {
        lines.push(format!("{code}: {}", diagnostics.len()));
        for TaskDiagnostic { task, diagnostic, .. } in diagnostics.iter().take(SHOWN) {
            let Diagnostic { message, hint, .. } = diagnostic;
            let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
            lines.push(format!("  {task}: {message}{hint}"));
        }
        if diagnostics.len() > SHOWN {
            lines.push(format!("  … and {} more", diagnostics.len() - SHOWN));
        }
    }
    lines.push(summary(import));
    lines
}

fn summary(import: &Import) -> String {
    let Import { tasks, barriers, diagnostics, .. } = import;
    let known = match diagnostics.len() {
        0 => String::new(),
        count => format!("; {count} things to know, all of them with `-o wide`"),
    };
    format!("{tasks} tasks, {barriers} barriers{known}")
}

fn corpus(from: &Path) -> Result<Corpus, Failure> {
    let wrong = |errors: CorpusError| Failure::usage(errors.to_string());
    if !from.is_dir() {
        let name = from.display().to_string();
        let text = text(from)?;
        let is_json = text.trim_start().starts_with('{');
        let read = if is_json {
            read::normalised(&name, &text)
        } else {
            read::tree([("tasks.yaml", Some(text.as_str()))])
        };
        return read.map_err(wrong);
    }
    let mut paths = Vec::new();
    files(from, 0, &mut paths)?;
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for path in paths {
        let name = path.strip_prefix(from).unwrap_or(&path).to_string_lossy().into_owned();
        let text = if read::is_read(&name) { Some(text(&path)?) } else { None };
        found.push((name, text));
    }
    if found.iter().all(|(_, text)| text.is_none()) {
        let message = format!("`{}`: no `tasks.yaml` found below it", from.display());
        return Err(Failure::usage(message).with_hint("name the directory of Fuel's modules"));
    }
    let files = found.iter().map(|(name, text)| (name.as_str(), text.as_deref()));
    read::tree(files).map_err(wrong)
}

fn text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(input::read_whole(path)?)
        .map_err(|_| Failure::usage(format!("`{}` is not UTF-8", path.display())))
}

/// All files below a directory in the order of their names; links to directories are not followed.
fn files(dir: &Path, depth: usize, into: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if depth > MAX_DEPTH || into.len() > MAX_FILES {
        return Err(Failure::usage(format!(
            "there are more than {MAX_FILES} files in `{}`, or they are too deep",
            dir.display()
        )));
    }
    let mut entries = fs_err::read_dir(dir)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(Failure::File)?;
    entries.sort_by_key(fs_err::DirEntry::path);
    for entry in entries {
        let kind = entry.file_type().map_err(Failure::File)?;
        if kind.is_dir() {
            files(&entry.path(), depth + 1, into)?;
        } else {
            into.push(entry.path());
        }
    }
    Ok(())
}
