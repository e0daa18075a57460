//! The commands of a manual run. `provision` has the command that works with a controller.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hoist_device::apply::{self, ApplyError, ApplyOutcome, Listener};
use hoist_device::images::{Progress, WaitNotice};
use hoist_device::observe::{SourceTimeout, elsewhere, observe, observe_until};
use hoist_device::probe::Machine;
use hoist_device::{RunInputs, undo};
use hoist_diagnostic::chain;
use hoist_model::Exit;
use hoist_provision::document::{Bytes, Document, Id};
use hoist_provision::facts::{DiskFacts, Facts};
use hoist_provision::plan::{PlanView, ProvisionPlan, decide};
use hoist_provision::steps::erase::EraseReport;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use crate::cli::{ApplyArgs, DocumentArgs, Output, UndoArgs};
use crate::failure::Failure;
use crate::final_actions::FinalActions;
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

pub(crate) fn validate(args: &DocumentArgs, output: Output) -> Result<Exit, Failure> {
    let (document, _) = input::load(args)?;
    match output {
        Output::Json => print_json(&document)?,
        Output::Text => writeln!(io::stdout(), "the document is valid")?,
    }
    Ok(Exit::Done)
}

pub(crate) fn plan(
    args: &DocumentArgs,
    facts: Option<&Path>,
    output: Output,
) -> Result<Exit, Failure> {
    let other = facts.map(|path| input::facts(path, &args.file)).transpose()?;
    let (document, given) = input::load(args)?;
    let finals = FinalActions::of(&document, &given)?;
    let document = whole(&document, &finals);
    let decision = match other {
        None => decided(&document, &given)?,
        Some(facts) => {
            let machine = elsewhere(facts, &given);
            decide(&document, &machine).map_err(Failure::Found)?
        }
    };
    let afterwards = finals.descriptions();
    let is_all = finals.is_all;
    if output == Output::Json {
        #[derive(Serialize)]
        struct PlanOutput<'a> {
            #[serde(flatten)]
            shown: PlanView<'a>,
            afterwards: &'a [String],
            /// The file that the machine is known by. Such a plan cannot be applied.
            #[serde(skip_serializing_if = "Option::is_none")]
            facts: Option<&'a Path>,
        }
        print_json(&PlanOutput { shown: decision.show(), afterwards: &afterwards, facts })?;
    } else {
        if let Some(path) = facts {
            let path = path.display();
            writeln!(
                io::stdout(),
                "plan for the facts in `{path}`, not for this machine: it cannot be applied"
            )?;
        }
        if !is_all {
            write!(io::stdout(), "{decision}")?;
        }
        for action in &afterwards {
            writeln!(io::stdout(), "afterwards: {action}")?;
        }
    }
    let has_no_effect = decision.is_settled() && !is_all;
    Ok(if has_no_effect { Exit::Done } else { Exit::WouldChange })
}

pub(crate) fn apply(args: &ApplyArgs, output: Output) -> Result<Exit, Failure> {
    if args.dry_run {
        return plan(&args.document, None, output);
    }
    let (document, given) = input::load(&args.document)?;
    let finals = FinalActions::of(&document, &given)?;
    if finals.is_all {
        return run_final_actions(&document, &given, &finals);
    }
    let machine = Machine::here();
    let listener = Arc::new(OnTerminal::default());
    let to: Arc<dyn Listener> = Arc::<OnTerminal>::clone(&listener);
    let timeout = SourceTimeout {
        timeout: Some(Duration::from_secs(args.source_timeout)),
        notices: apply::notices(&to),
        ..SourceTimeout::default()
    };
    let seen = observe_until(&document, &machine, &given, &timeout);
    let decision = decide(&document, &seen).and_then(ProvisionPlan::answered);
    let decision = decision.map_err(Failure::Found).inspect_err(|failure| {
        if let Failure::Found(found) = failure {
            send_report(&finals, &document, &reporting::refused(found));
        }
    })?;
    let wanted = args.plan.as_deref();
    let with_erased = |report: hoist_api::provision::Report| {
        let erased = listener.erased().iter().map(reporting::erasure).collect();
        hoist_api::provision::Report { erased, ..report }
    };
    let report_failure = |error: &ApplyError| {
        let report = with_erased(reporting::failed(&decision, error, false));
        send_report(&finals, &document, &report);
    };
    let applied = apply::apply(&document, &decision, &machine, &given, wanted, to)
        .inspect_err(report_failure)?;
    let sent = finals.send_report(&document, &with_erased(reporting::applied(&decision, applied)));
    // This output is the only record of the erasures when the report could not be sent.
    let unsent = sent.as_ref().err();
    print_applied(&decision, applied, listener.erased().clone(), unsent, output)?;
    if let Some(failure) = unsent {
        // The JSON output already contains the failure.
        failure.print(Output::Text);
        return Ok(failure.exit());
    }
    finals.restart()?;
    Ok(Exit::Done)
}

/// Prints the outcome of the apply, with any failure that followed it.
fn print_applied(
    decision: &ProvisionPlan,
    applied: ApplyOutcome,
    erased: Vec<EraseReport>,
    unsent: Option<&Failure>,
    output: Output,
) -> Result<(), Failure> {
    match output {
        Output::Json => {
            #[derive(Serialize)]
            struct ApplyOutput<'a> {
                hash: &'a str,
                changed: bool,
                resumed: bool,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                erased: Vec<EraseReport>,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                problems: Vec<serde_json::Value>,
            }
            let problems = unsent.map(Failure::problems).unwrap_or_default();
            let resumed = applied == ApplyOutcome::Done { resumed: true };
            let changed = applied != ApplyOutcome::Nothing;
            print_json(&ApplyOutput { hash: decision.hash(), changed, resumed, erased, problems })?;
        }
        Output::Text => {
            let message = match applied {
                ApplyOutcome::Nothing => "nothing to do: the machine matches the document",
                ApplyOutcome::Done { resumed: true } => "done; resumed an interrupted run",
                ApplyOutcome::Done { resumed: false } => "done",
            };
            writeln!(io::stdout(), "{message}")?;
        }
    }
    Ok(())
}

/// Reports a failed apply. A failure to report is only printed: the failure of the apply itself is
/// the one that must be returned.
fn send_report(finals: &FinalActions, document: &Document, report: &hoist_api::provision::Report) {
    if let Err(failure) = finals.send_report(document, report) {
        eprintln!("warning: {}", chain(&failure));
    }
}

/// Runs only the final actions: the report states the disks as they are now.
fn run_final_actions(
    document: &Document,
    given: &RunInputs,
    finals: &FinalActions,
) -> Result<Exit, Failure> {
    let document = whole(document, finals);
    let report = match decided(&document, given) {
        Ok(decision) if decision.is_settled() => {
            reporting::applied(&decision, ApplyOutcome::Nothing)
        }
        Ok(decision) => reporting::differs(&decision),
        Err(Failure::Found(found)) => reporting::refused(&found),
        Err(failure) => return Err(failure),
    };
    finals.send_report(&document, &report)?;
    finals.restart()?;
    Ok(Exit::Done)
}

/// If only final actions are selected, they refer to the state described by the whole document.
fn whole(document: &Document, finals: &FinalActions) -> Document {
    let mut document = document.clone();
    if finals.is_all
        && let Some(flow) = &mut document.sections.flow
    {
        flow.actions = None;
    }
    document
}

pub(crate) fn verify(args: &DocumentArgs, output: Output) -> Result<Exit, Failure> {
    let (document, given) = input::load(args)?;
    let decision = decided(&document, &given)?;
    match output {
        Output::Json => print_json(&decision.show())?,
        Output::Text => write!(io::stdout(), "{decision}")?,
    }
    Ok(if decision.is_settled() { Exit::Done } else { Exit::Failed })
}

pub(crate) fn undo(args: &UndoArgs, output: Output) -> Result<Exit, Failure> {
    let (document, _) = input::load(&args.document)?;
    let machine = Machine::here();
    let undoing = undo::plan_undo(&document, &machine, &[]).map_err(Failure::Found)?;
    let disks: Vec<String> = undoing.disks().iter().map(ToString::to_string).collect();
    if !args.dry_run {
        undo::undo(&undoing, &machine)?;
    }
    match output {
        Output::Json => {
            #[derive(Serialize)]
            struct UndoOutput {
                disks: Vec<String>,
                changed: bool,
            }
            let changed = !disks.is_empty() && !args.dry_run;
            print_json(&UndoOutput { disks, changed })?;
        }
        Output::Text if disks.is_empty() => {
            writeln!(io::stdout(), "nothing to undo: no disk belongs to this transaction")?;
        }
        Output::Text => {
            let result = if args.dry_run { "can be restored" } else { "restored" };
            writeln!(io::stdout(), "{result}: {}", disks.join(", "))?;
        }
    }
    Ok(Exit::Done)
}

fn decided(document: &Document, given: &RunInputs) -> Result<ProvisionPlan, Failure> {
    let seen = observe(document, &Machine::here(), given);
    decide(document, &seen).map_err(Failure::Found)
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
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

/// Prints progress on standard error.
#[derive(Default)]
struct OnTerminal {
    erased: Mutex<Vec<EraseReport>>,
}

impl OnTerminal {
    fn erased(&self) -> MutexGuard<'_, Vec<EraseReport>> {
        self.erased.lock()
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

    fn waits(&self, notice: &WaitNotice) {
        eprintln!("  {notice}");
    }

    fn erased(&self, report: &EraseReport) {
        let EraseReport { disk, evidence, reason, .. } = report;
        match reason {
            None => eprintln!("  {disk}: erased; {} samples read back", evidence.samples),
            Some(reason) => eprintln!("  {disk}: not erased: {reason}"),
        }
        OnTerminal::erased(self).push(report.clone());
    }
}
