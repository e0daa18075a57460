//! What came of it, in the words of the controller.

use hoist_api::provision::{
    Erasure, ErasureVerdict, Finding, MAX_REPORT, Outcome, Report, RootDisk,
};
use hoist_provision::actions::erase::{self, Evidence, Verdict, Who};
use hoist_provision::diagnostic::{Class, Diagnostic};
use hoist_provision::document::DiskMatch;
use hoist_provision::pipeline::{Applied, ApplyError, Decision};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};

use crate::failure::chain;

/// Findings that are sent; who has more mends these first.
const MAX_FINDINGS: usize = 100;

/// Of the kernel's log.
const KERNEL_LINES: usize = 20;
const MAX_RECORD: usize = 8192;

pub(crate) fn refused(found: &[Diagnostic]) -> Report {
    let problems = found.iter().take(MAX_FINDINGS).map(finding).collect();
    Report { problems, ..report(Outcome::Refused) }
}

pub(crate) fn applied(decision: &Decision, applied: Applied) -> Report {
    Report {
        plan: Some(decision.hash().to_owned()),
        changed: applied != Applied::Nothing,
        resumed: applied == Applied::Done { resumed: true },
        receipts: receipts(decision),
        root: decision.roots.iter().map(root_disk).collect(),
        ..report(Outcome::Done)
    }
}

pub(crate) fn failed(decision: &Decision, error: &ApplyError, is_aborted: bool) -> Report {
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
    // Of what is wrong elsewhere the kernel knows nothing.
    if class == Class::Device && !is_aborted {
        evidence.extend(kernel_says());
    }
    let problem = Finding {
        code: code.to_owned(),
        class: class.as_str().to_owned(),
        action,
        step,
        what: chain(error),
        place: String::new(),
        hint: error.hint().map(str::to_owned),
        evidence,
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

/// It was looked at, and is otherwise.
pub(crate) fn otherwise(decision: &Decision) -> Report {
    let problem = Finding {
        code: "otherwise".to_owned(),
        class: "facts".to_owned(),
        action: String::new(),
        step: String::new(),
        what: "the disks are not as the document says".to_owned(),
        place: String::new(),
        hint: Some("`hoist-agent plan` says what is different".to_owned()),
        evidence: Vec::new(),
    };
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

pub(crate) fn erasure(report: &erase::Report) -> Erasure {
    let time = |millis: u64| {
        let millis = i64::try_from(millis).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
    };
    let erase::Report { disk, who, method, started, ended, verdict, evidence, reason, .. } = report;
    let Who { kernel_name, model, serial, wwn, size } = who.clone();
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

fn finding(found: &Diagnostic) -> Finding {
    let Diagnostic { code, class, place, what, hint, evidence } = found;
    let class = json!(class).as_str().unwrap_or_default().to_owned();
    Finding {
        code: code.to_string(),
        class,
        action: String::new(),
        step: String::new(),
        what: what.clone(),
        place: place.clone(),
        hint: hint.clone(),
        evidence: evidence.clone(),
    }
}

/// Which action a step belongs to.
pub(super) fn action_of(decision: &Decision, step: &str) -> Option<String> {
    let shown = decision.show();
    let step = shown.steps.iter().find(|shown| shown.name == step)?;
    Some(step.call.action.clone())
}

/// What is on the disks now, for those who come later.
fn receipts(decision: &Decision) -> Value {
    let receipts = json!({ "layout": decision.layout });
    // A report that is too long would be none.
    if receipts.to_string().len() > MAX_REPORT / 2 { Value::Null } else { receipts }
}

/// Everything that is in the kernel's log, from its beginning.
pub(super) fn kernel_records() -> impl Iterator<Item = String> {
    let (flags, mode) = (OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    let log = open("/dev/kmsg", flags, mode).ok();
    let mut record = vec![0; MAX_RECORD];
    // Each read gives one record; there is an end only for those who do not wait.
    std::iter::from_fn(move || {
        loop {
            match rustix::io::read(log.as_ref()?, &mut record) {
                Ok(length) => return Some(String::from_utf8_lossy(&record[..length]).into_owned()),
                // Overwritten before we came to it.
                Err(rustix::io::Errno::PIPE) => {}
                Err(_) => return None,
            }
        }
    })
}

/// The last warnings of the kernel: of a disk that fails, it knows most.
fn kernel_says() -> Vec<String> {
    let mut warnings: Vec<String> =
        kernel_records().filter_map(|record| warning(&record)).collect();
    warnings.drain(..warnings.len().saturating_sub(KERNEL_LINES));
    warnings
}

/// `level,number,time,flags;text`, and lines that explain it; what is no more than a notice says
/// nothing about a failure.
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
    fn warnings_of_the_kernel_are_evidence_and_the_rest_is_not() {
        let bad = "3,612,9711,-;blk_update_request: I/O error, dev nvme0n1\n SUBSYSTEM=block\n";
        assert_eq!(warning(bad).unwrap(), "blk_update_request: I/O error, dev nvme0n1");
        assert_eq!(warning("6,613,9712,-;eth0: link becomes ready"), None);
        assert_eq!(warning("30,614,9713,-;hoist"), None);
        assert_eq!(warning("?"), None);
    }
}
