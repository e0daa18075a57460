//! What streams hold that nobody reads. Alone in its program: memory is measured, and other tests
//! use some too.

#[path = "../artifacts/content.rs"]
#[allow(dead_code, reason = "what only the other tests of artifacts use")]
mod content;
#[path = "../support/whole.rs"]
mod site;

use std::net::Ipv4Addr;
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::content::{MIB, content};
use crate::site::Site;

/// Resident memory of this process: of the controller, since it runs in it.
fn memory() -> usize {
    let status = fs_err::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has one");
    let kib = line.trim().strip_suffix(" kB").expect("a unit");
    kib.parse::<usize>().expect("a number") * 1024
}

/// Of one connection whose client has no token, as the server has it.
const PLACES: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_that_take_nothing_hold_little() {
    const STREAMS: usize = 100;
    const CONNECTIONS: usize = 10;
    let site = Site::start_with(|config| {
        config.tls_listen = Some((Ipv4Addr::LOCALHOST, 0).into());
    })
    .await;
    let image = content(2 * MIB, 6);
    site.add_artifact("image", &image).await;
    let addr = site.controller.tls_addr().expect("it listens");
    let mut roots = rustls::RootCertStore::empty();
    let root = fs_err::read(site.data_dir().join("ca/root.pem")).expect("the site's root");
    roots.add(CertificateDer::from_pem_slice(&root).expect("a certificate")).expect("a root");
    let mut tls =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let connect = async |window: u32| {
        let stream = tokio::net::TcpStream::connect(addr).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        let stream = tls.connect(name, stream).await.expect("it speaks TLS");
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let builder = builder.initial_stream_window_size(window);
        let (sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/2");
        (sender, tokio::spawn(connection))
    };
    let ask = |path: &str| {
        let request = http::Request::get(format!("https://localhost{path}"));
        let request = request.header("accept-encoding", "zstd, gzip");
        request.body(Empty::<bytes::Bytes>::new()).expect("a request")
    };

    let before = memory();
    let mut held = Vec::new();
    // An image, and documents that a server might compress for each of them.
    for path in ["/artifacts/by-name/image", "/openapi.json", "/no/such/path"] {
        for window in [0, 1].into_iter().cycle().take(CONNECTIONS) {
            let (mut sender, connection) = connect(window).await;
            for n in 0..STREAMS {
                match sender.send_request(ask(path)).await {
                    Ok(answer) => held.push(answer),
                    // Answers that are small enough for h2 to keep are done with at once.
                    Err(_) => assert!(n >= PLACES, "{path}: {n} are not too many"),
                }
            }
            drop((sender, connection));
        }
    }
    let grown = memory().saturating_sub(before);
    assert!(grown < 60 * MIB, "{grown} bytes for {} streams", held.len());
    assert!(held.len() >= 2 * CONNECTIONS * PLACES);
    // Others get all of it meanwhile, over both.
    let (mut sender, _connection) = connect(65_535).await;
    let whole = sender.send_request(ask("/artifacts/by-name/image")).await.expect("an answer");
    assert!(whole.into_body().collect().await.expect("all of it").to_bytes() == image);
    assert!(site.fetch_content(&image).await.body == image);
    assert_eq!(site.ask_as_nobody("GET", "/healthz").send().await.status, 200);
    drop((held, sender));
    site.stop().await;
}
