//! TLS with the certificates that the server made itself.

use std::sync::Arc;

use hoist_api::Code;
use jiff::SignedDuration;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::site::{Dial, Site, client_trusting, client_with, local, problem, root, trusting};

#[tokio::test]
async fn the_made_root_is_enough_to_trust_the_server() {
    let site = Site::start().await;
    let peer: Value = site.get_tls(&site.admin, "/test/peer").await.json().await.unwrap();
    assert_eq!(peer["secure"], true);
    assert_eq!(site.get_tls(&site.admin, "/test/site").await.status(), 200);
    let stranger = Site::start().await;
    let wrong_root = client_trusting(&stranger.running).get(site.tls("/healthz")).send().await;
    assert!(wrong_root.is_err());
    stranger.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    // The client's clock is the real one: the server's begins late and catches up.
    let late = SignedDuration::from_hours(70 * 24);
    let clock = Dial::behind(late);
    let ours = Arc::clone(&clock) as _;
    let site = Site::start_with(|builder| builder.clock(ours)).await;
    let ca = &site.running.chassis().ca;
    let before = (ca.server_certificate(), presented(&site).await);
    assert_eq!(before.0, before.1);
    clock.forward(late);
    assert!(ca.renew_if_due().unwrap());
    let after = presented(&site).await;
    assert_ne!(before.1, after);
    assert_eq!(ca.server_certificate(), after);
    site.stop().await;
}

/// A TLS connection that speaks HTTP/2.
async fn connect_h2(site: &Site) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut config = trusting(&site.running).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tcp = TcpStream::connect(site.running.tls_addr().unwrap()).await.unwrap();
    let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    stream
}

/// The certificate that the listener shows.
async fn presented(site: &Site) -> CertificateDer<'static> {
    connect_h2(site).await.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[tokio::test]
async fn http2_is_served_and_stopped_gracefully() {
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let site = Site::start().await;
    let io = TokioIo::new(connect_h2(&site).await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = |path: &str| {
        let builder = http::Request::get(format!("https://localhost{path}"));
        builder.body(Empty::<bytes::Bytes>::new()).unwrap()
    };
    let response = sender.send_request(request("/test/peer")).await.unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 200));
    let gates = Arc::clone(&site.gates);
    let slow = tokio::spawn(sender.send_request(request("/test/wait")));
    gates.entered.notified().await;
    let stop = tokio::spawn(site.stop());
    gates.open.notify_one();
    let body = slow.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "waited");
    stop.await.unwrap();
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_certificate_of_the_site_reaches_the_handler() {
    let site = Site::start().await;
    let (name, key) = {
        use x509_parser::prelude::{FromDer, X509Certificate};
        let root = root(&site.running);
        let (_, parsed) = X509Certificate::from_der(&root).unwrap();
        let name = parsed.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned();
        (name, std::fs::read_to_string(site.dir.path().join("ca/root.key")).unwrap())
    };
    let issued_by = |name: &str, key: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = rcgen::Issuer::new(params, rcgen::KeyPair::from_pem(key).unwrap());
        let own = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["n1".to_owned()]).unwrap();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&own, &issuer).unwrap().der().clone();
        (certificate, PrivateKeyDer::try_from(own.serialize_der()).unwrap())
    };
    let ask = async |(certificate, key)| {
        let tls = trusting(&site.running).with_client_auth_cert(vec![certificate], key).unwrap();
        client_with(tls).get(site.tls("/test/peer")).send().await
    };
    let peer: Value = ask(issued_by(&name, &key)).await.unwrap().json().await.unwrap();
    assert_eq!(peer["certificates"], 1);
    let stranger = rcgen::KeyPair::generate().unwrap().serialize_pem();
    assert!(ask(issued_by(&name, &stranger)).await.is_err(), "a foreign certificate is refused");
    site.stop().await;
}

#[tokio::test]
async fn plain_administration_is_refused_to_other_machines() {
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    // An address of this machine that is not loopback; connecting a datagram socket sends nothing.
    let own = || -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|addr| addr.ip()).filter(|ip| !ip.is_loopback())
    };
    let Some(ip) = own() else { return };
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let site = Site::start_with(|builder| builder.listen_plain(any).listen_tls(local())).await;
    let port = site.running.plain_addr().unwrap().port();
    let client = client_trusting(&site.running);
    let ask = async |path: &str| {
        let url = format!("http://{}{path}", SocketAddr::from((ip, port)));
        client.get(url).bearer_auth(&site.admin).send().await.unwrap()
    };
    assert_eq!(problem(ask("/test/site").await, 403).await.code, Code::PlainAdmin);
    assert_eq!(problem(ask("/metrics").await, 403).await.code, Code::PlainAdmin);
    assert_eq!(ask("/healthz").await.status(), 200);
    site.stop().await;

    let policy = hoist_server::auth::Policy {
        allow_plain_admin: true,
        ..hoist_server::auth::Policy::default()
    };
    let site = Site::start_with(|builder| builder.listen_plain(any).policy(policy)).await;
    let port = site.running.plain_addr().unwrap().port();
    let url = format!("http://{}/test/write", SocketAddr::from((ip, port)));
    let response = client.post(url).bearer_auth(&site.admin).json(&json!(1)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    site.stop().await;
}
