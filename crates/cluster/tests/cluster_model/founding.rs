//! Two new machines in one network, each running `hoist bootstrap`.

use hoist_cluster::detection::{
    Answer, Decision, DiscoveryPath, DiskState, Flags, Inputs, Signature, decide,
};
use hoist_cluster::id::ClusterId;
use stateright::{Model, Property};

pub(crate) const ONE_FOUNDER: &str = "at most one founder";

const NODES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundingRule {
    /// Only the first node was told to found a cluster.
    OnlyWithConsent,
    /// The mistake: a node that sees no cluster founds one.
    AfterTimeout,
}

#[derive(Debug, Clone)]
pub(crate) struct Founding {
    pub(crate) rule: FoundingRule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Collects answers until the end of the window.
    Searching {
        heard: bool,
    },
    Founded,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Start(usize),
    /// The other node answers. In a partition this never happens.
    Answer(usize),
    /// The window of discovery ends.
    Timeout(usize),
}

impl Founding {
    fn decide(&self, node: usize, heard: bool) -> Phase {
        let yes = self.rule == FoundingRule::AfterTimeout || node == 0;
        let flags = Flags { yes, ..Flags::default() };
        let answer = Answer {
            cluster: ClusterId::from_random([1; 16]),
            name: "other".parse().expect("a name"),
            addresses: Vec::new(),
            signature: Signature::Unverified,
            path: DiscoveryPath::Multicast,
        };
        let answers = if heard { vec![answer] } else { Vec::new() };
        let disk = DiskState::None;
        let inputs =
            Inputs { flags: &flags, disk: &disk, config: None, answers: &answers, terminal: false };
        match decide(&inputs) {
            Decision::Found => Phase::Founded,
            _ => Phase::Stopped,
        }
    }
}

impl Model for Founding {
    type State = [Phase; NODES];
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![[Phase::Idle; NODES]]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            match state[node] {
                Phase::Idle | Phase::Stopped => actions.push(Action::Start(node)),
                Phase::Searching { heard } => {
                    if !heard && state[1 - node] == Phase::Founded {
                        actions.push(Action::Answer(node));
                    }
                    actions.push(Action::Timeout(node));
                }
                Phase::Founded => {}
            }
        }
    }

    fn next_state(&self, last: &Self::State, action: Action) -> Option<Self::State> {
        let mut state = *last;
        match action {
            Action::Start(node) => state[node] = Phase::Searching { heard: false },
            Action::Answer(node) => state[node] = Phase::Searching { heard: true },
            Action::Timeout(node) => {
                let Phase::Searching { heard } = state[node] else { return None };
                state[node] = self.decide(node, heard);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_FOUNDER, |_, state: &Self::State| founders_of(*state) <= 1),
            Property::sometimes("a cluster is founded", |_, state: &Self::State| {
                founders_of(*state) == 1
            }),
        ]
    }
}

fn founders_of(state: [Phase; NODES]) -> usize {
    state.iter().filter(|phase| **phase == Phase::Founded).count()
}
