//! Earlier revisions of the roster: the reverse of every change, in memory.
//!
//! Only the replaced resources are kept, so a day of changes costs little. It reaches back to this
//! controller's start at most.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::record::Resource;
use crate::roster::{Delta, Roster};

/// Changes are kept as long as the horizon says, or until they replaced this many resources.
const MAX_REPLACED: usize = 200_000;

#[derive(Debug, Default)]
pub(super) struct RosterHistory(Mutex<Changes>);

#[derive(Debug, Default)]
struct Changes {
    changes: VecDeque<ReverseDelta>,
    replaced: usize,
}

/// The way from one revision back to the one before.
#[derive(Debug)]
struct ReverseDelta {
    after: u64,
    back: Delta,
    at: Instant,
}

impl RosterHistory {
    pub(super) fn remember(&self, before: &Roster, delta: &Delta, now: Instant, keep: Duration) {
        let mut back =
            Delta { revision: before.revision(), horizon: before.horizon(), ..Delta::default() };
        let touched = delta.puts.iter().map(Resource::key).chain(delta.deletes.iter().cloned());
        for key in touched {
            match before.resource(&key) {
                Some(resource) => back.puts.push(resource),
                None => back.deletes.push(key),
            }
        }
        let mut history = self.0.lock();
        history.replaced += back.puts.len() + back.deletes.len();
        history.changes.push_back(ReverseDelta { after: delta.revision, back, at: now });
        while history.replaced > MAX_REPLACED
            || history.changes.front().is_some_and(|oldest| now.duration_since(oldest.at) > keep)
        {
            let Some(gone) = history.changes.pop_front() else { break };
            history.replaced -= gone.back.puts.len() + gone.back.deletes.len();
        }
    }

    /// The whole roster was replaced: there is no way back from it.
    pub(super) fn forget(&self) {
        *self.0.lock() = Changes::default();
    }

    /// `Err` with the oldest revision that can be shown.
    pub(super) fn at(&self, current: &Roster, revision: u64) -> Result<Roster, u64> {
        let history = self.0.lock();
        let oldest =
            history.changes.front().map_or(current.revision(), |reverse| reverse.back.revision);
        if revision < oldest || revision > current.revision() {
            return Err(oldest);
        }
        let newer = history.changes.iter().rev();
        let newer = newer.skip_while(|reverse| reverse.after > current.revision());
        let back = newer.take_while(|reverse| reverse.after > revision);
        Ok(back.fold(current.clone(), |roster, reverse| roster.apply(reverse.back.clone())))
    }
}
