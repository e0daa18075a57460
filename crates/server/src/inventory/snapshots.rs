//! Rosters that a listing is still being read from, so that every page shows the same moment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_model::NodeId;
use hoist_site::Roster;
use parking_lot::Mutex;

/// Listings under way at once. An old roster shares nearly everything with the current one.
const KEPT: usize = 16;
const KEPT_FOR: Duration = Duration::from_mins(2);

#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<VecDeque<(Instant, Arc<Roster>)>>);

/// Where a page ended: `<incarnation>.<revision>.<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageEnd {
    pub(super) incarnation: String,
    pub(super) revision: u64,
    pub(super) id: NodeId,
}

impl Snapshots {
    pub(super) fn keep(&self, roster: &Arc<Roster>) {
        let mut kept = self.0.lock();
        kept.retain(|(used, held)| used.elapsed() < KEPT_FOR && !same(held, roster));
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((Instant::now(), Arc::clone(roster)));
    }

    pub(super) fn find(&self, end: &PageEnd) -> Option<Arc<Roster>> {
        let mut kept = self.0.lock();
        let found = kept.iter_mut().find(|(_, roster)| {
            roster.revision() == end.revision && roster.incarnation().as_str() == end.incarnation
        })?;
        found.0 = Instant::now();
        Some(Arc::clone(&found.1))
    }
}

fn same(one: &Roster, other: &Roster) -> bool {
    one.revision() == other.revision() && one.incarnation() == other.incarnation()
}

impl std::fmt::Display for PageEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.incarnation, self.revision, self.id)
    }
}

impl std::str::FromStr for PageEnd {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '.');
        let mut next = || parts.next().ok_or(());
        let incarnation = next()?.to_owned();
        let revision = next()?.parse().map_err(|_| ())?;
        let id = next()?.parse().map_err(|_| ())?;
        Ok(Self { incarnation, revision, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_page_survives_the_wire() {
        let end = PageEnd { incarnation: "ab12".into(), revision: 7, id: NodeId::mint(1, 2) };
        assert_eq!(end.to_string().parse(), Ok(end));
        assert_eq!("kettle".parse::<PageEnd>(), Err(()));
    }
}
