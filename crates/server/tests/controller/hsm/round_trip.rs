//! A site that imports another site's view has the same content.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::hsm::{node, sets, small};
use crate::site::{NODES, Site, document, id, mac, with};

/// What SMD has words for, by what SMD calls the node.
async fn known(site: &Site) -> BTreeMap<String, Value> {
    let listed = site.get(&format!("{NODES}?state=1")).await.expect(200).json();
    let nodes = listed["items"].as_array().expect("a listing").iter();
    nodes
        .map(|node| {
            let nics = node["interfaces"].as_array().cloned().unwrap_or_default();
            let mut nics: Vec<_> = nics
                .iter()
                .filter(|nic| nic["kind"] != "bmc")
                .map(|nic| json!([nic["mac"], nic["addresses"], nic["network"]]))
                .collect();
            nics.sort_by_key(|nic| nic[0].to_string());
            let key = node["xname"].as_str().map_or_else(|| nics[0][0].to_string(), str::to_owned);
            let enabled = node.get("enabled").cloned().unwrap_or(json!(true));
            let groups = node.get("groups").cloned().unwrap_or(json!([]));
            let value = json!({
                "nid": node["nid"], "partition": node["partition"], "groups": groups,
                "arch": node["arch"], "role": node["role"], "subrole": node["subrole"],
                "enabled": enabled, "interfaces": nics,
            });
            (key, value)
        })
        .collect()
}

async fn import(from: &Site, to: &Site, token: &str) -> Value {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs_err::write(file.path(), token).expect("a token file");
    let url = from.url("");
    let body = json!({"url": format!("smd+{url}"), "token_file": file.path()});
    to.post("/inventory/v1/import", &body).await.expect(200).json()
}

#[tokio::test]
async fn a_site_imported_from_the_view_is_the_same_site() {
    let first = small().await;
    let login = json!({
        "xname": "x1000c0s8b0n0", "arch": "aarch64", "role": "Application", "subrole": "Login",
        "enabled": false, "interfaces": [{"name": "eth0", "mac": mac(8), "addresses": ["fd00::8/128"]}],
    });
    let virtual_node = json!({
        "xname": "x1000c0s8b0n0v1", "groups": ["odd"],
        "interfaces": [{"name": "eth0", "mac": mac(9)}],
    });
    first.apply(&[document("Node", "login", &login), document("Node", "v1", &virtual_node)]).await;
    let reader = first.token(json!([{"verbs": ["read"], "contexts": ["inventory"]}])).await;

    let second = Site::start().await;
    let report = import(&first, &second, &reader).await;
    assert_eq!((&report["added"], &report["removed"]), (&json!(6), &json!(0)), "{report}");
    assert_eq!(known(&second).await, known(&first).await);
    let groups = second.get("/hsm/v2/groups").await.expect(200).json();
    let shown = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().expect("an array").iter();
        list.map(|set| (set["label"].to_string(), json!([set["description"], set["members"]])))
            .collect()
    };
    let sorted = |mut list: Value| {
        for set in list.as_array_mut().expect("an array") {
            let ids = set["members"]["ids"].as_array_mut().expect("members");
            ids.retain(|id| id != "spare" && id.as_str().is_some_and(|id| id.starts_with('x')));
            ids.sort_by_key(ToString::to_string);
        }
        list
    };
    let before = first.get("/hsm/v2/groups").await.expect(200).json();
    assert_eq!(shown(&sorted(groups)), shown(&sorted(before)));
    let names = async |site: &Site| site.get("/hsm/v2/partitions/names").await.expect(200).json();
    assert_eq!(names(&second).await, names(&first).await);

    // Nothing changed: nothing is written, and there is no revision.
    let records = second.records().await;
    let again = import(&first, &second, &reader).await;
    assert_eq!((&again["changed"], &again["added"]), (&json!(0), &json!(0)), "{again}");
    assert_eq!(second.records().await, records);

    // One node changed: that one changes.
    let changed = with(node(2)["spec"].clone(), &json!({"role": "Storage"}));
    first.apply(&[document("Node", "n2", &changed)]).await;
    let report = import(&first, &second, &reader).await;
    assert_eq!((&report["changed"], &report["unchanged"]), (&json!(1), &json!(5)), "{report}");
    assert_eq!(known(&second).await, known(&first).await);
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn power_travels_and_a_missing_token_is_told() {
    let first = Site::start().await;
    first.apply(&sets().into_iter().chain([node(1)]).collect::<Vec<_>>()).await;
    let node_id = id(&first.get(&format!("{NODES}/by/name/n1")).await.json()).to_owned();
    let state = json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "test"});
    first.put(&format!("{NODES}/{node_id}/state"), &state).await.expect(200);
    let second = Site::start().await;
    let body = json!({"url": format!("smd+{}", first.url(""))});
    let refused = second.post("/inventory/v1/import", &body).await;
    let problem = refused.problem(502, "source-failed");
    assert!(problem.detail.contains("check the token"), "{problem:?}");
    import(&first, &second, &first.admin).await;
    let components = second.get(crate::hsm::COMPONENTS).await.expect(200).json();
    assert_eq!(components["Components"][0]["State"], "On");
    first.stop().await;
    second.stop().await;
}
