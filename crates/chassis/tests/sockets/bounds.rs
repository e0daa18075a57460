//! Hostile and broken input: every bound answers and the server goes on.

use std::time::Duration;

use hoist_api::Code;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::site::{Site, problem};

async fn connect(site: &Site) -> TcpStream {
    TcpStream::connect(site.running.plain_addr().unwrap()).await.unwrap()
}

/// Everything until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn slow_lorises_are_cut() {
    let site = Site::start().await;
    let started = Instant::now();
    let mut silent = connect(&site).await;
    let mut slow = connect(&site).await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nx-a: ").await.unwrap();
    rest(&mut silent).await;
    rest(&mut slow).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(site.get("/healthz").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let site = Site::start().await;
    let mut stream = connect(&site).await;
    let head = format!("GET /healthz HTTP/1.1\r\nx-a: {}\r\n\r\n", "a".repeat(64 * 1024));
    let _ = stream.write_all(head.as_bytes()).await;
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(site.get("/healthz").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn a_hundred_megabytes_are_refused_without_being_kept() {
    let site = Site::start().await;
    let mut stream = connect(&site).await;
    let head = "POST /test/json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                content-length: 104857600\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let send = async move {
        let chunk = vec![b'['; 1 << 20];
        for _ in 0..100 {
            if writer.write_all(&chunk).await.is_err() {
                break;
            }
        }
        writer
    };
    let receive = async move {
        let mut answer = vec![0; 4096];
        let count = reader.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    let (_writer, answer) = tokio::join!(send, timeout(Duration::from_secs(20), receive));
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    site.stop().await;
}

#[tokio::test]
async fn a_body_without_length_is_cut_at_the_limit() {
    let site = Site::start().await;
    for (size, status) in [(16, 200), (17, 413)] {
        let text = format!("\"{}\"", "a".repeat(size - 2));
        let body = reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, String>(text)]));
        let response = site.request(Method::POST, "/test/small").body(body).send().await.unwrap();
        assert_eq!(response.status(), status, "{size}");
    }
    site.stop().await;
}

#[tokio::test]
async fn broken_bodies_are_400_with_a_place() {
    let site = Site::start().await;
    let post = async |body: Vec<u8>| {
        let request = site.request(Method::POST, "/test/json").body(body);
        problem(request.send().await.unwrap(), 400).await
    };
    let deep = post("{\"a\":".repeat(10_000).into_bytes()).await;
    assert_eq!(deep.code, Code::MalformedBody);
    assert_eq!(post(b" [{}]".to_vec()).await.detail, "the body is a list");
    let invalid = post(b"{\"a\": \"\xff\"}".to_vec()).await;
    assert_eq!(invalid.errors[0].at, "line 1, byte 7");
    assert_eq!(post(b"{\"a\": }".to_vec()).await.errors[0].at, "line 1 column 7");
    assert_eq!(post(Vec::new()).await.detail, "the body is empty");
    let form = site
        .request(Method::POST, "/test/json")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("a=b")
        .send()
        .await
        .unwrap();
    assert_eq!(problem(form, 415).await.code, Code::UnsupportedMediaType);
    site.stop().await;
}

#[tokio::test]
async fn a_panic_is_500_and_the_server_lives() {
    let site = Site::start().await;
    assert_eq!(problem(site.get("/test/panic").await, 500).await.code, Code::Internal);
    assert_eq!(site.get("/healthz").await.status(), 200);
    site.stop().await;
}

#[tokio::test]
async fn a_panic_in_a_write_is_500_as_well() {
    let site = Site::start().await;
    let request = site.request(Method::DELETE, "/test/write").bearer_auth(&site.admin);
    assert_eq!(problem(request.send().await.unwrap(), 500).await.code, Code::Internal);
    assert_eq!(site.get("/healthz").await.status(), 200);
    assert_eq!(site.running.stop().await.panicked, ["write"]);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_their_turn() {
    let limits = hoist_chassis::Limits { max_connections: 1, ..crate::site::limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let mut first = connect(&site).await;
    first.write_all(b"GET ").await.unwrap();
    let mut second = connect(&site).await;
    second
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut byte = [0];
    assert!(timeout(Duration::from_millis(100), second.read(&mut byte)).await.is_err());
    drop(first);
    assert!(rest(&mut second).await.starts_with("HTTP/1.1 200"));
    site.stop().await;
}

#[tokio::test]
async fn silent_clients_occupy_no_slot() {
    let limits = hoist_chassis::Limits {
        max_connections: 1,
        header_timeout: Duration::from_mins(1),
        ..crate::site::limits()
    };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let silent = [connect(&site).await, connect(&site).await];
    let mut client = connect(&site).await;
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 200"));
    drop(silent);
    site.stop().await;
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered() {
    let limits = hoist_chassis::Limits {
        request_timeout: Duration::from_millis(100),
        ..crate::site::limits()
    };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    assert_eq!(problem(site.get("/test/wait").await, 503).await.code, Code::Timeout);
    let request = site.request(Method::PATCH, "/test/write").bearer_auth(&site.admin);
    assert_eq!(problem(request.send().await.unwrap(), 503).await.code, Code::OutcomeUnknown);
    site.gates.open.notify_waiters();
    site.stop().await;
}
