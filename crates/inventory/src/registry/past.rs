//! What the site looked like a while ago: for every change the way back, kept in memory.
//!
//! Only what a change replaced is kept, so a day of changes costs little. It reaches back to this
//! controller's start at most.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::record::Resource;
use crate::roster::{Delta, Roster};

/// Changes are kept this long, or until they replaced this many things.
const KEEP: Duration = Duration::from_hours(24);
const MAX_REPLACED: usize = 200_000;

#[derive(Debug, Default)]
pub(super) struct Past(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    changes: VecDeque<Undo>,
    replaced: usize,
}

/// The way from one revision back to the one before.
#[derive(Debug)]
struct Undo {
    after: u64,
    back: Delta,
    at: Instant,
}

impl Past {
    pub(super) fn remember(&self, before: &Roster, delta: &Delta, now: Instant) {
        let mut back =
            Delta { revision: before.revision(), horizon: before.horizon(), ..Delta::default() };
        let touched = delta.puts.iter().map(Resource::key).chain(delta.deletes.iter().cloned());
        for key in touched {
            match before.resource(&key) {
                Some(resource) => back.puts.push(resource),
                None => back.deletes.push(key),
            }
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.replaced += back.puts.len() + back.deletes.len();
        kept.changes.push_back(Undo { after: delta.revision, back, at: now });
        while kept.replaced > MAX_REPLACED
            || kept.changes.front().is_some_and(|oldest| now.duration_since(oldest.at) > KEEP)
        {
            let Some(gone) = kept.changes.pop_front() else { break };
            kept.replaced -= gone.back.puts.len() + gone.back.deletes.len();
        }
    }

    /// The whole picture was replaced: there is no way back from it.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    /// `Err` with the oldest revision that can be shown.
    pub(super) fn at(&self, current: &Roster, revision: u64) -> Result<Roster, u64> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = kept.changes.front().map_or(current.revision(), |undo| undo.back.revision);
        if revision < oldest || revision > current.revision() {
            return Err(oldest);
        }
        let newer = kept.changes.iter().rev();
        let newer = newer.skip_while(|undo| undo.after > current.revision());
        let back = newer.take_while(|undo| undo.after > revision);
        Ok(back.fold(current.clone(), |roster, undo| roster.apply(undo.back.clone())))
    }
}
