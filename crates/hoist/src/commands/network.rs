//! `hoist network`.

use std::net::IpAddr;

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::inventory::NetworkObject;
use hoist_model::network::Range;
use hoist_model::{Document, Exit, Kind, Name, NetworkSpec, Subnet};

use super::{Shell, get};
use crate::edit::{self, Terms, WriteArgs};
use crate::failure::Failure;
use crate::input::Documents;
use crate::printer::Output;
use crate::table::Table;

/// Networks that interfaces refer to
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    #[command(subcommand)]
    command: NetworkCommand,
}

#[derive(Debug, Subcommand)]
enum NetworkCommand {
    /// Declare a new network
    #[command(after_help = "Examples:\n  hoist network add boot --vlan 10 --subnet \
        10.1.0.0/16,gateway=10.1.0.1,dhcp=10.1.9.1-10.1.9.99\n  \
        hoist network add hsn --mtu 9000 --subnet fd00:1::/64")]
    Add(AddArgs),
    /// List all networks
    #[command(after_help = "Examples:\n  hoist network list -o wide")]
    List,
    /// Show a network
    #[command(after_help = "Examples:\n  hoist network show boot")]
    Show {
        #[arg(value_name = "NETWORK")]
        network: String,
    },
    /// Remove networks that no interface refers to
    #[command(visible_alias = "rm", after_help = "Examples:\n  hoist network remove boot")]
    Remove {
        #[arg(value_name = "NETWORK", required = true)]
        networks: Vec<String>,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    #[arg(value_name = "NETWORK")]
    network: Name,
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    #[arg(long)]
    vlan: Option<u16>,
    #[arg(long)]
    mtu: Option<u16>,
    /// A subnet with its gateway and DHCP ranges; may be given several times
    #[arg(long, value_name = "CIDR[,gateway=IP][,dhcp=IP-IP]", value_parser = subnet)]
    subnet: Vec<Subnet>,
    #[arg(long, value_name = "IP")]
    dns: Vec<IpAddr>,
    #[arg(long, value_name = "HOST")]
    ntp: Vec<String>,
    #[arg(long)]
    domain: Option<String>,
    #[command(flatten)]
    write: WriteArgs,
}

impl NetworkArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        match self.command {
            NetworkCommand::Add(args) => {
                let spec = NetworkSpec {
                    description: args.description,
                    vlan: args.vlan,
                    mtu: args.mtu,
                    subnets: args.subnet,
                    dns: args.dns,
                    ntp: args.ntp,
                    domain: args.domain,
                    smd_name: None,
                };
                let only_new = Some((Kind::Network, args.network.to_string()));
                let documents = Documents::of(&[Document::Network(args.network, spec)])?;
                let terms = Terms { write: args.write, only_new, ..Terms::default() };
                edit::apply(shell, &client, &documents, &terms).await
            }
            NetworkCommand::List => list(shell, &client).await,
            NetworkCommand::Show { network } => {
                let network = find(&client, &network).await?;
                match shell.printer.output() {
                    Output::Name => {
                        shell.printer.line(network.name.as_deref().unwrap_or_default())?;
                    }
                    Output::Table | Output::Wide | Output::Yaml => shell.printer.yaml(&network)?,
                    Output::Json => shell.printer.value(&network)?,
                }
                Ok(Exit::Done)
            }
            NetworkCommand::Remove { networks, write } => {
                let targets = networks.iter().map(|name| get::target(Kind::Network, name));
                edit::delete(shell, &client, targets.collect::<Result<_, _>>()?, &write).await
            }
        }
    }
}

/// `10.1.0.0/16,gateway=10.1.0.1,dhcp=10.1.9.1-10.1.9.99`.
fn subnet(text: &str) -> Result<Subnet, String> {
    let mut parts = text.split(',');
    let cidr = parts.next().unwrap_or_default();
    let cidr = cidr.parse().map_err(|_| format!("`{cidr}` is not a subnet; write 10.1.0.0/16"))?;
    let mut subnet = Subnet { cidr, gateway: None, dhcp: Vec::new() };
    let ip =
        |text: &str| text.parse::<IpAddr>().map_err(|_| format!("`{text}` is not an IP address"));
    for part in parts {
        match part.split_once('=') {
            Some(("gateway", value)) => subnet.gateway = Some(ip(value)?),
            Some(("dhcp", value)) => {
                let (start, end) = value
                    .split_once('-')
                    .ok_or_else(|| format!("`{value}` is not a range; write START-END"))?;
                subnet.dhcp.push(Range { start: ip(start)?, end: ip(end)? });
            }
            _ => return Err(format!("`{part}` is neither `gateway=IP` nor `dhcp=IP-IP`")),
        }
    }
    Ok(subnet)
}

pub(crate) async fn find(client: &Client, name: &str) -> Result<NetworkObject, Failure> {
    client.find(&[name]).await?.ok_or_else(|| {
        Failure::missing(format!("network `{name}`"))
            .with_hint("`hoist network list` shows all of them")
    })
}

pub(crate) fn table(networks: &[NetworkObject]) -> Table {
    let mut table = Table::new(&["NETWORK", "VLAN", "SUBNETS", "GATEWAYS"]).wide(&[
        "MTU",
        "DNS",
        "NTP",
        "DOMAIN",
        "DESCRIPTION",
    ]);
    for network in networks {
        let gateways = network.subnets.iter().filter_map(|subnet| subnet.gateway);
        table.row(vec![
            network.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            network.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
            joined(network.subnets.iter().map(|subnet| subnet.cidr)),
            joined(gateways),
            network.mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
            joined(network.dns.iter()),
            joined(network.ntp.iter()),
            network.domain.clone().unwrap_or_default(),
            network.description.clone(),
        ]);
    }
    table
}

async fn list(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let networks = client.list::<NetworkObject>().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&networks))?,
        Output::Name => {
            for name in networks.iter().filter_map(|network| network.name.as_ref()) {
                printer.line(name.as_str())?;
            }
        }
        Output::Json | Output::Yaml => printer.value(&networks)?,
    }
    Ok(Exit::Done)
}

pub(crate) fn joined(items: impl Iterator<Item = impl ToString>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_written_in_one_word() {
        let one = subnet("10.1.0.0/16,gateway=10.1.0.1,dhcp=10.1.9.1-10.1.9.99").unwrap();
        assert_eq!(one.gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(one.dhcp.len(), 1);
        assert!(subnet("fd00::/64,dhcp=fd00::1-fd00::ff").is_ok());
        for text in ["", "10.1.0.0", "10.1.0.0/16,gw=1", "10.1.0.0/16,dhcp=10.1.0.1"] {
            assert!(subnet(text).is_err(), "{text}");
        }
    }
}
