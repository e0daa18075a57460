//! The agent's part of the kernel command line: controller, node identity, token and network.
//! Parsing only; nothing here acts on the values.

use std::fmt;
use std::net::Ipv4Addr;

use hoist_model::{Mac, NodeId};

/// Limit of the kernel.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ControllerArgs {
    /// `https://HOST:PORT`.
    pub(crate) server: String,
    pub(crate) node: NodeId,
    pub(crate) token: String,
}

impl fmt::Debug for ControllerArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, node, .. } = self;
        f.debug_struct("ControllerArgs")
            .field("server", server)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

/// The address of the machine, as the firmware got it.
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
    /// The only one; several are an error.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CommandLineError {
    #[error(
        "kernel argument `{name}=` is missing; boot with a script of hoist, see `hoist boot explain`"
    )]
    Missing { name: &'static str },
    #[error("kernel argument `{name}=`: {reason}")]
    Invalid { name: &'static str, reason: String },
}

fn invalid(name: &'static str, reason: impl Into<String>) -> CommandLineError {
    CommandLineError::Invalid { name, reason: reason.into() }
}

/// The value of a kernel argument; the last one counts.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let arguments = line.split_ascii_whitespace();
    let mut values = arguments.filter_map(|text| text.strip_prefix(name)?.strip_prefix('='));
    values.rfind(|value| !value.is_empty())
}

fn required<'a>(line: &'a str, name: &'static str) -> Result<&'a str, CommandLineError> {
    value(line, name).ok_or(CommandLineError::Missing { name })
}

pub(crate) fn controller(line: &str) -> Result<ControllerArgs, CommandLineError> {
    let server = required(line, "hoist.server")?.trim_end_matches('/');
    // The job carries secrets, so plain HTTP must be refused.
    if !server.starts_with("https://") {
        return Err(invalid("hoist.server", "not of the form `https://HOST:PORT`"));
    }
    let node = required(line, "hoist.node")?;
    let node = node.parse().map_err(|_| invalid("hoist.node", "not a node id"))?;
    let token = required(line, "hoist.token")?.to_owned();
    Ok(ControllerArgs { server: server.to_owned(), node, token })
}

/// `ip=<address>:<server>:<gateway>:<netmask>:<name>:<device>:<how>:<dns>:<dns>`, of which all but
/// the address and the netmask may be empty; `BOOTIF=01-<mac>` selects the interface.
pub(crate) fn network(line: &str) -> Result<Network, CommandLineError> {
    let text = required(line, "ip")?;
    if text.starts_with('[') || text.contains("::::::") || text.contains("ipv6") {
        return Err(invalid("ip", "the agent does not support IPv6; use an IPv4 address"));
    }
    let fields: Vec<&str> = text.split(':').collect();
    let field = |number: usize| fields.get(number).copied().filter(|field| !field.is_empty());
    let parsed = |number: usize| {
        let parse = |field: &str| {
            field
                .parse::<Ipv4Addr>()
                .map_err(|_| invalid("ip", format!("`{field}` is not an IPv4 address")))
        };
        field(number).map(parse).transpose()
    };
    let Some(address) = parsed(0).ok().flatten() else {
        return Err(invalid("ip", "no address; the agent does not use DHCP"));
    };
    let netmask = parsed(3)?.ok_or_else(|| invalid("ip", "no netmask"))?;
    let bits = u32::from(netmask);
    if bits.count_ones() != bits.leading_ones() {
        return Err(invalid("ip", format!("`{netmask}` is not a netmask")));
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
    mac.parse().map_err(|_| invalid("BOOTIF", format!("`{text}` is not a hardware address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "initrd=initrd console=ttyS0 hoist.server=https://10.0.2.2:8443/ \
        hoist.node=01ARZ3NDEKTSV4RRFFQ69G5FAV hoist.token=hunter2 \
        ip=10.0.2.15::10.0.2.2:255.255.255.0:::none BOOTIF=01-52-54-00-00-00-01\n";

    #[test]
    fn kernel_arguments_of_a_boot_script_are_parsed() {
        let node: NodeId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let parsed = controller(LINE).unwrap();
        assert_eq!((parsed.server.as_str(), parsed.node), ("https://10.0.2.2:8443", node));
        assert_eq!(parsed.token, "hunter2");
        assert!(!format!("{parsed:?}").contains("hunter2"));
        let network = network(LINE).unwrap();
        assert_eq!(network.address, Ipv4Addr::new(10, 0, 2, 15));
        assert_eq!((network.prefix, network.gateway), (24, Some(Ipv4Addr::new(10, 0, 2, 2))));
        assert_eq!(network.nic, Nic::Mac("52:54:00:00:00:01".parse().unwrap()));
    }

    #[test]
    fn interface_is_named_or_the_only_one() {
        let named = network("ip=10.1.0.9:::255.255.0.0::eth7:none:10.1.0.1:0.0.0.0").unwrap();
        assert_eq!((named.nic, named.prefix), (Nic::Name("eth7".to_owned()), 16));
        assert_eq!((named.gateway, named.name_servers), (None, vec![Ipv4Addr::new(10, 1, 0, 1)]));
        assert_eq!(network("ip=10.1.0.9:::255.255.0.0:::").unwrap().nic, Nic::Any);
    }

    #[test]
    fn last_value_counts_and_an_empty_one_does_not() {
        assert_eq!(value("a=1 a=2 a= b=3", "a"), Some("2"));
        assert_eq!(value("aa=1", "a"), None);
    }

    #[test]
    fn missing_and_invalid_kernel_arguments_are_named() {
        let message = |error: CommandLineError| error.to_string();
        assert!(message(controller("quiet").unwrap_err()).contains("`hoist.server=` is missing"));
        let plain = LINE.replace("https:", "http:");
        assert!(
            message(controller(&plain).unwrap_err())
                .contains("hoist.server=`: not of the form `https://HOST:PORT`")
        );
        let other = LINE.replace("01ARZ3NDEKTSV4RRFFQ69G5FAV", "n1");
        assert!(message(controller(&other).unwrap_err()).contains("not a node id"));
        for (text, reason) in [
            ("ip=dhcp", "no address; the agent does not use DHCP"),
            ("ip=10.0.0.1", "no netmask"),
            ("ip=10.0.0.1:::255.0.255.0", "`255.0.255.0` is not a netmask"),
            ("ip=10.0.0.1::gate:255.0.0.0", "`gate` is not an IPv4 address"),
            ("ip=[2001:db8::1]::::", "the agent does not support IPv6"),
            ("ip=10.0.0.1:::255.0.0.0 BOOTIF=01-zz", "is not a hardware address"),
        ] {
            let error = message(network(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
