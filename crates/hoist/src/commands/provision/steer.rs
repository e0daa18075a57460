//! `hoist provision retry`, `abort` and `undo`.

use clap::Args;
use hoist_api::provision::{SteerRequest, SteerResult};
use hoist_model::Exit;

use super::Shell;
use super::status;
use crate::failure::Failure;
use crate::printer::Output;

#[derive(Debug, Args)]
pub(super) struct SteerArgs {
    /// A run, `last`, or a node
    #[arg(value_name = "RUN|NODE", default_value = "last")]
    name: String,

    /// Show the plan without changing anything; exits with 20 if there is something to do
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    #[command(flatten)]
    steer: SteerArgs,

    /// Leave disks as they are: restore only the boot state of the nodes
    #[arg(long)]
    boot_only: bool,

    /// Agree to an undo of many nodes by naming how many it is about
    #[arg(long, value_name = "N")]
    affects: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    steer: SteerArgs,

    /// The key that may go on, where another one came with a node's token, as `status` shows it; `none`
    /// lets no key go on, and the machine has to be started from the network again
    #[arg(long, value_name = "FINGERPRINT")]
    key: Vec<String>,
}

impl RetryArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request = SteerRequest { keys: self.key, ..SteerRequest::default() };
        self.steer.carry_out(shell, "retry", request).await
    }
}

impl UndoArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let Self { steer, boot_only, affects } = self;
        let request = SteerRequest { boot_only, affects, ..SteerRequest::default() };
        steer.carry_out(shell, "undo", request).await
    }
}

impl SteerArgs {
    pub(super) async fn run(self, shell: &mut Shell, what: &str) -> Result<Exit, Failure> {
        self.carry_out(shell, what, SteerRequest::default()).await
    }

    async fn carry_out(
        self,
        shell: &mut Shell,
        what: &str,
        request: SteerRequest,
    ) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let run = status::find(&client, &self.name).await?;
        let is_run = run.run == self.name || self.name == "last";
        let nodes = if is_run {
            Vec::new()
        } else {
            run.nodes.iter().map(|node| node.node.clone()).collect()
        };
        let dry = SteerRequest { nodes, dry_run: true, ..request };
        let plan = client.steer_provisioning(&run.run, what, &dry).await?;
        if self.dry_run {
            report(shell, &plan, what)?;
            let changes = !plan.nodes.is_empty();
            return Ok(if changes { Exit::WouldChange } else { Exit::Done });
        }
        if plan.nodes.is_empty() {
            shell.printer.note(&format!("nothing to {what} in run {}", run.run));
            report(shell, &SteerResult { dry_run: false, ..plan }, what)?;
            return Ok(Exit::Done);
        }
        let ask = shell.printer.interactive() && !self.yes;
        let question = format!("{what} {} nodes of run {}?", plan.nodes.len(), run.run);
        if ask && !shell.printer.ask(&question)? {
            return Err(Failure::Declined);
        }
        let request = SteerRequest { dry_run: false, ..dry };
        let done = client.steer_provisioning(&run.run, what, &request).await?;
        report(shell, &done, what)?;
        Ok(Exit::Done)
    }
}

fn report(shell: &mut Shell, steered: &SteerResult, what: &str) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(steered)?,
        Output::Name => steered.nodes.iter().try_for_each(|node| printer.line(&**node))?,
        Output::Table | Output::Wide => {
            let would = if steered.dry_run { "would " } else { "" };
            for node in &steered.nodes {
                printer.line(format!("{would}{what} {node}"))?;
            }
        }
    }
    printer.flush()?;
    for note in &steered.notes {
        printer.note(note);
    }
    if steered.dry_run && steered.needs_affects {
        let count = steered.nodes.len();
        printer.note(&format!("confirm the number of nodes with `--affects {count}`"));
    }
    Ok(())
}
