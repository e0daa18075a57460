//! `hoist deploy plan` and `hoist deploy run`: from files to a plan, and on to a run.
//!
//! Does not belong here: plans without a controller (`offline`), and the display of a run
//! (`watch`, `show`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use clap::Args;
use hoist_api::client::Client;
use hoist_api::deploy::{
    Change, PlanAnswer, PlanRequest, RunSummary, Selection, Severity, Skip, TaskFile,
    TaskFileDiagnostic,
};
use hoist_api::{Code, JsonText};
use hoist_deploy::condition::MAX_RENDERED;
use hoist_deploy::parse::parse;
use hoist_deploy::spec::Sources;
use hoist_deploy::{actions, compile};
use hoist_diagnostic::Diagnostic;
use hoist_engine::Plan;
use hoist_engine::action::Ability;
use hoist_engine::plan::{Draft, Kind};
use hoist_model::Exit;
use hoist_server::deploy::{AnswerWithPlan, Detail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::control::{ConcurrentArgs, shared};
use super::offline::{self, NodesArgs};
use super::outline::outline;
use super::{check, counted, interrupt, plain, show, watch};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Printer, Tone};

/// Lines of a diff that are shown; `-o wide` and `-o json` show all of them.
const SHOWN_DIFFS: usize = 20;
const SHOWN_LINES: usize = 40;
/// Names of instances that left the plan.
const SHOWN_GONE: usize = 10;

/// The task files with their settings and selection.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct FileArgs {
    /// Task files, the later over the earlier; `-` is standard input
    #[arg(value_name = "FILE", required_unless_present = "plan")]
    files: Vec<PathBuf>,

    /// Settings over those of the files: `api.port=8080`, or a YAML file
    #[arg(long = "set", value_name = "KEY=VALUE|FILE")]
    settings: Vec<String>,

    /// Value of imported conditions that have no translation
    #[arg(long, value_name = "true|false")]
    conditions: Option<bool>,

    /// A plan that was made before, as `hoist deploy plan -o json` prints it
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    plan: Option<PathBuf>,

    #[command(flatten)]
    selection: SelectionArgs,
}

/// Which part of it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectionArgs {
    /// Only these tasks: ids, globs, `/regex/`, `+task` with its prerequisites, `task+`, `a..b`
    #[arg(long, value_name = "TASKS", value_delimiter = ',')]
    tasks: Vec<String>,

    /// Only on these nodes
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    on: Option<String>,

    /// Leave these tasks out
    #[arg(long, value_name = "TASKS", value_delimiter = ',')]
    skip: Vec<String>,

    /// From this task or barrier on
    #[arg(long, value_name = "TASK")]
    from: Option<String>,

    /// Up to this task or barrier
    #[arg(long, value_name = "TASK")]
    to: Option<String>,

    /// Only what `failed` or was `blocked` in the last run of the same files
    #[arg(long, value_name = "STATE", value_parser = ["failed", "blocked"])]
    only: Option<String>,

    /// Also run tasks that were done before with the same inputs
    #[arg(long)]
    repeat: bool,

    /// Also run tasks that were done before with the same inputs and subscribe to this event
    #[arg(long = "event", value_name = "EVENT")]
    events: Vec<String>,

    /// Do not check whether the prerequisites of the tasks were done
    #[arg(long)]
    without_prerequisites: bool,
}

impl SelectionArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        if let Some(on) = &self.on {
            let _: hoist_model::Selector = on.parse()?;
        }
        Ok(Selection {
            tasks: self.tasks.clone(),
            on: self.on.clone(),
            skip: self.skip.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            only: self.only.clone(),
            repeat: self.repeat,
            events: self.events.clone(),
            without_prerequisites: self.without_prerequisites,
        })
    }
}

impl FileArgs {
    /// The request to the controller.
    pub(super) fn request(&self, title: Option<&str>) -> Result<PlanRequest, Failure> {
        let selection = self.selection.selection()?;
        let mut request = request(&self.files, &self.settings, selection)?;
        request.conditions = self.conditions;
        if let Some(path) = &self.plan {
            request.plan = Some(read_plan(path)?);
            request.title = path.display().to_string();
        }
        if let Some(title) = title {
            title.clone_into(&mut request.title);
        }
        Ok(request)
    }
}

/// A request for task files and the templates next to them.
pub(super) fn request(
    files: &[PathBuf],
    set: &[String],
    selection: Selection,
) -> Result<PlanRequest, Failure> {
    let files = files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    Ok(PlanRequest {
        title: files.first().map(|file| file.name.clone()).unwrap_or_default(),
        settings: settings(set)?,
        selection,
        files,
        conditions: None,
        plan: None,
        check: false,
        allow_concurrent: false,
    })
}

/// The templates that tasks name, read from beside their file.
fn templates(name: &str, text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let beside = Path::new(name).parent().unwrap_or(Path::new(""));
    // The compiler reports the diagnostics of the file.
    let (read, _) = parse(&mut Sources::default(), name, text.as_bytes());
    let mut found = BTreeMap::new();
    for named in read.tasks.iter().flat_map(compile::templates) {
        if let Some(text) = template(beside, named.value)? {
            found.insert(named.value.to_owned(), text);
        }
    }
    Ok(found)
}

/// The text of a template, if it exists. The text is sent to the controller, so the path must stay
/// below the directory of the task file: a foreign task file must not read other files of this
/// machine.
fn template(beside: &Path, name: &str) -> Result<Option<String>, Failure> {
    let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let beside = if beside.as_os_str().is_empty() { Path::new(".") } else { beside };
    let path = beside.join(name);
    let real = if Path::new(name).components().all(is_below) {
        if !path.is_file() {
            return Ok(None);
        }
        let whole = |path: &Path| fs_err::canonicalize(path).map_err(Failure::File);
        Some(whole(&path)?).filter(|real| whole(beside).is_ok_and(|dir| real.starts_with(dir)))
    } else {
        None
    };
    let Some(real) = real else {
        let message = format!("the template `{name}` is not below `{}`", beside.display());
        return Err(Failure::usage(message)
            .with_hint("templates stand beside the task file; name them without `..`"));
    };
    let text = String::from_utf8(input::read_up_to(&real, MAX_RENDERED as u64)?);
    text.map(Some).map_err(|_| Failure::usage(format!("`{}` is not UTF-8", path.display())))
}

/// `a.b=1` becomes `{a: {b: 1}}`; a file is replaced by its content.
fn settings(given: &[String]) -> Result<Value, Failure> {
    let mut all = Value::Null;
    for one in given {
        let (path, value) = if let Some((path, text)) = one.split_once('=') {
            let path: Vec<&str> = path.split('.').collect();
            if path.contains(&"") {
                return Err(Failure::usage(format!("`{one}` names no setting"))
                    .with_hint("write it like `api.port=8080`"));
            }
            (path, serde_saphyr::from_str(text).map_err(Failure::yaml)?)
        } else {
            let bytes = input::read_whole(Path::new(one))?;
            let value: Value = serde_saphyr::from_slice(&bytes).map_err(Failure::yaml)?;
            if !value.is_object() {
                return Err(Failure::usage(format!("`{one}` holds no mapping"))
                    .with_hint("settings are names with values, such as `port: 8080`"));
            }
            (Vec::new(), value)
        };
        put(&mut all, &path, value);
    }
    Ok(all)
}

fn put(into: &mut Value, path: &[&str], value: Value) {
    match (path, into) {
        ([], Value::Object(held)) if value.is_object() => {
            let Value::Object(given) = value else { return };
            for (key, value) in given {
                put(held.entry(key).or_insert(Value::Null), &[], value);
            }
        }
        ([], into) => *into = value,
        ([first, rest @ ..], into) => {
            if !into.is_object() {
                *into = Value::Object(serde_json::Map::new());
            }
            put(&mut into[*first], rest, value);
        }
    }
}

fn read(path: &Path) -> Result<TaskFile, Failure> {
    let bytes = input::read_whole(path)?;
    let name =
        if path.as_os_str() == "-" { "standard input".into() } else { path.to_string_lossy() };
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::usage(format!("`{name}` is not UTF-8")))?;
    let templates = templates(&name, &text)?;
    Ok(TaskFile { name: name.into_owned(), text, templates })
}

/// A plan alone, or as `hoist deploy plan -o json` prints it: then with what shows that it is that
/// plan, and still holds.
fn read_plan(path: &Path) -> Result<JsonText, Failure> {
    #[derive(Deserialize, Serialize)]
    struct Answer {
        plan: Option<JsonText>,
        hash: Option<String>,
        #[serde(default)]
        listing: PlanListing,
    }
    #[derive(Default, Deserialize, Serialize)]
    struct PlanListing {
        deployment: Option<String>,
        elections: Option<BTreeMap<String, String>>,
    }
    let no_plan = |error: serde_json::Error| {
        Failure::usage(format!("`{}` is no plan: {error}", path.display()))
    };
    let bytes = input::read_whole(path)?;
    match serde_json::from_slice::<Answer>(&bytes) {
        Ok(answer) if answer.plan.is_some() => JsonText::new(&answer).map_err(Failure::Json),
        _ => serde_json::from_slice(&bytes).map_err(no_plan),
    }
}

/// Show the plan of a run, and change nothing
///
/// For nodes that are directories of the controller, the output shows the changes that `file`,
/// `copy` and `sync` would make to their current state. Changes of programs cannot be predicted,
/// and nodes on other machines are not examined. `-o json` lists every instance, every edge and
/// every skip; pass that output to `hoist deploy run --plan` to run exactly this plan.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy plan site.yaml\n  \
    hoist deploy plan site.yaml --tasks '+db-join' --on rack=r3\n  \
    hoist deploy plan site.yaml -o json > plan.json\n  \
    hoist deploy plan site.yaml --nodes nodes.yaml\n  \
    hoist deploy plan site.yaml --check")]
pub(super) struct PlanArgs {
    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    nodes: NodesArgs,

    /// Look at the checks before and after each task as things are now, and say of each whether it
    /// holds; ends with 0 if all of them do, 1 if not
    #[arg(long, conflicts_with = "nodes")]
    check: bool,
}

impl PlanArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request = self.files.request(None)?;
        if self.check {
            return check::of_plan(shell, &request).await;
        }
        let detail = match shell.printer.output() {
            Output::Json | Output::Yaml => Detail::Listed,
            Output::Table | Output::Wide | Output::Name => Detail::Summary,
        };
        if let Some((answer, plan)) = self.nodes.plan_here(shell, &request, detail)? {
            return print_plan(shell, &answer, plan.map(Plan::into_draft));
        }
        let answer = dry_run(shell, &request).await?;
        print_answer(shell, answer)
    }
}

/// Run task files
///
/// Shows the run until it comes to its end. Ctrl-C leaves it going. Ends with the outcome: 0
/// succeeded, 7 degraded, 1 failed, 8 stopped, 4 a person has to decide something.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy run site.yaml\n  \
    hoist deploy run site.yaml --tasks '+db-join' --on rack=r3\n  \
    hoist deploy run --plan plan.json --detach\n  hoist deploy run site.yaml --dry-run")]
pub(super) struct RunArgs {
    #[command(flatten)]
    files: FileArgs,

    /// Title of the run; the name of the first file if left out
    #[arg(long)]
    title: Option<String>,

    /// Show the plan, run nothing; ends with 20 if there is something to do
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    concurrent: ConcurrentArgs,

    /// Print the id of the run and do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl RunArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let mut request = self.files.request(self.title.as_deref())?;
        request.allow_concurrent = self.concurrent.allow_concurrent;
        if self.dry_run {
            let answer = dry_run(shell, &request).await?;
            return would(shell, answer);
        }
        if shell.printer.interactive() && !request.selection.without_prerequisites {
            let planned = client.plan_deploy(&request).await?;
            if !planned.prerequisites.is_empty() {
                let names = planned.prerequisites.join(", ");
                let question = format!("not known to be done: {names}; go on without them?");
                if !shell.printer.ask(&question)? {
                    return Err(Failure::Declined);
                }
                request.selection.without_prerequisites = true;
            }
        }
        let run = match interrupt::told(shell, client.start_run(&request)).await? {
            Ok(run) => run,
            Err(exit) => return Ok(exit),
        };
        begun(shell, &client, &run, self.detach).await
    }
}

/// Run a changed plan without the instances that a run has done with the same inputs
///
/// An instance is kept if its task, its inputs and its node are unchanged and it succeeded. All
/// other instances run, and so do their dependents. Instances that are no longer in the files are
/// listed and stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy continue last --replan site.yaml\n  \
    hoist deploy continue last --replan site.yaml --dry-run")]
pub(super) struct ContinueArgs {
    /// Id of a run, the end of one, or `last`
    #[arg(value_name = "RUN", value_parser = super::named)]
    run: String,
    /// Make the plan anew from the files
    #[arg(long, required = true)]
    replan: bool,
    #[command(flatten)]
    files: FileArgs,
    /// Show the plan, run nothing; ends with 20 if there is something to do
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    concurrent: ConcurrentArgs,
    /// Print the id of the run and do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl ContinueArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let mut request = self.files.request(None)?;
        request.allow_concurrent = self.concurrent.allow_concurrent;
        // `last` is another one as soon as the new run is there.
        let old = client.run(&self.run).await?.summary.id;
        if self.dry_run {
            let answer = client.try_continue_run(&old, &request).await?;
            if let Some(draft) = offline::draft(&answer)? {
                vanished(shell, &client, &old, &draft).await?;
            }
            return would(shell, answer);
        }
        let asked = client.continue_run(&old, &request);
        let run = match interrupt::told(shell, asked).await? {
            Ok(run) => run,
            Err(exit) => return Ok(exit),
        };
        vanished(shell, &client, &old, &client.run_plan(&run.id).await?).await?;
        begun(shell, &client, &run, self.detach).await
    }
}

/// Lists instances of a run that the new plan lacks.
async fn vanished(
    shell: &mut Shell,
    client: &Client,
    old: &str,
    plan: &Draft,
) -> Result<(), Failure> {
    let known: BTreeSet<&str> = steps_of(plan).collect();
    let done = show::instances(client, old, Some("ok,unchanged")).await?;
    let gone = done.iter().map(|one| one.name.as_str()).filter(|name| !known.contains(name));
    let gone: Vec<&str> = gone.collect();
    if !gone.is_empty() {
        let named = gone.iter().take(SHOWN_GONE).copied().collect::<Vec<_>>().join(", ");
        let more = match gone.len().saturating_sub(SHOWN_GONE) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        shell.printer.warn(&format!(
            "done in run {old}, not in the plan any more, and left as it is: {named}{more}"
        ));
    }
    Ok(())
}

/// The plan with its predicted changes. The state of nodes is visible only to principals that may
/// run the plan.
async fn dry_run(shell: &mut Shell, request: &PlanRequest) -> Result<PlanAnswer, Failure> {
    let client = shell.client()?;
    match client.try_start_run(request).await {
        Err(error) if error.code() == Some(&Code::Forbidden) => {
            shell.printer.note("what would change is not shown: that needs the scope write:deploy");
            Ok(client.plan_deploy(request).await?)
        }
        answered => Ok(answered?),
    }
}

/// Prints the dry-run result and returns its exit code.
fn would(shell: &mut Shell, answer: PlanAnswer) -> Result<Exit, Failure> {
    let concurrent = answer.concurrent.clone();
    let has_work = answer.steps > answer.skips.len();
    let ended = print_answer(shell, answer)?;
    shared(&mut shell.printer, &concurrent);
    Ok(if ended == Exit::Done && has_work { Exit::WouldChange } else { ended })
}

/// Shows a run that was just begun, or only says which.
async fn begun(
    shell: &mut Shell,
    client: &Client,
    run: &RunSummary,
    detach: bool,
) -> Result<Exit, Failure> {
    diagnostics(shell, &run.diagnostics);
    if !detach {
        return watch::follow(shell, client, &run.id, 0).await;
    }
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(run)?,
        _ => shell.printer.line(&run.id)?,
    }
    Ok(Exit::Done)
}

/// Prints the answer of a controller.
pub(super) fn print_answer(shell: &mut Shell, mut answer: PlanAnswer) -> Result<Exit, Failure> {
    if matches!(shell.printer.output(), Output::Json | Output::Yaml) {
        diagnostics(shell, &answer.diagnostics);
        let exit = if answer.plan.is_some() { Exit::Done } else { Exit::Usage };
        return print_data(&mut shell.printer, &answer).map(|()| exit);
    }
    let draft = offline::draft(&answer)?;
    // The plan is in memory once only.
    (answer.plan, answer.listing) = (None, None);
    print_plan(shell, &answer, draft)
}

fn print_data(printer: &mut Printer, answer: &impl Serialize) -> Result<(), Failure> {
    match printer.output() {
        // YAML has no place for JSON as text.
        Output::Yaml => printer.yaml(&serde_json::to_value(answer).map_err(Failure::Json)?),
        _ => printer.value(answer),
    }
}

/// Prints a plan, for people or programs. Without a draft, the answer has errors.
pub(super) fn print_plan(
    shell: &mut Shell,
    answer: &PlanAnswer,
    draft: Option<Draft>,
) -> Result<Exit, Failure> {
    diagnostics(shell, &answer.diagnostics);
    let printer = &mut shell.printer;
    let wrong = draft.is_none();
    match printer.output() {
        Output::Json | Output::Yaml => {
            print_data(printer, &AnswerWithPlan::new(answer, draft.as_ref()))?;
        }
        Output::Name => {
            draft.iter().flat_map(steps_of).try_for_each(|name| printer.line(name))?;
        }
        Output::Table | Output::Wide if wrong => {}
        Output::Table | Output::Wide => {
            for skip in &answer.skips {
                printer
                    .toned(Tone::Faint, &format!("skipped  {}: {}", skip.instance, skip.reason))?;
            }
            let is_wide = printer.output() == Output::Wide;
            for line in draft.map_or_else(Vec::new, |draft| outlined(draft, &answer.skips, is_wide))
            {
                printer.line(plain(&line))?;
            }
            changes(printer, answer)?;
            let steps = answer.steps;
            let skips = answer.skips.len();
            printer.line(format!(
                "{} on {}, {}; {skips} are skipped",
                counted(steps, "instance"),
                counted(answer.nodes, "node"),
                counted(answer.edges, "edge"),
            ))?;
        }
    }
    Ok(if wrong { Exit::Usage } else { Exit::Done })
}

/// Prints the predicted changes.
fn changes(printer: &mut Printer, answer: &PlanAnswer) -> Result<(), Failure> {
    let is_wide = printer.output() == Output::Wide;
    let of = |change| answer.predictions.iter().filter(move |one| one.change == change);
    let shown = if is_wide { usize::MAX } else { SHOWN_DIFFS };
    for one in of(Change::Diff).take(shown) {
        printer.toned(Tone::Changed, &format!("{} would change", one.instance))?;
        let lines = one.diff.lines().count();
        let most = if is_wide { lines } else { SHOWN_LINES };
        for line in one.diff.lines().take(most) {
            let tone = match line.as_bytes().first() {
                Some(b'+') => Tone::Added,
                Some(b'-') => Tone::Removed,
                _ => Tone::Plain,
            };
            printer.toned(tone, &format!("  {}", plain(line)))?;
        }
        if lines > most {
            printer.line(format!("  … {} lines more; `-o wide` shows them", lines - most))?;
        }
    }
    if is_wide {
        for one in of(Change::None) {
            printer.line(format!("{} would change nothing", one.instance))?;
        }
        for one in of(Change::Unknown) {
            let line = format!("{}: {}", one.instance, plain(&one.reason));
            printer.toned(Tone::Faint, &line)?;
        }
    }
    let [diffs, none, unknown] =
        [Change::Diff, Change::None, Change::Unknown].map(|change| of(change).count());
    if diffs > shown {
        printer.line(format!("… {} more would change; `-o wide` shows them", diffs - shown))?;
    }
    if diffs + none + unknown > 0 {
        printer.line(format!(
            "{diffs} would change files, {none} would not, {} cannot be predicted",
            unknown + answer.not_predicted
        ))?;
    }
    Ok(())
}

fn outlined(mut draft: Draft, skips: &[Skip], all: bool) -> Vec<String> {
    leave_out(&mut draft, skips);
    let plan = Plan::new(draft).ok();
    let catalog = actions::catalog();
    // What plug-ins can do is known where they are.
    let is_final = |action: &str| {
        let known = catalog.get(action).map(|action| action.describe());
        known.is_some_and(|about| about.name != "none" && !about.can.contains(&Ability::Undo))
    };
    plan.map_or_else(Vec::new, |plan| outline(&plan, is_final, all))
}

/// Marks carried-over instances as skipped, because their plan does not.
fn leave_out(draft: &mut Draft, skips: &[Skip]) {
    let skips: BTreeMap<&str, &str> =
        skips.iter().map(|skip| (skip.instance.as_str(), skip.reason.as_str())).collect();
    for vertex in &mut draft.vertices {
        if let (Kind::Step(step), Some(reason)) =
            (&mut vertex.kind, skips.get(vertex.name.as_str()))
        {
            step.skip = Some((*reason).to_owned());
        }
    }
}

/// Names of the steps of a plan.
fn steps_of(plan: &Draft) -> impl Iterator<Item = &str> {
    let steps = plan.vertices.iter().filter(|vertex| matches!(vertex.kind, Kind::Step(_)));
    steps.map(|vertex| vertex.name.as_str())
}

/// Prints diagnostics with excerpts of the files.
pub(super) fn diagnostics(shell: &mut Shell, found: &[TaskFileDiagnostic]) {
    for one in found {
        if !one.drawing.is_empty() {
            shell.printer.note(one.drawing.trim_end());
            continue;
        }
        let word = match one.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let Diagnostic { at, message, hint } = &one.diagnostic;
        let at = if at.is_empty() { String::new() } else { format!("{at}: ") };
        shell.printer.note(&format!("{word}: {at}{message} [{}]", one.code));
        if let Some(hint) = hint {
            shell.printer.note(&format!("  hint: {hint}"));
        }
    }
}
