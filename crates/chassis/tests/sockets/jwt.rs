//! JWT bearer tokens, their keys and the keys' rotation.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hoist_chassis::jwks::{JwksConfig, JwksSource};
use hoist_testkit::eventually_async;
use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};

use crate::site::{Site, problem};
use hoist_testkit::issuer::{Issuer, publish};

fn claims() -> Value {
    let exp = jiff::Timestamp::now().as_second() + 600;
    json!({
        "sub": "ci", "iss": "https://issuer.example", "aud": "hoist", "exp": exp,
        "scope": "openid read:inventory",
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[key] = value;
    claims
}

fn config(source: JwksSource) -> JwksConfig {
    JwksConfig {
        issuer: Some("https://issuer.example".to_owned()),
        audience: Some("hoist".to_owned()),
        refresh_floor: Duration::from_millis(20),
        ..JwksConfig::new(source)
    }
}

async fn failed_fetches(site: &Site) -> u64 {
    let metrics = site.get_as(&site.admin, "/metrics").await.text().await.unwrap();
    let count = metrics.lines().find_map(|line| line.strip_prefix("hoist_jwks_failures_total "));
    count.map_or(0, |count| count.parse().unwrap())
}

async fn until_accepted(site: &Site, token: &str) {
    eventually_async("token is accepted", async || {
        let status = site.get_as(token, "/test/site").await.status();
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test]
async fn keys_rotate_and_wrong_tokens_stay_outside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let old = Issuer::new("old");
    let new = Issuer::new("new");
    publish(&path, &[&old]);
    let source = JwksSource::File(path.clone());
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    let good = old.sign(&claims());
    until_accepted(&site, &good).await;
    problem(site.post_as(&good, "/test/write", &json!(1)).await, 403).await;

    let hour_ago = jiff::Timestamp::now().as_second() - 3600;
    let forged = Issuer::new("old").sign(&claims());
    let unsigned = {
        let (_, rest) = good.split_once('.').unwrap();
        format!("{}.{rest}", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"old"}"#))
    };
    for wrong in [
        old.sign(&with("exp", hour_ago.into())),
        old.sign(&with("aud", "kettle".into())),
        old.sign(&with("iss", "https://evil.example".into())),
        old.sign(&with("nbf", (hour_ago + 7200).into())),
        forged,
        unsigned,
        old.sign_as_secret(&claims()),
        new.sign(&claims()),
    ] {
        problem(site.get_as(&wrong, "/test/site").await, 401).await;
    }

    publish(&path, &[&new]);
    until_accepted(&site, &new.sign(&claims())).await;
    problem(site.get_as(&good, "/test/site").await, 401).await;

    // Keys that cannot be fetched any more stay good.
    let before = failed_fetches(&site).await;
    std::fs::remove_file(&path).unwrap();
    site.get_as(&old.sign(&claims()), "/test/site").await;
    eventually_async("keys cannot be fetched", async || failed_fetches(&site).await > before).await;
    assert_eq!(site.get_as(&new.sign(&claims()), "/test/site").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn jwt_opens_nothing_without_a_configured_audience() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let issuer = Issuer::new("a");
    publish(&path, &[&issuer]);
    let config = JwksConfig { audience: None, ..config(JwksSource::File(path)) };
    let site = Site::start_with(|builder| builder.jwks(config)).await;
    // A token of the right issuer for another service.
    let token = issuer.sign(&with("aud", "kettle".into()));
    let answer = eventually_async("keys of the issuer are read", async || {
        let answer = site.get_as(&token, "/test/site").await;
        if answer.status() == 401 { Err(answer) } else { Ok(answer) }
    })
    .await;
    let refused = problem(answer, 403).await;
    assert!(refused.remedy.unwrap().contains("auth.audience"), "{}", refused.detail);
    site.stop().await;
}

#[tokio::test]
async fn jwt_with_a_critical_extension_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let issuer = Issuer::new("a");
    publish(&path, &[&issuer]);
    let source = JwksSource::File(path);
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    until_accepted(&site, &issuer.sign(&claims())).await;
    for crit in [vec!["b64".to_owned()], vec!["kettle".to_owned()], vec![]] {
        let header = Header { crit: Some(crit), ..Header::new(Algorithm::ES256) };
        let token = issuer.sign_with(header, &claims());
        let refused = problem(site.get_as(&token, "/test/site").await, 401).await;
        assert!(refused.detail.contains("crit"), "{}", refused.detail);
    }
    site.stop().await;
}

#[tokio::test]
async fn silent_key_server_blocks_no_client() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", silent.local_addr().unwrap());
    let source = JwksSource::Url { url, roots: Vec::new() };
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    let started = std::time::Instant::now();
    let token = Issuer::new("a").sign(&claims());
    problem(site.get_as(&token, "/test/site").await, 401).await;
    assert_eq!(site.get_as(&site.admin, "/test/site").await.status(), 200);
    assert!(started.elapsed() < Duration::from_secs(2));
    site.stop().await;
}

#[tokio::test]
async fn keys_come_over_http_as_well() {
    let issuer = Issuer::new("a");
    let body = json!({ "keys": [issuer.jwk()] }).to_string();
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", server.local_addr().unwrap());
    let serve = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let source = JwksSource::Url { url, roots: Vec::new() };
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    until_accepted(&site, &issuer.sign(&claims())).await;
    site.stop().await;
    serve.abort();
}

#[tokio::test]
async fn keys_come_over_tls_with_a_root_of_our_own() {
    use hoist_chassis::route::{AccessClass, Route};
    let issuer = Issuer::new("a");
    let body = json!({ "keys": [issuer.jwk()] }).to_string();
    let route =
        Route::get("/keys", AccessClass::Open, async move || body).summary("Keys").reason("a test");
    let keys = Site::start_with(|builder| builder.routes(vec![route])).await;
    let roots = vec![crate::site::root(&keys.running)];
    let source = JwksSource::Url { url: keys.tls("/keys"), roots };
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    until_accepted(&site, &issuer.sign(&claims())).await;
    site.stop().await;
    keys.stop().await;
}

#[tokio::test]
async fn streams_end_when_their_jwt_expires_or_its_key_is_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let old = Issuer::new("old");
    let new = Issuer::new("new");
    publish(&path, &[&old, &new]);
    let source = JwksSource::File(path.clone());
    let site = Site::start_with(|builder| builder.jwks(config(source))).await;
    let withdrawn = old.sign(&claims());
    let expiring = new.sign(&claims());
    until_accepted(&site, &withdrawn).await;
    let end = async |listing: reqwest::Response| {
        assert_eq!(listing.status(), 200);
        let ended = tokio::time::timeout(Duration::from_secs(30), listing.bytes());
        ended.await.expect("the stream ends").expect_err("it is not whole");
    };
    let first = site.get_as(&withdrawn, "/test/listing").await;
    let second = site.get_as(&expiring, "/test/listing").await;
    publish(&path, &[&new]);
    // A token whose key is unknown makes the server fetch the keys.
    problem(site.get_as(&Issuer::new("unknown").sign(&claims()), "/test/site").await, 401).await;
    end(first).await;
    site.clock.forward(jiff::SignedDuration::from_secs(600 + 30 + 1));
    end(second).await;
    site.stop().await;
}
