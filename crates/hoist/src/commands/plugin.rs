//! `hoist plugin`.

mod pack;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use fs_err::os::unix::fs::OpenOptionsExt;
use hoist_deploy::actions;
use hoist_engine::action::Description;
use hoist_engine::plugin::check::{RuleResult, RuleVerdict, check};
use hoist_engine::plugin::{self, Isolation, PREFIX};
use hoist_model::Exit;
use serde::Serialize;
use serde_json::Value;

use super::Shell;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Tone, plain};
use crate::serve;
use crate::table::Table;

/// Plug-ins: actions of your own, in any language
#[derive(Debug, Args)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// List the actions that steps can use: those of hoist and those of plug-ins
    #[command(after_help = "Examples:\n  hoist plugin list\n  hoist plugin list -o wide\n  \
        hoist plugin list --plugins ./plugins -o json\n\nEnds with 7 when something in the \
        directory cannot be used.")]
    List {
        /// Where plug-ins are; otherwise as the setting `plugins.directory` says
        #[arg(long, value_name = "DIR")]
        plugins: Option<PathBuf>,
    },
    /// Try out whether a plug-in keeps to the protocol
    ///
    /// All verbs are tried. What changes something is tried in an empty directory, and only with
    /// the example of the plug-in's description, or with --input.
    #[command(after_help = "Examples:\n  hoist plugin check ./hoist-action-motd\n  \
        hoist plugin check ./hoist-action-motd --input input.json -o json\n\nEnds with 1 when a \
        rule is violated.")]
    Check {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// An input as JSON to run it with, from a file or `-`
        #[arg(long, value_name = "FILE")]
        input: Option<PathBuf>,
    },
    /// Make an archive of plug-ins that a kernel unpacks behind the image of the agent
    ///
    /// It holds the plug-ins of a directory, their interpreters, and the programs that they name as
    /// `tools`, with their libraries, all taken from this machine. The same files give the same bytes.
    #[command(after_help = "Examples:\n  hoist plugin pack ./plugins --out raid.cpio\n  \
        hoist plugin pack ./plugins --out raid.cpio --with /usr/lib/python3.13\n  \
        hoist plugin pack ./plugins --out raid.cpio --add\n  \
        hoist plugin pack ./plugins --out raid.cpio --dry-run")]
    Pack(pack::PackArgs),
    /// Write a plug-in to begin with
    #[command(after_help = "Examples:\n  hoist plugin new motd\n  \
        hoist plugin new raid --language python --into ./plugins\n  \
        hoist plugin new motd --dry-run")]
    New {
        #[arg(value_name = "NAME")]
        name: String,
        #[arg(long, value_enum, default_value_t)]
        language: Language,
        /// The directory to write it to
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
        /// Print it and write nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Language {
    #[default]
    Sh,
    Python,
}

impl Language {
    fn template(self) -> &'static str {
        match self {
            Self::Sh => include_str!("plugin/template.sh"),
            Self::Python => include_str!("plugin/template.py"),
        }
    }
}

impl PluginArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            PluginCommand::List { plugins } => {
                let directory = match plugins {
                    Some(directory) => directory,
                    None => serve::plugin_directory(&shell.connection)?,
                };
                list(shell, &directory)
            }
            PluginCommand::Check { file, input } => check_plugin(shell, &file, input.as_deref()),
            PluginCommand::Pack(args) => pack::pack(shell, &args).await,
            PluginCommand::New { name, language, into, dry_run } => {
                write(shell, &name, language, &into, dry_run)
            }
        }
    }
}

/// An action and where it comes from.
#[derive(Debug, Serialize)]
struct ListedAction {
    #[serde(flatten)]
    about: Description,
    /// The file of a plug-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct PluginListing {
    /// What plug-ins have of their own on this machine.
    isolation: String,
    actions: Vec<ListedAction>,
    /// Why others are no plug-ins.
    refused: Vec<String>,
}

fn list(shell: &mut Shell, directory: &Path) -> Result<Exit, Failure> {
    let isolation = Arc::new(serve::plugin_isolation(&shell.connection)?);
    let catalog = actions::catalog();
    let (plugins, refused) = plugin::load(directory, &isolation, &catalog);
    let built_in =
        catalog.iter().map(|(_, action)| ListedAction { about: action.describe(), path: None });
    let of_others = plugins.iter().map(|plugin| {
        let about = plugin.describe();
        let path = Some(plugin.path().to_owned());
        ListedAction { about, path }
    });
    let actions = built_in.chain(of_others);
    let listing = PluginListing {
        isolation: isolation.to_string(),
        actions: actions.collect(),
        refused: refused.iter().map(ToString::to_string).collect(),
    };
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&listing.actions))?,
        Output::Name => {
            listing.actions.iter().try_for_each(|action| printer.line(&action.about.name))?;
        }
        Output::Json | Output::Yaml => printer.value(&listing)?,
    }
    match &*isolation {
        Isolation::None { why } => {
            printer.warn(&format!("plug-ins run without isolation here: {why}"));
        }
        Isolation::Missing { why } => {
            printer
                .warn(&format!("plug-ins cannot be isolated here and are refused: {}", plain(why)));
        }
        Isolation::Private { .. } => {}
    }
    for reason in &listing.refused {
        printer.warn(&plain(reason));
    }
    Ok(if listing.refused.is_empty() { Exit::Done } else { Exit::Degraded })
}

fn table(actions: &[ListedAction]) -> Table {
    let mut table = Table::new(&["ACTION", "VERSION", "CAN", "NETWORK", "ABOUT"]).wide(&[
        "TOOLS",
        "READS",
        "WRITES",
        "CONTRIBUTES",
        "FILE",
    ]);
    for ListedAction { about, path } in actions {
        let can: Vec<&str> = about.can.iter().map(|ability| ability.as_str()).collect();
        table.row(vec![
            about.name.clone(),
            plain(&about.version),
            can.join(","),
            if about.network { "yes" } else { "no" }.to_owned(),
            plain(&about.about),
            plain(&about.tools.join(",")),
            plain(&about.reads.join(",")),
            plain(&about.writes.join(",")),
            plain(&about.contributes.join(",")),
            path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        ]);
    }
    table
}

#[derive(Debug, Serialize)]
struct CheckResult {
    path: PathBuf,
    isolation: String,
    good: bool,
    results: Vec<RuleResult>,
}

fn check_plugin(shell: &mut Shell, file: &Path, from: Option<&Path>) -> Result<Exit, Failure> {
    let input: Option<Value> = from.map(read_input).transpose()?;
    let isolation = Arc::new(serve::plugin_isolation(&shell.connection)?);
    let directory = tempfile::tempdir().map_err(Failure::File)?;
    let report = check(file, &isolation, &actions::catalog(), directory.path(), input);
    let good = report.is_good();
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => {
            let path = file.to_owned();
            let results = report.results;
            printer.value(&CheckResult {
                path,
                isolation: isolation.to_string(),
                good,
                results,
            })?;
        }
        Output::Table | Output::Wide | Output::Name => {
            for found in &report.results {
                let (tone, word) = match found.verdict {
                    RuleVerdict::Followed => (Tone::Added, "followed"),
                    RuleVerdict::Violated => (Tone::Removed, "violated"),
                    RuleVerdict::Advice => (Tone::Changed, "advice"),
                    RuleVerdict::Untried => (Tone::Changed, "untried"),
                };
                let said = plain(&found.message);
                printer.toned(tone, &format!("{word:8}  {:16}  {said}", found.rule))?;
                if let Some(remedy) = found.remedy {
                    printer.line(format!("{:28}{remedy}", ""))?;
                }
            }
        }
    }
    if let Isolation::None { why } = &*isolation {
        printer.warn(&format!("checked without isolation: {why}"));
    }
    Ok(if good { Exit::Done } else { Exit::Failed })
}

fn read_input(from: &Path) -> Result<Value, Failure> {
    let bytes = input::read_whole(from)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("`{}` is not JSON: {error}", from.display())))
}

fn write(
    shell: &mut Shell,
    name: &str,
    language: Language,
    into: &Path,
    dry_run: bool,
) -> Result<Exit, Failure> {
    if !plugin::is_name(name) {
        return Err(Failure::usage(format!("`{name}` is not an action name"))
            .with_hint("use lowercase letters, digits, `-` and `_`, beginning with a letter"));
    }
    if actions::catalog().get(name).is_some() {
        return Err(Failure::usage(format!("`{name}` is a built-in action"))
            .with_hint("choose another name"));
    }
    let text = language.template().replace("NAME", name);
    if dry_run {
        shell.printer.text(&text)?;
        return Ok(Exit::WouldChange);
    }
    let path = into.join(format!("{PREFIX}{name}"));
    let mut file = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&path)
        .map_err(Failure::File)?;
    file.write_all(text.as_bytes()).map_err(Failure::File)?;
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(&serde_json::json!({ "path": path }))?,
        Output::Table | Output::Wide | Output::Name => {
            shell.printer.line(path.display().to_string())?;
        }
    }
    shell.printer.note(&format!("try it with `hoist plugin check {}`", path.display()));
    Ok(Exit::Done)
}
