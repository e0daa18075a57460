//! How long a controller needs until it can answer.

use std::sync::Arc;

use anyhow::Result;
use hoist_model::Node;
use hoist_site::Registry;
use hoist_site::registry::ChangeGuard;
use hoist_store::Store;
use hoist_store::embedded::{EmbeddedStore, Retention};

use crate::sample::{self, SITE};
use crate::stopwatch::{best_of, ratio, time};
use crate::verdict::{Limit, Row};

const ROUNDS: usize = 5;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let dir = tempfile::tempdir()?;
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), Retention::default())?);
    runtime.block_on(sample::fill(store.as_ref(), SITE, Vec::new()))?;
    let texts: Vec<Vec<u8>> = (0..SITE).map(|n| sample::record(n).value).collect();
    let open = || {
        let opened = runtime.block_on(Registry::open(Arc::clone(&store), ChangeGuard::default()));
        opened.expect("the store was just filled")
    };
    assert_eq!(open().roster().len(), SITE as usize, "everything is read");
    let parse = || -> Vec<Node> {
        let parse = |text: &Vec<u8>| serde_json::from_slice(text).expect("it was just written");
        texts.iter().map(parse).collect()
    };
    let (built, parsed) = best_of(ROUNDS, open, || (parse(), parse()));
    let resources: Vec<_> = open().roster().resources().collect();
    let indexed = time(|| {
        let incarnation = hoist_site::roster::Incarnation::new("bench");
        hoist_site::Roster::build(incarnation, 1, 0, resources.into_iter())
    });
    Ok(vec![Row {
        what: "roster of 100,000 nodes from the embedded store / parsing the nodes twice"
            .to_owned(),
        measured: ratio(built, parsed),
        unit: "x",
        limit: Some(Limit::AtMost(1.0)),
        detail: format!(
            "{:.0} ms and {:.0} ms; indexes alone {:.0} ms",
            millis(built),
            millis(parsed),
            millis(indexed)
        ),
    }])
}

fn millis(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
