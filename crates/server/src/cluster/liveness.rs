//! Which members report, from where, and whether two machines report as one member.
//!
//! In memory only: a report is no decision, and a controller that starts knows within seconds who is
//! there. Liveness never changes a plan.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use hoist_cluster::id::NodeId;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Time between two reports of a member.
pub(super) const INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// A member that missed three reports is silent.
pub(super) const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// How long a cloned identity stays flagged after its second machine was last heard of.
const CLONED_FOR: SignedDuration = SignedDuration::from_mins(15);
/// Longest id of a session that is remembered.
pub(super) const MAX_SESSION: usize = 64;
/// Refused nodes that are remembered, so that an operator may name them by the start of their id.
const MAX_REFUSED: usize = 256;

#[derive(Debug)]
pub(super) struct Liveness {
    started: Timestamp,
    members: Mutex<HashMap<NodeId, Reports>>,
    refused: Mutex<VecDeque<NodeId>>,
}

/// The last report of a member.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) at: Timestamp,
    pub(super) from: IpAddr,
    pub(super) plan_generation: u64,
}

/// One report of a member, as far as it is remembered.
#[derive(Debug, Clone)]
pub(super) struct Report<'a> {
    pub(super) session: &'a str,
    pub(super) seen: Seen,
}

/// The reports of the machines that have one identity.
#[derive(Debug)]
struct Reports {
    seen: Seen,
    /// Sessions that reported lately, in the order of their first report. A restart of the agent
    /// makes a new one, and the old one does not report again.
    sessions: Vec<Session>,
    cloned: Option<ClonedIdentity>,
}

#[derive(Debug)]
struct Session {
    id: String,
    last: Timestamp,
}

/// Two machines that reported as one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClonedIdentity {
    last: Timestamp,
}

/// The verdict of a report on the identity of its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    Single,
    /// Another machine reports as the same member. This one was there first.
    First {
        /// The other machine was not known before.
        is_new: bool,
    },
    /// Another machine was there first.
    Second,
}

impl Liveness {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { started, members: Mutex::default(), refused: Mutex::default() }
    }

    /// Remembers a report.
    ///
    /// A second session alone is a restart of the agent. It is a second machine when the first
    /// session reports again.
    pub(super) fn report(&self, node: NodeId, report: Report<'_>) -> Identity {
        let Report { session, seen } = report;
        let now = seen.at;
        let mut members = self.members.lock();
        let reports = members.entry(node).or_insert_with(|| Reports {
            seen: seen.clone(),
            sessions: Vec::new(),
            cloned: None,
        });
        reports.sessions.retain(|session| now.duration_since(session.last) < SILENT_AFTER);
        if reports.cloned.is_some_and(|clone| now.duration_since(clone.last) >= CLONED_FOR) {
            reports.cloned = None;
        }
        let place = reports.sessions.iter().position(|known| known.id == session);
        let place = place.unwrap_or_else(|| {
            reports.sessions.push(Session { id: session.to_owned(), last: now });
            reports.sessions.len() - 1
        });
        reports.sessions[place].last = now;
        let is_first = place == 0;
        let others = reports.sessions.len() > 1;
        let was_cloned = reports.cloned.is_some();
        if is_first && others {
            reports.cloned = Some(ClonedIdentity { last: now });
            reports.seen = seen;
            return Identity::First { is_new: !was_cloned };
        }
        if was_cloned && others {
            reports.cloned = Some(ClonedIdentity { last: now });
            return Identity::Second;
        }
        reports.seen = seen;
        Identity::Single
    }

    pub(super) fn seen(&self, node: NodeId) -> Option<Seen> {
        self.members.lock().get(&node).map(|reports| reports.seen.clone())
    }

    pub(super) fn forget(&self, node: NodeId) {
        self.members.lock().remove(&node);
    }

    /// Whether a member did not report for a while; never right after the controller started.
    pub(super) fn is_silent(&self, node: NodeId, now: Timestamp) -> bool {
        let last = self.seen(node).map_or(self.started, |seen| seen.at);
        now.duration_since(last) >= SILENT_AFTER
    }

    /// The members that two machines report as.
    pub(super) fn cloned(&self, now: Timestamp) -> BTreeSet<NodeId> {
        let members = self.members.lock();
        let is_cloned = |reports: &Reports| {
            reports.cloned.is_some_and(|clone| now.duration_since(clone.last) < CLONED_FOR)
        };
        members.iter().filter(|(_, reports)| is_cloned(reports)).map(|(node, _)| *node).collect()
    }

    /// Remembers a node that was refused over its name.
    pub(super) fn note_refused(&self, node: NodeId) {
        let mut refused = self.refused.lock();
        refused.retain(|known| *known != node);
        if refused.len() == MAX_REFUSED {
            refused.pop_front();
        }
        refused.push_back(node);
    }

    /// The only refused node whose id starts so.
    pub(super) fn refused(&self, digits: &str) -> Option<NodeId> {
        let refused = self.refused.lock();
        let mut fitting = refused.iter().filter(|node| node.to_string().starts_with(digits));
        fitting.next().filter(|_| fitting.next().is_none()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(liveness: &Liveness, session: &str, second: i64) -> Identity {
        let from = IpAddr::from([10, 0, 0, 1]);
        let seen = Seen { at: at(second), from, plan_generation: 1 };
        liveness.report(NodeId::of_key(b"n1"), Report { session, seen })
    }

    #[test]
    fn restart_of_an_agent_is_no_clone() {
        let liveness = Liveness::new(at(0));
        assert_eq!(report(&liveness, "a", 0), Identity::Single);
        assert_eq!(report(&liveness, "b", 3), Identity::Single);
        assert_eq!(report(&liveness, "b", 13), Identity::Single);
        assert_eq!(report(&liveness, "c", 33), Identity::Single);
        assert!(liveness.cloned(at(33)).is_empty());
    }

    #[test]
    fn two_live_sessions_are_two_machines() {
        let liveness = Liveness::new(at(0));
        report(&liveness, "a", 0);
        report(&liveness, "b", 5);
        assert_eq!(report(&liveness, "a", 10), Identity::First { is_new: true });
        assert_eq!(report(&liveness, "b", 15), Identity::Second);
        assert_eq!(report(&liveness, "a", 20), Identity::First { is_new: false });
        assert_eq!(liveness.cloned(at(20)).len(), 1);
        // The first machine is gone: the second one is the member.
        assert_eq!(report(&liveness, "b", 60), Identity::Single);
        assert!(liveness.cloned(at(60 + 15 * 60)).is_empty());
    }

    #[test]
    fn member_is_silent_after_three_intervals() {
        let liveness = Liveness::new(at(0));
        let node = NodeId::of_key(b"n1");
        assert!(!liveness.is_silent(node, at(29)) && liveness.is_silent(node, at(30)));
        report(&liveness, "a", 100);
        assert!(!liveness.is_silent(node, at(129)) && liveness.is_silent(node, at(130)));
    }

    #[test]
    fn refused_nodes_are_found_by_a_unique_start() {
        let liveness = Liveness::new(at(0));
        for n in 0..300_u32 {
            liveness.note_refused(NodeId::of_key(&n.to_be_bytes()));
        }
        let last = NodeId::of_key(&299_u32.to_be_bytes());
        assert_eq!(liveness.refused(&last.short()), Some(last));
        assert_eq!(liveness.refused(&NodeId::of_key(&0_u32.to_be_bytes()).short()), None);
        assert_eq!(liveness.refused(""), None);
    }
}
