//! `hoist group`.

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::inventory::Group;
use hoist_model::{Document, Exit, GroupKey, GroupSpec, Kind, Name, Selector};

use super::{Shell, get};
use crate::edit::{self, Terms, WriteArgs};
use crate::failure::Failure;
use crate::input::Documents;
use crate::printer::Output;
use crate::table::Table;

/// Groups of nodes: listed one by one, or computed by a selector
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    /// Declare a new group
    #[command(after_help = "Examples:\n  hoist group add gpu --member n1 --member n2\n  \
        hoist group add p1/rack7 --selector 'label:rack=7' --priority 10")]
    Add(SetArgs),
    /// List all groups
    #[command(after_help = "Examples:\n  hoist group list\n  hoist group list -o name")]
    List,
    /// Show a group and its members
    #[command(
        after_help = "Examples:\n  hoist group show default/gpu\n  hoist group show gpu -o yaml"
    )]
    Show {
        /// PARTITION/NAME; without a partition, that of `default`
        #[arg(value_name = "GROUP")]
        group: String,
    },
    /// Change a group; other fields stay unchanged
    #[command(after_help = "Examples:\n  hoist group set gpu --member +n3 --member -n1\n  \
        hoist group set gpu --priority 20 --dry-run")]
    Set(SetArgs),
    /// Remove groups; their nodes stay
    #[command(visible_alias = "rm", after_help = "Examples:\n  hoist group remove gpu p1/rack7")]
    Remove {
        #[arg(value_name = "GROUP", required = true)]
        groups: Vec<String>,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// PARTITION/NAME; without a partition, that of `default`
    #[arg(value_name = "GROUP")]
    group: String,
    #[arg(long)]
    description: Option<String>,
    /// A node's groups are applied in the order of priority and name; the later one wins
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// A node is in at most one of the groups that name the same set
    #[arg(long, value_name = "NAME")]
    exclusive_set: Option<Name>,
    /// Computed membership
    #[arg(long, value_name = "SELECTOR", conflicts_with = "member")]
    selector: Option<String>,
    /// A node that joins (`n1` or `+n1`) or leaves (`-n1`)
    #[arg(long, value_name = "[+-]NODE", allow_hyphen_values = true)]
    member: Vec<String>,
    #[command(flatten)]
    write: WriteArgs,
}

impl GroupArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        match self.command {
            GroupCommand::Add(args) => {
                let key = key(&args.group)?;
                let spec = args.onto(GroupSpec::default())?;
                let only_new = Some((Kind::Group, key.to_string()));
                let terms = Terms { write: args.write, only_new, ..Terms::default() };
                edit::apply(shell, &client, &documents(key, spec)?, &terms).await
            }
            GroupCommand::Set(args) => {
                let key = key(&args.group)?;
                edit::modify(shell, &client, &args.write, async || {
                    let group = find(&client, &key).await?;
                    documents(key.clone(), args.onto(group.into_spec())?)
                })
                .await
            }
            GroupCommand::List => list(shell, &client).await,
            GroupCommand::Show { group } => {
                let group = find(&client, &key(&group)?).await?;
                show(shell, &group)
            }
            GroupCommand::Remove { groups, write } => {
                let targets = groups.iter().map(|name| get::target(Kind::Group, name));
                edit::delete(shell, &client, targets.collect::<Result<_, _>>()?, &write).await
            }
        }
    }
}

impl SetArgs {
    fn onto(&self, mut spec: GroupSpec) -> Result<GroupSpec, Failure> {
        if let Some(description) = &self.description {
            spec.description.clone_from(description);
        }
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.exclusive_set = self.exclusive_set.clone().or(spec.exclusive_set);
        if let Some(selector) = &self.selector {
            spec.selector = Some(selector.parse::<Selector>()?);
            spec.members = None;
        }
        for word in &self.member {
            let (joins, name) = signed(word);
            let name: Name = name.parse().map_err(|error| Failure::usage(format!("{error}")))?;
            if spec.selector.take().is_some() {
                spec.members = None;
            }
            let members = spec.members.get_or_insert_default();
            if joins {
                members.insert(name);
            } else if !members.remove(&name) {
                return Err(Failure::usage(format!(
                    "node `{name}` is not in group `{}`",
                    self.group
                )));
            }
        }
        Ok(spec)
    }
}

/// `n1` and `+n1` come in, `-n1` goes.
pub(crate) fn signed(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(rest) => (false, rest),
        None => (true, word.strip_prefix('+').unwrap_or(word)),
    }
}

pub(crate) fn key(text: &str) -> Result<GroupKey, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("{error}")))
}

pub(crate) fn key_of(group: &Group) -> Result<GroupKey, Failure> {
    match (&group.partition, &group.name) {
        (Some(partition), Some(name)) => {
            Ok(GroupKey { partition: partition.clone(), name: name.clone() })
        }
        _ => Err(Failure::Broken("a group has no name".into())),
    }
}

pub(crate) async fn find(client: &Client, key: &GroupKey) -> Result<Group, Failure> {
    let found = client.find(&[key.partition.as_str(), key.name.as_str()]).await?;
    found.ok_or_else(|| {
        Failure::missing(format!("group `{key}`")).with_hint("`hoist group list` shows all of them")
    })
}

fn documents(key: GroupKey, spec: GroupSpec) -> Result<Documents, Failure> {
    Documents::of(&[Document::Group(key, spec)])
}

pub(crate) fn table(groups: &[Group]) -> Table {
    let mut table =
        Table::new(&["GROUP", "PRIORITY", "MEMBERS", "SELECTOR"]).wide(&["SET", "DESCRIPTION"]);
    for group in groups {
        table.row(vec![
            key_of(group).map(|key| key.to_string()).unwrap_or_default(),
            group.priority.to_string(),
            group.members.as_ref().map_or(0, std::collections::BTreeSet::len).to_string(),
            group.selector.as_ref().map(ToString::to_string).unwrap_or_default(),
            group.exclusive_set.as_ref().map(ToString::to_string).unwrap_or_default(),
            group.description.clone(),
        ]);
    }
    table
}

async fn list(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let groups = client.list::<Group>().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&groups))?,
        Output::Name => {
            for group in &groups {
                printer.line(key_of(group)?.to_string())?;
            }
        }
        Output::Json | Output::Yaml => printer.value(&groups)?,
    }
    Ok(Exit::Done)
}

fn show(shell: &mut Shell, group: &Group) -> Result<Exit, Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => {
            printer.table(&table(std::slice::from_ref(group)))?;
            for member in group.members.iter().flatten() {
                printer.line(format!("  {member}"))?;
            }
        }
        Output::Name => printer.line(key_of(group)?.to_string())?,
        Output::Json | Output::Yaml => printer.value(group)?,
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn set(words: &[&str], spec: GroupSpec) -> Result<GroupSpec, Failure> {
        #[derive(Parser)]
        struct SetCommand {
            #[command(flatten)]
            args: SetArgs,
        }
        let words = ["set", "gpu"].iter().chain(words);
        SetCommand::try_parse_from(words).unwrap().args.onto(spec)
    }

    #[test]
    fn members_come_and_go() {
        let spec = set(&["--member", "n1", "--member", "+n2"], GroupSpec::default()).unwrap();
        let spec = set(&["--member", "-n1", "--priority", "-3"], spec).unwrap();
        assert_eq!(spec.members, Some(["n2".parse().unwrap()].into()));
        assert_eq!(spec.priority, -3);
        assert!(set(&["--member", "-n9"], spec.clone()).is_err());
        let computed = set(&["--selector", "label:rack=7"], spec).unwrap();
        assert_eq!(computed.members, None);
        let explicit = set(&["--member", "n1"], computed).unwrap();
        assert!(explicit.selector.is_none());
    }
}
