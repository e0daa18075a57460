//! The lookup every booting machine waits for.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use hoist_model::{Mac, Node};
use hoist_site::{Delta, Roster};

use crate::sample::{self, SITE, Shuffle};
use crate::stopwatch::{best_of, ratio};
use crate::verdict::{Limit, Row};

const LOOKUPS: u32 = 1_000_000;
const ROUNDS: usize = 7;
const LIMIT: Limit = Limit::AtMost(3.0);

pub(crate) fn measure() -> Vec<Row> {
    let roster = sample::roster(SITE);
    let map: HashMap<Mac, Arc<Node>> = roster
        .nodes()
        .flat_map(|node| node.spec.interfaces.iter().map(move |i| (i.mac, Arc::clone(node))))
        .collect();
    let mut random = Shuffle::new();
    let nic = |n: u32| u8::from(n.is_multiple_of(2));
    let macs: Vec<Mac> =
        (0..LOOKUPS).map(|_| sample::mac(random.below(SITE), nic(random.below(2)))).collect();
    let changed = with_overlay(&roster);
    vec![
        row(
            "lookup by MAC at 100,000 nodes / `std::collections::HashMap`",
            &macs,
            &roster,
            &map,
            |node| std::ptr::from_ref(node) as u64,
        ),
        row("the same, reading a field of the node too", &macs, &roster, &map, |node| {
            node.revision
        }),
        row("the same, with 1,000 changes in the overlay", &macs, &changed, &map, |node| {
            node.revision
        }),
    ]
}

/// As it is between two foldings.
fn with_overlay(roster: &Roster) -> Roster {
    let puts = (0..1000).map(|n| sample::put(n * 97, 2).1).collect();
    roster.apply(Delta { revision: 2, horizon: 0, puts, deletes: Vec::new() })
}

fn row(
    what: &str,
    macs: &[Mac],
    roster: &Roster,
    map: &HashMap<Mac, Arc<Node>>,
    look: impl Fn(&Node) -> u64,
) -> Row {
    let sum = |found: &mut dyn Iterator<Item = Option<&Arc<Node>>>| {
        found.map(|node| look(node.expect("every MAC is known"))).fold(0, u64::wrapping_add)
    };
    let (ours, theirs) = best_of(
        ROUNDS,
        || sum(&mut macs.iter().map(|mac| roster.by_mac(black_box(*mac)))),
        || sum(&mut macs.iter().map(|mac| map.get(black_box(mac)))),
    );
    let nanos = |time: std::time::Duration| time.as_secs_f64() * 1e9 / f64::from(LOOKUPS);
    Row {
        what: what.to_owned(),
        measured: ratio(ours, theirs),
        unit: "x",
        limit: Some(LIMIT),
        detail: format!("{:.0} ns and {:.0} ns", nanos(ours), nanos(theirs)),
    }
}
