//! Plain connections that change between answers from memory and answers of the router.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::site::{BIG, Site};

const DIRECT: &str = "GET /boot/v1/test HTTP/1.1\r\nhost: h\r\n\r\n";
const ROUTED: &str = "GET /boot/v1/test?router HTTP/1.1\r\nhost: h\r\n\r\n";
pub(crate) const LONG: Duration = Duration::from_secs(10);

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn connect(site: &Site) -> Self {
        let addr = site.running.plain_addr().expect("it listens");
        Self(TcpStream::connect(addr).await.expect("a connection"))
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.expect("it takes it");
    }

    /// The next answer: its head and its body.
    pub(crate) async fn answer(&mut self) -> (String, Vec<u8>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(LONG, self.0.read_u8()).await.expect("in time").expect("a head"));
        }
        let head = String::from_utf8(head).expect("text");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.expect("a length").parse().expect("a number");
        let mut body = vec![0; length];
        timeout(LONG, self.0.read_exact(&mut body)).await.expect("in time").expect("a body");
        (head, body)
    }

    pub(crate) async fn text(&mut self) -> String {
        String::from_utf8(self.answer().await.1).expect("text")
    }

    /// Waits until the server closes; nothing may come before that.
    pub(crate) async fn closed(&mut self) {
        let mut rest = Vec::new();
        let read = timeout(LONG, self.0.read_to_end(&mut rest)).await.expect("in time");
        assert!(read.is_err() || rest.is_empty(), "{rest:?}");
    }
}

#[tokio::test]
async fn a_connection_may_ask_for_both() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    for request in [DIRECT, DIRECT, ROUTED, DIRECT, ROUTED] {
        client.send(request).await;
        let expected = if request == DIRECT { "direct " } else { "routed " };
        assert_eq!(client.text().await, expected);
    }
    site.stop().await;
}

#[tokio::test]
async fn host_counts_in_the_target_and_may_be_missing_on_open_routes() {
    let site = Site::start().await;
    let ask = async |line: &str, fields: &str| {
        let mut client = Client::connect(&site).await;
        let token = &site.admin;
        client.send(&format!("GET {line}\r\nauthorization: Bearer {token}\r\n{fields}\r\n")).await;
        let (head, _) = client.answer().await;
        head.split(' ').nth(1).expect("a status").to_owned()
    };
    for (line, fields, status) in [
        ("http://localhost/test/site HTTP/1.1", "host: localhost\r\n", "200"),
        ("http://evil.example/test/site HTTP/1.1", "host: localhost\r\n", "421"),
        ("http://localhost/test/site HTTP/1.1", "host: evil.example\r\n", "421"),
        ("/test/site HTTP/1.1", "host: localhost\r\nhost: evil.example\r\n", "421"),
        ("/test/site HTTP/1.0", "", "421"),
        ("/test/boot HTTP/1.0", "", "200"),
        ("/boot/v1/test HTTP/1.0", "", "200"),
        ("http://evil.example/test/boot HTTP/1.1", "host: evil.example\r\n", "200"),
    ] {
        assert_eq!(ask(line, fields).await, status, "{line} {fields}");
    }
    site.stop().await;
}

#[tokio::test]
async fn requests_in_one_piece_or_in_many_are_answered_in_order() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(&[DIRECT, ROUTED, DIRECT].concat()).await;
    for expected in ["direct ", "routed ", "direct "] {
        assert_eq!(client.text().await, expected);
    }
    let mut slow = Client::connect(&site).await;
    let (before, after) = DIRECT.split_at(20);
    slow.send(before).await;
    tokio::task::yield_now().await;
    slow.send(after).await;
    assert_eq!(slow.text().await, "direct ");
    site.stop().await;
}

#[tokio::test]
async fn plain_and_hyper_parsing_give_the_same_fields() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    let mut fields = Vec::new();
    // The second is answered from memory too, but by hyper.
    for more in ["", "upgrade: none\r\n"] {
        client.send(&DIRECT.replace("host:", &format!("{more}x-request-id: a\r\nhost:"))).await;
        let (head, body) = client.answer().await;
        assert_eq!(body, b"direct ");
        let mut lines: Vec<_> = head.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with("date: "));
        assert_eq!(lines.len() + 1, head.lines().count());
        lines.sort();
        fields.push(lines);
    }
    assert_eq!(fields[0], fields[1]);
    site.stop().await;
}

#[tokio::test]
async fn connection_close_is_honoured() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(&DIRECT.replace("host:", "Connection: close\r\nhost:")).await;
    assert!(client.answer().await.0.contains("connection: close\r\n"));
    client.closed().await;
    site.stop().await;
}

#[tokio::test]
async fn a_connection_that_asks_no_more_is_cut() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    // Answered more than once, and for longer than a connection may be idle.
    for _ in 0..5 {
        client.send(DIRECT).await;
        assert_eq!(client.text().await, "direct ");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.closed().await;
    site.stop().await;
}

#[tokio::test]
async fn a_stop_ends_a_connection_that_was_answered() {
    let limits =
        hoist_chassis::Limits { header_timeout: Duration::from_mins(1), ..crate::site::limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let mut client = Client::connect(&site).await;
    client.send(DIRECT).await;
    assert_eq!(client.text().await, "direct ");
    timeout(Duration::from_secs(3), site.stop()).await.expect("at once");
    client.closed().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_the_whole_answer() {
    let site = Site::start().await;
    let mut client = Client::connect(&site).await;
    client.send(&DIRECT.replace("test", "test?big")).await;
    // The answer has started, and does not fit into the buffers of the sockets.
    client.0.readable().await.expect("an answer");
    let (_, body) = client.answer().await;
    assert_eq!(body, vec![b'b'; BIG]);
    client.send(DIRECT).await;
    assert_eq!(client.text().await, "direct ");
    site.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_an_answer_is_cut() {
    let limits =
        hoist_chassis::Limits { write_stall: Duration::from_millis(100), ..crate::site::limits() };
    let site = Site::start_with(|builder| builder.limits(limits)).await;
    let mut client = Client::connect(&site).await;
    client.send(&DIRECT.replace("test", "test?big")).await;
    // A client cannot observe the cut before it reads.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut read = Vec::new();
    let _ = timeout(LONG, client.0.read_to_end(&mut read)).await.expect("in time");
    assert!(read.len() < BIG, "{}", read.len());
    site.stop().await;
}
