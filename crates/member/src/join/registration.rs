//! The registration with a controller, its withdrawal, and the confirmation.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::cluster::{
    ConfirmRequest, JoinAnswer, JoinBundle, JoinRequest, JoinWithdrawal, PROTOCOL, TokenProof,
};
use hoist_cluster::id::NodeId;
use hoist_cluster::join_token::{Binding, TokenKey};
use hoist_diagnostic::chain;
use hoist_engine::action::Cancel;
use jiff::Timestamp;

use super::context::JoinContext;
use super::error::JoinError;
use super::greeting::{Greeting, greet};
use crate::controller::{CallError, Session, authority_of, authority_of_url};
use crate::key::NodeKey;
use crate::state::MemberFile;
use crate::trust::{Tls, certificates, pin_of, public_key_info};

/// First pause after a call that failed; each further failure doubles it,
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// up to this maximum.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval at which a waiting command looks for a signal.
const NAP: Duration = Duration::from_millis(50);
/// A controller that asks for a pause of less is not asked more often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);

/// Registers, and waits for the decision of an operator where the controller leaves it to one.
pub(super) fn register(
    context: &JoinContext,
    key: &NodeKey,
    node: NodeId,
    cancel: &Cancel,
) -> Result<(JoinBundle, String), JoinError> {
    let until = Instant::now() + context.setup.wait;
    let mut pause = FIRST_PAUSE;
    let mut shown: Option<String> = None;
    loop {
        JoinContext::check_interrupt(cancel)?;
        let next = match attempt(context, key, node) {
            Ok((JoinAnswer::Accepted(bundle), authority)) => return Ok((*bundle, authority)),
            Ok((JoinAnswer::Pending { fingerprint, retry_after_seconds }, _)) => {
                if shown.as_ref() != Some(&fingerprint) {
                    let text = format!("waiting for an operator; fingerprint: {fingerprint}");
                    context.setup.console.step(&text);
                }
                shown = Some(fingerprint);
                pause = FIRST_PAUSE;
                Duration::from_secs(retry_after_seconds)
            }
            Err(JoinError::Call(error)) if error.is_temporary() => {
                let asked = match &error {
                    CallError::Later { retry_after, .. } => *retry_after,
                    _ => None,
                };
                if Instant::now() + pause >= until {
                    return Err(given_up(context, shown, error));
                }
                context.setup.console.warn(&format!("{}; trying again", chain(&error)));
                let next = asked.unwrap_or(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                next
            }
            Err(JoinError::Call(error)) => {
                if error.may_have_arrived() {
                    return Err(JoinError::OutcomeUnknown(error));
                }
                // A request that waited before is gone now: it was rejected, or its token ended.
                if matches!(error, CallError::Refused { .. }) {
                    context.note_refused();
                }
                return Err(error.into());
            }
            Err(error) => return Err(error),
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero()
            && let Some(fingerprint) = shown
        {
            return Err(JoinError::Pending { fingerprint });
        }
        rest(next.max(SHORTEST_PAUSE).min(left.max(SHORTEST_PAUSE)), cancel);
    }
}

/// The error at the end of the time.
fn given_up(context: &JoinContext, shown: Option<String>, error: CallError) -> JoinError {
    match shown {
        Some(fingerprint) => JoinError::Pending { fingerprint },
        None if context.is_sent() => JoinError::OutcomeUnknown(error),
        None => error.into(),
    }
}

fn rest(time: Duration, cancel: &Cancel) {
    let until = Instant::now() + time;
    while !cancel.is_cancelled() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// One request, on a connection of its own: the proof is valid on that connection only.
fn attempt(
    context: &JoinContext,
    key: &NodeKey,
    node: NodeId,
) -> Result<(JoinAnswer, String), JoinError> {
    let Greeting { mut session, cluster, received, .. } =
        greet(&context.intent, context.setup.console.as_ref())?;
    let certificate_request = key.certificate_request()?;
    let token = match &context.token {
        None => None,
        Some(token) => {
            let exporter = session.exporter().map_err(crate::trust::TrustError::Tls)?;
            let binding =
                Binding { exporter: &exporter, request: &certificate_request, node: &node };
            let proof = TokenKey::of(&token.secret).proof(&binding);
            Some(TokenProof { id: token.id.to_string(), proof: proof.to_string() })
        }
    };
    let setup = &context.setup;
    let preferred = context.intent.preferred.as_deref();
    let request = JoinRequest {
        protocol: PROTOCOL,
        request: context.intent.request.to_string(),
        cluster: cluster.to_string(),
        node: node.to_string(),
        certificate_request: STANDARD.encode(&certificate_request),
        token,
        facts: setup.facts.join_facts(setup.state.path(), preferred, received),
    };
    context.note_sent();
    let answer: JoinAnswer = session.post("/cluster/v1/join", &request)?;
    if let JoinAnswer::Accepted(bundle) = &answer {
        check_bundle(context, bundle, key, node, &cluster.to_string())?;
    }
    Ok((answer, session.authority().to_owned()))
}

/// Nothing of a bundle is stored before all of it fits.
fn check_bundle(
    context: &JoinContext,
    bundle: &JoinBundle,
    key: &NodeKey,
    node: NodeId,
    cluster: &str,
) -> Result<(), JoinError> {
    let fits = |holds: bool, reason: &'static str| {
        if holds { Ok(()) } else { Err(JoinError::Bundle(reason)) }
    };
    fits(bundle.cluster.uid == cluster, "it is of another cluster")?;
    fits(bundle.id == node.to_string(), "it is for another node")?;
    let chain = certificates(&bundle.certificate);
    let leaf = chain.first().and_then(public_key_info);
    fits(leaf == Some(key.public_key_info()), "its certificate is not for the key of this node")?;
    let roots = certificates(&bundle.authorities);
    let is_pinned = roots.iter().filter_map(pin_of).any(|pin| context.intent.pins.contains(&pin));
    fits(is_pinned, "its authorities do not include the pinned root")?;
    fits(bundle.certificate_ends > Timestamp::now(), "its certificate has ended already")
}

/// Tells the controller that this node works as a member. May be repeated.
pub(super) fn confirm(
    context: &JoinContext,
    member: &MemberFile,
    cancel: &Cancel,
) -> Result<(), JoinError> {
    let until = Instant::now() + context.setup.wait;
    let body = ConfirmRequest { request: context.intent.request.to_string() };
    let mut pause = FIRST_PAUSE;
    loop {
        JoinContext::check_interrupt(cancel)?;
        let error = match as_member(context, member, |session| {
            session.tell("/cluster/v1/confirm", &body)
        }) {
            Ok(()) => return Ok(()),
            Err(JoinError::Call(error)) if error.is_temporary() => error,
            Err(error) => return Err(error),
        };
        if Instant::now() + pause >= until {
            return Err(error.into());
        }
        context.setup.console.warn(&format!("{}; trying again", chain(&error)));
        rest(pause, cancel);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Withdraws the request, or the acceptance. May be repeated.
pub(super) fn withdraw(context: &JoinContext) -> Result<(), JoinError> {
    let state = &context.setup.state;
    if !context.is_sent() {
        return Ok(());
    }
    let Some(key) = state.node_key()? else { return Ok(()) };
    match state.join_bundle()? {
        Some(bundle) => withdraw_acceptance(context, &key, &bundle),
        // The request may wait, or the answer of the controller was lost.
        None => withdraw_request(context, &key),
    }
}

/// The key proves that the request is this node's. It is withdrawn also if an operator has accepted
/// it in the meantime.
fn withdraw_request(context: &JoinContext, key: &NodeKey) -> Result<(), JoinError> {
    let (_, node) = context.setup.state.ensure_key()?;
    let Greeting { mut session, cluster, .. } =
        greet(&context.intent, context.setup.console.as_ref())?;
    let body = JoinWithdrawal {
        request: context.intent.request.to_string(),
        cluster: cluster.to_string(),
        node: node.to_string(),
        certificate_request: STANDARD.encode(key.certificate_request()?),
    };
    Ok(session.tell("/cluster/v1/join/withdraw", &body)?)
}

fn withdraw_acceptance(
    context: &JoinContext,
    key: &NodeKey,
    bundle: &JoinBundle,
) -> Result<(), JoinError> {
    let mut identity = key.to_pem();
    identity.push_str(&bundle.certificate);
    let tls = Tls::of_member(&bundle.authorities, &identity)?;
    let body = ConfirmRequest { request: context.intent.request.to_string() };
    let authorities = context.intent.addresses.iter().map(authority_of);
    let told = at_first(authorities, &tls, |session| session.tell("/cluster/v1/withdraw", &body));
    match told {
        // The controller does not know this node any more.
        Err(CallError::Refused { status: 401 | 404 | 410, .. }) => Ok(()),
        Err(error) if error.membership_end().is_some() => Ok(()),
        told => Ok(told?),
    }
}

/// Calls with the certificate of the member, at the first controller that answers.
fn as_member<T>(
    context: &JoinContext,
    member: &MemberFile,
    call: impl Fn(&mut Session) -> Result<T, CallError>,
) -> Result<T, JoinError> {
    let state = &context.setup.state;
    let identity = state.identity_pem()?.ok_or(JoinError::NoBundle)?;
    let authorities = state.authorities()?.ok_or(JoinError::NoBundle)?;
    let tls = Tls::of_member(&authorities, &identity)?;
    let controllers = member.controllers.iter().filter_map(|url| authority_of_url(url));
    Ok(at_first(controllers, &tls, call)?)
}

fn at_first<T>(
    controllers: impl Iterator<Item = String>,
    tls: &Tls,
    call: impl Fn(&mut Session) -> Result<T, CallError>,
) -> Result<T, CallError> {
    let mut failed = None;
    for authority in controllers {
        match Session::connect(&authority, tls).and_then(|mut session| call(&mut session)) {
            Err(error) if error.is_temporary() => {
                failed = Some(CallError::or_more_telling(failed, error));
            }
            answered => return answered,
        }
    }
    Err(failed.unwrap_or_else(|| {
        let reason = "no controller is known".to_owned();
        CallError::Unreachable { address: "the cluster".to_owned(), reason }
    }))
}
