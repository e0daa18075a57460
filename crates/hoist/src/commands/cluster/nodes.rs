//! `hoist cluster nodes`.

use clap::Args;
use hoist_api::cluster::ClusterMember;
use hoist_cluster::resources::Resources;
use hoist_model::Exit;
use jiff::Timestamp;

use super::Shell;
use super::lookup::{is_present, short, state_word};
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;
use crate::when::{age, to_the_second};

/// List the members of the cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster nodes\n  hoist cluster nodes -o wide\n  \
    hoist cluster nodes --all -o json")]
pub(super) struct NodesArgs {
    /// Also those that left, were expelled or were replaced
    #[arg(short, long)]
    all: bool,
}

impl NodesArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let mut members = shell.client()?.cluster_members().await?.items;
        let known = members.len();
        members.retain(|member| self.all || is_present(member.state));
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&members)?,
            Output::Name => {
                members.iter().try_for_each(|member| printer.line(member.node.as_str()))?;
            }
            Output::Table | Output::Wide if members.is_empty() => printer.note("no members"),
            Output::Table | Output::Wide => printer.table(&table(&members, Timestamp::now()))?,
        }
        let hidden = known - members.len();
        if hidden > 0 && matches!(printer.output(), Output::Table | Output::Wide) {
            printer.note(&format!("{hidden} former members; `--all` shows them"));
        }
        Ok(Exit::Done)
    }
}

fn table(members: &[ClusterMember], now: Timestamp) -> Table {
    let mut table =
        Table::new(&["NODE", "ID", "STATE", "ROLE", "SEEN", "CERTIFICATE UNTIL", "PLAN"]).wide(&[
            "ADDRESS",
            "ORDER",
            "ACCEPTED",
            "PREFERRED",
            "RESOURCES",
        ]);
    for member in members {
        table.row(vec![
            member.node.to_string(),
            short(&member.id).to_owned(),
            state_word(member.state).to_owned(),
            member.role.clone().unwrap_or_default(),
            member.last_seen.map(|at| ago(at, now)).unwrap_or_default(),
            member.certificate_ends.map(day).unwrap_or_default(),
            member.plan_generation.map(|plan| plan.to_string()).unwrap_or_default(),
            member.address.map(|address| address.to_string()).unwrap_or_default(),
            member.join_order.to_string(),
            to_the_second(member.accepted),
            member.preferred.clone().unwrap_or_default(),
            hardware(&member.resources),
        ]);
    }
    table
}

/// A clock of this machine that is behind the controller's is no reason to print a negative age.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    age(u64::try_from(now.duration_since(at).as_secs()).unwrap_or_default())
}

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

/// `8 cores, 64 GiB memory, 500 GiB disk`.
pub(super) fn hardware(resources: &Resources) -> String {
    let Resources { cores, memory_gib, disk_gib, network_mbps, gpus } = resources;
    let all = [
        format!("{cores} cores, {memory_gib} GiB memory, {disk_gib} GiB disk"),
        some(*network_mbps, "Mbit/s"),
        some(*gpus, "GPUs"),
    ];
    all.concat()
}

/// `, 4 GPUs`; nothing where there are none.
fn some(count: u64, unit: &str) -> String {
    if count == 0 { String::new() } else { format!(", {count} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::super::lookup::tests::member;
    use super::*;

    #[test]
    fn member_is_one_line() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let mut one = member("n1", "3f9c2a7700b1d4e8", "member");
        one.role = Some("edge".into());
        one.last_seen = Some("2026-01-01T00:04:57Z".parse().unwrap());
        one.certificate_ends = Some("2026-04-01T00:00:00Z".parse().unwrap());
        one.plan_generation = Some(3);
        assert_eq!(
            table(&[one], now).render(false),
            "NODE  ID            STATE   ROLE  SEEN  CERTIFICATE UNTIL  PLAN\n\
             n1    3f9c2a7700b1  member  edge  3s    2026-04-01         3\n"
        );
    }

    #[test]
    fn hardware_names_what_is_there() {
        let small = Resources { cores: 8, memory_gib: 64, disk_gib: 500, ..Resources::default() };
        assert_eq!(hardware(&small), "8 cores, 64 GiB memory, 500 GiB disk");
        let large = Resources { network_mbps: 10_000, gpus: 4, ..small };
        assert!(hardware(&large).ends_with(" disk, 10000 Mbit/s, 4 GPUs"));
    }

    #[test]
    fn time_that_is_ahead_is_no_age() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(ago("2026-01-01T00:00:09Z".parse().unwrap(), now), "0s");
    }
}
