//! Sets up the network interface that the machine booted from, with the address that its firmware
//! got. IPv4 only.

mod netlink;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use hoist_model::Mac;

use crate::command_line::{Network, Nic};
use crate::modules;

/// Drivers may be slow, and a switch port may start forwarding late.
const TIMEOUT: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum NetworkError {
    #[error(
        "network interface {wanted} not found (present: {present}); check that the image contains its driver"
    )]
    NoInterface { wanted: String, present: String },
    #[error(
        "several network interfaces ({0}) and none was selected; name one with `BOOTIF=` or in `ip=`"
    )]
    Several(String),
    #[error("network interface `{0}` has no link; check its cable")]
    NoLink(String),
    #[error("network interface `{name}`: cannot {what}")]
    Kernel { what: &'static str, name: String, source: io::Error },
}

/// Returns the interface's name, once it has its address.
pub(crate) fn bring_up(network: &Network) -> Result<String, NetworkError> {
    let name = wait_for_interface(&network.nic)?;
    let failed = |what: &'static str| {
        let name = name.clone();
        move |source| NetworkError::Kernel { what, name, source }
    };
    let index = index(&name).map_err(failed("read its index"))?;
    let mut kernel = netlink::Route::open().map_err(failed("open a netlink socket"))?;
    if let Ok(lo) = self::index("lo") {
        // Some programs use loopback; everything else works without it.
        let _ = kernel.up(lo);
    }
    kernel.up(index).map_err(failed("bring up the link"))?;
    wait_for_link(&name)?;
    kernel.address(index, network.address, network.prefix).map_err(failed("set the address"))?;
    if let Some(gateway) = network.gateway {
        kernel.default_route(index, gateway).map_err(failed("set the gateway"))?;
    }
    write_resolver(&network.name_servers).map_err(failed("write the name servers"))?;
    Ok(name)
}

fn write_resolver(servers: &[Ipv4Addr]) -> io::Result<()> {
    if servers.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = servers.iter().map(|server| format!("nameserver {server}")).collect();
    fs::write("/etc/resolv.conf", lines.join("\n") + "\n")
}

fn wait_for_interface(nic: &Nic) -> Result<String, NetworkError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let present = interfaces();
        let failure = match choose(nic, &present) {
            Ok(name) => return Ok(name),
            Err(failure) => failure,
        };
        if Instant::now() >= deadline {
            return Err(failure);
        }
        std::thread::sleep(LOOK_EVERY);
        // A device that had no driver yet may have appeared.
        modules::load_for_hardware();
    }
}

/// Chooses among the interfaces with their hardware addresses.
fn choose(nic: &Nic, present: &[(String, Option<Mac>)]) -> Result<String, NetworkError> {
    let names = || present.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let found = present.iter().find(|(name, mac)| match nic {
        Nic::Mac(wanted) => *mac == Some(*wanted),
        Nic::Name(wanted) => name == wanted,
        Nic::Any => true,
    });
    let Some((name, _)) = found else {
        let wanted = match nic {
            Nic::Mac(mac) => format!("with address {mac}"),
            Nic::Name(name) => format!("`{name}`"),
            Nic::Any => "of any name".to_owned(),
        };
        return Err(NetworkError::NoInterface { wanted, present: names() });
    };
    if *nic == Nic::Any && present.len() > 1 {
        return Err(NetworkError::Several(names()));
    }
    Ok(name.clone())
}

/// The interfaces that are hardware.
fn interfaces() -> Vec<(String, Option<Mac>)> {
    let dir = Path::new("/sys/class/net");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.path().join("device").exists());
    let mut found: Vec<_> = names
        .map(|entry| {
            let mac = fs::read_to_string(entry.path().join("address")).ok();
            let mac = mac.and_then(|text| text.trim().parse().ok());
            (entry.file_name().to_string_lossy().into_owned(), mac)
        })
        .collect();
    found.sort();
    found
}

fn index(name: &str) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    text.trim().parse().map_err(io::Error::other)
}

fn wait_for_link(name: &str) -> Result<(), NetworkError> {
    let deadline = Instant::now() + TIMEOUT;
    let has_link = || {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/carrier"));
        text.is_ok_and(|text| text.trim() == "1")
    };
    while !has_link() {
        if Instant::now() >= deadline {
            return Err(NetworkError::NoLink(name.to_owned()));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_interface_is_chosen_and_no_other() {
        let mac = |number: u8| -> Mac { format!("52:54:00:00:00:{number:02x}").parse().unwrap() };
        let there = vec![("eth0".to_owned(), Some(mac(1))), ("eth1".to_owned(), Some(mac(2)))];
        assert_eq!(choose(&Nic::Mac(mac(2)), &there).unwrap(), "eth1");
        assert_eq!(choose(&Nic::Name("eth0".to_owned()), &there).unwrap(), "eth0");
        assert_eq!(choose(&Nic::Any, &there[..1]).unwrap(), "eth0");
        assert!(matches!(choose(&Nic::Any, &there), Err(NetworkError::Several(_))));
        let error = choose(&Nic::Mac(mac(3)), &there).unwrap_err().to_string();
        assert!(error.contains("52:54:00:00:00:03 not found (present: eth0, eth1)"), "{error}");
    }
}
