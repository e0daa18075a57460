//! Nodes that were installed, removed, and come back: they are still installed.

use std::collections::HashMap;

use hoist_model::{BootState, Mac, Node, NodeId, RemovedMachine, Xname};

use super::draft::Draft;

/// Removed nodes that are remembered as installed; beyond that, the oldest are forgotten.
pub(super) const MAX_GONE: usize = 10_000;

pub(super) fn machine(node: &Node) -> RemovedMachine {
    let macs = node.spec.interfaces.iter().map(|interface| interface.mac);
    RemovedMachine { xname: node.spec.xname, macs: macs.collect() }
}

/// What remains of the boot state of a node that is removed.
pub(super) fn kept(state: &BootState, machine: RemovedMachine) -> Option<BootState> {
    let installed = Some(state.installed?);
    let fresh = BootState::new(state.node, state.by.clone(), state.since);
    Some(BootState { installed, was: Some(machine), ..fresh })
}

/// Gives arriving nodes the boot state that is remembered of them.
pub(super) fn restore(draft: &mut Draft<'_>) {
    let is_new = |id| {
        draft.roster.by_id(id).is_none() || draft.boot_state(id).is_some_and(|s| s.was.is_some())
    };
    let there = draft.nodes.iter().filter_map(|(id, node)| Some((*id, node.as_ref()?)));
    let arrivals = there.filter(|(id, _)| is_new(*id)).map(|(id, node)| (id, machine(node)));
    let arrivals: Vec<_> = arrivals.collect();
    let some_left = draft.states.values().flatten().any(|state| state.was.is_some());
    if arrivals.is_empty() && !some_left {
        return;
    }
    let mut removed = RemovedNodes::of(draft);
    for (id, machine) in arrivals {
        if let Some(was) = removed.take(id, &machine) {
            let mut state = match draft.boot_state(id).filter(|_| was.node != id) {
                Some(state) => state.clone(),
                None => BootState { node: id, was: None, ..was.clone() },
            };
            state.installed = state.installed.or(was.installed);
            draft.states.insert(was.node, None);
            draft.states.insert(id, Some(state));
        }
    }
    for id in removed.surplus() {
        draft.states.insert(id, None);
    }
}

/// Removed nodes that were installed.
struct RemovedNodes {
    states: HashMap<NodeId, BootState>,
    by_mac: HashMap<Mac, NodeId>,
    by_xname: HashMap<Xname, NodeId>,
}

impl RemovedNodes {
    fn of(draft: &Draft<'_>) -> Self {
        let unchanged = draft.roster.boot_states().map(AsRef::as_ref);
        let unchanged = unchanged.filter(|state| !draft.states.contains_key(&state.node));
        let drafted = draft.states.values().flatten();
        let mut by_mac = HashMap::new();
        let mut by_xname = HashMap::new();
        let mut states = HashMap::new();
        for state in unchanged.chain(drafted) {
            let Some(was) = &state.was else { continue };
            by_mac.extend(was.macs.iter().map(|mac| (*mac, state.node)));
            by_xname.extend(was.xname.map(|xname| (xname, state.node)));
            states.insert(state.node, state.clone());
        }
        Self { states, by_mac, by_xname }
    }

    /// The same machine has the same MAC. Where one side knows none, the place has to do.
    fn take(&mut self, id: NodeId, machine: &RemovedMachine) -> Option<BootState> {
        let by_mac = || machine.macs.iter().find_map(|mac| self.by_mac.get(mac));
        let by_xname = || {
            let id = self.by_xname.get(&machine.xname?)?;
            let was = self.states.get(id)?.was.as_ref()?;
            (machine.macs.is_empty() || was.macs.is_empty()).then_some(id)
        };
        let same = self.states.get_key_value(&id).map(|(id, _)| id);
        let found = *same.or_else(by_mac).or_else(by_xname)?;
        self.states.remove(&found)
    }

    fn surplus(self) -> Vec<NodeId> {
        let surplus = self.states.len().saturating_sub(MAX_GONE);
        let mut states: Vec<_> = self.states.into_values().collect();
        states.sort_by_key(|state| (state.since, state.node));
        states.into_iter().take(surplus).map(|state| state.node).collect()
    }
}
