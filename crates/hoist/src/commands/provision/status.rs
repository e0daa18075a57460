//! `hoist provision status`.

use clap::Args;
use hoist_api::client::Client;
use hoist_api::provision::{
    Counts, Erasure, ErasureVerdict, NodeDiagnostic, NodeRunState, Progress, ProvisionRun,
    ProvisionRunState, RunNode, ShownKey,
};
use hoist_diagnostic::Diagnostic;
use hoist_model::Exit;

use super::{Shell, shown_key};
use crate::failure::Failure;
use crate::printer::{Output, Printer, plain};
use crate::table::Table;

/// Limit of problems per node in a table; `-o json` has all.
const MAX_TOLD: usize = 3;

/// Show the progress of runs and their nodes
///
/// Without a name, lists the runs. With a run, `last`, or a node, shows its nodes: the current step
/// of the agent, the written bytes and their rate, and failures. Exits with 0 if all is done, with
/// 1 if a node failed, with 4 if the run continues or waits for an operator, with 8 if it was
/// aborted.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist provision status\n  hoist provision status last --watch\n  \
    hoist provision status n1 -o json"
)]
pub(super) struct StatusArgs {
    /// A run, `last`, or a node
    #[arg(value_name = "RUN|NODE")]
    name: Option<String>,

    /// Go on until it is over
    #[arg(long, requires = "name")]
    watch: bool,
}

impl StatusArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let Some(name) = self.name else { return list(shell, &client).await };
        if self.watch {
            return super::watch::watch(shell, &client, &name).await;
        }
        let run = find(&client, &name).await?;
        show(&mut shell.printer, &run)?;
        Ok(exit(&run))
    }
}

/// The run of that name, or the last one of the node of that name, with this node alone.
pub(super) async fn find(client: &Client, name: &str) -> Result<ProvisionRun, Failure> {
    if let Some(run) = client.provision_run(name).await? {
        return Ok(run);
    }
    let found = client.provision_run_of(name).await?;
    found.ok_or_else(|| {
        Failure::missing(format!("run or provisioned node `{name}`"))
            .with_hint("`hoist provision status` lists the runs")
    })
}

async fn list(shell: &mut Shell, client: &Client) -> Result<Exit, Failure> {
    let runs = client.provision_runs().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(&runs)?,
        Output::Name => runs.iter().try_for_each(|run| printer.line(&run.run))?,
        Output::Table | Output::Wide => {
            let mut table = Table::new(&["RUN", "STATE", "NODES", "SELECTOR", "BY", "STARTED"]);
            for run in &runs {
                table.row(vec![
                    run.run.clone(),
                    run.state.to_string(),
                    told(run.counts),
                    run.selector.clone(),
                    plain(&run.by),
                    run.started.to_string(),
                ]);
            }
            printer.table(&table)?;
        }
    }
    Ok(Exit::Done)
}

pub(super) fn line(node: &RunNode) -> String {
    let how = Some(doing(node)).filter(|how| !how.is_empty() && !node.state.is_over());
    let how = how.map(|how| format!(": {how}")).unwrap_or_default();
    format!("{} {}{how}", node.node, state(node))
}

/// An undo in progress is shown instead of the original state.
pub(super) fn state(node: &RunNode) -> String {
    let undo = node.undo && !matches!(node.state, NodeRunState::Undone);
    if undo { format!("{} (undo)", node.state) } else { node.state.to_string() }
}

/// `run 01m7… running (1 running, 2 done)`.
pub(super) fn headline(run: &ProvisionRun) -> String {
    let why = run.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("run {} {}{why} ({})", run.run, run.state, told(run.counts))
}

pub(super) fn show(printer: &mut Printer, run: &ProvisionRun) -> Result<(), Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => return printer.value(run),
        Output::Name => {
            return run.nodes.iter().try_for_each(|node| printer.line(&*node.node));
        }
        Output::Table | Output::Wide => {}
    }
    printer.line(headline(run))?;
    let mut table = Table::new(&["NODE", "STATE", "PROFILE", "TRY", "DOING"]);
    for node in &run.nodes {
        table.row(vec![
            node.node.to_string(),
            state(node),
            node.profile.to_string(),
            node.attempt.to_string(),
            doing(node),
        ]);
    }
    printer.table(&table)?;
    let problems: Vec<_> = run.nodes.iter().flat_map(problems).collect();
    let erasures: Vec<_> = run.nodes.iter().flat_map(erasures).collect();
    let keys: Vec<_> = run.nodes.iter().flat_map(keys).collect();
    problems.iter().chain(&erasures).chain(&keys).try_for_each(|line| printer.line(line))
}

/// Who else has the token of a node, and how it is let in.
pub(super) fn keys(node: &RunNode) -> Vec<String> {
    let name = &node.node;
    let claimed = node.claimed.iter().filter(|_| !node.quarantined.is_empty());
    let claimed = claimed.map(|key| format!("{name}: key {} has the token", shown_key(key)));
    let quarantined = node.quarantined.iter().map(|key| {
        let ShownKey { key: print, .. } = key;
        format!(
            "{name}: key {} is quarantined; `hoist provision retry {name} --key {print}` lets it in",
            shown_key(key)
        )
    });
    let elsewhere = node
        .elsewhere
        .iter()
        .map(|from| format!("{name}: the token was also used from {from} and is refused there"));
    claimed.chain(quarantined).chain(elsewhere).collect()
}

/// The note for operators, or the progress.
pub(super) fn doing(node: &RunNode) -> String {
    match &node.note {
        Some(note) => plain(note),
        None => node.progress.as_ref().map(shown).unwrap_or_default(),
    }
}

/// `images image root: 512 MiB of 2.0 GiB (25 %), 310 MiB/s`.
fn shown(progress: &Progress) -> String {
    let Progress { action, step, done, total, rate, message, unit, .. } = progress;
    let bytes = unit.as_deref().is_none_or(|unit| unit == "bytes");
    let amount = |n: u64| if bytes { size(n) } else { n.to_string() };
    let what = plain(&format!("{action} {step}")).trim().to_owned();
    let amounts = done.map(|done| {
        let of = total.filter(|total| *total > 0).map(|total| {
            let percent = u128::from(done) * 100 / u128::from(total);
            format!(" of {} ({percent} %)", amount(total))
        });
        format!(": {}{}", amount(done), of.unwrap_or_default())
    });
    let rate = rate.map(|rate| format!(", {}/s", amount(rate)));
    let message = message.as_ref().map(|message| format!(" ({})", plain(message)));
    [Some(what), amounts, rate, message].into_iter().flatten().collect()
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match (tenths / 10, tenths % 10) {
        (whole, _) if unit == 0 || whole >= 100 => format!("{whole} {}", UNITS[unit]),
        (whole, tenth) => format!("{whole}.{tenth} {}", UNITS[unit]),
    }
}

pub(super) fn problems(node: &RunNode) -> Vec<String> {
    let told = |found: &NodeDiagnostic| {
        let NodeDiagnostic { code, class, diagnostic, evidence, .. } = found;
        let Diagnostic { at, message, hint } = diagnostic;
        let place = if at.is_empty() { String::new() } else { format!("{at}: ") };
        let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        let seen = match evidence.as_slice() {
            [] => String::new(),
            seen => format!(" [{}]", seen.join(", ")),
        };
        plain(&format!("{}: {place}{message} ({code}, {class}){hint}{seen}", node.node))
    };
    node.problems.iter().take(MAX_TOLD).map(told).collect()
}

pub(super) fn erasures(node: &RunNode) -> impl Iterator<Item = String> {
    node.erased.iter().map(|erasure| plain(&format!("{}: {}", node.node, erased(erasure))))
}

/// `disk os erased by sanitize_crypto: nvme0n1, serial S1, 894 GiB; 64 samples read back, … UTC`.
fn erased(erasure: &Erasure) -> String {
    let Erasure { disk, kernel_name, serial, wwn, size: bytes, method, ended, .. } = erasure;
    let named = [("serial", serial), ("wwn", wwn)].into_iter();
    let named = named.filter_map(|(word, value)| Some(format!("{word} {}", value.as_ref()?)));
    let who: Vec<String> =
        [kernel_name.clone()].into_iter().chain(named).chain([size(*bytes)]).collect();
    let who = who.join(", ");
    if erasure.verdict == ErasureVerdict::NotErased {
        let reason = erasure.reason.as_deref().unwrap_or("no reason was given");
        return format!("disk {disk} NOT erased by {method}: {who}; {reason}");
    }
    let held = erasure.held.map(|held| format!(", {held} of them held data before"));
    let says = erasure.says.as_ref().map(|says| format!(", {says}"));
    let held = held.unwrap_or_default();
    let says = says.unwrap_or_default();
    let samples = erasure.samples;
    format!(
        "disk {disk} erased by {method}: {who}; {samples} samples read back{held}{says}; {ended}"
    )
}

fn told(counts: Counts) -> String {
    let Counts { waiting, active, done, failed, aborted, undone, .. } = counts;
    let parts = [
        (waiting, "waiting"),
        (active, "under way"),
        (done, "done"),
        (failed, "failed"),
        (aborted, "aborted"),
        (undone, "undone"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    parts.join(", ")
}

pub(super) fn exit(run: &ProvisionRun) -> Exit {
    match run.state {
        ProvisionRunState::Done => Exit::Done,
        ProvisionRunState::Failed => Exit::Failed,
        ProvisionRunState::Running | ProvisionRunState::Stopped => Exit::Waiting,
        ProvisionRunState::Aborted => Exit::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 1023, 1024, 1536, 150 << 20, 5 << 40].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "150 MiB", "5.0 TiB"]);
    }

    #[test]
    fn quarantined_key_is_shown_with_address_and_remedy() {
        let node: RunNode = serde_json::from_value(serde_json::json!({
            "node": "n1", "id": hoist_model::NodeId::from_bits(1), "run": "r", "profile": "p",
            "state": "working", "since": "2026-01-02T03:04:05Z", "attempt": 1,
            "claimed": {"key": "aa", "at": "2026-01-02T03:04:05Z", "from": "10.0.0.1"},
            "quarantined": [{"key": "bb", "at": "2026-01-02T03:04:06Z", "from": "10.0.0.2"}],
            "elsewhere": ["10.0.0.3"],
        }))
        .unwrap();
        assert_eq!(
            keys(&node),
            [
                "n1: key aa from 10.0.0.1 at 2026-01-02T03:04:05Z has the token",
                "n1: key bb from 10.0.0.2 at 2026-01-02T03:04:06Z is quarantined; `hoist provision \
                 retry n1 --key bb` lets it in",
                "n1: the token was also used from 10.0.0.3 and is refused there",
            ]
        );
    }

    #[test]
    fn an_erased_disk_is_named_with_what_proves_it() {
        let mut erasure: Erasure = serde_json::from_value(serde_json::json!({
            "disk": "os", "kernel_name": "nvme0n1", "serial": "S1", "size": 1 << 30,
            "method": "sanitize_crypto", "verdict": "erased", "started": "2026-01-02T03:04:05Z",
            "ended": "2026-01-02T03:04:06Z", "samples": 64, "sample": 65536, "held": 9,
            "says": "sanitize status 0x0101",
        }))
        .unwrap();
        assert_eq!(
            erased(&erasure),
            "disk os erased by sanitize_crypto: nvme0n1, serial S1, 1.0 GiB; 64 samples read back, 9 \
             of them held data before, sanitize status 0x0101; 2026-01-02T03:04:06Z"
        );
        erasure.verdict = ErasureVerdict::NotErased;
        erasure.reason = Some("the disk refused the command with status 0x002".to_owned());
        assert_eq!(
            erased(&erasure),
            "disk os NOT erased by sanitize_crypto: nvme0n1, serial S1, 1.0 GiB; the disk refused \
             the command with status 0x002"
        );
    }

    #[test]
    fn progress_says_how_much_of_what_and_how_fast() {
        let progress = Progress {
            action: "images".to_owned(),
            step: "image root".to_owned(),
            done: Some(512 << 20),
            total: Some(2 << 30),
            unit: None,
            rate: Some(310 << 20),
            message: Some("from\x1b[2J mirror".to_owned()),
            at: jiff::Timestamp::UNIX_EPOCH,
        };
        assert_eq!(
            shown(&progress),
            "images image root: 512 MiB of 2.0 GiB (25 %), 310 MiB/s (from\\u{1b}[2J mirror)"
        );
    }
}
