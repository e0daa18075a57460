//! Selects the boot interface of a node: the explicit choice first, then the partition's rules,
//! then the properties of the node alone.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node::{BootChoice, Interface, InterfaceKind, InterfaceName, NodeSpec};
use crate::{Mac, Name};

/// The bootable MAC and address of a node, and how they were found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Boot {
    pub mac: Mac,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    pub interface: InterfaceName,
    pub selected_by: SelectedBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SelectedBy {
    /// The node says so.
    Explicit,
    /// It is the only interface of kind `boot`.
    Kind,
    /// It is on one of the partition's boot networks.
    Network,
    /// It has an address in one of the partition's boot subnets.
    Subnet,
    /// There is only one that could.
    OnlyOne,
    /// The lowest MAC of several that could: worth a look.
    Heuristic,
}

/// The boot rules of a partition.
#[derive(Debug, Clone, Default)]
pub struct BootRules<'a> {
    pub networks: &'a [Name],
    pub subnets: &'a [IpNet],
}

impl NodeSpec {
    /// `None` when the node has no interface that could boot.
    pub fn boot(&self, rules: &BootRules<'_>) -> Option<Boot> {
        let (interface, selected_by) = self.boot_interface(rules)?;
        let chosen_ip = self.boot.as_ref().and_then(|choice| choice.ip);
        let in_subnet = || {
            let mut hosts = interface.addresses.iter().map(IpNet::addr);
            hosts.find(|ip| rules.subnets.iter().any(|subnet| subnet.contains(ip)))
        };
        let first = || interface.addresses.first().map(IpNet::addr);
        Some(Boot {
            mac: interface.mac,
            ip: chosen_ip.or_else(in_subnet).or_else(first),
            interface: interface.name.clone(),
            selected_by,
        })
    }

    fn boot_interface(&self, rules: &BootRules<'_>) -> Option<(&Interface, SelectedBy)> {
        if let Some(choice) = &self.boot {
            return chosen(self, choice).map(|interface| (interface, SelectedBy::Explicit));
        }
        let kinds = || candidates(self).filter(|i| i.kind == InterfaceKind::Boot);
        let networks = || {
            candidates(self)
                .filter(|i| i.network.as_ref().is_some_and(|n| rules.networks.contains(n)))
        };
        let subnets = || candidates(self).filter(|i| in_any(i, rules.subnets));
        let addressed = || candidates(self).filter(|i| !i.addresses.is_empty());
        only(kinds())
            .map(|i| (i, SelectedBy::Kind))
            .or_else(|| only(networks()).map(|i| (i, SelectedBy::Network)))
            .or_else(|| only(subnets()).map(|i| (i, SelectedBy::Subnet)))
            .or_else(|| only(addressed()).map(|i| (i, SelectedBy::OnlyOne)))
            .or_else(|| only(candidates(self)).map(|i| (i, SelectedBy::OnlyOne)))
            .or_else(|| candidates(self).min_by_key(|i| i.mac).map(|i| (i, SelectedBy::Heuristic)))
    }
}

/// The one interface that fits everything a choice says.
pub(crate) fn chosen<'a>(spec: &'a NodeSpec, choice: &BootChoice) -> Option<&'a Interface> {
    candidates(spec).find(|interface| {
        choice.mac.is_none_or(|mac| mac == interface.mac)
            && choice.interface.as_ref().is_none_or(|name| *name == interface.name)
            && choice.ip.is_none_or(|ip| interface.addresses.iter().any(|a| a.addr() == ip))
    })
}

/// A BMC boots itself, never the node.
fn candidates(spec: &NodeSpec) -> impl Iterator<Item = &Interface> {
    spec.interfaces.iter().filter(|interface| interface.kind != InterfaceKind::Bmc)
}

fn in_any(interface: &Interface, subnets: &[IpNet]) -> bool {
    interface.addresses.iter().any(|a| subnets.iter().any(|subnet| subnet.contains(&a.addr())))
}

fn only<'a>(mut found: impl Iterator<Item = &'a Interface>) -> Option<&'a Interface> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> NodeSpec {
        serde_json::from_value(json).unwrap()
    }

    fn two_nics(extra: &serde_json::Value) -> NodeSpec {
        let mut json = serde_json::json!({"interfaces": [
            {"name": "eth0", "mac": "02:00:00:00:00:02", "addresses": ["10.0.0.2/24"], "network": "nmn"},
            {"name": "eth1", "mac": "02:00:00:00:00:01", "addresses": ["10.1.0.2/24"], "network": "hsn"},
            {"name": "bmc", "kind": "bmc", "mac": "02:00:00:00:00:00", "addresses": ["10.9.0.2/24"]},
        ]});
        json.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec(json)
    }

    fn boots(spec: &NodeSpec, rules: &BootRules<'_>) -> (String, SelectedBy) {
        let boot = spec.boot(rules).expect("something boots");
        (boot.interface.to_string(), boot.selected_by)
    }

    #[test]
    fn rules_apply_in_the_documented_order() {
        let networks = ["nmn".parse().unwrap()];
        let subnets = ["10.1.0.0/16".parse().unwrap()];
        let none = BootRules::default();
        let by_network = BootRules { networks: &networks, subnets: &subnets };
        let by_subnet = BootRules { networks: &[], subnets: &subnets };
        let plain = two_nics(&serde_json::json!({}));
        let chosen = two_nics(&serde_json::json!({"boot": {"ip": "10.1.0.2"}}));
        assert_eq!(boots(&chosen, &by_network), ("eth1".into(), SelectedBy::Explicit));
        assert_eq!(boots(&plain, &by_network), ("eth0".into(), SelectedBy::Network));
        assert_eq!(boots(&plain, &by_subnet), ("eth1".into(), SelectedBy::Subnet));
        assert_eq!(boots(&plain, &none), ("eth1".into(), SelectedBy::Heuristic));
        let mut kind = plain.clone();
        kind.interfaces[0].kind = InterfaceKind::Boot;
        assert_eq!(boots(&kind, &by_subnet), ("eth0".into(), SelectedBy::Kind));
    }

    #[test]
    fn a_bmc_never_boots_the_node() {
        let only_bmc = spec(serde_json::json!({"interfaces": [
            {"name": "bmc", "kind": "bmc", "mac": "02:00:00:00:00:00"}]}));
        assert_eq!(only_bmc.boot(&BootRules::default()), None);
        let chosen = two_nics(&serde_json::json!({"boot": {"interface": "bmc"}}));
        assert_eq!(chosen.check().len(), 1);
    }
}
