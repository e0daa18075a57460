//! The decision of `hoist bootstrap`: does this machine found a cluster, join one, or stop?
//!
//! [`decide`] looks at contradictory flags first, then at the state on disk, the flags, the
//! configuration and, last, at the answers of discovery. Two rules guard against a second cluster
//! by accident: a machine that was told which cluster to join never founds one, and without
//! consent no machine founds one. Answers of discovery are hints from anyone on the network. They
//! prevent founding, and they give addresses; trust comes from a pin.
//!
//! Asking the network, the question on the terminal and the join itself do not belong here.

mod refusal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hoist_model::Name;

use crate::address::Address;
use crate::config::ClusterConfig;
use crate::id::{ClusterId, ClusterIdPrefix, Pin};
use crate::join_token::JoinToken;
use crate::membership::MembershipEnd;
pub use refusal::DetectionRefusal;

/// All that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub flags: &'a Flags,
    pub disk: &'a DiskState,
    pub config: Option<&'a ClusterConfig>,
    /// All answers of the whole window of discovery.
    pub answers: &'a [Answer],
    /// Whether a person can answer questions.
    pub terminal: bool,
}

/// The flags of the command, with the contents of the files that they name.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub single_node: bool,
    pub join: Option<Address>,
    pub auto_discover: bool,
    pub token: Option<JoinToken>,
    pub pin: Option<Pin>,
    /// Consent to founding a cluster.
    pub yes: bool,
}

/// The state that earlier runs left on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskState {
    None,
    /// A join was started and did not end.
    Joining {
        operation: String,
        cluster: Option<ClusterIdPrefix>,
    },
    Member(ClusterId),
    Founded(ClusterId),
    /// The membership has ended.
    Ended(ClusterId, MembershipEnd),
    /// Unreadable state is never taken for none.
    Corrupt {
        detail: String,
    },
}

/// An answer of a controller to the query of discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub cluster: ClusterId,
    pub name: Name,
    pub addresses: Vec<Address>,
    pub signature: Signature,
    pub path: DiscoveryPath,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    /// Made with a key that leads to a pinned root.
    Valid,
    /// Not made with such a key: an impostor, or a cluster with another root.
    Invalid,
    /// There is no pin to verify it with.
    Unverified,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryPath {
    Multicast,
    Broadcast,
    Seed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Found,
    /// Ask on the terminal; found after a yes.
    AskThenFound,
    Join(Target),
    Resume {
        operation: String,
    },
    AlreadyMember(ClusterId),
    Refused(DetectionRefusal),
}

/// The cluster to join. The joiner checks the credential before it sends anything, and each
/// expectation after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Addresses of controllers, to try one after the other.
    pub addresses: Vec<Address>,
    pub expected: ExpectedCluster,
    pub credential: Credential,
}

/// Properties that the cluster must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedCluster {
    pub id: Option<ClusterId>,
    pub prefix: Option<ClusterIdPrefix>,
    pub name: Option<Name>,
}

/// The reason to trust the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// The token has the pin, and permits the join.
    Token,
    /// The request waits until an operator accepts it.
    Pin(Pin),
    /// A person compares the fingerprint on the terminal. The request waits too.
    ConfirmFingerprint,
}

/// Decides what `hoist bootstrap` does.
pub fn decide(inputs: &Inputs<'_>) -> Decision {
    try_decide(inputs).unwrap_or_else(Decision::Refused)
}

fn try_decide(inputs: &Inputs<'_>) -> Result<Decision, DetectionRefusal> {
    check_contradictions(inputs)?;
    if let Some(decision) = from_disk(inputs)? {
        return Ok(decision);
    }
    if inputs.flags.single_node {
        return Ok(Decision::Found);
    }
    let master = inputs.config.and_then(|config| config.master.as_ref());
    if let Some(address) = inputs.flags.join.as_ref().or(master) {
        let target = Target {
            addresses: vec![address.clone()],
            expected: inputs.expected(),
            credential: inputs.credential()?,
        };
        return Ok(Decision::Join(target));
    }
    from_discovery(inputs)
}

/// Inputs that contradict each other are usage errors, whatever the state of the machine.
fn check_contradictions(inputs: &Inputs<'_>) -> Result<(), DetectionRefusal> {
    let flags = inputs.flags;
    let config = inputs.config;
    let contradiction = |first, second| Err(DetectionRefusal::Contradiction { first, second });
    match (flags.single_node, flags.auto_discover, &flags.join) {
        (true, true, _) => return contradiction("--single-node", "--auto-discover"),
        (true, false, Some(_)) => return contradiction("--single-node", "--join-cluster"),
        (false, true, Some(_)) => return contradiction("--auto-discover", "--join-cluster"),
        (true, false, None) | (false, true, None) | (false, false, _) => {}
    }
    if flags.single_node {
        if flags.token.is_some() {
            return contradiction("--single-node", "--token-file");
        }
        if flags.pin.is_some() {
            return contradiction("--single-node", "--ca-pin");
        }
        if config.is_some_and(|config| config.master.is_some()) {
            return contradiction("--single-node", "`cluster.master` of the configuration");
        }
        if config.is_some_and(|config| config.uid.is_some()) {
            return contradiction("--single-node", "`cluster.uid` of the configuration");
        }
    }
    let config_pin = config.and_then(|config| config.ca_pin);
    if let (Some(flag), Some(config)) = (flags.pin, config_pin)
        && flag != config
    {
        return contradiction("--ca-pin", "`cluster.ca_pin` of the configuration");
    }
    let Some(token) = &flags.token else { return Ok(()) };
    if flags.pin.is_some_and(|pin| !token.pins.contain(pin)) {
        return contradiction("--ca-pin", "the pin of the token");
    }
    if config_pin.is_some_and(|pin| !token.pins.contain(pin)) {
        return contradiction("`cluster.ca_pin` of the configuration", "the pin of the token");
    }
    let uid = config.and_then(|config| config.uid);
    if uid.is_some_and(|uid| uid.short() != token.cluster) {
        return contradiction("`cluster.uid` of the configuration", "the cluster of the token");
    }
    Ok(())
}

/// The decision if this machine has a past; none for a new machine.
fn from_disk(inputs: &Inputs<'_>) -> Result<Option<Decision>, DetectionRefusal> {
    let flags = inputs.flags;
    match inputs.disk {
        DiskState::None => Ok(None),
        DiskState::Joining { operation, cluster } => {
            // A join that did not end never becomes the founding of a cluster.
            if flags.single_node || cluster.is_some_and(|prefix| !inputs.permits(prefix)) {
                return Err(DetectionRefusal::JoinUnfinished { operation: operation.clone() });
            }
            Ok(Some(Decision::Resume { operation: operation.clone() }))
        }
        DiskState::Member(cluster) => {
            if flags.single_node || !inputs.permits(cluster.short()) {
                return Err(DetectionRefusal::MemberOfOther(*cluster));
            }
            Ok(Some(Decision::AlreadyMember(*cluster)))
        }
        DiskState::Founded(cluster) => {
            let joins = flags.join.is_some() || flags.auto_discover;
            if joins || !inputs.permits(cluster.short()) {
                return Err(DetectionRefusal::FoundedOther(*cluster));
            }
            Ok(Some(Decision::AlreadyMember(*cluster)))
        }
        DiskState::Ended(cluster, end) => Err(DetectionRefusal::Ended(*cluster, *end)),
        DiskState::Corrupt { detail } => {
            Err(DetectionRefusal::CorruptState { detail: detail.clone() })
        }
    }
}

/// The decision of a new machine that was not told an address.
fn from_discovery(inputs: &Inputs<'_>) -> Result<Decision, DetectionRefusal> {
    let has_pin = inputs.has_pin();
    let trusted = |answer: &&Answer| !has_pin || answer.signature == Signature::Valid;
    let expected = inputs.expected();
    let mut clusters: BTreeMap<ClusterId, Vec<&Answer>> = BTreeMap::new();
    let fitting = inputs.answers.iter().filter(trusted).filter(|answer| expected.fits(answer));
    for answer in fitting {
        clusters.entry(answer.cluster).or_default().push(answer);
    }
    let mut fitting = clusters.into_iter();
    match (fitting.next(), fitting.len()) {
        (None, _) if !inputs.answers.is_empty() && inputs.names_cluster() => {
            Err(DetectionRefusal::OnlyOthers { seen: seen(inputs.answers) })
        }
        // Without expectations every answer fits.
        (None, _) if inputs.names_cluster() => Err(DetectionRefusal::NothingToJoin),
        (None, _) => consent_to_found(inputs),
        (Some((cluster, answers)), 0) => {
            if !has_pin {
                // An unsigned answer never leads to a join, also not with a person at the terminal.
                return Err(DetectionRefusal::NoCredential { seen: seen(inputs.answers) });
            }
            let expected = ExpectedCluster { id: Some(cluster), ..expected };
            let mut addresses: Vec<Address> = Vec::new();
            for address in answers.into_iter().flat_map(|answer| &answer.addresses) {
                if !addresses.contains(address) {
                    addresses.push(address.clone());
                }
            }
            if addresses.is_empty() {
                return Err(DetectionRefusal::NoAddress { seen: seen(inputs.answers) });
            }
            Ok(Decision::Join(Target { addresses, expected, credential: inputs.credential()? }))
        }
        (Some(_), _) => Err(DetectionRefusal::Ambiguous { seen: seen(inputs.answers) }),
    }
}

/// Nothing was seen, and nothing names a cluster.
fn consent_to_found(inputs: &Inputs<'_>) -> Result<Decision, DetectionRefusal> {
    match (inputs.flags.yes, inputs.terminal) {
        (true, _) => Ok(Decision::Found),
        (false, true) => Ok(Decision::AskThenFound),
        (false, false) => Err(DetectionRefusal::NoConsent),
    }
}

/// The clusters of all answers, for messages.
fn seen(answers: &[Answer]) -> String {
    let mut clusters: BTreeMap<ClusterId, String> = BTreeMap::new();
    for answer in answers {
        let text = clusters
            .entry(answer.cluster)
            .or_insert_with(|| format!("`{}` ({})", answer.name, answer.cluster.short()));
        if answer.signature == Signature::Invalid && !text.ends_with("signature)") {
            text.push_str(" (wrong signature)");
        }
    }
    let clusters: Vec<String> = clusters.into_values().collect();
    clusters.join(", ")
}

impl Inputs<'_> {
    fn expected(&self) -> ExpectedCluster {
        ExpectedCluster {
            id: self.config.and_then(|config| config.uid),
            prefix: self.flags.token.as_ref().map(|token| token.cluster),
            name: self.config.and_then(|config| config.id.clone()),
        }
    }

    /// Whether flags and configuration permit a cluster with this id.
    fn permits(&self, prefix: ClusterIdPrefix) -> bool {
        let expected = self.expected();
        expected.prefix.is_none_or(|expected| expected == prefix)
            && expected.id.is_none_or(|expected| expected.short() == prefix)
    }

    fn pin(&self) -> Option<Pin> {
        self.flags.pin.or(self.config.and_then(|config| config.ca_pin))
    }

    fn has_pin(&self) -> bool {
        self.flags.token.is_some() || self.pin().is_some()
    }

    /// Whether there is a cluster that this machine was told to join. It never founds one then.
    fn names_cluster(&self) -> bool {
        let expected = self.expected();
        let is_expected = expected.id.is_some() || expected.name.is_some();
        self.flags.auto_discover || self.has_pin() || is_expected
    }

    /// `--yes` is no credential: it compares no fingerprint.
    fn credential(&self) -> Result<Credential, DetectionRefusal> {
        match (&self.flags.token, self.pin(), self.terminal) {
            (Some(_), _, _) => Ok(Credential::Token),
            (None, Some(pin), _) => Ok(Credential::Pin(pin)),
            (None, None, true) => Ok(Credential::ConfirmFingerprint),
            (None, None, false) => Err(DetectionRefusal::NoCredentialForAddress),
        }
    }
}

impl ExpectedCluster {
    fn fits(&self, answer: &Answer) -> bool {
        self.id.is_none_or(|id| id == answer.cluster)
            && self.prefix.is_none_or(|prefix| prefix == answer.cluster.short())
            && self.name.as_ref().is_none_or(|name| *name == answer.name)
    }
}
