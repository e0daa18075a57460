//! `/boot/v1/endpoint-history`: one row per node and endpoint.

use serde_json::{Value, json};

use crate::site::{Site, document};

const HISTORY: &str = "/boot/v1/endpoint-history";

async fn rows(site: &Site, query: &str) -> Value {
    let answer = site.ask_as_nobody("GET", &format!("{HISTORY}{query}")).send().await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
    answer.json()
}

/// Two nodes; the first is this machine.
async fn site() -> Site {
    let site = Site::start().await;
    let spec = |n: u32, address: &str| {
        json!({"xname": format!("x1c0s0b0n{n}"), "nid": n + 1, "interfaces": [
            {"name": "eth0", "mac": format!("02:00:00:00:00:0{n}"), "addresses": [address]},
        ]})
    };
    site.apply(&[
        document("Node", "n0", &spec(0, "127.0.0.1/8")),
        document("Node", "n1", &spec(1, "10.0.0.1/8")),
    ])
    .await;
    let parameters = json!({"hosts": ["Default"], "kernel": "http://h/k"});
    site.put("/boot/v1/bootparameters", &parameters).await.expect(200);
    site
}

#[tokio::test]
async fn history_has_one_row_per_node_and_endpoint() {
    let site = site().await;
    assert_eq!(rows(&site, "").await, json!([]));
    let before = jiff::Timestamp::now().as_second();
    for _ in 0..3 {
        for script in ["mac=02:00:00:00:00:00", "name=x1c0s0b0n0", "nid=2"] {
            site.get(&format!("/boot/v1/bootscript?{script}")).await.expect(200);
        }
        site.ask_as_nobody("GET", "/user-data").send().await.expect(200);
    }
    let all = rows(&site, "").await;
    let told: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let epoch = row["last_epoch"].as_i64().unwrap();
            assert!((before..before + 60).contains(&epoch), "{row}");
            assert_eq!(row.as_object().map(serde_json::Map::len), Some(3));
            (row["name"].as_str().unwrap(), row["endpoint"].as_str().unwrap())
        })
        .collect();
    let expected =
        [("x1c0s0b0n0", "bootscript"), ("x1c0s0b0n0", "user-data"), ("x1c0s0b0n1", "bootscript")];
    assert_eq!(told, expected);
    site.stop().await;
}

#[tokio::test]
async fn rows_are_found_by_name_by_endpoint_and_by_both() {
    let site = site().await;
    site.get("/boot/v1/bootscript?nid=1").await.expect(200);
    site.ask_as_nobody("GET", "/user-data").send().await.expect(200);
    let endpoints = async |query: &str| {
        let rows = rows(&site, query).await;
        let rows = rows.as_array().expect("a list").clone();
        rows.iter().map(|row| row["endpoint"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(endpoints("?name=x1c0s0b0n0").await, ["bootscript", "user-data"]);
    assert_eq!(endpoints("?endpoint=user-data").await, ["user-data"]);
    assert_eq!(endpoints("?name=x1c0s0b0n0&endpoint=user-data").await, ["user-data"]);
    assert!(endpoints("?name=x1c0s0b0n1").await.is_empty());
    assert!(endpoints("?name=x1c0s0b0").await.is_empty(), "names match whole");
    assert!(endpoints("?name=x1c0s0b0n0&endpoint=kettle").await.is_empty());
    assert!(endpoints("?endpoint=kettle").await.is_empty());
    for name in ["x1c0s0b0n1", "x9c0s0b0n0"] {
        let never = rows(&site, &format!("?name={name}&endpoint=bootscript")).await;
        let expected = json!([{"name": name, "endpoint": "bootscript", "last_epoch": 0}]);
        assert_eq!(never, expected);
    }
    site.stop().await;
}

#[tokio::test]
async fn partial_script_leaves_no_history_and_restart_keeps_the_rest() {
    let site = site().await;
    site.get("/boot/v1/bootscript?nid=1&json=1").await.expect(200);
    site.get("/boot/v1/bootscript?mac=02:99:99:99:99:99").await.expect(200);
    assert_eq!(rows(&site, "").await, json!([]));
    site.get("/boot/v1/bootscript?nid=1").await.expect(200);
    let before = rows(&site, "").await;
    let site = site.restart().await;
    site.eventually(HISTORY, |answer| answer.json() == before).await;
    site.stop().await;
}

#[tokio::test]
async fn failed_request_is_in_the_native_history_and_events_only() {
    let site = site().await;
    let unsignable = json!({"hosts": ["x1c0s0b0n0"], "kernel": "s3://boot/kernel"});
    site.put("/boot/v1/bootparameters", &unsignable).await.expect(200);
    let explained = site.get("/boot/v2/explain/x1c0s0b0n0").await.expect(200).json();
    assert_eq!(explained["doing"], "fail", "{explained}");
    assert!(explained["problem"].as_str().is_some_and(|why| why.contains("s3.endpoint")));

    let before = site.controller.chassis().events.last_id();
    for _ in 0..2 {
        let refused = site.get("/boot/v1/bootscript?name=x1c0s0b0n0").await.expect(404).json();
        assert_eq!(refused["detail"], explained["problem"], "the machine hears the same");
    }
    let history = site.get("/boot/v2/history/x1c0s0b0n0").await.expect(200).json();
    let failed = &history["rows"][0];
    assert_eq!((&failed["endpoint"], &failed["count"]), (&json!("bootscript-error"), &json!(2)));
    assert_eq!(failed["what"], explained["problem"]);
    assert_eq!(rows(&site, "").await, json!([]), "BSS has no failed requests");
    assert_eq!(rows(&site, "?endpoint=bootscript-error").await, json!([]));
    let explained = site.get("/boot/v2/explain/x1c0s0b0n0").await.expect(200).json();
    assert_eq!(explained["last_error"]["what"], explained["problem"]);

    let events = site.events("boot.failed", &before, 1).await;
    assert_eq!(events[0]["subject"], "node/n0", "{events:?}");
    assert_eq!(events[0]["data"]["reason"], explained["problem"]);
    site.stop().await;
}

#[tokio::test]
async fn explanation_of_a_kernelless_record_agrees_with_the_script() {
    let site = site().await;
    let put = async |body: Value| site.put("/boot/v1/bootparameters", &body).await.expect(200);
    put(json!({"hosts": ["x1c0s0b0n0"], "params": "quiet"})).await;
    let explain = async || site.get("/boot/v2/explain/x1c0s0b0n0").await.expect(200).json();
    let explained = explain().await;
    assert_eq!((&explained["doing"], &explained["choice"]), (&json!("wait"), &Value::Null));
    assert_eq!(explained["lost"][0]["why"], "has no kernel");
    put(json!({"hosts": ["Unknown-x86_64"], "kernel": "http://h/discover"})).await;
    assert_eq!(explain().await["discovery"], json!(["bss:Unknown-x86_64"]));
    let path = "/boot/v1/bootscript?name=x1c0s0b0n0&arch=x86_64";
    assert!(site.get(path).await.expect(200).text().contains("http://h/discover"));
    site.stop().await;
}
