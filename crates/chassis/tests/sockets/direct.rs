//! Answers given past the router look like all others, and are given only where they may be.

use std::collections::HashSet;

use hoist_api::admin::Context;
use hoist_chassis::auth::Policy;
use reqwest::Method;

use crate::site::{Site, client_with, problem, trusting};

const PATH: &str = "/boot/v1/test";

async fn text(site: &Site, path: &str) -> String {
    site.get(path).await.text().await.unwrap()
}

#[tokio::test]
async fn immediate_answers_bypass_the_router() {
    let site = Site::start().await;
    assert_eq!(text(&site, PATH).await, "direct ");
    assert_eq!(text(&site, "/boot/v1/test/?mac=1").await, "direct ");
    assert_eq!(text(&site, "/boot/v1/test?router").await, "routed ");
    let with_body = site.request(Method::GET, PATH).body("{}").send().await.unwrap();
    assert_eq!(with_body.text().await.unwrap(), "routed ");
    site.stop().await;
}

#[tokio::test]
async fn direct_and_routed_answers_know_the_gateway_prefix() {
    let site = Site::start().await;
    assert_eq!(text(&site, "/apis/bss/boot/v1/test").await, "direct /apis/bss");
    assert_eq!(text(&site, "/apis/bss/boot/v1/test/?router").await, "routed /apis/bss");
    site.stop().await;
}

#[tokio::test]
async fn tls_and_http2_take_the_same_way() {
    let site = Site::start().await;
    for protocol in ["http/1.1", "h2"] {
        let mut tls = trusting(&site.running).with_no_client_auth();
        tls.alpn_protocols = vec![protocol.into()];
        let response = client_with(tls).get(site.tls(PATH)).send().await.unwrap();
        assert_eq!(response.version() == http::Version::HTTP_2, protocol == "h2");
        assert_eq!(response.text().await.unwrap(), "direct ");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_locked_route_is_not_answered_past_the_gate() {
    let policy = Policy { locked: HashSet::from([Context::Boot]), ..Policy::default() };
    let site = Site::start_with(|builder| builder.policy(policy)).await;
    assert_eq!(site.get(PATH).await.status(), 401);
    assert_eq!(site.get_as(&site.admin, PATH).await.text().await.unwrap(), "routed ");
    site.stop().await;
}

#[tokio::test]
async fn direct_answers_carry_the_same_headers_and_are_counted() {
    let site = Site::start().await;
    let request = site.request(Method::GET, PATH).header("x-request-id", "mine-1");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(response.headers()["content-length"], "7");
    let metrics = site.get_as(&site.admin, "/metrics").await.text().await.unwrap();
    let line = format!(r#"hoist_http_requests_total{{method="GET",route="{PATH}",status="200"}}"#);
    assert!(metrics.contains(&line), "{metrics}");
    let times = format!(r#"hoist_http_request_seconds_count{{route="{PATH}"}}"#);
    assert!(metrics.contains(&times), "{metrics}");
    site.stop().await;
}

#[tokio::test]
async fn a_panic_falls_back_to_the_router() {
    let site = Site::start().await;
    assert_eq!(text(&site, "/boot/v1/test?panic").await, "routed ");
    problem(site.get("/test/panic").await, 500).await;
    site.stop().await;
}
