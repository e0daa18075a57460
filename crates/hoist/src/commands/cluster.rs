//! `hoist cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_cluster::planner::RolePlan;
use hoist_cluster::what_if::{self, EventResult};
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Clusters and the roles of their members
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    Plan(PlanArgs),
}

/// Plan the roles of a cluster that does not have to exist
///
/// Reads nodes with their resources, wishes and present roles, and joins and leaves, from a file.
/// Asks no controller. Ends with 3 if a required role would have no member.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster plan --what-if site.yaml\n  \
    hoist cluster plan --what-if - -o json < site.yaml\n  \
    hoist schema cluster-what-if > what-if.schema.json")]
struct PlanArgs {
    /// The file with the nodes and events; `-` is standard input
    #[arg(long, value_name = "FILE")]
    what_if: PathBuf,
}

impl ClusterArgs {
    pub(crate) fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            ClusterCommand::Plan(args) => args.run(shell),
        }
    }
}

impl PlanArgs {
    fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let text = input::read_whole(&self.what_if)?;
        let source = match self.what_if.to_str() {
            Some("-") => "standard input".to_owned(),
            _ => self.what_if.display().to_string(),
        };
        let invalid = |problems| Failure::Input { input: source.clone(), problems };
        let file = what_if::read(&source, &text).map_err(invalid)?;
        let outcome = file.run().map_err(|problem| invalid(vec![problem]))?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&outcome)?,
            Output::Name => {
                outcome.plan.roles.keys().try_for_each(|member| printer.line(&member.0))?;
            }
            Output::Table | Output::Wide => show(printer, &outcome)?,
        }
        Ok(if outcome.plan.is_refused() { Exit::Refused } else { Exit::Done })
    }
}

fn show(printer: &mut Printer, outcome: &EventResult) -> Result<(), Failure> {
    let plan = &outcome.plan;
    let mut table = Table::new(&["NODE", "ROLE", "REASONS"]);
    for (member, role) in &plan.roles {
        let reasons = plan.reasons.get(member).into_iter().flatten();
        let reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        table.row(vec![member.0.clone(), role.to_string(), reasons.join("; ")]);
    }
    if !table.is_empty() {
        printer.table(&table)?;
        printer.line("")?;
    }
    let wide = printer.output() == Output::Wide;
    for step in outcome.steps.iter().filter(|_| wide) {
        let role = step.role.map(|role| format!(" as {role}")).unwrap_or_default();
        printer.line(format!("{}{role}: {} moves", step.event, step.moves.len()))?;
    }
    for change in &plan.moves {
        let consent = if change.needs_drain { ", after it was drained" } else { "" };
        let text = format!("{}: {} -> {}{consent}", change.member, change.from, change.to);
        printer.toned(Tone::Changed, &text)?;
    }
    let members = match outcome.members {
        1 => "1 member".to_owned(),
        count => format!("{count} members"),
    };
    printer.line(format!("scale {}, {members}{}", plan.scale.as_str(), below(plan)))?;
    if plan.is_refused() {
        let roles: Vec<&str> = plan.uncovered.iter().map(|role| role.as_str()).collect();
        let text =
            format!("refused: no member for {}; change pins or forbidden roles", roles.join(", "));
        printer.toned(Tone::Removed, &text)?;
    }
    Ok(())
}

/// The roles with too few members, as the end of a line.
fn below(plan: &RolePlan) -> String {
    let missing = plan.below.iter().map(|(role, count)| format!("; {role} lacks {count}"));
    missing.collect()
}
