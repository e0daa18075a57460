//! The commands.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoist_model::Exit;
use hoist_provision::actions::erase::Report;
use hoist_provision::device::probe::Machine;
use hoist_provision::document::{Bytes, Document, Id};
use hoist_provision::facts::{DiskFacts, Facts};
use hoist_provision::images::Progress;
use hoist_provision::pipeline::{self, Applied, Decision, Given, Listener, Shown, decide, look};
use serde::Serialize;

use crate::cli::{ApplyArgs, Output, UndoArgs, Wanted};
use crate::ending::Ending;
use crate::failure::{Failure, chain};
use crate::input;
use crate::provision::reporting;

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

pub(crate) fn validate(wanted: &Wanted, output: Output) -> Result<Exit, Failure> {
    let (document, _) = input::wanted(wanted)?;
    match output {
        Output::Json => print_json(&document)?,
        Output::Text => writeln!(io::stdout(), "the document is without fault")?,
    }
    Ok(Exit::Done)
}

pub(crate) fn plan(wanted: &Wanted, output: Output) -> Result<Exit, Failure> {
    let (document, given) = input::wanted(wanted)?;
    let ending = Ending::of(&document, &given)?;
    let decision = decided(&whole(&document, &ending), &given)?;
    let (afterwards, is_all) = (ending.words(), ending.is_all);
    if output == Output::Json {
        #[derive(Serialize)]
        struct Planned<'a> {
            #[serde(flatten)]
            shown: Shown<'a>,
            afterwards: &'a [String],
        }
        print_json(&Planned { shown: decision.show(), afterwards: &afterwards })?;
    } else {
        if !is_all {
            write!(io::stdout(), "{decision}")?;
        }
        for word in &afterwards {
            writeln!(io::stdout(), "afterwards: {word}")?;
        }
    }
    let is_nothing = decision.is_settled() && !is_all;
    Ok(if is_nothing { Exit::Done } else { Exit::WouldChange })
}

pub(crate) fn apply(args: &ApplyArgs, output: Output) -> Result<Exit, Failure> {
    if args.dry_run {
        return plan(&args.wanted, output);
    }
    let (document, given) = input::wanted(&args.wanted)?;
    let ending = Ending::of(&document, &given)?;
    if ending.is_all {
        return end(&document, &given, &ending);
    }
    let decision = decided(&document, &given).inspect_err(|failure| {
        if let Failure::Found(found) = failure {
            tell(&ending, &document, &reporting::refused(found));
        }
    })?;
    let wanted = args.plan.as_deref();
    let (machine, listener) = (Machine::here(), Arc::new(OnTerminal::default()));
    let to = Arc::clone(&listener);
    let with_erased = |report: hoist_api::provision::Report| {
        let erased = listener.erased().iter().map(reporting::erasure).collect();
        hoist_api::provision::Report { erased, ..report }
    };
    let applied = pipeline::apply(&document, &decision, &machine, &given, wanted, to).inspect_err(
        |error| tell(&ending, &document, &with_erased(reporting::failed(&decision, error, false))),
    )?;
    let told = ending.tell(&document, &with_erased(reporting::applied(&decision, applied)));
    // Nothing but this says what was erased, whoever else does not hear of it.
    let untold = told.as_ref().err();
    say(&decision, applied, (listener.erased().clone(), untold), output)?;
    if let Some(failure) = untold {
        // Programs have it already, in the one document that they read.
        failure.print(Output::Text);
        return Ok(failure.exit());
    }
    ending.end()?;
    Ok(Exit::Done)
}

/// What was done, and what went wrong afterwards.
fn say(
    decision: &Decision,
    applied: Applied,
    (erased, untold): (Vec<Report>, Option<&Failure>),
    output: Output,
) -> Result<(), Failure> {
    match output {
        Output::Json => {
            #[derive(Serialize)]
            struct Ended<'a> {
                hash: &'a str,
                changed: bool,
                resumed: bool,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                erased: Vec<Report>,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                problems: Vec<serde_json::Value>,
            }
            let problems = untold.map(Failure::problems).unwrap_or_default();
            let resumed = applied == Applied::Done { resumed: true };
            let changed = applied != Applied::Nothing;
            print_json(&Ended { hash: decision.hash(), changed, resumed, erased, problems })?;
        }
        Output::Text => {
            let said = match applied {
                Applied::Nothing => "nothing to do: everything is as the document says",
                Applied::Done { resumed: true } => "done, from where it had been cut off",
                Applied::Done { resumed: false } => "done",
            };
            writeln!(io::stdout(), "{said}")?;
        }
    }
    Ok(())
}

/// What did not come to its end has a reason that matters more than who hears of it.
fn tell(ending: &Ending, document: &Document, report: &hoist_api::provision::Report) {
    if let Err(failure) = ending.tell(document, report) {
        eprintln!("warning: {}", chain(&failure));
    }
}

/// Only what follows: told is how it looks now.
fn end(document: &Document, given: &Given, ending: &Ending) -> Result<Exit, Failure> {
    let document = whole(document, ending);
    let report = match decided(&document, given) {
        Ok(decision) if decision.is_settled() => reporting::applied(&decision, Applied::Nothing),
        Ok(decision) => reporting::otherwise(&decision),
        Err(Failure::Found(found)) => reporting::refused(&found),
        Err(failure) => return Err(failure),
    };
    ending.tell(&document, &report)?;
    ending.end()?;
    Ok(Exit::Done)
}

/// Where nothing is asked for but what follows, it follows what the whole document says.
fn whole(document: &Document, ending: &Ending) -> Document {
    let mut document = document.clone();
    if ending.is_all
        && let Some(flow) = &mut document.sections.flow
    {
        flow.actions.clear();
    }
    document
}

pub(crate) fn verify(wanted: &Wanted, output: Output) -> Result<Exit, Failure> {
    let (document, given) = input::wanted(wanted)?;
    let decision = decided(&document, &given)?;
    match output {
        Output::Json => print_json(&decision.show())?,
        Output::Text => write!(io::stdout(), "{decision}")?,
    }
    Ok(if decision.is_settled() { Exit::Done } else { Exit::Failed })
}

pub(crate) fn undo(args: &UndoArgs, output: Output) -> Result<Exit, Failure> {
    let (document, _) = input::wanted(&args.wanted)?;
    let machine = Machine::here();
    let undoing = pipeline::plan_undo(&document, &machine, &[]).map_err(Failure::Found)?;
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

fn decided(document: &Document, given: &Given) -> Result<Decision, Failure> {
    let seen = look(document, &Machine::here(), given);
    decide(document, &seen).map_err(Failure::Found)
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
    lines.extend(disk.unreadable.iter().map(|reason| format!("  cannot be read: {reason}")));
    lines.extend(disk.signatures.iter().map(|signature| format!("  holds {signature}")));
    lines.extend(disk.busy.iter().map(|busy| format!("  in use: {busy}")));
    lines.join("\n") + "\n"
}

/// Says on standard error how it goes.
#[derive(Default)]
struct OnTerminal {
    erased: Mutex<Vec<Report>>,
}

impl OnTerminal {
    fn erased(&self) -> MutexGuard<'_, Vec<Report>> {
        self.erased.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        OnTerminal::erased(self).push(report.clone());
    }
}
