//! The site as SMD would show it: nodes taken apart into components, interfaces and memberships.
//! Functions of a roster; the other end of [`source::smd`](crate::source::smd), which puts them
//! together again.
//!
//! What SMD has no word for is not shown: names, prefix lengths, boot interfaces, labels. A node
//! without an xname goes by its name: clients use ids to put the lists together, and do not take
//! them apart.

mod filter;
mod words;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use compact_str::{CompactString, ToCompactString};
use hoist_model::node::Power;
use hoist_model::{
    Arch, GroupName, Interface, InterfaceKind, Mac, Name, Nid, Node, Xname, XnameKind,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::Roster;

pub use filter::{Columns, EndpointFilter, FilterError, InterfaceFilter, NodeFilter, negation};
pub use words::LISTS;

/// Longest accepted id; a longer one matches nothing.
const MAX_ID: usize = 64;

/// An element of `State/Components`. Everything but the id and the type is left out when there is
/// none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Component<'n> {
    #[serde(rename = "ID")]
    pub id: CompactString,
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flag: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'n str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_role: Option<&'n str>,
    #[serde(rename = "NID", skip_serializing_if = "Option::is_none")]
    pub nid: Option<Nid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
}

/// An element of `Inventory/EthernetInterfaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct EthernetInterface<'n> {
    /// The MAC without its colons.
    #[serde(rename = "ID")]
    pub id: String,
    pub description: &'n str,
    #[serde(rename = "MACAddress")]
    pub mac: Mac,
    pub last_update: Timestamp,
    /// Empty for the interface of a BMC whose xname is unknown.
    #[serde(rename = "ComponentID")]
    pub component_id: CompactString,
    pub r#type: &'static str,
    #[serde(rename = "IPAddresses")]
    pub addresses: Vec<Address<'n>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Address<'n> {
    #[serde(rename = "IPAddress")]
    pub ip: IpAddr,
    /// In the spelling of SMD.
    #[serde(rename = "Network", skip_serializing_if = "Option::is_none")]
    pub network: Option<&'n str>,
    #[serde(skip)]
    pub network_name: Option<&'n Name>,
}

/// An element of `Inventory/ComponentEndpoints`. What only Redfish could tell is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ComponentEndpoint<'n> {
    #[serde(rename = "ID")]
    pub id: CompactString,
    pub r#type: &'static str,
    pub redfish_type: &'static str,
    pub redfish_subtype: &'static str,
    #[serde(rename = "MACAddr", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    #[serde(rename = "UUID", skip_serializing_if = "Option::is_none")]
    pub uuid: Option<&'n str>,
    #[serde(rename = "OdataID")]
    pub odata_id: &'static str,
    #[serde(rename = "RedfishEndpointID")]
    pub redfish_endpoint_id: CompactString,
    pub enabled: bool,
    #[serde(rename = "RedfishEndpointFQDN")]
    pub redfish_endpoint_fqdn: &'static str,
    #[serde(rename = "RedfishURL")]
    pub redfish_url: &'static str,
    pub component_endpoint_type: &'static str,
    pub redfish_system_info: SystemInfo<'n>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SystemInfo<'n> {
    #[serde(rename = "EthernetNICInfo")]
    pub nics: Vec<SystemNic<'n>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SystemNic<'n> {
    #[serde(rename = "RedfishId")]
    pub redfish_id: &'n str,
    #[serde(rename = "@odata.id")]
    pub odata_id: &'static str,
    #[serde(rename = "Description")]
    pub description: &'n str,
    #[serde(rename = "MACAddress")]
    pub mac: Mac,
    #[serde(rename = "PermanentMACAddress")]
    pub permanent_mac: Mac,
}

/// An element of `Inventory/RedfishEndpoints`: the BMC of one or several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RedfishEndpoint {
    #[serde(rename = "ID")]
    pub id: CompactString,
    pub r#type: &'static str,
    pub hostname: CompactString,
    pub domain: &'static str,
    #[serde(rename = "FQDN")]
    pub fqdn: CompactString,
    pub enabled: bool,
    #[serde(rename = "MACAddr", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    #[serde(rename = "IPAddress", skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
}

/// An element of `memberships`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership<'n> {
    pub id: CompactString,
    pub group_labels: Vec<GroupName>,
    /// Empty for the default partition.
    pub partition_name: &'n str,
}

/// An element of `groups`. SMD's groups belong to no partition: those of one name are one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub label: GroupName,
    pub description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_group: Option<Name>,
    pub members: Members,
}

/// An element of `partitions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partition {
    pub name: Name,
    pub description: String,
    pub members: Members,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Members {
    pub ids: Vec<CompactString>,
}

/// What SMD calls the node.
pub fn id_of(node: &Node) -> CompactString {
    match node.spec.xname {
        Some(xname) => xname.to_compact_string(),
        None => node.name.as_str().into(),
    }
}

/// The node that SMD's clients mean by an id. It is normalised, as SMD does it.
pub fn find<'r>(roster: &'r Roster, id: &str) -> Option<&'r Arc<Node>> {
    let id = id.trim();
    if id.len() > MAX_ID {
        return None;
    }
    let by_xname = id.parse().ok().and_then(|xname| roster.by_xname(xname));
    let by_name = || {
        let named = roster.by_name(&id.to_ascii_lowercase());
        // One with an xname has no other id.
        named.filter(|node| node.spec.xname.is_none())
    };
    by_xname.or_else(by_name)
}

/// The interface with this id, and the node it belongs to.
pub fn find_interface<'r>(roster: &'r Roster, id: &str) -> Option<(&'r Node, &'r Interface)> {
    let mac: Mac = id.parse().ok()?;
    let node = roster.by_mac(mac)?;
    let interface = node.spec.interfaces.iter().find(|interface| interface.mac == mac)?;
    Some((node, interface))
}

pub fn component(node: &Node, power: Power) -> Component<'_> {
    let spec = &node.spec;
    Component {
        id: id_of(node),
        r#type: type_of(spec.xname.as_ref()),
        state: Some(match power {
            Power::On => "On",
            Power::Off => "Off",
            Power::Unknown => "Unknown",
        }),
        flag: Some("OK"),
        enabled: Some(spec.enabled),
        role: spec.role.as_deref().map(|role| words::find(&words::ROLES, role).unwrap_or(role)),
        sub_role: spec
            .subrole
            .as_deref()
            .map(|role| words::find(&words::SUB_ROLES, role).unwrap_or(role)),
        nid: spec.nid,
        arch: Some(match spec.arch {
            Arch::X86_64 => "X86",
            Arch::Aarch64 => "ARM",
            Arch::Riscv64 => "Other",
            Arch::Unknown => "UNKNOWN",
        }),
        locked: node.is_protected(),
    }
}

/// The component of a node's BMC, if the BMC has an interface here: every interface that is listed
/// has its component.
pub fn bmc_component(node: &Node) -> Option<(Xname, Component<'static>)> {
    let has_interface = node.spec.interfaces.iter().any(|nic| nic.kind == InterfaceKind::Bmc);
    let bmc = bmc_of(node).filter(|bmc| has_interface && !kind_of(*bmc).is_empty())?;
    let component = Component {
        id: bmc.to_compact_string(),
        r#type: kind_of(bmc),
        state: Some("Unknown"),
        flag: Some("OK"),
        enabled: Some(true),
        role: None,
        sub_role: None,
        nid: None,
        arch: None,
        locked: false,
    };
    Some((bmc, component))
}

/// The BMC with this id, as a component, by a node that `sees` lets through.
pub fn find_bmc(
    roster: &Roster,
    id: &str,
    sees: impl Fn(&Node) -> bool,
) -> Option<Component<'static>> {
    let wanted: Xname = id.trim().parse().ok()?;
    // Which node is behind a BMC can only be told by looking at all of them.
    let is_bmc = !kind_of(wanted).is_empty();
    let mut nodes = roster.nodes().filter(|node| is_bmc && sees(node));
    nodes.find_map(|node| {
        bmc_component(node).filter(|(bmc, _)| *bmc == wanted).map(|(_, component)| component)
    })
}

pub fn ethernet_interface<'n>(
    roster: &'n Roster,
    node: &'n Node,
    interface: &'n Interface,
) -> EthernetInterface<'n> {
    let (component_id, r#type) = match interface.kind {
        InterfaceKind::Bmc => {
            let bmc = bmc_of(node);
            (bmc.map(|bmc| bmc.to_compact_string()).unwrap_or_default(), bmc.map_or("", kind_of))
        }
        _ => (id_of(node), type_of(node.spec.xname.as_ref())),
    };
    let network_name = interface.network.as_ref();
    let network = network_name.map(|name| {
        let declared = roster.network(name).and_then(|network| network.spec.smd_name.as_deref());
        declared.unwrap_or(name.as_str())
    });
    EthernetInterface {
        id: bare(interface.mac),
        description: interface.name.as_str(),
        mac: interface.mac,
        last_update: node.updated,
        component_id,
        r#type,
        addresses: interface
            .addresses
            .iter()
            .map(|address| Address { ip: address.addr(), network, network_name })
            .collect(),
    }
}

pub fn component_endpoint<'n>(roster: &Roster, node: &'n Node) -> ComponentEndpoint<'n> {
    let spec = &node.spec;
    let in_band = spec.interfaces.iter().filter(|nic| nic.kind != InterfaceKind::Bmc);
    let nics = in_band
        .map(|nic| SystemNic {
            redfish_id: nic.name.as_str(),
            odata_id: "",
            description: nic.name.as_str(),
            mac: nic.mac,
            permanent_mac: nic.mac,
        })
        .collect();
    ComponentEndpoint {
        id: id_of(node),
        r#type: type_of(spec.xname.as_ref()),
        redfish_type: "ComputerSystem",
        redfish_subtype: "Physical",
        mac: roster.boot(node).map(|boot| boot.mac),
        uuid: spec.system.as_ref().and_then(|system| system.uuid.as_deref()),
        odata_id: "",
        redfish_endpoint_id: bmc_of(node).map(|bmc| bmc.to_compact_string()).unwrap_or_default(),
        enabled: spec.enabled,
        redfish_endpoint_fqdn: "",
        redfish_url: "",
        component_endpoint_type: "ComponentEndpointComputerSystem",
        redfish_system_info: SystemInfo { nics },
    }
}

/// The BMCs of the nodes that `sees` lets through, as far as their xnames are known.
pub fn redfish_endpoints(roster: &Roster, sees: impl Fn(&Node) -> bool) -> Vec<RedfishEndpoint> {
    let mut endpoints: BTreeMap<Xname, RedfishEndpoint> = BTreeMap::new();
    for node in roster.nodes().filter(|node| sees(node)) {
        let Some(bmc) = bmc_of(node) else { continue };
        let id = bmc.to_compact_string();
        let endpoint = endpoints.entry(bmc).or_insert_with(|| RedfishEndpoint {
            r#type: kind_of(bmc),
            hostname: id.clone(),
            domain: "",
            fqdn: id.clone(),
            enabled: true,
            mac: None,
            ip: None,
            id,
        });
        let own = node.spec.interfaces.iter().find(|nic| nic.kind == InterfaceKind::Bmc);
        if let Some(own) = own.filter(|_| endpoint.mac.is_none()) {
            endpoint.mac = Some(own.mac);
            endpoint.ip = own.addresses.first().map(ipnet::IpNet::addr);
        }
    }
    endpoints.into_values().collect()
}

pub fn membership<'n>(roster: &Roster, node: &'n Node) -> Membership<'n> {
    Membership {
        id: id_of(node),
        group_labels: roster.groups_of(node),
        partition_name: partition_of(node).map_or("", Name::as_str),
    }
}

/// All groups, with those members that `sees` lets through.
pub fn groups(roster: &Roster, sees: impl Fn(&Node) -> bool) -> Vec<Group> {
    let mut groups: BTreeMap<GroupName, Group> = BTreeMap::new();
    for group in roster.groups() {
        let shown = groups.entry(group.name.clone()).or_insert_with(|| Group {
            label: group.name.clone(),
            description: String::new(),
            exclusive_group: None,
            members: Members::default(),
        });
        if shown.description.is_empty() {
            shown.description.clone_from(&group.spec.description);
        }
        if shown.exclusive_group.is_none() {
            shown.exclusive_group.clone_from(&group.spec.exclusive_set);
        }
    }
    for node in roster.nodes().filter(|node| sees(node)) {
        for name in roster.groups_of(node) {
            if let Some(group) = groups.get_mut(&name) {
                group.members.ids.push(id_of(node));
            }
        }
    }
    groups.into_values().collect()
}

/// All partitions but the default one, which is none for SMD.
pub fn partitions(roster: &Roster, sees: impl Fn(&Node) -> bool) -> Vec<Partition> {
    let shown = roster.partitions().filter(|partition| !is_default(&partition.name));
    let members = |name: &Name| {
        let inside = roster.in_partition(name).into_iter().filter(|node| sees(node));
        Members { ids: inside.map(|node| id_of(node)).collect() }
    };
    shown
        .map(|partition| Partition {
            name: partition.name.clone(),
            description: partition.spec.description.clone(),
            members: members(&partition.name),
        })
        .collect()
}

/// `None`: the default one.
fn partition_of(node: &Node) -> Option<&Name> {
    Some(&node.spec.partition).filter(|name| !is_default(name))
}

fn is_default(partition: &Name) -> bool {
    *partition == Name::default_partition()
}

/// The declared xname of the BMC, else the one that follows from the node's xname.
fn bmc_of(node: &Node) -> Option<Xname> {
    let spec = &node.spec;
    let said = spec.bmc.as_ref().and_then(|bmc| bmc.r#ref.parse().ok());
    let place = || {
        let physical = spec.xname.filter(|xname| xname.kind() == XnameKind::Node);
        physical.and_then(|xname| xname.parent())
    };
    said.or_else(place)
}

fn type_of(xname: Option<&Xname>) -> &'static str {
    match xname.map(Xname::kind) {
        Some(XnameKind::VirtualNode) => "VirtualNode",
        _ => "Node",
    }
}

fn kind_of(bmc: Xname) -> &'static str {
    match bmc.kind() {
        XnameKind::NodeBmc => "NodeBMC",
        XnameKind::ChassisBmc => "ChassisBMC",
        XnameKind::CabinetBmc => "CabinetBMC",
        XnameKind::RouterBmc => "RouterBMC",
        _ => "",
    }
}

fn bare(mac: Mac) -> String {
    mac.to_string().replace(':', "")
}

#[cfg(test)]
mod tests;
