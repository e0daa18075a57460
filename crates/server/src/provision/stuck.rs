//! Nodes that do not progress by themselves: the reason and the remedy.

use hoist_api::provision::NodeRunState;
use hoist_metadata::provision::{Enrollment, KeyClaim};
use hoist_model::Node;
use jiff::{SignedDuration, Timestamp};

use super::decide;
use super::record::NodeRecord;
use super::runs::Runs;
use hoist_chassis::failure::Failure;

/// How often it is written that an agent lives which says nothing else.
const WRITE_LIFE_EVERY: SignedDuration = SignedDuration::from_secs(30);

impl Runs {
    /// Why a node waits or does not progress, for the operator.
    pub(super) fn why_not(&self, record: &NodeRecord) -> Option<String> {
        let roster = self.roster();
        let node = roster.by_id(record.shown.id)?;
        let is_begun = matches!(record.shown.state, NodeRunState::Pending | NodeRunState::Booting);
        match record.shown.state {
            NodeRunState::Waiting => decide::obstacle(node).or_else(|| protected(node)),
            // Who is begun goes on in maintenance too: it is people who start the machine.
            _ if is_begun && !node.spec.enabled => decide::obstacle(node),
            _ if is_begun && node.is_protected() => protected(node),
            _ => self.stuck(record, node),
        }
    }

    /// Why an active node needs an operator; `retry` is allowed then.
    pub(super) fn stuck(&self, record: &NodeRecord, node: &Node) -> Option<String> {
        let state = record.shown.state;
        let is_begun = matches!(state, NodeRunState::Pending | NodeRunState::Booting);
        if is_begun && record.generation.is_some_and(|then| then != node.generation) {
            let why = "the node was renewed, and its token is refused; `hoist provision retry` \
                       makes another one, for the next time that the machine starts";
            return Some(why.to_owned());
        }
        if state.is_active() && record.shown.note.is_some() {
            return record.shown.note.clone();
        }
        self.is_silent(record).then(|| {
            let since = self.heard(record).strftime("%Y-%m-%dT%H:%M:%SZ");
            format!(
                "no message of its agent since {since}; if the machine is off or hangs, boot it \
                 from the network again with `hoist provision retry`, or end the attempt with \
                 `abort`"
            )
        })
    }

    /// Whether the agent of a working node sent no message for so long that it counts as dead.
    pub(super) fn is_silent(&self, record: &NodeRecord) -> bool {
        let works = record.shown.state == NodeRunState::Working;
        works && self.now().duration_since(self.heard(record)) > self.silence()
    }

    /// Publishes one event for each silent agent; the first controller to record it does.
    pub(super) async fn tell_silent(&self, run: &str) -> Result<(), Failure> {
        let is_new = |node: &NodeRecord| node.told_silent.is_none() && self.is_silent(node);
        for node in self.nodes(run).await?.into_iter().filter(|node| is_new(&node.value)) {
            let told = self.keep(run, node.value.shown.id, |node| {
                is_new(node).then(|| NodeRecord { told_silent: Some(self.now()), ..node.clone() })
            });
            let Some(node) = told.await? else { continue };
            let since = self.heard(&node);
            let told = serde_json::json!({"run": run, "since": since});
            self.tell_node("provision.silent", &node.shown.node, told);
        }
        Ok(())
    }

    /// Time without a listening controller does not count as silence.
    fn heard(&self, record: &NodeRecord) -> Timestamp {
        record.heard.unwrap_or(record.shown.since).max(record.shown.since).max(self.listens_since())
    }

    /// Whether it has to be written that an agent lives.
    pub(super) fn is_worth_writing(&self, record: &NodeRecord) -> bool {
        let written = record.heard.unwrap_or(record.shown.since);
        self.now().duration_since(written) >= WRITE_LIFE_EVERY.min(self.silence() / 4)
    }
}

fn protected(node: &Node) -> Option<String> {
    node.is_protected()
        .then(|| format!("it is protected; `hoist node protect --off {}` lets it go on", node.name))
}

/// Which key may continue with the node's earlier enrollment after `retry`: the agent that has the
/// job, or, if keys are quarantined, the key that the operator names. `None` if the operator must
/// name one first.
pub(super) fn may_go_on(enrollment: &Enrollment, keys: &[String]) -> Option<GoesOn> {
    if enrollment.quarantined.is_empty() {
        let enrolled = enrollment.claimed.is_some().then(|| enrollment.clone());
        return Some(GoesOn(enrolled));
    }
    let named = keys.iter().find_map(|key| enrollment.key_of(key));
    if named.is_none() && !keys.iter().any(|key| key == NO_KEY) {
        return None;
    }
    let theirs = |named| {
        let mut theirs = enrollment.clone();
        (theirs.claimed, theirs.quarantined) = (Some(named), Vec::new());
        theirs
    };
    Some(GoesOn(named.map(theirs)))
}

/// The enrollment that an agent in memory continues with, if one may.
pub(super) struct GoesOn(pub(super) Option<Enrollment>);

/// The operator's value for "admit no key".
const NO_KEY: &str = "none";

/// Describes a key for the operator.
pub(super) fn told(key: &KeyClaim) -> String {
    let from = key.from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("{}{from} at {}", key.by, key.at.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// The enrollment with which a reported agent can continue: it knows only the token it started
/// with, even if it claimed another enrollment since.
pub(super) fn kept_for_later(
    earlier: Option<&Enrollment>,
    now: Option<Enrollment>,
) -> Option<Enrollment> {
    let key = |enrollment: &Enrollment| enrollment.claimed.map(|claimed| claimed.by);
    let is_same = earlier.and_then(key).is_some_and(|by| now.as_ref().and_then(key) == Some(by));
    if is_same { earlier.cloned() } else { now }
}
