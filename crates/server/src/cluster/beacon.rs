//! Answers to machines that search the local network for this cluster.
//!
//! The beacon key is in `<data-dir>/ca/beacon.json`; the root signs it once. Guarantees: without
//! such a key nothing is answered, and nothing here keeps a controller from starting or founding.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use hoist_chassis::ca::{Ca, CaError};
use hoist_chassis::secret;
use hoist_cluster::beacon::{ControllerAddress, FoundingState, MAX_CONTROLLERS};
use hoist_diagnostic::chain;
use hoist_discovery::{
    AskError, BeaconIdentity, IdentityError, Network, Responder, ResponderOptions, Statement,
    new_query,
};
use jiff::{SignedDuration, Timestamp};
use metrics::counter;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::records::ClusterState;

const EVERY: Duration = Duration::from_secs(5);
const FILE: &str = "beacon.json";
/// As long as that of the cluster's authority, because the root key may be kept elsewhere.
const LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// A beacon key that ends sooner is replaced if the root key is there.
const ENDS_SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Debug)]
pub(super) struct Beacon {
    /// `None` where no machine is to be answered.
    network: Option<Network>,
    path: PathBuf,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    /// The cluster is not founded yet, or TLS does not listen yet.
    Waiting,
    Answering(Responder),
    /// It is tried again: an operator may put the root key back.
    Failed {
        reason: String,
    },
    Stopped,
}

#[derive(Debug, thiserror::Error)]
enum BeaconError {
    #[error(
        "`ca/root.key` is away, and there is no `ca/beacon.json`; put the key back for a while"
    )]
    RootAway,
    #[error("the root cannot sign the beacon key")]
    Root(#[source] CaError),
    #[error("`ca/beacon.json` cannot be used; remove it, and put `ca/root.key` back for a while")]
    Identity(#[from] IdentityError),
    #[error("`ca/beacon.json`")]
    File(#[from] io::Error),
    #[error("the certificate has no name or address that others can use; set `advertise`")]
    NoAddress,
    #[error("the answer cannot be encoded: {0}")]
    Answer(String),
    #[error(transparent)]
    Nonce(#[from] AskError),
    #[error("cannot listen for queries")]
    Start(#[source] io::Error),
}

impl Beacon {
    pub(super) fn new(network: Option<Network>, ca_dir: &std::path::Path) -> Self {
        let path = ca_dir.join(FILE);
        Self { network, path, progress: Mutex::new(Progress::Waiting) }
    }

    /// Problems that an operator can correct.
    pub(super) fn warnings(&self) -> Vec<String> {
        match &*self.progress.lock() {
            Progress::Waiting | Progress::Stopped => Vec::new(),
            Progress::Failed { reason } => vec![format!("discovery does not answer: {reason}")],
            Progress::Answering(responder) => {
                let problems = responder.problems();
                problems.iter().map(|problem| format!("discovery: {problem}")).collect()
            }
        }
    }

    fn is_due(&self) -> bool {
        self.network.is_some()
            && matches!(*self.progress.lock(), Progress::Waiting | Progress::Failed { .. })
    }

    /// Starts the responder if it does not run. Waits for the disk.
    fn start(&self, ca: &Ca, state: &ClusterState, addresses: Vec<ControllerAddress>) {
        let Some(network) = &self.network else { return };
        let mut progress = self.progress.lock();
        let previous = match &*progress {
            Progress::Waiting => None,
            Progress::Failed { reason } => Some(reason.clone()),
            Progress::Answering(_) | Progress::Stopped => return,
        };
        *progress = match self.respond(network, ca, state, addresses) {
            Ok(responder) => Progress::Answering(responder),
            Err(error) => {
                let reason = chain(&error);
                if previous.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "discovery does not answer");
                }
                Progress::Failed { reason }
            }
        };
    }

    fn respond(
        &self,
        network: &Network,
        ca: &Ca,
        state: &ClusterState,
        controllers: Vec<ControllerAddress>,
    ) -> Result<Responder, BeaconError> {
        let identity = self.identity(ca, state, Timestamp::now())?;
        let name = state.name.to_string();
        let statement = Statement { name, controllers, founding: FoundingState::Founded };
        let statement = fitting(&identity, statement)?;
        let options = ResponderOptions { network: network.clone(), ..ResponderOptions::default() };
        let responder = Responder::start(options, move |query| {
            identity.answer(query, &statement, Timestamp::now())?.ok()
        });
        responder.map_err(BeaconError::Start)
    }

    /// The stored identity, or a new one if there is none for this cluster and root.
    fn identity(
        &self,
        ca: &Ca,
        state: &ClusterState,
        now: Timestamp,
    ) -> Result<BeaconIdentity, BeaconError> {
        let root_key = ca.root_key_info().map_err(BeaconError::Root)?;
        let stored = match fs::read_to_string(&self.path) {
            Ok(text) => Some(BeaconIdentity::from_json(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let is_own = |identity: &BeaconIdentity| {
            identity.cluster() == state.uid && identity.root_key() == root_key
        };
        let stored = stored.filter(is_own).filter(|identity| identity.not_after() > now);
        if let Some(identity) = stored {
            if identity.not_after() > now + ENDS_SOON {
                return Ok(identity);
            }
            // It is good until it ends, with or without the root key.
            return Ok(self.create(ca, state, root_key, now).unwrap_or(identity));
        }
        self.create(ca, state, root_key, now)
    }

    fn create(
        &self,
        ca: &Ca,
        state: &ClusterState,
        root_key: Vec<u8>,
        now: Timestamp,
    ) -> Result<BeaconIdentity, BeaconError> {
        let mut refusal = None;
        let created = BeaconIdentity::create(state.uid, root_key, now + LIFETIME, |message| {
            ca.sign_with_root(message).unwrap_or_else(|error| {
                refusal = Some(error);
                Vec::new()
            })
        });
        match refusal {
            Some(CaError::RootAway { .. }) => return Err(BeaconError::RootAway),
            Some(error) => return Err(BeaconError::Root(error)),
            None => {}
        }
        let identity = created?;
        secret::write_atomic(&self.path, identity.to_json().as_bytes(), 0o600)?;
        Ok(identity)
    }

    fn measure(&self) {
        let Progress::Answering(responder) = &*self.progress.lock() else { return };
        let counters = responder.counters();
        for (outcome, number) in [
            ("answered", counters.answers),
            ("malformed", counters.malformed),
            ("off-link", counters.off_link),
            ("limited", counters.limited),
            ("declined", counters.declined),
            ("failed", counters.failed),
        ] {
            counter!("hoist_discovery_queries_total", "outcome" => outcome).absolute(number);
        }
    }

    /// Ends the responder for good.
    fn stop(&self) {
        *self.progress.lock() = Progress::Stopped;
    }
}

/// The statement with as many addresses as an answer can carry.
fn fitting(identity: &BeaconIdentity, mut statement: Statement) -> Result<Statement, BeaconError> {
    statement.controllers.truncate(MAX_CONTROLLERS);
    let query = new_query(None)?;
    loop {
        if statement.controllers.is_empty() {
            return Err(BeaconError::NoAddress);
        }
        match identity.answer(&query, &statement, Timestamp::now()) {
            Some(Err(error)) if statement.controllers.len() == 1 => {
                return Err(BeaconError::Answer(error.to_string()));
            }
            Some(Err(_)) => _ = statement.controllers.pop(),
            Some(Ok(_)) | None => return Ok(statement),
        }
    }
}

impl Cluster {
    /// Answers as soon as the cluster is founded, until `stop`.
    pub(super) async fn keep_answering(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = tick.tick() => {}
            }
            self.start_beacon().await;
            self.beacon.measure();
        }
        self.beacon.stop();
    }

    /// Starts the responder if the cluster is founded and this controller listens with TLS.
    pub(super) async fn start_beacon(&self) {
        let snapshot = self.view.snapshot();
        let Some(state) = snapshot.state.clone() else { return };
        if !self.beacon.is_due() || self.tls_port.get().is_none() {
            return;
        }
        let (beacon, ca) = (Arc::clone(&self.beacon), Arc::clone(&self.chassis.ca));
        let addresses = self.announced(&state);
        let starting = tokio::task::spawn_blocking(move || beacon.start(&ca, &state, addresses));
        if starting.await.is_err() {
            tracing::error!("the start of discovery panicked");
        }
    }

    /// The controllers for joiners: first the one that signs certificates. Addresses stand before
    /// names, because a new machine may have no DNS.
    fn announced(&self, state: &ClusterState) -> Vec<ControllerAddress> {
        let own = self.urls(None);
        let mut addresses: Vec<ControllerAddress> = Vec::new();
        for address in state.authority.iter().chain(&own).filter_map(|url| address_of(url)) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.sort_by_key(|address| address.host().parse::<IpAddr>().is_err());
        addresses
    }
}

/// Host and port of `https://HOST:PORT`.
fn address_of(url: &str) -> Option<ControllerAddress> {
    let (host, port) = url.strip_prefix("https://")?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ControllerAddress::new(host, port.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_controllers_become_addresses() {
        for (url, address) in [
            ("https://10.0.0.1:27443", Some("10.0.0.1:27443")),
            ("https://[fd00::1]:27443", Some("[fd00::1]:27443")),
            ("https://office:443", Some("office:443")),
            ("http://office:443", None),
            ("https://office", None),
        ] {
            let found = address_of(url).map(|address| address.to_string());
            assert_eq!(found.as_deref(), address, "{url}");
        }
    }
}
