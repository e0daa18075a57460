//! Measures hoist against the limits it promises. Times are only ever compared with times of the
//! same run, so the table means the same on every machine; memory is counted in bytes.
//!
//! `hoist-bench` measures everything, `hoist-bench lookup change` only those subjects. Measurements
//! in a fresh process run as `hoist-bench --inside …`, started by the bench itself.

mod boot;
mod build;
mod bulk;
mod change;
mod compile;
mod cores;
mod engine;
mod events;
mod images;
mod import;
mod inside;
mod instructions;
mod knock;
mod lookup;
mod memory;
mod nginx;
mod resident;
mod sample;
mod seeds;
mod ssh;
mod stopwatch;
mod storm;
mod sync;
mod verdict;
mod whole;
mod wrk;

use std::io::Write;

use anyhow::{Result, bail};

use verdict::Row;

/// The one of the `hoist` binary: memory is measured as people will see it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Subject = fn() -> Result<Vec<Row>>;

const SUBJECTS: [(&str, &str, Subject); 19] = [
    ("lookup", "by-MAC lookup at 100,000 nodes, as a multiple of a HashMap", || {
        Ok(lookup::measure())
    }),
    ("memory", "resident memory of the roster", memory::measure),
    ("build", "roster of 100,000 nodes from the embedded store", build::measure),
    ("change", "one node's change at 100,000 nodes, as a part of a full rebuild", || {
        Ok(change::measure())
    }),
    ("bulk", "bulk apply of 100,000 nodes over HTTP, peak memory", bulk::measure),
    ("boot", "boot scripts of 100,000 nodes over HTTP", boot::measure),
    ("bss", "boot scripts of a BSS record over HTTP", || Ok(vec![boot::bss()?])),
    ("seeds", "cloud-init documents of 100,000 nodes", seeds::measure),
    ("ssh", "tasks on a node that is reached by ssh", ssh::measure),
    ("instructions", "the cost of a boot script, counted by callgrind", instructions::measure),
    ("bytes", "script, initrd and image for 100 clients at once", storm::bytes),
    (
        "storm",
        "scripts for 100,000 nodes at once, while boot parameters are written and the store is killed",
        storm::scripts,
    ),
    ("import", "an SMD answer parsed, joined and reconciled", import::measure),
    ("sync", "100,000 nodes imported from an SMD over HTTP", sync::measure),
    ("compile", "Fuel's tasks for 1,000 nodes, from text to a plan", compile::measure),
    ("engine", "the cost of ordering, recording and starting steps", engine::measure),
    ("whole", "a run of Fuel's tasks for 1,000 nodes, kept and read back", whole::measure),
    ("events", "the delay of run events at a watching client", events::measure),
    ("images", "a system's image, from its file to a disk", images::measure),
];

/// The argument with which this program starts itself to keep the programs of steps.
const SUPERVISE_PROGRAMS: &str = "supervise-programs";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == SUPERVISE_PROGRAMS) {
        return Ok(hoist_engine::execute::supervisor::main()?);
    }
    if arguments.first().is_some_and(|argument| argument == ssh::WORK_OVER_SSH) {
        let supervisor = ["/proc/self/exe", SUPERVISE_PROGRAMS].map(Into::into).to_vec();
        hoist_engine::ssh::serve(|_| hoist_deploy::actions::catalog(), Some(supervisor));
        return Ok(());
    }
    if let Some(("--inside", rest)) =
        arguments.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return inside::run(rest);
    }
    if let Some(unknown) = arguments.iter().find(|a| !SUBJECTS.iter().any(|(name, ..)| name == a)) {
        let known = SUBJECTS.map(|(name, ..)| name).join(", ");
        bail!("unknown subject `{unknown}`; use one of {known}");
    }
    let mut missed = 0;
    for (name, title, measure) in SUBJECTS {
        if !arguments.is_empty() && !arguments.iter().any(|argument| argument == name) {
            continue;
        }
        let rows = measure()?;
        missed += rows.iter().filter(|row| row.is_missed()).count();
        verdict::print(&mut std::io::stdout().lock(), title, &rows)?;
    }
    let mut out = std::io::stdout().lock();
    match missed {
        0 => writeln!(out, "every target is met")?,
        missed => bail!("{missed} targets are missed"),
    }
    Ok(())
}
