//! Pure decisions of a run: which nodes start next, and the state of the run, from the nodes'
//! states.

use hoist_api::provision::{Counts, NodeRunState, ProvisionOptions, ProvisionRunState};
use hoist_model::{Node, ProvisionProfile};
use hoist_site::Roster;

use super::record::NodeRecord;

/// How far the nodes are.
pub(super) fn count<'n>(nodes: impl IntoIterator<Item = &'n NodeRecord>) -> Counts {
    let mut counts = Counts::default();
    for node in nodes {
        counts.unfinished += usize::from(node.is_unfinished());
        match node.shown.state {
            NodeRunState::Waiting => counts.waiting += 1,
            NodeRunState::Done => counts.done += 1,
            NodeRunState::Failed => counts.failed += 1,
            NodeRunState::Aborted => counts.aborted += 1,
            NodeRunState::Undone => counts.undone += 1,
            _ => counts.active += 1,
        }
    }
    counts
}

/// How many of those that wait may be begun now.
pub(super) fn room(how: &ProvisionOptions, counts: Counts) -> usize {
    let Counts { waiting, active, done, failed, unfinished, .. } = counts;
    let canary = how.canary.unwrap_or(0);
    if done < canary {
        // One after the other, until something goes wrong.
        return usize::from(active == 0 && failed == 0).min(waiting);
    }
    // Canaries that failed were mended one by one; a failure among them stops the rest too.
    if canary > 0 && failed > 0 {
        return 0;
    }
    let at_once = how.at_once.unwrap_or(usize::MAX).saturating_sub(active);
    // A node aborted with unfinished disks is as unavailable as a failed one.
    let unavailable =
        how.max_unavailable.unwrap_or(usize::MAX).saturating_sub(active + failed + unfinished);
    waiting.min(at_once).min(unavailable)
}

/// The state of a run, and the reason if it stopped.
pub(super) fn state(
    how: &ProvisionOptions,
    aborted: bool,
    counts: Counts,
) -> (ProvisionRunState, Option<String>) {
    let Counts { waiting, active, failed, .. } = counts;
    if active > 0 {
        return (ProvisionRunState::Running, None);
    }
    if aborted {
        return (ProvisionRunState::Aborted, None);
    }
    if waiting > 0 && room(how, counts) == 0 {
        let aborted = match counts.unfinished {
            0 => String::new(),
            count => format!(" and {count} were aborted unfinished"),
        };
        let why =
            format!("{failed} nodes failed{aborted}; {waiting} waiting nodes will not be started");
        return (ProvisionRunState::Stopped, Some(why));
    }
    match (waiting, failed) {
        (0, 0) if counts.done == 0 => (ProvisionRunState::Aborted, None),
        (0, 0) => (ProvisionRunState::Done, None),
        (0, _) => (ProvisionRunState::Failed, None),
        _ => (ProvisionRunState::Running, None),
    }
}

/// The profile that is closest to a node: by its selector, then its priority, then its name.
pub(super) fn profile_of<'r>(roster: &'r Roster, node: &Node) -> Option<&'r ProvisionProfile> {
    let subject = roster.subject(node);
    let ranked = roster.provision_profiles().filter_map(|profile| {
        let bound = profile.spec.selector.as_ref()?.bind(roster).ok()?;
        let rank = (bound.specificity(&subject)?, profile.spec.priority);
        Some((rank, std::cmp::Reverse(&profile.name), profile))
    });
    let best = ranked.max_by(|(a, an, _), (b, bn, _)| (a, an).cmp(&(b, bn)));
    best.map(|(_, _, profile)| profile.as_ref())
}

/// Why a node cannot be begun, now or at all.
pub(super) fn obstacle(node: &Node) -> Option<String> {
    if !node.spec.enabled {
        return Some("it is disabled".to_owned());
    }
    let reason = node.maintenance.as_ref()?;
    let said =
        if reason.reason.is_empty() { String::new() } else { format!(": {}", reason.reason) };
    Some(format!("it is in maintenance{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(waiting: usize, active: usize, done: usize, failed: usize) -> Counts {
        Counts { waiting, active, done, failed, ..Counts::default() }
    }

    #[test]
    fn run_without_limits_starts_all_nodes_at_once() {
        assert_eq!(room(&ProvisionOptions::default(), counts(7, 0, 0, 0)), 7);
        assert_eq!(room(&ProvisionOptions::default(), counts(7, 3, 0, 5)), 7);
    }

    #[test]
    fn so_many_at_once_and_no_more() {
        let how = ProvisionOptions { at_once: Some(3), ..ProvisionOptions::default() };
        assert_eq!(room(&how, counts(7, 0, 0, 0)), 3);
        assert_eq!(room(&how, counts(7, 2, 4, 0)), 1);
        assert_eq!(room(&how, counts(7, 3, 0, 0)), 0);
        assert_eq!(room(&how, counts(7, 0, 0, 4)), 3, "failures alone do not stop it");
    }

    #[test]
    fn nodes_that_failed_are_unavailable_too() {
        let how = ProvisionOptions { max_unavailable: Some(2), ..ProvisionOptions::default() };
        assert_eq!(room(&how, counts(7, 1, 4, 0)), 1);
        assert_eq!(room(&how, counts(7, 0, 4, 2)), 0);
        let (stopped, why) = state(&how, false, counts(7, 0, 4, 2));
        assert_eq!(stopped, ProvisionRunState::Stopped);
        assert!(why.is_some_and(|why| {
            why.contains("2 nodes failed; 7 waiting nodes will not be started")
        }));
        assert_eq!(room(&how, counts(7, 1, 4, 1)), 0);
        let ended = Counts { aborted: 3, unfinished: 1, ..counts(7, 0, 4, 1) };
        assert_eq!(room(&how, ended), 0, "one was ended with its disks half written");
        let why = state(&how, false, ended).1.expect("it stands");
        assert!(why.contains("1 nodes failed and 1 were aborted unfinished"), "{why}");
        assert_eq!(state(&how, false, counts(7, 1, 4, 1)).0, ProvisionRunState::Running);
    }

    #[test]
    fn canaries_go_one_by_one_and_the_first_failure_ends_it() {
        let how =
            ProvisionOptions { canary: Some(2), at_once: Some(10), ..ProvisionOptions::default() };
        assert_eq!(room(&how, counts(9, 0, 0, 0)), 1);
        assert_eq!(room(&how, counts(8, 1, 0, 0)), 0);
        assert_eq!(room(&how, counts(8, 0, 1, 0)), 1);
        assert_eq!(room(&how, counts(7, 0, 2, 0)), 7);
        assert_eq!(room(&how, counts(8, 0, 0, 1)), 0);
        assert_eq!(state(&how, false, counts(8, 0, 0, 1)).0, ProvisionRunState::Stopped);
        let one = ProvisionOptions { canary: Some(5), ..ProvisionOptions::default() };
        assert_eq!(room(&one, counts(0, 0, 1, 0)), 0, "there are fewer nodes than canaries");
    }

    #[test]
    fn a_run_is_over_when_nothing_more_happens() {
        let of = |counts| state(&ProvisionOptions::default(), false, counts).0;
        assert_eq!(of(counts(0, 0, 3, 0)), ProvisionRunState::Done);
        assert_eq!(of(counts(0, 0, 3, 1)), ProvisionRunState::Failed);
        assert_eq!(of(counts(2, 0, 3, 1)), ProvisionRunState::Running);
        assert_eq!(of(counts(0, 1, 3, 1)), ProvisionRunState::Running);
        assert_eq!(
            state(&ProvisionOptions::default(), true, counts(2, 0, 3, 1)).0,
            ProvisionRunState::Aborted
        );
        assert_eq!(
            state(&ProvisionOptions::default(), true, counts(0, 1, 3, 1)).0,
            ProvisionRunState::Running
        );
    }
}
