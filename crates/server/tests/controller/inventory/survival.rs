//! The store goes away and comes back, the controller stops and starts: reads go on, and nothing
//! acknowledged is lost.

use std::time::{Duration, Instant};

use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually_async;
use hoist_testkit::postgres::PostgresServer;
use serde_json::json;

use crate::inventory::watch::Stream;
use crate::site::{NODES, Site, document, id, mac, node, spec, with};

#[tokio::test]
async fn a_stop_and_a_start_lose_nothing() {
    let site = Site::start().await;
    site.apply(&[
        document("Partition", "p1", &json!({})),
        document("Group", "p1/gpu", &json!({"priority": 3})),
        document("Network", "nmn", &json!({"vlan": 5})),
        document("Node", "n1", &with(spec(1), &json!({"partition": "p1", "groups": ["gpu"]}))),
    ])
    .await;
    let token = site.limited_token("p1/gpu").await;
    let listing = site.get(NODES).await;
    let export = site.export().await;
    let audit = site.audit().await;
    let admin = site.admin.clone();
    let site = site.restart().await;
    assert_eq!(site.admin, admin);
    let again = site.get(NODES).await;
    assert_eq!((again.tag(), again.json()), (listing.tag(), listing.json()));
    assert_eq!((site.export().await, site.audit().await), (export, audit));
    site.ask_as(&token, "GET", NODES).send().await.expect(200);
    assert_eq!(site.add(&node(2)).await["revision"], 2);
    site.stop().await;
}

/// The story of an outage, on any store that is a server of its own.
async fn outage(url: String, stop: impl AsyncFn(), resume: impl AsyncFn()) {
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    let since = site.revision();
    let ready = site.eventually("/readyz", |answer| answer.json()["status"] == "ok").await;
    assert_eq!(ready.status, 200);

    stop().await;
    let refused = site.post(NODES, &node(2)).await.problem(503, "store-unavailable");
    assert!(refused.remedy.is_some());
    reads_are_fast(&site, &path).await;
    let ready = site.eventually("/readyz", |answer| answer.json()["status"] == "degraded").await;
    assert_eq!(ready.status, 200, "degraded is still ready: boots go on");
    let told = |answer: &crate::site::Answer| {
        let store = &answer.json()["store"];
        store["connected"] == false && store["silent_seconds"].as_u64() > Some(0)
    };
    let status = site.eventually("/inventory/v1/status", told).await.json();
    assert!(status["store"]["error"].is_string(), "{status}");
    assert_eq!(status["nodes"], 1);

    let site = site.restart().await;
    reads_are_fast(&site, &path).await;
    assert_eq!(site.get(&path).await.expect(200).json(), made);
    site.post(NODES, &node(2)).await.problem(503, "read-only");
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    assert_eq!(
        (&status["roster"]["loaded_from"], &status["roster"]["stale"]),
        (&json!("snapshot"), &json!(true))
    );
    let ready = site.get("/readyz").await.expect(200).json();
    assert_eq!(ready["status"], "degraded");

    resume().await;
    eventually_async("write after the store is back", async || {
        let answer = site.post(NODES, &node(3)).await;
        match answer.status {
            // 409: an earlier attempt landed, but its answer was lost.
            201 | 409 => Ok(()),
            503 => Err(answer),
            _ => panic!("{}", answer.text()),
        }
    })
    .await;
    assert_eq!(site.get(&path).await.expect(200).json(), made);
    site.eventually("/readyz", |answer| answer.json()["status"] == "ok").await;
    let status = site.get("/inventory/v1/status").await.json();
    assert_eq!(
        (&status["roster"]["loaded_from"], &status["store"]["connected"]),
        (&json!("store"), &json!(true))
    );
    let mut stream = Stream::open(&site, &format!("&since={since}")).await;
    assert_eq!(stream.change().await["node"]["name"], "n3");
    site.audit().await;
    drop(stream);
    site.stop().await;
}

async fn reads_are_fast(site: &Site, path: &str) {
    let started = Instant::now();
    for _ in 0..50 {
        site.get(path).await.expect(200);
        site.get(NODES).await.expect(200);
    }
    // A read that waited for the store would take a second by itself.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_etcd_is_survived() {
    let server = EtcdServer::start();
    let blocking = |work: fn(&EtcdServer)| tokio::task::block_in_place(|| work(&server));
    let stop = async || blocking(EtcdServer::stop);
    let resume = async || blocking(EtcdServer::resume);
    Box::pin(outage(server.url("site"), stop, resume)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_postgresql_is_survived() {
    let server = PostgresServer::start();
    let blocking = |work: fn(&PostgresServer)| tokio::task::block_in_place(|| work(&server));
    let stop = async || blocking(PostgresServer::stop);
    let resume = async || blocking(PostgresServer::resume);
    Box::pin(outage(server.url("site"), stop, resume)).await;
}

/// Connections stay open without answers: the worst kind of outage.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_store_does_not_block_readers() {
    let server = EtcdServer::start();
    let url = server.url("site");
    let site = Site::start_with(|config| {
        config.store.clone_from(&url);
        config.limits.request_timeout = Duration::from_secs(3);
    })
    .await;
    let made = site.add(&node(1)).await;
    let path = format!("{NODES}/{}", id(&made));
    tokio::task::block_in_place(|| server.freeze());
    let write = async {
        let answer = site.post(NODES, &node(2)).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
    };
    let ((), ()) = tokio::join!(write, reads_are_fast(&site, &path));
    let status = site.get("/inventory/v1/status").await.expect(200).json();
    assert_eq!(status["store"]["connected"], false);
    site.get("/readyz").await.expect(200);
    tokio::task::block_in_place(|| server.thaw());
    site.eventually("/inventory/v1/status", |a| a.json()["store"]["connected"] == true).await;
    assert_eq!(site.get(&path).await.expect(200).json(), made);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_on_one_etcd_are_one_site() {
    let url = EtcdServer::shared().url("two");
    let one = Site::start_with(|config| config.store.clone_from(&url)).await;
    let two = one.start_beside(|_| {}).await;
    let mut at_one = Stream::open(&one, "").await;
    let mut at_two = Stream::open(&two, "").await;
    let made = one.add(&node(1)).await;
    for stream in [&mut at_one, &mut at_two] {
        assert_eq!(stream.change().await["node"], made);
    }
    let path = format!("{NODES}/{}", id(&made));
    assert_eq!(two.get(&path).await.expect(200).tag(), one.get(&path).await.tag());
    two.delete(&path).await.expect(200);
    for stream in [&mut at_one, &mut at_two] {
        assert_eq!(stream.change().await["type"], "delete");
    }
    let token = one.limited_token("*").await;
    eventually_async("token reaches the other controller", async || {
        let status = two.ask_as(&token, "GET", NODES).send().await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    drop((at_one, at_two));
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_conflicting_writes_on_two_controllers_succeeds() {
    for url in [EtcdServer::shared().url("race"), PostgresServer::shared().url("race")] {
        let one = Site::start_with(|config| config.store.clone_from(&url)).await;
        let two = one.start_beside(|_| {}).await;
        let sites = [&one, &two];
        for n in 1..=15 {
            let named = |name: &str| json!({"name": format!("{name}{n}"), "interfaces": [{"name": "e", "mac": mac(n)}]});
            let a = named("a");
            let b = named("b");
            let (a, b) = tokio::join!(one.post(NODES, &a), two.post(NODES, &b));
            let mut statuses = [a.status, b.status];
            statuses.sort_unstable();
            assert_eq!(statuses, [201, 409], "{} {}", a.text(), b.text());
            let won = if a.status == 201 { a.json() } else { b.json() };

            let path = format!("{NODES}/{}", id(&won));
            for site in sites {
                site.eventually(&path, |answer| answer.status == 200).await;
            }
            let tag = one.get(&path).await.tag();
            let change = async |site: &Site, role: &str| {
                let body = with(won.clone(), &json!({"role": role}));
                let ask = site.ask("PUT", &path).header("if-match", &tag).json(&body);
                ask.send().await.status
            };
            let (a, b) = tokio::join!(change(&one, "A"), change(&two, "B"));
            let mut statuses = [a, b];
            statuses.sort_unstable();
            assert_eq!(statuses, [200, 412]);
        }
        assert_eq!(one.controller.registry().roster().len(), 15);
        assert_eq!(one.audit().await.len(), 30);
        one.stop().await;
        two.stop().await;
    }
}
