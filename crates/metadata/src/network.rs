//! network-config (version 2) from the inventory: the interfaces that the machine configures
//! itself, matched by MAC, with the gateways and name servers of their networks.
//!
//! A client stops if an interface that it must rename is missing in the machine, so only the boot
//! interface is renamed; the others are optional.

use std::net::IpAddr;

use hoist_model::node::InterfaceKind;
use hoist_model::{Interface, Mac, Network, Node, Subnet};
use hoist_site::Roster;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// The document, or `None` when there is nothing to say.
pub fn config(roster: &Roster, node: &Node) -> Option<Map<String, Value>> {
    let boot = roster.boot(node).map(|boot| boot.mac);
    let mut ethernets = Map::new();
    let mut vlans = Map::new();
    let mut gateways = Gateways::default();
    for interface in in_band(node, boot) {
        let network = network_of(roster, interface);
        let mut port = Map::new();
        port.insert("match".to_owned(), json!({ "macaddress": interface.mac.to_string() }));
        if Some(interface.mac) == boot {
            port.insert("set-name".to_owned(), interface.name.as_str().into());
        } else {
            port.insert("optional".to_owned(), true.into());
        }
        if let Some(mtu) = interface.mtu.or(network.and_then(|network| network.spec.mtu)) {
            port.insert("mtu".to_owned(), mtu.into());
        }
        let place = addresses(interface, network, &mut gateways, boot);
        match interface.vlan {
            None => port.extend(place),
            Some(id) => {
                let mut tagged = Map::new();
                tagged.insert("id".to_owned(), id.into());
                tagged.insert("link".to_owned(), interface.name.as_str().into());
                tagged.extend(place);
                vlans.insert(format!("{}.{id}", interface.name), Value::Object(tagged));
            }
        }
        ethernets.insert(interface.name.to_string(), Value::Object(port));
    }
    if ethernets.is_empty() {
        return None;
    }
    let mut config = Map::new();
    config.insert("version".to_owned(), 2.into());
    config.insert("ethernets".to_owned(), Value::Object(ethernets));
    if !vlans.is_empty() {
        config.insert("vlans".to_owned(), Value::Object(vlans));
    }
    Some(config)
}

/// Addresses of the document whose prefix length is unknown or leaves out the gateway, each as a
/// warning.
pub(crate) fn warnings(roster: &Roster, node: &Node) -> Vec<String> {
    let boot = roster.boot(node).map(|boot| boot.mac);
    let mut warnings = Vec::new();
    for interface in in_band(node, boot) {
        let network = network_of(roster, interface);
        for address in &interface.addresses {
            if is_alone(*address) && prefixed(network, *address).is_none() {
                let remedy = match &interface.network {
                    Some(name) => format!("declare its subnet in the network `{name}`"),
                    None => "name the network of the interface".to_owned(),
                };
                warnings.push(format!(
                    "interface {}: the address {} has no prefix length, and no subnet has it; \
                     {remedy}, or write the address with its prefix length",
                    interface.name,
                    address.addr(),
                ));
            }
        }
        let Some(network) = network_of(roster, interface) else { continue };
        let written = written(interface, Some(network));
        for address in &written {
            if let Some((subnet, gateway)) = gateway_of(network, address.addr())
                && !is_on_link(gateway, &written)
            {
                warnings.push(format!(
                    "interface {}: the gateway {gateway} is not within {address}, so there is no \
                     default route over it; write the address with the prefix length of its subnet \
                     {}, or without one",
                    interface.name, subnet.cidr,
                ));
            }
        }
    }
    warnings
}

/// Time servers of the node's networks, each once, with the network they come from. network-config
/// has no place for them; cloud-config has.
pub(crate) fn time_servers<'r>(roster: &'r Roster, node: &Node) -> Vec<(&'r Network, &'r str)> {
    let mut servers: Vec<(&Network, &str)> = Vec::new();
    for interface in in_band(node, roster.boot(node).map(|boot| boot.mac)) {
        let Some(network) = network_of(roster, interface) else { continue };
        for server in &network.spec.ntp {
            if !servers.iter().any(|(_, known)| known == server) {
                servers.push((network, server));
            }
        }
    }
    servers
}

/// The one it boots from first: its gateway is the default route. Without an address there is
/// something to say only to that one, which booted by DHCP.
fn in_band(node: &Node, boot: Option<Mac>) -> Vec<&Interface> {
    let boots = |interface: &Interface| Some(interface.mac) == boot;
    let ours = |interface: &&Interface| {
        interface.kind != InterfaceKind::Bmc
            && (!interface.addresses.is_empty() || boots(interface))
    };
    let mut found: Vec<_> = node.spec.interfaces.iter().filter(ours).collect();
    found.sort_by_key(|interface| !boots(interface));
    found
}

/// Whether the address was given without a prefix length, as most sources of inventory have it.
fn is_alone(address: IpNet) -> bool {
    address.prefix_len() == address.max_prefix_len()
}

/// An address without a prefix length gets that of its subnet: with any other, the gateway of the
/// subnet would be out of reach.
fn prefixed(network: Option<&Network>, address: IpNet) -> Option<IpNet> {
    if !is_alone(address) {
        return Some(address);
    }
    let subnet = network?.spec.subnet_of(address.addr())?;
    IpNet::new(address.addr(), subnet.cidr.prefix_len()).ok()
}

/// The addresses of an interface as the document has them.
fn written(interface: &Interface, network: Option<&Network>) -> Vec<IpNet> {
    let written = |address: &IpNet| prefixed(network, *address).unwrap_or(*address);
    interface.addresses.iter().map(written).collect()
}

/// The subnet of an address, and its gateway, unless that is the address itself.
fn gateway_of(network: &Network, address: IpAddr) -> Option<(&Subnet, IpAddr)> {
    let subnet = network.spec.subnet_of(address)?;
    let gateway = subnet.gateway.filter(|gateway| *gateway != address)?;
    Some((subnet, gateway))
}

/// Whether an interface with these addresses reaches the gateway. A kernel refuses routes over
/// other gateways.
fn is_on_link(gateway: IpAddr, addresses: &[IpNet]) -> bool {
    addresses.iter().any(|address| address.contains(&gateway))
}

fn network_of<'r>(roster: &'r Roster, interface: &Interface) -> Option<&'r Network> {
    roster.network(interface.network.as_ref()?).map(AsRef::as_ref)
}

/// Whether the default routes are given away.
#[derive(Default)]
struct Gateways {
    v4: bool,
    v6: bool,
}

fn addresses(
    interface: &Interface,
    network: Option<&Network>,
    gateways: &mut Gateways,
    boot: Option<Mac>,
) -> Map<String, Value> {
    let mut place = Map::new();
    if interface.addresses.is_empty() && Some(interface.mac) == boot {
        place.insert("dhcp4".to_owned(), true.into());
    }
    let written = written(interface, network);
    if !written.is_empty() {
        let all = written.iter().map(ToString::to_string);
        place.insert("addresses".to_owned(), all.map(Value::from).collect());
    }
    let Some(network) = network else { return place };
    let route = |address: &IpNet| gateways.route(network, address.addr(), &written);
    let routes: Vec<Value> = written.iter().filter_map(route).collect();
    if !routes.is_empty() {
        place.insert("routes".to_owned(), routes.into());
    }
    let mut servers = Map::new();
    if !network.spec.dns.is_empty() {
        let all = network.spec.dns.iter().map(ToString::to_string);
        servers.insert("addresses".to_owned(), all.map(Value::from).collect());
    }
    if let Some(domain) = &network.spec.domain {
        servers.insert("search".to_owned(), json!([domain]));
    }
    if !servers.is_empty() {
        place.insert("nameservers".to_owned(), Value::Object(servers));
    }
    place
}

impl Gateways {
    /// The default route over the subnet of an address, unless there is one already or the
    /// interface with the `written` addresses does not reach the gateway. Written as a network:
    /// older clients do not know the word `default`.
    fn route(&mut self, network: &Network, address: IpAddr, written: &[IpNet]) -> Option<Value> {
        let (_, gateway) = gateway_of(network, address)?;
        if !is_on_link(gateway, written) {
            return None;
        }
        let (given, to) = match gateway {
            IpAddr::V4(_) => (&mut self.v4, "0.0.0.0/0"),
            IpAddr::V6(_) => (&mut self.v6, "::/0"),
        };
        if std::mem::replace(given, true) {
            return None;
        }
        Some(json!({ "to": to, "via": gateway.to_string() }))
    }
}
