//! `hoist deploy compare`: two runs beside each other.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use hoist_api::client::Client;
use hoist_api::deploy::RunSummary;
use hoist_engine::plan::{Draft, Kind};
use hoist_model::Exit;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::show::{duration, instances};
use super::word;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Differences of time that are worth a line: this much, and this part of the longer one.
const MIN_MS: u64 = 1000;
const MIN_PERCENT: u64 = 20;
/// Lines of a table; `-o wide` and `-o json` have all of them.
const SHOWN: usize = 20;

/// Show how two runs differ: outcomes, times and inputs
///
/// Instances are the same if their task and their node have the same name. What differs comes
/// first where one of them failed, then what took longer, the most first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy compare 01jqz last\n  \
    hoist deploy compare 01jqz last -o json\n\nEnds with 1 if outcomes or inputs differ.")]
pub(super) struct CompareArgs {
    /// The one before: its id, the end of it, or `last`
    #[arg(value_name = "BEFORE", value_parser = super::named)]
    before: String,
    /// The one after: likewise
    #[arg(value_name = "AFTER", value_parser = super::named)]
    after: String,
}

/// An instance in both runs, or in one of them.
#[derive(Debug, Serialize)]
struct Pair {
    name: String,
    before: Option<Side>,
    after: Option<Side>,
    /// It was not made from the same things.
    inputs_changed: bool,
}

#[derive(Debug, Clone, Serialize)]
struct Side {
    state: String,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
}

impl CompareArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let (before, of_before) = sides(&client, &self.before).await?;
        let (after, of_after) = sides(&client, &self.after).await?;
        let pairs = pairs(of_before, of_after);
        let differs = before.outcome != after.outcome || pairs.iter().any(Pair::differs);
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&json!({
                "before": before,
                "after": after,
                "differs": differs,
                "instances": pairs,
            }))?,
            Output::Name => {
                let names = pairs.iter().filter(|pair| pair.differs());
                names.map(|pair| &pair.name).try_for_each(|name| printer.line(name))?;
            }
            Output::Table | Output::Wide => show(printer, &before, &after, &pairs)?,
        }
        Ok(if differs { Exit::Failed } else { Exit::Done })
    }
}

async fn sides(
    client: &Client,
    run: &str,
) -> Result<(RunSummary, BTreeMap<String, Side>), Failure> {
    let summary = client.run(run).await?.summary;
    let draft: Draft = client.run_plan(&summary.id).await?;
    let mut sides = BTreeMap::new();
    for one in instances(client, &summary.id, None).await? {
        let fingerprint = match draft.vertices.get(one.step as usize).map(|vertex| &vertex.kind) {
            Some(Kind::Step(step)) => step.fingerprint.clone(),
            _ => None,
        };
        let took_ms = one.started.zip(one.ended).map(|(from, to)| to.saturating_sub(from));
        let side = Side { state: one.state, attempts: one.attempt, took_ms, fingerprint };
        sides.insert(one.name, side);
    }
    Ok((summary, sides))
}

fn pairs(mut before: BTreeMap<String, Side>, mut after: BTreeMap<String, Side>) -> Vec<Pair> {
    let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    let pair = |name: String| {
        let before = before.remove(&name);
        let after = after.remove(&name);
        let prints = [&before, &after].map(|side| side.as_ref()?.fingerprint.as_ref());
        let inputs_changed = matches!(prints, [Some(one), Some(other)] if one != other);
        Pair { name, before, after, inputs_changed }
    };
    let mut pairs: Vec<Pair> = names.into_iter().map(pair).collect();
    pairs.sort_by_key(|pair| {
        let is_bad = pair.differs() && pair.is_bad();
        let change = pair.times().map_or(0, |(before, after)| before.abs_diff(after));
        (std::cmp::Reverse(is_bad), std::cmp::Reverse(change))
    });
    pairs
}

impl Pair {
    /// It did not end in the same way, or was made from other things.
    fn differs(&self) -> bool {
        self.inputs_changed || self.ended_differently()
    }

    /// That there was nothing left to do is as good as having done it.
    fn ended_differently(&self) -> bool {
        let [before, after] = self
            .states()
            .map(|state| state.map(|word| if word == "unchanged" { "ok" } else { word }));
        before != after
    }

    fn states(&self) -> [Option<&str>; 2] {
        [&self.before, &self.after].map(|side| side.as_ref().map(|side| side.state.as_str()))
    }

    fn is_bad(&self) -> bool {
        let is_bad = |state: &str| matches!(state, "failed" | "interrupted" | "unknown");
        self.states().into_iter().flatten().any(is_bad)
    }

    fn times(&self) -> Option<(u64, u64)> {
        self.before.as_ref()?.took_ms.zip(self.after.as_ref()?.took_ms)
    }

    fn took_another_time(&self) -> bool {
        self.times().is_some_and(|(before, after)| {
            let change = before.abs_diff(after);
            change >= MIN_MS && change * 100 >= before.max(after) * MIN_PERCENT
        })
    }
}

fn show(
    printer: &mut Printer,
    before: &RunSummary,
    after: &RunSummary,
    pairs: &[Pair],
) -> Result<(), Failure> {
    let mut table = Table::new(&["INSTANCE", "BEFORE", "AFTER", "TOOK", "THEN", "INPUTS"]);
    let told = pairs.iter().filter(|pair| pair.differs() || pair.took_another_time());
    let told: Vec<&Pair> = told.collect();
    let shown = if printer.output() == Output::Wide { told.len() } else { SHOWN };
    for pair in told.iter().take(shown) {
        let [state_before, state_after] =
            pair.states().map(|state| state.unwrap_or("not in it").replace('_', " "));
        let took = |side: &Option<Side>| {
            side.as_ref().and_then(|side| side.took_ms).map(duration).unwrap_or_default()
        };
        table.row(vec![
            pair.name.clone(),
            state_before,
            state_after,
            took(&pair.before),
            took(&pair.after),
            if pair.inputs_changed { "changed".to_owned() } else { String::new() },
        ]);
    }
    if !table.is_empty() {
        printer.table(&table)?;
        if told.len() > shown {
            printer.line(format!("… and {} more; `-o wide` shows all", told.len() - shown))?;
        }
        printer.line("")?;
    }
    for (what, run) in [("before", before), ("after", after)] {
        let took = run_took(run).map(|took| format!(" after {took}")).unwrap_or_default();
        printer.line(format!("{what:6}  {}  {}  {}{took}", run.id, run.title, word(run)))?;
    }
    let changed = pairs.iter().filter(|pair| pair.inputs_changed).count();
    let ended = pairs.iter().filter(|pair| pair.ended_differently()).count();
    let tone = if ended + changed == 0 { Tone::Added } else { Tone::Changed };
    printer.toned(
        tone,
        &format!(
            "of {} instances, {ended} ended in another way and {changed} had other inputs",
            pairs.len()
        ),
    )
}

fn run_took(run: &RunSummary) -> Option<String> {
    let parse = |at: &str| at.parse::<Timestamp>().ok();
    let from = parse(&run.created)?;
    let to = parse(run.ended.as_deref()?)?;
    u64::try_from(to.duration_since(from).as_millis()).ok().map(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(state: &str, took_ms: u64, print: &str) -> Side {
        let state = state.to_owned();
        let fingerprint = Some(print.to_owned());
        Side { state, attempts: 1, took_ms: Some(took_ms), fingerprint }
    }

    #[test]
    fn failures_come_first_then_what_took_longer() {
        let before = [
            ("a@n1", side("ok", 100, "x")),
            ("b@n1", side("ok", 1000, "x")),
            ("c@n1", side("ok", 1000, "x")),
            ("d@n1", side("ok", 5, "x")),
        ];
        let after = [
            ("a@n1", side("ok", 120, "x")),
            ("b@n1", side("ok", 9000, "x")),
            ("c@n1", side("failed", 1000, "y")),
            ("e@n1", side("ok", 5, "x")),
        ];
        let map = |of: [(&str, Side); 4]| of.map(|(name, side)| (name.to_owned(), side)).into();
        let pairs = pairs(map(before), map(after));
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(names, ["c@n1", "b@n1", "a@n1", "d@n1", "e@n1"]);
        assert!(pairs[0].inputs_changed && pairs[0].differs());
        assert!(pairs[1].took_another_time() && !pairs[1].differs());
        assert!(!pairs[2].took_another_time() && !pairs[2].differs());
        assert!(pairs[3].differs() && pairs[3].after.is_none());
    }
}
