//! The properties of the planner, P1 to P19 of its contract. P13 (bounds) is in `role`.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use super::assignment::Assignment;
use super::cost::Cost;
use super::*;

const SHARED: [Role; 4] = [Role::Edge, Role::Core, Role::Data, Role::Compute];

fn member(join_order: u64) -> Member {
    Member {
        id: MemberId(format!("n{join_order}")),
        join_order,
        resources: Resources {
            cores: 8,
            memory_gib: 32,
            disk_gib: 1000,
            network_mbps: 1000,
            gpus: 0,
        },
        preferred: None,
        pin: None,
        forbid: BTreeSet::new(),
        role: None,
        draining: false,
    }
}

fn policy(mode: Mode) -> Policy {
    Policy { mode, minima: BTreeMap::new() }
}

fn resources() -> impl Strategy<Value = Resources> {
    (0..40u64, 0..130u64, 0..2100u64, 0..30_000u64, 0..3u64).prop_map(
        |(cores, memory_gib, disk_gib, network_mbps, gpus)| Resources {
            cores,
            memory_gib,
            disk_gib,
            network_mbps,
            gpus,
        },
    )
}

fn shared_role() -> impl Strategy<Value = Role> {
    proptest::sample::select(SHARED.to_vec())
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Keep), Just(Mode::Rebalance)]
}

type Wishes = (Resources, Option<Role>, Option<Role>, BTreeSet<Role>);

/// Members that join one after the other; a few have wishes, pins and forbidden roles.
fn newcomers(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Member>> {
    let wishes = (
        resources(),
        option::weighted(0.3, shared_role()),
        option::weighted(0.1, shared_role()),
        prop_oneof![9 => Just(BTreeSet::new()), 1 => btree_set(shared_role(), 1..2)],
    );
    vec(wishes, count).prop_map(|wishes| {
        let place = |(index, (resources, preferred, pin, forbid)): (usize, Wishes)| Member {
            resources,
            preferred,
            pin: pin.filter(|pin| !forbid.contains(pin)),
            forbid,
            ..member(index as u64 + 1)
        };
        wishes.into_iter().enumerate().map(place).collect()
    })
}

/// Members without pins and forbidden roles.
fn plain_newcomers(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Member>> {
    newcomers(count).prop_map(|mut members| {
        for member in &mut members {
            member.pin = None;
            member.forbid.clear();
        }
        members
    })
}

/// The members with the roles that a plan gives them.
fn settled(members: &[Member], plan: &RolePlan) -> Vec<Member> {
    let mut members = members.to_vec();
    for member in &mut members {
        member.role = plan.roles.get(&member.id).copied();
    }
    members
}

/// The plan of members of whom none forbids all roles of an early cluster.
fn planned(members: &[Member], policy: &Policy) -> Option<RolePlan> {
    match plan(members, policy) {
        Ok(plan) => Some(plan),
        Err(PlanError::NoRoleAllowed { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The whole cost of these roles, or none if one of them is not allowed.
fn cost_of(members: &[Member], roles: &[Role], policy: &Policy) -> Option<Cost> {
    let count = members.len();
    let mut sum = Cost::default();
    for (join_rank, (member, role)) in (0..).zip(members.iter().zip(roles)) {
        sum = sum + Cost::of_role(member, join_rank, *role, count, policy)?;
    }
    for role in Role::in_play(count) {
        let holders = roles.iter().filter(|other| *other == role).count();
        let before = members.iter().filter(|member| member.role == Some(*role)).count();
        for place in 1..=holders {
            sum = sum + Cost::of_slot(*role, place, before, count, policy.mode);
        }
    }
    Some(sum)
}

/// The least cost of all assignments there are.
fn least_cost(members: &[Member], policy: &Policy) -> Option<Cost> {
    let in_play = Role::in_play(members.len());
    let all = in_play.len().pow(u32::try_from(members.len()).unwrap());
    let assignment = |mut number: usize| -> Vec<Role> {
        let digit = |_| {
            let role = in_play[number % in_play.len()];
            number /= in_play.len();
            role
        };
        (0..members.len()).map(digit).collect()
    };
    (0..all).filter_map(|number| cost_of(members, &assignment(number), policy)).min()
}

#[test]
fn first_members_become_monolith_edge_core_data_compute() {
    let mut members: Vec<Member> = Vec::new();
    let expected: [&[Role]; 4] = [&[Role::Monolith], &SHARED[..2], &SHARED[..3], &SHARED];
    for (join_order, roles) in (1..).zip(expected) {
        let mut newcomer = member(join_order);
        newcomer.resources.disk_gib = 100;
        members.push(newcomer);
        let plan = plan(&members, &Policy::default()).unwrap();
        members = settled(&members, &plan);
        let found: Vec<Role> = members.iter().filter_map(|member| member.role).collect();
        assert_eq!(found, roles);
        assert!(!plan.is_refused() && plan.below.is_empty(), "{plan:?}");
        assert_eq!(plan.scale, Scale::of(members.len()));
    }
}

#[test]
fn reasons_tell_why_each_member_has_its_role() {
    let mut members: Vec<Member> = (1..=4).map(member).collect();
    members[3].preferred = Some(Role::Data);
    members[3].resources.disk_gib = 20;
    let plan = plan(&members, &Policy::default()).unwrap();
    let first = |name: &str| plan.reasons[&MemberId(name.into())][0].clone();
    assert_eq!(first("n1"), Reason::RoleNotInPlay { from: Role::Monolith });
    assert_eq!(first("n2"), Reason::CoversRequired);
    assert!(matches!(first("n4"), Reason::BestFit { .. }), "{:?}", first("n4"));
    let because = Obstacle::Undersized;
    let unmet = Reason::PreferenceNotMet { preferred: Role::Data, because };
    assert!(plan.reasons[&MemberId("n4".into())].contains(&unmet));
}

#[test]
fn plan_that_leaves_a_required_role_without_member_is_refused() {
    let mut members: Vec<Member> = (1..=3).map(member).collect();
    for member in &mut members {
        member.pin = Some(Role::Edge);
    }
    let plan = plan(&members, &Policy::default()).unwrap();
    assert!(plan.is_refused());
    assert_eq!(plan.uncovered, [Role::Core, Role::Data]);
}

#[test]
fn contradictory_members_are_errors() {
    let twice = [member(1), member(1)];
    let same_place = [member(1), Member { id: MemberId("x".into()), ..member(1) }];
    let pin = Some(Role::Data);
    let forbid = BTreeSet::from([Role::Data]);
    let contradiction = [Member { pin, forbid, ..member(1) }];
    let no_monolith = [Member { forbid: BTreeSet::from([Role::Monolith]), ..member(1) }];
    let no_role = [member(1), Member { forbid: BTreeSet::from(SHARED), ..member(2) }];
    let error = |members: &[Member]| plan(members, &Policy::default()).unwrap_err().to_string();
    assert_eq!(error(&twice), "two members have the id `n1`");
    assert_eq!(
        error(&same_place),
        "members `n1` and `x` have the same place in the order of joining"
    );
    assert_eq!(error(&contradiction), "member `n1` is pinned to `data` and forbids it");
    assert_eq!(
        error(&no_monolith),
        "member `n1` forbids `monolith`, the only role of a cluster of one"
    );
    assert_eq!(error(&no_role), "member `n2` forbids every role of a cluster of 2");
}

#[test]
fn role_gets_its_new_member_before_the_old_one_leaves() {
    // A third member pinned to `core` pushes the old one out of it.
    let mut members: Vec<Member> = (1..=2).map(member).collect();
    let two = plan(&members, &Policy::default()).unwrap();
    members = settled(&members, &two);
    members.push(Member { pin: Some(Role::Core), ..member(3) });
    let plan = plan(&members, &Policy::default()).unwrap();
    assert_eq!(plan.uncovered, []);
    assert_eq!(plan.moves.len(), 1, "{plan:?}");
    assert_eq!((plan.moves[0].from, plan.moves[0].to), (Role::Core, Role::Data));
    assert!(plan.moves[0].needs_drain);
}

proptest! {
    /// P1, P2: the plan is a function of the members, in whatever order they are listed.
    #[test]
    fn order_of_the_list_does_not_matter(
        members in newcomers(0..12).prop_flat_map(|m| (Just(m.clone()), Just(m).prop_shuffle())),
        mode in mode(),
    ) {
        let (listed, shuffled) = members;
        let policy = policy(mode);
        prop_assert_eq!(plan(&listed, &policy), plan(&listed, &policy));
        prop_assert_eq!(plan(&listed, &policy).ok(), plan(&shuffled, &policy).ok());
    }

    /// P3: only the order of joining counts, not the names.
    #[test]
    fn names_do_not_matter(members in newcomers(0..12), mode in mode()) {
        let policy = policy(mode);
        let mut renamed = members.clone();
        for member in &mut renamed {
            member.id = MemberId(format!("x{}", 1000 - member.join_order));
        }
        let roles = |members: &[Member]| -> Option<Vec<Role>> {
            let plan = planned(members, &policy)?;
            Some(members.iter().map(|member| plan.roles[&member.id]).collect())
        };
        prop_assert_eq!(roles(&members), roles(&renamed));
    }

    /// P4: a plan that was carried out needs no change.
    #[test]
    fn plan_of_its_own_result_changes_nothing(members in newcomers(0..14), mode in mode()) {
        let policy = policy(mode);
        if let Some(first) = planned(&members, &policy) {
            let second = plan(&settled(&members, &first), &policy).unwrap();
            prop_assert_eq!(second.moves, vec![]);
            prop_assert_eq!(second.roles, first.roles);
        }
    }

    /// P5, P7: every member has one role in play; pins and forbidden roles hold.
    #[test]
    fn pins_and_forbidden_roles_hold(members in newcomers(0..14), mode in mode()) {
        if let Some(plan) = planned(&members, &policy(mode)) {
            let in_play = Role::in_play(members.len());
            prop_assert_eq!(plan.roles.len(), members.len());
            for member in &members {
                let role = plan.roles[&member.id];
                prop_assert!(in_play.contains(&role) && !member.forbid.contains(&role));
                if let Some(pin) = member.pin {
                    let is_deferred = plan.deferred.get(&member.id) == Some(&pin);
                    let holds = if in_play.contains(&pin) { pin == role } else { is_deferred };
                    prop_assert!(holds);
                }
            }
        }
    }

    /// P6, P14: of all assignments the plan's has the least cost, also where members have roles.
    /// Uncovered roles are the first part of the cost: what can be covered, is.
    #[test]
    fn assignment_is_as_cheap_as_the_best_of_all(
        members in newcomers(2..7),
        roles in vec(option::weighted(0.7, shared_role()), 6),
        mode in mode(),
    ) {
        let policy = policy(mode);
        let mut members = members;
        for (member, role) in members.iter_mut().zip(roles) {
            member.role = role;
        }
        let best = Assignment::best(&members, &policy).ok();
        let cost = best.and_then(|best| cost_of(&members, &best.into_roles(), &policy));
        prop_assert_eq!(cost, least_cost(&members, &policy));
    }

    /// P8, P9, P10: a join moves no member from three members on, a leave moves at most one.
    #[test]
    fn joins_and_leaves_move_hardly_anybody(
        newcomers in plain_newcomers(1..60),
        leaves in vec(option::weighted(0.4, 0..60usize), 60),
    ) {
        let policy = Policy::default();
        let mut members: Vec<Member> = Vec::new();
        for (newcomer, leave) in newcomers.into_iter().zip(leaves) {
            members.push(newcomer);
            let joined = plan(&members, &policy).unwrap();
            prop_assert!(members.len() < 4 || joined.moves.is_empty(), "{:?}", joined.moves);
            members = settled(&members, &joined);
            if let Some(leave) = leave.filter(|_| members.len() > 1) {
                members.remove(leave % members.len());
                let left = plan(&members, &policy).unwrap();
                prop_assert!(left.moves.len() <= 1, "{:?}", left.moves);
                members = settled(&members, &left);
            }
        }
    }

    /// P11: with `rebalance`, a join moves three members at most, and none out of `data`.
    #[test]
    fn rebalancing_join_moves_three_members_at_most(newcomers in plain_newcomers(4..20)) {
        let policy = policy(Mode::Rebalance);
        let mut members: Vec<Member> = Vec::new();
        for newcomer in newcomers {
            members.push(newcomer);
            let joined = plan(&members, &policy).unwrap();
            prop_assert!(joined.moves.len() <= 3, "{:?}", joined.moves);
            prop_assert!(joined.moves.iter().all(|m| m.from != Role::Data));
            members = settled(&members, &joined);
        }
    }

    /// P12: a newcomer gets the role it prefers, if it fits, the role has room, and the other
    /// roles have their members.
    #[test]
    fn preference_is_honoured_where_it_costs_nothing(
        members in plain_newcomers(4..14),
        preferred in shared_role(),
    ) {
        let policy = Policy::default();
        let (newcomer, present) = members.split_last().unwrap();
        let present = settled(present, &plan(present, &policy).unwrap());
        let newcomer = Member { preferred: Some(preferred), ..newcomer.clone() };
        let count = present.len() + 1;
        let holders = |role: Role| present.iter().filter(|m| m.role == Some(role)).count();
        let others = SHARED.into_iter().filter(|role| *role != preferred);
        let others_have_members =
            others.into_iter().all(|role| holders(role) >= role.bounds(count).lower);
        let has_room = holders(preferred) < preferred.bounds(count).upper;
        let fits = newcomer.resources.reach(&preferred.minimum());
        let id = newcomer.id.clone();
        let mut all = present;
        all.push(newcomer);
        let plan = plan(&all, &policy).unwrap();
        if others_have_members && has_room && fits {
            prop_assert_eq!(plan.roles[&id], preferred);
        }
    }

    /// P15: one new pin moves three members at most.
    #[test]
    fn new_pin_moves_three_members_at_most(
        members in plain_newcomers(4..20),
        index in 0..20usize,
        pin in shared_role(),
    ) {
        let policy = Policy::default();
        let mut members = settled(&members, &plan(&members, &policy).unwrap());
        let index = index % members.len();
        members[index].pin = Some(pin);
        let plan = plan(&members, &policy).unwrap();
        prop_assert!(plan.moves.len() <= 3, "{:?}", plan.moves);
    }

    /// P16: more resources of the same order of magnitude, above the same minima, change nothing.
    #[test]
    fn small_changes_of_resources_change_nothing(
        members in plain_newcomers(1..14),
        index in 0..14usize,
        mode in mode(),
    ) {
        let policy = policy(mode);
        let mut changed = members.clone();
        let resources = &mut changed[index % members.len()].resources;
        for value in [&mut resources.cores, &mut resources.memory_gib, &mut resources.network_mbps] {
            *value = (*value + 1).next_power_of_two() - 1;
        }
        let before = members[index % members.len()].resources;
        let same_minima = SHARED
            .iter()
            .all(|role| before.reach(&role.minimum()) == resources.reach(&role.minimum()));
        if same_minima {
            let roles = |members: &[Member]| plan(members, &policy).unwrap().roles;
            prop_assert_eq!(roles(&members), roles(&changed));
        }
    }

    /// P17 holds by the type: a member has no liveness. A draining member is absent.
    #[test]
    fn draining_member_is_planned_as_absent(members in newcomers(2..12), index in 0..12usize) {
        let mut draining = members.clone();
        let index = index % members.len();
        draining[index].draining = true;
        let mut absent = members;
        absent.remove(index);
        let policy = Policy::default();
        prop_assert_eq!(plan(&draining, &policy).ok(), plan(&absent, &policy).ok());
    }

    /// P18: no number makes the planner panic.
    #[test]
    fn planner_survives_any_numbers(
        numbers in vec((any::<u64>(), any::<[u64; 5]>(), option::of(shared_role())), 0..20),
        mode in mode(),
    ) {
        let of = |(join_order, numbers, role): (u64, [u64; 5], Option<Role>)| {
            let [cores, memory_gib, disk_gib, network_mbps, gpus] = numbers;
            let resources = Resources { cores, memory_gib, disk_gib, network_mbps, gpus };
            Member { resources, role, ..member(join_order) }
        };
        let members: Vec<Member> = numbers.into_iter().map(of).collect();
        let _ = plan(&members, &policy(mode));
    }

    /// P19: batches of joins lead to the same roles as one join after the other.
    #[test]
    fn batches_of_joins_do_not_matter(
        members in newcomers(1..16),
        cuts in btree_set(1..16usize, 0..6),
        mode in mode(),
    ) {
        let policy = policy(mode);
        let at_once = planned(&members, &policy).map(|plan| plan.roles);
        let mut present: Vec<Member> = Vec::new();
        let mut batched = Some(BTreeMap::new());
        let ends = cuts.into_iter().filter(|cut| *cut < members.len()).chain([members.len()]);
        let mut start = 0;
        for end in ends {
            present.extend_from_slice(&members[start..end]);
            start = end;
            let Some(plan) = planned(&present, &policy) else {
                batched = None;
                break;
            };
            present = settled(&present, &plan);
            batched = Some(plan.roles);
        }
        prop_assert_eq!(at_once, batched);
    }
}
