//! Whether a node's disks are known to be erased: only then it is retired.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use hoist_api::provision::{Erasure, ErasureVerdict, MAX_REPORT, NodeDiagnostic, NodeRunState};
use hoist_diagnostic::Diagnostic;
use hoist_model::{NodeId, ProvisionProfileSpec};
use hoist_store::{Store, StoreError};

use super::keys;
use super::record::{Last, NodeRecord, RunRecord, StoredValue, node_key};
use super::runs::Runs;
use crate::boot::UnerasedNodes;

/// Disks of one report.
pub(super) const MAX_DISKS: usize = 1024;

#[async_trait]
impl UnerasedNodes for Runs {
    async fn unerased(&self) -> Result<HashMap<NodeId, String>, StoreError> {
        unerased(self.store()).await
    }
}

/// As it is kept in a store.
async fn unerased(store: &dyn Store) -> Result<HashMap<NodeId, String>, StoreError> {
    let headers: Vec<StoredValue<RunRecord>> = StoredValue::list(store, &keys::runs()).await?;
    let retiring: HashSet<&str> = headers
        .iter()
        .filter(|header| header.value.how.retire)
        .map(|header| header.value.run.as_str())
        .collect();
    let mut found = HashMap::new();
    if retiring.is_empty() {
        return Ok(found);
    }
    let lasts: Vec<StoredValue<Last>> = StoredValue::list(store, &keys::last_runs()).await?;
    let lasts = lasts.into_iter().map(|kept| kept.value);
    for Last { node, run, .. } in lasts.filter(|last| retiring.contains(last.run.as_str())) {
        let record: Option<StoredValue<NodeRecord>> =
            StoredValue::get(store, &node_key(&run, node)).await?;
        if record.is_some_and(|record| is_unerased(&record.value)) {
            found.insert(node, run);
        }
    }
    Ok(found)
}

/// Whether it may have been begun, and has not come to its end.
pub(super) fn is_unerased(node: &NodeRecord) -> bool {
    match node.shown.state {
        NodeRunState::Failed => true,
        NodeRunState::Aborted => node.is_touched(),
        _ => false,
    }
}

/// Texts of it that came from a machine.
pub(super) fn texts(erasure: &mut Erasure) -> impl Iterator<Item = &mut String> {
    let Erasure { disk, kernel_name, model, serial, wwn, method, reason, says, .. } = erasure;
    let optional = [model, serial, wwn, reason, says].into_iter().filter_map(Option::as_mut);
    [disk, kernel_name, method].into_iter().chain(optional)
}

/// The disks that the job named.
pub(super) fn disks(spec: Option<&ProvisionProfileSpec>) -> Vec<String> {
    let section = spec.and_then(|spec| spec.document.get("disks"));
    let disks = section.and_then(|disks| disks.as_object());
    disks.map(|disks| disks.keys().cloned().collect()).unwrap_or_default()
}

/// Combines two reports; the newer entry of each disk wins.
pub(super) fn of_both(before: &[Erasure], new: &[Erasure]) -> Vec<Erasure> {
    let is_new = |old: &&Erasure| new.iter().any(|new| new.disk == old.disk);
    let old = before.iter().filter(|old| !is_new(old));
    let mut room = MAX_REPORT;
    let fits = |erasure: &&Erasure| {
        let size = serde_json::to_vec(erasure).map_or(usize::MAX, |text| text.len());
        let left = room.checked_sub(size);
        room = left.unwrap_or(0);
        left.is_some()
    };
    // A node that names others each time does not get more room than with one report.
    new.iter().chain(old).filter(fits).take(MAX_DISKS).cloned().collect()
}

/// What leaves data readable.
pub(super) const SIGNATURES: &str = "signatures";

/// Whether a disk was read back and its data is gone.
fn is_erased(erasure: &Erasure) -> bool {
    let Erasure { verdict, method, samples, .. } = erasure;
    *verdict == ErasureVerdict::Erased && method != SIGNATURES && *samples > 0
}

/// Why a node that reports that all is done is not retired: each of its disks must have a report of
/// its own.
pub(super) fn unproven(disks: &[String], erased: &[Erasure]) -> Option<NodeDiagnostic> {
    let is_proven =
        |disk: &&String| erased.iter().any(|erasure| erasure.disk == **disk && is_erased(erasure));
    let is_whole = erased.iter().all(is_erased);
    let missing: Vec<&str> =
        disks.iter().filter(|disk| !is_proven(disk)).map(String::as_str).collect();
    if is_whole && missing.is_empty() && !disks.is_empty() {
        return None;
    }
    let cause = Diagnostic::new("disks", "not every disk of the node has a report of its erasure")
        .hint("`hoist provision retry` erases them again");
    Some(NodeDiagnostic {
        action: "erase".to_owned(),
        evidence: missing.into_iter().map(str::to_owned).collect(),
        ..NodeDiagnostic::new("not-erased", "device", cause)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(erased: &serde_json::Value) -> Vec<Erasure> {
        serde_json::from_value(erased.clone()).expect("a report")
    }

    fn erased(disk: &str, verdict: &str) -> serde_json::Value {
        json!({
            "disk": disk, "kernel_name": "sda", "size": 1, "method": "overwrite",
            "verdict": verdict, "started": "2026-01-02T03:04:05Z",
            "ended": "2026-01-02T03:04:06Z", "samples": 64, "sample": 65536,
        })
    }

    #[test]
    fn last_erasure_report_of_each_disk_is_kept_within_the_limit() {
        let one = |disk: &str, method: &str| {
            let mut one = erased(disk, "erased");
            one["method"] = json!(method);
            report(&json!([one])).remove(0)
        };
        let before = [one("a", "overwrite"), one("b", "overwrite")];
        assert_eq!(of_both(&before, &[]), before);
        let new = [one("b", "block")];
        assert_eq!(of_both(&before, &new), [new[0].clone(), before[0].clone()]);
        let many = |from: usize| -> Vec<Erasure> {
            (from..from + 100).map(|n| one(&n.to_string(), &"x".repeat(4000))).collect()
        };
        let both = of_both(&many(0), &many(100));
        assert_eq!(both[..100], many(100));
        assert!((101..131).contains(&both.len()), "{}", both.len());
    }

    #[test]
    fn a_node_is_retired_only_when_each_disk_has_a_report() {
        let disks = ["a".to_owned(), "b".to_owned()];
        let a = erased("a", "erased");
        let b = erased("b", "erased");
        assert_eq!(unproven(&disks, &report(&json!([a, b]))), None);
        let missing = unproven(&disks, &report(&json!([a]))).expect("one is missing");
        assert_eq!(missing.evidence, ["b"]);
        let failed = erased("b", "not_erased");
        assert!(unproven(&disks, &report(&json!([a, b, failed]))).is_some());
        assert!(unproven(&disks, &report(&json!([]))).is_some());
        assert!(unproven(&[], &report(&json!([]))).is_some(), "of no disk nothing is known");
        let mut by_name = b.clone();
        let mut unread = b.clone();
        by_name["method"] = json!("signatures");
        unread["samples"] = json!(0);
        for readable in [by_name, unread] {
            let found = unproven(&disks, &report(&json!([a, readable]))).expect("it is readable");
            assert_eq!(found.evidence, ["b"]);
        }
    }
}
