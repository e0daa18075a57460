//! Counts the ends of the predecessors of a vertex.

use crate::plan::{Rule, Vertex};

/// The meaning of an end for the vertices after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Good,
    Bad,
    /// Failed or not run, but of a subject that is left out.
    LeftOut,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tally {
    all: u32,
    good: u32,
    bad: u32,
    left_out: u32,
}

impl Tally {
    pub(super) fn of(vertex: &Vertex) -> Self {
        let all = u32::try_from(vertex.after.len()).expect("plans are bounded");
        Self { all, good: 0, bad: 0, left_out: 0 }
    }

    pub(super) fn count(&mut self, class: Class) {
        match class {
            Class::Good => self.good += 1,
            Class::Bad => self.bad += 1,
            Class::LeftOut => self.left_out += 1,
        }
    }

    fn open(self) -> u32 {
        self.all - self.good - self.bad - self.left_out
    }

    pub(super) fn has_nothing_open(self) -> bool {
        self.open() == 0
    }

    /// Whether a predecessor did not succeed.
    pub(super) fn has_lost(self) -> bool {
        self.bad + self.left_out > 0
    }

    /// Whether a join is passed; `None` while undecided.
    pub(super) fn passes(self, rule: Rule) -> Option<bool> {
        let there = self.all - self.left_out;
        let need = match rule {
            Rule::All => there,
            Rule::AtLeast(count) => count,
            Rule::Most => there / 2 + 1,
            Rule::Percent(percent) => {
                let need = (u64::from(there) * u64::from(percent)).div_ceil(100);
                u32::try_from(need).unwrap_or(u32::MAX)
            }
            Rule::AnyEnd => return self.has_nothing_open().then_some(true),
        };
        // Until the last predecessor has ended, more subjects may be left out.
        if rule == Rule::All && self.open() > 0 {
            return (self.bad > 0).then_some(false);
        }
        if self.good >= need {
            Some(true)
        } else if self.good + self.open() < need {
            Some(false)
        } else {
            None
        }
    }
}
