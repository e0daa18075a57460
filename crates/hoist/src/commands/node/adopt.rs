//! `hoist node adopt`.

use clap::Args;
use hoist_api::boot::AdoptRequest;
use hoist_api::inventory::Node;
use hoist_model::{Exit, GroupName, LabelKey, Mac, Name, Nid, Role, Xname};

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;

/// Make a node of a machine that asked for a boot script
///
/// The node gets the observed MAC and architecture, and the address if no other machine has it; set
/// other fields here or later with `hoist node set`. Secrets go to nodes at their own address only.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist node adopt 52:54:00:00:00:09 --name n9 --role compute\n  \
    hoist node adopt 52:54:00:00:00:09 --name n9 --group gpu --label rack=7 --dry-run"
)]
pub(super) struct AdoptArgs {
    /// As `hoist node discovered` lists it
    #[arg(value_name = "MAC")]
    mac: Mac,

    /// Name of the new node
    #[arg(long)]
    name: Name,

    /// Role of the node
    #[arg(long)]
    role: Option<Role>,

    /// Subrole of the node
    #[arg(long, value_name = "ROLE")]
    subrole: Option<Role>,

    /// A group it joins
    #[arg(long, value_name = "GROUP")]
    group: Vec<GroupName>,

    /// The partition it is run in
    #[arg(long, value_name = "NAME")]
    partition: Option<Name>,

    /// A label
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// The site's number for it
    #[arg(long, value_name = "N")]
    nid: Option<Nid>,

    /// Where it sits
    #[arg(long)]
    xname: Option<Xname>,

    /// Do not keep the address that was seen
    #[arg(long)]
    no_address: bool,

    /// Show the new node without adding it
    #[arg(long)]
    dry_run: bool,
}

impl AdoptArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request = AdoptRequest {
            partition: self.partition,
            groups: self.group,
            role: self.role,
            subrole: self.subrole,
            nid: self.nid,
            xname: self.xname,
            no_address: self.no_address,
            labels: self.label.iter().map(|text| label(text)).collect::<Result<_, _>>()?,
            ..AdoptRequest::new(self.name)
        };
        let name = request.name.clone();
        let mac = self.mac;
        let node = shell.client()?.adopt(mac, &request, self.dry_run).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&node)?,
            Output::Name => printer.line(name.as_str())?,
            Output::Table | Output::Wide if self.dry_run => {
                return edit::would(printer, &format!("adopt {mac} as node {name}{}", at(&node)));
            }
            Output::Table | Output::Wide => {
                printer.note(&format!("{mac} is now node {name}{}", at(&node)));
            }
        }
        Ok(if self.dry_run { Exit::WouldChange } else { Exit::Done })
    }
}

/// The address of the node, or that it is unknown.
fn at(node: &Node) -> String {
    let mut addresses = node.interfaces.iter().flat_map(|interface| &interface.addresses);
    match addresses.next() {
        Some(address) => format!(", at {address}"),
        None => ", without an address".to_owned(),
    }
}

fn label(text: &str) -> Result<(LabelKey, String), Failure> {
    let (key, value) = text.split_once('=').ok_or_else(|| {
        Failure::usage(format!("`{text}` is not a label")).with_hint("write it like `rack=7`")
    })?;
    let key = key.parse().map_err(|error| Failure::usage(format!("{error}")))?;
    Ok((key, value.to_owned()))
}
