use hoist_testkit::eventually_async;
use serde_json::{Value, json};

use super::machine::Machine;
use super::{detail, founded, member, members, pairs, roles, token};
use crate::site::{NODES, document};

#[tokio::test]
async fn roles_follow_the_number_of_members() {
    let site = founded().await;
    let token = token(&site).await;
    let first = Machine::new("n1").member(&site, &token).await;
    assert_eq!(roles(&site).await, pairs(&[("n1", "-")]), "it counts from its confirmation");
    first.confirm(&site).await;
    first.confirm(&site).await;
    assert_eq!(roles(&site).await, pairs(&[("n1", "monolith")]));
    let orders = first.obey(&site).await;
    assert_eq!((&orders["role"], &orders["scale"]), (&json!("monolith"), &json!("single")));

    let second = member(&site, &token, "n2").await;
    assert_eq!(roles(&site).await, pairs(&[("n1", "edge"), ("n2", "core")]));
    assert_eq!(first.obey(&site).await["role"], "edge");
    assert_eq!(second.obey(&site).await["role"], "core");
    let third = member(&site, &token, "n3").await;
    assert_eq!(third.obey(&site).await["role"], "data");
    let status = site.get("/cluster/v1").await.expect(200).json();
    assert_eq!((&status["scale"], &status["counts"]["members"]), (&json!("small"), &json!(3)));
    assert_eq!(status["membership_generation"], 3);
    let listed = members(&site).await;
    assert!(listed[0]["reasons"][0].is_string(), "{listed:#?}");
    assert!(listed[0]["certificate_ends"].is_string() && listed[0]["last_seen"].is_string());
    let plan = site.get("/cluster/v1/plan").await.expect(200).json();
    assert_eq!(plan["plan"]["roles"][third.id()], "data");
    let same = site.post("/cluster/v1/plan", &json!({})).await.expect(200).json();
    assert_eq!((&same["dry_run"], &same["generation"]), (&json!(true), &plan["generation"]));
    site.stop().await;
}

#[tokio::test]
async fn declared_roles_are_left_alone() {
    let site = founded().await;
    let token = token(&site).await;
    site.apply(&[document("Node", "n1", &json!({"role": "login"}))]).await;
    let first = member(&site, &token, "n1").await;
    let second = member(&site, &token, "n2").await;
    assert_eq!(roles(&site).await, pairs(&[("n1", "login"), ("n2", "monolith")]));
    assert_eq!(first.obey(&site).await["role"], "login");
    assert_eq!(second.obey(&site).await["role"], "monolith");
    site.apply(&[document("Node", "n1", &json!({"role": "service"}))]).await;
    eventually_async("the declared role", async || {
        let now = roles(&site).await;
        if now[0].1 == "service" { Ok(()) } else { Err(now) }
    })
    .await;
    site.stop().await;
}

#[tokio::test]
async fn member_wishes_are_planned() {
    let site = founded().await;
    let token = token(&site).await;
    let first = member(&site, &token, "n1").await;
    first.obey(&site).await;
    let pinned = site.put("/cluster/v1/members/n1/roles", &json!({"pin": "core"})).await;
    assert_eq!(pinned.expect(200).json()["role"], "monolith", "one member has one role");
    member(&site, &token, "n2").await;
    assert_eq!(roles(&site).await, pairs(&[("n1", "core"), ("n2", "edge")]));
    for body in [json!({"pin": "king"}), json!({"pin": "core", "forbid": ["core"]})] {
        site.put("/cluster/v1/members/n1/roles", &body).await.problem(400, "invalid-body");
    }
    site.put("/cluster/v1/members/n9/roles", &json!({})).await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn stateful_move_waits_for_consent() {
    let site = founded().await;
    let token = token(&site).await;
    let mut all = Vec::new();
    for name in ["n1", "n2", "n3"] {
        let member = member(&site, &token, name).await;
        all.push(member);
        for member in &all {
            member.obey(&site).await;
        }
    }
    assert_eq!(all[2].obey(&site).await["role"], "data");
    // A pin moves the data away: nothing happens until an operator agrees.
    let body = json!({"pin": "edge"});
    site.put("/cluster/v1/members/n3/roles", &body).await.expect(200);
    let plan = site.get("/cluster/v1/plan").await.expect(200).json();
    assert!(plan["waiting"].as_array().is_some_and(|all| !all.is_empty()), "{plan:#}");
    assert_eq!(all[2].obey(&site).await["role"], "data");
    for _ in 0..4 {
        site.post("/cluster/v1/plan?consent=all", &json!({})).await.expect(200);
        for member in &all {
            member.obey(&site).await;
        }
    }
    assert_eq!(all[2].obey(&site).await["role"], "edge");
    let plan = site.get("/cluster/v1/plan").await.expect(200).json();
    assert_eq!(plan["plan"]["moves"], json!([]), "{plan:#}");
    site.stop().await;
}

#[tokio::test]
async fn member_drains_before_it_leaves() {
    let site = founded().await;
    let token = token(&site).await;
    let first = member(&site, &token, "n1").await;
    first.obey(&site).await;
    let second = member(&site, &token, "n2").await;
    first.obey(&site).await;
    second.obey(&site).await;
    let early = site.post("/cluster/v1/members/n2/leave", &json!({})).await;
    early.problem(409, "conflict");
    assert!(detail(&early).contains("drain"), "{}", early.text());
    let draining = site.post("/cluster/v1/members/n2/drain", &json!({"reason": "old"})).await;
    assert_eq!(draining.expect(200).json()["state"], "draining");
    let orders = second.report(&site, 0).await.expect(200).json();
    assert_eq!((&orders["draining"], &orders["role"]), (&json!(true), &json!("core")));
    assert_eq!(first.obey(&site).await["role"], "monolith");
    let left = site.post("/cluster/v1/members/n2/leave", &json!({})).await;
    assert_eq!(left.expect(200).json()["state"], "left");
    let told = second.report(&site, 0).await.problem(403, "member-left");
    assert!(told.remedy.is_some_and(|remedy| remedy.contains("identity reset")));
    // It may come back with the same key.
    second.machine.join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn expelled_member_is_cut_off_for_ever() {
    let site = founded().await;
    let token = token(&site).await;
    let member = member(&site, &token, "n1").await;
    let work = json!({
        "memory": "a", "life": 1, "number": 1, "wait_ms": 20_000,
        "running": [], "results": [], "lost": []
    });
    let mut session = member.connect(&site).await;
    let waiting = tokio::spawn(async move { session.post("/agent/v1/nodes/n1/work", &work).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    let id = member.id();
    site.post(&format!("/cluster/v1/members/{}/expel", &id[..10]), &json!({})).await.expect(200);
    let answer = waiting.await.expect("it ended");
    answer.problem(401, "unauthenticated");
    member.report(&site, 0).await.problem(403, "member-expelled");
    let site = site.restart().await;
    member.report(&site, 0).await.problem(403, "member-expelled");
    let again = member.machine.join(&site, Some(&token)).await;
    again.problem(403, "join-refused");
    assert!(detail(&again).contains("identity reset"), "{}", again.text());
    let listed = members(&site).await;
    assert_eq!((listed.len(), &listed[0]["state"]), (1, &json!("expelled")));
    // The name is free for the next machine.
    Machine::new("n1").join(&site, Some(&token)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn replacement_takes_place_and_role() {
    let site = founded().await;
    let token = token(&site).await;
    let first = member(&site, &token, "n1").await;
    first.obey(&site).await;
    let second = member(&site, &token, "n2").await;
    first.obey(&site).await;
    second.obey(&site).await;
    // The machine of n2 was installed again, by hand: a new key and the same name.
    let new = Machine::new("n2");
    new.join(&site, Some(&token)).await.problem(409, "conflict");
    let body = json!({"old": "n2", "new": new.id.short()});
    site.post("/cluster/v1/replace", &body).await.expect(200);
    second.report(&site, 0).await.problem(403, "member-replaced");
    let bundle = new.join(&site, Some(&token)).await.expect(200).json();
    assert_eq!(bundle["join_order"], 2);
    let new = new.with(&bundle);
    new.confirm(&site).await;
    assert_eq!(new.obey(&site).await["role"], "core");
    let refused = second.machine.join(&site, Some(&token)).await;
    refused.problem(403, "join-refused");
    site.stop().await;
}

#[tokio::test]
async fn cloned_identity_is_found_and_refused() {
    let site = founded().await;
    let token = token(&site).await;
    let mut one = member(&site, &token, "n1").await;
    one.session("one").report(&site, 0).await.expect(200);
    // A restart of the agent is no clone.
    one.session("two").report(&site, 0).await.expect(200);
    one.session("one").report(&site, 0).await.expect(200);
    let second = one.session("two").report(&site, 0).await;
    second.problem(409, "cloned-identity");
    assert!(detail(&second).contains("identity reset"), "{}", second.text());
    let status = site.get("/cluster/v1").await.expect(200).json();
    assert!(status["warnings"][0].as_str().expect("a warning").contains("n1"), "{status:#}");
    let told = site.events("cluster.member.cloned", "-10", 1).await;
    assert_eq!(told[0]["subject"], "member/n1");
    site.stop().await;
}

#[tokio::test]
async fn renewed_key_keeps_the_identity() {
    let site = founded().await;
    let token = token(&site).await;
    let mut member = member(&site, &token, "n1").await;
    let (id, old) = (member.id(), member.chain.clone());
    member.renew(&site).await.expect(200);
    assert_ne!(member.chain, old);
    member.report(&site, 0).await.expect(200);
    assert_eq!(members(&site).await[0]["id"], id);
    // A node whose answer was lost proves the new key.
    let again = member.machine.join(&site, None).await.expect(200).json();
    assert_eq!(again["certificate"], member.chain);
    site.stop().await;
}

#[tokio::test]
async fn accepted_node_withdraws() {
    let site = founded().await;
    let token = token(&site).await;
    let member = Machine::new("n1").member(&site, &token).await;
    let body = json!({"request": "00112233445566778899aabbccddeeff"});
    member.post(&site, "/cluster/v1/withdraw", &body).await.expect(204);
    assert_eq!(members(&site).await[0]["state"], "left");
    site.stop().await;
}

#[tokio::test]
async fn prometheus_finds_the_members() {
    let site = founded().await;
    let token = token(&site).await;
    let first = member(&site, &token, "n1").await;
    first.obey(&site).await;
    member(&site, &token, "n2").await;
    let targets = site.get("/cluster/v1/prometheus-sd").await.expect(200).json();
    let expected: Value = json!([
        {
            "targets": ["127.0.0.1:9100"],
            "labels": {"cluster": "blue", "node": "n1", "role": "edge", "scale": "small"},
        },
        {
            "targets": ["n2:9100"],
            "labels": {"cluster": "blue", "node": "n2", "role": "core", "scale": "small"},
        },
    ]);
    assert_eq!(targets, expected);
    site.get(&format!("{NODES}/by/name/n1")).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn ids_may_be_abbreviated_but_not_to_nothing() {
    let site = founded().await;
    let token = token(&site).await;
    let mut ids: Vec<String> = Vec::new();
    for n in 0..3 {
        ids.push(member(&site, &token, &format!("n{n}")).await.id());
    }
    let drain = |id: &str| format!("/cluster/v1/members/{id}/drain");
    site.post(&drain(&ids[0][..2]), &json!({})).await.problem(404, "not-found");
    let drained = site.post(&drain(&ids[0][..12]), &json!({})).await.expect(200).json();
    assert_eq!(drained["id"], ids[0]);
    site.stop().await;
}
