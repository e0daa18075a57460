//! What operators say to a run.

use clap::{Args, ValueEnum};
use hoist_api::deploy::{Order, Ordered};
use hoist_model::Exit;

use super::{watch, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// What all of them take.
#[derive(Debug, Clone, Args)]
pub(super) struct OrderArgs {
    /// Id of a run, the end of one, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Show what it is about, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl OrderArgs {
    async fn tell(&self, shell: &mut Shell, order: &Order, said: &str) -> Result<Ordered, Failure> {
        let told = shell.client()?.order_run(&self.run, said, order, self.dry_run).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&told)?,
            Output::Name => told.instances.iter().try_for_each(|name| printer.line(name))?,
            Output::Table | Output::Wide => {
                for name in &told.instances {
                    printer.line(format!("  {name}"))?;
                }
                let would = if told.dry_run { "would " } else { "" };
                printer.line(format!("{would}{said} run {} ({})", told.run.id, word(&told.run)))?;
            }
        }
        Ok(told)
    }

    async fn say(self, shell: &mut Shell, order: &Order, said: &str) -> Result<Exit, Failure> {
        let told = self.tell(shell, order, said).await?;
        Ok(if told.dry_run { Exit::WouldChange } else { Exit::Done })
    }
}

/// Start nothing new in a run; what runs comes to its end
///
/// Nothing on the nodes is touched. With `--now`, what runs is told to end (TERM), and killed if it
/// does not. `hoist deploy resume` does what is left.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy stop last\n  hoist deploy stop last --now\n  \
    hoist deploy stop last --dry-run")]
pub(super) struct StopArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// End also what runs
    #[arg(long)]
    now: bool,
}

impl StopArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let order = Order { now: self.now, ..Order::default() };
        self.order.say(shell, &order, "stop").await
    }
}

/// Let a run go on that was stopped, paused, or did not come to a good end
///
/// What came to a good end is not done again; what failed, was interrupted or blocked is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy resume last\n  \
    hoist deploy resume last --dry-run\n  hoist deploy resume last --detach")]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// Do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl ResumeArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let before = client.run(&self.order.run).await?.summary.records;
        let detach = self.detach || self.order.dry_run;
        let told = self.order.tell(shell, &Order::default(), "resume").await?;
        if detach {
            return Ok(if told.dry_run { Exit::WouldChange } else { Exit::Done });
        }
        watch::follow(shell, &client, &told.run.id, before).await
    }
}

/// Start nothing new, in all of a run or on one node, until it is unpaused
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy pause last\n  hoist deploy pause last --node n7")]
pub(super) struct PauseArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// Only on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl PauseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let order = Order { node: self.node, ..Order::default() };
        self.order.say(shell, &order, "pause").await
    }
}

/// Take a pause back
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist deploy unpause last\n  hoist deploy unpause last --node n7"
)]
pub(super) struct UnpauseArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// Only on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl UnpauseArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let order = Order { node: self.node, ..Order::default() };
        self.order.say(shell, &order, "unpause").await
    }
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mark {
    Ok,
    Failed,
}

/// Say how an instance ended, where it failed or nobody knows
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy mark last ok reboot@n3\n  \
    hoist deploy mark last failed reboot@n3")]
pub(super) struct MarkArgs {
    #[command(flatten)]
    order: OrderArgs,
    #[arg(value_name = "OK|FAILED", value_enum)]
    mark: Mark,
    #[arg(value_name = "INSTANCE", required = true)]
    instances: Vec<String>,
}

impl MarkArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let good = Some(matches!(self.mark, Mark::Ok));
        let order = Order { good, instances: self.instances, ..Order::default() };
        self.order.say(shell, &order, "mark").await
    }
}
