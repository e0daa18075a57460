//! Renewal of the certificate at two thirds of its life, each time with a new key.
//!
//! The new key is durable before the request. If the answer is lost, the controller may count only
//! the certificate that this node never got: it asks for that one with its key as the proof
//! ([`rejoin`]), as a node does that was off until its certificate ended. Key and certificate are
//! one file, so they always fit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::cluster::{
    JoinAnswer, JoinBundle, JoinRequest, PROTOCOL, RenewRequest, RenewedCertificate,
};
use jiff::{SignedDuration, Timestamp};

use super::{DaemonError, DaemonSetup};
use crate::controller::{CallError, Session};
use crate::join::JoinError;
use crate::key::NodeKey;
use crate::random::random_text;
use crate::state::{MemberFile, StateDir, StateError};
use crate::trust::{Tls, Trust, certificates, public_key_info};

/// A certificate with its key, not stored yet.
pub(super) struct Renewed {
    key: NodeKey,
    pub(super) answer: RenewedCertificate,
}

/// Whether two thirds of the certificate's life have passed.
pub fn is_due(file: &MemberFile, now: Timestamp) -> bool {
    let life = file.certificate_ends.duration_since(file.certificate_from);
    let passed = now.duration_since(file.certificate_from);
    passed >= life - SignedDuration::from_secs(life.as_secs() / 3)
}

pub(super) fn request(state: &StateDir, session: &mut Session) -> Result<Renewed, CallError> {
    let local = |reason: String| CallError::Unreadable { address: "this node".into(), reason };
    let key = next_key(state).map_err(|error| local(hoist_diagnostic::chain(&error)))?;
    let request = key.certificate_request().map_err(|error| local(error.to_string()))?;
    let body = RenewRequest { certificate_request: STANDARD.encode(request) };
    let answer: RenewedCertificate = session.post("/cluster/v1/renew", &body)?;
    let leaf = certificates(&answer.certificate).first().and_then(public_key_info);
    if leaf != Some(key.public_key_info()) {
        let reason = "the certificate is not for the new key".to_owned();
        return Err(CallError::Unreadable { address: session.authority().to_owned(), reason });
    }
    Ok(Renewed { key, answer })
}

/// The certificate of a member whose present one is not accepted any more. The controller knows the
/// key of this node, and the certificate request proves it.
pub(super) fn rejoin(
    setup: &DaemonSetup,
    file: &MemberFile,
    authority: &str,
) -> Result<Renewed, DaemonError> {
    let state = &setup.state;
    let key = match state.next_key()? {
        Some(key) => key,
        None => state.node_key()?.ok_or(DaemonError::NoMember)?,
    };
    let roots = certificates(&state.authorities()?.unwrap_or_default());
    let tls = Tls::new(Trust::Roots(roots))?;
    let request = key.certificate_request().map_err(JoinError::from)?;
    let body = JoinRequest {
        protocol: PROTOCOL,
        request: random_text(),
        cluster: file.uid.to_string(),
        node: file.id.to_string(),
        certificate_request: STANDARD.encode(request),
        token: None,
        facts: setup.facts.join_facts(state.path(), None, Timestamp::now()),
    };
    let called = Session::connect(authority, &tls)
        .and_then(|mut session| session.post::<JoinAnswer>("/cluster/v1/join", &body));
    match called.map_err(JoinError::from)? {
        JoinAnswer::Accepted(bundle) => {
            let JoinBundle { id, certificate, certificate_ends, .. } = *bundle;
            let leaf = certificates(&certificate).first().and_then(public_key_info);
            if id != file.id.to_string() || leaf != Some(key.public_key_info()) {
                let reason = "its certificate is not for the key of this node";
                return Err(JoinError::Bundle(reason).into());
            }
            Ok(Renewed { key, answer: RenewedCertificate { certificate, certificate_ends } })
        }
        JoinAnswer::Pending { fingerprint, .. } => Err(JoinError::Pending { fingerprint }.into()),
    }
}

pub(super) fn store(
    state: &StateDir,
    file: &MemberFile,
    renewed: &Renewed,
) -> Result<(), StateError> {
    let Renewed { key, answer } = renewed;
    state.store_identity(key, Some(&answer.certificate))?;
    state.store_member(&MemberFile {
        certificate_from: Timestamp::now(),
        certificate_ends: answer.certificate_ends,
        ..file.clone()
    })?;
    state.remove_next_key()
}

fn next_key(state: &StateDir) -> Result<NodeKey, StateError> {
    if let Some(key) = state.next_key()? {
        return Ok(key);
    }
    let key = NodeKey::generate().map_err(|error| StateError::Corrupt {
        path: state.path().to_owned(),
        detail: error.to_string(),
    })?;
    state.store_next_key(&key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Standing;

    #[test]
    fn renewal_is_due_at_two_thirds_of_the_life() {
        let from = Timestamp::UNIX_EPOCH;
        let hours = |hours: i64| from + SignedDuration::from_hours(hours);
        let file = MemberFile {
            standing: Standing::Member,
            name: "lab".parse().unwrap(),
            uid: hoist_cluster::id::ClusterId::from_random([1; 16]),
            id: hoist_cluster::id::NodeId::of_key(b"key"),
            node: "n1".parse().unwrap(),
            join_order: 1,
            controllers: Vec::new(),
            pins: Vec::new(),
            founded: false,
            accepted: from,
            certificate_from: from,
            certificate_ends: hours(90 * 24),
        };
        assert!(!is_due(&file, hours(60 * 24 - 1)));
        assert!(is_due(&file, hours(60 * 24)));
        assert!(is_due(&file, hours(100 * 24)), "an ended one too");
    }
}
