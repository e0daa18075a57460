//! `hoist cluster found`.

use clap::{Args, ValueEnum};
use hoist_api::cluster::{Assignment, FoundRequest};
use hoist_model::{Exit, Name};

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;

/// Found the cluster of this site, without a member
///
/// A site has one cluster. The controller with the site's `ca/root.key` makes the authority of the
/// cluster, and stays the one that signs certificates of members.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster found --name lab\n  \
    hoist cluster found --name hpc --assignment declared\n  \
    hoist cluster found --name lab --rebalance-on-join --dry-run")]
pub(super) struct FoundArgs {
    /// Name of the cluster
    #[arg(long)]
    name: Name,

    /// Who assigns roles: the planner, or the role of each node in the site
    #[arg(long, value_enum, default_value_t, value_name = "WHO")]
    assignment: AssignmentArg,

    /// Move members to where they fit better when another one joins
    #[arg(long)]
    rebalance_on_join: bool,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum AssignmentArg {
    #[default]
    Automatic,
    Declared,
}

impl From<AssignmentArg> for Assignment {
    fn from(assignment: AssignmentArg) -> Self {
        match assignment {
            AssignmentArg::Automatic => Self::Automatic,
            AssignmentArg::Declared => Self::Declared,
        }
    }
}

impl FoundArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if self.rebalance_on_join && self.assignment == AssignmentArg::Declared {
            return Err(Failure::usage("`--rebalance-on-join` is for the planner")
                .with_hint("with `--assignment declared` the site gives every node its role"));
        }
        let client = shell.client()?;
        if self.dry_run {
            return match client.cluster().await? {
                Some(known) => Err(Failure::refused(format!(
                    "this site has the cluster `{}` ({}) already",
                    known.name, known.uid
                ))
                .with_hint("join nodes to it; another cluster needs another site")),
                None => edit::would(&mut shell.printer, &format!("found cluster {}", self.name)),
            };
        }
        let request = FoundRequest {
            name: self.name,
            assignment: self.assignment.into(),
            rebalance_on_join: self.rebalance_on_join,
        };
        let founded = client.found_cluster(&request).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&founded)?,
            Output::Name => printer.line(founded.name.as_str())?,
            Output::Table | Output::Wide => {
                printer.line(format!("cluster {} is founded", founded.name))?;
                printer.line(format!("  uid  {}", founded.uid))?;
                printer.line(format!("  pin  {}", founded.pin))?;
            }
        }
        printer.note("it has no members; `hoist cluster token create` lets nodes join");
        Ok(Exit::Done)
    }
}
