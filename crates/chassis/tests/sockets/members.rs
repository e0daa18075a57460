//! Members of a cluster: what their certificates open, and when that ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::cluster::MembershipEnd;
use hoist_chassis::RunningServer;
use hoist_chassis::ca::{Ca, spki_sha256};
use hoist_chassis::certificate_request::CertificateRequest;
use hoist_chassis::cluster_authority::{ClusterAuthority, MemberSubject};
use hoist_chassis::member::{Member, MemberGrant, Members, NotAdmitted};
use hoist_chassis::peer::{CHANNEL_BINDING_BYTES, CHANNEL_BINDING_LABEL, Peer};
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};
use hoist_chassis::secret::hex;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use reqwest::{Method, Response};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::site::{Site, client_with, problem, root, trusting};

const CLUSTER: &str = "c0ffee";

/// The current serial and grant of each member.
#[derive(Debug)]
struct Membership {
    is_loaded: AtomicBool,
    members: Mutex<HashMap<String, (u64, MemberGrant)>>,
    ended: Mutex<HashMap<String, MembershipEnd>>,
    generation: watch::Sender<u64>,
}

impl Membership {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_loaded: AtomicBool::new(true),
            members: Mutex::default(),
            ended: Mutex::default(),
            generation: watch::Sender::new(0),
        })
    }

    fn admit(&self, node: &str, serial: u64, inventory_node: Option<&str>) {
        let inventory_node = inventory_node.map(|name| name.parse().unwrap());
        let generation = *self.generation.borrow() + 1;
        let grant = MemberGrant { inventory_node, generation };
        self.members.lock().insert(node.to_owned(), (serial, grant));
        self.generation.send_replace(generation);
    }

    fn expel(&self, node: &str) {
        self.members.lock().remove(node);
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Members for Membership {
    fn find(&self, cluster: &str, node: &str, serial: u64) -> Result<MemberGrant, NotAdmitted> {
        if !self.is_loaded.load(Ordering::Relaxed) {
            return Err(NotAdmitted::NotLoaded);
        }
        if let Some(end) = self.ended.lock().get(node) {
            return Err(NotAdmitted::Ended(*end));
        }
        let members = self.members.lock();
        let (current, grant) = members.get(node).ok_or(NotAdmitted::Unknown)?;
        let is_current = cluster == CLUSTER && *current == serial;
        if is_current { Ok(grant.clone()) } else { Err(NotAdmitted::Unknown) }
    }

    fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

/// Certificates and the key of the first one.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// As a machine joins: its own key, a request, and the chain that it is given.
    fn joined(ca: &Ca, node: &str, serial: u64, now: Timestamp) -> Self {
        let authority = ClusterAuthority::create(ca, CLUSTER).unwrap();
        let key = KeyPair::generate().unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        let request = CertificateRequest::verify(request.der()).unwrap();
        let subject = MemberSubject { node, common_name: "a member", serial };
        let issued = authority.issue(&request, &subject, now).unwrap();
        assert_eq!(spki_sha256(&issued.der), Some(request.spki_sha256()));
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes()).collect();
        Self { chain: chain.unwrap(), key: key.serialize_der().try_into().unwrap() }
    }

    /// A certificate with these URIs by an issuer of the test's own.
    fn issued_by(issuer: &Issuer<'_, KeyPair>, uris: &[&str]) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(1_u64.into());
        let certificate = params.signed_by(&key, issuer).unwrap();
        let key = key.serialize_der().try_into().unwrap();
        Self { chain: vec![certificate.der().clone()], key }
    }

    fn with(mut self, certificate: CertificateDer<'static>) -> Self {
        self.chain.push(certificate);
        self
    }

    fn client(&self, running: &RunningServer) -> reqwest::Client {
        let tls = trusting(running)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .unwrap();
        client_with(tls)
    }
}

/// An intermediate that the site's root has signed, for whatever purpose.
fn intermediate(
    site: &Site,
    organisation: &str,
    name: &str,
) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organisation);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &root_issuer(site)).unwrap().der().clone();
    (certificate, Issuer::new(params, key))
}

fn root_issuer(site: &Site) -> Issuer<'static, KeyPair> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let root = root(&site.running);
    let (_, parsed) = X509Certificate::from_der(&root).unwrap();
    let name = parsed.subject().iter_common_name().next().unwrap().as_str().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = std::fs::read_to_string(site.dir.path().join("ca/root.key")).unwrap();
    Issuer::new(params, KeyPair::from_pem(&key).unwrap())
}

async fn start(membership: &Arc<Membership>, routes: Vec<Route>) -> Site {
    let members = Arc::clone(membership);
    let describe = |route: Route| route.summary("A test").reason("a test");
    let routes = routes.into_iter().map(describe).collect();
    Site::start_with(|builder| builder.members(members).routes(routes)).await
}

fn member_of(site: &Site, node: &str, serial: u64) -> reqwest::Client {
    let ca = &site.running.chassis().ca;
    Identity::joined(ca, node, serial, Timestamp::now()).client(&site.running)
}

async fn get(client: &reqwest::Client, site: &Site, path: &str) -> Response {
    client.get(site.tls(path)).send().await.unwrap()
}

async fn who(principal: Principal) -> String {
    principal.who().to_string()
}

fn routes_of_all_classes() -> Vec<(&'static str, AccessClass)> {
    let (read, write) = (Verb::Read, Verb::Write);
    vec![
        ("/test/class/open", AccessClass::Open),
        ("/test/class/lockable", AccessClass::Lockable { context: Context::Boot }),
        // Locked by default.
        ("/test/class/locked", AccessClass::Lockable { context: Context::Metrics }),
        ("/test/class/admin", AccessClass::Admin { context: Context::Admin, verb: read }),
        ("/test/class/right", AccessClass::Admin { context: Context::Agent, verb: write }),
        ("/test/class/bss", AccessClass::Bss { verb: read }),
        ("/test/class/agent", AccessClass::Agent),
        ("/test/class/member", AccessClass::Member),
        ("/test/class/proof", AccessClass::Proof),
    ]
}

/// For whom a request with nothing but a member certificate is answered.
fn expected(path: &str, access: AccessClass) -> Option<&'static str> {
    match access {
        AccessClass::Open | AccessClass::Proof => Some("anonymous"),
        AccessClass::Lockable { .. } => (!path.ends_with("locked")).then_some("anonymous"),
        AccessClass::Admin { .. } | AccessClass::Bss { .. } => None,
        AccessClass::Agent | AccessClass::Member => Some("member/n1"),
    }
}

#[tokio::test]
async fn member_passes_agent_and_member_routes_only() {
    let membership = Membership::new();
    let classes = routes_of_all_classes();
    let routes = classes.iter().map(|(path, access)| Route::get(path, *access, who)).collect();
    let site = start(&membership, routes).await;
    let member = member_of(&site, "n1", 1);
    membership.admit("n1", 1, Some("web1"));
    for (path, access) in &classes {
        let answer = get(&member, &site, path).await;
        match expected(path, *access) {
            Some(who) => {
                assert_eq!(answer.status(), 200, "{path}");
                assert_eq!(answer.text().await.unwrap(), who, "{path}");
            }
            None => assert_eq!(answer.status(), 401, "{path}"),
        }
    }
    // Without a certificate, and by the same name over plain HTTP, nothing of it is open.
    for path in ["/test/class/agent", "/test/class/member"] {
        problem(site.get(path).await, 401).await;
        let foreign = member.get(site.tls(path)).header("host", "evil.example").send().await;
        assert_eq!(problem(foreign.unwrap(), 421).await.code, Code::WrongHost);
    }
    site.stop().await;
}

#[tokio::test]
async fn handlers_learn_member_and_grant() {
    let membership = Membership::new();
    let member = async |member: Member, principal: Principal| {
        let reach = principal.reach(Verb::Write, Context::Agent);
        format!("{} {:?} {reach:?}", member.certificate.serial, member.grant.inventory_node)
    };
    let site =
        start(&membership, vec![Route::get("/test/member", AccessClass::Member, member)]).await;
    let serial = u64::MAX;
    membership.admit("n1", serial, Some("web1"));
    let answer = get(&member_of(&site, "n1", serial), &site, "/test/member").await;
    let text = answer.text().await.unwrap();
    assert!(text.starts_with(&serial.to_string()) && text.contains("web1"), "{text}");
    assert!(text.contains("Some(["), "limited to its node: {text}");
    site.stop().await;
}

#[tokio::test]
async fn only_current_certificates_of_members_count() {
    let membership = Membership::new();
    let site = start(&membership, vec![Route::get("/test/member", AccessClass::Member, who)]).await;
    let member = member_of(&site, "n1", 1);
    let unknown = problem(get(&member, &site, "/test/member").await, 403).await;
    assert_eq!(unknown.code, Code::Forbidden);
    assert!(unknown.detail.contains("`n1` is unknown"), "{}", unknown.detail);
    assert!(unknown.remedy.unwrap().contains("join"));

    membership.admit("n1", 1, None);
    assert_eq!(get(&member, &site, "/test/member").await.status(), 200);
    let unlinked = problem(get(&member, &site, "/test/agent").await, 403).await;
    assert!(unlinked.detail.contains("not the agent of a node"), "{}", unlinked.detail);

    membership.admit("n1", 2, Some("web1"));
    problem(get(&member, &site, "/test/member").await, 403).await;
    let renewed = member_of(&site, "n1", 2);
    assert_eq!(get(&renewed, &site, "/test/agent").await.status(), 200);

    membership.expel("n1");
    for path in ["/test/member", "/test/agent"] {
        problem(get(&renewed, &site, path).await, 403).await;
    }
    // An expelled member is nobody, not less than that.
    assert_eq!(get(&renewed, &site, "/healthz").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn ended_members_learn_how_and_unread_members_wait() {
    let membership = Membership::new();
    let site = start(&membership, vec![Route::get("/test/member", AccessClass::Member, who)]).await;
    membership.admit("n1", 1, None);
    let member = member_of(&site, "n1", 1);
    for end in MembershipEnd::ALL {
        membership.ended.lock().insert("n1".to_owned(), end);
        let told = problem(get(&member, &site, "/test/member").await, 403).await;
        assert_eq!(told.code.membership_end(), Some(end));
        assert!(told.detail.contains(end.predicate()), "{}", told.detail);
        assert!(told.remedy.unwrap().contains("identity reset"));
    }
    membership.is_loaded.store(false, Ordering::Relaxed);
    let unread = problem(get(&member, &site, "/test/member").await, 503).await;
    assert_eq!(unread.code, Code::StoreUnavailable);
    // Without a certificate of the cluster nothing is said about a member.
    let foreign = client_with(trusting(&site.running).with_no_client_auth());
    problem(get(&foreign, &site, "/test/member").await, 401).await;
    site.stop().await;
}

#[tokio::test]
async fn server_without_a_cluster_knows_no_member() {
    let site = Site::start().await;
    problem(get(&member_of(&site, "n1", 1), &site, "/test/agent").await, 403).await;
    site.stop().await;
}

#[tokio::test]
async fn certificates_end_at_the_handshake_and_after_it() {
    let membership = Membership::new();
    let site = start(&membership, vec![Route::get("/test/member", AccessClass::Member, who)]).await;
    membership.admit("n1", 1, None);
    let lifetime = SignedDuration::from_hours(90 * 24);
    let ca = &site.running.chassis().ca;
    let issued = Timestamp::now() - lifetime - SignedDuration::from_mins(1);
    let ended = Identity::joined(ca, "n1", 1, issued).client(&site.running);
    assert!(ended.get(site.tls("/test/member")).send().await.is_err());

    let member = member_of(&site, "n1", 1);
    assert_eq!(get(&member, &site, "/test/member").await.status(), 200);
    // The server's clock alone moves: TLS, which has its own, goes on accepting it.
    site.clock.forward(lifetime + SignedDuration::from_mins(1));
    let ended = problem(get(&member, &site, "/test/member").await, 401).await;
    assert!(ended.detail.contains("ended at"), "{}", ended.detail);
    site.stop().await;
}

#[tokio::test]
async fn other_certificates_of_the_site_are_no_members() {
    let membership = Membership::new();
    let site = start(&membership, vec![Route::get("/test/member", AccessClass::Member, who)]).await;
    membership.admit("n1", 1, Some("web1"));
    let ca = &site.running.chassis().ca;
    let uri = "hoist://c0ffee/node/n1";
    let genuine = Identity::joined(ca, "n1", 1, Timestamp::now());
    let genuine_authority = genuine.chain[1].clone();
    let (other_cluster, other_cluster_issuer) = intermediate(&site, "hoist cluster", "decaf");
    let (controller, controller_issuer) = intermediate(&site, "hoist controller", CLUSTER);
    let (same, same_issuer) = intermediate(&site, "hoist cluster", CLUSTER);
    let other_cluster_member = || Identity::issued_by(&other_cluster_issuer, &[uri]);
    for (case, identity) in [
        ("by the root itself", Identity::issued_by(&root_issuer(&site), &[uri])),
        (
            "by the root itself, with an authority",
            Identity::issued_by(&root_issuer(&site), &[uri]).with(genuine_authority.clone()),
        ),
        ("by another cluster", other_cluster_member().with(other_cluster.clone())),
        (
            "by another cluster, with two authorities",
            other_cluster_member().with(other_cluster.clone()).with(genuine_authority.clone()),
        ),
        (
            "by another cluster, with two authorities in another order",
            other_cluster_member().with(genuine_authority.clone()).with(other_cluster),
        ),
        (
            "by an authority that is no cluster's",
            Identity::issued_by(&controller_issuer, &[uri]).with(controller),
        ),
        (
            "with two names",
            Identity::issued_by(&same_issuer, &[uri, "hoist://c0ffee/node/n2"]).with(same.clone()),
        ),
        ("without a name", Identity::issued_by(&same_issuer, &[]).with(same.clone())),
        (
            "of another cluster's member",
            Identity::issued_by(&same_issuer, &["hoist://decaf/node/n1"]).with(same.clone()),
        ),
    ] {
        let client = identity.client(&site.running);
        for path in ["/test/member", "/test/agent"] {
            let answer = get(&client, &site, path).await;
            assert_eq!(answer.status(), 401, "{case}: {path}");
            assert!(problem(answer, 401).await.detail.contains("not one of a cluster member"));
        }
        assert_eq!(get(&client, &site, "/healthz").await.status(), 200, "{case}");
    }
    // Every authority of the cluster that the root has signed counts, as of a further controller.
    let further = Identity::issued_by(&same_issuer, &[uri]).with(same);
    let answer = get(&further.client(&site.running), &site, "/test/member").await;
    assert_eq!(answer.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn chains_that_do_not_lead_to_the_root_are_cut() {
    let membership = Membership::new();
    let site = start(&membership, vec![Route::get("/test/member", AccessClass::Member, who)]).await;
    let other = Site::start().await;
    membership.admit("n1", 1, None);
    let joined =
        |site: &Site| Identity::joined(&site.running.chassis().ca, "n1", 1, Timestamp::now());
    let mut alone = joined(&site);
    alone.chain.truncate(1);
    let mut wrong_authority = joined(&other);
    wrong_authority.chain[1] = joined(&site).chain[1].clone();
    for identity in [alone, joined(&other), wrong_authority] {
        let client = identity.client(&site.running);
        assert!(client.get(site.tls("/healthz")).send().await.is_err());
    }
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn token_counts_where_there_is_also_a_certificate() {
    let membership = Membership::new();
    let routes = vec![
        Route::get("/test/member", AccessClass::Member, who),
        Route::get("/test/who/agent", AccessClass::Agent, who),
    ];
    let site = start(&membership, routes).await;
    let member = member_of(&site, "n1", 1);
    membership.admit("n1", 1, Some("web1"));
    let ask = async |token: &str, path: &str| {
        member.get(site.tls(path)).bearer_auth(token).send().await.unwrap()
    };
    let answer = ask(&site.admin, "/test/who/agent").await;
    assert_eq!(answer.text().await.unwrap(), "admin");
    let reader = site.token(json!([{ "verbs": ["read"], "contexts": ["*"] }])).await.secret;
    problem(ask(&reader, "/test/who/agent").await, 403).await;
    problem(ask("hoist_admin_kettle", "/test/who/agent").await, 401).await;
    let refused = problem(ask(&site.admin, "/test/member").await, 403).await;
    assert!(refused.remedy.unwrap().contains("without `Authorization`"));
    // Tokens of agents go on working without a certificate.
    let agent = json!([{ "verbs": ["write"], "contexts": ["agent"], "selector": "node:web1" }]);
    let agent = site.token(agent).await.secret;
    assert_eq!(site.get_as(&agent, "/test/agent").await.status(), 200);
    problem(site.get_as(&agent, "/test/member").await, 403).await;
    site.stop().await;
}

/// Routes whose answers go on, or wait until `open` has a permit.
fn long_routes(entered: &Arc<Semaphore>, open: &Arc<Semaphore>) -> Vec<Route> {
    let waiting = {
        let (entered, open) = (Arc::clone(entered), Arc::clone(open));
        async move || {
            entered.add_permits(1);
            open.acquire().await.unwrap().forget();
            "waited"
        }
    };
    let listing = async || {
        let lines = futures_util::stream::iter([Ok::<_, std::io::Error>("a line\n")]);
        Body::from_stream(lines.chain(futures_util::stream::pending()))
    };
    vec![
        Route::get("/test/member/listing", AccessClass::Member, listing).streaming(),
        Route::post("/test/member/work", AccessClass::Member, waiting.clone()),
        Route::post("/test/agent/work", AccessClass::Agent, waiting).streaming(),
    ]
}

async fn entered(semaphore: &Semaphore) {
    timeout(Duration::from_secs(30), semaphore.acquire()).await.unwrap().unwrap().forget();
}

/// Waits for the end of a listing that is cut.
async fn cut(listing: Response) {
    assert_eq!(listing.status(), 200);
    let ended = timeout(Duration::from_secs(30), listing.bytes()).await;
    ended.expect("the stream ends").expect_err("a part is not taken for the whole");
}

#[tokio::test]
async fn streams_and_waiting_requests_end_with_the_membership() {
    let membership = Membership::new();
    let (waiting, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let site = start(&membership, long_routes(&waiting, &open)).await;
    let (expelled, other) = (member_of(&site, "n1", 1), member_of(&site, "n2", 2));
    membership.admit("n1", 1, Some("web1"));
    membership.admit("n2", 2, Some("web2"));
    let post = |client: &reqwest::Client, path: &str| {
        tokio::spawn(client.request(Method::POST, site.tls(path)).send())
    };
    let listing = get(&expelled, &site, "/test/member/listing").await;
    let requests = ["/test/member/work", "/test/agent/work"].map(|path| post(&expelled, path));
    let kept = post(&other, "/test/agent/work");
    for _ in 0..3 {
        entered(&waiting).await;
    }
    // A change of another member ends nothing of this one.
    membership.admit("n3", 3, None);
    membership.expel("n1");
    cut(listing).await;
    for request in requests {
        let ended = problem(request.await.unwrap().unwrap(), 401).await;
        assert!(ended.detail.contains("membership ended"), "{}", ended.detail);
    }
    problem(get(&expelled, &site, "/test/member/listing").await, 403).await;
    // The handlers of the expelled member's writes are not cut half-way.
    open.add_permits(3);
    assert_eq!(kept.await.unwrap().unwrap().text().await.unwrap(), "waited");
    site.stop().await;
}

#[tokio::test]
async fn streams_end_with_the_grant_and_the_certificate() {
    let membership = Membership::new();
    let idle = Arc::new(Semaphore::new(0));
    let site = start(&membership, long_routes(&idle, &idle)).await;
    let path = "/test/member/listing";
    let member = member_of(&site, "n1", 1);
    membership.admit("n1", 1, Some("web1"));

    let listing = get(&member, &site, path).await;
    membership.admit("n1", 1, Some("web2"));
    cut(listing).await;

    let listing = get(&member, &site, path).await;
    membership.admit("n1", 2, Some("web2"));
    cut(listing).await;

    let renewed = member_of(&site, "n1", 2);
    let listing = get(&renewed, &site, path).await;
    site.clock.forward(SignedDuration::from_hours(91 * 24));
    cut(listing).await;
    site.stop().await;
}

/// The channel binding of a connection, as the client and as the server have it.
async fn channel_bindings(site: &Site, tls: rustls::ClientConfig) -> (Option<String>, String) {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let tcp = TcpStream::connect(site.running.tls_addr().unwrap()).await.unwrap();
    let mut stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    let request = b"GET /test/binding HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, session) = stream.get_ref();
    let output = [0; CHANNEL_BINDING_BYTES];
    let ours = session.export_keying_material(output, CHANNEL_BINDING_LABEL, None);
    (ours.ok().map(|bytes| hex(&bytes)), answer.rsplit("\r\n\r\n").next().unwrap().to_owned())
}

#[tokio::test]
async fn channel_binding_is_equal_on_both_ends_and_never_again() {
    let binding = async |peer: Peer| {
        let text = peer.channel_binding().map(|binding| hex(binding.as_bytes()));
        text.unwrap_or_else(|| "none".to_owned())
    };
    let route = Route::get("/test/binding", AccessClass::Open, binding);
    let site = start(&Membership::new(), vec![route]).await;
    // The second connection may resume the session of the first.
    let tls = trusting(&site.running).with_no_client_auth();
    let (first_ours, first) = channel_bindings(&site, tls.clone()).await;
    let (second_ours, second) = channel_bindings(&site, tls).await;
    assert_eq!((first_ours.unwrap(), second_ours.unwrap()), (first.clone(), second.clone()));
    assert_ne!(first, second);
    assert_eq!(first.len(), 2 * CHANNEL_BINDING_BYTES);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(root(&site.running)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let old = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert_eq!(channel_bindings(&site, old).await.1, "none");
    assert_eq!(site.get("/test/binding").await.text().await.unwrap(), "none");
    site.stop().await;
}
