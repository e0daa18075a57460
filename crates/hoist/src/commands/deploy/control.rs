//! What operators say to a run.

use clap::{Args, ValueEnum};
use hoist_api::deploy::{RunCommandRequest, RunCommandResult};
use hoist_model::Exit;

use super::{counted, interrupt, watch, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer};

/// What all of them take.
#[derive(Debug, Clone, Args)]
pub(super) struct RunCommandArgs {
    /// Id of a run, the end of one, or `last`
    #[arg(value_name = "RUN", value_parser = super::named)]
    run: String,
    /// Show the affected instances, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl RunCommandArgs {
    async fn tell(
        &self,
        shell: &mut Shell,
        request: &RunCommandRequest,
        said: &str,
    ) -> Result<RunCommandResult, Failure> {
        let told = shell.client()?.command_run(&self.run, said, request, self.dry_run).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&told)?,
            Output::Name => told.instances.iter().try_for_each(|name| printer.line(name))?,
            Output::Table | Output::Wide => {
                for name in &told.instances {
                    printer.line(format!("  {name}"))?;
                }
                shared(printer, &told.concurrent);
                let what = if told.dry_run { "would be " } else { "" };
                let done = done(said);
                let run = &told.run;
                printer.line(format!("{what}{done}; run {} is {}", run.id, word(run)))?;
            }
        }
        Ok(told)
    }

    async fn say(
        self,
        shell: &mut Shell,
        request: &RunCommandRequest,
        said: &str,
    ) -> Result<Exit, Failure> {
        let told = self.tell(shell, request, said).await?;
        Ok(if told.dry_run { Exit::WouldChange } else { Exit::Done })
    }
}

/// Whether runs may share nodes.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ConcurrentArgs {
    /// Start although another run is under way on the same nodes
    #[arg(long)]
    pub(super) allow_concurrent: bool,
}

/// Prints the active runs on the same nodes.
pub(super) fn shared(printer: &mut Printer, concurrent: &[String]) {
    for one in concurrent {
        printer.warn(&format!("{one}; two runs on one node need `--allow-concurrent`"));
    }
}

/// The past participle of a command.
fn done(said: &str) -> &str {
    match said {
        "stop" => "stopped",
        "resume" => "resumed",
        "pause" => "paused",
        "unpause" => "unpaused",
        "hold" => "held",
        "release" => "released",
        "retry" => "tried again",
        "mark" => "marked",
        other => other,
    }
}

/// Start nothing new in a run; running instances finish
///
/// Nothing on the nodes changes. With `--now`, running programs get TERM, and KILL if they do not
/// end. `hoist deploy resume` continues the run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy stop last\n  hoist deploy stop last --now\n  \
    hoist deploy stop last --after deployed\n  hoist deploy stop last --dry-run")]
pub(super) struct StopArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    /// End also what runs
    #[arg(long)]
    now: bool,
    /// Only after this barrier passed, or this instance or all instances of this task succeeded
    #[arg(long, value_name = "BARRIER|TASK", conflicts_with = "now")]
    after: Option<String>,
}

impl StopArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request =
            RunCommandRequest { now: self.now, after: self.after, ..RunCommandRequest::default() };
        self.target.say(shell, &request, "stop").await
    }
}

/// Resume a run that was stopped or paused, or that failed
///
/// Succeeded instances do not run again; failed, interrupted and blocked ones do.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy resume last\n  \
    hoist deploy resume last --dry-run\n  hoist deploy resume last --detach")]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    #[command(flatten)]
    concurrent: ConcurrentArgs,
    /// Do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl ResumeArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let before = client.run(&self.target.run).await?.summary.records;
        let detach = self.detach || self.target.dry_run;
        let request = RunCommandRequest {
            allow_concurrent: self.concurrent.allow_concurrent,
            ..RunCommandRequest::default()
        };
        let told = self.target.tell(shell, &request, "resume").await?;
        if detach {
            return Ok(if told.dry_run { Exit::WouldChange } else { Exit::Done });
        }
        watch::follow(shell, &client, &told.run.id, before).await
    }
}

/// Start nothing new, in all of a run or on some nodes, until it is unpaused
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy pause last\n  \
    hoist deploy pause last --node n7\n  hoist deploy pause last --role web")]
pub(super) struct PauseArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    #[command(flatten)]
    part: PartArgs,
}

/// Which part of a run.
#[derive(Debug, Args)]
struct PartArgs {
    /// Only on this node
    #[arg(long, value_name = "NODE", conflicts_with = "role")]
    node: Option<String>,
    /// Only on the nodes on which it does something for this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
}

impl PartArgs {
    fn request(self) -> RunCommandRequest {
        RunCommandRequest { node: self.node, role: self.role, ..RunCommandRequest::default() }
    }
}

impl PauseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        self.target.say(shell, &self.part.request(), "pause").await
    }
}

/// Unpause a run or nodes
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy unpause last\n  \
    hoist deploy unpause last --node n7\n  hoist deploy unpause last --role web")]
pub(super) struct UnpauseArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    #[command(flatten)]
    part: PartArgs,
}

impl UnpauseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        self.target.say(shell, &self.part.request(), "unpause").await
    }
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mark {
    Ok,
    Failed,
}

/// Set the outcome of an instance that failed or whose outcome is unknown
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy mark last ok reboot@n3\n  \
    hoist deploy mark last failed reboot@n3")]
pub(super) struct MarkArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    #[command(flatten)]
    concurrent: ConcurrentArgs,
    #[arg(value_name = "OK|FAILED", value_enum)]
    mark: Mark,
    #[arg(value_name = "INSTANCE", required = true)]
    instances: Vec<String>,
}

impl MarkArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let good = Some(matches!(self.mark, Mark::Ok));
        let allow_concurrent = self.concurrent.allow_concurrent;
        let request = RunCommandRequest {
            good,
            instances: self.instances,
            allow_concurrent,
            ..RunCommandRequest::default()
        };
        self.target.say(shell, &request, "mark").await
    }
}

/// What names instances.
#[derive(Debug, Clone, Args)]
pub(super) struct InstanceArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    /// A task on a node, such as `db-init@n1`, or a task on all of its nodes
    #[arg(value_name = "INSTANCE", required = true)]
    instances: Vec<String>,
}

impl InstanceArgs {
    async fn say(
        self,
        shell: &mut Shell,
        said: &str,
        allow_concurrent: bool,
    ) -> Result<Exit, Failure> {
        let request = RunCommandRequest {
            instances: self.instances,
            allow_concurrent,
            ..RunCommandRequest::default()
        };
        self.target.say(shell, &request, said).await
    }
}

/// Let instances wait, though they could start, until they are released
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy hold last db-upgrade\n  \
    hoist deploy hold last db-upgrade@n3")]
pub(super) struct HoldArgs {
    #[command(flatten)]
    instances: InstanceArgs,
}

impl HoldArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        self.instances.say(shell, "hold", false).await
    }
}

/// Release held instances
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy release last db-upgrade@n3")]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    instances: InstanceArgs,
}

impl ReleaseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        self.instances.say(shell, "release", false).await
    }
}

/// Retry instances that failed or whose outcome is unknown
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy retry last db-init@n1")]
pub(super) struct RetryArgs {
    #[command(flatten)]
    instances: InstanceArgs,
    #[command(flatten)]
    concurrent: ConcurrentArgs,
}

impl RetryArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        self.instances.say(shell, "retry", self.concurrent.allow_concurrent).await
    }
}

/// Undo a run, the last change first
///
/// The undo is a run of its own and is shown like one. Steps that cannot be undone are listed
/// before anything changes; the undo is refused unless `--leave-gaps` is given.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy undo last --dry-run\n  \
    hoist deploy undo last\n  hoist deploy undo last web-start web-page@web1\n  \
    hoist deploy undo last --on rack=r3 --leave-gaps")]
pub(super) struct UndoArgs {
    #[command(flatten)]
    target: RunCommandArgs,
    /// Only these; a task's name means all of its instances
    #[arg(value_name = "INSTANCE")]
    instances: Vec<String>,
    /// Only on these nodes
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    on: Option<String>,
    /// Leave steps that cannot be undone as they are
    #[arg(long)]
    leave_gaps: bool,
    /// Also restore files that were changed after the step
    #[arg(long)]
    over_changes: bool,
    #[command(flatten)]
    concurrent: ConcurrentArgs,
    /// Do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl UndoArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let Self { on, instances, leave_gaps, over_changes, .. } = self;
        let allow_concurrent = self.concurrent.allow_concurrent;
        let request = RunCommandRequest {
            on,
            instances,
            leave_gaps,
            over_changes,
            allow_concurrent,
            ..RunCommandRequest::default()
        };
        let client = shell.client()?;
        let asked = client.command_run(&self.target.run, "undo", &request, self.target.dry_run);
        let told = match interrupt::told(shell, asked).await? {
            Ok(told) => told,
            Err(exit) => return Ok(exit),
        };
        for gap in &told.gaps {
            shell.printer.warn(&format!("cannot be undone: {gap}"));
        }
        for unsure in &told.unsure {
            shell.printer.warn(unsure);
        }
        shared(&mut shell.printer, &told.concurrent);
        if !told.dry_run && !self.detach {
            return watch::follow(shell, &client, &told.run.id, 0).await;
        }
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&told)?,
            Output::Name => printer.line(&told.run.id)?,
            Output::Table | Output::Wide => {
                told.instances.iter().try_for_each(|name| printer.line(format!("  {name}")))?;
                let id = &told.run.id;
                printer.line(if told.dry_run {
                    let count = counted(told.instances.len(), "instance");
                    format!("{count} of run {id} would be undone")
                } else {
                    format!("run {id}")
                })?;
            }
        }
        Ok(if told.dry_run { Exit::WouldChange } else { Exit::Done })
    }
}
