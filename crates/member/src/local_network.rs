//! Searches the local network for clusters, as `cluster.yaml` says.
//!
//! Sockets and signatures belong to `hoist-discovery`; the decision that follows from the answers
//! belongs to `hoist_cluster::detection`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use hoist_cluster::address::Address;
use hoist_cluster::beacon::{Claim, Method, Signature as Verified};
use hoist_cluster::config::{ClusterConfig, DiscoveryMethod};
use hoist_cluster::detection::{Answer, DiscoveryPath, Signature};
use hoist_cluster::id::Pin;
use hoist_diagnostic::chain;
use hoist_discovery::{AskError, AskOptions, Network, Selection, ask, new_query};
use hoist_model::Name;
use jiff::Timestamp;

use crate::bootstrap::Discovery;
use crate::console::Console;

/// The search of `bootstrap`.
#[derive(Debug, Clone, Copy)]
pub struct LocalNetwork {
    window: Duration,
}

impl Default for LocalNetwork {
    fn default() -> Self {
        Self { window: AskOptions::default().window }
    }
}

impl LocalNetwork {
    /// Collects answers for this time.
    pub fn with_window(window: Duration) -> Self {
        Self { window }
    }

    fn search(self, mut options: AskOptions, pins: &[Pin], console: &dyn Console) -> Search {
        options.window = self.window;
        let query = new_query(None)?;
        let outcome = ask(&options, &query)?;
        for problem in &outcome.problems {
            console.warn(&format!("discovery: {problem}"));
        }
        let clusters = outcome.clusters(&query, pins, Timestamp::now());
        Ok(clusters.iter().flat_map(|cluster| &cluster.claims).map(detected).collect())
    }
}

type Search = Result<Vec<Answer>, AskError>;

impl Discovery for LocalNetwork {
    fn ask(
        &self,
        config: Option<&ClusterConfig>,
        pins: &[Pin],
        console: &dyn Console,
    ) -> Option<Vec<Answer>> {
        console.step("searching the local network for clusters");
        match self.search(options(config, console), pins, console) {
            Ok(answers) => Some(answers),
            Err(error) => {
                console.warn(&format!("the network was not searched: {}", chain(&error)));
                None
            }
        }
    }
}

fn options(config: Option<&ClusterConfig>, console: &dyn Console) -> AskOptions {
    let mut options = AskOptions::default();
    let Some(config) = config.map(|config| &config.discovery) else { return options };
    let Network { interfaces, port, .. } = &mut options.network;
    *port = config.port.unwrap_or(*port);
    if !config.interfaces.is_empty() {
        *interfaces = Selection::Named(config.interfaces.clone());
    }
    (options.multicast, options.broadcast) = match config.method {
        DiscoveryMethod::All => (true, true),
        DiscoveryMethod::Multicast => (true, false),
        DiscoveryMethod::Broadcast => (false, true),
        DiscoveryMethod::Seeds => (false, false),
    };
    let port = options.network.port;
    for seed in &config.seeds {
        match resolve(seed, port) {
            Ok(addresses) => options.seeds.extend(addresses),
            Err(error) => console.warn(&format!("discovery: seed {seed} is not asked: {error}")),
        }
    }
    options
}

/// All addresses of a seed. `port` is that of seeds without one.
fn resolve(seed: &Address, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let text = seed.as_str();
    if let Ok(ip) = text.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    if text.contains(':') {
        return Ok(text.to_socket_addrs()?.collect());
    }
    Ok((text, port).to_socket_addrs()?.collect())
}

/// An answer as the decision needs it.
fn detected(claim: &Claim) -> Answer {
    let answer = &claim.answer;
    let signature = match claim.verification.signature {
        Verified::ValidUnderPin => Signature::Valid,
        Verified::Unverified => Signature::Unverified,
        Verified::Invalid { .. } => Signature::Invalid,
    };
    let path = claim.paths.first().map_or(DiscoveryPath::Multicast, |path| match path.method {
        Method::MulticastV4 | Method::MulticastV6 => DiscoveryPath::Multicast,
        Method::Broadcast => DiscoveryPath::Broadcast,
        Method::Seed => DiscoveryPath::Seed,
    });
    // The name of a forged answer may be none. The answer still prevents founding.
    let unreadable: Name = "unreadable".parse().expect("a name");
    Answer {
        cluster: answer.cluster,
        name: answer.name.parse().unwrap_or(unreadable),
        addresses: addresses(claim),
        signature,
        path,
    }
}

/// The announced addresses, and then the senders with the announced port: a node without DNS
/// cannot use announced names. The join checks the pin at each of them.
fn addresses(claim: &Claim) -> Vec<Address> {
    let controllers = &claim.answer.controllers;
    let mut texts: Vec<String> = controllers.iter().map(ToString::to_string).collect();
    if let Some(first) = controllers.first() {
        let sources = claim.paths.iter().map(|path| path.source.ip());
        // A link-local address has no meaning without its interface.
        let sources = sources.filter(|ip| match ip {
            std::net::IpAddr::V4(_) => true,
            std::net::IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        });
        texts.extend(sources.map(|ip| SocketAddr::new(ip, first.port()).to_string()));
    }
    let mut addresses: Vec<Address> = Vec::new();
    for address in texts.iter().filter_map(|text| text.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}
