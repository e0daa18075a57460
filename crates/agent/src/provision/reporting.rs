//! Converts the outcome of a run into the controller's report.

use hoist_api::provision::{
    Erasure, ErasureVerdict, MAX_REPORT, NodeDiagnostic, Outcome, Report, RootDisk,
};
use hoist_device::apply::{ApplyError, ApplyOutcome};
use hoist_diagnostic::{Diagnostic, chain};
use hoist_provision::diagnostic::{Class, ProvisionDiagnostic};
use hoist_provision::document::DiskMatch;
use hoist_provision::plan::ProvisionPlan;
use hoist_provision::steps::erase::{self, DiskIdentity, Evidence, Verdict};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};

/// Limit of diagnostics in a report.
const MAX_DIAGNOSTICS: usize = 100;

/// Lines of the kernel log in a report.
const KERNEL_LINES: usize = 20;
const MAX_RECORD: usize = 8192;

pub(crate) fn refused(found: &[ProvisionDiagnostic]) -> Report {
    let problems = found.iter().take(MAX_DIAGNOSTICS).map(reported).collect();
    Report { problems, ..report(Outcome::Refused) }
}

/// The report of a run that was aborted before its first step. The facts
/// missing at that time are evidence.
pub(crate) fn aborted(found: &[ProvisionDiagnostic]) -> Report {
    let cause = Diagnostic::new("", "the run was aborted before its first step");
    let problem = NodeDiagnostic {
        step: "examine the disks and the sources".to_owned(),
        evidence: found.iter().take(MAX_DIAGNOSTICS).map(ToString::to_string).collect(),
        ..NodeDiagnostic::new("aborted", Class::Transient.as_str(), cause)
    };
    Report { problems: vec![problem], ..report(Outcome::Aborted) }
}

pub(crate) fn applied(decision: &ProvisionPlan, applied: ApplyOutcome) -> Report {
    Report {
        plan: Some(decision.hash().to_owned()),
        changed: applied != ApplyOutcome::Nothing,
        resumed: applied == ApplyOutcome::Done { resumed: true },
        receipts: receipts(decision),
        root: decision.disks.roots.iter().map(root_disk).collect(),
        ..report(Outcome::Done)
    }
}

pub(crate) fn failed(decision: &ProvisionPlan, error: &ApplyError, is_aborted: bool) -> Report {
    let plan = Some(decision.hash().to_owned());
    let changed = !error.is_untouched();
    if let ApplyError::Refused(found) = error
        && !is_aborted
    {
        return Report { plan, ..refused(found) };
    }
    let (code, class) = if is_aborted { ("aborted", Class::Transient) } else { error.code() };
    let step = match error {
        ApplyError::Step { step, .. } => step.clone(),
        _ => String::new(),
    };
    let action = action_of(decision, &step).unwrap_or_default();
    let mut evidence = error.evidence().to_vec();
    // The kernel log only explains failures of devices.
    if class == Class::Device && !is_aborted {
        evidence.extend(kernel_warnings());
    }
    let hint = error.hint().map(str::to_owned);
    let cause = Diagnostic { hint, ..Diagnostic::new("", chain(error)) };
    let problem = NodeDiagnostic {
        action,
        step,
        evidence,
        ..NodeDiagnostic::new(code, class.as_str(), cause)
    };
    let outcome = if is_aborted {
        Outcome::Aborted
    } else if changed {
        Outcome::Failed
    } else {
        Outcome::Refused
    };
    Report { plan, changed, problems: vec![problem], ..report(outcome) }
}

/// The report of a verification that found differences.
pub(crate) fn differs(decision: &ProvisionPlan) -> Report {
    let cause = Diagnostic::new("", "the disks do not match the document")
        .hint("see the differences with `hoist-agent plan`");
    let problem = NodeDiagnostic::new("differs", Class::Facts.as_str(), cause);
    let plan = Some(decision.hash().to_owned());
    Report { plan, problems: vec![problem], ..report(Outcome::Failed) }
}

pub(super) fn report(outcome: Outcome) -> Report {
    Report {
        outcome,
        plan: None,
        changed: false,
        resumed: false,
        problems: Vec::new(),
        receipts: Value::Null,
        erased: Vec::new(),
        root: Vec::new(),
    }
}

fn root_disk(disk: &DiskMatch) -> RootDisk {
    let DiskMatch { wwn, eui, serial, model, .. } = disk.clone();
    RootDisk { wwn, eui, serial, model }
}

pub(crate) fn erasure(report: &erase::EraseReport) -> Erasure {
    let time = |millis: u64| {
        let millis = i64::try_from(millis).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
    };
    let erase::EraseReport { disk, who, method, started, ended, verdict, evidence, reason, .. } =
        report;
    let DiskIdentity { kernel_name, model, serial, wwn, size } = who.clone();
    let Evidence { samples, sample, held, says } = evidence.clone();
    Erasure {
        disk: disk.to_string(),
        kernel_name,
        model,
        serial,
        wwn,
        size,
        method: method.to_string(),
        verdict: match verdict {
            Verdict::Erased => ErasureVerdict::Erased,
            Verdict::NotErased => ErasureVerdict::NotErased,
        },
        reason: reason.clone(),
        started: time(*started),
        ended: time(*ended),
        samples,
        sample,
        held,
        says,
    }
}

fn reported(found: &ProvisionDiagnostic) -> NodeDiagnostic {
    let ProvisionDiagnostic { code, class, diagnostic, evidence } = found;
    NodeDiagnostic {
        evidence: evidence.clone(),
        ..NodeDiagnostic::new(code.as_str(), class.as_str(), diagnostic.clone())
    }
}

/// Which action a step belongs to.
pub(super) fn action_of(decision: &ProvisionPlan, step: &str) -> Option<String> {
    let shown = decision.show();
    let step = shown.steps.iter().find(|shown| shown.name == step)?;
    Some(step.call.action.clone())
}

/// The resulting disk layout, for later runs.
fn receipts(decision: &ProvisionPlan) -> Value {
    let receipts = json!({ "layout": decision.layout });
    // The controller refuses a report that is too long.
    if receipts.to_string().len() > MAX_REPORT / 2 { Value::Null } else { receipts }
}

/// The records of the kernel log, from its beginning.
pub(super) fn kernel_records() -> impl Iterator<Item = String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let log = open("/dev/kmsg", flags, Mode::empty()).ok();
    let mut record = vec![0; MAX_RECORD];
    // Each read returns one record; only a nonblocking reader reaches an end.
    std::iter::from_fn(move || {
        loop {
            match rustix::io::read(log.as_ref()?, &mut record) {
                Ok(length) => return Some(String::from_utf8_lossy(&record[..length]).into_owned()),
                // The record was overwritten before it was read.
                Err(rustix::io::Errno::PIPE) => {}
                Err(_) => return None,
            }
        }
    })
}

/// The last warnings of the kernel, the best evidence about a failing disk.
fn kernel_warnings() -> Vec<String> {
    let mut warnings: Vec<String> =
        kernel_records().filter_map(|record| warning(&record)).collect();
    warnings.drain(..warnings.len().saturating_sub(KERNEL_LINES));
    warnings
}

/// Records have the form `level,number,time,flags;text`, with continuation lines. Records below the
/// level of a warning say nothing about a failure.
fn warning(record: &str) -> Option<String> {
    const WARNING: u8 = 4;
    let (head, text) = record.lines().next()?.split_once(';')?;
    let level: u8 = head.split(',').next()?.parse::<u32>().ok()?.to_le_bytes()[0] & 7;
    (level <= WARNING).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernel_warnings_are_evidence() {
        let bad = "3,612,9711,-;blk_update_request: I/O error, dev nvme0n1\n SUBSYSTEM=block\n";
        assert_eq!(warning(bad).unwrap(), "blk_update_request: I/O error, dev nvme0n1");
        assert_eq!(warning("6,613,9712,-;eth0: link becomes ready"), None);
        assert_eq!(warning("30,614,9713,-;hoist"), None);
        assert_eq!(warning("?"), None);
    }
}
