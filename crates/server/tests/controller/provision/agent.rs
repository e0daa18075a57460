//! What runs on a machine that is being provisioned, as far as the controller sees it.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_metadata::provision::proof_text;
use hoist_model::NodeId;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::site::{Answer, Site, client_trusting};

/// The words on the command line of a boot script.
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn of(script: &str) -> Self {
        let kernel = script.lines().find(|line| line.starts_with("kernel ")).expect("a kernel");
        Self(kernel.split(' ').map(str::to_owned).collect())
    }

    pub(crate) fn get(&self, key: &str) -> &str {
        let found = self.0.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key} in {:?}", self.0))
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.0.iter().any(|found| found == word)
    }
}

pub(crate) struct Agent {
    key: Ed25519KeyPair,
    node: NodeId,
    token: String,
    /// Where it asks from, as the proxy in front says.
    address: String,
}

/// The credentials of an agent after its job was assigned.
pub(crate) struct Session {
    pub(crate) job: Value,
    address: String,
}

impl Agent {
    /// As a node finds it in its boot script.
    pub(crate) async fn boot(site: &Site, n: u32, seed: u8) -> Self {
        Self::boot_at(site, n, seed, &format!("10.0.0.{n}")).await
    }

    /// The same at an address.
    pub(crate) async fn boot_at(site: &Site, n: u32, seed: u8, address: &str) -> Self {
        let words = Words::of(&crate::provision::script_from(site, n, address).await);
        let server = words.get("hoist.server");
        assert_eq!(server, format!("https://{}", site.controller.tls_addr().expect("TLS")));
        Self {
            key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a seed"),
            node: words.get("hoist.node").parse().expect("a node id"),
            token: words.get("hoist.token").to_owned(),
            address: address.to_owned(),
        }
    }

    /// With a token that an operator handed out.
    pub(crate) fn with(enrolled: &Value, address: &str) -> Self {
        let text = |key: &str| enrolled[key].as_str().expect("a text").to_owned();
        Self {
            key: Ed25519KeyPair::from_seed_unchecked(&[9; 32]).expect("a seed"),
            node: text("id").parse().expect("a node id"),
            token: text("token"),
            address: address.to_owned(),
        }
    }

    pub(crate) fn request(&self, facts: &Value) -> Value {
        let signature = self.key.sign(proof_text(self.node, &self.token).as_bytes());
        json!({
            "node": self.node, "token": self.token, "facts": facts,
            "key": STANDARD.encode(self.key.public_key()), "signature": STANDARD.encode(signature),
        })
    }

    pub(crate) async fn ask(&self, site: &Site) -> Answer {
        let facts = json!({"disks": [{"kernel_name": "nvme0n1", "serial": "A1"}]});
        self.ask_with(site, &facts).await
    }

    pub(crate) async fn ask_with(&self, site: &Site, facts: &Value) -> Answer {
        let path = "/provision/v1/agent/job";
        post(site, path, &self.address, None, &self.request(facts)).await
    }

    /// Asks for the documents with the values of the boot script.
    pub(crate) async fn documents(&self, site: &Site) -> Answer {
        let mut body = self.request(&Value::Null);
        body.as_object_mut().expect("an object").remove("facts");
        post(site, "/provision/v1/agent/documents", &self.address, None, &body).await
    }

    /// The fingerprint of its key as people see it.
    pub(crate) fn fingerprint(&self) -> String {
        let hash =
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.key.public_key().as_ref());
        let digits = hash.as_ref().iter().take(8);
        digits.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    pub(crate) async fn job(&self, site: &Site) -> Session {
        let job = self.ask(site).await.expect(200).json();
        Session { job, address: self.address.clone() }
    }
}

impl Session {
    fn path(&self, what: &str) -> String {
        let run = self.job["run"].as_str().expect("a run");
        format!("/provision/v1/agent/runs/{run}/{what}")
    }

    fn token(&self) -> &str {
        self.job["session"].as_str().expect("a session")
    }

    pub(crate) async fn send(&self, site: &Site, what: &str, body: &Value) -> Answer {
        post(site, &self.path(what), &self.address, Some(self.token()), body).await
    }

    pub(crate) async fn send_as(&self, site: &Site, token: Option<&str>, what: &str) -> Answer {
        post(site, &self.path(what), &self.address, token, &json!({"events": []})).await
    }

    /// Says how far it is; the answer is whether it goes on.
    pub(crate) async fn says(&self, site: &Site, seq: u64, done: u64) -> String {
        let event = json!({
            "seq": seq, "at": "2026-01-02T03:04:05Z", "action": "images", "step": "image root",
            "phase": "progress", "done": done, "total": 4096, "rate": 512,
        });
        let answer = self.send(site, "events", &json!({"events": [event]})).await.expect(200);
        answer.json()["directive"].as_str().expect("a word").to_owned()
    }

    /// Sends a report, and returns the next act of the machine.
    pub(crate) async fn reports(&self, site: &Site, report: &Value) -> String {
        let answer = self.send(site, "report", report).await.expect(200);
        answer.json()["then"].as_str().expect("a word").to_owned()
    }
}

pub(crate) fn done() -> Value {
    json!({"outcome": "done", "plan": "3f9c", "changed": true})
}

pub(crate) fn failed(outcome: &str) -> Value {
    json!({"outcome": outcome, "problems": [{
        "code": "foreign-data", "class": "refused", "action": "disks",
        "message": "an ext file system is on nvme0n1", "hint": "allow it with wipe",
        "evidence": ["uuid 1234"],
    }]})
}

async fn post(
    site: &Site,
    path: &str,
    address: &str,
    bearer: Option<&str>,
    body: &Value,
) -> Answer {
    let url = format!("https://{}{path}", site.controller.tls_addr().expect("TLS"));
    let mut request = client_of(site).post(url).header("x-forwarded-for", address);
    if let Some(bearer) = bearer {
        request = request.bearer_auth(bearer);
    }
    let response = request.json(body).send().await.expect("an answer");
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = response.bytes().await.expect("the whole answer").to_vec();
    Answer { status, headers, body }
}

fn client_of(site: &Site) -> reqwest::Client {
    let pem = site.controller.chassis().ca.root_pem();
    let root = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a root");
    client_trusting([root]).pool_max_idle_per_host(0).build().expect("a client")
}
