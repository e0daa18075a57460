//! `hoist cluster discover`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use hoist_cluster::beacon::{Claim, DiscoveredCluster, Signature};
use hoist_cluster::id::{ClusterId, Pin};
use hoist_diagnostic::chain;
use hoist_discovery::{AskOptions, Network, Outcome, Selection, ask, new_query};
use hoist_model::Exit;
use jiff::Timestamp;
use serde::Serialize;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Search the local network for clusters
///
/// Needs no controller. Prints every answer, also forged ones. With `--pin`, an answer is valid if
/// the owner of the pinned root vouches for it; without a pin, anyone on the network can have made
/// it. Ends with 9 if no cluster answered, and with 10 if several did. Invalid answers do not count.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster discover\n  \
    hoist cluster discover --pin sha256:… --interface eth0\n  \
    hoist cluster discover --seed 10.0.1.10 --window 10s -o json")]
pub(super) struct DiscoverArgs {
    /// Pin of the cluster's root; again while the root is being replaced
    #[arg(long)]
    pin: Vec<Pin>,

    /// Interface to ask on; all suitable ones if left out
    #[arg(long = "interface", value_name = "IF")]
    interfaces: Vec<String>,

    /// Address to ask directly
    #[arg(long = "seed", value_name = "IP[:PORT]")]
    seeds: Vec<Seed>,

    /// How long answers are collected
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    window: Duration,

    /// UDP port of the controllers; 14647 if left out
    #[arg(long)]
    port: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
struct Seed {
    ip: IpAddr,
    port: Option<u16>,
}

impl FromStr for Seed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip, port: None });
        }
        let address: SocketAddr = text.parse().map_err(|_| "expected an IP address")?;
        Ok(Self { ip: address.ip(), port: Some(address.port()) })
    }
}

/// One statement about a cluster, with all ways on which it came.
#[derive(Debug, Serialize)]
struct Answer {
    cluster: ClusterId,
    name: String,
    addresses: Vec<String>,
    signature: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The clock of the controller minus that of this machine.
    skew_seconds: i64,
    paths: Vec<AnswerPath>,
}

#[derive(Debug, Serialize)]
struct AnswerPath {
    method: &'static str,
    interface: String,
    source: SocketAddr,
}

impl DiscoverArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let options = self.options();
        let query = new_query(None).map_err(|error| Failure::remote(chain(&error)))?;
        let asking = tokio::task::spawn_blocking(move || (ask(&options, &query), query));
        let (outcome, query) =
            asking.await.map_err(|_| Failure::remote("the search did not end"))?;
        let Outcome { problems, ignored, .. } =
            outcome.as_ref().map_err(|error| Failure::remote(chain(error)))?;
        let printer = &mut shell.printer;
        for problem in problems {
            printer.warn(&problem.to_string());
        }
        if *ignored > 0 {
            printer.warn(&format!("{ignored} messages were ignored: no answers, or too many"));
        }
        let outcome = outcome.map_err(|error| Failure::remote(chain(&error)))?;
        let clusters = outcome.clusters(&query, &self.pin, Timestamp::now());
        let claims = clusters.iter().flat_map(|cluster| &cluster.claims);
        let answers: Vec<Answer> = claims.map(Answer::of).collect();
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&answers)?,
            Output::Name => {
                clusters.iter().try_for_each(|one| printer.line(one.id.to_string()))?;
            }
            Output::Table | Output::Wide if answers.is_empty() => printer.note("no answers"),
            Output::Table | Output::Wide => printer.table(&table(&answers))?,
        }
        Ok(exit(&clusters))
    }

    fn options(&self) -> AskOptions {
        let mut network = Network::default();
        network.port = self.port.unwrap_or(network.port);
        if !self.interfaces.is_empty() {
            network.interfaces = Selection::Named(self.interfaces.clone());
        }
        let address = |seed: &Seed| SocketAddr::new(seed.ip, seed.port.unwrap_or(network.port));
        let seeds = self.seeds.iter().map(address).collect();
        AskOptions { network, seeds, window: self.window, ..AskOptions::default() }
    }
}

impl Answer {
    fn of(claim: &Claim) -> Self {
        let (signature, reason) = match &claim.verification.signature {
            Signature::ValidUnderPin => ("valid", None),
            Signature::Unverified => ("unverified", None),
            Signature::Invalid { reason } => ("invalid", Some(reason.to_string())),
        };
        let paths = claim.paths.iter().map(|path| AnswerPath {
            method: path.method.as_str(),
            interface: path.interface.clone(),
            source: path.source,
        });
        Self {
            cluster: claim.answer.cluster,
            name: claim.answer.name.clone(),
            addresses: claim.answer.controllers.iter().map(ToString::to_string).collect(),
            signature,
            reason,
            skew_seconds: claim.verification.skew.as_secs(),
            paths: paths.collect(),
        }
    }
}

fn table(answers: &[Answer]) -> Table {
    let mut table = Table::new(&["CLUSTER", "NAME", "SIGNATURE", "ADDRESSES", "PATHS"])
        .wide(&["CLOCK", "REASON"]);
    for answer in answers {
        let path = |path: &AnswerPath| {
            format!("{} on {} from {}", path.method, path.interface, path.source.ip())
        };
        let paths: Vec<String> = answer.paths.iter().map(path).collect();
        table.row(vec![
            answer.cluster.to_string(),
            answer.name.clone(),
            answer.signature.to_owned(),
            answer.addresses.join(" "),
            paths.join(", "),
            format!("{:+}s", answer.skew_seconds),
            answer.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

/// Depends on the clusters that answered. A forged answer must not change it.
fn exit(clusters: &[DiscoveredCluster]) -> Exit {
    let is_credible = |cluster: &&DiscoveredCluster| {
        !matches!(cluster.signature(), None | Some(Signature::Invalid { .. }))
    };
    match clusters.iter().filter(is_credible).count() {
        0 => Exit::NoCluster,
        1 => Exit::Done,
        _ => Exit::Ambiguous,
    }
}
