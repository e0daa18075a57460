//! Who may use BSS's routes, and how wrong methods and paths are answered.

use hoist_server::auth::BssAuth;
use serde_json::json;

use crate::site::Site;

const PATH: &str = "/boot/v1/bootparameters";

#[tokio::test]
async fn boot_parameters_need_a_token_unless_the_site_says_otherwise() {
    let site = Site::start().await;
    let body = json!({"hosts": ["Default"], "kernel": "http://h/k"});
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let answer = site.ask_as_nobody(method, PATH).json(&body).send().await;
        answer.expect(401);
    }
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    let writer = site.token(json!([{"verbs": ["read", "write"], "contexts": ["boot"]}])).await;
    let other = site.token(json!([{"verbs": ["read", "write"], "contexts": ["inventory"]}])).await;
    site.ask_as(&writer, "PUT", PATH).json(&body).send().await.expect(200);
    site.ask_as(&reader, "GET", PATH).send().await.expect(200);
    site.ask_as(&reader, "PUT", PATH).json(&body).send().await.expect(403);
    site.ask_as(&other, "GET", PATH).send().await.expect(403);
    let written = site.audit().await;
    let entry = written.iter().rfind(|entry| entry.method == "PUT").unwrap();
    assert_eq!(entry.route, PATH);
}

#[tokio::test]
async fn an_open_site_lets_everybody_write_and_counts_it() {
    let site = Site::start_with(|config| config.policy.bss = BssAuth::Open).await;
    let body = json!({"hosts": ["Default"], "kernel": "http://h/k"});
    site.ask_as_nobody("PUT", PATH).json(&body).send().await.expect(200);
    site.ask_as_nobody("GET", PATH).send().await.expect(200);
    // Nothing else opened with it.
    site.ask_as_nobody("GET", "/inventory/v1/nodes").send().await.expect(401);
    let metrics = site.get("/metrics").await.expect(200);
    let metrics = String::from_utf8(metrics.body).unwrap();
    let counted = metrics.lines().any(|line| {
        line.strip_prefix("hoist_bss_open_writes_total ").is_some_and(|count| count != "0")
    });
    assert!(counted, "{metrics}");
}

#[tokio::test]
async fn wrong_methods_are_answered_as_by_bss_under_both_prefixes() {
    let site = Site::start().await;
    for path in [PATH, "/apis/bss/boot/v1/bootparameters", "/boot/v1/bootparameters/"] {
        for method in ["HEAD", "OPTIONS", "TRACE"] {
            let answer = site.ask(method, path).send().await.expect(405);
            assert_eq!(answer.headers["allow"], "GET,POST,PUT,PATCH,DELETE", "{method} {path}");
        }
        site.get(path).await.expect(200);
    }
    let answer = site.ask("POST", "/boot/v1/bootscript").send().await.expect(405);
    assert_eq!(answer.headers["allow"], "GET");
    let problem = answer.json();
    assert_eq!(problem["detail"], "allow GET");
    assert_eq!(problem["title"], "Method Not Allowed");
    assert_eq!(problem["type"], "about:blank");
}
