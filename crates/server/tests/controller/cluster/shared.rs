//! Several controllers of one store.

use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually_async;
use hoist_testkit::stores::fresh_name;
use serde_json::json;

use super::machine::Machine;
use super::{detail, found, member, members, roles, token, unfounded};
use crate::site::Site;

async fn shared_site() -> Site {
    let store = EtcdServer::shared().url(&fresh_name());
    Site::start_with(|config| {
        config.tls_listen = Some(([127, 0, 0, 1], 0).into());
        config.store = store;
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_controller_sees_the_cluster() {
    let first = shared_site().await;
    found(&first).await;
    let token_text = token(&first).await;
    let one = member(&first, &token_text, "n1").await;
    one.obey(&first).await;
    let second =
        first.start_beside(|config| config.tls_listen = Some(([127, 0, 0, 1], 0).into())).await;
    second
        .eventually("/cluster/v1/members", |answer| answer.json()["items"][0]["role"] == "monolith")
        .await;
    let again = second.post("/cluster/v1/found", &json!({"name": "green"})).await;
    again.problem(409, "conflict");
    // Without the authority it names the controller that has it.
    let refused = Machine::new("n2").join(&second, Some(&token_text)).await;
    refused.problem(503, "not-authority");
    assert!(detail(&refused).contains("send the request to"), "{}", refused.text());

    member(&first, &token_text, "n2").await;
    second
        .eventually("/cluster/v1/members", |answer| {
            answer.json()["items"].as_array().is_some_and(|items| items.len() == 2)
        })
        .await;
    // An expulsion there ends the membership here.
    second.post("/cluster/v1/members/n1/expel", &json!({})).await.expect(200);
    let expelled = |answer: &crate::site::Answer| answer.text().contains("expelled");
    first.eventually("/cluster/v1/members", expelled).await;
    one.report(&first, 0).await.problem(403, "member-expelled");
    second.stop().await;
    first.stop().await;
}

/// A controller that has not read the members tells none that its membership has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_without_its_store_answers_members_later() {
    let server = EtcdServer::start();
    let blocking = |work: fn(&EtcdServer)| tokio::task::block_in_place(|| work(&server));
    let site = Site::start_with(|config| {
        config.tls_listen = Some(([127, 0, 0, 1], 0).into());
        config.store = server.url(&fresh_name());
    })
    .await;
    found(&site).await;
    let token = token(&site).await;
    let [one, two] = [member(&site, &token, "n1").await, member(&site, &token, "n2").await];
    site.post("/cluster/v1/members/n1/expel", &json!({})).await.expect(200);
    blocking(EtcdServer::stop);
    one.report(&site, 0).await.problem(403, "member-expelled");
    let site = site.restart().await;
    for member in [&one, &two] {
        member.report(&site, 0).await.problem(503, "store-unavailable");
    }
    blocking(EtcdServer::resume);
    eventually_async("a report after the store is back", async || {
        let answer = two.report(&site, 0).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    one.report(&site, 0).await.problem(403, "member-expelled");
    site.stop().await;
}

#[tokio::test]
async fn restart_keeps_members_and_roles() {
    let site = unfounded().await;
    found(&site).await;
    let token = token(&site).await;
    let one = member(&site, &token, "n1").await;
    one.obey(&site).await;
    let two = Machine::new("n2").member(&site, &token).await;
    let before = (roles(&site).await, members(&site).await.len());
    let site = site.restart().await;
    assert_eq!((roles(&site).await, members(&site).await.len()), before);
    one.report(&site, 0).await.expect(200);
    // A node that was accepted before goes on where it was, with the same certificate.
    let bundle = two.machine.join(&site, Some(&token)).await.expect(200).json();
    assert_eq!(bundle["certificate"], two.chain);
    two.confirm(&site).await;
    site.stop().await;
}
