//! Documents of another service, fetched for the node that asks, whatever that service does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_testkit::eventually_async;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::metadata::{DOCUMENTS, ask, ask_from, metric, mode, seed, site, spec};
use crate::site::{Site, document};

/// A node never waits longer than its budget.
const BUDGET: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Good,
    /// Has no network-config, as `OpenCHAMI`'s.
    Three,
    /// Has nothing at all.
    Empty,
    Hangs,
    /// Sends the beginning of a document and no more.
    Drips,
    /// Says that there is more than it sends.
    LiesLonger,
    /// Says nothing of how much there is, and sends 100 MB.
    Endless,
    /// Says that there are 100 MB.
    Huge,
    Fails,
    Garbage,
    /// Has an answer for everything, and nothing in it.
    NoContent,
    NoBytes,
    /// A login page.
    Html,
    /// Meta-data that is a million times as much as it is long.
    Bomb,
    /// Meta-data that does not say who the node is.
    Nameless,
}

/// Another service, with scripted behaviour.
struct Other {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

struct State {
    manner: Manner,
    /// Heads of requests, in lower case.
    asked: Vec<String>,
}

impl Other {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State { manner, asked: Vec::new() }));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer(stream, Arc::clone(&shared)));
            }
        });
        Self { addr, state, task }
    }

    fn url(&self) -> String {
        format!("http://{}/of/{{name}}", self.addr)
    }

    fn permits(&self, manner: Manner) {
        self.state.lock().manner = manner;
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().asked)
    }
}

async fn answer(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let manner = {
        let mut state = state.lock();
        state.asked.push(head.clone());
        state.manner
    };
    let path = head.split(' ').nth(1).expect("a path").to_owned();
    let (node, name) = path.strip_prefix("/of/").expect("ours").split_once('/').expect("two");
    let body = said(node, name);
    let whole = |body: &str| {
        let length = body.len();
        let etag = format!("\"{name}-1\"");
        if head.contains(&format!("if-none-match: {etag}")) {
            return "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".to_owned();
        }
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\netag: {etag}\r\n\
             connection: close\r\n\r\n{body}"
        )
    };
    let fresh = |body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
    };
    let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let text = match manner {
        Manner::Good => whole(&body),
        Manner::Three if name != "network-config" => whole(&body),
        Manner::Three | Manner::Empty => none.to_owned(),
        Manner::Fails => {
            "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
        }
        Manner::NoContent => "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned(),
        Manner::NoBytes => fresh(""),
        Manner::Html => fresh("<html>login</html>"),
        Manner::Bomb => fresh(&bomb()),
        Manner::Nameless => fresh("hostname: n1\n"),
        Manner::Garbage => "what?\r\n\r\n".to_owned(),
        Manner::Huge => format!("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n{body}"),
        Manner::Drips | Manner::LiesLonger => {
            format!("HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{body}")
        }
        Manner::Hangs => String::new(),
        Manner::Endless => "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_owned(),
    };
    if stream.write_all(text.as_bytes()).await.is_err() {
        return;
    }
    match manner {
        Manner::Hangs | Manner::Drips => {
            // Until the other side has had enough.
            let _ = stream.read(&mut byte).await;
        }
        Manner::Endless => {
            let chunk = vec![b'x'; 1_000_000];
            for _ in 0..100 {
                if stream.write_all(&chunk).await.is_err() {
                    return;
                }
            }
        }
        _ => {}
    }
}

/// A document of the service when it works.
fn said(node: &str, name: &str) -> String {
    match name {
        "meta-data" => format!("instance-id: i-{node}\n"),
        _ => format!("{name} of {node}\n"),
    }
}

fn bomb() -> String {
    let mut text = "instance-id: i\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..6 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").expect("writing to a string");
    }
    text
}

async fn documents(site: &Site, path: &str) -> BTreeMap<&'static str, (u16, String)> {
    let mut all = BTreeMap::new();
    for name in DOCUMENTS {
        let answer = ask(site, &format!("{path}{name}")).await;
        all.insert(name, (answer.status, answer.text()));
    }
    all
}

/// Asks until the controller asks the other service for the documents again.
async fn until_asked(site: &Site, other: &Other, path: &str) {
    other.asked();
    eventually_async("other service is asked again", async || {
        ask(site, &format!("{path}meta-data")).await;
        !other.asked().is_empty()
    })
    .await;
}

#[tokio::test]
async fn four_documents_are_fetched_once_and_revalidated_by_etag() {
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    assert!(path.starts_with("/meta/v1/seed/"), "{path}");
    let first = documents(&site, &path).await;
    assert_eq!(first["user-data"], (200, "user-data of n1\n".to_owned()));
    let asked = other.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked.iter().all(|head| head.contains("x-forwarded-for: 10.0.0.1\r\n")), "{asked:?}");
    assert!(asked.iter().all(|head| !head.contains("if-none-match")), "{asked:?}");
    // Later it is only asked whether they are the same.
    let again = eventually_async("other service is asked again", async || {
        assert_eq!(documents(&site, &path).await, first);
        Some(other.asked()).filter(|again| !again.is_empty())
    })
    .await;
    assert!(again.iter().all(|head| head.contains("if-none-match: \"")), "{again:?}");
    // Another node has its own.
    let of_n2 = documents(&site, &seed(&site, 2).await).await;
    assert_eq!(of_n2["meta-data"], (200, "instance-id: i-n2\n".to_owned()));
    assert!(other.asked().iter().all(|head| head.contains("x-forwarded-for: 10.0.0.2\r\n")));
    site.stop().await;
    other.task.abort();
}

#[tokio::test]
async fn missing_upstream_documents_are_empty_except_the_identity() {
    let other = Other::start(Manner::Three).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    let all = documents(&site, &path).await;
    assert_eq!(all["network-config"], (200, String::new()));
    assert_eq!(all["vendor-data"], (200, "vendor-data of n1\n".to_owned()));
    other.permits(Manner::Empty);
    let of_n2 = seed(&site, 2).await;
    let answer = ask(&site, &format!("{of_n2}meta-data")).await;
    answer.problem(503, "held");
    assert_eq!(answer.header("retry-after"), "5");
    site.stop().await;
    other.task.abort();
}

#[tokio::test]
async fn failing_upstream_costs_one_node_its_budget_only() {
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    for manner in [
        Manner::Hangs,
        Manner::Drips,
        Manner::LiesLonger,
        Manner::Huge,
        Manner::Endless,
        Manner::Fails,
        Manner::Garbage,
    ] {
        other.permits(manner);
        let started = Instant::now();
        let answer = ask(&site, &format!("{path}user-data")).await;
        let took = started.elapsed();
        answer.problem(503, "held");
        assert!(!answer.text().contains("user-data of"), "{manner:?}");
        // On a machine that does other things too.
        assert!(took < BUDGET + Duration::from_secs(3), "{manner:?}: {took:?}");
        // Booting has nothing to do with it.
        assert_eq!(seed(&site, 1).await, path);
    }
    site.stop().await;
    other.task.abort();
}

#[tokio::test]
async fn last_good_documents_are_served_when_upstream_is_gone() {
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    let good = documents(&site, &path).await;
    let stale = "hoist_metadata_proxy_stale_total";
    let before = metric(&site, stale).await;
    other.permits(Manner::Hangs);
    until_asked(&site, &other, &path).await;
    assert_eq!(documents(&site, &path).await, good);
    assert!(metric(&site, stale).await > before);
    // The service no longer listens.
    other.task.abort();
    let before = metric(&site, stale).await;
    eventually_async("count of stale documents grows", async || {
        assert_eq!(documents(&site, &path).await, good);
        metric(&site, stale).await > before
    })
    .await;
    assert_eq!(documents(&site, &path).await, good);
    // One that was never there has nothing to fall back to.
    let of_n2 = seed(&site, 2).await;
    ask(&site, &format!("{of_n2}meta-data")).await.problem(503, "held");
    site.stop().await;
}

#[tokio::test]
async fn document_without_identity_does_not_replace_a_good_one() {
    let wrong = [Manner::NoContent, Manner::NoBytes, Manner::Html, Manner::Bomb, Manner::Nameless];
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    let good = documents(&site, &path).await;
    assert_eq!(good["meta-data"], (200, "instance-id: i-n1\n".to_owned()));
    let of_n2 = seed(&site, 2).await;
    for manner in wrong {
        other.permits(manner);
        until_asked(&site, &other, &path).await;
        assert_eq!(documents(&site, &path).await, good, "{manner:?}");
        ask(&site, &format!("{of_n2}meta-data")).await.problem(503, "held");
    }
    site.stop().await;
    other.task.abort();
}

#[tokio::test]
async fn concurrent_requests_for_one_node_fetch_once() {
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = format!("{}meta-data", seed(&site, 1).await);
    let all = (0..200).map(|_| ask(&site, &path));
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer.expect(200).text(), "instance-id: i-n1\n");
    }
    let asked = other.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    // Nor does each of them learn by itself that it fails.
    other.permits(Manner::Fails);
    let path = format!("{}meta-data", seed(&site, 2).await);
    let all = (0..100).map(|_| ask(&site, &path));
    for answer in futures_util::future::join_all(all).await {
        answer.problem(503, "held");
    }
    let asked = other.asked();
    assert!(asked.len() < 40, "{}", asked.len());
    site.stop().await;
    other.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn meta_data_bomb_delays_no_client() {
    let other = Other::start(Manner::Bomb).await;
    let site = Arc::new(site(mode("proxy", other.url())).await);
    let asking = (0..8).map(|_| {
        let site = Arc::clone(&site);
        tokio::spawn(async move { ask_from(&site, "10.0.0.1", "/latest/meta-data").await })
    });
    let asking: Vec<_> = asking.collect();
    while other.asked().is_empty() {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    while asking.iter().any(|one| !one.is_finished()) {
        ask(&site, "/healthz").await.expect(200);
    }
    assert!(started.elapsed() < BUDGET, "{:?}", started.elapsed());
    for one in asking {
        one.await.expect("an answer").problem(503, "held");
    }
    Arc::into_inner(site).expect("nobody else has it").stop().await;
    other.task.abort();
}

/// The copies on disk, once there are so many.
async fn copies(site: &Site, count: usize) -> Vec<PathBuf> {
    eventually_async("copies of proxied documents", async || {
        let there = std::fs::read_dir(site.data_dir().join("proxied")).into_iter().flatten();
        let there = there.map(|entry| entry.expect("an entry").path());
        let whole = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 26);
        let there: Vec<_> = there.filter(whole).collect();
        if there.len() == count { Ok(there) } else { Err(there) }
    })
    .await
}

#[tokio::test]
async fn last_good_documents_carry_their_age_across_controllers() {
    let other = Other::start(Manner::Good).await;
    let site = site(mode("proxy", other.url())).await;
    let path = seed(&site, 1).await;
    let good = documents(&site, &path).await;
    let fresh = ask(&site, &format!("{path}meta-data")).await;
    assert!(!fresh.headers.contains_key("age"));
    let of_n2 = seed(&site, 2).await;
    documents(&site, &of_n2).await;
    copies(&site, 2).await;

    other.permits(Manner::Fails);
    let site = site.restart().await;
    let answer = ask(&site, &format!("{path}meta-data")).await.expect(200);
    let age: u64 = answer.header("age").parse().expect("seconds");
    assert!(age < 3600, "{age}");
    assert_eq!(documents(&site, &path).await, good);
    let metrics = site.get("/metrics").await.expect(200).text();
    assert!(metrics.contains("hoist_metadata_proxy_stale_age_seconds"), "{metrics}");

    // At another address the copy does not count.
    site.apply(&[document("Node", "n1", &spec(1, "10.0.0.9/8"))]).await;
    ask(&site, &format!("{path}meta-data")).await.problem(503, "held");

    // Damaged copies are not served.
    let site = site.restart().await;
    for copy in copies(&site, 2).await {
        let mut text = std::fs::read(&copy).expect("a copy");
        let middle = text.len() / 2;
        text[middle] ^= 1;
        std::fs::write(&copy, text).expect("a file can be written");
    }
    ask(&site, &format!("{of_n2}meta-data")).await.problem(503, "held");

    // The service is back, and so are its documents.
    other.permits(Manner::Good);
    let answer = ask(&site, &format!("{path}meta-data")).await.expect(200);
    assert!(!answer.headers.contains_key("age"));
    site.stop().await;
    other.task.abort();
}
