//! SMD behind TLS: only the authority we were told to trust is trusted.

use std::sync::Arc;

use hoist_inventory::source::smd::{SmdOptions, SmdSource};
use hoist_inventory::source::{FailureKind, InventorySource, Location};
use hoist_testkit::smd::SmdSet;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::conformance::complete;

fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    (made.cert.der().clone(), key)
}

/// Answers one request on each connection, like an SMD with four nodes.
async fn serve(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> u16 {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let [components, interfaces, memberships, groups] = SmdSet::synthetic(4).bodies();
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = vec![0; 4096];
            let Ok(length) = stream.read(&mut request).await else { continue };
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let path = request.split_whitespace().nth(1).unwrap_or_default();
            let body = match path.split('?').next().unwrap_or_default() {
                "/hsm/v2/State/Components" => &components,
                "/hsm/v2/Inventory/EthernetInterfaces" => &interfaces,
                "/hsm/v2/memberships" => &memberships,
                "/hsm/v2/groups" => &groups,
                _ => "{}",
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(body.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    port
}

fn source(port: u16, authorities: Vec<CertificateDer<'static>>) -> SmdSource {
    let Ok(Location::Smd(base)) = format!("smd+https://localhost:{port}").parse() else {
        panic!("the URL of an SMD")
    };
    let options = SmdOptions { authorities, ..SmdOptions::default() };
    SmdSource::new("smd".parse().unwrap(), base, options).unwrap()
}

#[tokio::test]
async fn the_authority_we_were_told_is_trusted_and_no_other() {
    let (certificate_a, key) = certificate();
    let (certificate_b, _) = certificate();
    let port = serve(certificate_a.clone(), key).await;
    let imported = complete(source(port, vec![certificate_a]).fetch().await);
    assert_eq!(imported.nodes.len(), 4);
    let error = source(port, vec![certificate_b]).fetch().await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Unreachable);
}
