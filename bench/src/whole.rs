//! A run of Fuel's real tasks for 1,000 nodes, none of which does anything: in memory, kept in a
//! file, and read back from there.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use hoist_engine::file_journal::FileJournal;
use hoist_engine::{Plan, StepId};

use crate::compile;
use crate::engine::{self, JournalCost};
use crate::stopwatch::{best_of, ratio, time};
use crate::verdict::{Limit, Row};

const ROUNDS: usize = 5;
const MAX_SECONDS: f64 = 1.0;
const LEAST_PER_SECOND: f64 = 20_000.0;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let plan = Arc::new(compile::plan()?);
    let dir = tempfile::tempdir_in(".").context("a place for journals")?;
    let path = dir.path().join("whole");
    let mut rows = vec![in_memory(&plan), kept(&plan, &path)?];
    rows.push(read_back(&plan, &path, "its journal read back after a kill")?);
    fs_err::remove_file(path.with_added_extension("snapshot"))?;
    rows.push(read_back(&plan, &path, "the same without its snapshot")?);
    rows.push(plan_read_back(&plan)?);
    Ok(rows)
}

fn plan_read_back(plan: &Plan) -> Result<Row> {
    let bytes = serde_json::to_vec(plan.draft())?;
    let read = || Plan::new(serde_json::from_slice(&bytes).expect("it was just written"));
    let (ours, bare) = best_of(ROUNDS, read, || crc32c::crc32c(black_box(&bytes)));
    Ok(Row {
        what: "that plan read back from 27 MB of JSON".to_owned(),
        measured: ours.as_secs_f64(),
        unit: " s",
        limit: None,
        detail: format!("{} bytes of JSON, their checksum {bare:.1?}", bytes.len()),
    })
}

fn in_memory(plan: &Arc<Plan>) -> Row {
    let (ours, bare) =
        best_of(ROUNDS, || engine::run(plan, &mut Vec::new()), || walk(black_box(plan)));
    Row {
        what: "Fuel's tasks for 1,000 nodes run in memory".to_owned(),
        measured: ours.as_secs_f64(),
        unit: " s",
        limit: Some(Limit::AtMost(MAX_SECONDS)),
        detail: format!(
            "{} vertices, {:.0} x of walking them with a counter for each ({bare:.1?})",
            plan.len(),
            ratio(ours, bare)
        ),
    }
}

/// Nothing but what any order costs.
fn walk(plan: &Plan) -> usize {
    let mut left: Vec<usize> = plan.ids().map(|id| plan.vertex(id).after.len()).collect();
    let mut ready: VecDeque<StepId> = plan.ids().filter(|id| left[id.0 as usize] == 0).collect();
    let mut done = 0;
    while let Some(id) = ready.pop_front() {
        done += 1;
        for next in plan.successors(id) {
            let left = &mut left[next.0 as usize];
            *left -= 1;
            if *left == 0 {
                ready.push_back(*next);
            }
        }
    }
    done
}

/// With its snapshots, as a controller keeps it; the file is read back afterwards.
fn kept(plan: &Arc<Plan>, path: &Path) -> Result<Row> {
    let dir = path.parent().context("a file in a directory")?;
    let JournalCost { ratio, lots, .. } = engine::keep(plan, dir)?;
    let mut journal = FileJournal::create(path)?;
    let ours = time(|| engine::run(plan, &mut journal));
    let records = journal.count();
    Ok(Row {
        what: "transitions of that run journaled, with snapshots".to_owned(),
        measured: f64::from(records) / ours.as_secs_f64(),
        unit: "/s",
        limit: Some(Limit::AtLeast(LEAST_PER_SECOND)),
        detail: format!(
            "{records} records in {ours:.1?}; without snapshots {ratio:.2} x of appending and \
             syncing the same in {lots} lots"
        ),
    })
}

fn read_back(plan: &Arc<Plan>, path: &Path, what: &str) -> Result<Row> {
    let (_, run) = FileJournal::recover(path, plan)?;
    ensure!(run.outcome().is_some(), "all of it is there");
    let (ours, bare) = best_of(
        ROUNDS,
        || FileJournal::recover(path, plan).map(|(_, run)| run),
        || fs_err::read(path).map(|bytes| crc32c::crc32c(&bytes)),
    );
    let bytes = fs_err::metadata(path)?.len();
    Ok(Row {
        what: what.to_owned(),
        measured: ours.as_secs_f64(),
        unit: " s",
        limit: Some(Limit::AtMost(MAX_SECONDS)),
        detail: format!(
            "{:.0} x of reading {bytes} bytes and their checksum ({bare:.1?})",
            ratio(ours, bare)
        ),
    })
}
