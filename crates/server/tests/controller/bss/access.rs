//! Who may use BSS's routes, and how wrong methods and paths are answered.

use hoist_chassis::auth::BssAuth;
use hoist_chassis::jwks::{JwksConfig, JwksSource};
use serde_json::json;

use crate::site::{Site, document};
use hoist_testkit::eventually_async;
use hoist_testkit::issuer::{Issuer, publish};

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
    assert_eq!(entry.object, "1 created: BootParameters/Default (kernel)");
    let more = json!({"hosts": ["Default"], "params": "quiet"});
    site.ask_as(&writer, "PATCH", PATH).json(&more).send().await.expect(200);
    let entry = site.audit().await.into_iter().next_back().unwrap();
    assert_eq!(entry.object, "1 changed: BootParameters/Default (params)");
}

#[tokio::test]
async fn open_site_lets_anonymous_clients_write_and_counts_them() {
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
async fn key_set_accepts_every_token_that_it_verifies() {
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
    eventually_async("keys of the issuer are read", async || {
        let status = site.ask_as(&token, "GET", PATH).send().await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    site.ask_as(&token, "PUT", PATH).json(&body).send().await.expect(200);
    let cookie = format!("other=1; jwt={token}");
    site.ask_as_nobody("GET", PATH).header("cookie", &cookie).send().await.expect(200);
    // The site's own tokens go on working, and the token opens nothing else.
    site.get(PATH).await.expect(200);
    site.ask_as(&token, "GET", "/inventory/v1/nodes").send().await.expect(403);
    site.ask_as_nobody("GET", PATH).send().await.expect(401);
    let expired = issuer.sign(&json!({"sub": "ochami", "exp": 1}));
    site.ask_as(&expired, "GET", PATH).send().await.expect(401);
    let other = json!({"sub": "x", "iss": "i", "aud": "a", "exp": exp});
    let other = Issuer::new("one").sign(&other);
    site.ask_as(&other, "GET", PATH).send().await.expect(401);
    for missing in ["sub", "iss", "aud", "exp"] {
        let mut claims = json!({"sub": "ochami", "iss": "i", "aud": ["a", "b"], "exp": exp});
        site.ask_as(&issuer.sign(&claims), "GET", PATH).send().await.expect(200);
        claims.as_object_mut().expect("an object").remove(missing);
        let answer = site.ask_as(&issuer.sign(&claims), "GET", PATH).send().await;
        assert_eq!(answer.status, 401, "{missing}");
    }
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

#[tokio::test]
async fn paths_that_bss_does_not_have_are_told_in_its_words() {
    let site = Site::start().await;
    for path in ["/boot/v1", "/boot/v1/", "/boot/v1/kettle", "/apis/bss/boot/v1/hosts/x/"] {
        for method in ["GET", "POST"] {
            let answer = site.ask_as_nobody(method, path).send().await.expect(404);
            assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
            assert_eq!(answer.text(), "404 page not found\n", "{method} {path}");
        }
    }
    for path in ["/boot/v2/kettle", "/boot/v10", "/kettle"] {
        site.ask_as_nobody("GET", path).send().await.problem(404, "unknown-route");
    }
    site.stop().await;
}

#[tokio::test]
async fn invalid_mac_is_an_unknown_machine() {
    let site = Site::start().await;
    site.add(&crate::site::node(1)).await;
    let ask = async |query: &str| {
        let path = format!("/boot/v1/bootscript?{query}");
        site.ask_as_nobody("GET", &path).send().await
    };
    for mac in ["zz", "00:11:22:33:44:55:66:77", "kettle"] {
        let text = ask(&format!("mac={mac}")).await.expect(200).text();
        assert!(text.contains("sleep 10\n") && text.contains(&format!("={mac}&")), "{text}");
        ask(&format!("mac={mac}&arch=x86_64")).await.expect(404);
    }
    let body = json!({"hosts": ["n1"], "kernel": "http://h/k"});
    site.put(PATH, &body).await.expect(200);
    for better in ["name=n1", "nid=1"] {
        let text = ask(&format!("mac=zz&{better}")).await.expect(200).text();
        assert!(text.contains("http://h/k"), "{text}");
    }
    for wrong in ["", "mac=", "mac=&name=&nid=", "nid=-1", "mac=a%0achain+http://evil"] {
        let answer = ask(wrong).await.expect(400);
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_filter_without_a_value_is_not_everything() {
    let site = Site::start().await;
    site.add(&crate::site::node(1)).await;
    site.put(PATH, &json!({"hosts": ["n1"], "kernel": "http://h/k"})).await.expect(200);
    for path in [PATH, "/boot/v1/hosts"] {
        for query in ["name=", "mac=", "nid=", "name", "name=,&mac=%20"] {
            let problem = site.get(&format!("{path}?{query}")).await.expect(400).json();
            assert_eq!(problem["detail"], "No specified data requested", "{path}?{query}");
        }
        let one = site.get(&format!("{path}?name=&nid=1")).await.expect(200).json();
        assert_eq!(one.as_array().map(Vec::len), Some(1));
    }
    site.stop().await;
}

#[tokio::test]
async fn a_node_called_like_a_reserved_tag_takes_nothing_from_it() {
    let site = Site::start().await;
    site.apply(&[
        document("Node", "Default", &json!({"nid": 1})),
        document("Node", "other", &json!({"nid": 2})),
    ])
    .await;
    for (host, kernel) in [("Default", "http://h/everybody"), ("default", "http://h/one")] {
        site.put(PATH, &json!({"hosts": [host], "kernel": kernel})).await.expect(200);
    }
    for (nid, kernel) in [(1, "http://h/one"), (2, "http://h/everybody")] {
        let path = format!("/boot/v1/bootscript?nid={nid}");
        let text = site.ask_as_nobody("GET", &path).send().await.expect(200).text();
        assert!(text.contains(kernel), "{text}");
    }
    site.stop().await;
}
