//! `hoist deploy compare`: two runs side by side.

use std::collections::BTreeMap;

use clap::Args;
use hoist_api::deploy::Instance;
use hoist_model::Exit;
use serde::Serialize;

use super::show::{duration, instances};
use super::word;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Of two times, one that is less than this longer is as long.
const SAME_PERCENT: u64 = 20;
/// Differences below this are nobody's fault.
const SAME_MS: u64 = 500;

/// Show how one run differs from another
///
/// Instances that only one of them has, that ended differently, or that took longer or shorter.
/// Ends with 1 if something differs, as `diff` does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy compare 7x2k last\n  \
    hoist deploy compare 7x2k last -o json")]
pub(super) struct CompareArgs {
    /// The older one
    #[arg(value_name = "RUN")]
    old: String,
    /// The newer one
    #[arg(value_name = "RUN")]
    new: String,
}

/// One instance in both runs.
#[derive(Debug, Serialize)]
struct Difference {
    instance: String,
    old: Option<Seen>,
    new: Option<Seen>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Seen {
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
}

impl CompareArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let (old, new) =
            (client.run(&self.old).await?.summary, client.run(&self.new).await?.summary);
        let before = instances(&client, &old.id, None).await?;
        let after = instances(&client, &new.id, None).await?;
        let found = differences(&before, &after);
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&found)?,
            Output::Name => found.iter().try_for_each(|one| printer.line(&one.instance))?,
            Output::Table | Output::Wide => {
                if !found.is_empty() {
                    printer.table(&table(&found))?;
                }
                let plans = if old.plan == new.plan { "the same plan" } else { "another plan" };
                let (was, is) = (word(&old), word(&new));
                printer.line(format!("{was}, then {is}; {plans}, {} differences", found.len()))?;
            }
        }
        let same = found.is_empty() && old.outcome == new.outcome && old.plan == new.plan;
        Ok(if same { Exit::Done } else { Exit::Failed })
    }
}

fn differences(before: &[Instance], after: &[Instance]) -> Vec<Difference> {
    let seen = |one: &Instance| Seen {
        state: one.state.clone(),
        took_ms: one.started.zip(one.ended).map(|(from, to)| to.saturating_sub(from)),
    };
    let mut all: BTreeMap<&str, (Option<Seen>, Option<Seen>)> = BTreeMap::new();
    for one in before {
        all.entry(&one.name).or_default().0 = Some(seen(one));
    }
    for one in after {
        all.entry(&one.name).or_default().1 = Some(seen(one));
    }
    let differs = |(old, new): &(Option<Seen>, Option<Seen>)| match (old, new) {
        (Some(old), Some(new)) => old.state != new.state || took_otherwise(old, new),
        _ => true,
    };
    let found = all.into_iter().filter(|(_, both)| differs(both));
    found
        .map(|(instance, (old, new))| Difference { instance: instance.to_owned(), old, new })
        .collect()
}

fn took_otherwise(old: &Seen, new: &Seen) -> bool {
    let Some((old, new)) = old.took_ms.zip(new.took_ms) else { return false };
    let apart = old.abs_diff(new);
    apart > SAME_MS && apart * 100 > old.max(new) * SAME_PERCENT
}

fn table(found: &[Difference]) -> Table {
    let mut table = Table::new(&["INSTANCE", "WAS", "TOOK", "IS", "TAKES"]);
    let state =
        |seen: &Option<Seen>| seen.as_ref().map_or("-".to_owned(), |seen| seen.state.clone());
    let took = |seen: &Option<Seen>| {
        seen.as_ref().and_then(|seen| seen.took_ms).map(duration).unwrap_or_default()
    };
    for one in found {
        table.row(vec![
            one.instance.clone(),
            state(&one.old),
            took(&one.old),
            state(&one.new),
            took(&one.new),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, state: &str, took: u64) -> Instance {
        Instance {
            step: 0,
            name: name.to_owned(),
            node: None,
            action: "shell".to_owned(),
            state: state.to_owned(),
            attempt: 1,
            reason: None,
            held_by: None,
            started: Some(1000),
            ended: Some(1000 + took),
            attempts: Vec::new(),
        }
    }

    #[test]
    fn only_what_differs_by_more_than_chance_is_told() {
        let before = [
            instance("same", "ok", 10_000),
            instance("slower", "ok", 10_000),
            instance("short", "ok", 10),
            instance("failed", "ok", 1),
            instance("gone", "ok", 1),
        ];
        let after = [
            instance("same", "ok", 11_000),
            instance("slower", "ok", 20_000),
            instance("short", "ok", 400),
            instance("failed", "failed", 1),
            instance("new", "ok", 1),
        ];
        let found = differences(&before, &after);
        let names: Vec<&str> = found.iter().map(|one| one.instance.as_str()).collect();
        assert_eq!(names, ["failed", "gone", "new", "slower"]);
    }
}
