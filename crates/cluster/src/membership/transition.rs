//! The operations on the membership.
//!
//! Every operation may be repeated: the second one changes nothing and has an outcome that says so.

use hoist_model::Name;
use jiff::Timestamp;

use super::{
    Counters, Expulsion, MAX_MEMBERS, MAX_PENDING, MAX_SUPERSEDED, Member, Membership,
    MembershipRefusal, PendingRequest, Placement, RESTORE_GAP, Registration, RequestId, Standing,
};
use crate::id::{NodeId, Pin};
use crate::role::Role;

/// The effect of an operation: all changes belong into one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transition {
    /// Empty if nothing changes.
    pub changes: Vec<Change>,
    pub outcome: Outcome,
}

/// One record to write or to remove.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    Counters(Counters),
    Member(Box<Member>),
    RemoveMember(NodeId),
    Pending(Box<PendingRequest>),
    RemovePending(NodeId),
    Expulsion(Expulsion),
}

/// The answer to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request waits for a decision, at this place in the queue.
    Pending {
        arrival: u64,
    },
    /// The certificate to issue, or to issue again, has this serial.
    Accepted {
        join_order: u64,
        serial: u64,
    },
    AlreadyMember,
    Rejected,
    Withdrawn,
    NothingToWithdraw,
    Confirmed,
    Draining,
    Left,
    Expelled,
    Replaced,
    /// The old node may not connect any more; the new one has to register and be accepted.
    AwaitsSuccessor,
    Renewed {
        serial: u64,
    },
    CarriedOut(Role),
    /// The limits on the role of the member have changed.
    Placed,
    Restored,
}

type Result<T = Transition> = std::result::Result<T, MembershipRefusal>;

impl Transition {
    fn unchanged(outcome: Outcome) -> Self {
        Self { changes: Vec::new(), outcome }
    }

    /// Writes the counters too: they are the record that concurrent operations compare.
    fn new(counters: Counters, outcome: Outcome, mut changes: Vec<Change>) -> Self {
        let counters = Counters { revision: counters.revision + 1, ..counters };
        changes.push(Change::Counters(counters));
        Self { changes, outcome }
    }
}

impl Counters {
    fn with_next_generation(self) -> Self {
        Self { generation: self.generation + 1, ..self }
    }
}

impl Membership {
    /// A node asks to join, or repeats its request.
    pub fn register(&self, registration: &Registration, now: Timestamp) -> Result {
        let node = registration.node;
        if let Some(expulsion) = self.expelled.get(&node) {
            return Err(MembershipRefusal::Expelled { node, at: expulsion.at });
        }
        if let Some(member) = self.members.get(&node)
            && let Some(transition) = answer_to_known(member, registration)?
        {
            return Ok(transition);
        }
        let installations = self.check_name(registration)?;
        let earlier = self.pending.get(&node);
        let superseded = match earlier {
            None if self.pending.len() - installations.pending.len() >= MAX_PENDING => {
                return Err(MembershipRefusal::PendingFull);
            }
            None => Vec::new(),
            Some(earlier) => match superseded_by(earlier, registration)? {
                None => {
                    let arrival = earlier.arrival;
                    return Ok(Transition::unchanged(Outcome::Pending { arrival }));
                }
                Some(superseded) => superseded,
            },
        };
        let mut counters = self.counters;
        let arrival = match earlier {
            Some(earlier) => earlier.arrival,
            None => take(&mut counters.next_arrival),
        };
        let registration = registration.clone();
        let replaces = installations.member;
        let request = PendingRequest { registration, arrival, received: now, replaces, superseded };
        let mut changes: Vec<Change> =
            installations.pending.into_iter().map(Change::RemovePending).collect();
        changes.push(Change::Pending(Box::new(request)));
        Ok(Transition::new(counters, Outcome::Pending { arrival }, changes))
    }

    /// Accepts the request that the operator or the policy has seen. The transition must be durable
    /// before the certificate is issued.
    pub fn accept(&self, node: NodeId, request: RequestId, now: Timestamp) -> Result {
        let Some(pending) = self.pending.get(&node) else {
            return match self.members.get(&node) {
                Some(member) if member.may_connect() => Ok(Transition::unchanged(accepted(member))),
                _ => Err(MembershipRefusal::NotPending(node)),
            };
        };
        let latest = pending.registration.request;
        if latest != request {
            // The decision was about the facts of an older request.
            return Err(MembershipRefusal::Superseded { request, latest });
        }
        let predecessor = self.predecessor(pending);
        let replaced = predecessor.filter(|member| member.may_connect());
        let connected = self.members.values().filter(|member| member.may_connect()).count();
        if connected >= MAX_MEMBERS && replaced.is_none() {
            return Err(MembershipRefusal::ClusterFull);
        }
        let mut counters = self.counters.with_next_generation();
        let mut member = Member {
            registration: pending.registration.clone(),
            join_order: 0,
            serial: take(&mut counters.next_serial),
            assigned: None,
            standing: Standing::Accepted,
            accepted: now,
            last_seen: now,
        };
        let mut changes = vec![Change::RemovePending(node)];
        if let Some(predecessor) = predecessor {
            inherit(&mut member, predecessor);
            let standing = Standing::Replaced { by: node, inherited: true };
            changes.push(with_standing(predecessor, standing));
        } else {
            member.join_order = take(&mut counters.next_join_order);
        }
        let outcome = accepted(&member);
        changes.push(Change::Member(Box::new(member)));
        Ok(Transition::new(counters, outcome, changes))
    }

    /// Removes a request without remembering the node: it may register again.
    pub fn reject(&self, node: NodeId, request: RequestId) -> Result {
        let pending = self.pending.get(&node).ok_or(MembershipRefusal::NotPending(node))?;
        let latest = pending.registration.request;
        if latest != request {
            return Err(MembershipRefusal::Superseded { request, latest });
        }
        let changes = vec![Change::RemovePending(node)];
        Ok(Transition::new(self.counters, Outcome::Rejected, changes))
    }

    /// A joiner gives up before it has confirmed. Its join order and serial are not used again.
    pub fn withdraw(&self, node: NodeId) -> Result {
        if self.pending.contains_key(&node) {
            let changes = vec![Change::RemovePending(node)];
            return Ok(Transition::new(self.counters, Outcome::Withdrawn, changes));
        }
        match self.members.get(&node) {
            Some(member) if member.standing == Standing::Accepted => {
                let changes = vec![with_standing(member, Standing::Left)];
                let counters = self.counters.with_next_generation();
                Ok(Transition::new(counters, Outcome::Withdrawn, changes))
            }
            Some(member) if member.may_connect() => Err(MembershipRefusal::AlreadyConfirmed(node)),
            _ => Ok(Transition::unchanged(Outcome::NothingToWithdraw)),
        }
    }

    /// The node has its certificate and configuration: from now on it counts as a member.
    pub fn confirm(&self, node: NodeId, now: Timestamp) -> Result {
        let member = self.connected(node)?;
        if member.standing != Standing::Accepted {
            return Ok(Transition::unchanged(Outcome::Confirmed));
        }
        let mut member = member.clone();
        member.standing = Standing::Confirmed;
        member.last_seen = now;
        let changes = vec![Change::Member(Box::new(member))];
        Ok(Transition::new(self.counters, Outcome::Confirmed, changes))
    }

    /// Role plans no longer count on the member. It may still connect.
    pub fn drain(&self, node: NodeId) -> Result {
        let member = self.connected(node)?;
        match member.standing {
            Standing::Draining => Ok(Transition::unchanged(Outcome::Draining)),
            Standing::Confirmed => {
                let changes = vec![with_standing(member, Standing::Draining)];
                Ok(Transition::new(self.counters, Outcome::Draining, changes))
            }
            _ => Err(MembershipRefusal::NotConfirmed(node)),
        }
    }

    /// A member leaves for good. One that may hold state must be drained first.
    pub fn leave(&self, node: NodeId) -> Result {
        let member = match self.members.get(&node) {
            Some(member) if member.standing == Standing::Left => {
                return Ok(Transition::unchanged(Outcome::Left));
            }
            _ => self.connected(node)?,
        };
        let stateful = member.assigned.filter(|role| role.is_stateful() || *role == Role::Monolith);
        if let Some(role) = stateful
            && member.standing != Standing::Draining
        {
            return Err(MembershipRefusal::DrainFirst { node, role });
        }
        let changes = vec![with_standing(member, Standing::Left)];
        let counters = self.counters.with_next_generation();
        Ok(Transition::new(counters, Outcome::Left, changes))
    }

    /// Removes a node and remembers its id for ever.
    pub fn expel(&self, node: NodeId, now: Timestamp) -> Result {
        if self.expelled.contains_key(&node) {
            return Ok(Transition::unchanged(Outcome::Expelled));
        }
        let member = self.members.get(&node);
        let pending = self.pending.get(&node);
        let registration = member
            .map(|member| &member.registration)
            .or(pending.map(|pending| &pending.registration))
            .ok_or(MembershipRefusal::NotMember(node))?;
        let name = registration.name.clone();
        let mut changes = vec![Change::Expulsion(Expulsion { node, name, at: now })];
        let mut counters = self.counters;
        if let Some(member) = member {
            changes.push(Change::RemoveMember(node));
            if member.may_connect() {
                counters = counters.with_next_generation();
            }
        }
        if pending.is_some() {
            changes.push(Change::RemovePending(node));
        }
        Ok(Transition::new(counters, Outcome::Expelled, changes))
    }

    /// `new` takes the role and the join order of `old`, which may not connect any more. If `new`
    /// is not accepted yet, it takes them when it is.
    pub fn replace(&self, old: NodeId, new: NodeId) -> Result {
        if old == new {
            return Err(MembershipRefusal::SameNode);
        }
        if let Some(expulsion) = self.expelled.get(&new) {
            return Err(MembershipRefusal::Expelled { node: new, at: expulsion.at });
        }
        let old_member = self.members.get(&old).ok_or(MembershipRefusal::NotMember(old))?;
        let successor = self.members.get(&new).filter(|member| member.may_connect());
        match old_member.standing {
            Standing::Replaced { by, inherited } if by == new => {
                let outcome = if inherited { Outcome::Replaced } else { Outcome::AwaitsSuccessor };
                return Ok(Transition::unchanged(outcome));
            }
            Standing::Replaced { by, inherited: true } => {
                return Err(MembershipRefusal::Replaced { node: old, by });
            }
            Standing::Left => return Err(MembershipRefusal::NotMember(old)),
            _ => {}
        }
        let standing = Standing::Replaced { by: new, inherited: successor.is_some() };
        let mut changes = vec![with_standing(old_member, standing)];
        let counters = self.counters.with_next_generation();
        let Some(successor) = successor else {
            return Ok(Transition::new(counters, Outcome::AwaitsSuccessor, changes));
        };
        let mut successor = successor.clone();
        inherit(&mut successor, old_member);
        changes.push(Change::Member(Box::new(successor)));
        Ok(Transition::new(counters, Outcome::Replaced, changes))
    }

    /// A member has a new key, and gets a certificate with a new serial. The caller must have
    /// verified that the old key signed the new one.
    pub fn renew(&self, node: NodeId, key: Pin) -> Result {
        let mut member = self.connected(node)?.clone();
        if member.registration.key == key {
            return Ok(Transition::unchanged(Outcome::Renewed { serial: member.serial }));
        }
        let mut counters = self.counters;
        let serial = take(&mut counters.next_serial);
        member.registration.key = key;
        member.serial = serial;
        let changes = vec![Change::Member(Box::new(member))];
        Ok(Transition::new(counters, Outcome::Renewed { serial }, changes))
    }

    /// A member keeps its key, and gets a certificate with a new serial: the present one has ended.
    pub fn reissue(&self, node: NodeId) -> Result {
        let mut member = self.connected(node)?.clone();
        let mut counters = self.counters;
        let serial = take(&mut counters.next_serial);
        member.serial = serial;
        let changes = vec![Change::Member(Box::new(member))];
        Ok(Transition::new(counters, Outcome::Renewed { serial }, changes))
    }

    /// The operator gives a pending request another name.
    pub fn name_request(&self, node: NodeId, name: Name) -> Result {
        let pending = self.pending.get(&node).ok_or(MembershipRefusal::NotPending(node))?;
        let outcome = Outcome::Pending { arrival: pending.arrival };
        if pending.registration.name == name {
            return Ok(Transition::unchanged(outcome));
        }
        let mut pending = pending.clone();
        pending.registration.name = name;
        pending.replaces = self.check_name(&pending.registration)?.member;
        let changes = vec![Change::Pending(Box::new(pending))];
        Ok(Transition::new(self.counters, outcome, changes))
    }

    /// The limits on the role of a member change.
    pub fn place(&self, node: NodeId, placement: Placement) -> Result {
        let mut member = self.connected(node)?.clone();
        if member.registration.placement == placement {
            return Ok(Transition::unchanged(Outcome::Placed));
        }
        member.registration.placement = placement;
        let changes = vec![Change::Member(Box::new(member))];
        Ok(Transition::new(self.counters, Outcome::Placed, changes))
    }

    /// A member reports that it has carried out its planned role.
    pub fn carry_out(&self, node: NodeId, role: Role) -> Result {
        let mut member = self.connected(node)?.clone();
        let outcome = Outcome::CarriedOut(role);
        if member.assigned == Some(role) {
            return Ok(Transition::unchanged(outcome));
        }
        member.assigned = Some(role);
        let changes = vec![Change::Member(Box::new(member))];
        Ok(Transition::new(self.counters, outcome, changes))
    }

    /// After the store came back from a backup: skips the numbers that were given since.
    #[must_use]
    pub fn restore(&self) -> Transition {
        let mut counters = self.counters.with_next_generation();
        counters.generation += RESTORE_GAP;
        counters.next_join_order += RESTORE_GAP;
        counters.next_serial += RESTORE_GAP;
        Transition::new(counters, Outcome::Restored, Vec::new())
    }

    fn connected(&self, node: NodeId) -> Result<&Member> {
        if let Some(expulsion) = self.expelled.get(&node) {
            return Err(MembershipRefusal::Expelled { node, at: expulsion.at });
        }
        let member = self.members.get(&node).filter(|member| member.may_connect());
        member.ok_or(MembershipRefusal::NotMember(node))
    }

    /// Whether the name is free, or only in use by earlier installations of the same machine.
    fn check_name(&self, registration: &Registration) -> Result<EarlierInstallations> {
        let node = registration.node;
        let name = &registration.name;
        let mut earlier = EarlierInstallations::default();
        for pending in self.pending.values() {
            if holds_name(&pending.registration, registration) {
                if !is_later_installation(registration, &pending.registration) {
                    let holder = pending.registration.node;
                    return Err(name_in_use(name, holder, pending.received, node));
                }
                earlier.member = earlier.member.or(pending.replaces);
                earlier.pending.push(pending.registration.node);
            }
        }
        for member in self.members.values().filter(|member| member.may_connect()) {
            if holds_name(&member.registration, registration) {
                let holder = member.registration.node;
                if !is_later_installation(registration, &member.registration) {
                    return Err(name_in_use(name, holder, member.last_seen, node));
                }
                earlier.member = Some(holder);
            }
        }
        Ok(earlier)
    }

    /// The member whose role and join order a pending node takes when it is accepted.
    fn predecessor(&self, pending: &PendingRequest) -> Option<&Member> {
        let awaited = Standing::Replaced { by: pending.registration.node, inherited: false };
        let earlier = pending.replaces.and_then(|old| self.members.get(&old));
        let named = || self.members.values().find(|member| member.standing == awaited);
        earlier.filter(|member| member.may_connect()).or_else(named)
    }
}

/// The nodes that a machine was before its latest installation.
#[derive(Debug, Default)]
struct EarlierInstallations {
    member: Option<NodeId>,
    pending: Vec<NodeId>,
}

fn holds_name(holder: &Registration, registration: &Registration) -> bool {
    holder.name == registration.name && holder.node != registration.node
}

fn is_later_installation(later: &Registration, earlier: &Registration) -> bool {
    match (later.enrollment, earlier.enrollment) {
        (Some(later), Some(earlier)) => {
            later.machine == earlier.machine && later.generation > earlier.generation
        }
        _ => false,
    }
}

fn name_in_use(
    name: &Name,
    holder: NodeId,
    last_seen: Timestamp,
    node: NodeId,
) -> MembershipRefusal {
    MembershipRefusal::NameInUse { name: name.clone(), holder, last_seen, node }
}

/// The answer to a node that was accepted before; none if it may ask to join again.
fn answer_to_known(member: &Member, registration: &Registration) -> Result<Option<Transition>> {
    let node = registration.node;
    let outcome = match member.standing {
        Standing::Left => return Ok(None),
        Standing::Replaced { by, .. } => return Err(MembershipRefusal::Replaced { node, by }),
        Standing::Accepted => accepted(member),
        Standing::Confirmed | Standing::Draining => Outcome::AlreadyMember,
    };
    if member.registration.key != registration.key {
        return Err(MembershipRefusal::OtherKey { node });
    }
    Ok(Some(Transition::unchanged(outcome)))
}

/// The superseded ids after a newer request of the same node; none if the request is the same.
fn superseded_by(
    earlier: &PendingRequest,
    registration: &Registration,
) -> Result<Option<Vec<RequestId>>> {
    let latest = earlier.registration.request;
    let request = registration.request;
    if request == latest {
        return Ok(None);
    }
    if earlier.superseded.contains(&request) {
        return Err(MembershipRefusal::Superseded { request, latest });
    }
    let mut superseded = earlier.superseded.clone();
    if superseded.len() == MAX_SUPERSEDED {
        superseded.remove(0);
    }
    superseded.push(latest);
    Ok(Some(superseded))
}

fn accepted(member: &Member) -> Outcome {
    Outcome::Accepted { join_order: member.join_order, serial: member.serial }
}

/// The present value; the counter goes on to the next one.
fn take(counter: &mut u64) -> u64 {
    let value = *counter;
    *counter += 1;
    value
}

fn with_standing(member: &Member, standing: Standing) -> Change {
    Change::Member(Box::new(Member { standing, ..member.clone() }))
}

/// Gives `member` the place of `old` in the cluster.
fn inherit(member: &mut Member, old: &Member) {
    member.join_order = old.join_order;
    member.assigned = old.assigned;
    member.registration.placement.clone_from(&old.registration.placement);
}
