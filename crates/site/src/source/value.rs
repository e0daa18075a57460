//! Converts text of other programs to our values. Text that does not parse is left out with a
//! warning.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use hoist_model::node::{InterfaceName, Power};
use hoist_model::{Arch, GroupName, Interface, InterfaceKind, Mac, Name, Nid, Xname};
use ipnet::IpNet;

use super::{ObservedState, Warning, WarningKind};

/// Longest foreign text repeated in a message.
const MAX_QUOTE: usize = 80;

/// Reads the values of one subject.
pub(crate) struct Reader<'a> {
    pub(crate) subject: &'a str,
    pub(crate) warnings: &'a mut Vec<Warning>,
}

impl Reader<'_> {
    pub(crate) fn warn(&mut self, kind: WarningKind, message: impl Into<String>) {
        self.warnings.push(Warning::new(kind, self.subject, message));
    }

    /// `None` for nothing, and with a warning for nonsense.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&mut self, text: &str) -> Option<T> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn(WarningKind::Value, short(&error.to_string()));
                None
            }
        }
    }

    pub(crate) fn node_xname(&mut self, text: &str) -> Option<Xname> {
        let xname: Xname = self.parse(text)?;
        if !xname.is_node() {
            self.warn(WarningKind::Value, format!("the xname {xname} does not name a node"));
            return None;
        }
        Some(xname)
    }

    /// Placeholders are nothing, without a word: the caller may count them.
    pub(crate) fn mac(&mut self, text: &str) -> Option<Mac> {
        let text = text.trim();
        if is_placeholder(text) {
            return None;
        }
        let mac: Mac = self.parse(text)?;
        if !mac.is_unicast() {
            self.warn(WarningKind::Value, format!("{mac} cannot belong to one interface"));
            return None;
        }
        Some(mac)
    }

    /// An address alone is as long as itself: the prefix belongs to the network.
    pub(crate) fn address(&mut self, text: &str) -> Option<IpNet> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let net = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>());
        let usable = net.ok().filter(|net| {
            let ip = net.addr();
            !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
        });
        if usable.is_none() {
            let message = format!("`{}` is not an address of a machine", short(text));
            self.warn(WarningKind::Value, message);
        }
        usable
    }

    pub(crate) fn nid(&mut self, number: i64) -> Option<Nid> {
        // SMD stores -1 for none.
        if number < 0 {
            return None;
        }
        let nid = u32::try_from(number).ok().map(Nid::new);
        if nid.is_none() {
            self.warn(WarningKind::Value, format!("the nid {number} is above 4294967295"));
        }
        nid
    }

    pub(crate) fn arch(&mut self, text: &str) -> Arch {
        match text.trim().to_ascii_lowercase().as_str() {
            "x86" | "x86_64" | "x86-64" | "amd64" => Arch::X86_64,
            "arm" | "arm64" | "aarch64" => Arch::Aarch64,
            "riscv64" => Arch::Riscv64,
            "" | "unknown" | "other" => Arch::Unknown,
            other => {
                let message = format!("unknown architecture `{}`", short(other));
                self.warn(WarningKind::Value, message);
                Arch::Unknown
            }
        }
    }

    /// The networks' names of other programs have dots, underscores and capitals.
    pub(crate) fn network(&mut self, text: &str) -> Option<Name> {
        self.parse(&text.trim().replace(['_', '.', ' '], "-"))
    }

    pub(crate) fn groups<'t>(
        &mut self,
        labels: impl IntoIterator<Item = &'t str>,
    ) -> Vec<GroupName> {
        labels.into_iter().filter_map(|label| self.parse(label)).collect()
    }
}

pub(crate) fn is_placeholder(mac: &str) -> bool {
    let word = |word: &&str| mac.eq_ignore_ascii_case(word);
    let octets = mac.parse::<Mac>().map(Mac::octets);
    mac.is_empty()
        || ["not available", "none", "n/a", "unknown"].iter().any(word)
        || octets.is_ok_and(|octets| octets == [0xff; 6] || octets == [0; 6])
}

/// An interface known only by its address. It is called as udev's MAC policy calls it, which stays
/// the same whatever other interfaces come and go.
pub(crate) fn interface(mac: Mac) -> Interface {
    let mut name = String::with_capacity(15);
    name.push_str("enx");
    name.extend(mac.to_string().chars().filter(|c| *c != ':'));
    let name: InterfaceName = name.parse().expect("letters and digits are a valid name");
    Interface {
        name,
        kind: InterfaceKind::Other,
        mac,
        addresses: Vec::new(),
        network: None,
        vlan: None,
        mtu: None,
    }
}

/// What SMD's state says about power.
pub(crate) fn observed(state: &str) -> Option<ObservedState> {
    let power = match state.to_ascii_lowercase().as_str() {
        "" => return None,
        "on" | "ready" | "standby" | "halt" => Power::On,
        "off" => Power::Off,
        _ => Power::Unknown,
    };
    Some(ObservedState { power, word: short(state) })
}

pub(crate) fn short(text: &str) -> String {
    if text.chars().count() <= MAX_QUOTE {
        return text.to_owned();
    }
    text.chars().take(MAX_QUOTE).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_skipped_and_bad_values_warned_about() {
        let mut warnings = Vec::new();
        let mut reader = Reader { subject: "n", warnings: &mut warnings };
        for text in ["", " ", "not available", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            assert_eq!(reader.mac(text), None);
        }
        assert!(reader.mac("0200.0000.0001").is_some());
        assert!(reader.warnings.is_empty());
        assert_eq!(reader.mac("01:1e:67:e3:3b:98"), None);
        assert_eq!(reader.mac("2:0:0:0:0:1"), None);
        assert_eq!(reader.address("10.0.0.300"), None);
        assert_eq!(reader.address("::"), None);
        assert_eq!(reader.address("fd00::7").unwrap().to_string(), "fd00::7/128");
        assert_eq!(reader.address("10.0.0.3/24").unwrap().to_string(), "10.0.0.3/24");
        assert_eq!(reader.nid(-1), None);
        assert_eq!(reader.nid(1 << 40), None);
        assert_eq!(reader.network("HMN_River").unwrap().as_str(), "hmn-river");
        assert_eq!(warnings.len(), 5);
    }
}
