//! A controller for tests: a plain TLS server with the calls of a joining node and a member.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::cluster::{
    ConfirmRequest, Hello, JoinAnswer, JoinBundle, JoinRequest, JoinWithdrawal, MemberOrders,
    MemberReport, PROTOCOL, RenewRequest, RenewedCertificate,
};
use hoist_api::{Code, Problem};
use hoist_cluster::id::{ClusterId, NodeId, Pin};
use hoist_cluster::join_token::{Binding, JoinSecret, JoinToken, Pins, TokenId, TokenKey};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;

/// The controller's answer to requests to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Accept,
    Wait,
    Refuse,
}

pub(crate) struct Behaviour {
    pub(crate) policy: Policy,
    pub(crate) uid: ClusterId,
    /// How far the clock of the controller is ahead.
    pub(crate) clock_ahead: SignedDuration,
    /// Answers to requests that are lost after they took effect, for each path.
    pub(crate) lost: BTreeMap<&'static str, usize>,
    pub(crate) plan_generation: u64,
    /// The refusal of confirmations, reports and requests for work.
    pub(crate) refusal: Option<Code>,
    /// The life of certificates from now on; negative for one that ends now.
    pub(crate) certificate_life: SignedDuration,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownNode {
    pub(crate) requests: BTreeSet<String>,
    pub(crate) bundle: Option<JoinBundle>,
    pub(crate) is_confirmed: bool,
    pub(crate) renewals: usize,
}

pub(crate) struct Controller {
    pub(crate) authority: String,
    pub(crate) pin: Pin,
    pub(crate) behaviour: Mutex<Behaviour>,
    pub(crate) nodes: Mutex<BTreeMap<String, KnownNode>>,
    pub(crate) reports: Mutex<Vec<MemberReport>>,
    /// Reports that were refused by [`Behaviour::refusal`].
    pub(crate) refused: AtomicUsize,
    /// Decrypted bytes that clients sent.
    pub(crate) received: AtomicUsize,
    secret: JoinSecret,
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
    is_stopped: AtomicBool,
}

/// The public key of a certificate request.
struct RequestedKey(Vec<u8>);

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A key info of P-256 has 91 bytes, of which the last 65 are the key.
const KEY_INFO_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

impl RequestedKey {
    fn of(request: &[u8]) -> Self {
        let length = KEY_INFO_HEAD.len();
        let at = request.windows(length).position(|part| part == KEY_INFO_HEAD).unwrap();
        Self(request[at + length..at + length + 65].to_vec())
    }
}

fn root() -> (KeyPair, CertificateParams) {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "test root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    (KeyPair::generate().unwrap(), params)
}

impl Controller {
    pub(crate) fn start() -> Arc<Self> {
        let (key, params) = root();
        let pin = Pin::of_key(&key.subject_public_key_info());
        let certificate = params.self_signed(&key).unwrap();
        let root_pem = certificate.pem();
        let root_der = certificate.der().clone();
        let issuer = Issuer::new(params, key);
        let config = server_config(&issuer, &root_der);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let controller = Arc::new(Self {
            authority: listener.local_addr().unwrap().to_string(),
            pin,
            behaviour: Mutex::new(Behaviour {
                policy: Policy::Accept,
                uid: ClusterId::from_random([7; 16]),
                clock_ahead: SignedDuration::ZERO,
                lost: BTreeMap::new(),
                plan_generation: 1,
                refusal: None,
                certificate_life: SignedDuration::from_hours(90 * 24),
            }),
            nodes: Mutex::default(),
            reports: Mutex::default(),
            refused: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
            secret: JoinSecret::from_random([9; 20]),
            issuer,
            root_pem,
            is_stopped: AtomicBool::new(false),
        });
        let shared = Arc::clone(&controller);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
                let Ok(stream) = stream else { continue };
                if shared.is_stopped.load(Ordering::Relaxed) {
                    continue;
                }
                std::thread::spawn(move || shared.serve(stream, config));
            }
        });
        controller
    }

    /// From now on no connection is answered.
    pub(crate) fn stop(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> JoinToken {
        JoinToken {
            cluster: ClusterId::from_random([7; 16]).short(),
            pins: Pins { current: self.pin, next: None },
            id: TokenId::from_random([3; 8]),
            secret: self.secret.clone(),
        }
    }

    /// Nodes that were accepted and not withdrawn.
    pub(crate) fn accepted(&self) -> usize {
        self.nodes.lock().values().filter(|node| node.bundle.is_some()).count()
    }

    pub(crate) fn confirmed(&self) -> usize {
        self.nodes.lock().values().filter(|node| node.is_confirmed).count()
    }

    fn serve(&self, stream: TcpStream, config: Arc<ServerConfig>) {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let connection = ServerConnection::new(config).unwrap();
        let mut tls = StreamOwned::new(connection, stream);
        // Both end when the client closes the connection or does not trust it.
        while let Ok(Some((method, path, body))) = self.read(&mut tls) {
            let Some((status, answer)) = self.answer(&tls, &method, &path, &body) else { return };
            let text = serde_json::to_vec(&answer).unwrap();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", text.len());
            if tls.write_all(head.as_bytes()).and_then(|()| tls.write_all(&text)).is_err() {
                return;
            }
        }
    }

    fn read(
        &self,
        tls: &mut StreamOwned<ServerConnection, TcpStream>,
    ) -> io::Result<Option<(String, String, Vec<u8>)>> {
        let mut bytes = Vec::new();
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            if let Ok(httparse::Status::Complete(head)) = request.parse(&bytes) {
                let length = request
                    .headers
                    .iter()
                    .find(|header| header.name == "content-length")
                    .map_or(0, |header| {
                        std::str::from_utf8(header.value).unwrap().parse().unwrap()
                    });
                if bytes.len() >= head + length {
                    let method = request.method.unwrap().to_owned();
                    let path = request.path.unwrap().to_owned();
                    return Ok(Some((method, path, bytes[head..head + length].to_vec())));
                }
            }
            let mut block = [0; 4096];
            match tls.read(&mut block)? {
                0 => return Ok(None),
                read => {
                    self.received.fetch_add(read, Ordering::Relaxed);
                    bytes.extend_from_slice(&block[..read]);
                }
            }
        }
    }

    fn hello(&self) -> Hello {
        let behaviour = self.behaviour.lock();
        Hello {
            name: "lab".parse().unwrap(),
            uid: behaviour.uid.to_string(),
            protocol: PROTOCOL,
            now: Timestamp::now() + behaviour.clock_ahead,
        }
    }

    /// Status and body; `None` if the answer is lost.
    fn answer(
        &self,
        tls: &StreamOwned<ServerConnection, TcpStream>,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Option<(u16, serde_json::Value)> {
        let is_member = tls.conn.peer_certificates().is_some();
        let refused = self.behaviour.lock().refusal.clone();
        let answer = match (method, path) {
            ("POST", "/cluster/v1/confirm" | "/agent/v1/report" | "/agent/v1/nodes/n1/work")
                if refused.is_some() =>
            {
                if path == "/agent/v1/report" {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
                let problem = Problem::new(refused.unwrap(), "the member is refused");
                (problem.status, json!(problem))
            }
            ("GET", "/cluster/v1/hello") => (200, json!(self.hello())),
            ("POST", "/cluster/v1/join") => self.join(tls, &serde_json::from_slice(body).unwrap()),
            ("POST", "/cluster/v1/confirm") if is_member => {
                let request: ConfirmRequest = serde_json::from_slice(body).unwrap();
                let mut nodes = self.nodes.lock();
                let node = nodes.values_mut().find(|node| node.requests.contains(&request.request));
                match node {
                    Some(node) => {
                        node.is_confirmed = true;
                        (204, serde_json::Value::Null)
                    }
                    None => refusal("the node is not known"),
                }
            }
            ("POST", "/cluster/v1/join/withdraw") => {
                let withdrawal: JoinWithdrawal = serde_json::from_slice(body).unwrap();
                self.nodes.lock().retain(|_, node| !node.requests.contains(&withdrawal.request));
                (204, serde_json::Value::Null)
            }
            ("POST", "/cluster/v1/withdraw") if is_member => {
                let request: ConfirmRequest = serde_json::from_slice(body).unwrap();
                self.nodes.lock().retain(|_, node| !node.requests.contains(&request.request));
                (204, serde_json::Value::Null)
            }
            ("POST", "/cluster/v1/renew") if is_member => {
                let request: RenewRequest = serde_json::from_slice(body).unwrap();
                for node in self.nodes.lock().values_mut() {
                    node.renewals += 1;
                }
                let (certificate, certificate_ends) = self.issue(&request.certificate_request);
                (200, json!(RenewedCertificate { certificate, certificate_ends }))
            }
            ("POST", "/agent/v1/report") if is_member => {
                self.reports.lock().push(serde_json::from_slice(body).unwrap());
                (200, json!(self.orders()))
            }
            _ => refusal("no such route"),
        };
        let mut behaviour = self.behaviour.lock();
        match behaviour.lost.get_mut(path) {
            Some(left) if *left > 0 => {
                *left -= 1;
                None
            }
            _ => Some(answer),
        }
    }

    fn orders(&self) -> MemberOrders {
        MemberOrders {
            cluster: self.hello(),
            plan_generation: self.behaviour.lock().plan_generation,
            role: Some("edge".to_owned()),
            scale: "small".to_owned(),
            members: 2,
            report_after_seconds: 1,
            draining: false,
        }
    }

    fn join(
        &self,
        tls: &StreamOwned<ServerConnection, TcpStream>,
        request: &JoinRequest,
    ) -> (u16, serde_json::Value) {
        let policy = self.behaviour.lock().policy;
        if policy == Policy::Refuse {
            return refusal("the token has expired");
        }
        let der = STANDARD.decode(&request.certificate_request).unwrap();
        let node: NodeId = request.node.parse().unwrap();
        if let Some(token) = &request.token {
            let mut exporter = [0; 32];
            exporter =
                tls.conn.export_keying_material(exporter, b"EXPORTER-hoist-join-1", None).unwrap();
            let binding = Binding { exporter: &exporter, request: &der, node: &node };
            let proof = token.proof.parse().unwrap();
            if !TokenKey::of(&self.secret).verify(&binding, &proof) {
                return refusal("the proof is not valid");
            }
        }
        let hello = self.hello();
        let mut nodes = self.nodes.lock();
        let order = nodes.values().filter(|node| node.bundle.is_some()).count() as u64 + 1;
        let known = nodes.entry(request.node.clone()).or_insert_with(|| KnownNode {
            requests: BTreeSet::new(),
            bundle: None,
            is_confirmed: false,
            renewals: 0,
        });
        known.requests.insert(request.request.clone());
        if policy == Policy::Wait {
            let fingerprint = "red blue green".to_owned();
            return (202, json!(JoinAnswer::Pending { fingerprint, retry_after_seconds: 0 }));
        }
        let bundle = known.bundle.get_or_insert_with(|| {
            let (certificate, certificate_ends) = self.issue(&request.certificate_request);
            JoinBundle {
                cluster: hello,
                id: request.node.clone(),
                node: "n1".parse().unwrap(),
                join_order: order,
                certificate,
                authorities: self.root_pem.clone(),
                controllers: vec![format!("https://{}", self.authority)],
                certificate_ends,
            }
        });
        (200, json!(JoinAnswer::Accepted(Box::new(bundle.clone()))))
    }

    fn issue(&self, request: &str) -> (String, Timestamp) {
        let der = STANDARD.decode(request).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&RequestedKey::of(&der), &self.issuer).unwrap();
        let life = self.behaviour.lock().certificate_life;
        (certificate.pem(), Timestamp::now() + life)
    }
}

fn refusal(detail: &str) -> (u16, serde_json::Value) {
    let problem =
        Problem::new(Code::Forbidden, detail.to_owned()).with_remedy("ask for another one");
    (403, json!(problem))
}

fn server_config(
    issuer: &Issuer<'static, KeyPair>,
    root: &CertificateDer<'static>,
) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["elsewhere.example".to_owned()]).unwrap();
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![leaf.der().clone(), root.clone()], key)
        .unwrap();
    Arc::new(config)
}
