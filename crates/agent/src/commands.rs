//! The commands.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use hoist_model::Exit;
use hoist_provision::actions::erase::Report;
use hoist_provision::device::probe::Machine;
use hoist_provision::document::{Bytes, Document, Id};
use hoist_provision::facts::{DiskFacts, Facts};
use hoist_provision::images::Progress;
use hoist_provision::pipeline::{self, Applied, Decision, Given, Listener, decide, look};
use serde::Serialize;

use crate::cli::{ApplyArgs, Output, UndoArgs, Wanted};
use crate::failure::Failure;
use crate::input;

pub(crate) fn facts(output: Output) -> Result<Exit, Failure> {
    let probed = Machine::here().probe();
    for failure in &probed.failures {
        eprintln!("warning: {failure}");
    }
    match output {
        Output::Json => print_json(&probed.facts)?,
        Output::Text => io::stdout().write_all(shown(&probed.facts).as_bytes())?,
    }
    let is_whole = probed.failures.is_empty();
    Ok(if is_whole { Exit::Done } else { Exit::Degraded })
}

pub(crate) fn plan(wanted: &Wanted, output: Output) -> Result<Exit, Failure> {
    let (_, _, decision) = decided(wanted)?;
    print_decision(&decision, output)?;
    Ok(if decision.is_settled() { Exit::Done } else { Exit::WouldChange })
}

pub(crate) fn apply(args: &ApplyArgs, output: Output) -> Result<Exit, Failure> {
    if args.dry_run {
        return plan(&args.wanted, output);
    }
    let (document, given, decision) = decided(&args.wanted)?;
    let wanted = args.plan.as_deref();
    let (machine, listener) = (Machine::here(), Arc::new(OnTerminal::default()));
    let to = Arc::clone(&listener);
    let applied = pipeline::apply(&document, &decision, &machine, &given, wanted, to)?;
    let erased = listener.erased.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let said = match (output, applied) {
        (Output::Json, applied) => {
            #[derive(Serialize)]
            struct Ended<'a> {
                hash: &'a str,
                changed: bool,
                resumed: bool,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                erased: Vec<Report>,
            }
            let resumed = applied == Applied::Done { resumed: true };
            let changed = applied != Applied::Nothing;
            return print_json(&Ended { hash: decision.hash(), changed, resumed, erased })
                .map(|()| Exit::Done);
        }
        (Output::Text, Applied::Nothing) => "nothing to do: everything is as the document says",
        (Output::Text, Applied::Done { resumed: true }) => "done, from where it had been cut off",
        (Output::Text, Applied::Done { resumed: false }) => "done",
    };
    writeln!(io::stdout(), "{said}")?;
    Ok(Exit::Done)
}

pub(crate) fn verify(wanted: &Wanted, output: Output) -> Result<Exit, Failure> {
    let (_, _, decision) = decided(wanted)?;
    print_decision(&decision, output)?;
    Ok(if decision.is_settled() { Exit::Done } else { Exit::Failed })
}

pub(crate) fn undo(args: &UndoArgs, output: Output) -> Result<Exit, Failure> {
    let (document, _) = input::wanted(&args.wanted)?;
    let machine = Machine::here();
    let undoing = pipeline::plan_undo(&document, &machine).map_err(Failure::Found)?;
    let disks: Vec<String> = undoing.disks().iter().map(ToString::to_string).collect();
    if !args.dry_run {
        pipeline::undo(&undoing, &machine)?;
    }
    match output {
        Output::Json => {
            #[derive(Serialize)]
            struct Undone {
                disks: Vec<String>,
                changed: bool,
            }
            let changed = !disks.is_empty() && !args.dry_run;
            print_json(&Undone { disks, changed })?;
        }
        Output::Text if disks.is_empty() => {
            writeln!(io::stdout(), "nothing to put back: no disk is of this transaction")?;
        }
        Output::Text => {
            let word = if args.dry_run { "can be put back" } else { "put back" };
            writeln!(io::stdout(), "{word}: {}", disks.join(", "))?;
        }
    }
    Ok(Exit::Done)
}

fn decided(wanted: &Wanted) -> Result<(Document, Given, Decision), Failure> {
    let (document, given) = input::wanted(wanted)?;
    let seen = look(&document, &Machine::here(), &given);
    let decision = decide(&document, &seen).map_err(Failure::Found)?;
    Ok((document, given, decision))
}

fn print_decision(decision: &Decision, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => print_json(&decision.show()),
        Output::Text => Ok(write!(io::stdout(), "{decision}")?),
    }
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    Ok(writeln!(io::stdout(), "{text}")?)
}

fn shown(facts: &Facts) -> String {
    let mut text = String::new();
    for disk in &facts.disks {
        text.push_str(&shown_disk(disk));
    }
    text
}

fn shown_disk(disk: &DiskFacts) -> String {
    let mut words = vec![
        disk.kernel_name.clone(),
        Bytes(disk.size).to_string(),
        format!("sectors of {}", disk.logical_sector),
    ];
    let known = [("serial", &disk.serial), ("wwn", &disk.wwn), ("model", &disk.model)];
    let known = known.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    words.extend(known.map(|(name, value)| format!("{name} {value}")));
    let mut lines = vec![words.join(", ")];
    if !disk.erase.is_empty() {
        let commands: Vec<&str> = disk.erase.iter().map(|command| command.as_str()).collect();
        lines.push(format!("  can erase itself: {}", commands.join(", ")));
    }
    lines.extend(disk.signatures.iter().map(|signature| format!("  holds {signature}")));
    lines.extend(disk.busy.iter().map(|busy| format!("  in use: {busy}")));
    lines.join("\n") + "\n"
}

/// Says on standard error how it goes.
#[derive(Default)]
struct OnTerminal {
    erased: Mutex<Vec<Report>>,
}

impl Listener for OnTerminal {
    fn begins(&self, step: &str) {
        eprintln!("{step}");
    }

    fn progress(&self, image: &Id, Progress { done, total, rate }: Progress) {
        let of = total.map(|total| format!(" of {}", Bytes(total))).unwrap_or_default();
        eprintln!("  {image}: {}{of}, {} MiB/s", Bytes(done), rate >> 20);
    }

    fn erased(&self, report: &Report) {
        let Report { disk, evidence, reason, .. } = report;
        match reason {
            None => eprintln!("  {disk}: erased, {} places were read back", evidence.samples),
            Some(reason) => eprintln!("  {disk}: not erased: {reason}"),
        }
        self.erased.lock().unwrap_or_else(PoisonError::into_inner).push(report.clone());
    }
}
