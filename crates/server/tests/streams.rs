//! Memory that unread streams hold. Alone in its program: memory is measured, and other tests would
//! use some too.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hoist_server::controller::{Config, Controller};

use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use sha2::{Digest as _, Sha256};

const MIB: usize = 1024 * 1024;

/// Resident memory of this process: of the controller, since it runs in it.
fn memory() -> usize {
    let status = fs_err::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has one");
    let kib = line.trim().strip_suffix(" kB").expect("a unit");
    kib.parse::<usize>().expect("a number") * 1024
}

/// Two MiB that do not compress.
fn image() -> Vec<u8> {
    let mut state = 13_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..2 * MIB / 8).flat_map(|_| next()).collect()
}

/// Uploads content, and names it `image`.
async fn add_image(
    client: &reqwest::Client,
    url: &str,
    data_dir: &Path,
    digest: hoist_model::Digest,
    content: &[u8],
) {
    let token = fs_err::read_to_string(data_dir.join("admin.token")).expect("an admin token");
    let size = content.len();
    let upload = client.patch(format!("{url}/boot/v2/blobs/{digest}?offset=0&size={size}"));
    let spec = json!({"sha256": digest.to_string(), "size": size});
    let document = json!({"api": "hoist/v1", "kind": "Artifact", "name": "image", "spec": spec});
    let apply = client.post(format!("{url}/inventory/v1/apply"));
    let apply = apply.header("content-type", "application/x-ndjson");
    for request in [upload.body(content.to_vec()), apply.body(format!("{document}\n"))] {
        let answer = request.bearer_auth(token.trim()).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
}

/// Slots of one connection whose client has no token, as the server has it.
const PLACES: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_that_take_nothing_hold_little() {
    const STREAMS: usize = 100;
    const CONNECTIONS: usize = 10;
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::new(dir.path());
    config.listen = Some((Ipv4Addr::LOCALHOST, 0).into());
    config.tls_listen = Some((Ipv4Addr::LOCALHOST, 0).into());
    config.limits.grace = Duration::from_secs(5);
    let controller = Controller::start(config).await.expect("the controller starts");
    let plain = format!("http://{}", controller.plain_addr().expect("the controller listens"));
    let tls = hoist_chassis::ca::client_tls([]).expect("no roots");
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls);
    let client = client.no_proxy().no_gzip().pool_max_idle_per_host(0);
    let client = client.build().expect("a client");
    let image = image();
    let digest = hoist_model::Digest::from_bytes(Sha256::digest(&image).into());
    add_image(&client, &plain, dir.path(), digest, &image).await;
    let addr = controller.tls_addr().expect("the controller listens");
    let root = fs_err::read(dir.path().join("ca/root.pem")).expect("the site's root");
    let root = CertificateDer::from_pem_slice(&root).expect("a certificate");
    let mut tls = hoist_chassis::ca::client_tls([root]).expect("a root");
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
    let fetch = async |path: String| {
        let answer = client.get(format!("{plain}{path}")).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        answer.bytes().await.expect("the whole body")
    };
    assert!(fetch(format!("/artifacts/{digest}")).await == image);
    fetch("/healthz".to_owned()).await;
    drop((held, sender, client));
    let stopped = controller.stop().await;
    assert!(stopped.cut == 0 && stopped.panicked.is_empty(), "{stopped:?}");
}
