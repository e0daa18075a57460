//! What every provider of documents keeps to: hoist's own, and another hoist behind the proxy.

use std::collections::HashSet;

use crate::metadata::{DOCUMENTS, ask, ask_from, id, key, mode, seed, site};
use crate::site::Site;

/// The suite. The site has the nodes `n1` at 10.0.0.1 and `n2` at 10.0.0.2.
async fn conforms(site: &Site) {
    four_documents_are_always_there(site).await;
    a_node_is_who_it_is(site).await;
    tags_are_kept_to(site).await;
    only_the_node_itself_is_answered(site).await;
}

async fn four_documents_are_always_there(site: &Site) {
    for n in [1, 2] {
        let path = seed(site, n).await;
        for name in DOCUMENTS {
            let answer = ask(site, &format!("{path}{name}")).await.expect(200);
            let text = answer.text();
            assert_ne!(text.trim(), "#cloud-config", "{name}: cloud-init calls that degraded");
            assert_eq!(answer.header("cache-control"), "private, no-cache");
        }
        ask(site, &format!("{path}kettle")).await.expect(404);
    }
}

async fn a_node_is_who_it_is(site: &Site) {
    let mut instances = HashSet::new();
    for n in [1, 2] {
        let path = seed(site, n).await;
        let text = ask(site, &format!("{path}meta-data")).await.expect(200).text();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
            line.unwrap_or_else(|| panic!("no {key}: {text}")).trim_matches('"').to_owned()
        };
        assert_eq!(value("local-hostname"), format!("n{n}"));
        assert!(value("instance-id").ends_with("-g0"), "{text}");
        assert!(instances.insert(value("instance-id")), "two nodes are one: {text}");
        let again = ask(site, &format!("{path}meta-data")).await.expect(200).text();
        assert_eq!(again, text, "the same each time");
        let address = format!("10.0.0.{n}");
        let by_address = ask_from(site, &address, "/cloud-init/meta-data").await.expect(200);
        assert_eq!(by_address.text(), text, "and however the node is known");
    }
}

async fn tags_are_kept_to(site: &Site) {
    let path = seed(site, 1).await;
    for name in DOCUMENTS {
        let path = format!("{path}{name}");
        let first = ask(site, &path).await.expect(200);
        let same = site.ask_as_nobody("GET", &path).header("if-none-match", &first.tag());
        assert!(same.send().await.expect(304).body.is_empty());
        let head = site.ask_as_nobody("HEAD", &path).send().await.expect(200);
        assert_eq!((head.tag(), head.body.len()), (first.tag(), 0));
    }
}

async fn only_the_node_itself_is_answered(site: &Site) {
    let n1 = id(site, "n1").await;
    let n2 = id(site, "n2").await;
    let key = key(site);
    for token in [key.seed(n2, 0), key.seed(n1, 7)] {
        let path = format!("/meta/v1/seed/{n1}/{}/meta-data", token.as_str());
        ask(site, &path).await.problem(403, "forbidden");
    }
    ask_from(site, "192.0.2.1", "/cloud-init/meta-data").await.problem(503, "held");
}

#[tokio::test]
async fn hoists_own_documents_conform() {
    let site = site(|_| {}).await;
    conforms(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn another_hoist_behind_the_proxy_conforms() {
    let other = site(|_| {}).await;
    for path in ["/cloud-init", "/meta/v1/seed"] {
        let site = site(mode("proxy", other.url(path))).await;
        conforms(&site).await;
        let of_other = ask_from(&other, "10.0.0.1", "/cloud-init/meta-data").await.text();
        let path = seed(&site, 1).await;
        let text = ask(&site, &format!("{path}meta-data")).await.text();
        assert_eq!(text, of_other, "it is the other one that says who the node is");
        site.stop().await;
    }
    other.stop().await;
}
