use hoist_testkit::eventually_async;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::machine::Machine;
use super::{founded, members, token, token_with, unfounded};
use crate::site::NODES;

#[tokio::test]
async fn repeated_and_concurrent_requests_give_one_member() {
    let site = founded().await;
    let token = token_with(&site, &json!({})).await;
    let machine = Machine::new("web1");
    let joins = (0..6).map(|_| machine.join(&site, Some(&token)));
    let answers = futures_util::future::join_all(joins).await;
    let mut bundles: Vec<Value> = answers.into_iter().map(|a| a.expect(200).json()).collect();
    bundles.push(machine.join(&site, Some(&token)).await.expect(200).json());
    for bundle in &bundles {
        assert_eq!(bundle["certificate"], bundles[0]["certificate"]);
        assert_eq!((&bundle["join_order"], &bundle["node"]), (&json!(1), &json!("web1")));
    }
    let members = members(&site).await;
    assert_eq!(members.len(), 1, "{members:#?}");
    assert_eq!(members[0]["state"], "accepted");
    // The proof of the key is enough for a machine that is accepted already.
    let again = machine.join(&site, None).await.expect(200).json();
    assert_eq!(again["certificate"], bundles[0]["certificate"]);
    let node = site.get(&format!("{NODES}/by/name/web1")).await.expect(200).json();
    assert_eq!(node["arch"], "x86_64");
    site.stop().await;
}

#[tokio::test]
async fn machines_that_join_at_once_have_places_of_their_own() {
    let site = founded().await;
    let token = token(&site).await;
    let machines: Vec<Machine> = (0..8).map(|n| Machine::new(&format!("web{n}"))).collect();
    let joins = machines.iter().map(|machine| machine.join(&site, Some(&token)));
    let answers = futures_util::future::join_all(joins).await;
    let mut orders: Vec<u64> = answers
        .into_iter()
        .map(|answer| answer.expect(200).json()["join_order"].as_u64().expect("a number"))
        .collect();
    orders.sort_unstable();
    assert_eq!(orders, (1..=8).collect::<Vec<_>>());
    site.stop().await;
}

#[tokio::test]
async fn request_without_a_token_waits_for_an_operator() {
    let site = founded().await;
    let machine = Machine::new("web1.example.org");
    let waiting = machine.join(&site, None).await.expect(202).json();
    let fingerprint = waiting["fingerprint"].as_str().expect("a fingerprint");
    assert!(machine.id.to_string().starts_with(&fingerprint.replace('-', "")), "{fingerprint}");
    let pending = site.get("/cluster/v1/pending").await.expect(200).json();
    let item = &pending["items"][0];
    assert_eq!(
        (&item["hostname"], &item["from"]),
        (&json!("web1.example.org"), &json!("127.0.0.1"))
    );
    assert_eq!(item["fingerprint"], fingerprint);
    let counts = site.get("/cluster/v1").await.expect(200).json()["counts"].clone();
    assert_eq!(counts["pending"], 1);

    let id = machine.id.to_string();
    site.post(&format!("/cluster/v1/pending/{}/reject", &id[..8]), &json!({"reason": "who?"}))
        .await
        .expect(204);
    assert_eq!(site.get("/cluster/v1/pending").await.expect(200).json()["items"], json!([]));
    machine.join(&site, None).await.expect(202);
    let accept = json!({"node": "db1"});
    let accepted = site.post(&format!("/cluster/v1/pending/{id}/accept"), &accept).await;
    assert_eq!(accepted.expect(200).json()["node"], "db1");
    let bundle = machine.join(&site, None).await.expect(200).json();
    assert_eq!(bundle["node"], "db1");
    site.get(&format!("{NODES}/by/name/db1")).await.expect(200);
    site.post("/cluster/v1/pending/web1/accept", &json!({})).await.problem(404, "not-found");
    let audit = site.audit().await;
    assert!(audit.iter().any(|entry| entry.object.contains("reject: who?")), "{audit:#?}");
    site.stop().await;
}

#[tokio::test]
async fn node_withdraws_its_request_by_its_key() {
    let site = founded().await;
    let machine = Machine::new("web1");
    let pending =
        async || site.get("/cluster/v1/pending").await.expect(200).json()["items"].clone();
    machine.join(&site, None).await.expect(202);
    let stranger = Machine::new("web1");
    let other_key = stranger.withdraw_with(&site, |body| body["node"] = json!(machine.id)).await;
    other_key.problem(403, "forbidden");
    // A withdrawal that was delayed does not end a later request.
    let earlier = json!("ffeeddccbbaa99887766554433221100");
    machine.withdraw_with(&site, |body| body["request"] = earlier).await.expect(204);
    machine
        .withdraw_with(&site, |body| body["cluster"] = json!("00"))
        .await
        .problem(403, "join-refused");
    assert_eq!(pending().await.as_array().map(Vec::len), Some(1));
    for _ in 0..2 {
        machine.withdraw(&site).await.expect(204);
        assert_eq!(pending().await, json!([]));
    }
    let audit = site.audit().await;
    let object = format!("member/{} withdraw", machine.id.short());
    let entries: Vec<_> = audit.iter().filter(|entry| entry.object == object).collect();
    assert_eq!(entries.len(), 1, "{audit:#?}");
    assert_eq!(entries[0].who, format!("member/{}", machine.id));

    // The operator may have been faster.
    let token = token(&site).await;
    machine.join(&site, Some(&token)).await.expect(200);
    machine.withdraw(&site).await.expect(204);
    let listed = site.get("/cluster/v1/members").await.expect(200).json();
    assert_eq!(listed["items"][0]["state"], "left");
    // A member leaves by the decision of an operator.
    let member = machine.member(&site, &token).await;
    member.confirm(&site).await;
    member.machine.withdraw(&site).await.problem(409, "conflict");
    site.stop().await;
}

/// A change of a request.
type Change = Box<dyn Fn(&mut Value)>;

#[tokio::test]
async fn checks_come_before_the_token_is_used() {
    let site = founded().await;
    let token = token_with(&site, &json!({})).await;
    let machine = Machine::new("web1");
    let minutes = |n: i64| Timestamp::now() + SignedDuration::from_mins(n);
    let other = Machine::new("other").id;
    let cases: Vec<(Change, u16, &str)> = vec![
        (Box::new(|body| body["protocol"] = 99.into()), 409, "protocol-version"),
        (Box::new(|body| body["cluster"] = "00".repeat(16).into()), 403, "join-refused"),
        (Box::new(move |body| body["facts"]["now"] = json!(minutes(10))), 409, "clock-skew"),
        (Box::new(move |body| body["facts"]["now"] = json!(minutes(-10))), 409, "clock-skew"),
        (Box::new(move |body| body["node"] = json!(other)), 400, "invalid-body"),
        (Box::new(|body| body["certificate_request"] = "AAAA".into()), 400, "invalid-body"),
        (Box::new(|body| body["certificate_request"] = "%".into()), 400, "invalid-body"),
        (Box::new(|body| body["request"] = "x".into()), 400, "invalid-body"),
        (Box::new(|body| body["facts"]["hostname"] = "../etc".into()), 400, "invalid-body"),
        (Box::new(|body| body["facts"]["hostname"] = "a b".into()), 400, "invalid-body"),
        (Box::new(|body| body["facts"]["hostname"] = "x;reboot".into()), 400, "invalid-body"),
        (Box::new(|body| body["facts"]["hostname"] = "a".repeat(64).into()), 400, "invalid-body"),
        (Box::new(|body| body["facts"]["preferred"] = "king".into()), 400, "invalid-body"),
        (Box::new(|body| body["token"]["proof"] = "00".into()), 400, "invalid-body"),
    ];
    for (change, status, code) in cases {
        let answer = machine.join_with(&site, Some(&token), change).await;
        answer.problem(status, code);
    }
    let huge = |body: &mut Value| body["facts"]["hostname"] = "a".repeat(100_000).into();
    let answer = machine.join_with(&site, Some(&token), huge).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(members(&site).await.is_empty());
    machine.join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn skew_of_a_minute_is_a_warning() {
    let site = founded().await;
    let token = token(&site).await;
    let ahead = Timestamp::now() + SignedDuration::from_mins(1);
    let machine = Machine::new("web1");
    machine.join_with(&site, Some(&token), |b| b["facts"]["now"] = json!(ahead)).await.expect(200);
    let told = site.events("cluster.member.accepted", "-10", 1).await;
    let seconds = told[0]["data"]["clock_ahead_seconds"].as_i64().expect("a skew");
    assert!((50..=60).contains(&seconds), "{seconds}");
    site.stop().await;
}

#[tokio::test]
async fn joining_needs_tls_and_a_cluster() {
    let site = unfounded().await;
    let machine = Machine::new("web1");
    let body = json!({
        "protocol": 1, "request": "00", "cluster": "00", "node": "00",
        "certificate_request": "", "facts": {
            "hostname": "a", "version": "1", "architecture": "x86_64", "resources": {},
            "now": Timestamp::now(),
        },
    });
    site.post("/cluster/v1/join", &body).await.problem(404, "not-found");
    super::found(&site).await;
    let body = machine.body(&site).await;
    site.post("/cluster/v1/join", &body).await.problem(403, "plain-secret");
    site.stop().await;
}

#[tokio::test]
async fn name_of_a_member_is_taken() {
    let site = founded().await;
    let token = token(&site).await;
    let first = Machine::new("web1");
    first.join(&site, Some(&token)).await.expect(200);
    let second = Machine::new("web1").join(&site, Some(&token)).await;
    let problem = second.problem(409, "conflict");
    assert_eq!(problem.conflicts[0].holder, format!("member/{}", first.id));
    assert!(problem.detail.contains(&first.id.short()), "{}", problem.detail);
    assert!(problem.remedy.expect("a remedy").contains("hoist cluster replace"));
    assert_eq!(members(&site).await.len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn disabled_node_does_not_join() {
    let site = founded().await;
    let token = token(&site).await;
    site.add(&json!({"name": "web1", "enabled": false})).await;
    Machine::new("web1").join(&site, Some(&token)).await.problem(403, "join-refused");
    site.stop().await;
}

#[tokio::test]
async fn flood_of_requests_is_capped_and_spares_tokens() {
    let site = founded().await;
    let token = token(&site).await;
    let machines: Vec<Machine> = (0..14).map(|n| Machine::new(&format!("x{n}"))).collect();
    let mut refused = 0;
    for machine in &machines {
        let answer = machine.join(&site, None).await;
        if answer.status != 202 {
            answer.problem(429, "too-many-requests");
            refused += 1;
        }
    }
    assert_eq!(refused, 4, "ten requests of one address wait");
    machines[0].join(&site, None).await.expect(202);
    machines[13].join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn joins_are_counted() {
    let site = founded().await;
    let token = token(&site).await;
    Machine::new("web1").join(&site, Some(&token)).await.expect(200);
    eventually_async("gauges", async || {
        let text = site.get("/metrics").await.expect(200).text();
        let has = |line: &str| text.contains(line);
        let holds = has("hoist_cluster_joins_total{result=\"accepted\"}")
            && has("hoist_cluster_nodes{state=\"accepted\"}");
        if holds { Ok(()) } else { Err(text) }
    })
    .await;
    site.stop().await;
}
