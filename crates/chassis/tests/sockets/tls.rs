//! TLS with the certificates that the server made itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hoist_api::Code;
use hoist_testkit::eventually_async;
use hoist_testkit::own_network::with_own_address;
use http_body_util::{BodyExt, Empty};
use hyper::body::Body as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
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
    let other = Site::start().await;
    let wrong_root = client_trusting(&other.running).get(site.tls("/healthz")).send().await;
    assert!(wrong_root.is_err());
    other.stop().await;
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
    for (host, status) in [("localhost", 200), ("evil.example", 421)] {
        let request = http::Request::get(format!("https://{host}/test/site"))
            .header("authorization", format!("Bearer {}", site.admin))
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), status, "{host}");
    }
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

/// A request over HTTP/2; without a token if that is empty.
fn ask_h2(path: &str, token: &str) -> http::Request<Empty<bytes::Bytes>> {
    let mut request = http::Request::get(format!("https://localhost{path}"));
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    request.body(Empty::new()).unwrap()
}

/// Why a stream was reset.
fn reset_reason(error: &hyper::Error) -> Option<h2::Reason> {
    std::error::Error::source(error)?.downcast_ref::<h2::Error>()?.reason()
}

/// A client that takes so many bytes of each answer and no more.
async fn taking(site: &Site, window: u32) -> http2::SendRequest<Empty<bytes::Bytes>> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let builder = builder.initial_stream_window_size(window);
    let io = TokioIo::new(connect_h2(site).await);
    let (sender, connection) = builder.handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn anonymous_http2_streams_of_a_connection_are_few() {
    let site = Site::start().await;
    for window in [0, 1] {
        let mut sender = taking(&site, window).await;
        let mut held = Vec::new();
        let mut refused = 0;
        // A wrong token is none.
        for token in ["", "kettle"].into_iter().cycle().take(50) {
            match sender.send_request(ask_h2("/test/large", token)).await {
                Ok(answer) => held.push(answer),
                Err(error) => {
                    assert_eq!(reset_reason(&error), Some(h2::Reason::REFUSED_STREAM));
                    refused += 1;
                }
            }
        }
        assert_eq!((held.len(), refused), (16, 34));
        // They are not in the way of a token.
        for _ in 0..20 {
            let answer = sender.send_request(ask_h2("/events/v1", &site.admin)).await.unwrap();
            assert_eq!(answer.status(), 200);
            held.push(answer);
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn http2_streams_that_take_nothing_are_reset() {
    let stall = std::time::Duration::from_millis(100);
    let limits = hoist_chassis::Limits { write_stall: stall, ..crate::site::limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    for window in [0, 1] {
        let mut sender = taking(&site, window).await;
        // A stream that waits for events is not one that takes nothing.
        let events = sender.send_request(ask_h2("/events/v1", &site.admin)).await.unwrap();
        for path in ["/test/large", "/openapi.json"] {
            let answer = sender.send_request(ask_h2(path, "")).await.unwrap();
            let cut = answer.into_body().collect().await.unwrap_err();
            assert_eq!(reset_reason(&cut), Some(h2::Reason::CANCEL), "{cut}");
        }
        let again = sender.send_request(ask_h2("/test/large", "")).await.unwrap();
        assert_eq!(again.status(), 200, "the connection goes on");
        assert!(!events.into_body().is_end_stream());
    }
    site.stop().await;
}

#[test]
fn one_address_has_a_bounded_number_of_connections() {
    with_own_address(connect_often);
}

async fn connect_often(ip: IpAddr) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let limits = hoist_chassis::Limits {
        max_per_address: 2,
        header_timeout: std::time::Duration::from_mins(1),
        ..crate::site::limits()
    };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let server = site.running.plain_addr().unwrap();
    let connect = async |from: IpAddr| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(server).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap_or(0);
        (stream, read > 0)
    };
    let loopback = server.ip();
    let mut held = Vec::new();
    for (from, expected) in [(ip, true), (ip, true), (ip, false)] {
        let (stream, answered) = connect(from).await;
        assert_eq!(answered, expected, "{from}");
        held.push(stream);
    }
    for _ in 0..5 {
        let (stream, answered) = connect(loopback).await;
        assert!(answered, "this machine itself is not limited");
        held.push(stream);
    }
    drop(held);
    // There is room again when the server has noticed.
    eventually_async("slot of a closed connection is free", async || connect(ip).await.1).await;
    site.stop().await;
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
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    assert!(ask(issued_by(&name, &other)).await.is_err(), "a foreign certificate is refused");
    site.stop().await;
}

#[test]
fn plain_administration_is_refused_to_other_machines() {
    with_own_address(administer_from);
}

async fn administer_from(ip: IpAddr) {
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

    let policy = hoist_chassis::auth::Policy {
        allow_plain_admin: true,
        ..hoist_chassis::auth::Policy::default()
    };
    let site = Site::start_with(|builder| builder.listen_plain(any).policy(policy)).await;
    let port = site.running.plain_addr().unwrap().port();
    let url = format!("http://{}/test/write", SocketAddr::from((ip, port)));
    let response = client.post(url).bearer_auth(&site.admin).json(&json!(1)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    site.stop().await;
}
