//! The options that describe a node, for `add` and `set`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use hoist_model::node::{Bmc, InterfaceName};
use hoist_model::{
    Arch, BootChoice, Firmware, GroupName, Interface, InterfaceKind, LabelKey, Mac, Name, Nid,
    NodeSpec, Role, Xname,
};
use ipnet::IpNet;

use crate::commands::group::signed;
use crate::failure::Failure;

/// A value, or `-` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NewValue<T> {
    Clear,
    Value(T),
}

impl<T: FromStr> FromStr for NewValue<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" { Ok(Self::Clear) } else { text.parse().map(Self::Value) }
    }
}

impl<T: Clone> NewValue<T> {
    fn put(setting: Option<&Self>, place: &mut Option<T>) {
        match setting {
            None => {}
            Some(Self::Clear) => *place = None,
            Some(Self::Value(value)) => *place = Some(value.clone()),
        }
    }
}

/// `[INTERFACE=]VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnInterface<'a> {
    interface: Option<InterfaceName>,
    value: &'a str,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Description of the node")]
pub(super) struct SpecArgs {
    /// Role; `-` for none
    #[arg(long, value_name = "ROLE", allow_hyphen_values = true)]
    role: Option<NewValue<Role>>,

    /// Subrole; `-` for none
    #[arg(long, value_name = "ROLE", allow_hyphen_values = true)]
    subrole: Option<NewValue<Role>>,

    /// The partition it is run in
    #[arg(long, value_name = "NAME")]
    partition: Option<Name>,

    /// A group it joins (`gpu` or `+gpu`) or leaves (`-gpu`)
    #[arg(long, value_name = "[+-]GROUP", allow_hyphen_values = true)]
    group: Vec<String>,

    /// A label to set (`rack=7`) or to take away (`rack-`)
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// The site's number for it; `-` for none
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    nid: Option<NewValue<Nid>>,

    /// Where it sits; `-` for none
    #[arg(long, value_name = "XNAME", allow_hyphen_values = true)]
    xname: Option<NewValue<Xname>>,

    /// MAC of an interface, which is made if missing; without a name, of the one that boots
    #[arg(long, value_name = "[INTERFACE=]MAC")]
    mac: Vec<String>,

    /// An address that comes (`10.1.0.7/16`, `ens1=10.1.0.7/16`) or goes (`-10.1.0.7/16`)
    #[arg(long, value_name = "[+-][INTERFACE=]IP", allow_hyphen_values = true)]
    ip: Vec<String>,

    /// The network an interface is on; `-` for none
    #[arg(long, value_name = "[INTERFACE=]NETWORK", allow_hyphen_values = true)]
    network: Vec<String>,

    /// The interface that boots; `-` lets the partition's rules choose
    #[arg(long, value_name = "INTERFACE", allow_hyphen_values = true)]
    boot_interface: Option<NewValue<InterfaceName>>,

    /// `x86_64`, `aarch64`, `riscv64` or `unknown`
    #[arg(long, value_parser = word::<Arch>)]
    arch: Option<Arch>,

    /// `uefi`, `bios` or `unknown`
    #[arg(long, value_parser = word::<Firmware>)]
    firmware: Option<Firmware>,

    /// Xname, host name or address of its management controller; `-` for none
    #[arg(long, value_name = "REF", allow_hyphen_values = true)]
    bmc: Option<NewValue<String>>,

    /// Let it boot
    #[arg(long, conflicts_with = "disable")]
    enable: bool,

    /// Do not let it boot
    #[arg(long)]
    disable: bool,
}

impl SpecArgs {
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            role,
            subrole,
            partition,
            group,
            label,
            nid,
            xname,
            mac,
            ip,
            network,
            boot_interface,
            arch,
            firmware,
            bmc,
            enable,
            disable,
        } = self;
        let lists = [group, label, mac, ip, network];
        role.is_none()
            && subrole.is_none()
            && partition.is_none()
            && lists.into_iter().all(Vec::is_empty)
            && nid.is_none()
            && xname.is_none()
            && boot_interface.is_none()
            && arch.is_none()
            && firmware.is_none()
            && bmc.is_none()
            && !enable
            && !disable
    }

    /// The spec with these changes. `boots` is the interface that an option without a name means.
    pub(super) fn onto(
        &self,
        name: &Name,
        mut spec: NodeSpec,
        boots: Option<&InterfaceName>,
    ) -> Result<NodeSpec, Failure> {
        NewValue::put(self.role.as_ref(), &mut spec.role);
        NewValue::put(self.subrole.as_ref(), &mut spec.subrole);
        NewValue::put(self.nid.as_ref(), &mut spec.nid);
        NewValue::put(self.xname.as_ref(), &mut spec.xname);
        spec.partition = self.partition.clone().unwrap_or(spec.partition);
        spec.arch = self.arch.unwrap_or(spec.arch);
        spec.firmware = self.firmware.unwrap_or(spec.firmware);
        spec.enabled = (spec.enabled || self.enable) && !self.disable;
        match &self.bmc {
            None => {}
            Some(NewValue::Clear) => spec.bmc = None,
            Some(NewValue::Value(reference)) => {
                let protocol = spec.bmc.and_then(|bmc| bmc.protocol);
                spec.bmc = Some(Box::new(Bmc { r#ref: reference.clone(), protocol }));
            }
        }
        self.set_groups(&mut spec)?;
        self.set_labels(&mut spec)?;
        self.set_interfaces(&mut spec, boots)?;
        check(name, &spec)?;
        Ok(spec)
    }

    fn set_groups(&self, spec: &mut NodeSpec) -> Result<(), Failure> {
        for word in &self.group {
            let (joins, name) = signed(word);
            let group: GroupName = parsed(name)?;
            if joins {
                spec.groups = spec.groups.with(group);
            } else if spec.groups.contains(&group) {
                spec.groups = spec.groups.without(&group);
            }
        }
        Ok(())
    }

    fn set_labels(&self, spec: &mut NodeSpec) -> Result<(), Failure> {
        if self.label.is_empty() {
            return Ok(());
        }
        let mut labels: BTreeMap<LabelKey, String> =
            spec.labels.iter().map(|(key, value)| (key.clone(), value.to_owned())).collect();
        for word in &self.label {
            match (word.split_once('='), word.strip_suffix('-')) {
                (Some((key, value)), _) => {
                    labels.insert(parsed(key)?, value.to_owned());
                }
                (None, Some(key)) => {
                    labels.remove(&parsed::<LabelKey>(key)?);
                }
                (None, None) => {
                    return Err(Failure::usage(format!("`{word}` is not a label"))
                        .with_hint("write `KEY=VALUE` to set one, `KEY-` to remove it"));
                }
            }
        }
        spec.labels = labels.into_iter().collect();
        Ok(())
    }

    fn set_interfaces(
        &self,
        spec: &mut NodeSpec,
        boots: Option<&InterfaceName>,
    ) -> Result<(), Failure> {
        // Without a name the first MAC is for the interface that boots, each further one for a
        // new interface.
        for (i, word) in self.mac.iter().enumerate() {
            let OnInterface { interface, value } = on_interface(word)?;
            let mac: Mac = parsed(value)?;
            let place = match (&interface, i) {
                (Some(name), _) => spec.interfaces.iter().position(|known| known.name == *name),
                (None, 0) => meant(spec, boots),
                (None, _) => None,
            };
            if let Some(place) = place {
                spec.interfaces[place].mac = mac;
                continue;
            }
            let name = interface.map_or_else(|| unused_name(spec), Ok)?;
            let first = spec.interfaces.is_empty();
            spec.interfaces.push(Interface {
                name,
                kind: if first { InterfaceKind::Boot } else { InterfaceKind::Other },
                mac,
                addresses: Vec::new(),
                network: None,
                vlan: None,
                mtu: None,
            });
        }
        for word in &self.ip {
            let (comes, rest) = signed(word);
            let OnInterface { interface, value } = on_interface(rest)?;
            let address = address(value)?;
            let addresses = &mut named(spec, interface.as_ref(), boots)?.addresses;
            let known = addresses
                .iter()
                .position(|known| *known == address || (!comes && known.addr() == address.addr()));
            match (comes, known) {
                (true, None) => addresses.push(address),
                (true, Some(_)) => {}
                (false, Some(place)) => {
                    addresses.remove(place);
                }
                (false, None) => {
                    return Err(Failure::usage(format!("the node has no such value `{value}`")));
                }
            }
        }
        for word in &self.network {
            let OnInterface { interface, value } = on_interface(word)?;
            let network: NewValue<Name> =
                value.parse().map_err(|error| Failure::usage(format!("{error}")))?;
            let place = &mut named(spec, interface.as_ref(), boots)?.network;
            NewValue::put(Some(&network), place);
        }
        match &self.boot_interface {
            None => {}
            Some(NewValue::Clear) => spec.boot = None,
            Some(NewValue::Value(interface)) => {
                let interface = Some(interface.clone());
                spec.boot = Some(Box::new(BootChoice { interface, ..BootChoice::default() }));
            }
        }
        Ok(())
    }
}

/// The index of the default interface.
fn meant(spec: &NodeSpec, boots: Option<&InterfaceName>) -> Option<usize> {
    let booting =
        boots.and_then(|name| spec.interfaces.iter().position(|interface| interface.name == *name));
    let first = spec.interfaces.iter().position(|interface| interface.kind != InterfaceKind::Bmc);
    booting.or(first)
}

fn named<'a>(
    spec: &'a mut NodeSpec,
    name: Option<&InterfaceName>,
    boots: Option<&InterfaceName>,
) -> Result<&'a mut Interface, Failure> {
    let place = match name {
        Some(name) => spec.interfaces.iter().position(|interface| interface.name == *name),
        None => meant(spec, boots),
    };
    let missing = || {
        let what = name.map(|name| format!(" `{name}`")).unwrap_or_default();
        Failure::usage(format!("the node has no interface{what}"))
            .with_hint("`--mac [INTERFACE=]MAC` makes one")
    };
    Ok(&mut spec.interfaces[place.ok_or_else(missing)?])
}

fn unused_name(spec: &NodeSpec) -> Result<InterfaceName, Failure> {
    let taken = |name: &str| spec.interfaces.iter().any(|known| known.name.as_str() == name);
    // One more than there are interfaces: at least one is free.
    let mut names = (0..=spec.interfaces.len()).map(|number| format!("eth{number}"));
    parsed(&names.find(|name| !taken(name)).expect("more names than interfaces"))
}

fn on_interface(word: &str) -> Result<OnInterface<'_>, Failure> {
    Ok(match word.split_once('=') {
        Some((name, value)) => OnInterface { interface: Some(parsed(name)?), value },
        None => OnInterface { interface: None, value: word },
    })
}

fn address(text: &str) -> Result<IpNet, Failure> {
    let with_prefix = text.parse::<IpNet>().ok();
    with_prefix.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).ok_or_else(|| {
        Failure::usage(format!("`{text}` is not an IP address"))
            .with_hint("write it with its prefix length: `10.1.0.7/16`")
    })
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("{error}")))
}

/// A word of an enum, spelled as in documents.
pub(crate) fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let text = serde_json::Value::String(text.to_ascii_lowercase());
    serde_json::from_value(text).map_err(|error| error.to_string())
}

fn check(name: &Name, spec: &NodeSpec) -> Result<(), Failure> {
    let node = format!("Node {name}");
    let found: Vec<_> = spec.check().into_iter().map(|found| found.within(&node)).collect();
    if found.is_empty() { Ok(()) } else { Err(Failure::Documents(found)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct SetCommand {
        #[command(flatten)]
        args: SpecArgs,
    }

    fn set(words: &[&str], spec: &NodeSpec) -> Result<NodeSpec, Failure> {
        let args = SetCommand::try_parse_from(["set"].iter().chain(words)).unwrap().args;
        args.onto(&"n1".parse().unwrap(), spec.clone(), None)
    }

    fn fresh(words: &[&str]) -> NodeSpec {
        set(words, &NodeSpec::default()).unwrap()
    }

    #[test]
    fn no_arguments_change_nothing() {
        let args = SetCommand::try_parse_from(["set"]).unwrap().args;
        assert!(args.is_empty());
        assert_eq!(fresh(&[]), NodeSpec::default());
        assert!(!SetCommand::try_parse_from(["set", "--disable"]).unwrap().args.is_empty());
    }

    #[test]
    fn plain_fields_are_set_and_cleared() {
        let spec = fresh(&[
            "--role",
            "Compute",
            "--nid",
            "48",
            "--xname",
            "x1000c0s0b0n0",
            "--arch",
            "aarch64",
            "--partition",
            "p1",
            "--disable",
            "--bmc",
            "10.9.0.1",
        ]);
        assert_eq!(spec.nid.map(Nid::get), Some(48));
        assert_eq!(
            (spec.arch, spec.enabled, spec.partition.as_str()),
            (Arch::Aarch64, false, "p1")
        );
        let spec = set(&["--role", "-", "--nid", "-", "--enable", "--bmc", "-"], &spec).unwrap();
        assert_eq!((spec.role, spec.nid, spec.enabled, spec.bmc), (None, None, true, None));
    }

    #[test]
    fn labels_and_groups_come_and_go() {
        let spec = fresh(&["--label", "rack=7", "--label", "row=a=b", "--group", "gpu"]);
        assert_eq!(spec.labels.get("row"), Some("a=b"));
        let words = ["--label", "rack-", "--group", "-gpu", "--group", "+cpu", "--group", "-none"];
        let spec = set(&words, &spec).unwrap();
        assert_eq!(spec.labels.get("rack"), None);
        assert_eq!(spec.groups.iter().map(GroupName::as_str).collect::<Vec<_>>(), ["cpu"]);
        let failure = set(&["--label", "rack"], &spec).unwrap_err();
        assert!(matches!(failure, Failure::Usage { .. }), "{failure}");
    }

    #[test]
    fn interfaces_are_made_and_changed() {
        let spec = fresh(&[
            "--mac",
            "52:54:00:00:00:01",
            "--mac",
            "ens1=52-54-00-00-00-02",
            "--mac",
            "52:54:00:00:00:03",
            "--ip",
            "10.1.0.1/16",
            "--ip",
            "ens1=fd00::1/64",
            "--network",
            "ens1=hsn",
        ]);
        let names: Vec<_> = spec.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["eth0", "ens1", "eth1"]);
        assert_eq!(spec.interfaces[0].kind, InterfaceKind::Boot);
        assert_eq!(spec.interfaces[0].addresses, ["10.1.0.1/16".parse::<IpNet>().unwrap()]);
        assert_eq!(spec.interfaces[1].network.as_deref(), Some("hsn"));

        let words = [
            "--mac",
            "52:54:00:00:00:09",
            "--ip",
            "-10.1.0.1",
            "--ip",
            "10.1.0.2",
            "--network",
            "ens1=-",
            "--boot-interface",
            "ens1",
        ];
        let spec = set(&words, &spec).unwrap();
        assert_eq!(spec.interfaces.len(), 3);
        assert_eq!(spec.interfaces[0].mac.to_string(), "52:54:00:00:00:09");
        assert_eq!(spec.interfaces[0].addresses, ["10.1.0.2/32".parse::<IpNet>().unwrap()]);
        assert_eq!(spec.interfaces[1].network, None);
        assert!(spec.boot.is_some());
        assert!(set(&["--boot-interface", "-"], &spec).unwrap().boot.is_none());
    }

    #[test]
    fn an_option_without_a_name_means_the_interface_that_boots() {
        let spec = fresh(&["--mac", "52:54:00:00:00:01", "--mac", "ens1=52:54:00:00:00:02"]);
        let args = SetCommand::try_parse_from(["set", "--ip", "10.1.0.1/16"]).unwrap().args;
        let boots: InterfaceName = "ens1".parse().unwrap();
        let spec = args.onto(&"n1".parse().unwrap(), spec, Some(&boots)).unwrap();
        assert_eq!(spec.interfaces[1].addresses.len(), 1);
    }

    #[test]
    fn impossible_values_are_refused_before_any_request() {
        let spec = NodeSpec::default();
        assert!(set(&["--ip", "10.1.0.1/16"], &spec).is_err(), "no interface");
        assert!(set(&["--ip", "-ens1=10.1.0.1/16"], &spec).is_err(), "no such interface");
        assert!(set(&["--mac", "kettle"], &spec).is_err());
        let broadcast = set(&["--mac", "ff:ff:ff:ff:ff:ff"], &spec).unwrap_err();
        assert!(matches!(broadcast, Failure::Documents(_)), "{broadcast}");
        assert!(SetCommand::try_parse_from(["set", "--nid=-1"]).is_err());
        assert!(SetCommand::try_parse_from(["set", "--arch", "z80"]).is_err());
        assert!(SetCommand::try_parse_from(["set", "--enable", "--disable"]).is_err());
    }
}
