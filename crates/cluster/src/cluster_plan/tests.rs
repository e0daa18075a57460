use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::id::Pin;
use crate::membership::{Claims, Placement, Registration, RequestId};

const CLUSTER: ClusterId = ClusterId::from_random([1; 16]);

fn node(index: u8) -> NodeId {
    NodeId::of_key(&[index])
}

fn join(membership: Membership, index: u8, placement: Placement) -> Membership {
    let request = RequestId::from_random([index; 16]);
    let registration = Registration {
        node: node(index),
        request,
        key: Pin::of_key(&[index]),
        name: format!("n{index}").parse().unwrap(),
        enrollment: None,
        claims: Claims::default(),
        placement,
    };
    let now = Timestamp::UNIX_EPOCH;
    let changes = membership.register(&registration, now).unwrap().changes;
    let membership = membership.with(&changes);
    let changes = membership.accept(node(index), request, now).unwrap().changes;
    let membership = membership.with(&changes);
    let changes = membership.confirm(node(index), now).unwrap().changes;
    membership.with(&changes)
}

fn members(count: u8) -> Membership {
    (1..=count).fold(Membership::default(), |m, index| join(m, index, Placement::default()))
}

fn next(
    current: Option<&ClusterPlan>,
    membership: &Membership,
) -> Result<Option<ClusterPlan>, PlanRefusal> {
    let parent = current.map(ClusterPlan::hash);
    ClusterPlan::next(CLUSTER, current, parent, membership, &PlanRules::default())
}

/// Every member carries its role out.
fn carried_out(mut membership: Membership, plan: &ClusterPlan) -> Membership {
    for (node, role) in &plan.roles {
        if let PlannedRole::Automatic(role) = role {
            let changes = membership.carry_out(*node, *role).unwrap().changes;
            membership = membership.with(&changes);
        }
    }
    membership
}

fn role(plan: &ClusterPlan, index: u8) -> String {
    match &plan.roles[&node(index)] {
        PlannedRole::Declared(role) => role.to_string(),
        PlannedRole::Automatic(role) => role.to_string(),
    }
}

#[test]
fn plans_form_a_chain_of_generations() {
    let membership = members(1);
    let first = next(None, &membership).unwrap().unwrap();
    assert_eq!((first.generation, first.parent, role(&first, 1)), (1, None, "monolith".into()));
    let membership = carried_out(membership, &first);
    assert_eq!(next(Some(&first), &membership), Ok(None));
    let membership = join(membership, 2, Placement::default());
    let second = next(Some(&first), &membership).unwrap().unwrap();
    assert_eq!((second.generation, second.parent), (2, Some(first.hash())));
    assert_eq!((role(&second, 1), role(&second, 2)), ("edge".into(), "core".into()));
    assert_eq!(second.moves[0].from, Role::Monolith);
    assert_eq!(next(Some(&second), &carried_out(membership, &second)), Ok(None));
}

/// Nodes that join within seconds: none has reported before the next one joins.
#[test]
fn order_in_which_roles_are_carried_out_changes_no_role() {
    let mut plan = None;
    for count in 1..=3 {
        plan = Some(next(plan.as_ref(), &members(count)).unwrap().unwrap());
    }
    let plan = plan.unwrap();
    let roles = [1, 2, 3].map(|index| role(&plan, index));
    assert_eq!(roles, ["edge", "core", "data"]);
    for first in 1..=3 {
        let PlannedRole::Automatic(planned) = plan.roles[&node(first)] else { panic!("{plan:?}") };
        let membership = members(3);
        let changes = membership.carry_out(node(first), planned).unwrap().changes;
        assert_eq!(next(Some(&plan), &membership.with(&changes)), Ok(None), "n{first} is first");
    }
}

#[test]
fn plan_from_an_older_parent_is_refused() {
    let first = next(None, &members(1)).unwrap().unwrap();
    let membership = carried_out(members(2), &first);
    let second = next(Some(&first), &membership).unwrap().unwrap();
    let rules = PlanRules::default();
    for parent in [None, Some(first.hash())] {
        let stale = ClusterPlan::next(CLUSTER, Some(&second), parent, &membership, &rules);
        assert_eq!(stale, Err(PlanRefusal::StaleParent { generation: 2 }));
    }
    let older = next(Some(&second), &members(1));
    assert_eq!(older, Err(PlanRefusal::StaleMembership { offered: 1, planned: 2 }));
    let other = ClusterId::from_random([2; 16]);
    let foreign = ClusterPlan::next(other, Some(&second), Some(second.hash()), &membership, &rules);
    assert_eq!(foreign, Err(PlanRefusal::ForeignCluster(CLUSTER)));
}

#[test]
fn declared_roles_bypass_the_planner() {
    let declared = Placement { declared: Some("login".parse().unwrap()), ..Placement::default() };
    let membership = join(members(1), 2, declared);
    let plan = next(None, &membership).unwrap().unwrap();
    assert_eq!((role(&plan, 1), role(&plan, 2)), ("monolith".into(), "login".into()));
    assert_eq!(plan.scale, Scale::Single);
    let rules = PlanRules { assignment: Assignment::Declared, ..PlanRules::default() };
    let plan = ClusterPlan::next(CLUSTER, None, None, &membership, &rules).unwrap().unwrap();
    assert_eq!(plan.held, [(node(1), HoldReason::NotDeclared)].into());
    assert_eq!(role(&plan, 2), "login");
}

#[test]
fn newcomer_without_a_possible_role_is_held() {
    let only = |role| Placement { pin: Some(role), ..Placement::default() };
    let membership = join(Membership::default(), 1, only(Role::Core));
    let first = next(None, &membership).unwrap().unwrap();
    let membership = join(carried_out(membership, &first), 2, only(Role::Core));
    let second = next(Some(&first), &membership).unwrap().unwrap();
    assert_eq!(second.held, [(node(2), HoldReason::Unplaceable)].into());
    assert_eq!(role(&second, 1), "monolith");
    let everything = Placement { forbid: Role::SHARED.into(), ..Placement::default() };
    let membership = join(members(2), 3, everything);
    let plan = next(None, &membership).unwrap().unwrap();
    assert_eq!(plan.held, [(node(3), HoldReason::Unplaceable)].into());
}

#[test]
fn unconfirmed_and_draining_nodes_get_no_role() {
    let membership = members(2);
    let changes = membership.drain(node(2)).unwrap().changes;
    let membership = membership.with(&changes);
    let plan = next(None, &membership).unwrap().unwrap();
    assert_eq!(plan.roles.len(), 1);
    assert_eq!(plan.scale, Scale::Single);
}

#[test]
fn hash_does_not_depend_on_the_order_of_keys() {
    let plan = next(None, &members(3)).unwrap().unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    let Value::Object(object) = json else { panic!("a plan is an object") };
    let reversed: serde_json::Map<_, _> = object.into_iter().rev().collect();
    let text = serde_json::to_string(&reversed).unwrap();
    let read: ClusterPlan = serde_json::from_str(&text).unwrap();
    assert_eq!((read.hash(), &read), (plan.hash(), &plan));
    let mut text = String::new();
    write_canonical(&serde_json::json!({"b": [1, null], "a": "é\"\n"}), &mut text);
    assert_eq!(text, "{\"a\":\"é\\\"\\n\",\"b\":[1,null]}");
    let changed = ClusterPlan { generation: 2, ..plan.clone() };
    assert_ne!(changed.hash(), plan.hash());
}

#[test]
fn agents_refuse_older_and_foreign_plans() {
    let hash = |byte| PlanHash([byte; 32]);
    let plan = |generation, byte| PlanReference { cluster: CLUSTER, generation, hash: hash(byte) };
    let applied = plan(5, 1);
    assert_eq!(supersedes(CLUSTER, None, &plan(1, 1)), Ok(true));
    assert_eq!(supersedes(CLUSTER, Some(&applied), &plan(6, 2)), Ok(true));
    assert_eq!(supersedes(CLUSTER, Some(&applied), &applied), Ok(false));
    let older = OfferRefusal::Older { offered: 4, applied: 5 };
    assert_eq!(supersedes(CLUSTER, Some(&applied), &plan(4, 1)), Err(older));
    let conflict = OfferRefusal::Conflicting(5);
    assert_eq!(supersedes(CLUSTER, Some(&applied), &plan(5, 2)), Err(conflict));
    let foreign = PlanReference { cluster: ClusterId::from_random([2; 16]), ..plan(9, 1) };
    assert!(matches!(
        supersedes(CLUSTER, Some(&applied), &foreign),
        Err(OfferRefusal::ForeignCluster { .. })
    ));
}

proptest! {
    #[test]
    fn planning_again_changes_nothing(count in 1_u8..12) {
        let membership = members(count);
        let plan = next(None, &membership).unwrap().unwrap();
        prop_assert_eq!(next(None, &membership).unwrap().unwrap().hash(), plan.hash());
        prop_assert_eq!(plan.roles.len(), usize::from(count));
        prop_assert_eq!(next(Some(&plan), &carried_out(membership, &plan)), Ok(None));
    }
}
