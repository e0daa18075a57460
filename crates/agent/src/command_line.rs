//! What the kernel command line says to the agent: whom to ask, as whom, and over which network.

use std::fmt;
use std::net::Ipv4Addr;

use hoist_model::{Mac, NodeId};

/// The kernel keeps no longer ones.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    /// `https://HOST:PORT`.
    pub(crate) server: String,
    pub(crate) node: NodeId,
    pub(crate) token: String,
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, node, .. } = self;
        f.debug_struct("Orders").field("server", server).field("node", node).finish_non_exhaustive()
    }
}

/// One address, as firmware was given it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) nic: Nic,
    pub(crate) address: Ipv4Addr,
    /// Bits of the network.
    pub(crate) prefix: u8,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) name_servers: Vec<Ipv4Addr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nic {
    Mac(Mac),
    Name(String),
    /// There must be one only.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CommandLineError {
    #[error(
        "the kernel command line has no `{word}=`; let hoist write it, see `hoist boot explain`"
    )]
    Missing { word: &'static str },
    #[error("`{word}=` on the kernel command line is {reason}")]
    Wrong { word: &'static str, reason: String },
}

fn wrong(word: &'static str, reason: impl Into<String>) -> CommandLineError {
    CommandLineError::Wrong { word, reason: reason.into() }
}

/// What stands behind `name=`; the last one counts.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let words = line.split_ascii_whitespace();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.rfind(|value| !value.is_empty())
}

fn needed<'a>(line: &'a str, word: &'static str) -> Result<&'a str, CommandLineError> {
    value(line, word).ok_or(CommandLineError::Missing { word })
}

pub(crate) fn orders(line: &str) -> Result<Orders, CommandLineError> {
    let server = needed(line, "hoist.server")?.trim_end_matches('/');
    // What is handed out is for nobody else.
    if !server.starts_with("https://") {
        return Err(wrong("hoist.server", "no `https://HOST:PORT`"));
    }
    let node = needed(line, "hoist.node")?;
    let node = node.parse().map_err(|_| wrong("hoist.node", "no id of a node"))?;
    let token = needed(line, "hoist.token")?.to_owned();
    Ok(Orders { server: server.to_owned(), node, token })
}

/// `ip=<address>:<server>:<gateway>:<netmask>:<name>:<device>:<how>:<dns>:<dns>`, of which all but
/// the address and the netmask may be empty; `BOOTIF=01-<mac>` says which interface is meant.
pub(crate) fn network(line: &str) -> Result<Network, CommandLineError> {
    let text = needed(line, "ip")?;
    if text.starts_with('[') || text.contains("::::::") || text.contains("ipv6") {
        return Err(wrong("ip", "IPv6, which the agent does not set up; give it an IPv4 address"));
    }
    let fields: Vec<&str> = text.split(':').collect();
    let field = |number: usize| fields.get(number).copied().filter(|field| !field.is_empty());
    let parsed = |number: usize| {
        let parse = |field: &str| {
            field.parse::<Ipv4Addr>().map_err(|_| wrong("ip", format!("wrong at `{field}`")))
        };
        field(number).map(parse).transpose()
    };
    let Some(address) = parsed(0).ok().flatten() else {
        return Err(wrong("ip", "without an address; the agent asks nobody for one"));
    };
    let netmask = parsed(3)?.ok_or_else(|| wrong("ip", "without a netmask"))?;
    let bits = u32::from(netmask);
    if bits.count_ones() != bits.leading_ones() {
        return Err(wrong("ip", format!("wrong: `{netmask}` is no netmask")));
    }
    let prefix = u8::try_from(bits.leading_ones()).expect("at most 32");
    let gateway = parsed(2)?.filter(|gateway| !gateway.is_unspecified());
    let name_servers = [parsed(7)?, parsed(8)?].into_iter().flatten();
    let name_servers = name_servers.filter(|server| !server.is_unspecified()).collect();
    let nic = match (value(line, "BOOTIF"), field(5)) {
        (Some(mac), _) => Nic::Mac(boot_interface(mac)?),
        (None, Some(name)) => Nic::Name(name.to_owned()),
        (None, None) => Nic::Any,
    };
    Ok(Network { nic, address, prefix, gateway, name_servers })
}

/// With the kind of hardware before it, as PXE has it, or without.
fn boot_interface(text: &str) -> Result<Mac, CommandLineError> {
    let mac = if text.len() == 20 { text.strip_prefix("01-").unwrap_or(text) } else { text };
    mac.parse().map_err(|_| wrong("BOOTIF", format!("`{text}`, which is no hardware address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "initrd=initrd console=ttyS0 hoist.server=https://10.0.2.2:8443/ \
        hoist.node=01ARZ3NDEKTSV4RRFFQ69G5FAV hoist.token=hunter2 \
        ip=10.0.2.15::10.0.2.2:255.255.255.0:::none BOOTIF=01-52-54-00-00-00-01\n";

    #[test]
    fn what_hoist_writes_is_understood() {
        let node: NodeId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let told = orders(LINE).unwrap();
        assert_eq!((told.server.as_str(), told.node), ("https://10.0.2.2:8443", node));
        assert_eq!(told.token, "hunter2");
        assert!(!format!("{told:?}").contains("hunter2"));
        let network = network(LINE).unwrap();
        assert_eq!(network.address, Ipv4Addr::new(10, 0, 2, 15));
        assert_eq!((network.prefix, network.gateway), (24, Some(Ipv4Addr::new(10, 0, 2, 2))));
        assert_eq!(network.nic, Nic::Mac("52:54:00:00:00:01".parse().unwrap()));
    }

    #[test]
    fn an_interface_may_be_named_or_the_only_one() {
        let named = network("ip=10.1.0.9:::255.255.0.0::eth7:none:10.1.0.1:0.0.0.0").unwrap();
        assert_eq!((named.nic, named.prefix), (Nic::Name("eth7".to_owned()), 16));
        assert_eq!((named.gateway, named.name_servers), (None, vec![Ipv4Addr::new(10, 1, 0, 1)]));
        assert_eq!(network("ip=10.1.0.9:::255.255.0.0:::").unwrap().nic, Nic::Any);
    }

    #[test]
    fn the_last_of_several_counts_and_an_empty_one_does_not() {
        assert_eq!(value("a=1 a=2 a= b=3", "a"), Some("2"));
        assert_eq!(value("aa=1", "a"), None);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let told = |error: CommandLineError| error.to_string();
        assert!(told(orders("quiet").unwrap_err()).contains("no `hoist.server=`"));
        let plain = LINE.replace("https:", "http:");
        assert!(told(orders(&plain).unwrap_err()).contains("no `https://HOST:PORT`"));
        let other = LINE.replace("01ARZ3NDEKTSV4RRFFQ69G5FAV", "n1");
        assert!(told(orders(&other).unwrap_err()).contains("no id of a node"));
        for (text, reason) in [
            ("ip=dhcp", "without an address; the agent asks nobody for one"),
            ("ip=10.0.0.1", "without a netmask"),
            ("ip=10.0.0.1:::255.0.255.0", "`255.0.255.0` is no netmask"),
            ("ip=10.0.0.1::gate:255.0.0.0", "wrong at `gate`"),
            ("ip=[2001:db8::1]::::", "IPv6, which the agent does not set up"),
            ("ip=10.0.0.1:::255.0.0.0 BOOTIF=01-zz", "no hardware address"),
        ] {
            let error = told(network(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
