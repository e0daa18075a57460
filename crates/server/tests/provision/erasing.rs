//! What is known of disks that were erased, and what a node is retired by.

use serde_json::{Value, json};

use crate::agent::{Agent, done, failed};
use crate::site::{Site, document};
use crate::{profile, script, site, start, until};

fn erasure(disk: &str, method: &str, samples: u64) -> Value {
    json!({
        "disk": disk, "kernel_name": "nvme0n1", "size": 1 << 30, "method": method,
        "verdict": "erased", "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T03:04:06Z",
        "samples": samples, "sample": 65536,
    })
}

/// A report with what became of disks.
fn with(mut report: Value, erased: &Value, changed: bool) -> Value {
    (report["erased"], report["changed"]) = (erased.clone(), json!(changed));
    report
}

async fn by_signatures(site: &Site) {
    let sections = json!({
        "disks": {"os": {"match": {"serial": "A1"}}},
        "erase": {"disks": ["os"], "method": "signatures"},
    });
    let spec = json!({"selector": "*", "document": sections});
    site.apply(&[document("ProvisionProfile", "base", &spec)]).await;
}

#[tokio::test]
async fn nobody_is_retired_by_a_method_that_leaves_data_readable() {
    let site = site(|_| {}).await;
    let retire = json!({"selector": "node:n1", "how": {"retire": true}});
    let id = start(&site, &retire).await;
    by_signatures(&site).await;
    // The profile has become another one since.
    Agent::boot(&site, 1, 1).await.ask(&site).await.problem(409, "conflict");
    let shown = until(&site, &id, "n1", "failed").await;
    assert_eq!(shown["problems"][0]["place"], "document.erase.method");

    let problem = site.post("/provision/v1/runs", &retire).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    assert!(told.contains("signatures") && told.contains("strongest"), "{told}");
    // Where a node is not retired it is a method like others.
    start(&site, &json!({"selector": "node:n2"})).await;
    site.stop().await;
}

#[tokio::test]
async fn a_disk_of_which_nothing_was_read_back_is_no_disk_that_is_erased() {
    let site = site(|_| {}).await;
    for (n, wrong) in [(1, erasure("os", "signatures", 64)), (2, erasure("os", "overwrite", 0))] {
        let selector = format!("node:n{n}");
        let id = start(&site, &json!({"selector": selector, "how": {"retire": true}})).await;
        let session = Agent::boot(&site, n, 1).await.order(&site).await;
        assert_eq!(session.reports(&site, &with(done(), &json!([wrong]), true)).await, "stay");
        let shown = until(&site, &id, &format!("n{n}"), "failed").await;
        assert_eq!(shown["problems"][0]["code"], "not-erased");
    }
    site.stop().await;
}
