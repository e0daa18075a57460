//! A network that interfaces refer to: subnets, gateways, name and time servers, DHCP ranges.

use std::net::IpAddr;

use hoist_diagnostic::Diagnostic;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

const MAX_SUBNETS: usize = 64;
const MAX_SERVERS: usize = 16;
const MAX_SMD_NAME: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// IPv4 and IPv6 alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Addresses or host names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ntp: Vec<String>,
    /// The DNS domain of the nodes on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its name in SMD, where that is spelled differently: `HMN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smd_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    #[schemars(with = "String")]
    pub cidr: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Ranges that a DHCP server may hand out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhcp: Vec<Range>,
}

/// From one address to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    pub start: IpAddr,
    pub end: IpAddr,
}

/// A network as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub name: Name,
    pub spec: NetworkSpec,
    pub revision: u64,
}

impl NetworkSpec {
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
            diagnostics.push(Diagnostic::new("vlan", "a VLAN is 1 to 4094"));
        }
        if self.subnets.len() > MAX_SUBNETS {
            diagnostics.push(Diagnostic::new("subnets", format!("more than {MAX_SUBNETS}")));
        }
        if self.dns.len() > MAX_SERVERS || self.ntp.len() > MAX_SERVERS {
            diagnostics.push(Diagnostic::new("", format!("more than {MAX_SERVERS} servers")));
        }
        for (i, server) in self.ntp.iter().enumerate() {
            if !is_host(server) {
                diagnostics.push(Diagnostic::new(
                    format!("ntp[{i}]"),
                    format!("`{server}` is not a host"),
                ));
            }
        }
        if let Some(domain) = self.domain.as_deref().filter(|domain| !is_host(domain)) {
            diagnostics.push(Diagnostic::new("domain", format!("`{domain}` is not a domain name")));
        }
        if let Some(name) = &self.smd_name
            && (name.is_empty() || name.len() > MAX_SMD_NAME || name.contains(char::is_control))
        {
            let message = format!("a name in SMD has 1 to {MAX_SMD_NAME} printable characters");
            diagnostics.push(Diagnostic::new("smd_name", message));
        }
        for (i, subnet) in self.subnets.iter().enumerate() {
            subnet.check(&format!("subnets[{i}]"), &mut diagnostics);
            for earlier in &self.subnets[..i] {
                if earlier.cidr.contains(&subnet.cidr) || subnet.cidr.contains(&earlier.cidr) {
                    let message = format!("{} and {} overlap", earlier.cidr, subnet.cidr);
                    diagnostics.push(Diagnostic::new(format!("subnets[{i}].cidr"), message));
                }
            }
        }
        diagnostics
    }

    /// The subnet of an address.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.cidr.contains(&address))
    }
}

impl Subnet {
    fn check(&self, at: &str, diagnostics: &mut Vec<Diagnostic>) {
        if self.cidr.trunc() != self.cidr {
            let message = format!("{} has host bits set", self.cidr);
            let hint = format!("write {}", self.cidr.trunc());
            diagnostics.push(Diagnostic::new(format!("{at}.cidr"), message).hint(hint));
        }
        if let Some(gateway) = self.gateway.filter(|gateway| !self.cidr.contains(gateway)) {
            let message = format!("{gateway} is outside of {}", self.cidr);
            diagnostics.push(Diagnostic::new(format!("{at}.gateway"), message));
        }
        for (i, range) in self.dhcp.iter().enumerate() {
            let inside = self.cidr.contains(&range.start) && self.cidr.contains(&range.end);
            if !inside || range.start > range.end {
                let message = format!(
                    "{} to {} is not a range inside of {}",
                    range.start, range.end, self.cidr
                );
                diagnostics.push(Diagnostic::new(format!("{at}.dhcp[{i}]"), message));
            }
        }
    }
}

/// A host name or an address: letters, digits, `.`, `-`, `:`; no spaces, no control characters.
fn is_host(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_network_is_named_at_its_place() {
        let spec: NetworkSpec = serde_json::from_value(serde_json::json!({
            "vlan": 5000,
            "subnets": [
                {"cidr": "10.0.0.1/24", "gateway": "10.0.1.1"},
                {"cidr": "10.0.0.0/16", "dhcp": [{"start": "10.0.9.9", "end": "10.0.9.1"}]},
            ],
            "ntp": ["time server"],
        }))
        .unwrap();
        let diagnostics = spec.check();
        let places: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.at.as_str()).collect();
        let wanted = [
            "vlan",
            "ntp[0]",
            "subnets[0].cidr",
            "subnets[0].gateway",
            "subnets[1].dhcp[0]",
            "subnets[1].cidr",
        ];
        assert_eq!(places, wanted);
    }
}
