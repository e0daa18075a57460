//! `hoist node list`.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clap::Args;
use hoist_api::Code;
use hoist_api::client::{Client, ClientError};
use hoist_api::inventory::{Node, WatchLine};
use hoist_diagnostic::chain;
use hoist_model::{Exit, NodeId};

use super::Shell;
use crate::commands::SelectorArgs;
use crate::commands::network::joined;
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::Output;
use crate::table::Table;

/// How long to wait before asking a server again that went away.
const PAUSE: Duration = Duration::from_secs(1);

/// List nodes, all of them or those of a selector
///
/// Selectors: `compute` (a role, else a group), `default/gpu`, `node:n*`, `role:`, `subrole:`,
/// `partition:`, `arch:`, `label:rack=7` or `rack=7`, `xname:x1000c*`, `nid:1-64,80`, `mac:`,
/// `state:installed`, `first(…)` and `*`, joined by `&`, `,` and `!` with parentheses.
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:\n  hoist node list\n  hoist node list 'compute & !label:rack=7'\n  \
        hoist node list nid:1-64 -o name\n  hoist node list role:compute --watch -o json"
)]
pub(super) struct ListArgs {
    #[command(flatten)]
    selector: SelectorArgs,

    /// Go on and print what changes
    #[arg(short, long)]
    watch: bool,
}

impl ListArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let selector = self.selector.text()?;
        let client = shell.client()?;
        let (since, mut nodes) = client.all_nodes(selector.as_deref()).await?;
        nodes.sort_by(by_name);
        if self.watch {
            return watch(shell, &client, selector.as_deref(), since, nodes).await;
        }
        print(shell, &nodes)?;
        Ok(Exit::Done)
    }
}

/// As people count: `n2` before `n10`.
fn by_name(a: &Node, b: &Node) -> Ordering {
    let name = |node: &Node| node.name.as_ref().map(ToString::to_string).unwrap_or_default();
    natural_order(&name(a), &name(b))
}

/// Runs of digits compare as numbers, everything else letter by letter.
fn natural_order(one: &str, other: &str) -> Ordering {
    let mut left = one;
    let mut right = other;
    while let (Some(first), Some(second)) = (left.chars().next(), right.chars().next()) {
        let (steps, order) = if first.is_ascii_digit() && second.is_ascii_digit() {
            compare_numbers(digits(left), digits(right))
        } else {
            ((first.len_utf8(), second.len_utf8()), first.cmp(&second))
        };
        if order != Ordering::Equal {
            return order;
        }
        left = &left[steps.0..];
        right = &right[steps.1..];
    }
    left.len().cmp(&right.len()).then_with(|| one.cmp(other))
}

/// The lengths of both, and their order as numbers of any size.
fn compare_numbers(one: &str, other: &str) -> ((usize, usize), Ordering) {
    let left = one.trim_start_matches('0');
    let right = other.trim_start_matches('0');
    let order = left.len().cmp(&right.len()).then_with(|| left.cmp(right));
    ((one.len(), other.len()), order)
}

fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
}

fn print(shell: &mut Shell, nodes: &[Node]) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => {
            let table = table(nodes);
            if table.is_empty() {
                printer.note("no nodes");
                return Ok(());
            }
            printer.table(&table)
        }
        Output::Name => {
            nodes.iter().try_for_each(|node| printer.line(node_ref::name_of(node)?.as_str()))
        }
        Output::Json | Output::Yaml => printer.value(&nodes),
    }
}

pub(crate) fn table(nodes: &[Node]) -> Table {
    let mut table =
        Table::new(&["NAME", "NID", "ROLE", "PARTITION", "MAC", "IP", "STATE", "NOTES"])
            .wide(&["XNAME", "ARCH", "SUBROLE", "GROUPS", "LABELS", "ID"]);
    for node in nodes {
        table.row(cells(node));
    }
    table
}

fn cells(node: &Node) -> Vec<String> {
    fn text(value: Option<&impl ToString>) -> String {
        value.map(ToString::to_string).unwrap_or_default()
    }
    let boot = node.boot.as_ref();
    vec![
        text(node.name.as_ref()),
        text(node.nid.as_ref()),
        text(node.role.as_ref()),
        node.partition.to_string(),
        text(boot.and_then(|boot| boot.mac.as_ref())),
        text(boot.and_then(|boot| boot.ip.as_ref())),
        node.state.as_ref().map(|state| state.phase).unwrap_or_default().as_str().to_owned(),
        notes(node),
        text(node.xname.as_ref()),
        node.arch.as_str().to_owned(),
        text(node.subrole.as_ref()),
        joined(node.groups.iter()),
        joined(node.labels.iter().map(|(key, value)| format!("{key}={value}"))),
        text(node.id.as_ref()),
    ]
}

/// Notes for people before they touch the node.
fn notes(node: &Node) -> String {
    let notes = [
        (!node.enabled, "disabled"),
        (node.protection.is_some(), "protected"),
        (node.maintenance.is_some(), "maintenance"),
    ];
    joined(notes.into_iter().filter(|(is, _)| *is).map(|(_, word)| word))
}

async fn watch(
    shell: &mut Shell,
    client: &Client,
    selector: Option<&str>,
    mut since: String,
    nodes: Vec<Node>,
) -> Result<Exit, Failure> {
    let mut names: HashMap<NodeId, String> = HashMap::new();
    show_listed(shell, nodes, &mut names)?;
    let mut away = false;
    loop {
        match follow(shell, client, selector, &mut since, &mut names).await {
            Err(Failure::Client(error)) if error.code() == Some(&Code::Gone) => {
                shell.printer.warn("changes were missed; the list starts again");
                let (listed, mut nodes) = client.all_nodes(selector).await?;
                nodes.sort_by(by_name);
                since = listed;
                show_listed(shell, nodes, &mut names)?;
                continue;
            }
            Ok(()) => away = false,
            Err(Failure::Client(
                error @ (ClientError::Connect { .. } | ClientError::Lost { .. }),
            )) => {
                if !away {
                    shell.printer.warn(&format!("{}; trying again", chain(&error)));
                }
                away = true;
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Prints a listing: a table for people; for programs a line for each node, and one for each of
/// `names` that is gone since the last listing.
fn show_listed(
    shell: &mut Shell,
    nodes: Vec<Node>,
    names: &mut HashMap<NodeId, String>,
) -> Result<(), Failure> {
    if !matches!(shell.printer.output(), Output::Json | Output::Yaml) {
        print(shell, &nodes)?;
    }
    let revision = nodes.iter().map(|node| node.revision).max().unwrap_or_default();
    let listed: HashSet<NodeId> = nodes.iter().filter_map(|node| node.id).collect();
    let gone: Vec<NodeId> = names.keys().copied().filter(|id| !listed.contains(id)).collect();
    let gone = gone.into_iter().map(|id| WatchLine::Delete { revision, id });
    let listed = nodes
        .into_iter()
        .map(|node| WatchLine::Put { revision: node.revision, node: Box::new(node) });
    for line in gone.chain(listed) {
        if matches!(shell.printer.output(), Output::Json | Output::Yaml) {
            shell.printer.json_line(&line)?;
        }
        remember(names, &line);
    }
    shell.printer.flush()
}

/// Prints changes until the server ends the stream.
async fn follow(
    shell: &mut Shell,
    client: &Client,
    selector: Option<&str>,
    since: &mut String,
    names: &mut HashMap<NodeId, String>,
) -> Result<(), Failure> {
    let mut changes = client.watch_nodes(selector, since).await?;
    while let Some(line) = changes.next().await? {
        // A revision may have more changes than those read so far; a bookmark comes after all.
        if let WatchLine::Bookmark { since: reached, .. } = &line {
            since.clone_from(reached);
        }
        match (shell.printer.output(), &line) {
            (Output::Json | Output::Yaml, _) => shell.printer.json_line(&line)?,
            (_, WatchLine::Put { node, .. }) => {
                let cells = cells(node).into_iter().take(8).filter(|cell| !cell.is_empty());
                shell.printer.line(format!("~ {}", cells.collect::<Vec<_>>().join("  ")))?;
            }
            (_, WatchLine::Delete { id, .. }) => {
                let name = names.get(id).cloned().unwrap_or_else(|| id.to_string());
                shell.printer.line(format!("- {name}"))?;
            }
            (_, WatchLine::Bookmark { .. }) => {}
        }
        remember(names, &line);
        shell.printer.flush()?;
    }
    Ok(())
}

fn remember(names: &mut HashMap<NodeId, String>, line: &WatchLine) {
    match line {
        WatchLine::Put { node, .. } => {
            if let (Some(id), Some(name)) = (node.id, &node.name) {
                names.insert(id, name.to_string());
            }
        }
        WatchLine::Delete { id, .. } => {
            names.remove(id);
        }
        WatchLine::Bookmark { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let mut names =
            ["n10", "n2", "n1", "x1000c0s2b0n0", "x1000c0s10b0n0", "login", "n02", "n10-a", "n"];
        names.sort_by(|a, b| natural_order(a, b));
        let expected =
            ["login", "n", "n1", "n02", "n2", "n10", "n10-a", "x1000c0s2b0n0", "x1000c0s10b0n0"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_node_is_one_line() {
        let node: Node = serde_json::from_value(serde_json::json!({
            "name": "n1", "nid": 48, "role": "compute", "enabled": false,
            "labels": {"rack": "7"}, "groups": ["gpu", "hot"],
            "boot": {"mac": "52:54:00:00:00:01", "ip": "10.1.0.1"},
            "protection": {"since": "2026-01-01T00:00:00Z"},
        }))
        .unwrap();
        assert_eq!(
            table(&[node]).render(true),
            "NAME  NID  ROLE     PARTITION  MAC                IP        STATE     NOTES               XNAME  ARCH     SUBROLE  GROUPS   LABELS  ID\n\
             n1    48   compute  default    52:54:00:00:00:01  10.1.0.1  declared  disabled,protected  -      unknown  -        gpu,hot  rack=7  -\n"
        );
    }
}
