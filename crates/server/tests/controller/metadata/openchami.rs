//! `/cloud-init` for those who come from `OpenCHAMI`'s service.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::metadata::{ask, ask_from, site, spec};
use crate::site::{Site, document, mac, with};

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
async fn group_metadata_reaches_its_members() {
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
async fn defaults_and_instances_are_shown_and_empty_ones_stay() {
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
async fn host_names_are_made_of_the_nid_as_the_defaults_say() {
    let site = grouped().await;
    let defaults = format!("{ADMIN}/cluster-defaults");
    let with_nid = with(spec(2, "10.0.0.2/8"), &json!({"nid": 42}));
    site.apply(&[document("Node", "n2", &with_nid)]).await;
    let named = async |n: u32| {
        let address = format!("10.0.0.{n}");
        let text = ask_from(&site, &address, "/cloud-init/meta-data").await.expect(200).text();
        let line = text.lines().find_map(|line| line.strip_prefix("local-hostname: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    site.post(&defaults, &json!({"region": "here"})).await.expect(201);
    assert_eq!(named(2).await, "n2");
    for (said, expected) in [
        (json!({"cluster-name": "demo"}), "de0042"),
        (json!({"short-name": "nid"}), "nid0042"),
        (json!({"nid-length": 6}), "nid000042"),
        (json!({"nid-length": 1}), "nid42"),
        (json!({"nid-length": 10, "short-name": "c-"}), "c-0000000042"),
    ] {
        site.post(&defaults, &said).await.expect(201);
        assert_eq!(named(2).await, expected, "{said}");
        assert_eq!(named(1).await, "n1", "it has no nid");
    }
    let kept = site.get(&defaults).await.expect(200).json();
    assert_eq!((&kept["short-name"], &kept["nid-length"]), (&json!("c-"), &json!(10)));
    for said in [
        json!({"nid-length": 11}),
        json!({"nid-length": -1}),
        json!({"short-name": "a b"}),
        json!({"short-name": "{{ token }}"}),
        json!({"short-name": "-"}),
    ] {
        site.post(&defaults, &said).await.expect(400);
    }
    assert_eq!(site.get(&defaults).await.expect(200).json(), kept);
    let info = json!({"id": "n2", "instance-id": "", "hostname": "gate"});
    site.put(&format!("{ADMIN}/instance-info/n2"), &info).await.expect(201);
    assert_eq!(named(2).await, "gate", "what is said of a node goes over it");
    site.stop().await;
}

#[tokio::test]
async fn ochami_group_names_no_secret_without_the_right() {
    let site = grouped().await;
    let scopes = |more: Value| {
        let metadata = json!({"verbs": ["read", "write"], "contexts": ["metadata"]});
        json!([metadata, more])
    };
    let plain = site.token(scopes(json!({"verbs": ["read"], "contexts": ["secrets"]}))).await;
    let naming = site.token(scopes(json!({"verbs": ["write"], "contexts": ["secrets"]}))).await;
    let content = "#cloud-config\npassword: {secret: {file: root/password}}\n";
    let group = json!({"name": "compute", "file": {"content": content, "encoding": "plain"}});
    let path = format!("{ADMIN}/groups/compute");
    let put = async |token: &str| site.ask_as(token, "PUT", &path).json(&group).send().await;
    put(&plain).await.problem(403, "forbidden");
    put(&naming).await.expect(201);
    put(&plain).await.expect(201);
    site.stop().await;
}

/// The requests of `ochami cloud-init …`, member by member as its types write them, and its reads.
#[tokio::test]
async fn ochami_sends_the_requests_of_its_own_service() {
    let site = grouped().await;
    // service status
    let running = ask(&site, "/cloud-init/version").await.expect(200).json();
    assert_eq!(running["process_name"], "hoist");
    // group add, without a file, and set with one
    let groups = format!("{ADMIN}/groups");
    let bare = json!({"name": "compute", "file": {"content": null, "filename": ""}});
    site.post(&groups, &bare).await.expect(201);
    let text = "#cloud-config\nruncmd:\n- echo {}\n".replace("{}", "hi");
    let content = base64::engine::general_purpose::STANDARD.encode(&text);
    for encoding in ["plain", "base64"] {
        let file = json!({"content": content, "filename": "", "encoding": encoding});
        let group = json!({"name": "compute", "description": "d", "file": file});
        site.put(&format!("{groups}/compute"), &group).await.expect(201);
        // group get: the text, plain
        let kept = site.get(&groups).await.expect(200).json()["compute"]["file"].take();
        assert_eq!(kept["encoding"], "plain");
        assert!(kept["content"].as_str().expect("a text").contains("echo hi"), "{kept}");
    }
    // node set
    let info = json!({"id": "n2", "instance-id": "", "local-hostname": "gate"});
    site.put(&format!("{ADMIN}/instance-info/n2"), &info).await.expect(201);
    for wrong in [
        json!({"id": "n2", "instance-id": "i-1"}),
        json!({"id": "n2", "instance-id": "", "local-hostname": "a", "hostname": "a.b"}),
    ] {
        site.put(&format!("{ADMIN}/instance-info/n2"), &wrong).await.expect(400);
    }
    // node get, group render
    let preview = async |doc: &str| {
        let path = format!("{ADMIN}/impersonation/n2/{doc}");
        site.ask_as_nobody("GET", &path).send().await.problem(401, "unauthenticated");
        let limited = site.limited_token("node:n1").await;
        assert_eq!(site.ask_as(&limited, "GET", &path).send().await.status, 403);
        site.get(&path).await.expect(200).text()
    };
    assert!(preview("meta-data").await.contains("local-hostname: gate"));
    assert!(preview("vendor-data").await.contains("echo hi"));
    assert_eq!(preview("user-data").await, "");
    assert!(preview("compute.yaml").await.contains("echo hi"));
    site.get(&format!("{ADMIN}/impersonation/kettle/meta-data")).await.expect(404);
    site.get(&format!("{ADMIN}/impersonation/n2/login.yaml")).await.expect(404);
    site.stop().await;
}

#[tokio::test]
async fn lossy_writes_are_refused_and_admin_needs_a_token() {
    let site = grouped().await;
    let defaults = format!("{ADMIN}/cluster-defaults");
    for body in [json!({"boot-subnet": "10.0.0.0/8"}), json!({"wg-subnet": "100.97.0.0/16"})] {
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
async fn address_without_token_does_not_end_an_installation() {
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

#[tokio::test]
async fn concurrent_group_writes_are_all_kept() {
    let site = grouped().await;
    let defaults = format!("{ADMIN}/cluster-defaults");
    for round in 0..5 {
        let said = [
            json!({"cloud_provider": format!("c{round}")}),
            json!({"region": format!("r{round}")}),
            json!({"availability-zone": format!("z{round}")}),
            json!({"cluster-name": format!("n{round}")}),
            json!({"base-url": format!("http://h/{round}")}),
            json!({"short-name": format!("s{round}")}),
            json!({"nid-length": round + 1}),
        ];
        let posts = said.iter().map(|body| site.post(&defaults, body));
        for answer in futures_util::future::join_all(posts).await {
            answer.expect(201);
        }
        let kept = site.get(&defaults).await.expect(200).json();
        for one in &said {
            for (key, value) in one.as_object().expect("a map") {
                assert_eq!(&kept[key], value, "{key}");
            }
        }
    }
    let groups = format!("{ADMIN}/groups");
    for _ in 0..5 {
        let texts = (0..8).map(|n| group(&format!("#cloud-config\nruncmd:\n- echo {n}\n")));
        let texts: Vec<_> = texts.collect();
        let posts = texts.iter().map(|body| site.post(&groups, body));
        let answers = futures_util::future::join_all(posts).await;
        let done = answers.iter().filter(|answer| answer.status == 201).count();
        let refused = answers.iter().filter(|answer| answer.status == 409).count();
        assert_eq!((done, refused), (1, 7));
        site.delete(&format!("{groups}/compute")).await.expect(200);
    }
    site.stop().await;
}

#[tokio::test]
async fn layer_name_grants_no_access_to_a_layer() {
    let site = grouped().await;
    let own =
        async || ask_from(&site, "10.0.0.2", "/cloud-init/compute.yaml").await.expect(200).text();
    let runs = |selector: &str, command: &str| {
        let layer = json!({"selector": selector, "vendor_data": {"runcmd": [command]}});
        [document("MetadataLayer", "ochami-group-compute", &layer)]
    };
    for other in ["node:n1", "*", "partition:default"] {
        site.apply(&runs(other, "echo hidden")).await;
        assert_eq!(own().await, "", "{other}");
        site.get(&format!("{ADMIN}/groups/compute")).await.expect(404);
        assert_eq!(site.get(&format!("{ADMIN}/groups")).await.expect(200).json(), json!({}));
        site.delete(&format!("{ADMIN}/groups/compute")).await.expect(404);
        // Nor is it overwritten.
        site.post(&format!("{ADMIN}/groups"), &group("")).await.problem(409, "conflict");
        site.put(&format!("{ADMIN}/groups/compute"), &group("")).await.problem(409, "conflict");
    }
    site.apply(&runs("group:compute", "echo shown")).await;
    assert!(own().await.contains("echo shown"));

    let layer = json!({"selector": "group:compute", "vendor_data": {
        "password": {"secret": {"file": "db/password"}},
        "users": [{"name": "a", "passwd": {"secret": {"file": "db/password"}}}],
        "fqdn": "{{ node.name }}.site",
        "timezone": "UTC",
    }});
    site.apply(&[document("MetadataLayer", "ochami-group-compute", &layer)]).await;
    assert_eq!(own().await, "#cloud-config\ntimezone: UTC\n");
    let text = json!({"document": "vendor-data", "type": "text/x-shellscript", "content": "#!{{ token }}\n"});
    let layer = json!({"selector": "group:compute", "parts": [text]});
    site.apply(&[document("MetadataLayer", "ochami-group-compute", &layer)]).await;
    assert_eq!(own().await, "");
    site.stop().await;
}

#[tokio::test]
async fn groups_of_any_name_can_be_written() {
    let site = grouped().await;
    let long = "g".repeat(63);
    let groups = format!("{ADMIN}/groups");
    for name in ["rack_1", "rack.1", "rack:1", "rack-1", "a-", &long] {
        let member = with(spec(2, "10.0.0.2/8"), &json!({"groups": [name]}));
        let declared = document("Group", &format!("default/{name}"), &json!({}));
        site.apply(&[declared, document("Node", "n2", &member)]).await;
        let text = format!("#cloud-config\nruncmd:\n- echo {}\n", name.len());
        let file = json!({"content": text, "encoding": "plain"});
        let body = json!({"name": name, "file": file});
        site.post(&groups, &body).await.expect(201);
        site.post(&groups, &body).await.problem(409, "conflict");
        let one = format!("{groups}/{name}");
        let kept = site.get(&one).await.expect(200).json();
        assert_eq!(kept["name"], name);
        let all = site.get(&groups).await.expect(200).json();
        assert_eq!(all, json!({ name: kept }));
        let path = format!("/cloud-init/{name}.yaml");
        let own = ask_from(&site, "10.0.0.2", &path).await.expect(200).text();
        assert!(own.contains("echo"), "{own}");
        site.put(&one, &body).await.expect(201);
        site.delete(&one).await.expect(200);
        site.get(&one).await.expect(404);
    }
    for name in ["", "*", "a b", "a/b", "-a", &"g".repeat(64)] {
        site.post(&groups, &json!({ "name": name })).await.expect(400);
    }
    site.stop().await;
}

#[tokio::test]
async fn reader_does_not_learn_the_token() {
    let site = grouped().await;
    let layer = json!({"selector": "*", "user_data": {"final_message": "at {{ token }}!"}});
    site.apply(&[document("MetadataLayer", "all", &layer)]).await;
    let path = format!("{ADMIN}/impersonation/n2/user-data");
    let shown = site.get(&path).await.expect(200).text();
    assert!(shown.contains("at (token)!"), "{shown}");
    let served = ask_from(&site, "10.0.0.2", "/cloud-init/user-data").await.expect(200).text();
    assert!(!served.contains("(token)"), "{served}");
    site.stop().await;
}
