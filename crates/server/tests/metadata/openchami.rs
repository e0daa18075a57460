//! `/cloud-init` for those who come from `OpenCHAMI`'s service.

use serde_json::{Value, json};

use crate::site::{Site, document, mac, with};
use crate::{ask, ask_from, site, spec};

const ADMIN: &str = "/cloud-init/admin";

/// `n2` is in the group `compute`.
async fn grouped() -> Site {
    let site = site(|_| {}).await;
    let member = with(spec(2, "10.0.0.2/8"), &json!({"groups": ["compute"]}));
    site.apply(&[
        document("Group", "default/compute", &json!({})),
        document("Node", "n2", &member),
    ])
    .await;
    site
}

fn group(content: &str) -> Value {
    let file = json!({"content": content, "encoding": "plain"});
    json!({"name": "compute", "description": "the many", "meta-data": {"a": 1}, "file": file})
}

#[tokio::test]
async fn what_the_admin_says_of_a_group_is_told_to_its_members() {
    let site = grouped().await;
    let groups = format!("{ADMIN}/groups");
    let one = format!("{groups}/compute");
    let text = "#cloud-config\nruncmd:\n- echo one\n";
    site.get(&one).await.expect(404);
    site.post(&groups, &group(text)).await.expect(201);
    site.post(&groups, &group(text)).await.problem(409, "conflict");
    let kept = site.get(&one).await.expect(200).json();
    assert_eq!((&kept["description"], &kept["meta-data"]), (&json!("the many"), &json!({"a": 1})));
    assert!(kept["file"]["content"].as_str().unwrap().contains("echo one"), "{kept}");
    assert_eq!(site.get(&groups).await.expect(200).json()["compute"], kept);

    let vendor = ask_from(&site, "10.0.0.2", "/cloud-init/vendor-data").await.expect(200).text();
    assert!(vendor.contains("echo one") && !vendor.contains("#include"), "{vendor}");
    let other = ask_from(&site, "10.0.0.1", "/cloud-init/vendor-data").await.expect(200).text();
    assert_eq!(other, "");
    let own = ask_from(&site, "10.0.0.2", "/cloud-init/compute.yaml").await.expect(200).text();
    assert!(own.starts_with("#cloud-config\n"), "{own}");
    ask_from(&site, "10.0.0.1", "/cloud-init/compute.yaml").await.expect(404);
    ask_from(&site, "10.0.0.2", "/cloud-init/login.yaml").await.expect(404);

    site.put(&one, &group("#cloud-config\nruncmd:\n- echo two\n")).await.expect(201);
    let vendor = ask_from(&site, "10.0.0.2", "/cloud-init/vendor-data").await.expect(200).text();
    assert!(vendor.contains("echo two") && !vendor.contains("echo one"), "{vendor}");
    let path = format!("{ADMIN}/impersonation/n2/vendor-data");
    assert_eq!(site.get(&path).await.expect(200).text(), vendor);
    site.delete(&one).await.expect(200);
    site.delete(&one).await.expect(404);
    let vendor = ask_from(&site, "10.0.0.2", "/cloud-init/vendor-data").await.expect(200).text();
    assert_eq!(vendor, "");
    site.stop().await;
}

#[tokio::test]
async fn defaults_and_instances_are_told_and_what_is_empty_stays() {
    let site = grouped().await;
    let defaults = format!("{ADMIN}/cluster-defaults");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZvb2Jhcg admin";
    let body = json!({"cluster-name": "demo", "region": "here", "public-keys": [key]});
    site.post(&defaults, &body).await.expect(201);
    site.post(&defaults, &json!({"region": "there"})).await.expect(201);
    let kept = site.get(&defaults).await.expect(200).json();
    assert_eq!((&kept["cluster-name"], &kept["region"]), (&json!("demo"), &json!("there")));
    let info = json!({"id": "n2", "local-hostname": "gate", "instance-type": "t2"});
    site.put(&format!("{ADMIN}/instance-info/n2"), &info).await.expect(201);
    site.put(&format!("{ADMIN}/instance-info/kettle"), &info).await.expect(404);
    let meta = ask_from(&site, "10.0.0.2", "/cloud-init/meta-data").await.expect(200).text();
    for expected in ["local-hostname: gate", "instance_data:", "there", "t2", key] {
        assert!(meta.contains(expected), "{expected}: {meta}");
    }
    let other = ask_from(&site, "10.0.0.1", "/cloud-init/meta-data").await.expect(200).text();
    assert!(other.contains("local-hostname: n1") && !other.contains("t2"), "{other}");
    site.stop().await;
}

#[tokio::test]
async fn what_would_be_dropped_is_refused_and_nobody_administrates_without_a_token() {
    let site = grouped().await;
    let defaults = format!("{ADMIN}/cluster-defaults");
    for body in [json!({"short-name": "nid"}), json!({"wg-subnet": "100.97.0.0/16"})] {
        site.post(&defaults, &body).await.expect(400);
    }
    let groups = format!("{ADMIN}/groups");
    let wrong = json!({"name": "compute", "data": {"a": 1}});
    site.post(&groups, &wrong).await.expect(400);
    site.post(&groups, &group("#cloud-config\nfqdn: {{ x }}\n")).await.expect(400);
    let reserved = json!({"name": "compute", "meta-data": {"instance-id": "i"}});
    site.post(&groups, &reserved).await.expect(400);
    assert_eq!(site.get(&groups).await.expect(200).json(), json!({}), "nothing was kept");
    for (method, path) in [
        ("GET", defaults.clone()),
        ("POST", defaults),
        ("GET", groups.clone()),
        ("POST", groups.clone()),
        ("DELETE", format!("{groups}/compute")),
        ("PUT", format!("{ADMIN}/instance-info/n2")),
        ("GET", format!("{ADMIN}/impersonation/n2/meta-data")),
    ] {
        let answer = site.ask_as_nobody(method, &path).json(&json!({})).send().await;
        answer.problem(401, "unauthenticated");
    }
    site.stop().await;
}

#[tokio::test]
async fn an_address_alone_does_not_end_an_installation() {
    let site = grouped().await;
    let installs = json!({"selector": "*", "kernel": "http://k/install", "mode": "install"});
    site.apply(&[document("BootConfig", "live", &installs)]).await;
    let script = format!("/boot/v1/bootscript?mac={}", mac(2));
    assert!(ask(&site, &script).await.expect(200).text().contains("http://k/install"));
    let before = site.controller.chassis().events.last_id();
    let report = |address: &'static str| {
        let ask = site.ask_as_nobody("POST", "/cloud-init/phone-home/whoever");
        ask.header("x-forwarded-for", address).json(&json!({"hostname": "n2"})).send()
    };
    report("10.0.0.2").await.expect(200);
    report("10.0.0.2").await.expect(429);
    report("192.0.2.1").await.expect(503);
    assert_ne!(site.controller.chassis().events.last_id(), before);
    assert!(ask(&site, &script).await.expect(200).text().contains("http://k/install"));
    site.stop().await;
}
