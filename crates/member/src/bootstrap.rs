//! The command `bootstrap`: observe, decide (`hoist_cluster::detection`), then found, join, resume
//! or stop.
//!
//! Does not belong here: arguments (`command_line`), and calls of the administration, which only
//! `hoist` can make ([`Founder`]).

mod error;
mod report;

use std::sync::Arc;
use std::time::Duration;

use hoist_cluster::address::Address;
use hoist_cluster::config::ClusterConfig;
use hoist_cluster::detection::{
    Answer, Credential, Decision, DiskState, Flags, Inputs, Target, decide,
};
use hoist_cluster::id::Pin;
use hoist_cluster::join_token::JoinToken;
use hoist_cluster::membership::RequestId;
use hoist_model::Name;
use jiff::Timestamp;

pub use error::{BootstrapError, FoundError};
pub use report::{BootstrapReport, Outcome};

use crate::console::Console;
use crate::facts::FactSource;
use crate::interrupt::Interrupt;
use crate::join::{self, JoinError, JoinSetup};
use crate::random::random;
use crate::service::ServiceHost;
use crate::state::{JoinIntent, LockKind, MemberFile, StateDir};

/// The wishes of the operator, with the contents of the files that they name.
#[derive(Debug, Clone)]
pub struct BootstrapRequest {
    pub flags: Flags,
    pub config: Option<ClusterConfig>,
    pub preferred: Option<String>,
    pub install_service: bool,
    pub dry_run: bool,
    /// How long to wait for the decision of an operator.
    pub wait: Duration,
}

/// The machine that the command runs on.
#[derive(Clone)]
pub struct BootstrapHost<'a> {
    pub state: StateDir,
    pub console: Arc<dyn Console>,
    pub interrupt: Interrupt,
    pub facts: FactSource,
    pub service: ServiceHost,
    pub discovery: &'a dyn Discovery,
    /// `None` where no controller can run.
    pub founder: Option<&'a dyn Founder>,
}

impl std::fmt::Debug for BootstrapHost<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapHost").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Asks the network for clusters. Only called if neither flags, nor the state on disk, nor the
/// configuration decide.
pub trait Discovery {
    /// The answers of the whole window; `None` if the network was not searched.
    fn ask(
        &self,
        config: Option<&ClusterConfig>,
        pins: &[Pin],
        console: &dyn Console,
    ) -> Option<Vec<Answer>>;
}

/// Founds a cluster through the controller of this machine.
pub trait Founder {
    /// The controller that would found, for a dry run.
    fn describe(&self) -> String;

    /// Founds the cluster, or finds it if an earlier run founded it and no node has joined since;
    /// then makes a join token for this node.
    fn found(
        &self,
        name: &Name,
        config: Option<&ClusterConfig>,
    ) -> Result<FoundedCluster, FoundError>;
}

/// A cluster that the first node can join.
#[derive(Debug, Clone)]
pub struct FoundedCluster {
    pub address: Address,
    pub token: JoinToken,
}

/// Decides and carries the decision out.
pub fn run(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
) -> Result<BootstrapReport, BootstrapError> {
    // A lock held by another operation is reported before its half-written state is judged.
    let lock = match host.state.disk_state() {
        // A member needs no lock to learn that it is one; its daemon may run.
        DiskState::Member(_) | DiskState::Founded(_) => None,
        _ if request.dry_run => None,
        _ => {
            host.state.create()?;
            Some(host.state.lock(LockKind::Operation, "bootstrap")?)
        }
    };
    let disk = host.state.disk_state();
    let decision = decided(request, host, &disk);
    let report = if request.dry_run {
        dry_run(request, host, decision)
    } else {
        carry_out(request, host, decision)
    };
    drop(lock);
    report
}

fn decided(request: &BootstrapRequest, host: &BootstrapHost<'_>, disk: &DiskState) -> Decision {
    let config = request.config.as_ref();
    let terminal = host.console.is_terminal();
    let with = |flags: &Flags, answers: &[Answer]| {
        decide(&Inputs { flags, disk, config, answers, terminal })
    };
    let is_told = request.flags.single_node
        || request.flags.join.is_some()
        || config.is_some_and(|config| config.master.is_some());
    if is_told || *disk != DiskState::None {
        return with(&request.flags, &[]);
    }
    match host.discovery.ask(config, &known_pins(request), host.console.as_ref()) {
        Some(answers) => with(&request.flags, &answers),
        // `--yes` is consent to found where the search saw no cluster. There was no search.
        None => with(&Flags { yes: false, ..request.flags.clone() }, &[]),
    }
}

/// The pins that answers of discovery are verified with.
fn known_pins(request: &BootstrapRequest) -> Vec<Pin> {
    let of_token = request.flags.token.as_ref().map(pins_of).unwrap_or_default();
    let of_config = request.config.as_ref().and_then(|config| config.ca_pin);
    of_token.into_iter().chain(request.flags.pin).chain(of_config).collect()
}

fn pins_of(token: &JoinToken) -> Vec<Pin> {
    std::iter::once(token.pins.current).chain(token.pins.next).collect()
}

fn carry_out(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
    decision: Decision,
) -> Result<BootstrapReport, BootstrapError> {
    match decision {
        Decision::Refused(refusal) => Err(refusal.into()),
        Decision::AlreadyMember(_) => {
            host.state.remove_finished_join()?;
            let member = host.state.member()?.ok_or(JoinError::NoJoin)?;
            Ok(BootstrapReport::of_member(Outcome::AlreadyMember, &member))
        }
        Decision::Resume { operation } => {
            host.console.step(&format!("continuing join {operation}"));
            let setup = join_setup(request, host);
            let member = join::resume(&setup, request.flags.token.as_ref())?;
            Ok(BootstrapReport::of_member(outcome(&member), &member))
        }
        Decision::AskThenFound => {
            let question = "No cluster was found. Found a new one with this machine?";
            if !host.console.confirm(question) {
                return Err(BootstrapError::Declined);
            }
            found(request, host)
        }
        Decision::Found => found(request, host),
        Decision::Join(target) => {
            let intent = intent(request, host, &target)?;
            let setup = join_setup(request, host);
            let member = join::begin(&setup, &intent, request.flags.token.as_ref())?;
            Ok(BootstrapReport::of_member(outcome(&member), &member))
        }
    }
}

fn outcome(member: &MemberFile) -> Outcome {
    if member.founded { Outcome::Founded } else { Outcome::Joined }
}

fn found(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
) -> Result<BootstrapReport, BootstrapError> {
    let founder = host.founder.ok_or(FoundError::NoController)?;
    let name = cluster_name(request, host)?;
    host.console.step(&format!("founding cluster {name} through {}", founder.describe()));
    let founded = founder.found(&name, request.config.as_ref())?;
    let target = Target {
        addresses: vec![founded.address.clone()],
        expected: hoist_cluster::detection::ExpectedCluster {
            prefix: Some(founded.token.cluster),
            ..Default::default()
        },
        credential: Credential::Token,
    };
    let intent =
        JoinIntent { founded: true, ..new_intent(request, &target, pins_of(&founded.token)) };
    let member = join::begin(&join_setup(request, host), &intent, Some(&founded.token))?;
    Ok(BootstrapReport::of_member(Outcome::Founded, &member))
}

/// The name in the configuration, or else that of this machine.
fn cluster_name(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
) -> Result<Name, BootstrapError> {
    if let Some(name) = request.config.as_ref().and_then(|config| config.id.clone()) {
        return Ok(name);
    }
    let host_name = host.facts.host_name();
    let first = host_name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    first.parse().map_err(|_| BootstrapError::NoName)
}

/// The join of this target. A person compares the fingerprint where there is no other credential.
fn intent(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
    target: &Target,
) -> Result<JoinIntent, BootstrapError> {
    let pins = match target.credential {
        Credential::Token => request.flags.token.as_ref().map(pins_of).unwrap_or_default(),
        Credential::Pin(pin) => vec![pin],
        Credential::ConfirmFingerprint => vec![confirmed_pin(host, target)?],
    };
    Ok(new_intent(request, target, pins))
}

fn confirmed_pin(host: &BootstrapHost<'_>, target: &Target) -> Result<Pin, BootstrapError> {
    let (authority, presented) = join::observed_pins(&target.addresses)?;
    let [pin] = presented[..] else { return Err(BootstrapError::NoRoot { authority }) };
    let question = format!(
        "The root of {authority} has the pin\n  {pin}\nas `hoist cluster status` shows it on the \
         controller. Is it the same there?"
    );
    if host.console.confirm(&question) { Ok(pin) } else { Err(BootstrapError::Declined) }
}

fn new_intent(request: &BootstrapRequest, target: &Target, pins: Vec<Pin>) -> JoinIntent {
    let request_id = RequestId::from_random(random());
    JoinIntent {
        operation: format!("join-{}", &request_id.to_string()[..8]),
        request: request_id,
        addresses: target.addresses.clone(),
        cluster: target.expected.id,
        prefix: target.expected.prefix,
        name: target.expected.name.clone(),
        pins,
        preferred: request.preferred.clone(),
        install_service: request.install_service,
        founded: false,
        started: Timestamp::now(),
    }
}

fn join_setup(request: &BootstrapRequest, host: &BootstrapHost<'_>) -> JoinSetup {
    JoinSetup {
        state: host.state.clone(),
        console: Arc::clone(&host.console),
        interrupt: host.interrupt.clone(),
        facts: host.facts.clone(),
        service: host.service.clone(),
        wait: request.wait,
        probe: None,
    }
}

/// The decision and the checks, without a change anywhere.
fn dry_run(
    request: &BootstrapRequest,
    host: &BootstrapHost<'_>,
    decision: Decision,
) -> Result<BootstrapReport, BootstrapError> {
    let setup = join_setup(request, host);
    match decision {
        Decision::Refused(refusal) => Err(refusal.into()),
        Decision::AlreadyMember(_) => {
            let member = host.state.member()?.ok_or(JoinError::NoJoin)?;
            Ok(BootstrapReport::of_member(Outcome::AlreadyMember, &member))
        }
        Decision::Found | Decision::AskThenFound => {
            let founder = host.founder.ok_or(FoundError::NoController)?;
            let name = cluster_name(request, host)?;
            let needs_consent = decision == Decision::AskThenFound;
            Ok(BootstrapReport::would_found(&name, &founder.describe(), needs_consent))
        }
        Decision::Resume { operation } => {
            let intent = host.state.join_intent()?.ok_or(JoinError::NoJoin)?;
            let inspection = join::inspect(&setup, &intent)?;
            Ok(BootstrapReport::would_join(Outcome::WouldResume, Some(&operation), inspection))
        }
        Decision::Join(target) => {
            let intent = match target.credential {
                Credential::ConfirmFingerprint => {
                    // A person would be asked to compare it; it is trusted for the checks only.
                    let (_, pins) = join::observed_pins(&target.addresses)?;
                    new_intent(request, &target, pins)
                }
                _ => intent(request, host, &target)?,
            };
            let inspection = join::inspect(&setup, &intent)?;
            Ok(BootstrapReport::would_join(Outcome::WouldJoin, None, inspection))
        }
    }
}
