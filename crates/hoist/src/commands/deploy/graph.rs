//! `hoist deploy graph`: pictures of plans and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hoist_api::deploy::Selection;
use hoist_deploy::graph::{DrawError, Drawing, View};
use hoist_engine::plan::{Draft, Kind, StepId};
use hoist_engine::record::FailureKind;
use hoist_engine::run::{State, StepEnd};
use hoist_model::Exit;

use super::offline::{self, BookArgs};
use super::show::instances;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Draw what depends on what
///
/// Each task is one vertex, whatever number of nodes it runs on, and roles are boxes around them;
/// `--instances` draws every task on every node. Edges that follow from others are left out. With
/// `--run`, colours say how things stand. The picture is written by hoist itself: no other program
/// is needed for SVG.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy graph site.yaml --format svg --out site.svg\n  \
    hoist deploy graph site.yaml --nodes nodes.yaml --format mermaid\n  \
    hoist deploy graph site.yaml --instances --on node:n12 --around db-join --depth 2\n  \
    hoist deploy graph --run last --format svg --out run.svg")]
pub(super) struct GraphArgs {
    #[command(flatten)]
    book: BookArgs,

    /// Draw a run, with colours for its states: its id, the end of it, or `last`
    #[arg(long, value_name = "RUN", conflicts_with_all = ["files", "settings", "nodes"])]
    run: Option<String>,

    /// Output format; `-o json` is `--format json`
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Draw every task on every node
    #[arg(long)]
    instances: bool,

    /// Only instances on these nodes
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    on: Option<String>,

    /// Only the neighbourhood of this task or barrier
    #[arg(long, value_name = "TASK")]
    around: Option<String>,

    /// How many edges away is near
    #[arg(long, value_name = "N", default_value_t = 2, requires = "around")]
    depth: usize,

    /// Draw also edges that follow from others
    #[arg(long)]
    all_edges: bool,

    /// Write it to this file and not to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Draw it however large it is, and replace the file
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Dot,
    Mermaid,
    Svg,
    Json,
}

impl GraphArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let (draft, states, on) = match &self.run {
            Some(run) => self.of_run(shell, run).await?,
            None => match self.of_files(shell).await? {
                Ok((draft, on)) => (draft, None, on),
                Err(exit) => return Ok(exit),
            },
        };
        let view = View {
            instances: self.instances,
            on,
            around: self.around,
            depth: self.depth,
            all_edges: self.all_edges,
            force: self.force,
        };
        let state;
        let states: Option<&dyn Fn(StepId) -> State> = match &states {
            Some(states) => {
                state = |id| state_of(&draft, states, id);
                Some(&state)
            }
            None => None,
        };
        let drawing = Drawing::of(&draft, states, &view).map_err(|error| refused(&error))?;
        let is_data = matches!(shell.printer.output(), Output::Json | Output::Yaml);
        let usual = if is_data { Format::Json } else { Format::Dot };
        let text = match self.format.unwrap_or(usual) {
            Format::Dot => drawing.dot(),
            Format::Mermaid => drawing.mermaid(),
            Format::Svg => drawing.svg(),
            Format::Json => match (&self.out, shell.printer.output()) {
                (None, Output::Yaml) => {
                    shell.printer.yaml(&drawing.json())?;
                    return Ok(Exit::Done);
                }
                _ => serde_json::to_string_pretty(&drawing.json()).map_err(Failure::Json)? + "\n",
            },
        };
        let Some(path) = &self.out else {
            shell.printer.text(&text)?;
            return Ok(Exit::Done);
        };
        offline::write(path, &text, self.force)?;
        let dots = drawing.dots.len();
        let edges = drawing.edges.len();
        let implied = match drawing.implied {
            0 => String::new(),
            implied => format!("; {implied} more follow from these"),
        };
        shell
            .printer
            .note(&format!("`{}`: {dots} vertices, {edges} edges{implied}", path.display()));
        Ok(Exit::Done)
    }

    async fn of_files(
        &self,
        shell: &mut Shell,
    ) -> Result<Result<(Draft, Option<BTreeSet<String>>), Exit>, Failure> {
        if self.book.files.is_empty() {
            return Err(Failure::usage("graph: neither a task file nor a run is given")
                .with_hint("name task files, or a run with `--run RUN`"));
        }
        if let Some(on) = &self.on {
            let _: hoist_model::Selector = on.parse()?;
        }
        let selection = Selection { on: self.on.clone(), ..Selection::default() };
        let draft = match self.book.draft(shell, selection).await? {
            Ok(draft) => draft,
            Err(exit) => return Ok(Err(exit)),
        };
        let on = self.on.as_ref().map(|_| chosen(&draft));
        Ok(Ok((draft, on)))
    }

    async fn of_run(
        &self,
        shell: &mut Shell,
        run: &str,
    ) -> Result<(Draft, Option<BTreeMap<u32, State>>, Option<BTreeSet<String>>), Failure> {
        let client = shell.client()?;
        let draft: Draft = client.run_plan(run).await?;
        let instances = instances(&client, run, None).await?;
        let states = instances.iter().map(|one| (one.step, state(&one.state))).collect();
        let on = match &self.on {
            None => None,
            Some(on) => Some(offline::node_names(&client, on).await?),
        };
        Ok((draft, Some(states), on))
    }
}

fn refused(error: &DrawError) -> Failure {
    match error {
        DrawError::TooMany { .. } => Failure::refused(error.to_string()),
        _ => Failure::usage(error.to_string()),
    }
}

/// The nodes on which anything was selected.
fn chosen(draft: &Draft) -> BTreeSet<String> {
    let steps = draft.vertices.iter().filter_map(|vertex| match &vertex.kind {
        Kind::Step(step) if step.skip.as_deref() != Some("selection") => step.subject,
        _ => None,
    });
    steps.map(|subject| draft.subjects[subject as usize].clone()).collect()
}

/// A vertex without a state of its own takes the state of its dependencies.
fn state_of(draft: &Draft, states: &BTreeMap<u32, State>, id: StepId) -> State {
    if let Some(state) = states.get(&id.0) {
        return *state;
    }
    let is_good = |id: &StepId| match states.get(&id.0) {
        Some(State::Ended(ended)) => ended.is_good(),
        Some(_) => false,
        None => true,
    };
    let before = &draft.vertices[id.0 as usize].after;
    if before.iter().all(is_good) { State::Ended(StepEnd::Ok) } else { State::Waiting }
}

/// A state by the word that the API has for it.
fn state(word: &str) -> State {
    match word {
        "ready" => State::Ready,
        "checking" => State::Checking,
        "running" => State::Running,
        "verifying" => State::Verifying,
        "delayed" => State::Delayed,
        "unknown" => State::Unknown,
        "ok" => State::Ended(StepEnd::Ok),
        "unchanged" => State::Ended(StepEnd::Unchanged),
        "ignored" => State::Ended(StepEnd::Ignored),
        "skipped" => State::Ended(StepEnd::Skipped),
        "failed" => State::Ended(StepEnd::Failed(FailureKind::Exit)),
        "blocked" => State::Ended(StepEnd::Blocked),
        "left_out" => State::Ended(StepEnd::LeftOut),
        "stopped" => State::Ended(StepEnd::Stopped),
        "interrupted" => State::Ended(StepEnd::Interrupted),
        "undone" => State::Ended(StepEnd::Undone),
        _ => State::Waiting,
    }
}
