//! Secrets, only for clients that prove to be the node.

use std::sync::LazyLock;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_metadata::provision::proof_text;
use hoist_model::NodeId;
use hoist_server::controller::Config;
use hoist_store::Prefix;
use hoist_testkit::etcd::EtcdServer;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::log::LOG;
use crate::metadata::{DOCUMENTS, ask, id, key, metric, seed, site, spec};
use crate::site::{Answer, Site, client_trusting, document, mac};

const DOCUMENTS_PATH: &str = "/provision/v1/agent/documents";

/// No log, event, audit entry, seed or preview may hold these.
const SECRETS: [&str; 2] = ["hunter2-in-a-file", "hunter2-in-a-variable"];

fn secured(config: &mut Config) {
    config.tls_listen = Some(([127, 0, 0, 1], 0).into());
    let variable = ("HOIST_SECRET_DB".to_owned(), SECRETS[1].into());
    config.metadata.variables = [variable].into();
}

/// `n1` and `n2` with addresses of their own, and layers with a secret in a file and one in a
/// variable.
async fn secret_site(change: impl FnOnce(&mut Config)) -> Site {
    LazyLock::force(&LOG);
    let site = site(|config| {
        secured(config);
        change(config);
    })
    .await;
    fs_err::create_dir_all(site.data_dir().join("secrets")).expect("a directory");
    fs_err::write(secret_file(&site), format!("{}\n", SECRETS[0])).expect("a secret");
    let layer = |name: &str, spec: &Value| document("MetadataLayer", name, spec);
    site.apply(&[
        layer("plain", &json!({"selector": "*", "user_data": {"runcmd": ["{{ token }}"]}})),
        layer(
            "root",
            &json!({"selector": "*",
                "user_data": {"password": {"secret": {"file": "root"}}, "user": "root"}}),
        ),
        layer(
            "db",
            &json!({"selector": "node:n1",
                "vendor_data": {"write_files": [{"path": "/db", "content":
                    {"secret": {"env": "HOIST_SECRET_DB"}}}]}}),
        ),
    ])
    .await;
    site
}

fn secret_file(site: &Site) -> std::path::PathBuf {
    site.data_dir().join("secrets/root")
}

/// What runs on a machine that is being provisioned.
struct Agent {
    key: Ed25519KeyPair,
    /// Where it asks from, as the proxy in front says.
    address: &'static str,
}

impl Agent {
    fn new(seed: u8, address: &'static str) -> Self {
        Self { key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a seed"), address }
    }

    fn request(&self, node: NodeId, token: &str) -> Value {
        let signature = self.key.sign(proof_text(node, token).as_bytes());
        json!({
            "node": node, "token": token,
            "key": STANDARD.encode(self.key.public_key()), "signature": STANDARD.encode(signature),
        })
    }

    async fn ask(&self, site: &Site, node: NodeId, token: &str) -> Answer {
        self.send(site, &self.request(node, token)).await
    }

    async fn send(&self, site: &Site, body: &Value) -> Answer {
        let url = format!("https://{}{DOCUMENTS_PATH}", site.controller.tls_addr().expect("TLS"));
        let request = client_of(site).post(url).header("x-forwarded-for", self.address);
        let response = request.json(body).send().await.expect("an answer");
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response.bytes().await.expect("the whole answer").to_vec();
        Answer { status, headers, body }
    }
}

fn client_of(site: &Site) -> reqwest::Client {
    let pem = site.controller.chassis().ca.root_pem();
    let root = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a root");
    client_trusting([root]).pool_max_idle_per_host(0).build().expect("a client")
}

async fn enroll(site: &Site, name: &str) -> String {
    let enrolled = site.ask("POST", &enrollment(name)).send().await.expect(200).json();
    enrolled["token"].as_str().expect("a token").to_owned()
}

fn enrollment(name: &str) -> String {
    format!("/provision/v1/nodes/{name}/enrollment")
}

/// Entries about secrets that were handed out.
async fn handed_out(site: &Site) -> Vec<Value> {
    let entries = site.audit().await;
    let handed = entries.iter().filter(|entry| entry.route == DOCUMENTS_PATH);
    handed.map(|entry| serde_json::to_value(entry).expect("plain")).collect()
}

/// The events of provisioning after `since`, once there is one of this kind.
async fn told_until(site: &Site, since: &str, kind: &str) -> Vec<Value> {
    let path = format!("/events/v1?kind=provision&since={since}");
    let mut stream = site.ask("GET", &path).open().await;
    let mut text = String::new();
    loop {
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let told: Vec<Value> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
        if told.iter().any(|event| event["kind"] == kind) {
            return told;
        }
        let more = stream.chunk().await.expect("the stream goes on").expect("it has no end");
        text.push_str(std::str::from_utf8(&more).expect("text"));
    }
}

#[track_caller]
fn holds_no_secret(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "a secret is in {what}");
    }
}

fn texts(answer: &Answer) -> Vec<(String, String)> {
    let given = answer.json();
    let documents = given["documents"].as_array().expect("documents").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    documents.map(|one| (text(&one["document"]), text(&one["text"]))).collect()
}

#[tokio::test]
async fn enrolled_node_gets_its_secrets_and_each_release_is_audited() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let since = site.controller.chassis().events.last_id();
    let agent = Agent::new(1, "10.0.0.1");
    agent.ask(&site, n1, "0".repeat(32).as_str()).await.problem(403, "forbidden");
    let token = enroll(&site, "n1").await;
    let answer = agent.ask(&site, n1, &token).await.expect(200);
    assert_eq!(answer.header("cache-control"), "no-store");
    let given = texts(&answer);
    assert_eq!(given.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), DOCUMENTS);
    assert!(given[0].1.contains(&format!("{n1}-g0")), "{given:?}");
    assert!(given[1].1.contains(&format!("password: {}", SECRETS[0])), "{given:?}");
    assert!(given[1].1.contains(key(&site).seed(n1, 0).as_str()), "the seed's token, as ever");
    assert!(given[2].1.contains(SECRETS[1]), "{given:?}");

    // The same key may ask again, also after a restart; each time is in the audit log.
    let site = site.restart().await;
    assert_eq!(texts(&agent.ask(&site, n1, &token).await.expect(200)), given);
    let entries = handed_out(&site).await;
    assert_eq!(entries.len(), 2, "{entries:?}");
    let listed = site.get("/provision/v1/enrollments").await.expect(200).json();
    let print = listed["items"][0]["claimed"]["key"].as_str().expect("a print").to_owned();
    assert_eq!(entries[0]["who"], format!("node/n1 with key {print}"));
    assert_eq!(entries[0]["from"], "10.0.0.1");
    assert_eq!(entries[0]["object"], "node/n1: secrets root, HOIST_SECRET_DB (layers root, db)");

    // Another key with the right token is reported, and gets nothing.
    let other = Agent::new(2, "10.0.0.1");
    for _ in 0..2 {
        let refused = other.ask(&site, n1, &token).await.problem(403, "forbidden");
        assert!(refused.detail.contains("another key"), "{refused:?}");
    }
    let told = told_until(&site, &since, "provision.quarantined").await;
    let kinds: Vec<_> = told.iter().filter_map(|event| event["kind"].as_str()).collect();
    let expected = ["enrolled", "claimed", "secrets", "secrets", "quarantined"];
    assert_eq!(kinds, expected.map(|kind| format!("provision.{kind}")));
    assert_eq!(told[2]["data"]["layers"], json!(["root", "db"]));
    assert_eq!(handed_out(&site).await.len(), 2);
    let listed = site.get("/provision/v1/enrollments").await.expect(200).json();
    assert_eq!(listed["items"][0]["node"], "n1");
    assert_eq!(listed["items"][0]["quarantined"].as_array().map(Vec::len), Some(1));
    agent.ask(&site, n1, &token).await.expect(200);

    // Nothing but the answers holds a secret.
    let seed = seed(&site, 1).await;
    for name in DOCUMENTS {
        holds_no_secret("a seed", &ask(&site, &format!("{seed}{name}")).await.expect(200).text());
    }
    let preview = site.get("/meta/v1/nodes/n1/render?trace=1").await.expect(200).text();
    holds_no_secret("a preview", &preview);
    holds_no_secret("an event", &serde_json::to_string(&told).expect("plain"));
    let entries = serde_json::to_string(&site.audit().await).expect("plain");
    holds_no_secret("the audit log", &entries);
    let log = LOG.text();
    assert!(log.contains("secrets were asked for and refused"), "nothing was logged");
    holds_no_secret("the log", &log);
    for (place, text) in
        [("the log", &log), ("the audit log", &entries), ("a list", &listed.to_string())]
    {
        assert!(!text.contains(&token), "the token is in {place}");
    }
    site.stop().await;
}

#[tokio::test]
async fn secret_is_given_to_its_node_only() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let n2 = id(&site, "n2").await;
    let own = enroll(&site, "n1").await;
    let others = enroll(&site, "n2").await;
    let agent = Agent::new(1, "10.0.0.1");
    let before = metric(&site, "hoist_secrets_total{outcome=\"refused\"}").await;

    let plain = site.ask_as_nobody("POST", DOCUMENTS_PATH).header("x-forwarded-for", "10.0.0.1");
    let refused = plain.json(&agent.request(n1, &own)).send().await.problem(403, "plain-secret");
    assert!(refused.remedy.expect("a remedy").contains("TLS"));

    let seed_token = key(&site).seed(n1, 0).as_str().to_owned();
    for wrong in [others.as_str(), &seed_token, "", &own[1..], &own.to_uppercase()] {
        agent.ask(&site, n1, wrong).await.problem(403, "forbidden");
    }
    // Of a node that is not there, from elsewhere, from another node's address: told alike.
    let nobody = NodeId::from_bits(9);
    let refused = agent.ask(&site, n1, &others).await.problem(403, "forbidden");
    for (address, node, token) in [
        ("10.0.0.1", nobody, &own),
        ("192.0.2.1", n1, &others),
        ("192.0.2.1", n1, &own),
        ("10.0.0.2", n1, &own),
    ] {
        let again = Agent::new(1, address).ask(&site, node, token).await.problem(403, "forbidden");
        assert_eq!((&again.detail, &again.remedy), (&refused.detail, &refused.remedy), "{address}");
    }
    // The key of one with the signature of another.
    let mut mixed = agent.request(n1, &own);
    mixed["signature"] = Agent::new(2, "").request(n1, &own)["signature"].clone();
    agent.send(&site, &mixed).await.problem(403, "forbidden");
    for (member, value) in [("key", json!("")), ("signature", json!("?")), ("key", json!("AAAA"))] {
        let mut damaged = agent.request(n1, &own);
        damaged[member] = value;
        agent.send(&site, &damaged).await.problem(403, "forbidden");
    }
    agent.send(&site, &json!({"node": n1})).await.problem(400, "invalid-body");
    let mut large = agent.request(n1, &own);
    large["token"] = "x".repeat(4096).into();
    agent.send(&site, &large).await.problem(413, "body-too-large");
    let after = metric(&site, "hoist_secrets_total{outcome=\"refused\"}").await;
    assert!(after >= before + 13.0, "{before} {after}");
    assert!(handed_out(&site).await.is_empty());

    // All of that claimed nothing. Without an enrollment the right token is refused too.
    agent.ask(&site, n1, &own).await.expect(200);
    site.delete(&enrollment("n1")).await.expect(204);
    agent.ask(&site, n1, &own).await.problem(403, "forbidden");
    let n2_agent = Agent::new(3, "10.0.0.2");
    let mut disabled = spec(2, "10.0.0.2/8");
    disabled["enabled"] = json!(false);
    site.apply(&[document("Node", "n2", &disabled)]).await;
    n2_agent.ask(&site, n2, &others).await.problem(403, "forbidden");
    site.ask("POST", &enrollment("n2")).send().await.problem(409, "conflict");
    assert_eq!(handed_out(&site).await.len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn enrollment_ends_with_its_node() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let token = enroll(&site, "n1").await;
    enroll(&site, "n2").await;
    site.delete(&format!("/inventory/v1/nodes/{n1}")).await.expect(200);
    Agent::new(1, "10.0.0.1").ask(&site, n1, &token).await.problem(403, "forbidden");
    let store = &site.controller.chassis().store;
    let below = Prefix::Under("provision/enrollments".parse().expect("a key"));
    let left = store.list(&below, None, 10).await.expect("the store").records;
    assert_eq!(left.len(), 1, "{left:?}");
    site.stop().await;
}

#[tokio::test]
async fn an_address_that_several_nodes_have_proves_nothing() {
    let site = secret_site(|_| {}).await;
    let network =
        |name: &str| document("Network", name, &json!({"subnets": [{"cidr": "10.0.2.0/24"}]}));
    let on = |n: u32, network: &str| {
        let mut spec = spec(n, "10.0.2.15/24");
        spec["interfaces"][0]["network"] = network.into();
        document("Node", &format!("n{n}"), &spec)
    };
    site.apply(&[network("a"), network("b"), on(3, "a"), on(4, "b")]).await;
    let n3 = id(&site, "n3").await;
    let token = enroll(&site, "n3").await;
    let refused = Agent::new(1, "10.0.0.1").ask(&site, n3, &token).await;
    refused.problem(403, "forbidden");
    Agent::new(1, "192.0.2.1").ask(&site, n3, &token).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn only_an_unshared_address_identifies_its_node() {
    let site = secret_site(|_| {}).await;
    let network =
        |name: &str| document("Network", name, &json!({"subnets": [{"cidr": "10.9.0.0/24"}]}));
    let with_more = |n: u32, network: &str| {
        let mut spec = spec(n, &format!("10.0.0.{n}/8"));
        let more = json!([
            {"name": "bmc", "kind": "bmc", "mac": mac(n + 100), "addresses": [format!("172.16.0.{n}/16")]},
            {"name": "nat", "mac": mac(n + 110), "network": network, "addresses": ["10.9.0.15/24"]},
            {"name": "hsn", "kind": "hsn", "mac": mac(n + 120), "addresses": [format!("172.17.0.{n}/16")]},
        ]);
        let interfaces = spec["interfaces"].as_array_mut().expect("interfaces");
        interfaces.extend(more.as_array().expect("a list").iter().cloned());
        document("Node", &format!("n{n}"), &spec)
    };
    site.apply(&[network("a"), network("b"), with_more(1, "a"), with_more(2, "b")]).await;
    let n1 = id(&site, "n1").await;
    let token = enroll(&site, "n1").await;
    for address in ["172.16.0.1", "10.9.0.15", "172.17.0.2", "172.16.0.2"] {
        Agent::new(1, address).ask(&site, n1, &token).await.problem(403, "forbidden");
    }
    for address in ["172.17.0.1", "10.0.0.1"] {
        Agent::new(1, address).ask(&site, n1, &token).await.expect(200);
    }
    site.stop().await;
}

#[tokio::test]
async fn missing_secret_releases_nothing_until_it_is_added() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let since = site.controller.chassis().events.last_id();
    let agent = Agent::new(1, "10.0.0.1");
    let token = enroll(&site, "n1").await;
    fs_err::remove_file(secret_file(&site)).expect("it was there");
    let refused = agent.ask(&site, n1, &token).await.problem(503, "held");
    assert!(refused.detail.contains("layer `root`: `user_data.password`"), "{refused:?}");
    assert!(!refused.detail.contains(site.data_dir().to_str().expect("UTF-8")), "{refused:?}");
    let told = told_until(&site, &since, "provision.failed").await;
    let reason = told.last().expect("an event")["data"]["reason"].to_string();
    assert!(reason.contains("cannot read the secret `root`"), "{reason}");
    fs_err::write(secret_file(&site), "\n").expect("an empty one");
    agent.ask(&site, n1, &token).await.problem(503, "held");
    assert!(handed_out(&site).await.is_empty());
    fs_err::write(secret_file(&site), SECRETS[0]).expect("a secret");
    agent.ask(&site, n1, &token).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn enrolling_needs_the_right_to_provision_the_node() {
    let site = secret_site(|_| {}).await;
    let scope = |context: &str| json!([{"verbs": ["read", "write"], "contexts": [context], "selector": "node:n1"}]);
    let own = site.token(scope("provision")).await;
    let other = site.token(scope("metadata")).await;
    site.ask_as(&own, "POST", &enrollment("n1")).send().await.expect(200);
    enroll(&site, "n2").await;
    for method in ["POST", "DELETE"] {
        site.ask_as(&own, method, &enrollment("n2")).send().await.problem(404, "not-found");
        site.ask_as(&other, method, &enrollment("n1")).send().await.problem(403, "forbidden");
    }
    let listed =
        site.ask_as(&own, "GET", "/provision/v1/enrollments").send().await.expect(200).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    let entries = site.audit().await;
    let enrolled: Vec<_> = entries.iter().filter(|e| e.route.ends_with("/enrollment")).collect();
    assert_eq!(
        enrolled.iter().map(|e| e.object.as_str()).collect::<Vec<_>>(),
        ["node/n1", "node/n2"]
    );
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_not_released_without_the_store() {
    let etcd = EtcdServer::start();
    let site = secret_site(|config| config.store = etcd.url("unlock")).await;
    let n1 = id(&site, "n1").await;
    let token = enroll(&site, "n1").await;
    let agent = Agent::new(1, "10.0.0.1");
    tokio::task::block_in_place(|| etcd.stop());
    agent.ask(&site, n1, &token).await.problem(503, "store-unavailable");
    tokio::task::block_in_place(|| etcd.resume());
    site.eventually("/inventory/v1/status", |a| a.json()["store"]["connected"] == true).await;
    let mut answer = agent.ask(&site, n1, &token).await;
    while answer.status == 503 {
        answer = agent.ask(&site, n1, &token).await;
    }
    assert_eq!(texts(&answer.expect(200)).len(), 4);
    assert_eq!(handed_out(&site).await.len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn claim_by_another_key_is_shown_as_outdated() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let token = enroll(&site, "n1").await;
    let outdated = async |site: &Site| {
        let listed = site.get("/provision/v1/enrollments").await.expect(200).json();
        listed["items"][0]["outdated"].clone()
    };
    assert_eq!(outdated(&site).await, false);
    fs_err::write(site.data_dir().join("ca/site.key"), [9; 32]).expect("another key");
    let site = site.restart().await;
    Agent::new(1, "10.0.0.1").ask(&site, n1, &token).await.problem(403, "forbidden");
    assert_eq!(outdated(&site).await, true);
    enroll(&site, "n1").await;
    assert_eq!(outdated(&site).await, false);
    site.stop().await;
}

#[tokio::test]
async fn proof_for_an_earlier_generation_is_refused() {
    let site = secret_site(|_| {}).await;
    let n1 = id(&site, "n1").await;
    let before = seed(&site, 1).await;
    let token = enroll(&site, "n1").await;
    let others = seed(&site, 2).await;
    let agent = Agent::new(1, "10.0.0.1");
    agent.ask(&site, n1, &token).await.expect(200);
    let body = json!({"nodes": [n1]});
    let revision = site.revision();
    let shown = site.post("/inventory/v1/renew?dry_run=1", &body).await.expect(200).json();
    assert_eq!((&shown["affected"], site.revision()), (&json!(1), revision), "{shown}");
    let renewed = site.post("/inventory/v1/renew", &body).await.expect(200).json();
    let fields = json!([{"at": "generation", "from": 0, "to": 1}]);
    assert_eq!(renewed["items"][0]["fields"], fields, "{renewed}");

    ask(&site, &format!("{before}meta-data")).await.problem(403, "forbidden");
    let now = seed(&site, 1).await;
    let meta_data = ask(&site, &format!("{now}meta-data")).await.expect(200).text();
    assert!(meta_data.contains(&format!("{n1}-g1")), "{meta_data}");
    assert_eq!(seed(&site, 2).await, others);
    agent.ask(&site, n1, &token).await.problem(403, "forbidden");
    let listed = site.get("/provision/v1/enrollments").await.expect(200).json();
    assert_eq!(listed["items"][0]["outdated"], true);
    let entries = site.audit().await;
    assert!(entries.iter().any(|entry| entry.route == "/inventory/v1/renew"), "{entries:?}");
    let token = enroll(&site, "n1").await;
    agent.ask(&site, n1, &token).await.expect(200);

    // Protected, it stays as it is, and so does who is named with it.
    let n2 = id(&site, "n2").await;
    let protection = format!("/inventory/v1/nodes/{n1}/protection");
    site.put(&protection, &json!({})).await.expect(200);
    let both = json!({"nodes": [n1, n2]});
    site.post("/inventory/v1/renew", &both).await.problem(409, "protected");
    assert_eq!(seed(&site, 2).await, others);
    let nobody = json!({"nodes": [NodeId::from_bits(9)]});
    site.post("/inventory/v1/renew", &nobody).await.problem(404, "not-found");
    site.stop().await;
}
