//! The documents in the manner of EC2.

use hoist_server::metadata::Unknown;
use serde_json::json;

use crate::metadata::{ask_from, id, mode, policy, site};
use crate::site::document;

#[tokio::test]
async fn a_node_reads_the_same_in_the_manner_of_ec2() {
    let site = site(|_| {}).await;
    let layer = json!({
        "selector": "*", "public_keys": ["ssh-ed25519 A a"], "user_data": {"timezone": "UTC"},
    });
    site.apply(&[document("MetadataLayer", "all", &layer)]).await;
    let get = async |path: &str| ask_from(&site, "10.0.0.1", path).await.expect(200).text();
    let instance = format!("{}-g0", id(&site, "n1").await);
    assert_eq!(get("/latest/").await, "meta-data/\nuser-data");
    let keys = "hostname\ninstance-id\nlocal-hostname\nlocal-ipv4\nmac\npublic-keys/";
    for path in ["/latest/meta-data", "/latest/meta-data/"] {
        assert_eq!(get(path).await, keys);
    }
    assert_eq!(get("/latest/meta-data/instance-id").await, instance);
    assert_eq!(get("/latest/meta-data/local-ipv4").await, "10.0.0.1");
    assert_eq!(get("/latest/meta-data/public-keys/").await, "0=key-0");
    assert_eq!(get("/latest/meta-data/public-keys/0/openssh-key").await, "ssh-ed25519 A a");
    assert_eq!(get("/latest/user-data").await, get("/cloud-init/user-data").await);
    for path in ["kettle", "hoist", "public-keys/1", "public-keys/0/x", "..%2fuser-data"] {
        let path = format!("/latest/meta-data/{path}");
        assert_eq!(ask_from(&site, "10.0.0.1", &path).await.status, 404, "{path}");
    }
    ask_from(&site, "192.0.2.9", "/latest/meta-data/instance-id").await.problem(503, "held");
    ask_from(&site, "192.0.2.9", "/latest/user-data").await.problem(503, "held");
    site.stop().await;

    let site = crate::metadata::site(policy(Unknown::Default)).await;
    let text = ask_from(&site, "192.0.2.9", "/latest/meta-data/instance-id").await.expect(200);
    assert!(text.text().starts_with("unknown-"), "{}", text.text());
    site.stop().await;
    let site = crate::metadata::site(mode("redirect", "http://ci/cloud-init".to_owned())).await;
    ask_from(&site, "10.0.0.1", "/latest/meta-data").await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn meta_data_of_any_size_is_read_in_the_manner_of_ec2() {
    let site = site(|_| {}).await;
    let long = "x".repeat(100_000);
    let layer = json!({"selector": "*", "meta_data": {"long": long, "region": "here"}});
    site.apply(&[document("MetadataLayer", "all", &layer)]).await;
    let get = async |path: &str| ask_from(&site, "10.0.0.1", path).await.expect(200).text();
    assert!(get("/cloud-init/meta-data").await.len() > long.len());
    let keys = "hostname\ninstance-id\nlocal-hostname\nlocal-ipv4\nmac\nregion";
    assert_eq!(get("/latest/meta-data").await, keys);
    assert_eq!(get("/latest/meta-data/region").await, "here");
    site.stop().await;
}
