use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(index: u8) -> NodeId {
    NodeId::of_key(&[index])
}

fn request(index: u8) -> RequestId {
    RequestId::from_random([index; 16])
}

fn registration(index: u8) -> Registration {
    Registration {
        node: node(index),
        request: request(index),
        key: Pin::of_key(&[index]),
        name: format!("n{index}").parse().unwrap(),
        enrollment: None,
        claims: Claims::default(),
        placement: Placement::default(),
    }
}

/// A cluster that changes by its operations only.
#[derive(Debug, Clone, Default)]
struct Cluster(Membership);

impl Cluster {
    fn take_in(
        &mut self,
        transition: Result<Transition, MembershipRefusal>,
    ) -> Result<Outcome, MembershipRefusal> {
        let transition = transition?;
        self.0 = std::mem::take(&mut self.0).with(&transition.changes);
        Ok(transition.outcome)
    }

    fn register(&mut self, registration: &Registration) -> Result<Outcome, MembershipRefusal> {
        self.take_in(self.0.register(registration, at(100)))
    }

    fn accept(&mut self, index: u8) -> Result<Outcome, MembershipRefusal> {
        self.take_in(self.0.accept(node(index), request(index), at(200)))
    }

    fn join(&mut self, index: u8) {
        self.register(&registration(index)).unwrap();
        self.accept(index).unwrap();
        self.take_in(self.0.confirm(node(index), at(300))).unwrap();
    }

    fn state(&self, index: u8, second: i64) -> Option<NodeState> {
        self.0.state(node(index), at(second))
    }

    fn join_order(&self, index: u8) -> u64 {
        self.0.members[&node(index)].join_order
    }

    fn generation(&self) -> u64 {
        self.0.counters.generation
    }
}

fn message(result: Result<Outcome, MembershipRefusal>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn join_passes_through_its_states() {
    let mut cluster = Cluster::default();
    assert_eq!(cluster.state(1, 0), None);
    assert_eq!(cluster.register(&registration(1)), Ok(Outcome::Pending { arrival: 1 }));
    assert_eq!((cluster.state(1, 100), cluster.generation()), (Some(NodeState::Pending), 0));
    let accepted = Outcome::Accepted { join_order: 1, serial: 1 };
    assert_eq!(cluster.accept(1), Ok(accepted));
    assert_eq!((cluster.state(1, 1999), cluster.generation()), (Some(NodeState::Accepted), 1));
    assert_eq!(cluster.state(1, 2000), Some(NodeState::Stalled));
    assert_eq!(cluster.register(&registration(1)), Ok(accepted), "the answer was lost");
    assert!(!cluster.0.members[&node(1)].is_counted());
    cluster.take_in(cluster.0.confirm(node(1), at(300))).unwrap();
    assert_eq!(cluster.state(1, 9000), Some(NodeState::Member));
    assert_eq!(cluster.register(&registration(1)), Ok(Outcome::AlreadyMember));
    assert_eq!(cluster.generation(), 1);
    cluster.take_in(cluster.0.drain(node(1))).unwrap();
    assert_eq!(cluster.state(1, 9000), Some(NodeState::Draining));
    cluster.take_in(cluster.0.leave(node(1))).unwrap();
    assert_eq!((cluster.state(1, 9000), cluster.generation()), (Some(NodeState::Left), 2));
}

#[test]
fn newer_request_keeps_the_place_of_the_older_one() {
    let mut cluster = Cluster::default();
    cluster.register(&registration(1)).unwrap();
    cluster.register(&registration(2)).unwrap();
    let newer = Registration { request: request(9), ..registration(1) };
    assert_eq!(cluster.register(&newer), Ok(Outcome::Pending { arrival: 1 }));
    assert_eq!(cluster.register(&newer), Ok(Outcome::Pending { arrival: 1 }));
    assert!(message(cluster.register(&registration(1))).contains("superseded by 0909"));
    assert!(message(cluster.accept(1)).contains("superseded by 0909"));
    cluster.take_in(cluster.0.accept(node(1), request(9), at(200))).unwrap();
}

#[test]
fn name_in_use_names_its_holder() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    let other = Registration { name: "n1".parse().unwrap(), ..registration(2) };
    let expected = format!(
        "name `n1` is in use by node {}, last seen 1970-01-01T00:05:00Z; rename the new node, or \
         run `hoist cluster replace {} {}` if it takes the place of the old one",
        node(1).short(),
        node(1).short(),
        node(2).short()
    );
    assert_eq!(message(cluster.register(&other)), expected);
    let pending = Registration { name: "n9".parse().unwrap(), ..registration(3) };
    cluster.register(&pending).unwrap();
    assert!(message(cluster.register(&registration(9))).contains("name `n9` is in use"));
}

#[test]
fn known_node_with_another_key_is_refused() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    let copy = Registration { key: Pin::of_key(b"other"), ..registration(1) };
    assert!(message(cluster.register(&copy)).contains("hoist identity reset"));
}

#[test]
fn expelled_node_never_returns() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    cluster.register(&registration(2)).unwrap();
    for index in [1, 2, 1] {
        cluster.take_in(cluster.0.expel(node(index), at(400))).unwrap();
    }
    assert_eq!(cluster.generation(), 2, "a pending node could not connect");
    for index in [1, 2] {
        assert_eq!(cluster.state(index, 500), Some(NodeState::Expelled));
        assert!(message(cluster.register(&registration(index))).contains("was expelled at"));
    }
    let replaced = cluster.take_in(cluster.0.replace(node(3), node(1)));
    assert!(message(replaced).contains("was expelled"));
    let stranger = cluster.take_in(cluster.0.expel(node(7), at(400)));
    assert!(message(stranger).contains("is not a member"));
}

#[test]
fn replacement_inherits_order_and_role() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    cluster.join(2);
    let old = cluster.0.members.get_mut(&node(1)).unwrap();
    old.assigned = Some(role::Role::Data);
    old.registration.placement.pin = Some(role::Role::Data);
    let replace = cluster.take_in(cluster.0.replace(node(1), node(3)));
    assert_eq!(replace, Ok(Outcome::AwaitsSuccessor));
    assert!(!cluster.0.may_connect(node(1)));
    assert!(message(cluster.register(&registration(1))).contains("was replaced by"));
    let successor = Registration { name: "n1".parse().unwrap(), ..registration(3) };
    cluster.register(&successor).unwrap();
    assert_eq!(cluster.accept(3), Ok(Outcome::Accepted { join_order: 1, serial: 3 }));
    let member = &cluster.0.members[&node(3)];
    assert_eq!(member.assigned, Some(role::Role::Data));
    assert_eq!(member.registration.placement.pin, Some(role::Role::Data));
    let again = cluster.take_in(cluster.0.replace(node(1), node(3)));
    assert_eq!(again, Ok(Outcome::Replaced));
    let other = cluster.take_in(cluster.0.replace(node(1), node(2)));
    assert!(message(other).contains("was replaced by"));
}

#[test]
fn replacement_by_a_member_moves_its_order() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    cluster.join(2);
    assert_eq!(cluster.take_in(cluster.0.replace(node(1), node(2))), Ok(Outcome::Replaced));
    assert_eq!(cluster.join_order(2), 1);
    cluster.join(3);
    assert_eq!(cluster.join_order(3), 3);
    let itself = cluster.take_in(cluster.0.replace(node(2), node(2)));
    assert_eq!(itself, Err(MembershipRefusal::SameNode));
}

#[test]
fn reinstalled_machine_replaces_itself_twice() {
    let machine = hoist_model::NodeId::from_bits(5);
    let installed = |index: u8, generation: u64| Registration {
        name: "web".parse().unwrap(),
        enrollment: Some(Enrollment { machine, generation }),
        ..registration(index)
    };
    let mut cluster = Cluster::default();
    cluster.register(&installed(1, 1)).unwrap();
    cluster.accept(1).unwrap();
    cluster.register(&installed(2, 2)).unwrap();
    // The second installation never got an answer.
    cluster.register(&installed(3, 3)).unwrap();
    assert_eq!(cluster.0.pending.len(), 1);
    assert_eq!(cluster.accept(3), Ok(Outcome::Accepted { join_order: 1, serial: 2 }));
    assert!(!cluster.0.may_connect(node(1)));
    assert!(message(cluster.register(&installed(2, 2))).contains("name `web` is in use"));
}

#[test]
fn withdrawn_numbers_are_not_used_again() {
    let mut cluster = Cluster::default();
    cluster.register(&registration(1)).unwrap();
    cluster.accept(1).unwrap();
    assert_eq!(cluster.take_in(cluster.0.withdraw(node(1))), Ok(Outcome::Withdrawn));
    assert_eq!(cluster.take_in(cluster.0.withdraw(node(1))), Ok(Outcome::NothingToWithdraw));
    assert_eq!(cluster.register(&registration(1)), Ok(Outcome::Pending { arrival: 2 }));
    assert_eq!(cluster.accept(1), Ok(Outcome::Accepted { join_order: 2, serial: 2 }));
    cluster.take_in(cluster.0.confirm(node(1), at(300))).unwrap();
    assert!(message(cluster.take_in(cluster.0.withdraw(node(1)))).contains("is a member"));
    let renewed = cluster.take_in(cluster.0.renew(node(1), Pin::of_key(b"new")));
    assert_eq!(renewed, Ok(Outcome::Renewed { serial: 3 }));
    cluster.take_in(Ok(cluster.0.restore())).unwrap();
    assert_eq!(cluster.0.counters.next_serial, 1004);
}

#[test]
fn member_with_state_drains_before_it_leaves() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    cluster.take_in(cluster.0.carry_out(node(1), role::Role::Data)).unwrap();
    assert!(message(cluster.take_in(cluster.0.leave(node(1)))).contains("drain it first"));
    cluster.take_in(cluster.0.drain(node(1))).unwrap();
    assert_eq!(cluster.take_in(cluster.0.leave(node(1))), Ok(Outcome::Left));
    assert_eq!(cluster.take_in(cluster.0.leave(node(1))), Ok(Outcome::Left));
}

#[test]
fn reissued_certificates_have_new_serials() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    let generation = cluster.generation();
    assert_eq!(cluster.take_in(cluster.0.reissue(node(1))), Ok(Outcome::Renewed { serial: 2 }));
    assert_eq!(cluster.0.members[&node(1)].registration.key, Pin::of_key(&[1]));
    assert_eq!(cluster.generation(), generation, "the same nodes may connect");
    assert!(cluster.0.reissue(node(2)).is_err());
}

#[test]
fn request_gets_only_a_free_name() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    cluster.register(&registration(2)).unwrap();
    let taken = cluster.take_in(cluster.0.name_request(node(2), "n1".parse().unwrap()));
    assert!(message(taken).contains("name `n1` is in use"));
    cluster.take_in(cluster.0.name_request(node(2), "web1".parse().unwrap())).unwrap();
    cluster.accept(2).unwrap();
    assert_eq!(cluster.0.members[&node(2)].registration.name.as_str(), "web1");
}

#[test]
fn placement_changes_without_a_new_generation() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    let generation = cluster.generation();
    let placement = Placement { pin: Some(role::Role::Data), ..Placement::default() };
    assert_eq!(cluster.take_in(cluster.0.place(node(1), placement.clone())), Ok(Outcome::Placed));
    assert_eq!(cluster.0.members[&node(1)].registration.placement, placement);
    assert_eq!(cluster.0.place(node(1), placement).unwrap().changes, []);
    assert_eq!(cluster.generation(), generation);
}

#[test]
fn flood_of_requests_stops_at_the_limit() {
    let mut cluster = Cluster::default();
    for index in 0..100 {
        cluster.register(&registration(index)).unwrap();
    }
    assert_eq!(cluster.register(&registration(100)), Err(MembershipRefusal::PendingFull));
    assert_eq!(cluster.register(&registration(5)), Ok(Outcome::Pending { arrival: 6 }));
    cluster.take_in(cluster.0.reject(node(5), request(5))).unwrap();
    assert_eq!(cluster.register(&registration(100)), Ok(Outcome::Pending { arrival: 101 }));
}

/// One operation on one of a few nodes.
#[derive(Debug, Clone, Copy)]
enum Step {
    Register { node: u8, request: u8 },
    Accept { node: u8, request: u8 },
    Reject { node: u8, request: u8 },
    Withdraw(u8),
    Confirm(u8),
    Drain(u8),
    Leave(u8),
    Expel(u8),
    Replace { old: u8, new: u8 },
    Renew { node: u8, key: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    (0_u8..12, 0_u8..4, 0_u8..4).prop_map(|(kind, node, other)| match kind {
        0 | 1 => Step::Register { node, request: other },
        2 | 3 => Step::Accept { node, request: other },
        4 => Step::Reject { node, request: other },
        5 => Step::Withdraw(node),
        6 | 7 => Step::Confirm(node),
        8 => Step::Drain(node),
        9 => Step::Leave(node),
        10 if other == 0 => Step::Expel(node),
        10 => Step::Replace { old: node, new: other },
        _ => Step::Renew { node, key: other },
    })
}

fn perform(membership: &Membership, step: Step) -> Result<Transition, MembershipRefusal> {
    let now = at(500);
    match step {
        Step::Register { node, request: id } => {
            membership.register(&Registration { request: request(id), ..registration(node) }, now)
        }
        Step::Accept { node: index, request: id } => {
            membership.accept(node(index), request(id), now)
        }
        Step::Reject { node: index, request: id } => membership.reject(node(index), request(id)),
        Step::Withdraw(index) => membership.withdraw(node(index)),
        Step::Confirm(index) => membership.confirm(node(index), now),
        Step::Drain(index) => membership.drain(node(index)),
        Step::Leave(index) => membership.leave(node(index)),
        Step::Expel(index) => membership.expel(node(index), now),
        Step::Replace { old, new } => membership.replace(node(old), node(new)),
        Step::Renew { node: index, key } => membership.renew(node(index), Pin::of_key(&[key])),
    }
}

fn connected(membership: &Membership) -> Vec<NodeId> {
    let ids = membership.members.iter().filter(|(_, member)| member.may_connect());
    ids.map(|(id, _)| *id).collect()
}

proptest! {
    #[test]
    fn every_history_keeps_the_rules(steps in prop::collection::vec(step(), 0..60)) {
        let mut membership = Membership::default();
        let mut serials = BTreeSet::new();
        for step in steps {
            let Ok(transition) = perform(&membership, step) else { continue };
            let before = membership.clone();
            membership = membership.with(&transition.changes);
            // Generations count the changes of the nodes that may connect.
            let rise = membership.counters.generation - before.counters.generation;
            if connected(&membership) != connected(&before) {
                prop_assert_eq!(rise, 1, "{:?}", step);
            }
            prop_assert!(rise <= 1);
            // Every change is noticed by operations that read the value before it.
            let revisions = membership.counters.revision - before.counters.revision;
            prop_assert_eq!(revisions, u64::from(!transition.changes.is_empty()));
            // Expelled nodes stay expelled.
            prop_assert!(before.expelled.keys().all(|id| membership.expelled.contains_key(id)));
            prop_assert!(membership.expelled.keys().all(|id| !membership.may_connect(*id)));
            // No two nodes that may connect have one place, one name or one serial.
            let members: Vec<&Member> =
                membership.members.values().filter(|member| member.may_connect()).collect();
            let distinct = |values: BTreeSet<String>| values.len() == members.len();
            prop_assert!(distinct(members.iter().map(|m| m.join_order.to_string()).collect()));
            prop_assert!(distinct(members.iter().map(|m| m.serial.to_string()).collect()));
            prop_assert!(distinct(members.iter().map(|m| m.registration.name.to_string()).collect()));
            // A serial is given once.
            for serial in before.counters.next_serial..membership.counters.next_serial {
                prop_assert!(serials.insert(serial));
            }
            // A repeated operation changes nothing, unless it removed the request it is about.
            match (perform(&membership, step), step) {
                (Ok(again), _) => prop_assert_eq!(again.changes, [], "{:?}", step),
                (Err(MembershipRefusal::NotPending(_)), Step::Reject { .. }) => {}
                (Err(refusal), _) => prop_assert!(false, "{:?}: {}", step, refusal),
            }
        }
    }

    #[test]
    fn concurrent_registrations_equal_sequential_ones(
        order in Just((0_u8..6).collect::<Vec<_>>()).prop_shuffle(),
        retries in prop::collection::vec(0_u8..6, 0..6),
    ) {
        let mut sequential = Cluster::default();
        for index in &order {
            sequential.register(&registration(*index)).unwrap();
        }
        // Each computes its transition from an old value, loses the comparison of the counters,
        // and tries again.
        let mut concurrent = Cluster::default();
        for index in &order {
            let stale = Membership::default().register(&registration(*index), at(100)).unwrap();
            let lost = concurrent.0.counters != Membership::default().counters;
            let transition = if lost {
                concurrent.0.register(&registration(*index), at(100))
            } else {
                Ok(stale)
            };
            concurrent.take_in(transition).unwrap();
        }
        for index in retries {
            concurrent.register(&registration(index)).unwrap();
        }
        prop_assert_eq!(concurrent.0, sequential.0);
    }
}
