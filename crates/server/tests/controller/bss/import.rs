//! Boot parameters of another BSS, carried over.

use serde_json::{Value, json};

use crate::site::Site;

const PATH: &str = "/boot/v2/parameters/import";
const LIST: &str = "/boot/v1/bootparameters";

async fn import(site: &Site, query: &str, parameters: Value) -> Value {
    let body = json!({ "parameters": parameters });
    site.post(&format!("{PATH}{query}"), &body).await.expect(200).json()
}

fn counts(report: &Value) -> [u64; 4] {
    ["created", "changed", "unchanged", "images"].map(|name| report[name].as_u64().expect(name))
}

#[tokio::test]
async fn a_site_is_carried_over_whole_and_again_without_a_change() {
    let old = Site::start().await;
    let nodes: Vec<Value> = (1..=3)
        .map(|n| {
            let spec = json!({"xname": format!("x0c0s{n}b0n0"), "nid": n});
            json!({"api": "hoist/v1", "kind": "Node", "name": format!("n{n}"), "spec": spec})
        })
        .collect();
    old.apply(&nodes).await;
    for body in [
        json!({"hosts": ["x0c0s1b0n0", "x0c0s2b0n0"], "kernel": "http://h/k", "params": "quiet"}),
        json!({"macs": ["02:00:00:00:00:01"], "kernel": "http://h/k", "initrd": "http://h/i"}),
        json!({"nids": [77], "kernel": "http://h/n"}),
        json!({"hosts": ["Default"], "kernel": "http://h/d",
               "cloud-init": {"meta-data": {"a": 1}, "user-data": {"b": 2}}}),
        json!({"kernel": "http://h/k", "params": "from=image"}),
    ] {
        old.put(LIST, &body).await.expect(200);
    }
    let exported = old.get(LIST).await.expect(200).json();

    let new = Site::start().await;
    new.apply(&nodes).await;
    let before = new.revision();
    let dry = import(&new, "?dry_run=1", exported.clone()).await;
    assert_eq!((counts(&dry), &dry["dry_run"]), ([5, 0, 0, 1], &json!(true)));
    assert_eq!(new.revision(), before);
    let done = import(&new, "", exported.clone()).await;
    assert_eq!((counts(&done), &done["left"]), ([5, 0, 0, 1], &json!([])));
    assert_eq!(new.revision(), before + 1, "in one transaction");
    assert_eq!(new.get(LIST).await.expect(200).json(), exported);
    let again = import(&new, "", exported).await;
    assert_eq!((counts(&again), new.revision()), ([0, 0, 5, 0], before + 1));
}

#[tokio::test]
async fn import_reports_unsupported_records_and_takes_the_rest() {
    let site = Site::start().await;
    let spec =
        json!({"xname": "x0c0s1b0n0", "interfaces": [{"name": "e", "mac": "02:00:00:00:00:01"}]});
    site.apply(&[json!({"api": "hoist/v1", "kind": "Node", "name": "n1", "spec": spec})]).await;
    let report = import(
        &site,
        "",
        json!([
            {"hosts": ["x0c0s1b0n0"], "kernel": "http://h/first"},
            {"macs": ["02-00-00-00-00-01"], "kernel": "http://h/second"},
            {"macs": ["02:00:00:00:00:01"], "kernel": "http://h/first"},
            {"hosts": ["x0c0s2b0n0"], "kernel": "http://h/k\nshell"},
            {"hosts": [1]},
            {"params": "x"},
            {"hosts": ["x0c0s3b0n0"], "kernel": "http://h/k"},
        ]),
    )
    .await;
    assert_eq!(counts(&report), [2, 0, 0, 0]);
    let left: Vec<_> = report["left"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|left| (left["at"].as_u64().expect("a place"), left["who"].as_str().expect("who")))
        .collect();
    assert_eq!(left, [(1, "02:00:00:00:00:01"), (3, "x0c0s2b0n0"), (4, ""), (5, "")]);
    let kernel = |list: Value| list[0]["kernel"].clone();
    let read = async |name: &str| site.get(&format!("{LIST}?name={name}")).await.expect(200).json();
    assert_eq!(kernel(read("n1").await), "http://h/first");
    assert_eq!(kernel(read("x0c0s3b0n0").await), "http://h/k");
}

#[tokio::test]
async fn an_import_that_changes_many_nodes_has_to_name_their_number() {
    let site = Site::start().await;
    let nodes: Vec<Value> = (1..=60)
        .map(|n| {
            let spec = json!({"xname": format!("x0c0s{n}b0n0")});
            json!({"api": "hoist/v1", "kind": "Node", "name": format!("n{n}"), "spec": spec})
        })
        .collect();
    site.apply(&nodes).await;
    let hosts: Vec<String> = (1..=60).map(|n| format!("x0c0s{n}b0n0")).collect();
    let parameters = json!([{"hosts": hosts, "kernel": "http://h/k"}]);
    let dry = import(&site, "?dry_run=1", parameters.clone()).await;
    assert_eq!((&dry["affected"], &dry["needs_affects"]), (&json!(60), &json!(true)));
    let body = json!({ "parameters": parameters });
    site.post(PATH, &body).await.problem(409, "affects-too-many");
    site.post(&format!("{PATH}?affects=60"), &body).await.expect(200);
}
