//! Files over plain connections: sent by the kernel, as the router's answer.

use std::collections::HashSet;
use std::time::Duration;

use hoist_api::admin::Context;
use hoist_chassis::auth::Policy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::plain::{Client, LONG};
use crate::site::{BIG, Site, file_content, limits};

const FILE: &str = "GET /test/files/a HTTP/1.1\r\nhost: h\r\n\r\n";
const DIRECT: &str = "GET /boot/v1/test HTTP/1.1\r\nhost: h\r\n\r\n";

fn content() -> Vec<u8> {
    file_content().split_off(1)
}

#[tokio::test]
async fn file_is_sent_as_hyper_sends_its_body() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    let mut fields = Vec::new();
    // Hyper answers the second.
    for more in ["", "upgrade: none\r\n"] {
        client.send(&FILE.replace("host:", &format!("{more}x-request-id: a\r\nhost:"))).await;
        let (head, body) = client.answer().await;
        assert!(body == content(), "{} bytes", body.len());
        let mut lines: Vec<_> = head.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with("date: "));
        assert_eq!(lines.len() + 1, head.lines().count());
        lines.sort();
        fields.push(lines);
    }
    assert_eq!(fields[0], fields[1]);
    site.stop().await;
}

/// The body of this answer differs from the file, which shows who sent it.
#[tokio::test]
async fn kernel_sends_the_file_and_the_body_is_not_read() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    let other = FILE.replace("files/a", "files/other");
    client.send(&other).await;
    assert!(client.answer().await.1 == content(), "the file, by sendfile");
    // Hyper reads the body.
    client.send(&other.replace("host:", "upgrade: none\r\nhost:")).await;
    let body = client.answer().await.1;
    assert!(body.len() == content().len() && body.iter().all(|byte| *byte == b'b'));
    site.stop().await;
}

#[tokio::test]
async fn connection_goes_on_after_a_file_or_an_error() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(DIRECT).await;
    assert_eq!(client.text().await, "direct ");
    client.send(FILE).await;
    assert!(client.answer().await.1 == content());
    client.send(&FILE.replace("files/a", "files/missing")).await;
    let (head, body) = client.answer().await;
    assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n"), "{head}");
    assert_eq!(body, b"there is none");
    client.send(DIRECT).await;
    assert_eq!(client.text().await, "direct ");
    client.send(FILE).await;
    assert!(client.answer().await.1 == content());
    client.send(&FILE.replace("host:", "Connection: close\r\nhost:")).await;
    let (head, body) = client.answer().await;
    assert!(head.contains("connection: close\r\n") && body == content(), "{head}");
    client.closed().await;
    site.stop().await;
}

#[tokio::test]
async fn locked_files_need_a_token() {
    let policy = Policy { locked: HashSet::from([Context::Boot]), ..Policy::default() };
    let site = Site::start_with(|builder| builder.policy(policy)).await;
    let mut client = Client::connect(&site).await;
    client.send(FILE).await;
    assert!(client.answer().await.0.starts_with("HTTP/1.1 401 "));
    let token = format!("authorization: Bearer {}\r\nhost:", site.admin);
    client.send(&FILE.replace("host:", &token)).await;
    assert!(client.answer().await.1 == content());
    site.stop().await;
}

#[tokio::test]
async fn file_that_is_too_short_breaks_the_answer_off() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(&FILE.replace("files/a", "files/short")).await;
    let mut read = Vec::new();
    let _ = timeout(LONG, client.0.read_to_end(&mut read)).await.expect("in time");
    assert!(read.ends_with(&content()[BIG / 2..]));
    site.stop().await;
}

#[tokio::test]
async fn slow_reader_gets_the_whole_file() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(FILE).await;
    let mut head = [0; 64];
    client.0.read_exact(&mut head).await.expect("a head");
    // Longer than a connection may be idle.
    tokio::time::sleep(2 * limits().header_timeout).await;
    client.0.shutdown().await.expect("it is open");
    let mut read = Vec::new();
    timeout(LONG, client.0.read_to_end(&mut read)).await.expect("in time").expect("all of it");
    assert!(read.ends_with(&content()));
    site.stop().await;
}

#[tokio::test]
async fn client_that_takes_nothing_of_a_file_is_cut() {
    let limits = hoist_chassis::Limits { write_stall: Duration::from_millis(100), ..limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let mut client = Client::connect(&site).await;
    client.send(&FILE.replace("files/a", "files/huge")).await;
    // A client cannot observe the cut before it reads.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut read = Vec::new();
    let _ = timeout(LONG, client.0.read_to_end(&mut read)).await.expect("in time");
    assert!(read.len() < 16 * BIG, "{}", read.len());
    site.stop().await;
}

#[tokio::test]
async fn stop_lets_a_file_end() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(FILE).await;
    let mut head = [0; 64];
    client.0.read_exact(&mut head).await.expect("a head");
    let (_, read) = tokio::join!(site.stop(), async {
        let mut read = Vec::new();
        timeout(LONG, client.0.read_to_end(&mut read)).await.expect("in time").expect("all of it");
        read
    });
    assert!(read.ends_with(&content()));
}
