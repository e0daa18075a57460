//! A whole controller on port 0, with the store and the data directory of its own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use hoist_api::Problem;
use hoist_api::admin::{AuditEntry, AuditPage};
use hoist_server::controller::{Config, Controller, ControllerError};
use hoist_store::{Prefix, Store};
use hoist_testkit::eventually_async;
use http::{HeaderMap, Method};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NDJSON: &str = "application/x-ndjson";
pub(crate) const NODES: &str = "/inventory/v1/nodes";
pub(crate) const APPLY: &str = "/inventory/v1/apply";

pub(crate) struct Site {
    pub(crate) controller: Controller,
    pub(crate) admin: String,
    config: Config,
    dir: TempDir,
    client: reqwest::Client,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// One request, by an admin unless it says otherwise.
pub(crate) struct Ask<'s> {
    site: &'s Site,
    request: reqwest::RequestBuilder,
}

/// A client without TLS. The process must have no default crypto provider, so that the controller
/// under test has to name its own.
pub(crate) fn plain_client() -> reqwest::ClientBuilder {
    client_trusting([])
}

/// A client that trusts these authorities and no others.
pub(crate) fn client_trusting(
    roots: impl IntoIterator<Item = CertificateDer<'static>>,
) -> reqwest::ClientBuilder {
    let tls = hoist_chassis::ca::client_tls(roots).expect("valid roots");
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy()
}

impl Site {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::new(dir.path());
        config.listen = Some((Ipv4Addr::LOCALHOST, 0).into());
        config.limits.grace = Duration::from_secs(5);
        change(&mut config);
        Self::start_on(dir, config).await.expect("the controller starts")
    }

    /// Another controller, which has this one's key.
    pub(crate) async fn start_beside(&self, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        share_key(self.data_dir(), dir.path());
        let mut config = Config { listen: self.config.listen, ..Config::new(dir.path()) };
        config.store.clone_from(&self.config.store);
        config.limits.grace = self.config.limits.grace;
        change(&mut config);
        Self::start_on(dir, config).await.expect("the other controller starts")
    }

    pub(crate) async fn start_on(dir: TempDir, config: Config) -> Result<Self, ControllerError> {
        let controller = Box::pin(Controller::start(config.clone())).await?;
        let token = fs_err::read_to_string(dir.path().join("admin.token")).expect("an admin token");
        let client = plain_client().no_gzip().pool_max_idle_per_host(0).build().expect("a client");
        let admin = token.trim().to_owned();
        Ok(Self { controller, admin, config, dir, client })
    }

    pub(crate) fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let addr = self.controller.plain_addr().expect("it listens");
        format!("http://{addr}{path}")
    }

    /// The events of a kind after `since`, once there are so many.
    pub(crate) async fn events(&self, kind: &str, since: &str, count: usize) -> Vec<Value> {
        let path = format!("/events/v1?kind={kind}&since={since}");
        let mut stream = self.ask("GET", &path).open().await;
        let mut text = String::new();
        loop {
            let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            let told: Vec<Value> =
                data.filter_map(|data| serde_json::from_str(data).ok()).collect();
            if told.len() >= count {
                return told;
            }
            let more = stream.chunk().await.expect("the stream goes on").expect("it has no end");
            text.push_str(std::str::from_utf8(&more).expect("text"));
        }
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> Ask<'_> {
        let request = self.ask_as(&self.admin, method, path).request;
        Ask { site: self, request }
    }

    pub(crate) fn ask_as(&self, token: &str, method: &str, path: &str) -> Ask<'_> {
        let request = self.ask_as_nobody(method, path).request.bearer_auth(token);
        Ask { site: self, request }
    }

    pub(crate) fn ask_as_nobody(&self, method: &str, path: &str) -> Ask<'_> {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        Ask { site: self, request: self.client.request(method, self.url(path)) }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).send().await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.ask("PUT", path).json(body).send().await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path).json(body).send().await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path).send().await
    }

    /// Creates a node and gives it back as the server shows it.
    pub(crate) async fn add(&self, node: &Value) -> Value {
        self.post(NODES, node).await.expect(201).json()
    }

    /// Applies documents and gives back the report.
    pub(crate) async fn apply(&self, documents: &[Value]) -> Value {
        self.try_apply("", documents).await.expect(200).json()
    }

    pub(crate) async fn try_apply(&self, query: &str, documents: &[Value]) -> Answer {
        let ask = self.ask("POST", &format!("{APPLY}{query}")).header("content-type", NDJSON);
        ask.body(lines(documents)).send().await
    }

    pub(crate) async fn token(&self, scopes: Value) -> String {
        let body = json!({"name": "test", "scopes": scopes});
        let made = self.post("/admin/v1/tokens", &body).await.expect(201).json();
        made["secret"].as_str().expect("a secret").to_owned()
    }

    /// May read and write the inventory, but only these nodes.
    pub(crate) async fn limited_token(&self, selector: &str) -> String {
        let scope = json!(
            [{"verbs": ["read", "write"], "contexts": ["inventory"], "selector": selector}]
        );
        self.token(scope).await
    }

    /// The site revision.
    pub(crate) fn revision(&self) -> u64 {
        self.controller.registry().roster().revision()
    }

    /// Every record of the store with the revision of its last write, without background records:
    /// events are stored behind the answers, leases come and go, controllers send signs of life.
    pub(crate) async fn records(&self) -> BTreeMap<String, u64> {
        let store = self.controller.registry().store();
        let mut records = BTreeMap::new();
        let mut from = None;
        loop {
            let page = store.list(&Prefix::All, from, 5000).await.expect("the store answers");
            let stored = page.records.iter().map(|r| (r.key.to_string(), r.revision.0));
            records.extend(stored.filter(|(key, _)| !is_background(key)));
            from = page.next;
            if from.is_none() {
                return records;
            }
        }
    }

    pub(crate) async fn audit(&self) -> Vec<AuditEntry> {
        let page = self.get("/admin/v1/audit?limit=1000&verify=1").await.expect(200);
        let page: AuditPage = serde_json::from_slice(&page.body).expect("a page of the audit log");
        let chain = page.verification.expect("it was asked for");
        assert!(chain.intact, "{chain:?}");
        page.entries
    }

    /// Everything that is declared, as documents.
    pub(crate) async fn export(&self) -> Vec<Value> {
        self.get("/inventory/v1/export").await.expect(200).lines()
    }

    /// Asks until the answer fits, and fails with the last one.
    pub(crate) async fn eventually(&self, path: &str, fits: impl Fn(&Answer) -> bool) -> Answer {
        eventually_async(path, async || {
            let answer = self.get(path).await;
            if fits(&answer) { Ok(answer) } else { Err(answer) }
        })
        .await
    }

    /// Waits until this gauge without labels has the value. All controllers of the process set it.
    pub(crate) async fn measures(&self, gauge: &str, value: &str) {
        let line = format!("{gauge} {value}");
        let has = |answer: &Answer| answer.text().lines().any(|at| at == line);
        self.eventually("/metrics", has).await;
    }

    /// Stops and makes sure that nothing was cut and nothing panicked behind.
    pub(crate) async fn stop(self) -> (TempDir, Config) {
        drop(self.client);
        let stopped = self.controller.stop().await;
        assert_eq!(stopped.cut, 0, "connections were cut");
        assert!(stopped.panicked.is_empty(), "{:?}", stopped.panicked);
        (self.dir, self.config)
    }

    /// Stops, and starts again on the same data.
    pub(crate) async fn restart(self) -> Self {
        let (dir, config) = Box::pin(self.stop()).await;
        Self::start_again(dir, config).await
    }

    pub(crate) async fn start_again(dir: TempDir, config: Config) -> Self {
        Self::start_on(dir, config).await.expect("the controller starts again")
    }
}

/// Gives a second controller the key of the site, as an operator does.
pub(crate) fn share_key(from: &Path, to: &Path) {
    drop(hoist_server::data_dir::DataDir::open(to).expect("a data directory"));
    fs_err::create_dir_all(to.join("ca")).expect("a directory");
    fs_err::copy(from.join("ca/site.key"), to.join("ca/site.key")).expect("the site's key");
}

fn is_background(key: &str) -> bool {
    ["controller", "event", "lease"].iter().any(|word| key.split('/').next() == Some(word))
}

impl Ask<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.request = self.request.json(body);
        self
    }

    pub(crate) fn body(mut self, body: impl Into<reqwest::Body>) -> Self {
        self.request = self.request.body(body);
        self
    }

    pub(crate) async fn send(self) -> Answer {
        let response = self.open().await;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response.bytes().await.expect("the whole answer").to_vec();
        Answer { status, headers, body }
    }

    /// Sends it, and leaves the body to the caller.
    pub(crate) async fn open(self) -> reqwest::Response {
        self.try_open().await.expect("an answer")
    }

    /// The same, of a server that may cut the connection.
    pub(crate) async fn try_open(self) -> reqwest::Result<reqwest::Response> {
        let _ = self.site;
        self.request.send().await
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}: {}", self.status, self.text()))
    }

    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).expect("a line of JSON");
        self.text().lines().map(parse).collect()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no `{name}` in {self:?}"));
        value.to_str().expect("plain characters")
    }

    pub(crate) fn tag(&self) -> String {
        self.header("etag").to_owned()
    }

    /// A problem of this status and code, in the one shape all of them have.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Problem {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: Problem = serde_json::from_slice(&self.body).expect("a problem");
        assert_eq!(problem.code.as_str(), code, "{}", self.text());
        assert_eq!(problem.status, status);
        assert!(problem.request_id.is_some());
        problem
    }
}

pub(crate) fn mac(n: u32) -> String {
    let rest = n.to_be_bytes().map(|octet| format!("{octet:02x}"));
    format!("02:00:{}", rest.join(":"))
}

pub(crate) fn ip(n: u32) -> String {
    let [_, b, c, d] = n.to_be_bytes();
    format!("10.{b}.{c}.{d}")
}

/// The `n`th node of a made-up site, as an object.
pub(crate) fn node(n: u32) -> Value {
    let mut node = spec(n);
    node["name"] = format!("n{n}").into();
    node
}

/// The same without its name.
pub(crate) fn spec(n: u32) -> Value {
    json!({
        "nid": n,
        "interfaces": [
            {"name": "eth0", "mac": mac(n), "addresses": [format!("{}/8", ip(n))]},
        ],
    })
}

pub(crate) fn document(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"api": "hoist/v1", "kind": kind, "name": name, "spec": spec})
}

/// The `n`th node as a document.
pub(crate) fn node_document(n: u32) -> Value {
    document("Node", &format!("n{n}"), &spec(n))
}

pub(crate) fn lines(documents: &[Value]) -> String {
    let lines: Vec<_> = documents.iter().map(ToString::to_string).collect();
    lines.join("\n") + "\n"
}

/// The names of listed nodes.
pub(crate) fn names(listing: &Value) -> Vec<String> {
    let items = listing["items"].as_array().expect("a listing");
    items.iter().map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(crate) fn id(node: &Value) -> &str {
    node["id"].as_str().expect("a node has an id")
}

/// With some members replaced.
pub(crate) fn with(mut object: Value, members: &Value) -> Value {
    let members = members.as_object().expect("an object").clone();
    object.as_object_mut().expect("an object").extend(members);
    object
}
