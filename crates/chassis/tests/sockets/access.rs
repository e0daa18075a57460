//! Tokens and scopes: who gets in, and who does not.

use hoist_api::Code;
use hoist_api::admin::{Context, TokenList};
use hoist_chassis::auth::Policy;
use hoist_store::{Prefix, Store};
use hoist_testkit::eventually_async;
use jiff::SignedDuration;
use reqwest::Method;
use serde_json::{Value, json};

use hoist_testkit::failing_store::Mood;

use crate::site::{Site, problem};

fn everything() -> Value {
    json!([{ "verbs": ["read", "write"], "contexts": ["*"] }])
}

#[tokio::test]
async fn the_admin_token_opens_and_nothing_else_does() {
    let site = Site::start().await;
    assert_eq!(site.get_as(&site.admin, "/test/site").await.status(), 200);
    let nobody = site.get("/test/site").await;
    assert_eq!(nobody.headers()["www-authenticate"], "Bearer");
    assert_eq!(problem(nobody, 401).await.code, Code::Unauthenticated);
    for wrong in ["hoist_admin_kettle", "hoist_000000000000_kettle", "kettle", "hoist_", ""] {
        problem(site.get_as(wrong, "/test/site").await, 401).await;
    }
    site.stop().await;
}

#[tokio::test]
async fn a_token_is_made_used_listed_and_revoked() {
    let site = Site::start().await;
    let made = site.token(everything()).await;
    assert!(made.secret.starts_with(&format!("hoist_{}_", made.token.id)));
    assert_eq!(site.get_as(&made.secret, "/test/site").await.status(), 200);

    let listed = site.get_as(&made.secret, "/admin/v1/tokens").await.text().await.unwrap();
    let secret = made.secret.rsplit('_').next().unwrap();
    assert!(!listed.contains(secret), "{listed}");
    let listed: TokenList = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.tokens, std::slice::from_ref(&made.token));
    let stored = site.store.list(&Prefix::All, None, 1000).await.unwrap();
    for record in stored.records {
        assert!(!String::from_utf8_lossy(&record.value).contains(secret), "{}", record.key);
    }

    let path = format!("/admin/v1/tokens/{}", made.token.id);
    let revoke = || site.request(Method::DELETE, &path).bearer_auth(&site.admin).send();
    assert_eq!(revoke().await.unwrap().status(), 200);
    assert_eq!(revoke().await.unwrap().status(), 200, "twice is fine");
    let refused = problem(site.get_as(&made.secret, "/test/site").await, 401).await;
    assert_eq!(refused.detail, "the token was revoked");
    let missing = site.request(Method::DELETE, "/admin/v1/tokens/..%2f..").bearer_auth(&site.admin);
    problem(missing.send().await.unwrap(), 404).await;
    site.stop().await;
}

#[tokio::test]
async fn tokens_expire_and_survive_a_restart() {
    let site = Site::start().await;
    let expires = (jiff::Timestamp::now() + SignedDuration::from_hours(2)).to_string();
    let body = json!({ "name": "short", "scopes": everything(), "expires": expires });
    let response = site.post_as(&site.admin, "/admin/v1/tokens", &body).await;
    let secret = response.json::<Value>().await.unwrap()["secret"].as_str().unwrap().to_owned();
    let admin = site.admin.clone();
    let (dir, store) = site.stop().await;

    let site = Site::start_on(dir, store, |builder| builder).await;
    assert_eq!(site.admin, admin);
    assert_eq!(site.get_as(&secret, "/test/site").await.status(), 200);
    site.clock.forward(SignedDuration::from_hours(3));
    let refused = problem(site.get_as(&secret, "/test/site").await, 401).await;
    assert_eq!(refused.detail, "the token has expired");
    site.stop().await;
}

#[tokio::test]
async fn tokens_of_other_controllers_arrive_and_survive_an_outage() {
    let one = Site::start().await;
    let dir = tempfile::tempdir().unwrap();
    let two = Site::start_on(dir, std::sync::Arc::clone(&one.store), |builder| builder).await;
    let made = one.token(everything()).await;
    eventually_async("token reaches the other controller", async || {
        let status = two.get_as(&made.secret, "/test/site").await.status();
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    one.store.set(Mood::Unavailable);
    assert_eq!(two.get_as(&made.secret, "/test/site").await.status(), 200);
    let body = json!({ "name": "x", "scopes": everything() });
    let refused = problem(two.post_as(&two.admin, "/admin/v1/tokens", &body).await, 503).await;
    assert_eq!(refused.code, Code::StoreUnavailable);
    one.store.set(Mood::Full);
    let refused = problem(two.post_as(&two.admin, "/admin/v1/tokens", &body).await, 507).await;
    assert_eq!(refused.code, Code::StoreFull);
    one.store.set(Mood::Working);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn scopes_deny_by_default_on_every_route() {
    let site = Site::start().await;
    let reader = site.token(json!([{ "verbs": ["read"], "contexts": ["inventory"] }])).await.secret;
    let part =
        json!([{ "verbs": ["read", "write"], "contexts": ["*"], "selector": "partition:a" }]);
    let limited = site.token(part).await.secret;

    assert_eq!(site.get_as(&reader, "/test/site").await.status(), 200);
    assert_eq!(site.get_as(&reader, "/test/nodes").await.text().await.unwrap(), "all");
    let refused = problem(site.post_as(&reader, "/test/write", &json!(1)).await, 403).await;
    assert_eq!(refused.detail, "your token does not allow `write` in `inventory`");

    // A token that is limited to nodes sees only routes that know about nodes.
    assert_eq!(site.get_as(&limited, "/test/nodes").await.text().await.unwrap(), "partition:a");
    assert_eq!(site.get_as(&limited, "/test/agent").await.status(), 200);
    let closed = ["/test/site", "/admin/v1/tokens", "/admin/v1/audit", "/events/v1", "/metrics"];
    for path in closed {
        problem(site.get_as(&limited, path).await, 403).await;
        if path != "/test/site" {
            problem(site.get_as(&reader, path).await, 403).await;
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn token_cannot_create_a_stronger_one() {
    let site = Site::start().await;
    let maker = site.token(json!([{ "verbs": ["write"], "contexts": ["admin"] }])).await.secret;
    let ask = |scopes: Value| json!({ "name": "x", "scopes": scopes });
    let path = "/admin/v1/tokens";
    problem(site.post_as(&maker, path, &ask(everything())).await, 403).await;
    let same = ask(json!([{ "verbs": ["write"], "contexts": ["admin"] }]));
    assert_eq!(site.post_as(&maker, path, &same).await.status(), 201);
    site.stop().await;
}

#[tokio::test]
async fn bad_token_requests_name_every_fault() {
    let site = Site::start().await;
    let body = json!({
        "name": "",
        "expires": "tomorrow",
        "scopes": [
            { "verbs": [], "contexts": ["*"] },
            { "verbs": ["read"], "contexts": ["*"], "selector": "partition:" },
        ],
    });
    let refused = problem(site.post_as(&site.admin, "/admin/v1/tokens", &body).await, 400).await;
    let at: Vec<_> = refused.errors.iter().map(|diagnostic| diagnostic.at.as_str()).collect();
    assert_eq!(at, ["$.name", "$.expires", "$.scopes[0]", "$.scopes[1]"]);
    let body = json!({ "name": "x", "scope": [] });
    let refused = problem(site.post_as(&site.admin, "/admin/v1/tokens", &body).await, 400).await;
    assert_eq!(refused.errors[0].hint.as_deref(), Some("did you mean `scopes`?"));
    site.stop().await;
}

#[tokio::test]
async fn guessing_is_slowed_down_without_lockout() {
    let site = Site::start().await;
    let mut last = 401;
    for _ in 0..25 {
        last = site.get_as("hoist_admin_guess", "/test/site").await.status().as_u16();
    }
    assert_eq!(last, 429);
    assert_eq!(site.get_as(&site.admin, "/test/site").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn foreign_host_name_does_not_reach_administration() {
    let site = Site::start_with(|builder| builder.names(["boot.example".into()])).await;
    let ask = async |host: &str, path: &str| {
        let request = site.request(Method::GET, path).bearer_auth(&site.admin);
        request.header("host", host).send().await.unwrap()
    };
    for own in ["localhost", "boot.example:27778", "127.0.0.1", "192.0.2.1", "[::1]:1"] {
        assert_eq!(ask(own, "/test/site").await.status(), 200, "{own}");
    }
    for foreign in ["evil.example", "evil.example:27778", "localhost.evil.example"] {
        for path in ["/test/site", "/test/agent", "/admin/v1/tokens"] {
            let refused = problem(ask(foreign, path).await, 421).await;
            assert_eq!(refused.code, Code::WrongHost);
            assert!(refused.remedy.unwrap().contains("`names`"), "{path}");
        }
        // Machines that boot use whatever name leads here.
        for path in ["/test/boot", "/boot/v1/test", "/boot/v1/test?router", "/healthz"] {
            assert_eq!(ask(foreign, path).await.status(), 200, "{path}");
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn a_locked_context_needs_a_token() {
    let site = Site::start().await;
    assert_eq!(site.get("/test/boot").await.status(), 200);
    site.stop().await;
    let mut policy = Policy::default();
    policy.locked.insert(Context::Boot);
    let site = Site::start_with(|builder| builder.policy(policy)).await;
    problem(site.get("/test/boot").await, 401).await;
    let reader = site.token(json!([{ "verbs": ["read"], "contexts": ["boot"] }])).await.secret;
    assert_eq!(site.get_as(&reader, "/test/boot").await.status(), 200);
    site.stop().await;
}
