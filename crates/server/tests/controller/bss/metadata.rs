//! `/meta-data`, `/user-data` and `/phone-home`, by the address of who asks.

use hoist_server::controller::Config;
use serde_json::{Value, json};

use crate::site::{Site, document};

const PARAMETERS: &str = "/boot/v1/bootparameters";

/// This machine is `x1c0s0b0n0`; another node is at 10.0.0.1.
async fn site(change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::start_with(change).await;
    let spec = |n: u32, address: &str| {
        json!({"xname": format!("x1c0s0b0n{n}"), "role": "Compute", "subrole": "Worker",
            "interfaces": [{"name": "eth0", "mac": format!("02:00:00:00:00:0{n}"),
                            "addresses": [address]}]})
    };
    site.apply(&[
        document("Node", "n0", &spec(0, "127.0.0.1/8")),
        document("Node", "n1", &spec(1, "10.0.0.1/8")),
    ])
    .await;
    site
}

fn behind_a_proxy(config: &mut Config) {
    config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
}

async fn record(site: &Site, host: &str, cloud_init: Value) {
    let body = json!({"hosts": [host], "kernel": "http://h/k", "cloud-init": cloud_init});
    site.put(PARAMETERS, &body).await.expect(200);
}

async fn get(site: &Site, path: &str) -> Value {
    let answer = site.ask_as_nobody("GET", path).send().await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
    answer.json()
}

#[tokio::test]
async fn meta_data_merges_record_subrole_and_inventory() {
    let site = site(|_| {}).await;
    let bare = get(&site, "/meta-data").await;
    let instance = bare["instance-id"].as_str().unwrap().to_owned();
    let (name, hash) = instance.rsplit_once('-').unwrap();
    assert_eq!(name, "x1c0s0b0n0");
    assert!(hash.len() == 12 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{instance}");
    let expected = json!({
        "local-hostname": "x1c0s0b0n0", "shasta-type": "Compute", "shasta-role": "Worker",
        "instance-id": instance, "Global": {},
    });
    assert_eq!(bare, expected);

    record(&site, "Worker", json!({"meta-data": {"a": {"b": 1, "c": [1, 2]}, "d": 1}})).await;
    record(&site, "Global", json!({"meta-data": {"site": "s"}})).await;
    let own = json!({"a": {"c": [3]}, "local-hostname": "mine", "instance-id": "made up"});
    record(&site, "x1c0s0b0n0", json!({"meta-data": own})).await;
    let expected = json!({
        "a": {"b": 1, "c": [3]}, "d": 1, "local-hostname": "mine", "shasta-type": "Compute",
        "shasta-role": "Worker", "instance-id": instance, "Global": {"site": "s"},
    });
    assert_eq!(get(&site, "/meta-data").await, expected, "and the instance stays the same");
    assert_eq!(get(&site, "/meta-data?key=a.c").await, json!([3]));
    assert_eq!(get(&site, "/meta-data/?key=Global.site").await, json!("s"));
    let missing = site.ask_as_nobody("GET", "/meta-data?key=a.kettle").send().await.expect(404);
    assert_eq!(missing.header("content-type"), "application/problem+json");
    assert_eq!(missing.json()["detail"], "Not Found");
    let site = site.restart().await;
    assert_eq!(get(&site, "/meta-data?key=instance-id").await, json!(instance));
    site.stop().await;
}

#[tokio::test]
async fn user_data_is_yaml_for_cloud_init() {
    let site = site(|_| {}).await;
    record(&site, "Worker", json!({"user-data": {"packages": ["a"], "ntp": {"on": true}}})).await;
    let own = json!({"packages": ["b: c"], "write_files": [{"path": "/x", "content": "1\n2\n"}]});
    record(&site, "x1c0s0b0n0", json!({"user-data": own})).await;
    let answer = site.ask_as_nobody("GET", "/user-data").send().await.expect(200);
    assert_eq!(answer.header("content-type"), "text/yaml");
    let text = answer.text();
    let yaml = text.strip_prefix("#cloud-config\n").expect("cloud-init looks for this line");
    let value: Value = serde_saphyr::from_str(yaml).expect("YAML");
    let expected = json!({
        "packages": ["b: c"], "ntp": {"on": true}, "local-hostname": "x1c0s0b0n0",
        "write_files": [{"path": "/x", "content": "1\n2\n"}],
    });
    assert_eq!(value, expected);
    site.stop().await;
}

#[tokio::test]
async fn role_and_default_apply_to_nodes_without_a_record() {
    let site = site(behind_a_proxy).await;
    let asked_from = async |address: &str, key: &str| {
        let ask = site.ask_as_nobody("GET", &format!("/meta-data?key={key}"));
        let answer = ask.header("x-forwarded-for", address).send().await;
        (answer.status == 200).then(|| answer.json())
    };
    record(&site, "Default", json!({"meta-data": {"from": "Default"}})).await;
    assert_eq!(asked_from("10.0.0.1", "from").await, Some(json!("Default")));
    assert_eq!(asked_from("10.9.9.9", "from").await, Some(json!("Default")));
    record(&site, "Compute", json!({"meta-data": {"from": "Compute"}})).await;
    assert_eq!(asked_from("10.0.0.1", "from").await, Some(json!("Compute")));
    assert_eq!(asked_from("10.9.9.9", "from").await, Some(json!("Default")), "an unknown machine");
    assert_eq!(asked_from("10.9.9.9", "local-hostname").await, None);
    let instance = asked_from("10.9.9.9", "instance-id").await.unwrap();
    assert!(instance.as_str().unwrap().starts_with("default-"), "{instance}");
    assert_ne!(asked_from("10.9.9.8", "instance-id").await.unwrap(), instance);
    site.stop().await;
}

#[tokio::test]
async fn unlisted_proxy_speaks_for_itself_only() {
    let machine = site(|_| {}).await;
    let proxied = site(behind_a_proxy).await;
    for (site, expected) in [(&machine, "x1c0s0b0n0"), (&proxied, "x1c0s0b0n1")] {
        let ask = site.ask_as_nobody("GET", "/meta-data?key=local-hostname");
        // The first entries were written by the client itself.
        let answer = ask.header("x-forwarded-for", "127.0.0.1, 10.0.0.1").send().await.expect(200);
        assert_eq!(answer.json(), json!(expected));
    }
    record(&machine, "x1c0s0b0n1", json!({})).await;
    let ask = machine.ask_as_nobody("POST", "/phone-home").header("x-forwarded-for", "10.0.0.1");
    ask.json(&json!({"hostname": "stolen"})).send().await.expect(404);
    assert!(!machine.get(PARAMETERS).await.text().contains("stolen"));
    machine.stop().await;
    proxied.stop().await;
}

#[tokio::test]
async fn disabled_nodes_and_ambiguous_addresses_get_nothing_of_a_node() {
    let site = site(behind_a_proxy).await;
    let off = json!({"enabled": false, "interfaces": [
        {"name": "eth0", "mac": "02:00:00:00:00:09", "addresses": ["10.0.0.9/8"]}]});
    let twice = |n: u32, network: &str| {
        json!({"interfaces": [{"name": "eth0", "mac": format!("02:00:00:00:01:0{n}"),
                               "network": network, "addresses": ["10.5.5.5/24"]}]})
    };
    site.apply(&[
        document("Network", "a", &json!({})),
        document("Network", "b", &json!({})),
        document("Node", "off", &off),
        document("Node", "t1", &twice(1, "a")),
        document("Node", "t2", &twice(2, "b")),
    ])
    .await;
    for path in ["/meta-data", "/user-data"] {
        let ask = site.ask_as_nobody("GET", path).header("x-forwarded-for", "10.0.0.9");
        ask.send().await.expect(404);
        let ask = site.ask_as_nobody("GET", path).header("x-forwarded-for", "10.5.5.5");
        assert!(!ask.send().await.expect(200).text().contains("local-hostname"));
    }
    site.stop().await;
}

#[tokio::test]
async fn phone_home_is_kept_in_the_record() {
    let site = site(|_| {}).await;
    let report = json!({"pub_key_rsa": "ssh-rsa A", "instance_id": "i", "fqdn": "n0.example.org"});
    let phone =
        async |body: String| site.ask_as_nobody("POST", "/phone-home").body(body).send().await;
    let refused = phone(report.to_string()).await.expect(404);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    record(&site, "Default", json!({})).await;
    phone(report.to_string()).await.expect(404);
    let cloud_init = json!({"meta-data": {"a": 1}, "user-data": {"b": 2}});
    record(&site, "x1c0s0b0n0", cloud_init).await;
    for wrong in ["", "{", "[]", r#"{"fqdn": 7}"#] {
        phone(wrong.to_owned()).await.expect(400);
    }
    for kind in ["application/x-www-form-urlencoded", "text/plain", "application/json"] {
        let ask = site.ask_as_nobody("POST", "/phone-home").header("content-type", kind);
        ask.body("junk").send().await.expect(400);
    }
    phone("x".repeat(64 * 1024 + 1)).await.expect(413);

    let answer = phone(report.to_string()).await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
    let kept = json!({
        "pub_key_dsa": "", "pub_key_rsa": "ssh-rsa A", "pub_key_ecdsa": "", "instance_id": "i",
        "hostname": "", "fqdn": "n0.example.org",
    });
    let expected = json!({
        "hosts": ["x1c0s0b0n0"],
        "cloud-init": {"meta-data": {"a": 1}, "user-data": {"b": 2}, "phone-home": kept},
    });
    assert_eq!(answer.json(), expected);
    let stored = site.get(&format!("{PARAMETERS}?name=x1c0s0b0n0")).await.json();
    let cloud_init = &stored[0]["cloud-init"];
    assert_eq!((&cloud_init["phone-home"], &cloud_init["meta-data"]), (&kept, &json!({"a": 1})));
    let revision = site.revision();
    phone(report.to_string()).await.expect(429);
    assert_eq!(site.revision(), revision, "nobody writes without end");
    let entry = site.audit().await.into_iter().next_back().unwrap();
    assert_eq!((entry.route.as_str(), entry.from.as_str()), ("/phone-home", "127.0.0.1"));
    site.stop().await;
}

#[tokio::test]
async fn installed_node_phones_home_and_boots_its_disk() {
    let site = site(|_| {}).await;
    let install = json!({"selector": "node:n0", "mode": "install", "kernel": "http://h/installer"});
    site.apply(&[document("BootConfig", "installer", &install)]).await;
    let script = async || site.get("/boot/v1/bootscript?mac=02:00:00:00:00:00").await.text();
    assert!(script().await.contains("http://h/installer"));
    // As cloud-init's own module sends it.
    let form = "application/x-www-form-urlencoded";
    let ask = site.ask_as_nobody("POST", "/phone-home").header("content-type", form);
    ask.body("instance_id=i&hostname=n0").send().await.expect(200);
    let after = script().await;
    assert!(after.contains("sanboot") && !after.contains("installer"), "{after}");
    let roster = site.controller.registry().roster();
    let state = roster.boot_states().next().expect("a decision");
    assert_eq!(state.by, "phone-home");
    site.stop().await;
}
