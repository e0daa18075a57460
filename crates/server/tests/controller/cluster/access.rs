use serde_json::json;

use super::{founded, member, token};
use crate::site::NODES;

#[tokio::test]
async fn member_certificate_opens_member_and_agent_routes_only() {
    let site = founded().await;
    let token = token(&site).await;
    let one = member(&site, &token, "n1").await;
    member(&site, &token, "n2").await;
    let mut session = one.connect(&site).await;
    let work = json!({
        "memory": "a", "life": 1, "number": 1, "wait_ms": 0,
        "running": [], "results": [], "lost": []
    });
    session.post("/agent/v1/nodes/n1/work", &work).await.expect(200);
    session.post("/agent/v1/nodes/n2/work", &work).await.problem(403, "forbidden");
    for path in [
        "/cluster/v1",
        "/cluster/v1/members",
        "/cluster/v1/pending",
        "/cluster/v1/tokens",
        "/cluster/v1/plan",
        "/cluster/v1/prometheus-sd",
        "/admin/v1/tokens",
        NODES,
    ] {
        let answer = session.send(http::Method::GET, path, None).await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.text());
    }
    session.post("/cluster/v1/tokens", &json!({})).await.problem(401, "unauthenticated");
    session.post("/cluster/v1/found", &json!({"name": "x"})).await.problem(401, "unauthenticated");
    site.stop().await;
}

#[tokio::test]
async fn cluster_routes_need_rights_to_the_whole_site() {
    let site = founded().await;
    let read = site.token(json!([{"verbs": ["read"], "contexts": ["cluster"]}])).await;
    let limited = json!(
        [{"verbs": ["read", "write"], "contexts": ["cluster"], "selector": "node:n1"}]
    );
    let limited = site.token(limited).await;
    let other = site.token(json!([{"verbs": ["read", "write"], "contexts": ["inventory"]}])).await;
    site.ask_as(&read, "GET", "/cluster/v1/members").send().await.expect(200);
    for token in [&limited, &other] {
        site.ask_as(token, "GET", "/cluster/v1/members").send().await.problem(403, "forbidden");
    }
    for (method, path) in [
        ("POST", "/cluster/v1/tokens"),
        ("POST", "/cluster/v1/pending/n1/accept"),
        ("POST", "/cluster/v1/members/n1/expel"),
        ("PUT", "/cluster/v1/members/n1/roles"),
        ("POST", "/cluster/v1/plan"),
    ] {
        for token in [&read, &limited, &other] {
            let answer = site.ask_as(token, method, path).json(&json!({})).send().await;
            answer.problem(403, "forbidden");
        }
    }
    for path in ["/cluster/v1/confirm", "/cluster/v1/withdraw", "/agent/v1/report"] {
        let answer = site.post(path, &json!({})).await;
        assert!([401, 403].contains(&answer.status), "{path}: {}", answer.text());
    }
    site.stop().await;
}
