//! `hoist cluster roles`.

use clap::Args;
use hoist_api::cluster::{ClusterMember, ClusterPlanView};
use hoist_cluster::planner::MemberId;
use hoist_cluster::resources::Resources;
use hoist_model::Exit;
use serde::Serialize;

use super::Shell;
use super::lookup::{self, is_present, short, state_word};
use super::nodes::hardware;
use crate::failure::Failure;
use crate::printer::{Output, Printer};
use crate::table::Table;

/// List the roles of the members, with the reasons
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster roles\n  hoist cluster roles --explain n3\n  \
    hoist cluster roles -o json")]
pub(super) struct RolesArgs {
    /// Everything that decides the role of this member
    #[arg(long, value_name = "NODE")]
    explain: Option<String>,
}

#[derive(Debug, Serialize)]
struct RoleLine {
    node: String,
    id: String,
    role: Option<String>,
    reasons: Vec<String>,
}

/// Why a member has its role, and what its next one is.
#[derive(Debug, Serialize)]
struct Explanation {
    node: String,
    id: String,
    state: &'static str,
    role: Option<String>,
    reasons: Vec<String>,
    plan_generation: u64,
    /// The plan that the member works by.
    #[serde(skip_serializing_if = "Option::is_none")]
    member_generation: Option<u64>,
    resources: Resources,
    join_order: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred: Option<String>,
    /// The role from the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    declared: Option<String>,
    /// Why the member has no role.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
    /// The planned change of the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<PlannedRole>,
    /// The resources that it lacks for its role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    misfit: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PlannedRole {
    from: String,
    to: String,
    /// The member holds state: the change waits for consent.
    waits_for_consent: bool,
}

impl RolesArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        if let Some(text) = &self.explain {
            let member = lookup::find(&client, text).await?;
            let view = client.cluster_plan(false).await?;
            let explanation = explain(member, &view);
            let printer = &mut shell.printer;
            match printer.output() {
                Output::Json | Output::Yaml => printer.value(&explanation)?,
                Output::Name => printer.line(explanation.role.as_deref().unwrap_or("-"))?,
                Output::Table | Output::Wide => print(printer, &explanation)?,
            }
            return Ok(Exit::Done);
        }
        let members = client.cluster_members().await?.items;
        let lines: Vec<_> =
            members.into_iter().filter(|member| is_present(member.state)).map(line).collect();
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&lines)?,
            Output::Name => lines.iter().try_for_each(|line| printer.line(&line.node))?,
            Output::Table | Output::Wide if lines.is_empty() => printer.note("no members"),
            Output::Table | Output::Wide => printer.table(&table(lines))?,
        }
        Ok(Exit::Done)
    }
}

fn line(member: ClusterMember) -> RoleLine {
    let ClusterMember { id, node, role, reasons, .. } = member;
    RoleLine { node: node.to_string(), id, role, reasons }
}

fn table(lines: Vec<RoleLine>) -> Table {
    let mut table = Table::new(&["NODE", "ROLE", "REASONS"]).wide(&["ID"]);
    for RoleLine { node, id, role, reasons } in lines {
        table.row(vec![node, role.unwrap_or_default(), reasons.join("; "), id]);
    }
    table
}

fn explain(member: ClusterMember, view: &ClusterPlanView) -> Explanation {
    let id = MemberId(member.id.clone());
    let planned = view.plan.moves.iter().find(|planned| planned.member == id);
    let misfit = view.plan.misfit.get(&id).into_iter().flatten();
    Explanation {
        node: member.node.to_string(),
        state: state_word(member.state),
        role: member.role,
        reasons: member.reasons,
        plan_generation: view.generation,
        member_generation: member.plan_generation,
        resources: member.resources,
        join_order: member.join_order,
        preferred: member.preferred,
        declared: view.declared.get(&member.id).cloned(),
        held: view.held.get(&member.id).cloned(),
        planned: planned.map(|planned| PlannedRole {
            from: planned.from.to_string(),
            to: planned.to.to_string(),
            waits_for_consent: view.waiting.contains(&member.id),
        }),
        misfit: misfit.map(ToString::to_string).collect(),
        id: member.id,
    }
}

fn print(printer: &mut Printer, explanation: &Explanation) -> Result<(), Failure> {
    let Explanation { node, id, state, reasons, plan_generation, join_order, .. } = explanation;
    let role = match &explanation.role {
        Some(role) => format!("has role {role}"),
        None => "has no role".to_owned(),
    };
    printer.line(format!("{node} ({}) {role}", short(id)))?;
    let declared = explanation.declared.iter().map(|_| "declared by the site".to_owned());
    let texts = declared.chain(reasons.iter().cloned()).chain(explanation.held.clone());
    for (index, reason) in texts.enumerate() {
        let head = if index == 0 { "because" } else { "and" };
        printer.line(format!("  {head:9} {reason}"))?;
    }
    if let Some(PlannedRole { from, to, waits_for_consent }) = &explanation.planned {
        let waits = if *waits_for_consent {
            format!("; waits for `hoist cluster plan --consent {node}`")
        } else {
            String::new()
        };
        printer.line(format!("  {:9} {from} -> {to}{waits}", "planned"))?;
    }
    let reached = match explanation.member_generation {
        Some(reached) => format!("the node works by plan {reached}"),
        None => "the node has not reported its plan".to_owned(),
    };
    printer.line(format!("  {:9} generation {plan_generation}; {reached}", "plan"))?;
    printer.line(format!("  {:9} {}", "hardware", hardware(&explanation.resources)))?;
    if !explanation.misfit.is_empty() {
        printer.line(format!("  {:9} {}", "lacks", explanation.misfit.join(", ")))?;
    }
    let preferred = explanation.preferred.as_deref().unwrap_or("none");
    printer
        .line(format!("  {:9} {state}, number {join_order} in the order of joining", "member"))?;
    printer.line(format!("  {:9} {preferred}", "preferred"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::lookup::tests::member;
    use super::*;
    use crate::printer::tests::printer;

    #[test]
    fn explanation_names_reasons_and_the_planned_move() {
        let view = json!({
            "generation": 4, "names": {"aaaabbbbccccdddd": "n1"}, "dry_run": false,
            "waiting": ["aaaabbbbccccdddd"],
            "plan": {
                "scale": "medium", "roles": {"aaaabbbbccccdddd": "data"}, "reasons": {},
                "moves": [{"member": "aaaabbbbccccdddd", "from": "core", "to": "data",
                    "needs_drain": true}],
                "uncovered": [], "below": {}, "deferred": {},
                "misfit": {"aaaabbbbccccdddd":
                    [{"resource": "disk_gib", "have": 10, "want": 500}]},
            },
        });
        let view: ClusterPlanView = serde_json::from_value(view).unwrap();
        let mut one = member("n1", "aaaabbbbccccdddd", "member");
        one.role = Some("core".into());
        one.reasons = vec!["keeps its role".into(), "not `edge` as preferred".into()];
        one.preferred = Some("edge".into());
        one.plan_generation = Some(3);
        let (mut printer, out, _) = printer(Output::Table);
        print(&mut printer, &explain(one, &view)).unwrap();
        assert_eq!(
            out.text(),
            "n1 (aaaabbbbcccc) has role core\n  \
             because   keeps its role\n  \
             and       not `edge` as preferred\n  \
             planned   core -> data; waits for `hoist cluster plan --consent n1`\n  \
             plan      generation 4; the node works by plan 3\n  \
             hardware  0 cores, 0 GiB memory, 0 GiB disk\n  \
             lacks     10 of 500 GiB of disk\n  \
             member    member, number 1 in the order of joining\n  \
             preferred edge\n"
        );
    }
}
