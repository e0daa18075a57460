//! A server on port 0 with a few routes that misbehave on request.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response as AxumResponse};
use futures_util::StreamExt;
use hoist_api::Problem;
use hoist_api::admin::{Context, NewToken, Verb};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::clock::Clock;
use hoist_chassis::direct::{Head, ReadyAnswer};
use hoist_chassis::extract::{Json, Path, Query};
use hoist_chassis::file_answer::FilePart;
use hoist_chassis::peer::{GatewayPrefix, Peer};
use hoist_chassis::principal::{Principal, Reach};
use hoist_chassis::route::{AccessClass, Route};
use hoist_chassis::{Limits, RunningServer, Server, ServerBuilder};
use http::{StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use reqwest::{Method, RequestBuilder, Response};
use rustls::client::WantsClientCert;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;

use hoist_testkit::stores::{TestStore, test_store};

pub(crate) struct Site {
    pub(crate) running: RunningServer,
    pub(crate) dir: TempDir,
    pub(crate) store: Arc<TestStore>,
    pub(crate) clock: Arc<Dial>,
    pub(crate) admin: String,
    pub(crate) gates: Arc<Gates>,
    client: reqwest::Client,
}

/// Where a request of `/test/wait` is, and when it may go on.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    pub(crate) entered: Notify,
    pub(crate) open: Notify,
}

/// A clock that we own.
#[derive(Debug)]
pub(crate) struct Dial(Mutex<Timestamp>);

impl Dial {
    pub(crate) fn behind(by: SignedDuration) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Timestamp::now() - by)))
    }

    pub(crate) fn forward(&self, by: SignedDuration) {
        *self.0.lock() += by;
    }
}

impl Clock for Dial {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// Short enough that tests of them do not take long.
pub(crate) fn limits() -> Limits {
    Limits {
        header_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_secs(20),
        grace: Duration::from_secs(5),
        ..Limits::default()
    }
}

pub(crate) fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

impl Site {
    pub(crate) async fn start() -> Self {
        Self::start_with(|builder| builder).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_on(dir, test_store(), change).await
    }

    pub(crate) async fn start_on(
        dir: TempDir,
        store: Arc<TestStore>,
        change: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let clock = Dial::behind(SignedDuration::ZERO);
        let gates = Arc::new(Gates::default());
        let state = Arc::clone(&gates);
        let builder = Server::builder(dir.path(), Arc::clone(&store) as _)
            .clock(Arc::clone(&clock) as _)
            .limits(limits())
            .listen_plain(local())
            .listen_tls(local())
            .routes(test_routes(&state));
        let running = change(builder).start().await.unwrap();
        let admin = std::fs::read_to_string(dir.path().join("admin.token")).unwrap();
        let client = client_trusting(&running);
        Self { running, dir, store, clock, admin: admin.trim().to_owned(), gates, client }
    }

    pub(crate) fn plain(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.plain_addr().unwrap())
    }

    pub(crate) fn tls(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.running.tls_addr().unwrap().port())
    }

    /// Over plain HTTP, without credentials.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.plain(path))
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub(crate) async fn get_as(&self, token: &str, path: &str) -> Response {
        self.request(Method::GET, path).bearer_auth(token).send().await.unwrap()
    }

    pub(crate) async fn get_tls(&self, token: &str, path: &str) -> Response {
        self.client.get(self.tls(path)).bearer_auth(token).send().await.unwrap()
    }

    pub(crate) async fn post_as(&self, token: &str, path: &str, body: &Value) -> Response {
        self.request(Method::POST, path).bearer_auth(token).json(body).send().await.unwrap()
    }

    pub(crate) async fn token(&self, scopes: Value) -> NewToken {
        let body = json!({ "name": "test", "scopes": scopes });
        let response = self.post_as(&self.admin, "/admin/v1/tokens", &body).await;
        assert_eq!(response.status(), 201);
        response.json().await.unwrap()
    }

    /// Stops and makes sure that nothing was cut and nothing panicked behind.
    pub(crate) async fn stop(self) -> (TempDir, Arc<TestStore>) {
        drop(self.client);
        let stopped = self.running.stop().await;
        assert_eq!(stopped.cut, 0);
        assert!(stopped.panicked.is_empty(), "{:?}", stopped.panicked);
        (self.dir, self.store)
    }
}

/// Trusts the site's own root and nothing else.
pub(crate) fn client_trusting(running: &RunningServer) -> reqwest::Client {
    client_with(trusting(running).with_no_client_auth())
}

pub(crate) fn root(running: &RunningServer) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(running.chassis().ca.root_pem().as_bytes()).unwrap()
}

pub(crate) fn trusting(
    running: &RunningServer,
) -> rustls::ConfigBuilder<rustls::ClientConfig, WantsClientCert> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root(running)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
}

pub(crate) fn client_with(tls: rustls::ClientConfig) -> reqwest::Client {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .no_gzip()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

pub(crate) async fn problem(response: Response, status: u16) -> Problem {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Problem = response.json().await.unwrap();
    assert_eq!(problem.status, status);
    assert!(problem.request_id.is_some());
    problem
}

#[derive(Debug, Deserialize)]
struct EchoQuery {
    #[expect(dead_code, reason = "only its parsing is tested")]
    limit: Option<u32>,
}

/// More than the kernel keeps for a client that does not read.
pub(crate) const BIG: usize = 16 * 1024 * 1024;

/// Answers by its query; unknown queries are left to the router.
fn direct_test(head: &Head<'_>) -> Option<ReadyAnswer> {
    match head.query {
        "panic" => panic!("on request"),
        "router" => return None,
        _ => {}
    }
    let body = match head.query {
        "big" => "b".repeat(BIG),
        _ => format!("direct {}", head.prefix.as_str()),
    };
    Some(ReadyAnswer { content_type: "text/plain", body: body.into(), etag: None })
}

/// The content of `/test/files/…`.
pub(crate) fn file_content() -> Vec<u8> {
    let all: Vec<u8> = (0..=250).collect();
    all.repeat(BIG / all.len())
}

/// A file that the kernel may send, without its first byte; the body says the same. `short` promises
/// more than the file has, `huge` is more than any kernel keeps for a client, `missing` has none. The
/// body of `other` differs from the file.
async fn file_answer(Path(name): Path<String>) -> AxumResponse {
    let mut file = tempfile::tempfile().unwrap();
    let mut content = file_content();
    match name.as_str() {
        "missing" => return (StatusCode::NOT_FOUND, "there is none").into_response(),
        "huge" => file.set_len(16 * BIG as u64).unwrap(),
        _ => file.write_all(&content).unwrap(),
    }
    if name == "other" {
        content.fill(b'b');
    }
    let promised = u64::from(name == "short");
    let range = 1..file.metadata().unwrap().len() + promised;
    let length = [(header::CONTENT_LENGTH, (range.end - range.start).to_string())];
    let sent = metrics::counter!("sent_by_tests_total");
    let part = FilePart { file: Arc::new(file), range, sent };
    let body = content.split_off(1);
    let stream = futures_util::stream::iter([Ok::<_, std::io::Error>(body)]);
    (length, Extension(part), Body::from_stream(stream)).into_response()
}

fn test_routes(gates: &Arc<Gates>) -> Vec<Route> {
    let read = AccessClass::Admin { context: Context::Inventory, verb: Verb::Read };
    let write = AccessClass::Admin { context: Context::Inventory, verb: Verb::Write };
    let lockable = AccessClass::Lockable { context: Context::Boot };
    let waiting = Arc::clone(gates);
    let slow = Arc::clone(gates);
    let polled = Arc::clone(gates);
    let routes = vec![
        Route::get("/test/query", AccessClass::Open, async |Query(_): Query<EchoQuery>| "fine")
            .query("limit", "how many")
            .query("selector", "which"),
        Route::post("/test/json", AccessClass::Open, async |Json(value): Json<Value>| Json(value)),
        Route::post("/test/small", AccessClass::Open, async |Json(value): Json<Value>| Json(value))
            .body_limit(16),
        Route::get("/test/panic", AccessClass::Open, async || -> &'static str {
            panic!("on request")
        }),
        Route::get("/test/peer", AccessClass::Open, async |peer: Peer| {
            let certificates = peer.certificates.len();
            Json(json!({ "secure": peer.secure, "certificates": certificates }))
        }),
        Route::get("/test/large", AccessClass::Open, async || "kettle ".repeat(10_000)),
        Route::get("/test/wait", AccessClass::Open, async move || {
            waiting.entered.notify_one();
            waiting.open.notified().await;
            "waited"
        }),
        Route::get("/test/poll", read, async move || {
            polled.entered.notify_one();
            polled.open.notified().await;
            "polled"
        })
        .streaming(),
        Route::get("/test/listing", read, async || {
            let lines = futures_util::stream::iter([Ok::<_, std::io::Error>("a line\n")]);
            Body::from_stream(lines.chain(futures_util::stream::pending()))
        })
        .streaming(),
        Route::get("/test/boot", lockable, async || "script"),
        Route::get("/test/nodes", read, async |principal: Principal| {
            match principal.reach(Verb::Read, Context::Inventory) {
                Reach::All => "all".to_owned(),
                Reach::Some(selectors) => {
                    selectors.iter().map(ToString::to_string).collect::<Vec<_>>().join(";")
                }
                Reach::None => "none".to_owned(),
            }
        })
        .selective(),
        Route::get("/test/site", read, async || "site"),
        Route::post("/test/write", write, async || "written"),
        Route::put("/test/write", write, async |audit: AuditContext| {
            audit.nothing_written();
            "not written"
        }),
        Route::delete("/test/write", write, async || -> &'static str { panic!("on request") }),
        Route::patch("/test/write", write, async move || {
            slow.entered.notify_one();
            slow.open.notified().await;
            "written slowly"
        }),
        Route::get("/test/agent", AccessClass::Agent, async || "agent"),
        Route::get("/boot/v1/test", lockable, async |prefix: GatewayPrefix| {
            format!("routed {}", prefix.as_str())
        })
        .lenient()
        .legacy()
        .direct(direct_test),
        Route::post("/boot/v1/test", AccessClass::Open, async || "posted").legacy(),
        Route::get("/test/files/{name}", lockable, file_answer).streaming().sends_files(),
    ];
    routes.into_iter().map(|route| route.summary("A test").reason("a test")).collect()
}
