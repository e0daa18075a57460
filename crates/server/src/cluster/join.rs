//! `/cluster/v1/join`: a node asks to become a member, again and again until it is one, or gives
//! its request up.
//!
//! Guarantees: a request that is repeated gives one member and the same certificate, whichever
//! controller gets it; a token is used up in the transaction that accepts its node; the certificate
//! is issued after the acceptance is durable.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::cluster::{JoinAnswer, JoinBundle, JoinRequest, JoinWithdrawal, MAX_JOIN_REQUEST};
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::cluster_authority::ClusterAuthority;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};
use hoist_cluster::id::NodeId;
use hoist_cluster::join_token::{Enrollment, TokenRecord, TokenUse};
use hoist_cluster::membership::{
    Change, MAX_PENDING, Member, Membership, MembershipRefusal, Placement, Registration, Standing,
};
use hoist_model::Name;
use hoist_site::Roster;
use http::{HeaderMap, StatusCode, Uri, header};
use jiff::Timestamp;
use serde_json::json;

use super::failure::{of_membership, of_token};
use super::join_request::{CheckedRequest, CheckedWithdrawal};
use super::records::{ClusterState, Origin, RecordChange};
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, inventory_link, planning, show};

/// Requests of one address that wait for an operator.
const MAX_PENDING_OF_SOURCE: usize = 10;
/// When a waiting node asks again.
const RETRY_AFTER: u64 = 5;
/// Longest host name and port in a header.
const MAX_HOST: usize = 255;

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::post("/cluster/v1/join", AccessClass::Proof, join)
            .summary("Join the cluster, or ask again whether an operator has accepted the node")
            .reason(
                "The proof of a join token for this TLS session and key; without one the request \
                 waits for an operator. TLS only",
            )
            .body_limit(MAX_JOIN_REQUEST)
            .takes::<JoinRequest>()
            .gives::<JoinAnswer>(200)
            .gives::<JoinAnswer>(202),
        Route::post("/cluster/v1/join/withdraw", AccessClass::Proof, withdraw)
            .summary("Give up a request to join, or the acceptance that was not confirmed")
            .reason(
                "The certificate request proves the key that the request to join was made with. \
                 TLS only",
            )
            .body_limit(MAX_JOIN_REQUEST)
            .takes::<JoinWithdrawal>()
            .gives_nothing(204),
    ]
}

async fn join(
    State(cluster): State<Cluster>,
    peer: Peer,
    uri: Uri,
    headers: HeaderMap,
    audit: AuditContext,
    Json(request): Json<JoinRequest>,
) -> Result<Response, Failure> {
    let used = used_host(&uri, &headers);
    let answered = cluster.join(request, &peer, used.as_deref(), audit.draft()).await;
    let result = match &answered {
        Ok(JoinAnswer::Accepted(_)) => "accepted",
        Ok(JoinAnswer::Pending { .. }) => "pending",
        Err(_) => "refused",
    };
    metrics::counter!("hoist_cluster_joins_total", "result" => result).increment(1);
    let answer = answered?;
    let status = match &answer {
        JoinAnswer::Accepted(_) => StatusCode::OK,
        JoinAnswer::Pending { .. } => StatusCode::ACCEPTED,
    };
    Ok((status, Json(answer)).into_response())
}

/// A request that is not known is withdrawn already.
async fn withdraw(
    State(cluster): State<Cluster>,
    peer: Peer,
    audit: AuditContext,
    Json(withdrawal): Json<JoinWithdrawal>,
) -> Result<StatusCode, Failure> {
    let state = Arc::clone(cluster.view.loaded()?.founded()?);
    let withdrawal = CheckedWithdrawal::check(&withdrawal, &state, &peer)?;
    let node = withdrawal.node;
    let mut draft = audit.draft();
    draft.who = format!("member/{node}");
    draft.object = format!("member/{} withdraw", node.short());
    let withdrawn =
        cluster.view.write(Some(&draft), |snapshot| withdrawal.decide(snapshot)).await?;
    if let Some(Withdrawn { name, was_accepted }) = withdrawn {
        let kind = if was_accepted { "cluster.member.left" } else { "cluster.join.withdrawn" };
        cluster.liveness.forget(node);
        cluster.publish(kind, &format!("member/{name}"), json!({"id": node}));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The request or membership that a withdrawal has ended.
struct Withdrawn {
    name: Name,
    was_accepted: bool,
}

impl CheckedWithdrawal {
    /// Later requests of the same node are not withdrawn: this one may have been delayed.
    fn decide(&self, snapshot: &Snapshot) -> Result<Write<Option<Withdrawn>>, Failure> {
        let nothing = Write { changes: Vec::new(), result: None };
        let membership = &snapshot.membership;
        let pending = membership.pending.get(&self.node).map(|pending| &pending.registration);
        let member = snapshot.member(self.node).filter(|member| member.may_connect());
        let member = member.map(|member| &member.registration);
        let Some(registration) = pending.or(member) else { return Ok(nothing) };
        if registration.key != self.key {
            let detail = "the request to join was made with another key";
            return Err(Failure::new(Code::Forbidden, detail).with_remedy(
                "withdraw it on the machine that made it, or let an operator reject it",
            ));
        }
        if registration.request != self.request {
            return Ok(nothing);
        }
        let was_accepted = pending.is_none();
        let withdrawn = membership.withdraw(self.node).map_err(|r| of_membership(&r))?;
        let mut changes = snapshot.records(withdrawn.changes);
        if was_accepted {
            changes.push(RecordChange::RemoveCertificate(self.node));
        }
        let result = Some(Withdrawn { name: registration.name.clone(), was_accepted });
        Ok(Write { changes, result })
    }
}

/// The host that the node has reached this controller by. It goes back to this node only.
fn used_host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(http::uri::Authority::as_str).or(named)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
    (host.len() <= MAX_HOST && host.bytes().all(is_plain)).then(|| host.to_owned())
}

/// The decision about a request.
#[derive(Debug)]
enum Admission {
    Pending { is_new: bool },
    Accepted { is_new: bool, replaced: Option<NodeId> },
}

/// A request with everything that the decision depends on besides the records.
struct Candidate<'a> {
    checked: &'a CheckedRequest,
    roster: &'a Roster,
    now: Timestamp,
}

/// The rights of a valid token.
struct Permission {
    is_automatic: bool,
    used: Option<TokenRecord>,
    placement: Placement,
    enrollment: Option<Enrollment>,
}

impl Cluster {
    async fn join(
        &self,
        request: JoinRequest,
        peer: &Peer,
        used_host: Option<&str>,
        mut draft: Draft,
    ) -> Result<JoinAnswer, Failure> {
        let now = self.chassis.clock.now();
        let state = Arc::clone(self.view.loaded()?.founded()?);
        let checked = CheckedRequest::check(request, &state, peer, now)?;
        let authority = self.authority.issuer(&state)?;
        if let Some(token) = &checked.token {
            draft.who = format!("join-token/{}", token.id);
        }
        draft.object = format!("member/{} ({})", checked.name, checked.node.short());
        let roster = self.registry.roster();
        let candidate = Candidate { checked: &checked, roster: &roster, now };
        let deciding = self.view.write(Some(&draft), |snapshot| candidate.decide(snapshot));
        let admission = deciding.await.inspect_err(|failure| {
            if !failure.problem().conflicts.is_empty() {
                self.liveness.note_refused(checked.node);
            }
        })?;
        self.tell(&checked, &admission);
        match admission {
            Admission::Pending { .. } => Ok(JoinAnswer::Pending {
                fingerprint: show::fingerprint(checked.node),
                retry_after_seconds: RETRY_AFTER,
            }),
            Admission::Accepted { .. } => {
                let bundle = self.bundle(&checked, &authority, &state, used_host, draft).await?;
                Ok(JoinAnswer::Accepted(Box::new(bundle)))
            }
        }
    }

    fn tell(&self, checked: &CheckedRequest, admission: &Admission) {
        let (kind, replaced) = match admission {
            Admission::Pending { is_new: true } => ("cluster.join.pending", None),
            Admission::Accepted { is_new: true, replaced } => {
                ("cluster.member.accepted", *replaced)
            }
            _ => return,
        };
        let subject = format!("member/{}", checked.name);
        let ahead = checked.skew.map(|skew| skew.as_secs());
        if let Some(seconds) = ahead {
            tracing::warn!(node = %checked.name, seconds, "the clock of a node is ahead");
        }
        let told = json!({
            "id": checked.node,
            "from": checked.from,
            "fingerprint": show::fingerprint(checked.node),
            "clock_ahead_seconds": ahead,
        });
        self.publish(kind, &subject, told);
        if let Some(old) = replaced {
            let told = json!({"old": old, "new": checked.node});
            self.publish("cluster.member.replaced", &subject, told);
        }
    }

    /// Everything that a member needs. Each step may be repeated: a node whose answer was lost, or
    /// whose controller died in between, asks again.
    async fn bundle(
        &self,
        checked: &CheckedRequest,
        authority: &ClusterAuthority,
        state: &ClusterState,
        used_host: Option<&str>,
        draft: Draft,
    ) -> Result<JoinBundle, Failure> {
        let snapshot = self.view.snapshot();
        let member = snapshot.member(checked.node).filter(|member| member.may_connect());
        let gone = || of_membership(&MembershipRefusal::NotMember(checked.node));
        let Member { registration, join_order, .. } = member.ok_or_else(gone)?;
        self.declare(&registration.name, checked.arch, draft).await?;
        let certificate =
            self.certificate(checked.node, &checked.certificate_request, authority).await?;
        Ok(JoinBundle {
            cluster: show::hello(state, self.chassis.clock.now()),
            id: checked.node.to_string(),
            node: registration.name.clone(),
            join_order: *join_order,
            certificate: certificate.chain.clone(),
            authorities: self.chassis.ca.root_pem().to_owned(),
            controllers: self.urls(used_host),
            certificate_ends: certificate.ends,
        })
    }
}

impl Candidate<'_> {
    fn decide(&self, snapshot: &Snapshot) -> Result<Write<Admission>, Failure> {
        let node = self.checked.node;
        match snapshot.member(node) {
            Some(member) if member.may_connect() => self.decide_again(snapshot, member),
            known => {
                // A node that left has proven its identity by its last key.
                if known.is_none_or(|member| member.registration.key != self.checked.key) {
                    self.checked.check_first_key()?;
                }
                self.decide_new(snapshot)
            }
        }
    }

    /// A member asks again: the answer was lost, or it was off until its certificate ended. Its key
    /// proves who it is.
    fn decide_again(
        &self,
        snapshot: &Snapshot,
        member: &Member,
    ) -> Result<Write<Admission>, Failure> {
        let membership = &snapshot.membership;
        let registration = Registration {
            request: self.checked.request,
            key: self.checked.key,
            ..member.registration.clone()
        };
        membership.register(&registration, self.now).map_err(|r| of_membership(&r))?;
        let mut changes = Vec::new();
        if let Some(certificate) = snapshot.certificate(member) {
            certificate.check_rejoin(self.now)?;
            if certificate.is_due(self.now) {
                let reissued = membership.reissue(self.checked.node);
                let reissued = reissued.map_err(|refusal| of_membership(&refusal))?;
                changes = snapshot.records(reissued.changes);
            }
        }
        let result = Admission::Accepted { is_new: false, replaced: None };
        Ok(Write { changes, result })
    }

    fn decide_new(&self, snapshot: &Snapshot) -> Result<Write<Admission>, Failure> {
        let Self { checked, now, .. } = self;
        let node = checked.node;
        let membership = &snapshot.membership;
        // First, because neither a token nor a name helps such a node.
        if let Some(expulsion) = membership.expelled.get(&node) {
            return Err(of_membership(&MembershipRefusal::Expelled { node, at: expulsion.at }));
        }
        let name = self.name(snapshot)?;
        inventory_link::check_enabled(self.roster, &name)?;
        let Permission { is_automatic, used, mut placement, enrollment } =
            self.permission(snapshot, &name)?;
        placement.declared = planning::declared_role(self.roster, &name);
        let was_pending = membership.pending.contains_key(&node);
        if !is_automatic && !was_pending {
            self.check_source(snapshot)?;
        }
        let registration = Registration {
            node,
            request: checked.request,
            key: checked.key,
            name,
            enrollment,
            claims: checked.claims.clone(),
            placement,
        };
        let base = if is_automatic { with_room(membership, node) } else { membership.clone() };
        let registered = base.register(&registration, *now).map_err(|r| of_membership(&r))?;
        let mut changes = registered.changes;
        let mut result = Admission::Pending { is_new: !was_pending };
        if is_automatic {
            let accepted = base.with(&changes).accept(node, checked.request, *now);
            changes.extend(accepted.map_err(|refusal| of_membership(&refusal))?.changes);
            result = Admission::Accepted { is_new: true, replaced: replaced(&changes, node) };
        }
        let origin =
            Origin { from: checked.from, hostname: checked.hostname.clone(), arch: checked.arch };
        let record = |change| RecordChange::of_membership(change, &origin);
        let mut changes: Vec<RecordChange> = changes.into_iter().map(record).collect();
        changes.extend(used.map(|token| RecordChange::Token(Box::new(token))));
        Ok(Write { changes, result })
    }

    /// The inventory node that the machine is: the one that its token was made for, else the one
    /// with its host name.
    fn name(&self, snapshot: &Snapshot) -> Result<Name, Failure> {
        let token = self.checked.token.as_ref().and_then(|token| snapshot.tokens.get(&token.id));
        let Some(bound) = token.and_then(|token| token.scope.bound_to) else {
            return Ok(self.checked.name.clone());
        };
        let machine = self.roster.by_id(bound.machine).ok_or_else(refused_proof)?;
        Ok(machine.name.clone())
    }

    /// The rights of the request's token; without a token, to wait.
    fn permission(&self, snapshot: &Snapshot, name: &Name) -> Result<Permission, Failure> {
        let checked = self.checked;
        let Some(presented) = &checked.token else {
            return Ok(Permission {
                is_automatic: false,
                used: None,
                placement: Placement::default(),
                enrollment: None,
            });
        };
        let token = snapshot.tokens.get(&presented.id);
        let token = token
            .filter(|token| token.key.verify(&checked.binding(presented), &presented.proof))
            .ok_or_else(refused_proof)?;
        let installed = checked.installed_as.as_deref();
        let machine = installed.and_then(|text| inventory_link::installed_as(self.roster, text));
        let machine = machine.map(|node| node.id);
        let enrollment = token.scope.bound_to.filter(|bound| machine == Some(bound.machine));
        let request = TokenUse {
            node: checked.node,
            name,
            address: checked.from,
            preferred_role: checked.preferred.as_ref(),
            enrollment,
        };
        let used = token.with_use(self.now, &request).map_err(|refusal| of_token(&refusal))?;
        let placement = Placement { forbid: token.scope.forbidden_roles(), ..Placement::default() };
        Ok(Permission {
            is_automatic: !token.scope.manual,
            used: (used != *token).then_some(used),
            placement,
            enrollment,
        })
    }

    /// A flood from one address leaves room for others.
    fn check_source(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        let from = self.checked.from;
        let waiting = snapshot.origins.values().filter(|origin| origin.from == from).count();
        if waiting < MAX_PENDING_OF_SOURCE {
            return Ok(());
        }
        let detail = format!("{waiting} requests from {from} wait for an operator");
        Err(Failure::new(Code::TooManyRequests, detail)
            .with_remedy("let an operator accept or reject them, or join with a token"))
    }
}

/// One message for an unknown token and a wrong secret: it must not help a guesser.
fn refused_proof() -> Failure {
    let detail = "the cluster has no such join token, or the proof of its secret is not valid for \
                  this connection";
    Failure::new(Code::JoinRefused, detail).with_remedy(
        "check the token; if it is the right one, another machine relays the connection",
    )
}

/// The same membership with room for a request that is accepted at once: requests that wait must
/// not keep nodes with a token out. The removed request is in this copy only.
fn with_room(membership: &Membership, node: NodeId) -> Membership {
    let mut membership = membership.clone();
    if membership.pending.len() >= MAX_PENDING && !membership.pending.contains_key(&node) {
        let latest = membership.pending.values().max_by_key(|pending| pending.arrival);
        if let Some(latest) = latest.map(|pending| pending.registration.node) {
            membership.pending.remove(&latest);
        }
    }
    membership
}

/// The member that an accepted node takes the place of.
fn replaced(changes: &[Change], by: NodeId) -> Option<NodeId> {
    changes.iter().find_map(|change| match change {
        Change::Member(member)
            if member.standing == (Standing::Replaced { by, inherited: true }) =>
        {
            Some(member.registration.node)
        }
        _ => None,
    })
}
