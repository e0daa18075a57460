//! `hoist cluster plan`.

use std::path::{Path, PathBuf};

use clap::Args;
use hoist_api::client::Client;
use hoist_api::cluster::ClusterPlanView;
use hoist_cluster::planner::{MemberId, Move, RolePlan};
use hoist_cluster::role::Role;
use hoist_cluster::what_if::{self, EventResult};
use hoist_model::Exit;

use super::Shell;
use super::lookup::{self, label, short};
use crate::edit;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Show the plan of the roles, or the one that would replace it
///
/// The controller plans by itself when members join and leave. A move that leaves `core` or `data`
/// waits for consent, because the member holds state. `--what-if` plans a cluster that does not
/// have to exist, from a file, and asks no controller. Ends with 3 if a required role would have no
/// member, and with 20 if `--preview` or `--dry-run` shows changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster plan\n  hoist cluster plan --preview\n  \
    hoist cluster plan --consent n2\n  hoist cluster plan --replan\n  \
    hoist cluster plan --what-if site.yaml\n  \
    hoist cluster plan --what-if - -o json < site.yaml\n  \
    hoist schema cluster-what-if > what-if.schema.json")]
pub(super) struct PlanArgs {
    /// Show the plan of now, without storing it
    #[arg(long, conflicts_with_all = ["what_if", "replan", "consent", "dry_run"])]
    preview: bool,

    /// Plan again and store the plan, for instance after the hardware of members has changed
    #[arg(long, conflicts_with_all = ["what_if", "consent"])]
    replan: bool,

    /// Let this member hand over its state and move
    #[arg(long, value_name = "NODE", conflicts_with = "what_if")]
    consent: Option<String>,

    /// Plan the nodes and events of this file; `-` is standard input
    #[arg(long, value_name = "FILE")]
    what_if: Option<PathBuf>,

    /// Show the change of `--replan` or `--consent` without making it
    #[arg(long)]
    dry_run: bool,
}

impl PlanArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if let Some(file) = &self.what_if {
            return what_if(shell, file);
        }
        if self.dry_run && !self.replan && self.consent.is_none() {
            return Err(Failure::usage("`--dry-run` is for `--replan` and `--consent`").with_hint(
                "`hoist cluster plan` changes nothing; `--preview` shows the next plan",
            ));
        }
        let client = shell.client()?;
        if let Some(node) = &self.consent {
            return consent(shell, &client, node, self.dry_run).await;
        }
        if self.preview || self.dry_run {
            let current = client.cluster_plan(false).await?;
            let next = client.cluster_plan(true).await?;
            print_view(&mut shell.printer, &next)?;
            let is_other = next.generation != current.generation;
            return Ok(if is_other { Exit::WouldChange } else { Exit::Done });
        }
        let view = if self.replan {
            client.replan_cluster(None).await?
        } else {
            client.cluster_plan(false).await?
        };
        print_view(&mut shell.printer, &view)?;
        if self.replan && view.dry_run {
            shell.printer.note("the plan is up to date");
        }
        Ok(Exit::Done)
    }
}

async fn consent(
    shell: &mut Shell,
    client: &Client,
    node: &str,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let member = lookup::find(client, node).await?;
    let plan = client.cluster_plan(false).await?;
    let planned = plan.plan.moves.iter().find(|planned| planned.member.0 == member.id);
    let Some(planned) = planned.filter(|_| plan.waiting.contains(&member.id)) else {
        let message = format!("no move of {} waits for consent", label(&member));
        return Err(Failure::refused(message).with_hint("`hoist cluster plan` shows waiting moves"));
    };
    let Move { from, to, .. } = planned;
    let what = format!("let {} move from {from} to {to}", label(&member));
    if dry_run {
        return edit::would(&mut shell.printer, &what);
    }
    let view = client.replan_cluster(Some(&member.id)).await?;
    print_view(&mut shell.printer, &view)?;
    Ok(Exit::Done)
}

fn print_view(printer: &mut Printer, view: &ClusterPlanView) -> Result<(), Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => return printer.value(view),
        Output::Name => {
            let mut names = view.names.values();
            return names.try_for_each(|name| printer.line(name.as_str()));
        }
        Output::Table | Output::Wide => {}
    }
    let name_of = |id: &str| match view.names.get(id) {
        Some(name) => name.to_string(),
        None => short(id).to_owned(),
    };
    let mut rows = role_rows(&view.plan, name_of);
    for (id, role) in &view.declared {
        rows.push([name_of(id), role.clone(), "declared by the site".to_owned()]);
    }
    for (id, reason) in &view.held {
        rows.push([name_of(id), String::new(), reason.clone()]);
    }
    rows.sort();
    print_rows(printer, rows)?;
    for planned in &view.plan.moves {
        let Move { member, from, to, .. } = planned;
        let name = name_of(&member.0);
        let waits = if view.waiting.contains(&member.0) { ", waits for consent" } else { "" };
        printer.toned(Tone::Changed, &format!("{name}: {from} -> {to}{waits}"))?;
    }
    let members = members(view.plan.roles.len() + view.declared.len() + view.held.len());
    printer.line(format!(
        "plan generation {}, scale {}, {members}{}",
        view.generation,
        view.plan.scale.as_str(),
        below(&view.plan)
    ))?;
    for member in &view.waiting {
        let name = name_of(member);
        printer.note(&format!(
            "`hoist cluster plan --consent {name}` lets {name} hand over its state"
        ));
    }
    Ok(())
}

fn what_if(shell: &mut Shell, path: &Path) -> Result<Exit, Failure> {
    let text = input::read_whole(path)?;
    let source = match path.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => path.display().to_string(),
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
        Output::Table | Output::Wide => print_outcome(printer, &outcome)?,
    }
    Ok(if outcome.plan.is_refused() { Exit::Refused } else { Exit::Done })
}

fn print_outcome(printer: &mut Printer, outcome: &EventResult) -> Result<(), Failure> {
    let plan = &outcome.plan;
    print_rows(printer, role_rows(plan, str::to_owned))?;
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
    let members = members(outcome.members);
    printer.line(format!("scale {}, {members}{}", plan.scale.as_str(), below(plan)))?;
    if plan.is_refused() {
        let roles: Vec<&str> = plan.uncovered.iter().map(|role| role.as_str()).collect();
        let text =
            format!("refused: no member for {}; change pins or forbidden roles", roles.join(", "));
        printer.toned(Tone::Removed, &text)?;
    }
    Ok(())
}

/// Name, role and reasons of each member.
fn role_rows(plan: &RolePlan, name_of: impl Fn(&str) -> String) -> Vec<[String; 3]> {
    let row = |(member, role): (&MemberId, &Role)| {
        let reasons = plan.reasons.get(member).into_iter().flatten();
        let reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        [name_of(&member.0), role.to_string(), reasons.join("; ")]
    };
    plan.roles.iter().map(row).collect()
}

/// A table, and an empty line behind it.
fn print_rows(printer: &mut Printer, rows: Vec<[String; 3]>) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["NODE", "ROLE", "REASONS"]);
    for row in rows {
        table.row(row.into());
    }
    printer.table(&table)?;
    printer.line("")
}

fn members(count: usize) -> String {
    match count {
        1 => "1 member".to_owned(),
        count => format!("{count} members"),
    }
}

/// The roles with too few members, as the end of a line.
fn below(plan: &RolePlan) -> String {
    let missing = plan.below.iter().map(|(role, count)| format!("; {role} lacks {count}"));
    missing.collect()
}
