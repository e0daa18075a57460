//! A small SMD: the collections that an importer reads, with SMD's shapes, SMD's lack of order,
//! and SMD's bad days on request.

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as RoutePath, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The content of the server, as SMD would send it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmdSet {
    pub components: Vec<Value>,
    pub interfaces: Vec<Value>,
    pub memberships: Vec<Value>,
    pub groups: Vec<Value>,
}

/// How the server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Normal,
    /// Accepts the connection and the request, and never answers.
    Hang,
    /// 500.
    Fail,
    /// Half of the body, then the connection breaks.
    Half,
    /// Half of the body, and the server thinks that was all.
    HalfUnnoticed,
    /// Every list is empty.
    Empty,
    /// 401 unless the request has [`Smd::TOKEN`].
    Locked,
    /// An answer after this time.
    Slow(Duration),
}

/// The collections that a mode applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collection {
    Components,
    Interfaces,
    Memberships,
    Groups,
    Ready,
}

/// The server, on a port of its own.
#[derive(Debug)]
pub struct Smd {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<SmdState>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SmdState {
    set: Mutex<SmdSet>,
    mode: Mutex<(Mode, Option<Collection>)>,
    requests: AtomicUsize,
    gzip_offered: AtomicBool,
}

impl Smd {
    pub const TOKEN: &'static str = "a-token-for-tests-only";

    pub async fn start(set: SmdSet) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_on(listener, "http", set)
    }

    /// Behind TLS, with `server.pem` and `server.key` of [`certificates::write`].
    ///
    /// [`certificates::write`]: crate::certificates::write
    pub async fn start_tls(set: SmdSet, certificates: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let acceptor = TlsAcceptor::from(Arc::new(tls_config(certificates)));
        Self::start_on(TlsListener { listener, acceptor }, "https", set)
    }

    fn start_on<L>(listener: L, scheme: &'static str, set: SmdSet) -> Self
    where
        L: Listener<Addr = SocketAddr>,
    {
        let shared = Arc::new(SmdState { set: Mutex::new(set), ..SmdState::default() });
        let routes =
            Router::new().route("/hsm/v2/{*route}", get(answer)).with_state(Arc::clone(&shared));
        let address = listener.local_addr().expect("a bound socket has an address");
        let task = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("the server runs until it is stopped");
        });
        Self { address, scheme, shared, task }
    }

    /// As `--inventory` takes it.
    pub fn url(&self) -> String {
        format!("smd+{}://{}", self.scheme, self.address)
    }

    pub fn set_mode(&self, mode: Mode) {
        *self.shared.mode.lock() = (mode, None);
    }

    /// The others stay normal.
    pub fn set_mode_of(&self, collection: Collection, mode: Mode) {
        *self.shared.mode.lock() = (mode, Some(collection));
    }

    pub fn edit<T>(&self, change: impl FnOnce(&mut SmdSet) -> T) -> T {
        change(&mut self.shared.set.lock())
    }

    /// How many there were so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub fn gzip_was_offered(&self) -> bool {
        self.shared.gzip_offered.load(Ordering::SeqCst)
    }

    /// Stops listening; the port refuses connections afterwards.
    pub async fn stop(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "the SMD server failed");
    }
}

/// Accepts connections that speak TLS, and drops the others.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn tls_config(certificates: &Path) -> rustls::ServerConfig {
    let certificate = CertificateDer::from_pem_file(certificates.join("server.pem"));
    let key = PrivateKeyDer::from_pem_file(certificates.join("server.key"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.expect("a certificate")], key.expect("a key"))
        .expect("the key of the certificate")
}

async fn answer(
    State(shared): State<Arc<SmdState>>,
    RoutePath(route): RoutePath<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let request = shared.requests.fetch_add(1, Ordering::SeqCst);
    let offers = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    if offers.is_some_and(|offers| offers.contains("gzip")) {
        shared.gzip_offered.store(true, Ordering::SeqCst);
    }
    let collection = match route.as_str() {
        "service/ready" => Collection::Ready,
        "State/Components" => Collection::Components,
        "Inventory/EthernetInterfaces" => Collection::Interfaces,
        "memberships" => Collection::Memberships,
        "groups" => Collection::Groups,
        _ => return problem(StatusCode::NOT_FOUND, "no such resource"),
    };
    let (mode, only) = *shared.mode.lock();
    let mode = if only.is_none_or(|only| only == collection) { mode } else { Mode::Normal };
    match mode {
        Mode::Hang => pending().await,
        Mode::Fail => return problem(StatusCode::INTERNAL_SERVER_ERROR, "query failed"),
        Mode::Locked if !has_token(&headers) => {
            return problem(StatusCode::UNAUTHORIZED, "no token found");
        }
        Mode::Slow(pause) => tokio::time::sleep(pause).await,
        _ => {}
    }
    let body = body(&shared, collection, query.as_deref(), mode == Mode::Empty, request);
    let half = &body[..body.len() / 2];
    let body = match mode {
        Mode::HalfUnnoticed => Body::from(half.to_owned()),
        Mode::Half => {
            let sent = Bytes::from(half.to_owned());
            // Broken at once, the connection would close before anything was sent.
            let broken = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("the connection broke"))
            };
            Body::from_stream(stream::iter([Ok(sent)]).chain(stream::once(broken)))
        }
        _ => Body::from(body),
    };
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn has_token(headers: &HeaderMap) -> bool {
    let wanted = format!("Bearer {}", Smd::TOKEN);
    headers.get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes() == wanted.as_bytes())
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({
        "type": "about:blank", "title": status.canonical_reason(), "detail": detail,
        "status": status.as_u16(),
    });
    let body = body.to_string();
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
}

fn body(
    shared: &SmdState,
    collection: Collection,
    query: Option<&str>,
    empty: bool,
    request: usize,
) -> String {
    let set = shared.set.lock();
    let mut list = match collection {
        Collection::Ready => {
            return json!({"code": 0, "message": "HSM is healthy"}).to_string();
        }
        Collection::Components => of_types(&set.components, query),
        Collection::Interfaces => set.interfaces.clone(),
        Collection::Memberships => set.memberships.clone(),
        Collection::Groups => set.groups.clone(),
    };
    drop(set);
    if empty {
        list.clear();
    }
    shuffle(&mut list, request);
    match collection {
        Collection::Components => json!({ "Components": list }).to_string(),
        _ => Value::Array(list).to_string(),
    }
}

fn of_types(components: &[Value], query: Option<&str>) -> Vec<Value> {
    let wanted: Vec<_> = query
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.strip_prefix("type="))
        .collect();
    let fits = |component: &&Value| {
        let word = component["Type"].as_str().unwrap_or_default();
        wanted.is_empty() || wanted.contains(&word)
    };
    components.iter().filter(fits).cloned().collect()
}

/// Another order for every request, the same in every run.
fn shuffle(list: &mut [Value], request: usize) {
    let mut random = Random(request as u64 + 1);
    for i in (1..list.len()).rev() {
        list.swap(i, random.below(i + 1));
    }
}

/// Xorshift: enough to shuffle, nothing to depend on.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut bits = self.0;
        bits ^= bits >> 29;
        bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^= bits >> 32;
        usize::try_from(bits % limit as u64).expect("it is below a usize")
    }
}

impl SmdSet {
    /// `count` nodes with two interfaces each, in two partitions and four groups. The same for
    /// every call.
    pub fn synthetic(count: u32) -> Self {
        let mut set = Self::default();
        for n in 0..count {
            set.add(n);
        }
        for (label, exclusive) in
            [("compute", "kind"), ("login", "kind"), ("rack-a", ""), ("rack-b", "")]
        {
            let mut group = json!({
                "label": label, "description": format!("{label} nodes"), "members": {"ids": []},
            });
            if !exclusive.is_empty() {
                group["exclusiveGroup"] = exclusive.into();
            }
            set.groups.push(group);
        }
        set
    }

    /// The `n`th synthetic node, from 0.
    pub fn add(&mut self, n: u32) {
        let xname = Self::xname(n);
        self.components.push(json!({
            "ID": xname, "Type": "Node", "State": "Ready", "Flag": "OK", "Enabled": true,
            "Role": "Compute", "NID": n + 1, "NetType": "Ethernet", "Arch": "X86",
            "Class": "River",
        }));
        for (nic, network) in [(0, "NMN"), (1, "HSN")] {
            let mac = Self::mac(n, nic);
            let [_, a, b, c] = n.to_be_bytes();
            self.interfaces.push(json!({
                "ID": mac.replace(':', ""), "Description": "Ethernet Interface",
                "MACAddress": mac, "LastUpdate": "2026-01-01T00:00:00Z", "ComponentID": xname,
                "Type": "Node",
                "IPAddresses": [{
                    "IPAddress": format!("{}.{a}.{b}.{c}", 10 + nic), "Network": network,
                }],
            }));
        }
        let groups = [
            if n.is_multiple_of(16) { "login" } else { "compute" },
            if n.is_multiple_of(2) { "rack-a" } else { "rack-b" },
        ];
        let partition = if n % 8 < 4 { "p1" } else { "" };
        self.memberships
            .push(json!({"id": xname, "groupLabels": groups, "partitionName": partition}));
    }

    /// Takes the `n`th synthetic node away, with all that belongs to it.
    pub fn remove(&mut self, n: u32) {
        let xname = Self::xname(n);
        self.components.retain(|component| component["ID"] != xname.as_str());
        self.interfaces.retain(|interface| interface["ComponentID"] != xname.as_str());
        self.memberships.retain(|membership| membership["id"] != xname.as_str());
    }

    /// The component of the `n`th synthetic node.
    pub fn component(&mut self, n: u32) -> &mut Value {
        let xname = Self::xname(n);
        self.components
            .iter_mut()
            .find(|component| component["ID"] == xname.as_str())
            .expect("the node is there")
    }

    /// Four nodes to a slot, 64 slots to a chassis, 8 chassis to a cabinet.
    pub fn xname(n: u32) -> String {
        let slot = n / 4;
        let node = n % 4;
        let chassis = slot / 64;
        let slot = slot % 64;
        let cabinet = chassis / 8;
        let chassis = chassis % 8;
        format!("x{}c{chassis}s{slot}b0n{node}", 1000 + cabinet)
    }

    pub fn mac(n: u32, nic: u8) -> String {
        let rest = n.to_be_bytes().map(|octet| format!("{octet:02x}")).join(":");
        format!("02:{nic:02x}:{rest}")
    }

    /// The four bodies as SMD would send them: components, interfaces, memberships, groups.
    pub fn bodies(&self) -> [String; 4] {
        [
            json!({ "Components": self.components }).to_string(),
            Value::from(self.interfaces.clone()).to_string(),
            Value::from(self.memberships.clone()).to_string(),
            Value::from(self.groups.clone()).to_string(),
        ]
    }
}
