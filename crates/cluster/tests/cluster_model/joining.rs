//! Two nodes join a cluster of two controllers with one store, and an agent carries out plans.
//!
//! A controller computes a transition from the store, and commits it later; the store compares.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use hoist_cluster::cluster_plan::{ClusterPlan, PlanReference, PlanRules, supersedes};
use hoist_cluster::id::{ClusterId, NodeId, Pin};
use hoist_cluster::membership::{
    Change, Claims, Counters, Membership, Outcome, Placement, Registration, RequestId, Transition,
};
use jiff::Timestamp;
use stateright::{Model, Property};

pub(crate) const ONE_PLACE_EACH: &str = "no two members have one place or one serial";
pub(crate) const ACCEPTED_ONCE: &str = "no node is accepted twice";
pub(crate) const ONE_CHAIN: &str = "no two plans have one generation";
pub(crate) const FORWARD_ONLY: &str = "no agent goes back to an older plan";

const CLUSTER: ClusterId = ClusterId::from_random([1; 16]);
const NODES: u8 = 2;
const CONTROLLERS: usize = 2;
const MAX_PLANS: usize = 3;

/// A rule that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    CommitWithoutCompare,
    PlanWithoutParent,
    AgentTakesAnyPlan,
}

#[derive(Debug, Clone)]
pub(crate) struct Joining {
    pub(crate) mutant: Option<Mutant>,
}

/// A plan with its reference, so that the checker does not compute it for every state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredPlan {
    plan: ClusterPlan,
    reference: PlanReference,
}

impl From<ClusterPlan> for StoredPlan {
    fn from(plan: ClusterPlan) -> Self {
        let reference = plan.reference();
        Self { plan, reference }
    }
}

impl Hash for StoredPlan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.reference.hash(state);
    }
}

/// The work of a controller between reading the store and committing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Draft {
    Members { read: Counters, transition: Transition },
    Plan(StoredPlan),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    membership: Membership,
    plans: Vec<StoredPlan>,
    drafts: [Option<Draft>; CONTROLLERS],
    /// Per node, how often a commit accepted it.
    acceptances: [u8; NODES as usize],
    applied: Option<PlanReference>,
    went_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Register(u8),
    Accept(u8),
    Confirm(u8),
    Plan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A controller reads the store and computes the effect of a step.
    Prepare {
        controller: usize,
        step: Step,
    },
    Commit(usize),
    /// A plan arrives at the agent, perhaps late or again.
    Offer(usize),
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
        name: format!("n{index}").parse().expect("a name"),
        enrollment: None,
        claims: Claims::default(),
        placement: Placement::default(),
    }
}

impl State {
    fn prepare(&self, step: Step) -> Option<Draft> {
        let now = Timestamp::UNIX_EPOCH;
        let members = &self.membership;
        let transition = match step {
            Step::Register(index) => members.register(&registration(index), now),
            Step::Accept(index) => members.accept(node(index), request(index), now),
            Step::Confirm(index) => members.confirm(node(index), now),
            Step::Plan => {
                let current = self.plans.last();
                let parent = current.map(|current| current.reference.hash);
                let current = current.map(|current| &current.plan);
                let rules = PlanRules::default();
                let next = ClusterPlan::next(CLUSTER, current, parent, members, &rules);
                return next.ok().flatten().map(|plan| Draft::Plan(plan.into()));
            }
        };
        let transition = transition.ok().filter(|transition| !transition.changes.is_empty())?;
        Some(Draft::Members { read: members.counters, transition })
    }

    fn commit_members(&mut self, transition: &Transition) {
        if let Outcome::Accepted { .. } = transition.outcome {
            for change in &transition.changes {
                let Change::Member(member) = change else { continue };
                for index in 0..NODES {
                    if member.registration.node == node(index) {
                        self.acceptances[usize::from(index)] += 1;
                    }
                }
            }
        }
        self.membership = std::mem::take(&mut self.membership).with(&transition.changes);
    }

    /// Places and serials that more than one member has.
    fn has_duplicates(&self) -> bool {
        let members = self.membership.members.values();
        let places: BTreeSet<u64> = members.clone().map(|member| member.join_order).collect();
        let serials: BTreeSet<u64> = members.map(|member| member.serial).collect();
        places.len().min(serials.len()) < self.membership.members.len()
    }
}

impl Model for Joining {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let joins = (0..NODES)
            .flat_map(|index| [Step::Register(index), Step::Accept(index), Step::Confirm(index)]);
        let steps: Vec<Step> = joins.chain([Step::Plan]).collect();
        for (controller, draft) in state.drafts.iter().enumerate() {
            if draft.is_some() {
                actions.push(Action::Commit(controller));
            } else {
                let prepare = |step: &Step| Action::Prepare { controller, step: *step };
                actions.extend(steps.iter().map(prepare));
            }
        }
        actions.extend((0..state.plans.len()).map(Action::Offer));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Prepare { controller, step } => {
                state.drafts[controller] = Some(state.prepare(step)?);
            }
            Action::Commit(controller) => match state.drafts[controller].take()? {
                Draft::Members { read, transition } => {
                    let is_current = read == state.membership.counters;
                    if is_current || self.mutant == Some(Mutant::CommitWithoutCompare) {
                        state.commit_members(&transition);
                    }
                }
                Draft::Plan(plan) => {
                    let current = state.plans.last().map(|current| current.reference.hash);
                    let is_current = current == plan.plan.parent;
                    if is_current || self.mutant == Some(Mutant::PlanWithoutParent) {
                        state.plans.push(plan);
                    }
                }
            },
            Action::Offer(index) => {
                let offered = state.plans[index].reference;
                let takes = supersedes(CLUSTER, state.applied.as_ref(), &offered);
                if takes != Ok(true) && self.mutant != Some(Mutant::AgentTakesAnyPlan) {
                    return None;
                }
                let applied = state.applied.map_or(0, |applied| applied.generation);
                state.went_back |= offered.generation < applied;
                state.applied = Some(offered);
            }
        }
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.plans.len() <= MAX_PLANS
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_PLACE_EACH, |_, state: &State| !state.has_duplicates()),
            Property::always(ACCEPTED_ONCE, |_, state: &State| {
                state.acceptances.iter().all(|count| *count <= 1)
            }),
            Property::always(ONE_CHAIN, |_, state: &State| {
                state.plans.windows(2).all(|pair| {
                    pair[1].reference.generation == pair[0].reference.generation + 1
                        && pair[1].plan.parent == Some(pair[0].reference.hash)
                })
            }),
            Property::always(FORWARD_ONLY, |_, state: &State| !state.went_back),
            Property::sometimes("both nodes have a role", |_, state: &State| {
                let last = state.plans.last();
                last.is_some_and(|plan| plan.plan.roles.len() == usize::from(NODES))
            }),
        ]
    }
}
