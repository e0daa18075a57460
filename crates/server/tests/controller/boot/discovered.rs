//! Unknown machines: held, listed, limited, adopted.

use serde_json::json;

use crate::boot::{behind_a_proxy, bootscript, config, script};
use crate::site::{NODES, Site, document, ip, mac, node_document};

const LIST: &str = "/boot/v2/discovered";

#[tokio::test]
async fn unknown_machine_waits_is_listed_and_boots_once_adopted() {
    let site = Site::start().await;
    site.apply(&[
        document("Group", "gpu", &json!({})),
        config("base", &json!({"selector": "group:gpu"})),
    ])
    .await;
    let first = bootscript(&site, &format!("mac={}", mac(7))).await.expect(200).text();
    assert!(first.contains("sleep 10\n") && first.contains("&wait=1"), "{first}");
    let next = format!("mac={}&arch=x86_64&wait=3", mac(7));
    let later = bootscript(&site, &next).await.expect(200).text();
    assert!(pause(&later) > pause(&first), "it is asked less and less often: {later}");

    let listed = site.get(LIST).await.expect(200).json();
    let machine = &listed["items"][0];
    assert_eq!(machine["mac"], mac(7));
    assert_eq!((&machine["arch"], &machine["count"]), (&json!("x86_64"), &json!(2)));
    assert_eq!(machine["from"], "127.0.0.1");
    assert!(machine["first"].as_str().unwrap() <= machine["last"].as_str().unwrap());

    let adopt = format!("{LIST}/{}/adopt", mac(7));
    let request =
        json!({"name": "n7", "groups": ["gpu"], "role": "compute", "labels": {"rack": "7"}});
    let revision = site.revision();
    let dry = site.post(&format!("{adopt}?dry_run=1"), &request).await.expect(201).json();
    assert_eq!((&dry["name"], site.revision()), (&json!("n7"), revision));
    let node = site.post(&adopt, &request).await.expect(201).json();
    assert_eq!(site.revision(), revision + 1, "one write");
    assert_eq!((&node["arch"], &node["boot"]["mac"]), (&json!("x86_64"), &json!(mac(7))));
    assert!(script(&site, 7).await.contains("http://k/base"));
    assert_eq!(site.get(LIST).await.json()["items"], json!([]));
    site.post(&adopt, &request).await.problem(404, "not-found");
    site.get(&format!("{NODES}/by/name/n7")).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn adopted_machine_keeps_the_address_that_only_it_has() {
    let site = Site::start_with(behind_a_proxy).await;
    let network = json!({"subnets": [{"cidr": "10.0.0.0/16"}]});
    site.apply(&[document("Network", "boot", &network), node_document(1)]).await;
    let adopt = async |n: u32, more: serde_json::Value| {
        let mut body = json!({"name": format!("n{n}")});
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let node = site.post(&format!("{LIST}/{}/adopt", mac(n)), &body).await.expect(201).json();
        node["interfaces"][0].clone()
    };
    let asked_from = async |n: u32, from: &str| {
        let path = format!("/boot/v1/bootscript?mac={}", mac(n));
        let ask = site.ask_as_nobody("GET", &path).header("x-forwarded-for", from);
        ask.send().await.expect(200);
    };
    for n in [7, 8] {
        asked_from(n, &ip(n)).await;
    }
    let kept = adopt(7, json!({})).await;
    assert_eq!((&kept["addresses"], &kept["network"]), (&json!(["10.0.0.7/16"]), &json!("boot")));
    assert_eq!(adopt(8, json!({"no_address": true})).await["addresses"], json!(null));
    // Outside of every network that is declared it is one address.
    asked_from(9, "192.0.2.9").await;
    assert_eq!(adopt(9, json!({})).await["addresses"], json!(["192.0.2.9/32"]));
    // An address that other machines have, or may have, identifies no machine.
    for (n, from) in [(10, "10.0.0.1"), (11, "192.0.2.200"), (12, "192.0.2.200"), (13, "127.0.0.1")]
    {
        asked_from(n, from).await;
    }
    for n in [10, 11, 13] {
        assert_eq!(adopt(n, json!({})).await["addresses"], json!(null), "{n}");
    }
    site.stop().await;
}

#[tokio::test]
async fn adoption_takes_nothing_from_others() {
    let site = Site::start().await;
    site.apply(&[node_document(1)]).await;
    bootscript(&site, &format!("mac={}", mac(7))).await.expect(200);
    let adopt = format!("{LIST}/{}/adopt", mac(7));
    let before = site.records().await;
    site.post(&adopt, &json!({"name": "n1"})).await.problem(409, "conflict");
    site.post(&adopt, &json!({"name": "n7", "nid": 1})).await.problem(409, "conflict");
    site.post(&adopt, &json!({"name": "n7", "groups": ["ghost"]}))
        .await
        .problem(400, "invalid-body");
    site.post(&adopt, &json!({"name": "n7", "partition": "ghost"}))
        .await
        .problem(400, "invalid-body");
    let never = format!("{LIST}/{}/adopt", mac(8));
    site.post(&never, &json!({"name": "n8"})).await.problem(404, "not-found");
    site.post(&format!("{LIST}/nonsense/adopt"), &json!({"name": "n8"}))
        .await
        .problem(400, "bad-parameter");
    let limited = site.limited_token("partition:p1").await;
    site.ask_as(&limited, "POST", &adopt)
        .json(&json!({"name": "n7"}))
        .send()
        .await
        .problem(403, "forbidden");
    // A name that is taken out of its reach is answered like one that is free there.
    let taken = site.ask_as(&limited, "POST", &adopt).json(&json!({"name": "n1"})).send().await;
    let problem = taken.problem(403, "forbidden");
    assert_eq!(problem.detail, "Node n1 is out of reach");
    let reader = site.token(json!([{"verbs": ["read", "write"], "contexts": ["boot"]}])).await;
    site.ask_as(&reader, "POST", &adopt)
        .json(&json!({"name": "n7"}))
        .send()
        .await
        .problem(403, "forbidden");
    let after = site.records().await;
    let written: Vec<_> = after.keys().filter(|key| !before.contains_key(*key)).collect();
    assert!(written.iter().all(|key| !key.starts_with("site/node")), "{written:?}");
    site.stop().await;
}

#[tokio::test]
async fn a_machine_that_is_declared_or_forgotten_is_listed_no_more() {
    let site = Site::start().await;
    for n in [7, 8] {
        bootscript(&site, &format!("mac={}", mac(n))).await.expect(200);
    }
    site.apply(&[node_document(7)]).await;
    let items = async || site.get(LIST).await.json()["items"].clone();
    assert_eq!(items().await.as_array().unwrap().len(), 1);
    site.delete(&format!("{LIST}/{}", mac(8))).await.expect(204);
    site.delete(&format!("{LIST}/{}", mac(8))).await.problem(404, "not-found");
    assert_eq!(items().await, json!([]));
    bootscript(&site, &format!("mac={}", mac(8))).await.expect(200);
    assert_eq!(items().await[0]["count"], 1);
    // Names are made up too easily to be remembered.
    bootscript(&site, "name=ghost").await.expect(200);
    assert_eq!(items().await.as_array().unwrap().len(), 1);
    site.stop().await;
}

/// How long a script has its machine wait.
fn pause(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("sleep ")).expect("a pause");
    line.parse().expect("a number")
}

#[tokio::test]
async fn unknown_machine_that_asks_too_often_waits_alone() {
    let site = Site::start().await;
    site.apply(&[node_document(1), config("base", &json!({}))]).await;
    let mut put_off = 0;
    for _ in 0..30 {
        let told = script(&site, 7).await;
        assert!(told.contains("chain --replace "), "it goes on asking: {told}");
        put_off += u32::from(pause(&told) > 40);
    }
    assert!(put_off >= 10, "{put_off} of 30");
    let listed = site.get(LIST).await.expect(200).json();
    assert_eq!(listed["items"][0]["count"], 30 - put_off, "they leave no trace either");
    assert_eq!(pause(&script(&site, 8).await), 10);
    // A known node asks as often as it likes, from the same address.
    for _ in 0..150 {
        assert!(script(&site, 1).await.contains("http://k/base"));
    }
    // Many unknown machines from one address are limited together.
    let mut put_off = 0;
    for n in 1000..1200 {
        put_off += u32::from(pause(&script(&site, n).await) > 40);
    }
    assert!(put_off > 0);
    assert!(script(&site, 1).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn known_machines_boot_however_many_share_an_address() {
    let site = Site::start().await;
    let macs: Vec<String> = (0..300).map(mac).collect();
    for body in [
        json!({"macs": macs, "kernel": "http://k/own"}),
        json!({"hosts": ["Unknown-x86_64"], "kernel": "http://k/discovery"}),
    ] {
        site.put("/boot/v1/bootparameters", &body).await.expect(200);
    }
    for mac in &macs {
        let told = bootscript(&site, &format!("mac={mac}")).await.expect(200).text();
        assert!(told.contains("http://k/own"), "{told}");
    }
    assert_eq!(
        pause(&script(&site, 999).await),
        10,
        "they do not count against unknown machines either"
    );
    for n in 1000..1300 {
        let query = format!("mac={}&arch=x86_64", mac(n));
        let told = bootscript(&site, &query).await.expect(200).text();
        assert!(told.contains("http://k/discovery"), "{told}");
    }
    site.stop().await;
}

#[tokio::test]
async fn change_notice_resets_the_retry_delay_of_machines() {
    let site = Site::start().await;
    let ask = async |wait: u32, ts: i64| {
        let query = format!("mac={}&arch=x86_64&ts={ts}&wait={wait}", mac(7));
        bootscript(&site, &query).await.expect(200).text()
    };
    let before = jiff::Timestamp::now().as_second() - 60;
    let longest = pause(&ask(50, before).await);
    assert!((45..=75).contains(&longest), "{longest} s");
    site.ask_as_nobody("POST", "/boot/v1/hosts").send().await.expect(204);
    let woken = ask(50, before).await;
    assert!(pause(&woken) == 10 && woken.contains("&wait=1"), "{woken}");
    let after = jiff::Timestamp::now().as_second() + 60;
    assert!(pause(&ask(50, after).await) >= 45, "it was sent away after the notice");
    let notice = site.ask_as_nobody("POST", "/boot/v1/scn").json(&json!({"State": "On"}));
    notice.send().await.expect(200);
    assert_eq!(pause(&ask(50, before).await), 10);
    site.stop().await;
}
