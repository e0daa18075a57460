//! Other services that booting involves: join tokens of SPIRE, and receivers of boot notices.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bss::helper::{Helper, Manner};
use crate::site::{Site, document};

/// `x1c0s0b0n0` (Compute), `x1c0s0b0n1` (UAN) and `x1c0s0b0n2` want a join token; `x1c0s0b0n3`
/// does not.
async fn site(spire: Option<String>, notify: Option<String>) -> Site {
    let site = Site::start_with(|config| {
        config.boot.helpers.spire = spire;
        config.boot.helpers.notify = notify;
    })
    .await;
    let roles = [json!({"role": "Compute"}), json!({"role": "Application", "subrole": "UAN"})];
    let nodes: Vec<Value> = (0..4)
        .map(|n| {
            let mut spec = roles.get(n).cloned().unwrap_or_else(|| json!({}));
            spec["xname"] = format!("x1c0s0b0n{n}").into();
            spec["interfaces"] = json!([{"name": "eth0", "mac": format!("02:00:00:00:00:0{n}")}]);
            document("Node", &format!("n{n}"), &spec)
        })
        .collect();
    site.apply(&nodes).await;
    let wants = json!({"hosts": ["x1c0s0b0n0", "x1c0s0b0n1", "x1c0s0b0n2"], "kernel": "http://h/k",
                       "params": "spire_join_token=${SPIRE_JOIN_TOKEN} again=${SPIRE_JOIN_TOKEN}"});
    let plain = json!({"hosts": ["x1c0s0b0n3"], "kernel": "http://h/plain"});
    for body in [wants, plain] {
        site.put("/boot/v1/bootparameters", &body).await.expect(200);
    }
    site
}

fn script(n: u32) -> String {
    format!("/boot/v1/bootscript?mac=02:00:00:00:00:0{n}")
}

fn token(text: &str) -> Manner {
    Manner::Says(200, json!({"join_token": text}).to_string())
}

#[tokio::test]
async fn a_join_token_is_fetched_for_the_node_and_its_role() {
    let spire = Helper::start(token("t-1.2_3")).await;
    let site = site(Some(spire.url()), None).await;
    for n in 0..3 {
        let answer = site.ask_as_nobody("GET", &script(n)).send().await.expect(200);
        assert_eq!(answer.header("content-type"), "text/plain; charset=UTF-8");
        let text = answer.text();
        assert!(text.contains(" spire_join_token=t-1.2_3 again=t-1.2_3 "), "{text}");
    }
    let parts = site.get(&format!("{}&json=1", script(0))).await.expect(200).json();
    assert!(parts["params"].as_str().unwrap().contains("again=t-1.2_3"), "{parts}");
    let bodies = [
        "type=compute&xname=x1c0s0b0n0",
        "type=uan&xname=x1c0s0b0n1",
        "xname=x1c0s0b0n2",
        "type=compute&xname=x1c0s0b0n0",
    ];
    let expected: Vec<_> =
        bodies.iter().map(|body| ("/api/token".to_owned(), (*body).to_owned())).collect();
    assert_eq!(spire.got(), expected);
    site.get(&script(3)).await.expect(200);
    assert_eq!(spire.got().len(), 4, "nobody is asked for a node that wants none");
    site.stop().await;
}

#[tokio::test]
async fn node_without_a_join_token_gets_no_script_and_no_bss_history() {
    let spire = Helper::start(token("")).await;
    let site = site(Some(spire.url()), None).await;
    let before = site.controller.chassis().events.last_id();
    let large = json!({"join_token": "x".repeat(5000)}).to_string();
    for manner in [
        token(""),
        token("a b"),
        token("a\nchain http://evil"),
        Manner::Says(200, large),
        Manner::Says(200, "{}".to_owned()),
        Manner::Says(200, "x".repeat(70 * 1024)),
        Manner::Says(503, json!({"join_token": "t"}).to_string()),
    ] {
        spire.behave(manner.clone());
        let answer = site.ask_as_nobody("GET", &script(0)).send().await;
        assert_eq!(answer.status, 500, "{manner:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("x1c0s0b0n0: no join token"), "{detail}");
    }
    site.get(&script(3)).await.expect(200);
    let rows = site.get("/boot/v1/endpoint-history?name=x1c0s0b0n0").await.json();
    assert_eq!(rows, json!([]));
    let history = site.get("/boot/v2/history/x1c0s0b0n0").await.expect(200).json();
    let failed = &history["rows"][0];
    assert_eq!((&failed["endpoint"], &failed["count"]), (&json!("bootscript-error"), &json!(7)));
    assert!(failed["what"].as_str().is_some_and(|what| what.contains("no join token")), "{failed}");
    assert_eq!(history["rows"].as_array().map(Vec::len), Some(1), "{history}");
    let events = site.events("boot.failed", &before, 1).await;
    assert_eq!(events[0]["subject"], "node/n0", "{events:?}");
    let reason = events[0]["data"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("no join token"), "{reason}");
    site.stop().await;
}

#[tokio::test]
async fn a_site_without_spire_says_what_is_missing() {
    let site = site(None, None).await;
    let problem = site.get(&script(0)).await.expect(500).json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("boot.spire_url"), "{detail}");
    let explain =
        async |node: &str| site.get(&format!("/boot/v2/explain/{node}")).await.expect(200).json();
    let found = explain("n0").await;
    let problem = found["problem"].as_str().expect("a problem");
    assert!(problem.contains("boot.spire_url"), "{problem}");
    let found = explain("n3").await;
    assert_eq!(found.get("problem"), None, "it wants no token: {found}");
    site.stop().await;
}

#[tokio::test]
async fn hanging_spire_delays_no_other_request() {
    let spire = Helper::start(Manner::Hangs).await;
    let site = site(Some(spire.url()), None).await;
    // More than may run at once.
    let stuck = (0..100).map(|n| {
        let path = script(n % 3);
        let site = &site;
        async move { site.ask_as_nobody("GET", &path).send().await.status }
    });
    let stuck = async {
        let statuses = futures_util::future::join_all(stuck).await;
        assert!(statuses.iter().all(|status| *status == 500), "{statuses:?}");
    };
    let others = async {
        spire.got_at_least(10).await;
        for _ in 0..100 {
            site.ask_as_nobody("GET", &script(3)).send().await.expect(200);
        }
    };
    let mut stuck = Box::pin(stuck);
    tokio::select! {
        () = others => {}
        () = &mut stuck => panic!("a hundred scripts took longer than giving up on a token"),
    }
    stuck.await;
    assert!(spire.got().len() <= 100, "nothing is sent twice");
    site.stop().await;
}

#[tokio::test]
async fn every_request_for_a_script_is_an_event() {
    let notified = Helper::start(Manner::Says(204, String::new())).await;
    let site = site(None, Some(format!("{}/notify", notified.url()))).await;
    site.get(&script(3)).await.expect(200);
    site.get(&format!("{}&json=1", script(3))).await.expect(200);
    site.get("/boot/v1/bootscript?mac=02:99:99:99:99:99").await.expect(200);
    site.get("/boot/v1/bootscript").await.expect(400);
    let got = notified.got_at_least(4).await;
    assert_eq!(got.len(), 4, "once each: {got:?}");
    for (path, body) in got {
        assert_eq!(path, "/notify");
        let port = body.strip_prefix("data=127.0.0.1%3A").expect("the address of who asked");
        assert!(port.parse::<u16>().is_ok(), "{body}");
    }
    site.stop().await;
}

#[tokio::test]
async fn undelivered_notice_slows_no_script() {
    let notified = Helper::start(Manner::Hangs).await;
    let site = site(None, Some(notified.url())).await;
    let started = Instant::now();
    for _ in 0..300 {
        site.ask_as_nobody("GET", &script(3)).send().await.expect(200);
    }
    // Ten minutes, if each waited for its notice.
    assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    let got = notified.got_at_least(1).await;
    assert!(got.len() < 300, "only so many are under way");
    site.stop().await;
}
