//! The first contact with a controller: its pin, its name and its clock, before anything is sent
//! about this node.

use hoist_api::cluster::{Hello, PROTOCOL};
use hoist_cluster::address::Address;
use hoist_cluster::id::{ClusterId, Pin};
use hoist_cluster::pre_check::{
    CheckId, CheckResult, MAX_CLOCK_SKEW, NodeFacts, ProtocolRange, Severity, check_node,
};
use jiff::{SignedDuration, Timestamp};

use super::JoinSetup;
use super::error::JoinError;
use crate::console::Console;
use crate::controller::{CallError, Session, authority_of};
use crate::facts::disk_space;
use crate::state::JoinIntent;
use crate::trust::{Tls, Trust};

/// A controller that is the expected one.
pub(super) struct Greeting {
    pub(super) session: Session,
    pub(super) hello: Hello,
    pub(super) cluster: ClusterId,
    /// The clock of this node when the answer came.
    pub(super) received: Timestamp,
}

impl Greeting {
    fn skew(&self) -> SignedDuration {
        self.received.duration_since(self.hello.now)
    }
}

/// Tries the addresses one after the other. An impostor at one address does not hide the
/// controller at another.
pub(super) fn greet(intent: &JoinIntent, console: &dyn Console) -> Result<Greeting, JoinError> {
    let mut first = None;
    for address in &intent.addresses {
        match greet_at(intent, &authority_of(address)) {
            Ok(greeting) => return Ok(greeting),
            Err(error) => {
                if intent.addresses.len() > 1 {
                    console.warn(&hoist_diagnostic::chain(&error));
                }
                let is_silent = |error: &JoinError| {
                    matches!(error, JoinError::Call(CallError::Unreachable { .. }))
                };
                if first.as_ref().is_none_or(is_silent) {
                    first = Some(error);
                }
            }
        }
    }
    Err(first.unwrap_or_else(|| {
        let reason = "there is no address to try".to_owned();
        CallError::Unreachable { address: "the cluster".to_owned(), reason }.into()
    }))
}

fn greet_at(intent: &JoinIntent, authority: &str) -> Result<Greeting, JoinError> {
    let tls = Tls::new(Trust::Pins(intent.pins.clone()))?;
    let mut session = Session::connect(authority, &tls)?;
    let hello: Hello = session.get("/cluster/v1/hello")?;
    let received = Timestamp::now();
    let address = authority.to_owned();
    let skew = received.duration_since(hello.now);
    if skew.abs() > MAX_CLOCK_SKEW {
        return Err(JoinError::Clock { address, node: received, controller: hello.now });
    }
    if session.is_dated() {
        return Err(JoinError::ExpiredCertificate { address, now: received });
    }
    let cluster = expected_cluster(intent, &hello, &address)?;
    Ok(Greeting { session, hello, cluster, received })
}

/// The id of the cluster, if it is the one to join.
fn expected_cluster(
    intent: &JoinIntent,
    hello: &Hello,
    address: &str,
) -> Result<ClusterId, JoinError> {
    let other = |expected: String| JoinError::OtherCluster {
        address: address.to_owned(),
        found: format!("`{}` ({})", hello.name, hello.uid),
        expected,
    };
    let uid: ClusterId = hello.uid.parse().map_err(|_| other("a cluster id".to_owned()))?;
    let expected = intent.expected();
    if let Some(id) = expected.id.filter(|id| *id != uid) {
        return Err(other(id.to_string()));
    }
    if let Some(prefix) = expected.prefix.filter(|prefix| *prefix != uid.short()) {
        return Err(other(format!("{prefix}…")));
    }
    if let Some(name) = expected.name.filter(|name| *name != hello.name) {
        return Err(other(format!("`{name}`")));
    }
    Ok(uid)
}

/// The checks of this node, passed or not.
pub(super) fn node_checks(setup: &JoinSetup, greeting: &Greeting) -> Vec<CheckResult> {
    let state = &setup.state;
    // The directory is made by a join; a dry run looks at the nearest one that exists.
    let existing = state.path().ancestors().find(|path| path.exists()).unwrap_or(state.path());
    let space = disk_space(existing).ok();
    let write_error = if state.path().exists() { state.try_write().err() } else { None };
    let facts = NodeFacts {
        state_bytes_free: space.map_or(0, |space| space.free),
        state_inodes_free: space.and_then(|space| space.free_inodes),
        state_write_error: write_error.map(|error| error.to_string()),
        memory_bytes: setup.facts.memory_bytes(),
        clock_skew: greeting.skew(),
        protocol: only(PROTOCOL),
        controller_protocol: only(greeting.hello.protocol),
        host_name: setup.facts.host_name(),
        leftovers: Vec::new(),
        // The caller holds the lock.
        operation: None,
    };
    let mut checks = check_node(&facts);
    for check in &mut checks {
        if check.id == CheckId::Clock && check.severity != Severity::Passed {
            let both = format!(
                " (this machine has {}, the controller {})",
                greeting.received, greeting.hello.now
            );
            check.evidence.push_str(&both);
        }
    }
    checks
}

/// One version as a range. Versions beyond the range of the checks are all the same: too new.
fn only(version: u32) -> ProtocolRange {
    let version = u16::try_from(version).unwrap_or(u16::MAX);
    ProtocolRange { oldest: version, newest: version }
}

/// The pins of the roots that the first reachable address presents, for a person to compare.
/// Nothing is sent: the handshake fails on purpose.
pub fn observed_pins(addresses: &[Address]) -> Result<(String, Vec<Pin>), JoinError> {
    let mut last = None;
    for address in addresses {
        let authority = authority_of(address);
        let tls = Tls::new(Trust::Pins(Vec::new()))?;
        match Session::connect(&authority, &tls) {
            Err(CallError::WrongPin { presented, .. }) => return Ok((authority, presented)),
            Err(error) => last = Some(error),
            // Without a pin nothing is trusted.
            Ok(_) => {}
        }
    }
    let reason = || "there is no address to try".to_owned();
    Err(last
        .unwrap_or_else(|| CallError::Unreachable {
            address: "the cluster".into(),
            reason: reason(),
        })
        .into())
}
