//! `hoist deploy`: task files become plans, plans become runs.

mod bar;
mod check;
mod compare;
mod control;
mod files;
mod graph;
mod import_fuel;
mod interrupt;
mod lint;
mod offline;
mod outline;
mod show;
mod simulate;
mod watch;
mod worker;

use clap::{Args, Subcommand};
use hoist_api::deploy::{RunOutcome, RunState, RunSummary};
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::plain;

/// Deploy with graphs of small checked tasks
#[derive(Debug, Args)]
#[command(
    long_about = "Deploy with graphs of small checked tasks.\n\n\
        A run goes on whether or not anybody looks, also when the controller was killed and starts \
        again. RUN is the id of a run, the end of one, or `last`; INSTANCE is a task on a node, such \
        as `db-init@n1`, or a task on all of its nodes.",
    after_help = "Ends with 0 if the run succeeded, 7 if nodes were left out, 1 if it failed, 8 if \
        it was stopped, 4 if a person has to decide something, and 5 after Ctrl-C: the run goes on, and \
        its outcome is not known yet."
)]
pub(crate) struct DeployArgs {
    #[command(subcommand)]
    command: DeployCommand,
}

#[derive(Debug, Subcommand)]
enum DeployCommand {
    Lint(lint::LintArgs),
    Graph(graph::GraphArgs),
    Simulate(simulate::SimulateArgs),
    ImportFuel(import_fuel::ImportFuelArgs),
    Plan(files::PlanArgs),
    Run(files::RunArgs),
    Continue(files::ContinueArgs),
    List(show::ListArgs),
    Show(show::ShowArgs),
    Explain(show::ExplainArgs),
    Compare(compare::CompareArgs),
    Check(check::CheckArgs),
    Watch(watch::WatchArgs),
    Stop(control::StopArgs),
    Resume(control::ResumeArgs),
    Pause(control::PauseArgs),
    Unpause(control::UnpauseArgs),
    Hold(control::HoldArgs),
    Release(control::ReleaseArgs),
    Retry(control::RetryArgs),
    Mark(control::MarkArgs),
    Undo(control::UndoArgs),
    Worker(worker::WorkerArgs),
}

impl DeployArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            DeployCommand::Lint(args) => args.run(shell),
            DeployCommand::Graph(args) => args.run(shell).await,
            DeployCommand::Simulate(args) => args.run(shell).await,
            DeployCommand::ImportFuel(args) => args.run(shell),
            DeployCommand::Plan(args) => args.run(shell).await,
            DeployCommand::Run(args) => args.run(shell).await,
            DeployCommand::Continue(args) => args.run(shell).await,
            DeployCommand::List(args) => args.run(shell).await,
            DeployCommand::Show(args) => args.run(shell).await,
            DeployCommand::Explain(args) => args.run(shell).await,
            DeployCommand::Compare(args) => args.run(shell).await,
            DeployCommand::Check(args) => args.run(shell).await,
            DeployCommand::Watch(args) => args.run(shell).await,
            DeployCommand::Stop(args) => args.run(shell).await,
            DeployCommand::Resume(args) => args.run(shell).await,
            DeployCommand::Pause(args) => args.run(shell).await,
            DeployCommand::Unpause(args) => args.run(shell).await,
            DeployCommand::Hold(args) => args.run(shell).await,
            DeployCommand::Release(args) => args.run(shell).await,
            DeployCommand::Retry(args) => args.run(shell).await,
            DeployCommand::Mark(args) => args.run(shell).await,
            DeployCommand::Undo(args) => args.run(shell).await,
            DeployCommand::Worker(args) => args.run(shell).await,
        }
    }
}

/// What names a run or an instance. Without one, the question would be another.
fn named(text: &str) -> Result<String, &'static str> {
    match text {
        "" | "." | ".." => Err("it names nothing"),
        name => Ok(name.to_owned()),
    }
}

/// How a command ends that has seen a run come to rest.
fn exit(run: &RunSummary) -> Exit {
    match (run.state, run.outcome) {
        (RunState::Ended, Some(RunOutcome::Succeeded)) => Exit::Done,
        (RunState::Ended, Some(RunOutcome::Degraded)) => Exit::Degraded,
        (RunState::Ended, Some(RunOutcome::Stopped)) => Exit::Stopped,
        (RunState::Ended | RunState::Broken, _) => Exit::Failed,
        _ => Exit::Waiting,
    }
}

/// The outcome of a run, or its state while it has none, as one word.
fn word(run: &RunSummary) -> &'static str {
    run.outcome.map_or(run.state.as_str(), RunOutcome::as_str)
}

/// `12 ok, 3 blocked`.
fn counts(run: &RunSummary) -> String {
    let parts: Vec<String> = run
        .counts
        .iter()
        .map(|(state, count)| format!("{count} {}", state.replace('_', " ")))
        .collect();
    parts.join(", ")
}

/// Lines that tasks printed, as a terminal may be given them.
fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// `1 node`, `2 nodes`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain_lines("a\tb\n\rc\n"), "a\tb\n\\rc\n");
        assert_eq!(plain("\u{1b}[2Jx\r\u{9b}y\u{7}"), "\\u{1b}[2Jx\\r\\u{9b}y\\u{7}");
        assert_eq!(plain("grün"), "grün");
        let forged = "x\n02:31:44  done  db@n1\u{2028}y";
        assert_eq!(plain(forged), "x\\n02:31:44  done  db@n1\\u{2028}y", "a reason is one line");
    }
}
