//! Every write leaves an entry, and the entries hold together.

use hoist_api::admin::AuditPage;
use hoist_store::{Op, Store, Txn};
use reqwest::Method;
use serde_json::json;

use crate::site::{Site, problem};

async fn page(site: &Site, query: &str) -> AuditPage {
    let path = format!("/admin/v1/audit{query}");
    site.get_as(&site.admin, &path).await.json().await.unwrap()
}

#[tokio::test]
async fn writes_are_told_with_who_what_and_from_where() {
    let site = Site::start().await;
    let made = site.token(json!([{ "verbs": ["read", "write"], "contexts": ["*"] }])).await;
    let response = site
        .request(Method::POST, "/test/write")
        .bearer_auth(&made.secret)
        .header("x-request-id", "trace-7")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    // Neither a read, nor a refused write, nor one that says it changed nothing.
    site.get_as(&made.secret, "/test/site").await;
    site.request(Method::POST, "/test/write").send().await.unwrap();
    site.request(Method::PUT, "/test/write").bearer_auth(&site.admin).send().await.unwrap();

    let page = page(&site, "").await;
    let told: Vec<_> = page
        .entries
        .iter()
        .map(|e| (e.who.as_str(), e.method.as_str(), e.object.as_str(), e.outcome.as_str()))
        .collect();
    let token = format!("token/{}", made.token.id);
    assert_eq!(
        told,
        [("admin", "POST", token.as_str(), "done"), (&token, "POST", "/test/write", "200")]
    );
    assert_eq!(page.entries[1].from, "127.0.0.1");
    assert_eq!(page.entries[1].request_id, "trace-7");
    assert_eq!(page.entries[1].route, "/test/write");
    site.stop().await;
}

#[tokio::test]
async fn the_log_is_paged_streamed_and_verified() {
    let site = Site::start().await;
    for _ in 0..5 {
        site.post_as(&site.admin, "/test/write", &json!(null)).await;
    }
    let first = page(&site, "?limit=2").await;
    assert_eq!((first.entries.len(), first.head, first.next), (2, 5, Some(2)));
    let last = page(&site, "?after=4").await;
    assert_eq!((last.entries.len(), last.next), (1, None));
    assert_eq!(page(&site, "?tail=3").await.entries[0].seq, 3);
    problem(site.get_as(&site.admin, "/admin/v1/audit?limit=0").await, 400).await;

    let lines = site
        .request(Method::GET, "/admin/v1/audit")
        .bearer_auth(&site.admin)
        .header("accept", "application/x-ndjson")
        .send()
        .await
        .unwrap();
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    assert_eq!(lines.text().await.unwrap().lines().count(), 5);

    let found = page(&site, "?verify=1").await.verification.unwrap();
    assert_eq!((found.intact, found.entries), (true, 5));
    let key: hoist_store::Key = "audit/00000000000000000003".parse().unwrap();
    let record = site.store.get(&key).await.unwrap().unwrap();
    let forged = String::from_utf8(record.value).unwrap().replace("admin", "nobody");
    let ops = vec![Op::Put(key, forged.into_bytes())];
    site.store.commit(Txn { compares: vec![], ops }).await.unwrap();
    let found = page(&site, "?verify=1").await.verification.unwrap();
    assert_eq!((found.intact, found.broken_at), (false, Some(3)));
    site.stop().await;
}
