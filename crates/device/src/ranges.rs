//! Sets of byte ranges.

use std::ops::Range;

/// Sorted ranges that do not touch each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|have| have.end < range.start);
        let behind = self.0.partition_point(|have| have.start <= range.end);
        let touched = &self.0[first..behind];
        let start = touched.first().map_or(range.start, |have| have.start.min(range.start));
        let end = touched.last().map_or(range.end, |have| have.end.max(range.end));
        self.0.splice(first..behind, std::iter::once(start..end));
    }

    pub fn subtract(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let keep = |have: &Range<u64>| {
            [have.start..have.end.min(range.start), have.start.max(range.end)..have.end]
        };
        self.0 = self.0.iter().flat_map(keep).filter(|rest| !rest.is_empty()).collect();
    }

    /// Whether every byte of the range is in the set.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.0.iter().any(|have| have.start <= range.start && range.end <= have.end)
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }
}

impl From<Range<u64>> for Ranges {
    fn from(range: Range<u64>) -> Self {
        std::iter::once(range).collect()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut all = Self::default();
        ranges.into_iter().for_each(|range| all.add(range));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn last_add_or_subtract_decides_for_each_byte(
            words in prop::collection::vec((any::<bool>(), 0..40_u64, 0..12_u64), 0..12),
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [false; 64];
            for (add, start, length) in words {
                let range = start..start + length;
                bytes[usize::try_from(start)?..usize::try_from(range.end)?].fill(add);
                if add { ranges.add(range) } else { ranges.subtract(range) }
            }
            for (at, is_in) in (0..).zip(bytes) {
                prop_assert_eq!(ranges.covers(&(at..at + 1)), is_in);
            }
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(all.iter().all(|range| ranges.covers(range)));
        }
    }
}
