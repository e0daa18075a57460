//! Resident memory per node, in a fresh process that does nothing else.

use anyhow::Result;

use crate::inside;
use crate::sample::{LARGE_SITE, SITE};
use crate::verdict::{Limit, Row, grouped, multiple};

const LIMIT: Limit = Limit::AtMost(1024.0);

pub(crate) fn measure() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for count in [SITE, LARGE_SITE] {
        let grown = inside::ask(&["roster", &count.to_string()])?;
        rows.push(row(format!("roster of {} nodes, resident", grouped(count)), grown, count, true));
    }
    for count in [SITE, LARGE_SITE] {
        let grown = inside::ask(&["opened", &count.to_string()])?;
        let what =
            format!("embedded store of {} nodes opened, with its page cache", grouped(count));
        rows.push(row(what, grown, count, false));
    }
    Ok(rows)
}

fn row(what: String, grown: u64, count: u32, promised: bool) -> Row {
    let mib = grown / (1024 * 1024);
    Row {
        what,
        measured: multiple(grown, u64::from(count)),
        unit: " B/node",
        limit: promised.then_some(LIMIT),
        detail: format!("{mib} MiB"),
    }
}
