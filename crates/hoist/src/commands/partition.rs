//! `hoist partition`.

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::inventory::PartitionObject;
use hoist_model::{Document, Exit, Kind, Name, PartitionSpec};
use ipnet::IpNet;

use super::network::joined;
use super::{Shell, get};
use crate::edit::{self, Terms, WriteArgs};
use crate::failure::Failure;
use crate::input::Documents;
use crate::printer::Output;
use crate::table::Table;

/// Partitions: nodes that are run apart from the others
#[derive(Debug, Args)]
pub(crate) struct PartitionArgs {
    #[command(subcommand)]
    command: PartitionCommand,
}

#[derive(Debug, Subcommand)]
enum PartitionCommand {
    /// Declare a new partition
    #[command(after_help = "Examples:\n  hoist partition add p1 --boot-network boot")]
    Add(AddArgs),
    /// List all partitions
    #[command(after_help = "Examples:\n  hoist partition list")]
    List,
    /// Show a partition
    #[command(after_help = "Examples:\n  hoist partition show p1")]
    Show {
        #[arg(value_name = "PARTITION")]
        partition: String,
    },
    /// Remove partitions that hold no node
    #[command(visible_alias = "rm", after_help = "Examples:\n  hoist partition remove p1")]
    Remove {
        #[arg(value_name = "PARTITION", required = true)]
        partitions: Vec<String>,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    #[arg(value_name = "PARTITION")]
    partition: Name,
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Interfaces on this network boot; may be given several times
    #[arg(long, value_name = "NETWORK")]
    boot_network: Vec<Name>,
    /// Interfaces with an address in this subnet boot; may be given several times
    #[arg(long, value_name = "CIDR")]
    boot_subnet: Vec<IpNet>,
    #[command(flatten)]
    write: WriteArgs,
}

impl PartitionArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        match self.command {
            PartitionCommand::Add(args) => {
                let spec = PartitionSpec {
                    description: args.description,
                    boot_networks: args.boot_network,
                    boot_subnets: args.boot_subnet,
                };
                let only_new = Some((Kind::Partition, args.partition.to_string()));
                let documents = Documents::of(&[Document::Partition(args.partition, spec)])?;
                let terms = Terms { write: args.write, only_new, ..Terms::default() };
                edit::apply(shell, &client, &documents, &terms).await
            }
            PartitionCommand::List => list(shell, &client).await,
            PartitionCommand::Show { partition } => {
                let partition = find(&client, &partition).await?;
                match shell.printer.output() {
                    Output::Name => {
                        shell.printer.line(partition.name.as_deref().unwrap_or_default())?;
                    }
                    Output::Table | Output::Wide | Output::Yaml => {
                        shell.printer.yaml(&partition)?;
                    }
                    Output::Json => shell.printer.value(&partition)?,
                }
                Ok(Exit::Done)
            }
            PartitionCommand::Remove { partitions, write } => {
                let targets = partitions.iter().map(|name| get::target(Kind::Partition, name));
                edit::delete(shell, &client, targets.collect::<Result<_, _>>()?, &write).await
            }
        }
    }
}

pub(crate) async fn find(client: &Client, name: &str) -> Result<PartitionObject, Failure> {
    client.find(&[name]).await?.ok_or_else(|| {
        Failure::missing(format!("partition `{name}`"))
            .with_hint("`hoist partition list` shows all of them")
    })
}

pub(crate) fn table(partitions: &[PartitionObject]) -> Table {
    let mut table = Table::new(&["PARTITION", "BOOT NETWORKS", "BOOT SUBNETS", "DESCRIPTION"]);
    for partition in partitions {
        table.row(vec![
            partition.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            joined(partition.boot_networks.iter()),
            joined(partition.boot_subnets.iter()),
            partition.description.clone(),
        ]);
    }
    table
}

async fn list(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let partitions = client.list::<PartitionObject>().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&partitions))?,
        Output::Name => {
            for name in partitions.iter().filter_map(|partition| partition.name.as_ref()) {
                printer.line(name.as_str())?;
            }
        }
        Output::Json | Output::Yaml => printer.value(&partitions)?,
    }
    Ok(Exit::Done)
}
