//! The table: access classes, unknown paths and methods, query parameters, the document about itself.

use hoist_api::Code;
use hoist_testkit::eventually_async;
use reqwest::Method;
use serde_json::Value;

use hoist_testkit::failing_store::Mood;

use crate::site::{Site, problem};

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let site = Site::start().await;
    let unknown = problem(site.get("/kettle").await, 404).await;
    assert_eq!(unknown.code, Code::UnknownRoute);
    let response = site.request(Method::DELETE, "/admin/v1/tokens").send().await.unwrap();
    let mut allow: Vec<_> =
        response.headers()["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
    allow.sort();
    assert_eq!(allow, ["GET", "HEAD", "POST"]);
    assert_eq!(problem(response, 405).await.code, Code::MethodNotAllowed);
    site.stop().await;
}

#[tokio::test]
async fn a_legacy_path_refuses_methods_as_bss_does() {
    let site = Site::start().await;
    for method in [Method::PUT, Method::DELETE, Method::OPTIONS] {
        let response = site.request(method, "/boot/v1/test").send().await.unwrap();
        assert_eq!(response.headers()["allow"], "GET,POST");
        let problem: serde_json::Value = response.json().await.unwrap();
        let expected = serde_json::json!({
            "type": "about:blank",
            "title": "Method Not Allowed",
            "detail": "allow GET,POST",
            "status": 405,
        });
        assert_eq!(problem, expected);
    }
    let head = site.request(Method::HEAD, "/boot/v1/test").send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["allow"]),
        (405, &"GET,POST".parse().unwrap())
    );
    let posted = site.request(Method::POST, "/boot/v1/test").send().await.unwrap();
    assert_eq!(posted.text().await.unwrap(), "posted");
    site.stop().await;
}

#[tokio::test]
async fn a_lenient_route_ignores_parameters_it_does_not_know() {
    let site = Site::start().await;
    let odd = "/boot/v1/test?kettle=1&%ff&&=";
    assert_eq!(site.get(odd).await.status(), 200);
    let lenient_for_get_only = site.request(Method::POST, odd).send().await.unwrap();
    assert_eq!(lenient_for_get_only.status(), 400);
    site.stop().await;
}

#[tokio::test]
async fn one_slash_at_the_end_of_a_path_makes_no_difference() {
    let site = Site::start().await;
    assert_eq!(site.get("/healthz/").await.status(), 200);
    assert_eq!(site.get("/test/query/?limit=3").await.status(), 200);
    assert_eq!(site.get("/test/query/?limit=kettle").await.status(), 400);
    for unknown in ["/healthz//", "/", "//", "/apis/bss/healthz", "/boot/v1/"] {
        assert_eq!(site.get(unknown).await.status(), 404, "{unknown}");
    }
    site.stop().await;
}

#[tokio::test]
async fn an_undeclared_parameter_is_named_with_a_suggestion() {
    let site = Site::start().await;
    assert_eq!(site.get("/test/query?limit=3&selector=a").await.status(), 200);
    let refused = problem(site.get("/test/query?limt=3").await, 400).await;
    assert_eq!(refused.code, Code::UnknownParameter);
    assert_eq!(refused.errors[0].at, "?limt");
    assert_eq!(refused.errors[0].hint.as_deref(), Some("did you mean `limit`?"));
    assert_eq!(
        problem(site.get("/test/query?limit=kettle").await, 400).await.code,
        Code::BadParameter
    );
    assert_eq!(problem(site.get("/healthz?x").await, 400).await.code, Code::UnknownParameter);
    site.stop().await;
}

#[tokio::test]
async fn the_document_describes_every_route_and_resolves() {
    let site = Site::start().await;
    let document: Value = site.get("/openapi.json").await.json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let create = &document["paths"]["/admin/v1/tokens"]["post"];
    assert_eq!(create["x-hoist-access-class"], "admin admin:write");
    assert_eq!(
        create["requestBody"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/TokenRequest"
    );
    assert!(document["paths"]["/openapi.json"]["get"].is_object());
    check_references(&document, &document);
    site.stop().await;
}

fn check_references(document: &Value, part: &Value) {
    if let Some(Value::String(reference)) = part.get("$ref") {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    match part {
        Value::Object(map) => map.values().for_each(|value| check_references(document, value)),
        Value::Array(list) => list.iter().for_each(|value| check_references(document, value)),
        _ => {}
    }
}

#[tokio::test]
async fn request_ids_are_taken_over_or_made() {
    let site = Site::start().await;
    let response = site
        .request(Method::GET, "/healthz")
        .header("x-request-id", "mine-1")
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    let made = site.get("/kettle").await;
    let id = made.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(problem(made, 404).await.request_id, Some(id));
    site.stop().await;
}

/// Asks until the answer is about now.
async fn ready(site: &Site, expected: &str) -> (u16, Value) {
    eventually_async("readiness", async || {
        let response = site.get("/readyz").await;
        let status = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        if body["status"] == expected { Ok((status, body)) } else { Err(body) }
    })
    .await
}

#[tokio::test]
async fn health_is_told_and_a_lost_store_degrades() {
    let site = Site::start().await;
    assert_eq!(ready(&site, "ok").await.0, 200);
    site.store.set(Mood::Unavailable);
    let (status, body) = ready(&site, "degraded").await;
    assert_eq!((status, &body["checks"][0]["name"]), (200, &"store".into()));
    assert_eq!(site.get("/healthz").await.status(), 200);
    site.store.set(Mood::Working);
    let down = || async { hoist_chassis::health::CheckResult::down("no roster") };
    site.running.chassis().readiness.add("roster", down);
    assert_eq!(ready(&site, "down").await.0, 503);
    site.stop().await;
}

#[tokio::test]
async fn metrics_count_by_route_template() {
    let site = Site::start().await;
    assert_eq!(site.get("/metrics").await.status(), 401, "locked unless the site opens it");
    site.request(Method::DELETE, "/admin/v1/tokens/abc").send().await.unwrap();
    let text = site.get_as(&site.admin, "/metrics").await.text().await.unwrap();
    let line =
        r#"hoist_http_requests_total{method="DELETE",route="/admin/v1/tokens/{id}",status="401"}"#;
    assert!(text.contains(line), "{text}");
    assert!(text.contains("hoist_http_request_seconds_bucket"), "{text}");
    assert!(text.contains(r#"hoist_connections{listener="plain"}"#), "{text}");
    site.stop().await;
}

#[tokio::test]
async fn large_answers_are_compressed_on_request() {
    let site = Site::start().await;
    for encoding in ["gzip", "zstd"] {
        let response = site
            .request(Method::GET, "/test/large")
            .header("accept-encoding", encoding)
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["content-encoding"], encoding);
        assert!(response.bytes().await.unwrap().len() < 10_000);
    }
    site.stop().await;
}
