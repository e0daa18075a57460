//! `hoist provision start`.

use clap::Args;
use hoist_api::provision::{ProvisionOptions, StartRequest, StartResult};
use hoist_model::{Exit, Name};

use super::Shell;
use super::watch;
use crate::commands::SelectorArgs;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::{Output, Printer};

/// Provision nodes: boot the provisioning agent and apply a profile to their disks
///
/// Each node gets the `ProvisionProfile` with the most specific selector. At its next network boot
/// it boots the agent, which fetches its document, writes the disks, and reports; from then on the
/// node boots its disk. The content of the disks that the profile names is destroyed as far as the
/// profile and `--wipe` allow it. Protected or installed nodes stop the whole command; nodes in
/// maintenance are left out.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist provision start node:n1\n  \
    hoist provision start role:compute --canary 2 --at-once 16 --affects 128\n  \
    hoist provision start 'label:rack=7' --profile debian-13 --reinstall --watch\n  \
    hoist provision start 'label:rack=7' --previous --at-once 4\n  \
    hoist provision start node:n1 --only config_drive,boot\n  \
    hoist provision start node:n1 --wipe ext,lvm --dry-run")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct StartArgs {
    #[command(flatten)]
    selector: SelectorArgs,

    /// By this profile, instead of the one that is closest to each node
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Name>,

    /// Install the previous installation of each node again: the profile and the images of its last
    /// successful run before the current one
    #[arg(long, conflicts_with_all = ["profile", "only"])]
    previous: bool,

    /// Only these actions, such as `config_drive,boot`; their prerequisites must be done
    #[arg(long, value_name = "ACTION", value_delimiter = ',')]
    only: Vec<String>,

    /// Kinds of foreign content that may be destroyed besides those of the profile; `any` for all
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    wipe: Vec<String>,

    /// So many nodes at the same time
    #[arg(long, value_name = "N")]
    at_once: Option<usize>,

    /// So many nodes may be neither as before nor done; those that failed count, and those that were
    /// aborted in the middle
    #[arg(long, value_name = "N")]
    max_unavailable: Option<usize>,

    /// So many nodes first, one after the other; the first failure stops the run
    #[arg(long, value_name = "N")]
    canary: Option<usize>,

    /// Let the root come to another disk than the last time, in this run
    #[arg(long)]
    allow_root_change: bool,

    /// Give secrets also to nodes without an address of their own in the inventory: the first
    /// client with the token of such a node is taken for the node
    #[arg(long)]
    secrets_without_address: bool,

    /// Also nodes that are installed; their disks are written over
    #[arg(long)]
    reinstall: bool,

    /// Show how it goes until it is over
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    write: WriteArgs,
}

impl StartArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let selector = self.selector.required()?;
        let how = ProvisionOptions {
            only: self.only,
            wipe: self.wipe,
            at_once: self.at_once,
            max_unavailable: self.max_unavailable,
            canary: self.canary,
            allow_root_change: self.allow_root_change,
            secrets_without_address: self.secrets_without_address,
            retire: false,
        };
        let request = StartRequest {
            selector,
            profile: self.profile,
            how,
            previous: self.previous,
            reinstall: self.reinstall,
            dry_run: true,
            affects: None,
        };
        let what = if self.allow_root_change {
            "provisioned; their disks are written, and their root may be on another disk than before"
        } else {
            "provisioned; their disks are written"
        };
        begin(shell, request, &self.write, self.watch, what).await
    }
}

/// Looks first, so that a large run is refused with its number, and asked about on a terminal.
pub(crate) async fn begin(
    shell: &mut Shell,
    request: StartRequest,
    write: &WriteArgs,
    is_watched: bool,
    what: &str,
) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let plan = client.start_provisioning(&request).await?;
    if write.dry_run {
        report(&mut shell.printer, &plan)?;
        shell.printer.note(&format!("{} nodes would be {what}", plan.nodes.len()));
        return Ok(Exit::WouldChange);
    }
    let count = plan.nodes.len();
    if plan.needs_affects && write.affects != Some(count) {
        return Err(Failure::refused(format!("this affects {count} nodes"))
            .with_hint(format!("confirm with `--affects {count}`")));
    }
    let ask = shell.printer.interactive() && !write.yes && write.affects.is_none();
    if ask && !shell.printer.ask(&format!("{count} nodes are {what}. Go on?"))? {
        return Err(Failure::Declined);
    }
    let request = StartRequest { dry_run: false, affects: write.affects, ..request };
    let started = client.start_provisioning(&request).await?;
    let run = started.run.clone().unwrap_or_default();
    if is_watched {
        shell.printer.note(&format!("run {run}"));
        return watch::watch(shell, &client, &run).await;
    }
    report(&mut shell.printer, &started)?;
    shell.printer.note(&format!(
        "run {run} has begun; start the machines from the network, and see \
         `hoist provision status {run} --watch`"
    ));
    Ok(Exit::Done)
}

fn report(printer: &mut Printer, started: &StartResult) -> Result<(), Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(started)?,
        Output::Name => match &started.run {
            Some(run) => printer.line(run)?,
            None => started.nodes.iter().try_for_each(|chosen| printer.line(&*chosen.node))?,
        },
        Output::Table | Output::Wide => {
            for chosen in &started.nodes {
                printer.line(format!("{} by profile {}", chosen.node, chosen.profile))?;
            }
        }
    }
    printer.flush()?;
    for left in &started.left_out {
        printer.note(&format!("{} is left out: {}", left.node, left.why));
    }
    Ok(())
}
