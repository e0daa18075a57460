//! A machine that joins: its key, its connections, and its requests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::cluster::PROTOCOL;
use hoist_chassis::peer::{CHANNEL_BINDING_BYTES, CHANNEL_BINDING_LABEL};
use hoist_cluster::id::NodeId;
use hoist_cluster::join_token::{Binding, JoinToken, TokenKey};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::site::{Answer, Site};

/// A client whose certificate is not decided yet.
type WithoutIdentity = ConfigBuilder<ClientConfig, WantsClientCert>;

/// A TLS connection to a controller.
pub(super) struct Session {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    pub(super) exporter: [u8; CHANNEL_BINDING_BYTES],
}

impl Session {
    pub(super) async fn open(site: &Site) -> Self {
        Self::connect(site, WithoutIdentity::with_no_client_auth).await
    }

    async fn connect(site: &Site, identity: impl FnOnce(WithoutIdentity) -> ClientConfig) -> Self {
        let root = site.controller.chassis().ca.root_pem().to_owned();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(root.as_bytes()).expect("a root"))
            .expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = identity(builder);
        let addr = site.controller.tls_addr().expect("it listens with TLS");
        let stream = TcpStream::connect(addr).await.expect("a connection");
        let name = ServerName::IpAddress(addr.ip().into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let stream = stream.expect("the handshake succeeds");
        let exporter = stream
            .get_ref()
            .1
            .export_keying_material([0; CHANNEL_BINDING_BYTES], CHANNEL_BINDING_LABEL, None)
            .expect("keying material");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Self { sender, host: addr.to_string(), exporter }
    }

    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let text = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(text)))
            .expect("a request");
        let response = self.sender.send_request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the whole answer").to_bytes().to_vec();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(body)).await
    }
}

/// A machine before it is a member.
pub(super) struct Machine {
    key: KeyPair,
    certificate_request: Vec<u8>,
    pub(super) id: NodeId,
    pub(super) hostname: String,
}

impl Machine {
    pub(super) fn new(hostname: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate_request = certificate_request(&key);
        let id = NodeId::of_key(&key.subject_public_key_info());
        Self { key, certificate_request, id, hostname: hostname.to_owned() }
    }

    /// Everything but the token.
    pub(super) async fn body(&self, site: &Site) -> Value {
        let hello = site.get("/cluster/v1/hello").await.expect(200).json();
        json!({
            "protocol": PROTOCOL,
            "request": "00112233445566778899aabbccddeeff",
            "cluster": hello["uid"],
            "node": self.id,
            "certificate_request": STANDARD.encode(&self.certificate_request),
            "facts": {
                "hostname": self.hostname,
                "version": "0.1.0",
                "architecture": "x86_64",
                "resources": {"cores": 8, "memory_gib": 32, "disk_gib": 1000},
                "now": Timestamp::now(),
            },
        })
    }

    pub(super) fn proof(&self, token: &str, session: &Session) -> Value {
        let token: JoinToken = token.parse().expect("a token");
        let binding = Binding {
            exporter: &session.exporter,
            request: &self.certificate_request,
            node: &self.id,
        };
        let proof = TokenKey::of(&token.secret).proof(&binding);
        json!({"id": token.id, "proof": proof})
    }

    pub(super) async fn join(&self, site: &Site, token: Option<&str>) -> Answer {
        self.join_with(site, token, |_| {}).await
    }

    /// Joins with a changed request.
    pub(super) async fn join_with(
        &self,
        site: &Site,
        token: Option<&str>,
        change: impl FnOnce(&mut Value),
    ) -> Answer {
        let mut session = Session::open(site).await;
        let mut body = self.body(site).await;
        if let Some(token) = token {
            body["token"] = self.proof(token, &session);
        }
        change(&mut body);
        session.post("/cluster/v1/join", &body).await
    }

    /// Gives up its request to join.
    pub(super) async fn withdraw(&self, site: &Site) -> Answer {
        self.withdraw_with(site, |_| {}).await
    }

    pub(super) async fn withdraw_with(
        &self,
        site: &Site,
        change: impl FnOnce(&mut Value),
    ) -> Answer {
        let joining = self.body(site).await;
        let field = |name: &str| joining[name].clone();
        let mut body = json!({
            "request": field("request"),
            "cluster": field("cluster"),
            "node": field("node"),
            "certificate_request": field("certificate_request"),
        });
        change(&mut body);
        Session::open(site).await.post("/cluster/v1/join/withdraw", &body).await
    }

    /// Joins, and is accepted.
    pub(super) async fn member(self, site: &Site, token: &str) -> Member {
        let bundle = self.join(site, Some(token)).await.expect(200).json();
        self.with(&bundle)
    }

    pub(super) fn with(self, bundle: &Value) -> Member {
        assert_eq!(bundle["result"], "accepted", "{bundle:#}");
        let chain = bundle["certificate"].as_str().expect("a chain").to_owned();
        Member { machine: self, chain, session: "first".to_owned() }
    }
}

/// A machine with a certificate.
pub(super) struct Member {
    pub(super) machine: Machine,
    pub(super) chain: String,
    session: String,
}

impl Member {
    pub(super) fn id(&self) -> String {
        self.machine.id.to_string()
    }

    /// The same member as another start of its agent, or another machine, presents it.
    pub(super) fn session(&mut self, session: &str) -> &Self {
        session.clone_into(&mut self.session);
        self
    }

    pub(super) async fn connect(&self, site: &Site) -> Session {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect();
        let key: PrivateKeyDer<'static> =
            self.machine.key.serialize_der().try_into().expect("a key");
        let chain = chain.expect("a chain");
        Session::connect(site, |builder| {
            builder.with_client_auth_cert(chain, key).expect("an identity")
        })
        .await
    }

    pub(super) async fn post(&self, site: &Site, path: &str, body: &Value) -> Answer {
        self.connect(site).await.post(path, body).await
    }

    pub(super) async fn confirm(&self, site: &Site) {
        let body = json!({"request": "00112233445566778899aabbccddeeff"});
        self.post(site, "/cluster/v1/confirm", &body).await.expect(204);
    }

    /// Reports that it works by this plan.
    pub(super) async fn report(&self, site: &Site, generation: u64) -> Answer {
        let body = json!({
            "version": "0.1.0",
            "resources": {},
            "plan_generation": generation,
            "session": self.session,
        });
        self.post(site, "/agent/v1/report", &body).await
    }

    /// Reports until it has carried out the plan in force.
    pub(super) async fn obey(&self, site: &Site) -> Value {
        let mut generation = 0;
        loop {
            let orders = self.report(site, generation).await.expect(200).json();
            let next = orders["plan_generation"].as_u64().expect("a generation");
            if next == generation {
                return orders;
            }
            generation = next;
        }
    }

    /// Asks for a certificate of a new key.
    pub(super) async fn renew(&mut self, site: &Site) -> Answer {
        let key = KeyPair::generate().expect("a key");
        let request = certificate_request(&key);
        let body = json!({"certificate_request": STANDARD.encode(&request)});
        let answer = self.post(site, "/cluster/v1/renew", &body).await;
        if answer.status == 200 {
            answer.json()["certificate"].as_str().expect("a chain").clone_into(&mut self.chain);
            self.machine.key = key;
            self.machine.certificate_request = request;
        }
        answer
    }
}

fn certificate_request(key: &KeyPair) -> Vec<u8> {
    let request = CertificateParams::default().serialize_request(key).expect("a request");
    request.der().to_vec()
}
