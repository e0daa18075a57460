//! `/boot/v1/hosts` and `/boot/v1/dumpstate`; reading the inventory source anew.

use std::time::{Duration, Instant};

use hoist_chassis::auth::BssAuth;
use hoist_server::inventory::SourceConfig;
use hoist_testkit::smd::{Mode, Smd, SmdSet};
use serde_json::{Value, json};

use crate::site::{Answer, Site, document};

const HOSTS: &str = "/boot/v1/hosts";

async fn site() -> Site {
    let site = Site::start().await;
    let compute = json!({
        "xname": "x1203c4s2b1n0", "nid": 48, "role": "Compute", "subrole": "Worker",
        "arch": "x86_64",
        "interfaces": [
            {"name": "eth0", "mac": "a4:bf:01:3c:5e:70"}, {"name": "eth1", "mac": "a4:bf:01:3c:5e:71"},
        ],
    });
    let off = json!({"xname": "x1203c4s2b1n1", "nid": 49, "enabled": false});
    let bare = json!({});
    let nodes = [("n1", compute), ("n2", off), ("login1", bare)];
    site.apply(&nodes.map(|(name, spec)| document("Node", name, &spec))).await;
    site
}

#[track_caller]
fn refused(answer: Answer, status: u16, detail: &str) {
    let answer = answer.expect(status);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let problem = answer.json();
    assert_eq!(problem["detail"], detail);
    assert_eq!((&problem["type"], &problem["status"]), (&json!("about:blank"), &json!(status)));
}

/// None, until the nodes are known and the answer is a list.
fn ids(answer: &Answer) -> Vec<String> {
    let hosts = answer.json();
    let hosts = hosts.as_array().into_iter().flatten();
    hosts.map(|host| host["ID"].as_str().expect("an id").to_owned()).collect()
}

fn first_host() -> Value {
    json!({
        "ID": "x1203c4s2b1n0", "Type": "Node", "Enabled": true, "Role": "Compute",
        "SubRole": "Worker", "NID": 48, "Arch": "X86", "FQDN": "",
        "MAC": ["a4:bf:01:3c:5e:70", "a4:bf:01:3c:5e:71"], "EndpointEnabled": true,
    })
}

#[tokio::test]
async fn hosts_are_the_inventory_in_the_shape_of_bss() {
    let site = site().await;
    let answer = site.ask_as_nobody("GET", HOSTS).send().await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
    let mut all = ids(&answer);
    all.sort();
    assert_eq!(all, ["login1", "x1203c4s2b1n0", "x1203c4s2b1n1"]);

    let one = site.get(&format!("{HOSTS}?name=x1203c4s2b1n0")).await.expect(200).json();
    assert_eq!(one, json!([first_host()]));
    let off = site.get(&format!("{HOSTS}?nid=49")).await.expect(200).json();
    let members = (&off[0]["Enabled"], &off[0]["EndpointEnabled"], &off[0]["MAC"]);
    assert_eq!(members, (&json!(false), &json!(false), &json!([])));
    assert!(off[0].get("Role").is_none() && off[0].get("State").is_none(), "{off}");

    let node = site.get("/inventory/v1/nodes/by/name/n1").await.json();
    let path = format!("/inventory/v1/nodes/{}/state", node["id"].as_str().unwrap());
    let seen = json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "test"});
    site.put(&path, &seen).await.expect(200);
    assert_eq!(site.get(&format!("{HOSTS}?nid=48")).await.json()[0]["State"], "On");
    site.stop().await;
}

#[tokio::test]
async fn filters_keep_their_order_and_the_first_unknown_ends_it() {
    let site = site().await;
    let query = "?nid=0x31&mac=A4-BF-01-3C-5E-71&name=x1203c4s2b1n1,x1203c4s2b1n0&name=login1&x=1";
    let answer = site.get(&format!("{HOSTS}{query}")).await.expect(200);
    let expected = ["x1203c4s2b1n1", "x1203c4s2b1n0", "login1", "x1203c4s2b1n0", "x1203c4s2b1n1"];
    assert_eq!(ids(&answer), expected);
    for (query, status, detail) in [
        ("?name=x9c0s0b0n0&mac=zz", 404, "Not Found - Unknown host name 'x9c0s0b0n0'"),
        ("?mac=02:00:00:00:00:99", 404, "Not Found - Unknown MAC address '02:00:00:00:00:99'"),
        ("?mac=zz", 404, "Not Found - Unknown MAC address 'zz'"),
        ("?nid=48,50", 404, "Not Found - Unknown NID '50'"),
        ("?nid=kettle", 400, "Bad Request - Invalid nid 'kettle'"),
    ] {
        refused(site.get(&format!("{HOSTS}{query}")).await, status, detail);
    }
    site.stop().await;
}

#[tokio::test]
async fn a_site_without_nodes_has_an_empty_list() {
    let site = Site::start().await;
    assert_eq!(site.get(HOSTS).await.expect(200).json(), json!([]));
    let dump = site.get("/boot/v1/dumpstate").await.expect(200).json();
    assert_eq!(dump, json!({"Components": [], "Params": []}));
    site.stop().await;
}

#[tokio::test]
async fn the_dump_holds_hosts_and_boot_parameters() {
    let site = site().await;
    let parameters = json!({"hosts": ["x1203c4s2b1n0"], "kernel": "http://h/k", "params": "quiet"});
    site.put("/boot/v1/bootparameters", &parameters).await.expect(200);
    for path in ["/boot/v1/dumpstate", "/apis/bss/boot/v1/dumpstate/"] {
        let answer = site.get(path).await.expect(200);
        assert_eq!(answer.header("content-type"), "application/json; charset=UTF-8");
        let dump = answer.json();
        assert_eq!(dump["Components"], site.get(HOSTS).await.json());
        assert_eq!(dump["Params"], site.get("/boot/v1/bootparameters").await.json());
        assert_eq!(dump["Params"].as_array().map(Vec::len), Some(1));
    }
    site.stop().await;
}

/// Cloud-init documents and command lines, which `/boot/v1/bootparameters` does not show either.
#[tokio::test]
async fn dump_hides_boot_parameters_from_anonymous_callers() {
    let site = site().await;
    let parameters = json!({
        "hosts": ["x1203c4s2b1n0"], "kernel": "http://h/k", "params": "quiet root-password=hunter2",
        "cloud-init": {"user-data": {"password": "hunter3"}},
    });
    site.put("/boot/v1/bootparameters", &parameters).await.expect(200);
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    let other = site.token(json!([{"verbs": ["read"], "contexts": ["inventory"]}])).await;
    let part = json!([{"verbs": ["read"], "contexts": ["boot"], "selector": "node:n1"}]);
    let limited = site.token(part).await;
    let whole = site.get("/boot/v1/dumpstate").await.expect(200);
    assert!(whole.text().contains("hunter3"), "{}", whole.text());
    for path in ["/boot/v1/dumpstate", "/apis/bss/boot/v1/dumpstate/"] {
        let nobody = site.ask_as_nobody("GET", path).send().await.expect(200);
        let without_right = site.ask_as(&other, "GET", path).send().await.expect(200);
        let some_nodes = site.ask_as(&limited, "GET", path).send().await.expect(200);
        for answer in [nobody, without_right, some_nodes] {
            assert!(!answer.text().contains("hunter"), "{}", answer.text());
            let dump = answer.json();
            assert_eq!(dump["Components"], whole.json()["Components"]);
            assert!(dump.get("Params").is_none(), "left out, not empty: {dump}");
        }
        assert_eq!(site.ask_as(&reader, "GET", path).send().await.expect(200).json(), whole.json());
        site.ask_as("kettle", "GET", path).send().await.expect(401);
    }
    site.stop().await;
}

#[tokio::test]
async fn dump_is_whole_where_boot_parameters_are_open() {
    let site = Site::start_with(|config| config.policy.bss = BssAuth::Open).await;
    let dump = site.ask_as_nobody("GET", "/boot/v1/dumpstate").send().await.expect(200).json();
    assert_eq!(dump, json!({"Components": [], "Params": []}));
    site.stop().await;
}

fn source(smd: &Smd) -> SourceConfig {
    let mut source = SourceConfig::new(smd.url().parse().expect("an address")).expect("a source");
    // The tests say when.
    source.every = Duration::from_hours(1);
    source.smd.retry_pause = Duration::from_millis(10);
    source
}

/// A site that has imported three nodes.
async fn imported(smd: &Smd) -> Site {
    let site = Site::start_with(|config| config.source = Some(source(smd))).await;
    site.eventually(HOSTS, |answer| ids(answer).len() == 3).await;
    site
}

#[tokio::test]
async fn a_post_reads_the_source_and_answers_when_that_is_done() {
    let smd = Smd::start(SmdSet::synthetic(3)).await;
    let site = imported(&smd).await;
    smd.edit(|set| set.add(3));
    let answer = site.ask_as_nobody("POST", HOSTS).body("{not read").send().await.expect(204);
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert!(answer.body.is_empty());
    assert_eq!(ids(&site.get(HOSTS).await).len(), 4, "it is done when it answers");
    site.stop().await;
}

#[tokio::test]
async fn many_posts_and_notices_read_the_source_a_few_times_only() {
    /// Requests of one reading.
    const READING: usize = 5;
    let smd = Smd::start(SmdSet::synthetic(3)).await;
    let site = imported(&smd).await;
    let before = smd.requests();
    let notice = json!({"Components": ["x1000c0s0b0n0"], "State": "On"});
    for _ in 0..50 {
        site.ask_as_nobody("POST", "/boot/v1/scn").json(&notice).send().await.expect(200);
    }
    let posts = (0..20).map(|_| site.ask_as_nobody("POST", HOSTS).send());
    for answer in futures_util::future::join_all(posts).await {
        answer.expect(204);
    }
    let readings = (smd.requests() - before) / READING;
    assert!((1..=3).contains(&readings), "{readings} readings for 70 requests");
    site.stop().await;
}

#[tokio::test]
async fn a_notice_has_the_news_of_the_source_read() {
    let smd = Smd::start(SmdSet::synthetic(3)).await;
    let site = imported(&smd).await;
    smd.edit(|set| set.add(3));
    let answer = site.ask_as_nobody("POST", "/boot/v1/scn").body(r#"{"state":"Off"} x"#);
    assert!(answer.send().await.expect(200).body.is_empty());
    site.eventually(HOSTS, |answer| ids(answer).len() == 4).await;
    for wrong in ["", "{", "[]", r#"{"Components": "x"}"#, r#"{"components": [1]}"#] {
        let answer = site.ask_as_nobody("POST", "/boot/v1/scn").body(wrong).send().await;
        assert!(answer.expect(400).body.is_empty(), "{wrong}");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_notice_is_as_large_as_a_site_and_no_larger() {
    const LARGEST: usize = 2 * 1024 * 1024;
    let site = Site::start().await;
    let names: Vec<String> = (0..100_000).map(|n| format!("x9999c7s64b8n{}", n % 10)).collect();
    let notice = json!({"Components": names, "State": "On"}).to_string();
    let send = async |length: usize| {
        let body = format!("{notice}{}", " ".repeat(length.saturating_sub(notice.len())));
        site.ask_as_nobody("POST", "/boot/v1/scn").body(body).send().await.status
    };
    assert_eq!((send(0).await, send(LARGEST).await, send(LARGEST + 1).await), (200, 200, 413));
    site.stop().await;
}

#[tokio::test]
async fn notices_that_do_not_arrive_are_given_up() {
    let site = Site::start().await;
    let stalled = (0..20).map(|_| {
        let never = futures_util::stream::pending::<std::io::Result<Vec<u8>>>();
        let body = reqwest::Body::wrap_stream(never);
        site.ask_as_nobody("POST", "/boot/v1/scn").body(body).send()
    });
    for answer in futures_util::future::join_all(stalled).await {
        answer.expect(503);
    }
    site.ask_as_nobody("POST", "/boot/v1/scn").body("{}").send().await.expect(200);
    site.stop().await;
}

/// Asks for something and reads nothing of the answer but its first byte.
async fn unread(site: &Site, path: &str) -> tokio::net::TcpStream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let addr = site.controller.plain_addr().expect("it listens");
    let mut stream = socket.connect(addr).await.expect("a connection");
    let token = &site.admin;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    stream.read_u8().await.expect("an answer");
    stream
}

#[tokio::test]
async fn slow_readers_delay_only_slow_readers() {
    const AT_ONCE: usize = 8;
    let site = site().await;
    // More than the kernel takes for those who do not read.
    let data = "x".repeat(30_000);
    let all: Vec<Value> = (0..300)
        .map(|n| {
            let cloud_init = json!({"user-data": {"data": data}});
            json!({"hosts": [format!("tag{n}")], "kernel": "http://h/k", "cloud-init": cloud_init})
        })
        .collect();
    site.post("/boot/v2/parameters/import", &json!({"parameters": all})).await.expect(200);
    let started = Instant::now();
    let mut stalled = Vec::new();
    for _ in 0..AT_ONCE {
        stalled.push(unread(&site, "/boot/v1/dumpstate").await);
    }
    site.ask_as_nobody("GET", &format!("{HOSTS}?nid=48")).send().await.expect(200);
    assert!(site.get("/boot/v1/bootparameters").await.expect(200).body.len() > 9_000_000);
    site.ask_as_nobody("GET", "/boot/v1/bootscript?nid=48").send().await.expect(200);
    // And each other only until it is seen that they do not read.
    let others = [HOSTS, "/boot/v1/dumpstate", "/boot/v1/endpoint-history"]
        .map(|path| site.ask_as_nobody("GET", path).send());
    for answer in futures_util::future::join_all(others).await {
        answer.expect(200);
    }
    assert!(started.elapsed() >= Duration::from_secs(5), "nobody had to wait");
    drop(stalled);
    site.stop().await;
}

#[tokio::test]
async fn hanging_source_delays_no_client() {
    let smd = Smd::start(SmdSet::synthetic(3)).await;
    let site = imported(&smd).await;
    smd.set_mode(Mode::Hang);
    let mut post = Box::pin(site.ask_as_nobody("POST", HOSTS).send());
    let reads = async {
        for _ in 0..50 {
            assert_eq!(ids(&site.get(HOSTS).await).len(), 3);
        }
    };
    tokio::select! {
        () = reads => {}
        _ = &mut post => panic!("fifty reads took longer than giving up on the source"),
    }
    // It ends by itself: the source answers only afterwards.
    post.await.expect(204);
    smd.set_mode(Mode::Normal);
    site.stop().await;
}

#[tokio::test]
async fn post_of_hosts_without_a_source_does_nothing() {
    let site = site().await;
    let started = Instant::now();
    for _ in 0..10 {
        site.ask_as_nobody("POST", HOSTS).send().await.expect(204);
    }
    // Eighty seconds, if each waited for a reading.
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    site.stop().await;
}
