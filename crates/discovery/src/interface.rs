//! The network interfaces of this machine, and which of them discovery uses.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use if_addrs::{IfAddr, IfOperStatus};
use ipnet::IpNet;

use crate::problem::Problem;

/// The interfaces that discovery uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All that are up, except loopback and point-to-point links.
    Suitable,
    /// Only these.
    Named(Vec<String>),
}

/// An interface that is up and has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) v4: Vec<AddressV4>,
    pub(crate) has_v6: bool,
    /// The networks that are reached without a router.
    networks: Vec<IpNet>,
    is_suitable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressV4 {
    pub(crate) address: Ipv4Addr,
    pub(crate) broadcast: Option<Ipv4Addr>,
}

impl Interface {
    /// Whether an address is reached through this interface without a router.
    pub(crate) fn is_on_link(&self, address: IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        (is_link_local && self.has_v6) || self.networks.iter().any(|net| net.contains(&address))
    }

    fn new(name: String, index: u32) -> Self {
        let (v4, networks) = (Vec::new(), Vec::new());
        Self { name, index, v4, has_v6: false, networks, is_suitable: true }
    }

    fn add(&mut self, address: &if_addrs::Interface) {
        self.is_suitable &= !address.is_loopback() && !address.is_p2p();
        let prefix = match &address.addr {
            IfAddr::V4(v4) => {
                self.v4.push(AddressV4 { address: v4.ip, broadcast: v4.broadcast });
                v4.prefixlen
            }
            IfAddr::V6(v6) => {
                self.has_v6 = true;
                v6.prefixlen
            }
        };
        self.networks.extend(IpNet::new(address.ip(), prefix));
    }
}

impl Selection {
    /// The chosen interfaces that can be used now, and the named ones that cannot.
    pub(crate) fn interfaces(&self) -> io::Result<(Vec<Interface>, Vec<Problem>)> {
        Ok(self.choose(list()?))
    }

    fn choose(&self, present: Vec<Interface>) -> (Vec<Interface>, Vec<Problem>) {
        let Self::Named(names) = self else {
            let suitable = present.into_iter().filter(|interface| interface.is_suitable);
            return (suitable.collect(), Vec::new());
        };
        let is_absent = |name: &&String| !present.iter().any(|interface| interface.name == **name);
        let missing = |name: &String| Problem::Missing { interface: name.clone() };
        let problems = names.iter().filter(is_absent).map(missing).collect();
        let is_named = |interface: &Interface| names.contains(&interface.name);
        (present.into_iter().filter(is_named).collect(), problems)
    }
}

/// All interfaces that are up and have an address.
fn list() -> io::Result<Vec<Interface>> {
    let mut interfaces: BTreeMap<u32, Interface> = BTreeMap::new();
    for address in if_addrs::get_if_addrs()? {
        let Some(index) = address.index.filter(|_| address.oper_status == IfOperStatus::Up) else {
            continue;
        };
        // A second address of old tools has a label behind a colon.
        let name = address.name.split(':').next().unwrap_or_default().to_owned();
        interfaces.entry(index).or_insert_with(|| Interface::new(name, index)).add(&address);
    }
    Ok(interfaces.into_values().collect())
}

#[cfg(test)]
mod tests {
    use if_addrs::{Ifv4Addr, Ifv6Addr};

    use super::*;

    fn interface(name: &str, is_p2p: bool, addresses: &[&str]) -> Interface {
        let mut interface = Interface::new(name.to_owned(), 7);
        for text in addresses {
            let addr = match text.parse::<IpNet>().unwrap() {
                IpNet::V4(net) => IfAddr::V4(Ifv4Addr {
                    ip: net.addr(),
                    netmask: net.netmask(),
                    prefixlen: net.prefix_len(),
                    broadcast: Some(net.broadcast()),
                }),
                IpNet::V6(net) => IfAddr::V6(Ifv6Addr {
                    ip: net.addr(),
                    netmask: net.netmask(),
                    prefixlen: net.prefix_len(),
                    broadcast: None,
                }),
            };
            let (name, index) = (name.to_owned(), Some(7));
            let oper_status = IfOperStatus::Up;
            interface.add(&if_addrs::Interface { name, addr, index, oper_status, is_p2p });
        }
        interface
    }

    #[test]
    fn address_beyond_a_router_is_not_on_link() {
        let eth0 = interface("eth0", false, &["10.0.0.1/24", "fd00::1/64"]);
        for near in ["10.0.0.200", "fd00::77", "fe80::1"] {
            assert!(eth0.is_on_link(near.parse().unwrap()), "{near}");
        }
        for far in ["10.0.1.1", "127.0.0.1", "fd00:0:0:1::1", "::1"] {
            assert!(!eth0.is_on_link(far.parse().unwrap()), "{far}");
        }
        let v4_only = interface("eth1", false, &["10.0.0.1/24"]);
        assert!(!v4_only.is_on_link("fe80::1".parse().unwrap()));
    }

    #[test]
    fn loopback_and_tunnels_are_used_only_by_name() {
        let present = [
            interface("lo", false, &["127.0.0.1/8"]),
            interface("eth0", false, &["10.0.0.1/24"]),
            interface("tun0", true, &["10.9.0.1/32"]),
        ];
        let names = |selection: Selection| {
            let (chosen, problems) = selection.choose(present.to_vec());
            let names: Vec<_> = chosen.into_iter().map(|interface| interface.name).collect();
            (names, problems.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names(Selection::Suitable), (vec!["eth0".to_owned()], vec![]));
        let (chosen, problems) = names(Selection::Named(vec!["lo".to_owned(), "eth9".to_owned()]));
        assert_eq!(chosen, ["lo"]);
        assert_eq!(problems, ["eth9: no such interface, or it is down or has no address"]);
    }

    #[test]
    fn loopback_of_this_machine_is_listed() {
        let interfaces = list().unwrap();
        let lo = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.is_on_link([127, 0, 0, 1].into()));
        assert!(!lo.is_suitable);
    }
}
