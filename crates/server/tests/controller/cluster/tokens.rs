use std::time::Duration;

use serde_json::json;

use super::machine::{Machine, Session};
use super::{detail, founded, token, token_with};

#[tokio::test]
async fn token_is_shown_once_and_used_once() {
    let site = founded().await;
    let made = site.post("/cluster/v1/tokens", &json!({})).await.expect(201);
    assert_eq!(made.header("cache-control"), "no-store");
    let made = made.json();
    let text = made["token"].as_str().expect("a token").to_owned();
    assert!(text.starts_with("hj1."), "{text}");
    let secret = text.rsplit('.').next().expect("a secret").to_owned();
    let list = site.get("/cluster/v1/tokens").await.expect(200);
    assert!(!list.text().contains(&secret), "{}", list.text());
    assert_eq!(list.json()["items"][0]["uses_left"], 1);

    let first = Machine::new("web1");
    first.join(&site, Some(&text)).await.expect(200);
    let second = Machine::new("web2").join(&site, Some(&text)).await;
    second.problem(403, "join-refused");
    assert!(detail(&second).contains("all have joined"), "{}", second.text());
    let listed = &site.get("/cluster/v1/tokens").await.expect(200).json()["items"][0];
    assert_eq!((&listed["uses_left"], &listed["used_by"]), (&json!(0), &json!([first.id])));
    let stored = site.records().await;
    assert!(stored.keys().any(|key| key.starts_with("cluster/token/")));
    site.stop().await;
}

#[tokio::test]
async fn expired_and_revoked_tokens_are_named() {
    let site = founded().await;
    let short = token_with(&site, &json!({"ttl_seconds": 1})).await;
    let revoked = token(&site).await;
    let id = revoked.split('.').nth(3).expect("an id").to_owned();
    site.delete(&format!("/cluster/v1/tokens/{}", &id[..6])).await.expect(204);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for (token, word) in [(short, "expired"), (revoked, "revoked")] {
        let answer = Machine::new("web1").join(&site, Some(&token)).await;
        answer.problem(403, "join-refused");
        assert!(detail(&answer).contains(word), "{}", answer.text());
    }
    site.delete("/cluster/v1/tokens/ffffffff").await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn wrong_secrets_and_unknown_tokens_get_one_answer() {
    let site = founded().await;
    let good = token(&site).await;
    let (rest, secret) = good.rsplit_once('.').expect("parts");
    let wrong = format!("{rest}.{}", "0".repeat(secret.len()));
    let mut parts: Vec<&str> = good.split('.').collect();
    parts[3] = "0123456789abcdef";
    let unknown = parts.join(".");
    let ask = async |token: &str| {
        let answer = Machine::new("web1").join(&site, Some(token)).await;
        answer.problem(403, "join-refused");
        detail(&answer)
    };
    assert_eq!(ask(&wrong).await, ask(&unknown).await);
    site.stop().await;
}

#[tokio::test]
async fn relayed_proof_is_refused() {
    let site = founded().await;
    let token = token(&site).await;
    let machine = Machine::new("web1");
    // The proof is made for the connection to the attacker, and sent on over another one.
    let overheard = Session::open(&site).await;
    let proof = machine.proof(&token, &overheard);
    let relayed = machine.join_with(&site, None, |body| body["token"] = proof).await;
    relayed.problem(403, "join-refused");
    machine.join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn scope_of_a_token_is_kept() {
    let site = founded().await;
    let cases = [
        (json!({"names": "db-*"}), "permit name"),
        (json!({"networks": ["10.0.0.0/8"]}), "permit address"),
        (json!({"roles": ["compute"]}), "permit role"),
    ];
    for (scope, word) in cases {
        let token = token_with(&site, &scope).await;
        let machine = Machine::new("web1");
        let prefer = |body: &mut serde_json::Value| body["facts"]["preferred"] = "data".into();
        let answer = machine.join_with(&site, Some(&token), prefer).await;
        answer.problem(403, "join-refused");
        assert!(detail(&answer).contains(word), "{}", answer.text());
    }
    for body in [
        json!({"ttl_seconds": 0}),
        json!({"uses": 0}),
        json!({"names": "a/b"}),
        json!({"networks": ["nowhere"]}),
        json!({"roles": ["not a role"]}),
    ] {
        site.post("/cluster/v1/tokens", &body).await.problem(400, "invalid-body");
    }
    site.stop().await;
}

#[tokio::test]
async fn manual_token_waits_for_an_operator() {
    let site = founded().await;
    let token = token_with(&site, &json!({"manual": true})).await;
    let machine = Machine::new("web1");
    let answer = machine.join(&site, Some(&token)).await.expect(202).json();
    assert_eq!(answer["result"], "pending");
    site.post("/cluster/v1/pending/web1/accept", &json!({})).await.expect(200);
    machine.join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}
