//! Nodes that say they are up.

use serde_json::json;

use crate::metadata::{ask, ask_from, id, key, site};
use crate::site::{Site, document, mac};

const FORM: &str = "application/x-www-form-urlencoded";

async fn path(site: &Site, name: &str) -> String {
    let node = id(site, name).await;
    format!("/meta/v1/phone-home/{node}/{}", key(site).seed(node, 0).as_str())
}

#[tokio::test]
async fn a_report_is_a_form_or_json_and_becomes_an_event() {
    let site = site(|_| {}).await;
    let n1 = path(&site, "n1").await;
    let n2 = path(&site, "n2").await;
    let before = site.controller.chassis().events.last_id();
    let form = "pub_key_rsa=ssh-rsa+A&instance_id=i&hostname=n1&fqdn=n1.example.org";
    let told = site.ask_as_nobody("POST", &n1).header("content-type", FORM).body(form).send().await;
    told.expect(200);
    let json = json!({"hostname": "n2", "instance_id": "i", "pub_key_rsa": "ssh-rsa B"});
    site.ask_as_nobody("POST", &n2).json(&json).send().await.expect(200);
    // Too soon for another one.
    site.ask_as_nobody("POST", &n2).json(&json).send().await.expect(429);
    let told = site.events("metadata.phone-home", &before, 2).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0]["subject"], "node/n1");
    let data = &told[0]["data"];
    assert_eq!((&data["generation"], &data["known_by"]), (&json!(0), &json!("token")));
    assert_eq!(data["report"]["pub_key_rsa"], "ssh-rsa A");
    assert_eq!(told[1]["data"]["report"]["hostname"], "n2");
    assert!(told[1]["at"].as_str().is_some(), "{told:?}");
    site.stop().await;
}

#[tokio::test]
async fn reports_need_the_token_of_the_node_and_are_bounded() {
    let site = site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let n2 = id(&site, "n2").await;
    let key = key(&site);
    let post = |path: String, body: String| {
        site.ask_as_nobody("POST", &path).header("content-type", FORM).body(body).send()
    };
    let other = key.seed(n2, 0);
    for token in [other.as_str(), key.seed(n1, 1).as_str(), "kettle"] {
        post(format!("/meta/v1/phone-home/{n1}/{token}"), "hostname=n1".to_owned())
            .await
            .expect(403);
    }
    let machine = format!("/meta/v1/phone-home/01ARZ3NDEKTSV4RRFFQ69G5FAV/{}", other.as_str());
    post(machine, "hostname=n1".to_owned()).await.expect(403);
    let own = path(&site, "n1").await;
    post(own.clone(), format!("hostname={}", "x".repeat(16 * 1024)))
        .await
        .problem(413, "body-too-large");
    post(own, format!("hostname={}", "x".repeat(15 * 1024))).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn installing_node_boots_its_disk_after_its_report() {
    let site = site(|_| {}).await;
    let spec = json!({"selector": "*", "kernel": "http://k/install", "mode": "install"});
    site.apply(&[document("BootConfig", "live", &spec)]).await;
    let script = format!("/boot/v1/bootscript?mac={}", mac(1));
    assert!(ask(&site, &script).await.expect(200).text().contains("http://k/install"));
    let own = path(&site, "n1").await;
    let report = json!({"hostname": "n1"});
    let from = |address: &str| {
        site.ask_as_nobody("POST", &own).header("x-forwarded-for", address).json(&report).send()
    };
    from("10.0.0.1").await.expect(200);
    let after = ask(&site, &script).await.expect(200).text();
    assert!(!after.contains("http://k/install"), "{after}");
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert_eq!(state["doing"], "disk", "{state}");
    site.stop().await;
}

#[tokio::test]
async fn foreign_or_outdated_report_changes_nothing() {
    let site = site(|_| {}).await;
    let spec = json!({"selector": "*", "kernel": "http://k/install", "mode": "install"});
    site.apply(&[document("BootConfig", "live", &spec)]).await;
    let n1 = path(&site, "n1").await;
    let from = |address: &str, instance: &str| {
        let report = json!({"hostname": "n1", "instance_id": instance});
        site.ask_as_nobody("POST", &n1).header("x-forwarded-for", address).json(&report).send()
    };
    // The address of the node beside it.
    from("10.0.0.2", "").await.problem(403, "forbidden");
    from("192.0.2.7", "").await.expect(200);
    let script = format!("/boot/v1/bootscript?mac={}", mac(1));
    assert!(ask(&site, &script).await.expect(200).text().contains("http://k/install"));
    let n2 = path(&site, "n2").await;
    let report = json!({"hostname": "n2", "instance_id": "another"});
    let told = site.ask_as_nobody("POST", &n2).header("x-forwarded-for", "10.0.0.2");
    told.json(&report).send().await.expect(200);
    let script = format!("/boot/v1/bootscript?mac={}", mac(2));
    assert!(ask(&site, &script).await.expect(200).text().contains("http://k/install"));
    site.stop().await;
}

/// The token is in a script that any client can request.
#[tokio::test]
async fn foreign_reports_do_not_block_the_end_of_installation() {
    let site = site(|_| {}).await;
    let spec = json!({"selector": "*", "kernel": "http://k/install", "mode": "install"});
    site.apply(&[document("BootConfig", "live", &spec)]).await;
    let n1 = path(&site, "n1").await;
    let from = |address: &str| {
        let report = json!({"hostname": "n1"});
        site.ask_as_nobody("POST", &n1).header("x-forwarded-for", address).json(&report).send()
    };
    from("192.0.2.7").await.expect(200);
    from("192.0.2.7").await.expect(429);
    from("10.0.0.1").await.expect(200);
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert_eq!(state["doing"], "disk", "{state}");
    site.stop().await;
}

/// It is a machine of its own, and often an old one.
#[tokio::test]
async fn a_management_controller_is_not_its_node() {
    let site = site(|_| {}).await;
    let install = json!({"selector": "*", "kernel": "http://k/install", "mode": "install"});
    let bmc = |n: u32| {
        let address = format!("10.1.0.{n}/8");
        json!({"name": "bmc", "kind": "bmc", "mac": mac(n + 100), "addresses": [address]})
    };
    let eth = json!({"name": "eth0", "mac": mac(1), "addresses": ["10.0.0.1/8"]});
    // Of the second one nothing else is known.
    let bare = json!({"name": "eth0", "mac": mac(2)});
    site.apply(&[
        document("BootConfig", "live", &install),
        document("Node", "n1", &json!({"interfaces": [eth, bmc(1)]})),
        document("Node", "n2", &json!({"interfaces": [bare, bmc(2)]})),
    ])
    .await;
    for n in [1, 2] {
        let from = format!("10.1.0.{n}");
        let held = ask_from(&site, &from, "/meta/v1/seed/meta-data").await;
        held.problem(503, "held");
        let own = path(&site, &format!("n{n}")).await;
        let told = site.ask_as_nobody("POST", &own).header("x-forwarded-for", &from);
        told.json(&json!({"hostname": "n"})).send().await.expect(200);
        let told = site.ask_as_nobody("POST", "/phone-home").header("x-forwarded-for", &from);
        told.json(&json!({"hostname": "n"})).send().await.expect(404);
        let state = site.get(&format!("/boot/v2/state/n{n}")).await.expect(200).json();
        assert_eq!(state["doing"], "install", "{state}");
    }
    ask_from(&site, "10.0.0.1", "/meta/v1/seed/meta-data").await.expect(200);
    site.stop().await;
}
