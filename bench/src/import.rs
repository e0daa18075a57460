//! An import cycle without the network: parse SMD's four lists, join them, compare with the site.

use std::time::Duration;

use anyhow::{Context, Result};
use hoist_model::{Name, Node, NodeId};
use hoist_site::reconcile::{Memory, Options, reconcile};
use hoist_site::source::smd::{JoinOptions, join, wire};
use hoist_testkit::smd::SmdSet;
use jiff::Timestamp;

use crate::sample::SITE;
use crate::stopwatch::{ratio, time};
use crate::verdict::{Limit, Row};

const ROUNDS: usize = 3;
/// Ten times the nodes may take twelve times as long: sorting and caches are allowed for.
const LIMIT: Limit = Limit::AtMost(12.0);

pub(crate) fn measure() -> Result<Vec<Row>> {
    let small = cycle(SITE / 10, ROUNDS)?;
    let site = cycle(SITE, ROUNDS)?;
    let large = cycle(SITE * 4, 1)?;
    let row = |what: &str, large: Duration, small: Duration, limit| Row {
        what: what.to_owned(),
        measured: ratio(large, small),
        unit: "x",
        limit,
        detail: format!("{:.2} s and {:.3} s", large.as_secs_f64(), small.as_secs_f64()),
    };
    let limit = Some(LIMIT);
    Ok(vec![
        row(
            "SMD answer parsed and reconciled, 100,000 nodes / 10,000, empty site",
            site.0,
            small.0,
            limit,
        ),
        row("the same, into a site that has them all", site.1, small.1, limit),
        // Beyond the caches of the processor; informative only.
        row("import, 400,000 nodes / 100,000", large.1, site.1, None),
    ])
}

/// The first cycle, and one that finds everything as it was.
fn cycle(count: u32, rounds: usize) -> Result<(Duration, Duration)> {
    let bodies = SmdSet::synthetic(count).bodies();
    let source: Name = "smd".parse().context("a name")?;
    let run = |existing: &[Node]| {
        let [components, interfaces, memberships, groups] = &bodies;
        let components: wire::Components = parse(components);
        let imported = join(
            components.components,
            parse(interfaces),
            parse(memberships),
            parse(groups),
            &JoinOptions::default(),
        );
        reconcile(existing, &source, &imported, &Memory::default(), &Options::default())
    };
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        best.0 = best.0.min(time(|| run(&[])));
    }
    let outcome = run(&[]);
    assert_eq!(outcome.creates.len(), count as usize, "all of them are new");
    let existing: Vec<Node> = (0..)
        .zip(outcome.creates)
        .map(|(n, new)| Node {
            id: NodeId::mint(1, n),
            name: new.name,
            spec: new.spec,
            protection: None,
            maintenance: None,
            provenance: Some(Box::new(new.provenance)),
            generation: 0,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        })
        .collect();
    assert!(run(&existing).is_idle(), "the second cycle finds nothing new");
    for _ in 0..rounds {
        best.1 = best.1.min(time(|| run(&existing)));
    }
    Ok(best)
}

fn parse<T: for<'de> serde::Deserialize<'de>>(body: &str) -> T {
    serde_json::from_str(body).expect("the testkit writes what SMD writes")
}
