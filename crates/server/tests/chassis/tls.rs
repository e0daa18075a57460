//! TLS with the certificates that the server made itself.

use std::sync::Arc;

use hoist_api::Code;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::site::{Dial, Site, client_trusting, local, problem};

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

/// The certificate that the listener shows, and that HTTP/2 is offered.
async fn presented(site: &Site) -> rustls_pki_types::CertificateDer<'static> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    let pem = site.running.chassis().ca.root_pem();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tcp = tokio::net::TcpStream::connect(site.running.tls_addr().unwrap()).await.unwrap();
    let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    let (_, session) = stream.get_ref();
    assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
    session.peer_certificates().unwrap()[0].clone()
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
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(no_tls())
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();
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

fn no_tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}
