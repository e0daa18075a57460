//! The cost of one change, including folding, compared with building the whole roster again.

use hoist_site::roster::Incarnation;
use hoist_site::{Delta, Resource, Roster};

use crate::sample::{self, SITE, Shuffle};
use crate::stopwatch::{ratio, time};
use crate::verdict::{Limit, Row};

/// Enough for several foldings.
const CHANGES: u32 = 5_000;
const LIMIT: Limit = Limit::AtMost(0.01);

pub(crate) fn measure() -> Vec<Row> {
    let roster = sample::roster(SITE);
    let resources: Vec<Resource> = roster.resources().collect();
    let rebuilt =
        time(|| Roster::build(Incarnation::new("bench"), 1, 0, resources.clone().into_iter()));
    let mut random = Shuffle::new();
    let deltas: Vec<Delta> = (0..CHANGES)
        .map(|i| {
            let revision = u64::from(i) + 2;
            let puts = vec![sample::put(random.below(SITE), revision).1];
            Delta { revision, horizon: 0, puts, deletes: Vec::new() }
        })
        .collect();
    let mut folded = 0;
    let mut current = roster.clone();
    let changed = time(|| {
        for delta in deltas {
            current = current.apply(delta);
            if current.wants_folding() {
                current = current.folded();
                folded += 1;
            }
        }
    });
    let each = changed / CHANGES;
    vec![Row {
        what: "change of one node / full rebuild, at 100,000 nodes".to_owned(),
        measured: ratio(each, rebuilt),
        unit: "x",
        limit: Some(LIMIT),
        detail: format!(
            "{:.0} µs and {:.0} ms; {folded} foldings in {CHANGES} changes",
            each.as_secs_f64() * 1e6,
            rebuilt.as_secs_f64() * 1e3
        ),
    }]
}
