//! Who may use BSS's routes, and how wrong methods and paths are answered.

use hoist_server::auth::BssAuth;
use hoist_server::jwks::{JwksConfig, JwksSource};
use serde_json::json;

use crate::issuer::{Issuer, publish};
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
async fn with_a_key_set_any_token_it_verifies_will_do() {
    let keys = tempfile::NamedTempFile::new().expect("a file");
    let issuer = Issuer::new("one");
    publish(keys.path(), &[&issuer]);
    let source = JwksSource::File(keys.path().to_owned());
    let site = Site::start_with(|config| {
        config.policy.bss = BssAuth::Jwks;
        config.jwks = Some(JwksConfig::new(source));
    })
    .await;
    let exp = jiff::Timestamp::now().as_second() + 600;
    // No scope that means anything here, as tokens for BSS are.
    let token = issuer.sign(&json!({"sub": "ochami", "iss": "i", "aud": "a", "exp": exp}));
    let body = json!({"hosts": ["Default"], "kernel": "http://h/k"});
    let mut tries = 0;
    while site.ask_as(&token, "GET", PATH).send().await.status != 200 {
        tries += 1;
        assert!(tries < 300, "the keys were never read");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    site.ask_as(&token, "PUT", PATH).json(&body).send().await.expect(200);
    let cookie = format!("other=1; jwt={token}");
    site.ask_as_nobody("GET", PATH).header("cookie", &cookie).send().await.expect(200);
    // The site's own tokens go on working, and the token opens nothing else.
    site.get(PATH).await.expect(200);
    site.ask_as(&token, "GET", "/inventory/v1/nodes").send().await.expect(403);
    site.ask_as_nobody("GET", PATH).send().await.expect(401);
    let expired = issuer.sign(&json!({"sub": "ochami", "exp": 1}));
    site.ask_as(&expired, "GET", PATH).send().await.expect(401);
    let stranger = Issuer::new("one").sign(&json!({"sub": "x", "exp": exp}));
    site.ask_as(&stranger, "GET", PATH).send().await.expect(401);
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
