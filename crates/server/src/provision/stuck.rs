//! Nodes of a run that do not go on by themselves: why, and what people can do about it.

use hoist_api::provision::NodeRunState;
use hoist_metadata::provision::{Arming, Redeemed};
use hoist_model::Node;
use jiff::{SignedDuration, Timestamp};

use super::decide;
use super::record::NodeRecord;
use super::runs::Runs;
use crate::failure::Failure;

/// How often it is written that an agent lives which says nothing else.
const WRITE_LIFE_EVERY: SignedDuration = SignedDuration::from_secs(30);

impl Runs {
    /// What people should know of a node that waits, or that nothing happens with.
    pub(super) fn why_not(&self, record: &NodeRecord) -> Option<String> {
        let roster = self.roster();
        let node = roster.by_id(record.shown.id)?;
        let is_begun = matches!(record.shown.state, NodeRunState::Armed | NodeRunState::Booting);
        match record.shown.state {
            NodeRunState::Waiting => decide::obstacle(node).or_else(|| protected(node)),
            // Who is begun goes on in maintenance too: it is people who start the machine.
            _ if is_begun && !node.spec.enabled => decide::obstacle(node),
            _ if is_begun && node.is_protected() => protected(node),
            _ => self.stuck(record, node),
        }
    }

    /// Why a node that is under way needs somebody: then it can be begun once more.
    pub(super) fn stuck(&self, record: &NodeRecord, node: &Node) -> Option<String> {
        let state = record.shown.state;
        let is_begun = matches!(state, NodeRunState::Armed | NodeRunState::Booting);
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
                "nothing is heard of its agent since {since}; if the machine is off or hangs, start \
                 it from the network again, and `hoist provision retry` begins the node once more, \
                 or `abort` ends it"
            )
        })
    }

    /// Whether an agent that is at work has said nothing for so long that it is taken for dead.
    pub(super) fn is_silent(&self, record: &NodeRecord) -> bool {
        let works = record.shown.state == NodeRunState::Working;
        works && self.now().duration_since(self.heard(record)) > self.silence()
    }

    /// Tells of each agent once that nothing is heard of it any more; whichever controller is first.
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

    /// Nobody can be heard while no controller listens.
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

/// Who may go on with what a node was armed with before, when it is begun once more by people: the
/// agent that had its order, or, when other keys have come, the one that people name. `None` if they
/// have named none; then nothing may be begun.
pub(super) fn may_go_on(arming: &Arming, keys: &[String]) -> Option<GoesOn> {
    if arming.quarantined.is_empty() {
        let enrolled = arming.redeemed.is_some().then(|| arming.clone());
        return Some(GoesOn(enrolled));
    }
    let named = keys.iter().find_map(|key| arming.key_of(key));
    if named.is_none() && !keys.iter().any(|key| key == NO_KEY) {
        return None;
    }
    let theirs = |named| {
        let mut theirs = arming.clone();
        (theirs.redeemed, theirs.quarantined) = (Some(named), Vec::new());
        theirs
    };
    Some(GoesOn(named.map(theirs)))
}

/// The arming that an agent in memory goes on with, if any may.
pub(super) struct GoesOn(pub(super) Option<Arming>);

/// What people say if no key shall go on.
const NO_KEY: &str = "none";

/// What is known of a key, for those who have to decide.
pub(super) fn told(key: &Redeemed) -> String {
    let from = key.from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("{}{from} at {}", key.by, key.at.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// What an agent that has reported can go on with: it knows no other token than that it started
/// with, whichever arming it has redeemed since.
pub(super) fn kept_for_later(earlier: Option<&Arming>, now: Option<Arming>) -> Option<Arming> {
    let key = |arming: &Arming| arming.redeemed.map(|redeemed| redeemed.by);
    let is_same = earlier.and_then(key).is_some_and(|by| now.as_ref().and_then(key) == Some(by));
    if is_same { earlier.cloned() } else { now }
}
