//! Who gets documents, and who does not.

use hoist_server::metadata::Unknown;
use hoist_site::SiteKey;
use serde_json::Value;

use crate::metadata::{DOCUMENTS, ask, ask_from, id, key, metric, policy, seed, site, spec};
use crate::site::{Answer, document, mac};

#[tokio::test]
async fn a_node_finds_its_four_documents_where_its_boot_script_says() {
    let site = site(|_| {}).await;
    let path = seed(&site, 1).await;
    let node = id(&site, "n1").await;
    assert!(path.starts_with(&format!("/meta/v1/seed/{node}/")) && path.ends_with('/'), "{path}");
    for name in DOCUMENTS {
        let answer = ask(&site, &format!("{path}{name}")).await.expect(200);
        assert_eq!(answer.header("content-length"), answer.body.len().to_string());
        assert_eq!(answer.header("cache-control"), "private, no-cache");
    }
    let text = ask(&site, &format!("{path}meta-data")).await.text();
    assert!(text.contains(&format!("{node}-g0")), "{text}");
    let own = seed(&site, 2).await;
    let other = ask(&site, &format!("{own}meta-data")).await.expect(200).text();
    assert_ne!(other, text);
    // And after a restart the same: the token too.
    let site = site.restart().await;
    assert_eq!(seed(&site, 1).await, path);
    assert_eq!(ask(&site, &format!("{path}meta-data")).await.expect(200).text(), text);
    site.stop().await;
}

#[tokio::test]
async fn current_client_copy_is_not_sent_again() {
    let site = site(|_| {}).await;
    let path = format!("{}meta-data", seed(&site, 1).await);
    let first = ask(&site, &path).await.expect(200);
    let again = |tag: String| site.ask_as_nobody("GET", &path).header("if-none-match", &tag);
    let same = again(first.tag()).send().await.expect(304);
    assert!(same.body.is_empty());
    assert_eq!(same.tag(), first.tag());
    again(format!("\"other\", W/{}", first.tag())).send().await.expect(304);
    let other = again("\"other\"".to_owned()).send().await.expect(200);
    // The way past the router and the one through it say the same.
    assert_eq!(
        (other.body, other.headers["etag"].clone()),
        (first.body, first.headers["etag"].clone())
    );
    let head = site.ask_as_nobody("HEAD", &path).send().await.expect(200);
    assert!(head.body.is_empty());
    assert_eq!(head.tag(), first.headers["etag"].to_str().unwrap());
    site.stop().await;
}

/// All that a refusal tells, but for the number of the request.
fn refusal(answer: &Answer) -> Value {
    let mut problem = answer.json();
    problem.as_object_mut().expect("a problem").remove("request_id").expect("a number");
    problem
}

#[tokio::test]
async fn foreign_and_outdated_tokens_open_nothing() {
    for (unknown, status) in [(Unknown::Hold, 403), (Unknown::Default, 403), (Unknown::Deny, 404)] {
        let site = site(policy(unknown)).await;
        let n1 = id(&site, "n1").await;
        let n2 = id(&site, "n2").await;
        let key = key(&site);
        let right = key.seed(n1, 0);
        ask(&site, &format!("/meta/v1/seed/{n1}/{}/meta-data", right.as_str())).await.expect(200);
        let before = metric(&site, r#"hoist_seeds_total{outcome="refused"}"#).await;
        let wrong = [
            key.seed(n2, 0),
            key.seed(n1, 1),
            key.provision(n1, 0, &[0; 16]),
            SiteKey::new(&[0; 32]).seed(n1, 0),
        ];
        for token in &wrong {
            for name in DOCUMENTS {
                let path = format!("/meta/v1/seed/{n1}/{}/{name}", token.as_str());
                let answer = ask(&site, &path).await.expect(status);
                assert!(!answer.text().contains("instance-id"), "{}", answer.text());
                // The answer must not reveal whether the node exists.
                for nobody in ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "kettle"] {
                    let path = format!("/meta/v1/seed/{nobody}/{}/{name}", token.as_str());
                    let same = ask(&site, &path).await.expect(status);
                    assert_eq!(refusal(&same), refusal(&answer));
                }
            }
        }
        // From the node's own address neither: the token says who is meant.
        let path = format!("/meta/v1/seed/{n1}/{}/meta-data", wrong[0].as_str());
        ask_from(&site, "10.0.0.1", &path).await.expect(status);
        let after = metric(&site, r#"hoist_seeds_total{outcome="refused"}"#).await;
        assert!(after >= before + 17.0, "{before} {after}");
        site.stop().await;
    }
}

#[tokio::test]
async fn address_identifies_and_only_listed_proxies_forward_it() {
    let site = site(|_| {}).await;
    let paths = |name: &str| [format!("/meta/v1/seed/{name}"), format!("/cloud-init/{name}")];
    let n1 = id(&site, "n1").await.to_string();
    for name in DOCUMENTS {
        for path in paths(name) {
            ask_from(&site, "10.0.0.1", &path).await.expect(200);
            // The last hop that is no proxy of ours counts, whatever stands before it.
            ask_from(&site, "10.0.0.1, 192.0.2.1", &path).await.expect(503);
            // As IPv6 writes it.
            ask_from(&site, "::ffff:10.0.0.1", &path).await.expect(200);
        }
    }
    let text = ask_from(&site, "10.0.0.9, 10.0.0.1", "/cloud-init/meta-data").await.text();
    assert!(text.contains(&n1), "{text}");
    site.stop().await;

    let site = crate::metadata::site(|config| config.proxies = std::iter::empty().collect()).await;
    for path in paths("meta-data") {
        let answer = ask_from(&site, "10.0.0.1", &path).await.expect(503);
        assert!(!answer.text().contains("instance-id"));
    }
    site.stop().await;
}

#[tokio::test]
async fn shared_address_identifies_no_node() {
    let site = site(|_| {}).await;
    let network = |name: &str| {
        let spec = serde_json::json!({"subnets": [{"cidr": "10.0.0.0/8"}]});
        document("Network", name, &spec)
    };
    let on = |n: u32, network: &str| {
        let mut spec = spec(n, "10.0.0.7/8");
        spec["interfaces"][0]["network"] = network.into();
        document("Node", &format!("n{n}"), &spec)
    };
    site.apply(&[network("a"), network("b"), on(3, "a"), on(4, "b")]).await;
    for path in ["/meta/v1/seed/meta-data", "/cloud-init/meta-data"] {
        ask_from(&site, "10.0.0.7", path).await.problem(409, "ambiguous");
    }
    // Their tokens are their own.
    let own = seed(&site, 4).await;
    let answer = ask_from(&site, "10.0.0.7", &format!("{own}meta-data")).await.expect(200);
    assert!(answer.text().contains(&id(&site, "n4").await.to_string()));
    site.stop().await;
}

#[tokio::test]
async fn unknown_machines_and_disabled_nodes_follow_the_policy() {
    for unknown in [Unknown::Hold, Unknown::Default, Unknown::Deny] {
        let site = site(policy(unknown)).await;
        let of_n2 = format!("{}meta-data", seed(&site, 2).await);
        let mut off = spec(2, "10.0.0.2/8");
        off["enabled"] = false.into();
        site.apply(&[document("Node", "n2", &off)]).await;
        for (address, path) in [
            ("192.0.2.9", "/cloud-init/meta-data"),
            ("192.0.2.9", "/meta/v1/seed/network-config"),
            ("10.0.0.2", "/cloud-init/meta-data"),
            ("10.0.0.2", &of_n2),
        ] {
            let answer = ask_from(&site, address, path).await;
            match unknown {
                Unknown::Hold => {
                    answer.problem(503, "held");
                    assert_eq!(answer.header("retry-after"), "10");
                }
                Unknown::Deny => drop(answer.problem(404, "not-found")),
                Unknown::Default => {
                    let text = answer.expect(200).text();
                    assert_eq!(text.contains("instance-id: unknown-"), path.ends_with("meta-data"));
                    assert!(!text.contains("n2"), "{text}");
                }
            }
        }
        site.stop().await;
    }
}

#[tokio::test]
async fn unknown_machines_are_listed_and_held_by_default() {
    let site = site(|_| {}).await;
    let path = format!("/boot/v1/bootscript?mac={}", mac(9));
    ask_from(&site, "192.0.2.9", &path).await.expect(200);
    let listed = site.get("/boot/v2/discovered").await.expect(200).json();
    assert_eq!(listed["items"][0]["mac"], mac(9));
    ask_from(&site, "192.0.2.9", "/meta/v1/seed/meta-data").await.problem(503, "held");
    site.stop().await;
}

#[tokio::test]
async fn addresses_that_are_held_are_listed_with_agent_and_count() {
    let site = site(|_| {}).await;
    let mut off = spec(2, "10.0.0.2/8");
    off["enabled"] = false.into();
    site.apply(&[document("Node", "n2", &off)]).await;
    let agent = "Cloud-Init/24.2";
    for path in ["/meta/v1/seed/meta-data"; 3].into_iter().chain(["/latest/meta-data"]) {
        let ask = site.ask_as_nobody("GET", path).header("x-forwarded-for", "192.0.2.9");
        ask.header("user-agent", agent).send().await.problem(503, "held");
    }
    ask_from(&site, "10.0.0.2", "/cloud-init/user-data").await.problem(503, "held");
    let listed = site.get("/boot/v2/discovered").await.expect(200).json();
    let items = listed["items"].as_array().expect("a list");
    let of = |from: &str| items.iter().find(|item| item["from"] == from).expect("it is listed");
    assert_eq!(items.len(), 2, "{listed}");
    assert_eq!((&of("192.0.2.9")["count"], of("192.0.2.9").get("mac")), (&4.into(), None));
    assert_eq!(of("192.0.2.9")["agent"], agent);
    assert_eq!((&of("10.0.0.2")["count"], &of("10.0.0.2")["node"]), (&1.into(), &"n2".into()));
    assert_eq!(of("10.0.0.2").get("agent"), None);
    // Declared since, it is not unknown any more; the other one is forgotten on request.
    site.apply(&[document("Node", "n9", &spec(9, "192.0.2.9/24"))]).await;
    site.delete("/boot/v2/discovered/10.0.0.2").await.expect(204);
    site.delete("/boot/v2/discovered/10.0.0.2").await.problem(404, "not-found");
    let listed = site.get("/boot/v2/discovered").await.expect(200).json();
    assert_eq!(listed["items"], serde_json::json!([]), "{listed}");
    site.stop().await;
}

#[tokio::test]
async fn the_seed_of_a_removed_node_is_not_waited_for() {
    let site = site(|_| {}).await;
    let path = format!("{}meta-data", seed(&site, 1).await);
    let node = id(&site, "n1").await;
    site.delete(&format!("/inventory/v1/nodes/{node}")).await;
    ask(&site, &path).await.problem(403, "forbidden");
    // Declared again it is another node, and its boot script says where its seed is now.
    site.apply(&[document("Node", "n1", &spec(1, "10.0.0.1/8"))]).await;
    ask(&site, &path).await.problem(403, "forbidden");
    ask(&site, &format!("{}meta-data", seed(&site, 1).await)).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn held_machine_is_answered_once_it_is_a_node() {
    let site = site(|_| {}).await;
    ask_from(&site, "10.0.0.3", "/cloud-init/meta-data").await.expect(503);
    site.apply(&[document("Node", "n3", &spec(3, "10.0.0.3/8"))]).await;
    let text = ask_from(&site, "10.0.0.3", "/cloud-init/meta-data").await.expect(200).text();
    assert!(text.contains("n3"), "{text}");
    site.stop().await;
}

#[tokio::test]
async fn seed_serves_four_documents_and_no_other_path() {
    let site = site(|_| {}).await;
    let path = seed(&site, 1).await;
    for name in [
        "ca",
        "site.key",
        "..%2f..%2fca%2fsite.key",
        "%2e%2e",
        "meta-data%00",
        "META-DATA",
        "meta-data.yaml",
        "meta%2ddata%2f..",
        "%ff",
        &"x".repeat(2000),
    ] {
        let answer = ask(&site, &format!("{path}{name}")).await;
        assert!(matches!(answer.status, 400 | 404), "{name}: {}", answer.status);
        assert!(!answer.text().contains("instance-id"), "{name}");
    }
    // What only needs decoding means the same.
    ask(&site, &format!("{path}meta%2ddata")).await.expect(200);
    site.stop().await;
}
