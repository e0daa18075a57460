//! `/boot/v1/bootparameters`: every method, its statuses, shapes and quirks.

use serde_json::{Value, json};

use crate::site::{Answer, Site};

const PATH: &str = "/boot/v1/bootparameters";
const MAC: &str = "a4:bf:01:3c:5e:70";
const XNAME: &str = "x1203c4s2b1n0";
const TOKEN: &str = "bss-referral-token";

/// One node that the inventory knows by all its names, and one that has a name only.
async fn site() -> Site {
    let site = Site::start().await;
    let spec = json!({
        "xname": XNAME, "nid": 48, "role": "compute",
        "interfaces": [
            {"name": "eth0", "mac": MAC},
            {"name": "eth1", "mac": "a4:bf:01:3c:5e:71"},
        ],
    });
    let named = json!({"interfaces": [{"name": "eth0", "mac": "52:54:00:00:00:01"}]});
    site.apply(&[node("n1", &spec), node("login1", &named)]).await;
    site
}

fn node(name: &str, spec: &Value) -> Value {
    json!({"api": "hoist/v1", "kind": "Node", "name": name, "spec": spec})
}

fn with_defaults(element: Value) -> Value {
    let Value::Object(mut element) = element else { panic!("an object") };
    element.entry("cloud-init").or_insert_with(|| {
        json!({
            "meta-data": null, "user-data": null,
            "phone-home": {
                "pub_key_dsa": "", "pub_key_rsa": "", "pub_key_ecdsa": "",
                "instance_id": "", "hostname": "", "fqdn": "",
            },
        })
    });
    Value::Object(element)
}

async fn list(site: &Site, query: &str) -> Value {
    site.get(&format!("{PATH}{query}")).await.expect(200).json()
}

async fn get_with(site: &Site, query: &str, body: &'static str) -> Answer {
    site.ask("GET", &format!("{PATH}{query}")).body(body).send().await
}

#[track_caller]
fn refused(answer: Answer, status: u16, detail: &str) {
    let answer = answer.expect(status);
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    let problem = answer.json();
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["status"], status);
    let title =
        http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    assert_eq!(problem["title"].as_str(), title);
    assert_eq!(problem.as_object().map(serde_json::Map::len), Some(4), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|told| told.contains(detail)), "{problem}");
}

fn uuid_in(answer: &Answer) -> String {
    let token = answer.headers[TOKEN].to_str().expect("a token");
    assert_eq!(uuid::Uuid::parse_str(token).expect("a UUID").get_version_num(), 4);
    token.to_owned()
}

#[tokio::test]
async fn a_record_is_created_read_replaced_amended_and_deleted() {
    let site = site().await;
    assert_eq!(list(&site, "").await, json!([]));

    let body = json!({"hosts": [XNAME], "kernel": "http://h/k", "initrd": "http://h/i", "params": "quiet"});
    let made = site.post(PATH, &body).await.expect(201);
    assert!(made.body.is_empty());
    let first = uuid_in(&made);
    assert_eq!(list(&site, "").await, json!([with_defaults(body.clone())]));

    let body = json!({"hosts": [XNAME], "kernel": "http://h/k2", "params": "debug"});
    let put = site.put(PATH, &body).await.expect(200);
    assert_ne!(uuid_in(&put), first);
    assert_eq!(put.json(), with_defaults(body.clone()), "as some clients want to read it");
    assert_eq!(list(&site, "").await, json!([with_defaults(body)]), "nothing of before is left");

    let patch = json!({"hosts": [XNAME], "params": "quiet", "kernel": "", "initrd": null});
    let patched = site.ask("PATCH", PATH).json(&patch).send().await.expect(200);
    assert!(patched.body.is_empty() && !patched.headers.contains_key(TOKEN));
    let whole = json!({"hosts": [XNAME], "kernel": "http://h/k2", "params": "quiet"});
    assert_eq!(list(&site, "").await, json!([with_defaults(whole)]));

    let gone = site.ask("DELETE", PATH).json(&json!({"hosts": [XNAME]})).send().await.expect(200);
    assert!(gone.body.is_empty());
    assert_eq!(list(&site, "").await, json!([]));
    let again = site.ask("DELETE", PATH).json(&json!({"hosts": [XNAME]})).send().await;
    refused(again, 400, "Key x1203c4s2b1n0 deletion");
}

#[tokio::test]
async fn a_node_is_the_same_by_any_name_and_spelling() {
    let site = site().await;
    let names = [
        json!({"macs": ["A4-BF-01-3C-5E-71"]}),
        json!({"nids": [48]}),
        json!({"hosts": ["n1"]}),
        json!({"hosts": [XNAME]}),
        json!({"macs": ["a4bf.013c.5e70"]}),
    ];
    for (number, name) in names.iter().enumerate() {
        let mut body = name.clone();
        body["kernel"] = format!("http://h/k{number}").into();
        site.put(PATH, &body).await.expect(200);
        let element = json!({"hosts": [XNAME], "kernel": format!("http://h/k{number}")});
        let element = json!([with_defaults(element)]);
        for query in [
            "",
            "?name=x1203c4s2b1n0",
            "?name=n1",
            "?mac=A4:BF:01:3C:5E:70",
            "?mac=a4-bf-01-3c-5e-71",
            "?nid=48",
            "?nid=0x30",
            "?name=x1203c4s2b1n0,n1&mac=a4:bf:01:3c:5e:70&nid=48,48",
        ] {
            assert_eq!(list(&site, query).await, element, "{query}");
        }
        for asked in ["mac=a4:bf:01:3c:5e:70", "name=x1203c4s2b1n0", "nid=48", "name=n1"] {
            let script = site.get(&format!("/boot/v1/bootscript?{asked}")).await.expect(200);
            let script = String::from_utf8(script.body).unwrap();
            assert!(script.contains(&format!("http://h/k{number} ")), "{asked}: {script}");
            assert!(script.contains("xname=x1203c4s2b1n0 nid=48 bss_referral_token="), "{script}");
        }
    }
    let gone = site.ask("DELETE", PATH).json(&json!({"nids": [48]})).send().await;
    gone.expect(200);
    assert_eq!(list(&site, "").await, json!([]));
}

#[tokio::test]
async fn names_that_the_inventory_lacks_are_kept_under_what_they_are() {
    let site = site().await;
    let unknown = json!({"macs": ["02:00:00:00:00:09"], "kernel": "http://h/u"});
    site.put(PATH, &unknown).await.expect(200);
    site.put(PATH, &json!({"nids": [7], "kernel": "http://h/n"})).await.expect(200);
    site.put(PATH, &json!({"hosts": ["Default", "compute"], "kernel": "http://h/d"}))
        .await
        .expect(200);
    assert_eq!(list(&site, "?mac=02-00-00-00-00-09").await, json!([with_defaults(unknown)]));
    let nid = json!({"nids": [7], "kernel": "http://h/n"});
    assert_eq!(list(&site, "?nid=7").await, json!([with_defaults(nid)]));
    let tag = json!({"hosts": ["compute"], "kernel": "http://h/d"});
    assert_eq!(list(&site, "?name=compute").await, json!([with_defaults(tag)]));
    assert_eq!(list(&site, "").await.as_array().unwrap().len(), 4);
    // An unknown machine with parameters of its own: it boots, without a nid.
    let script = site.get("/boot/v1/bootscript?mac=02:00:00:00:00:09").await.expect(200);
    let script = String::from_utf8(script.body).unwrap();
    assert!(script.contains("http://h/u ") && !script.contains("nid="), "{script}");
}

#[tokio::test]
async fn filters_come_by_query_and_by_body() {
    let site = site().await;
    site.put(PATH, &json!({"hosts": [XNAME], "kernel": "http://h/k"})).await.expect(200);
    site.put(PATH, &json!({"hosts": ["login1"], "kernel": "http://h/l"})).await.expect(200);
    let both = list(&site, "").await;
    assert_eq!(both.as_array().unwrap().len(), 2);

    assert_eq!(get_with(&site, "", "null").await.expect(200).json(), both, "no filter");
    assert_eq!(get_with(&site, "", " \n").await.expect(200).json(), both, "no filter");
    let one = get_with(&site, "", r#"{"hosts":["x1203c4s2b1n0"]}"#).await.expect(200).json();
    assert_eq!(one[0]["hosts"], json!([XNAME]));
    assert_eq!(one.as_array().unwrap().len(), 1);
    let united = get_with(&site, "?name=login1", r#"{"nids":[48]}"#).await.expect(200).json();
    assert_eq!(united.as_array().unwrap().len(), 2);
    let ignored = get_with(&site, "?name=login1", "{half").await.expect(200).json();
    assert_eq!(ignored.as_array().unwrap().len(), 1);
    let image = get_with(&site, "", r#"{"kernel":"http://h/k"}"#).await.expect(200).json();
    assert_eq!(image, json!([with_defaults(json!({"kernel": "http://h/k"}))]));

    refused(get_with(&site, "", "{}").await, 400, "No specified data requested");
    refused(get_with(&site, "", "{half").await, 400, "not JSON");
    refused(site.get(&format!("{PATH}?nid=abc")).await, 400, "Bad Request - Invalid nid 'abc'");
    for (query, kinds) in [
        ("?name=x9c0s0b0n0", "Hosts"),
        ("?mac=zz", "MACs"),
        ("?name=nobody&mac=02:00:00:00:00:77&nid=9", "Hosts, MACs or NIDs"),
    ] {
        let detail = format!("Cannot find boot parameters for requested {kinds}");
        refused(site.get(&format!("{PATH}{query}")).await, 404, &detail);
    }
}

#[tokio::test]
async fn read_parameters_are_written_back_to_those_nodes_only() {
    let site = site().await;
    let data = json!({"meta-data": {"a": 1}, "user-data": {"b": [2]}});
    let body = json!({"hosts": [XNAME], "kernel": "http://h/k", "cloud-init": data});
    site.put(PATH, &body).await.expect(200);
    site.put(PATH, &json!({"hosts": ["login1"], "kernel": "http://h/l"})).await.expect(200);
    let other = list(&site, "?name=login1").await;
    let mut read = list(&site, "?nid=48").await[0].take();
    read["params"] = "image=new".into();
    site.put(PATH, &read).await.expect(200);
    assert_eq!(list(&site, "?nid=48").await[0], read);
    assert_eq!(list(&site, "?name=login1").await, other);
}

#[tokio::test]
async fn creating_takes_xnames_of_nodes_and_refuses_what_exists() {
    let site = site().await;
    for (host, detail) in [
        ("Default", "invalid xname"),
        ("x1203c4s2b1", "invalid xname type: NodeB"),
        ("x0c9", "xname"),
    ] {
        let body = json!({"hosts": [host], "kernel": "http://h/k"});
        refused(site.post(PATH, &body).await, 400, detail);
    }
    let two = json!({"hosts": ["x0c0s0b0n0", XNAME], "kernel": "http://h/k"});
    site.post(PATH, &json!({"macs": [MAC], "kernel": "http://h/k"})).await.expect(201);
    refused(site.post(PATH, &two).await, 400, "Bad Request: Already exists: x1203c4s2b1n0");
    assert_eq!(list(&site, "").await.as_array().unwrap().len(), 1, "nothing was stored");
    refused(site.post(PATH, &json!({})).await, 400, "Bad Request");
    refused(site.post(PATH, &json!({"hosts": ["a b"]})).await, 400, "invalid xname");
    // Only the first kind of name counts.
    let mixed =
        json!({"hosts": ["x0c0s0b0n0"], "macs": ["52:54:00:00:00:01"], "kernel": "http://h/k"});
    site.post(PATH, &mixed).await.expect(201);
    refused(site.get(&format!("{PATH}?name=login1")).await, 404, "Hosts");
}

#[tokio::test]
async fn parameters_without_node_belong_to_the_image() {
    let site = site().await;
    let record =
        json!({"hosts": [XNAME], "kernel": "http://h/k", "initrd": "http://h/i", "params": "a"});
    site.put(PATH, &record).await.expect(200);
    let image = site.put(PATH, &json!({"kernel": "http://h/k", "params": "from=kernel"})).await;
    assert!(!image.expect(200).headers.contains_key(TOKEN));
    let image =
        site.ask("PATCH", PATH).json(&json!({"initrd": "http://h/i", "params": "from=initrd"}));
    image.send().await.expect(200);
    assert_eq!(list(&site, "?nid=48").await, json!([with_defaults(record)]));
    let script = site.get("/boot/v1/bootscript?nid=48").await.expect(200);
    let script = String::from_utf8(script.body).unwrap();
    assert!(script.contains("initrd=initrd a from=kernel from=initrd xname="), "{script}");
    let all = list(&site, "").await;
    assert_eq!(all[0], with_defaults(json!({"kernel": "http://h/k", "params": "from=kernel"})));
    assert_eq!(all[1], with_defaults(json!({"initrd": "http://h/i", "params": "from=initrd"})));

    for method in ["PUT", "PATCH"] {
        refused(site.ask(method, PATH).json(&json!({})).send().await, 400, "name hosts");
        let loose = json!({"params": "x"});
        refused(site.ask(method, PATH).json(&loose).send().await, 400, "name hosts");
    }
    // In use: refused. With a node named, only the node's record goes. Then it is free.
    let delete = |body: Value| site.ask("DELETE", PATH).json(&body).send();
    refused(delete(json!({"kernel": "http://h/k"})).await, 400, "1 records boot it");
    delete(json!({"hosts": [XNAME], "kernel": "http://h/k", "params": "a"})).await.expect(200);
    assert_eq!(list(&site, "").await.as_array().unwrap().len(), 2);
    delete(json!({"kernel": "http://h/k", "initrd": "http://h/i"})).await.expect(200);
    assert_eq!(list(&site, "").await, json!([]));
    delete(json!({"kernel": "http://h/never-seen"})).await.expect(200);
    delete(json!({})).await.expect(200);
    refused(site.ask("DELETE", PATH).send().await, 400, "the body is empty");
}

#[tokio::test]
async fn amendment_merges_cloud_init_of_every_host() {
    let site = site().await;
    let data = json!({"meta-data": {"keep": 1, "drop": 2, "deep": {"a": 1}}});
    let record = json!({"hosts": [XNAME], "kernel": "http://h/k", "cloud-init": data});
    let token = uuid_in(&site.put(PATH, &record).await.expect(200));
    let patch = json!({
        "macs": [MAC],
        "cloud-init": {
            "meta-data": {"drop": null, "deep": {"b": 2}},
            "user-data": {"runcmd": ["true"]},
            "phone-home": {"hostname": "n1"},
        },
    });
    site.ask("PATCH", PATH).json(&patch).send().await.expect(200);
    let read = list(&site, "?nid=48").await[0]["cloud-init"].take();
    assert_eq!(read["meta-data"], json!({"keep": 1, "deep": {"a": 1, "b": 2}}));
    assert_eq!(read["user-data"], json!({"runcmd": ["true"]}));
    assert_eq!(read["phone-home"]["hostname"], "n1");
    let script = site.get("/boot/v1/bootscript?nid=48").await.expect(200);
    let script = String::from_utf8(script.body).unwrap();
    assert!(script.contains(&format!("bss_referral_token={token}")), "it stays: {script}");

    for missing in [
        json!({"hosts": [XNAME, "login1"], "params": "x"}),
        json!({"hosts": [XNAME], "macs": ["02:00:00:00:00:09"], "params": "x"}),
        json!({"hosts": [XNAME], "nids": [9], "params": "x"}),
        json!({"hosts": ["Global"], "params": "x"}),
    ] {
        refused(site.ask("PATCH", PATH).json(&missing).send().await, 404, "Not Found: ");
    }
    assert_eq!(list(&site, "?nid=48").await[0].get("params"), None, "nothing was changed");
}

#[tokio::test]
async fn bad_input_is_refused_with_its_place_and_nothing_changes() {
    let site = site().await;
    let good = json!({"hosts": [XNAME], "kernel": "http://h/k", "params": "quiet"});
    site.put(PATH, &good).await.expect(200);
    let before = site.revision();
    let long = "x".repeat(1024 * 1024);
    let bodies = [
        (json!({"kernel": "http://h/k\nshell"}), "kernel: "),
        (json!({"kernel": "http://h/a b"}), "kernel: "),
        (json!({"initrd": "http://h/i\r"}), "initrd: "),
        (json!({"params": "a\nboot || shell"}), "params: "),
        (json!({"params": "a || shell"}), "params: "),
        (json!({"params": "quiet ; shell"}), "params: "),
        (json!({"params": "# quiet"}), "params: "),
        (json!({"kernel": ";"}), "kernel: "),
        (json!({"params": "a\u{0}"}), "params: "),
        (json!({"params": long}), "params: "),
        (json!({"cloud-init": {"user-data": {"x": "y".repeat(300_000)}}}), "cloud-init: "),
        (json!({"cloud-init": 1}), "cloud-init: "),
        (json!({"nids": ["48"]}), "nids: "),
        (json!({"nids": [-5]}), "nid"),
        (json!({"nids": [99_999_999_999_u64]}), "nids: "),
        (json!({"macs": ["a4:bf:01"]}), "invalid MAC address format: a4:bf:01"),
        (json!({"hosts": [""]}), "invalid host"),
        (json!({"hosts": ["a\nb"]}), "invalid host"),
        (json!({"hosts": XNAME}), "hosts: "),
    ];
    for (mut body, detail) in bodies {
        if body.get("hosts").is_none() && body.get("nids").is_none() {
            body["hosts"] = json!([XNAME]);
        }
        for method in ["PUT", "PATCH"] {
            refused(site.ask(method, PATH).json(&body).send().await, 400, detail);
        }
    }
    let half = site.ask("PUT", PATH).body("{\"hosts\":[\"x12").send().await;
    refused(half, 400, "not JSON");
    assert_eq!(site.revision(), before);
    assert_eq!(list(&site, "").await, json!([with_defaults(good)]));
}

#[tokio::test]
async fn a_kernel_is_kept_where_the_site_wants_it_kept() {
    let site = Site::start_with(|config| config.boot.keep_kernel = true).await;
    site.put(PATH, &json!({"hosts": [XNAME], "kernel": "http://h/k"})).await.expect(200);
    let without = json!({"hosts": [XNAME], "params": "quiet"});
    refused(site.put(PATH, &without).await, 400, "would lose its kernel");
    site.ask("PATCH", PATH).json(&without).send().await.expect(200);
    site.put(PATH, &json!({"hosts": ["Global"], "params": "x"})).await.expect(200);
}

/// Names that read like something else belong to the node that has them.
#[tokio::test]
async fn a_node_named_like_a_nid_or_an_xname_is_itself() {
    let site = Site::start().await;
    let mac = |n: u8| format!("52:54:00:00:00:{n:02x}");
    let interfaces = |n| json!([{"name": "eth0", "mac": mac(n)}]);
    let nodes = [
        node("nid0003", &json!({"interfaces": interfaces(1)})),
        node("nid0500", &json!({"nid": 501, "interfaces": interfaces(2)})),
        node("other", &json!({"nid": 500, "interfaces": interfaces(3)})),
        node("x1c0s0b0n4", &json!({"interfaces": interfaces(4)})),
        node("52-54-00-00-00-03", &json!({"interfaces": interfaces(5)})),
    ];
    site.apply(&nodes).await;
    let names = ["nid0003", "nid0500", "x1c0s0b0n4", "52-54-00-00-00-03"];
    for name in names {
        let body = json!({"hosts": [name], "kernel": format!("http://h/{name}")});
        site.put(PATH, &body).await.expect(200);
    }
    let (dir, config) = site.stop().await;
    let site = Site::start_on(dir, config).await.expect("it starts again");
    for (n, name) in [(1, names[0]), (2, names[1]), (4, names[2]), (5, names[3])] {
        let script = site.get(&format!("/boot/v1/bootscript?mac={}", mac(n))).await.expect(200);
        let script = String::from_utf8(script.body).unwrap();
        assert!(script.contains(&format!("http://h/{name} ")), "{name}: {script}");
        let listed = list(&site, &format!("?mac={}", mac(n))).await;
        assert_eq!(listed[0]["hosts"], json!([name]));
        let by_name = list(&site, &format!("?name={name}")).await;
        assert_eq!(by_name, listed);
    }
    let other = site.get(&format!("/boot/v1/bootscript?mac={}", mac(3))).await.expect(200);
    assert!(!String::from_utf8(other.body).unwrap().contains("http://h/"), "it was given nothing");
    assert_eq!(list(&site, "").await.as_array().unwrap().len(), 4);
    site.stop().await;
}

#[tokio::test]
async fn a_record_with_cloud_init_data_only_hides_no_configuration() {
    let site = site().await;
    let spec = json!({"selector": "role:compute", "kernel": "http://h/live"});
    let config = json!({"api": "hoist/v1", "kind": "BootConfig", "name": "live", "spec": spec});
    site.apply(&[config]).await;
    let data = json!({"hosts": [XNAME], "cloud-init": {"user-data": {"a": 1}}});
    site.put(PATH, &data).await.expect(200);
    let script = site.get(&format!("/boot/v1/bootscript?mac={MAC}")).await.expect(200);
    assert!(String::from_utf8(script.body).unwrap().contains("http://h/live"));
    let told = site.get("/boot/v2/explain/n1").await.expect(200).text();
    assert!(told.contains("has no kernel"), "{told}");
}

#[tokio::test]
async fn delete_of_several_hosts_deletes_those_that_have_records() {
    let site = site().await;
    let others = ["x1c0s0b0n0", "x1c0s0b0n1"];
    site.put(PATH, &json!({"hosts": [XNAME, others[1]], "kernel": "http://h/k"})).await.expect(200);
    let delete = json!({"hosts": [others[0], XNAME, others[0]], "macs": ["kettle"], "nids": [48]});
    let answer = site.ask("DELETE", PATH).json(&delete).send().await;
    refused(answer, 400, "Key x1c0s0b0n0 deletion");
    assert_eq!(list(&site, "").await[0]["hosts"], json!([others[1]]), "the others are deleted");
    let revision = site.revision();
    site.ask("DELETE", PATH).json(&delete).send().await.expect(400);
    assert_eq!(site.revision(), revision, "there was nothing left to delete");
}

#[tokio::test]
async fn record_without_kernel_of_a_subrole_or_group_hides_nothing() {
    let site = site().await;
    let spec = json!({"xname": "x1c0s0b0n0", "subrole": "UAN", "groups": ["blue"],
                      "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:07"}]});
    let group = json!({"api": "hoist/v1", "kind": "Group", "name": "default/blue", "spec": {}});
    site.apply(&[group, node("uan1", &spec)]).await;
    site.put(PATH, &json!({"hosts": ["Default"], "kernel": "http://h/default"})).await.expect(200);
    for tag in ["UAN", "blue"] {
        let data = json!({"meta-data": {"of": tag}});
        site.put(PATH, &json!({"hosts": [tag], "cloud-init": data})).await.expect(200);
    }
    let script = async || {
        let answer = site.get("/boot/v1/bootscript?mac=02:00:00:00:00:07").await.expect(200);
        answer.text()
    };
    assert!(script().await.contains("http://h/default"), "as BSS, which does not look at them");
    let explained = site.get("/boot/v2/explain/uan1").await.expect(200).text();
    assert!(explained.contains("has no kernel"), "{explained}");
    site.put(PATH, &json!({"hosts": ["UAN"], "kernel": "http://h/uan"})).await.expect(200);
    assert!(script().await.contains("http://h/uan"));
}

#[tokio::test]
async fn machine_that_the_inventory_lacks_boots_its_own_record_only() {
    let site = site().await;
    let xname = "x1c0s0b0n0";
    let put =
        site.put(PATH, &json!({"hosts": [xname], "kernel": "http://h/own"})).await.expect(200);
    let token = uuid_in(&put);
    let hosts = json!(["Default", "compute", "Global"]);
    site.put(PATH, &json!({"hosts": hosts, "kernel": "http://h/tag"})).await.expect(200);
    let script = site.get(&format!("/boot/v1/bootscript?name={xname}")).await.expect(200).text();
    let words = format!(" xname={xname} bss_referral_token={token} ");
    assert!(script.contains(&words) && !script.contains("nid="), "{script}");
    for (body, asked) in [
        (json!({"macs": ["02:00:00:00:00:09"], "kernel": "http://h/mac"}), "mac=02:00:00:00:00:09"),
        (json!({"nids": [7], "kernel": "http://h/nid"}), "nid=7"),
    ] {
        let token = uuid_in(&site.put(PATH, &body).await.expect(200));
        let script = site.get(&format!("/boot/v1/bootscript?{asked}")).await.expect(200).text();
        let kernel = body["kernel"].as_str().expect("a kernel");
        assert!(script.contains(&format!("{kernel} ")), "{asked}: {script}");
        assert!(script.contains(&format!(" bss_referral_token={token} ")), "{asked}: {script}");
        assert!(!script.contains(" nid="), "{asked}: {script}");
    }
    for tag in ["Default", "compute", "Global"] {
        let script = site.get(&format!("/boot/v1/bootscript?name={tag}")).await.expect(200).text();
        assert!(!script.contains("http://h/tag"), "{tag}: {script}");
    }
}

#[tokio::test]
async fn node_without_record_asks_again_by_its_mac() {
    let site = site().await;
    for asked in [&format!("name={XNAME}"), "nid=48", "name=n1", &format!("mac={MAC}")] {
        let path = format!("/boot/v1/bootscript?{asked}");
        let script = site.get(&path).await.expect(200).text();
        assert!(script.contains(&format!("bootscript?mac={MAC}&arch=")), "{asked}: {script}");
    }
}

#[tokio::test]
async fn nid_zero_is_a_nid() {
    let site = site().await;
    site.apply(&[node("zero", &json!({"xname": "x1c0s0b0n0", "nid": 0}))]).await;
    site.put(PATH, &json!({"nids": [0], "kernel": "http://h/zero"})).await.expect(200);
    assert_eq!(list(&site, "?nid=0").await[0]["hosts"], json!(["x1c0s0b0n0"]));
    let script = site.get("/boot/v1/bootscript?nid=0").await.expect(200).text();
    assert!(script.contains("http://h/zero xname=x1c0s0b0n0 nid=0 "), "{script}");
}

#[tokio::test]
async fn names_are_read_in_any_spelling_and_answered_in_one() {
    let site = site().await;
    let put = json!({"hosts": ["X1C0S0B0N0", "0200.0000.0009"], "kernel": "http://h/k"});
    let answer = site.put(PATH, &put).await.expect(200).json();
    assert_eq!(answer["hosts"], json!(["x1c0s0b0n0", "02:00:00:00:00:09"]));
    let answer =
        site.put(PATH, &json!({"macs": ["02-00-00-00-00-0A"], "kernel": "http://h/k"})).await;
    assert_eq!(answer.expect(200).json()["macs"], json!(["02:00:00:00:00:0a"]));
    for query in ["?name=02-00-00-00-00-09", "?mac=020000000009", "?mac=0200.0000.0009"] {
        assert_eq!(list(&site, query).await[0]["macs"], json!(["02:00:00:00:00:09"]), "{query}");
    }
    for name in ["X1203C4S2B1N0", "A4-BF-01-3C-5E-70", "nid48", "n1"] {
        let path = format!("/boot/v1/hosts?name={name}");
        assert_eq!(site.get(&path).await.expect(200).json()[0]["ID"], XNAME, "{name}");
        let path = format!("/boot/v1/bootscript?name={name}");
        let script = site.get(&path).await.expect(200).text();
        assert!(script.contains(&format!("mac={MAC}&arch=")), "{name}: {script}");
    }
}
