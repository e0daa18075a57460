//! `hoist cluster status`.

use std::collections::BTreeMap;

use clap::Args;
use hoist_api::cluster::{Assignment, ClusterMember, ClusterStatus};
use hoist_cluster::planner::Mode;
use hoist_model::Exit;
use serde::Serialize;

use super::Shell;
use super::lookup::{is_present, state_word};
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::when::to_the_second;

/// Show the cluster, the states of its members, and warnings
///
/// Ends with 0 when all is well, with 7 when members are silent or there are warnings, and with 9
/// when the site has no cluster.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster status\n  hoist cluster status -o json\n  \
    hoist cluster status || echo look at it")]
pub(super) struct StatusArgs {}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    status: ClusterStatus,
    /// How many members, present and former ones, are in each state.
    states: BTreeMap<&'static str, usize>,
    /// How many members have each role.
    roles: BTreeMap<String, usize>,
    degraded: bool,
}

impl Report {
    fn new(status: ClusterStatus, members: &[ClusterMember]) -> Self {
        let mut states = BTreeMap::new();
        let mut roles = BTreeMap::new();
        for member in members {
            *states.entry(state_word(member.state)).or_default() += 1;
            if let Some(role) = member.role.as_ref().filter(|_| is_present(member.state)) {
                *roles.entry(role.clone()).or_default() += 1;
            }
        }
        let degraded = status.counts.silent > 0 || !status.warnings.is_empty();
        Self { status, states, roles, degraded }
    }
}

impl StatusArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let status = client.cluster().await?.ok_or(Failure::NoCluster)?;
        let report = Report::new(status, &client.cluster_members().await?.items);
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&report)?,
            Output::Name => printer.line(report.status.name.as_str())?,
            Output::Table | Output::Wide => print(printer, &report)?,
        }
        Ok(if report.degraded { Exit::Degraded } else { Exit::Done })
    }
}

fn print(printer: &mut Printer, report: &Report) -> Result<(), Failure> {
    let ClusterStatus { name, uid, pin, founded, counts, warnings, .. } = &report.status;
    let assigned = match (report.status.assignment, report.status.mode) {
        (Assignment::Declared, _) => "declared by the site",
        (Assignment::Automatic, Mode::Keep) => "automatic, mode keep",
        (Assignment::Automatic, Mode::Rebalance) => "automatic, mode rebalance",
    };
    let (plan, scale) = (report.status.plan_generation, &report.status.scale);
    let roles = if report.roles.is_empty() { "none".to_owned() } else { counted(&report.roles) };
    let states = if report.states.is_empty() { "none".to_owned() } else { counted(&report.states) };
    let generation = report.status.membership_generation;
    let (silent, pending) = (counts.silent, counts.pending);
    let lines = [
        ("cluster", format!("{name}, founded {}", to_the_second(*founded))),
        ("uid", uid.clone()),
        ("pin", pin.clone()),
        (
            "members",
            format!("{states}; {silent} silent, {pending} pending; generation {generation}"),
        ),
        ("roles", format!("{roles}; {assigned}")),
        ("plan", format!("generation {plan}, scale {scale}")),
    ];
    let (state, tone) =
        if report.degraded { ("degraded", Tone::Removed) } else { ("ok", Tone::Added) };
    printer.toned(tone, state)?;
    for (name, text) in lines {
        printer.line(format!("  {name:8} {text}"))?;
    }
    for warning in warnings {
        printer.toned(Tone::Changed, &format!("! {warning}"))?;
    }
    if counts.pending > 0 {
        printer.note("requests wait for an operator; `hoist cluster pending` shows them");
    }
    Ok(())
}

/// `3 edge, 1 core`.
fn counted<K: std::fmt::Display>(counts: &BTreeMap<K, usize>) -> String {
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::lookup::tests::member;
    use super::*;
    use crate::printer::tests::printer;

    fn status(silent: usize, warnings: &[&str]) -> ClusterStatus {
        let value = json!({
            "name": "lab", "uid": "1f".repeat(16), "pin": "sha256:2e",
            "founded": "2026-01-01T00:00:00Z", "assignment": "automatic", "mode": "keep",
            "membership_generation": 5, "plan_generation": 3, "scale": "small",
            "counts": {"members": 2, "accepted": 0, "pending": 1, "silent": silent},
            "warnings": warnings,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn status_counts_states_and_roles() {
        let mut members = [
            member("n1", "aaaa", "member"),
            member("n2", "bbbb", "member"),
            member("n3", "cccc", "expelled"),
        ];
        for (member, role) in members.iter_mut().zip(["edge", "core", "data"]) {
            member.role = Some(role.to_owned());
        }
        let report = Report::new(status(0, &[]), &members);
        let (mut printer, out, err) = printer(Output::Table);
        print(&mut printer, &report).unwrap();
        assert_eq!(
            out.text(),
            format!(
                "ok\n  cluster  lab, founded 2026-01-01T00:00:00Z\n  uid      {}\n  \
                 pin      sha256:2e\n  \
                 members  1 expelled, 2 member; 0 silent, 1 pending; generation 5\n  \
                 roles    1 core, 1 edge; automatic, mode keep\n  \
                 plan     generation 3, scale small\n",
                "1f".repeat(16)
            )
        );
        assert!(err.text().contains("`hoist cluster pending`"), "{}", err.text());
    }

    #[test]
    fn silent_members_and_warnings_degrade() {
        assert!(!Report::new(status(0, &[]), &[]).degraded);
        assert!(Report::new(status(1, &[]), &[]).degraded);
        let report = Report::new(status(0, &["silent members: n1; check it"]), &[]);
        assert!(report.degraded);
        let (mut printer, out, _) = printer(Output::Table);
        print(&mut printer, &report).unwrap();
        assert!(out.text().starts_with("degraded\n"), "{}", out.text());
        assert!(out.text().ends_with("! silent members: n1; check it\n"), "{}", out.text());
    }
}
