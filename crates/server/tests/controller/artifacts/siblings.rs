//! Several controllers: missing content comes from a sibling, while machines already read it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::artifacts::content::{MIB, artifact, content, digest};
use crate::site::Site;

/// A way to a controller that breaks each connection after so many bytes of answers.
struct Relay {
    addr: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
    passed: Arc<AtomicU64>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Relay {
    async fn to(site: &Site, cut_after: Option<u64>) -> Self {
        let relay = Self::cutting(cut_after).await;
        relay.lead_to(site);
        relay
    }

    /// One that leads nowhere yet: who comes waits.
    async fn bound() -> Self {
        Self::cutting(None).await
    }

    fn lead_to(&self, site: &Site) {
        self.target.send_replace(site.controller.plain_addr());
    }

    async fn cutting(cut_after: Option<u64>) -> Self {
        let (target, found) = watch::channel(None::<SocketAddr>);
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let addr = listener.local_addr().expect("it is bound");
        let passed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&passed);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut found = found.clone();
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let target = found.wait_for(Option::is_some).await.map(|found| *found);
                    if let Ok(Some(target)) = target {
                        relay(client, target, cut_after, count).await;
                    }
                });
            }
        });
        Self { addr, target, passed, accepting }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn relay(client: TcpStream, target: SocketAddr, cut: Option<u64>, passed: Arc<AtomicU64>) {
    let server = TcpStream::connect(target).await.expect("the controller listens");
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth =
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut buffer = vec![0; 64 * 1024];
    let mut left = cut.unwrap_or(u64::MAX);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let Ok(count @ 1..) = from_server.read(&mut buffer[..most]).await else { break };
        if to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
        left -= count as u64;
        passed.fetch_add(count as u64, Ordering::SeqCst);
    }
    forth.abort();
}

/// How a controller that should send content fails.
#[derive(Clone, Copy)]
enum Bad {
    /// It takes the request and says nothing.
    Hangs,
    /// It sends a byte now and then.
    Drips,
    /// It sends more than it said.
    Exceeds,
}

/// Something that answers as a bad controller.
async fn bad_controller(bad: Bad, content: &[u8]) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let content = Bytes::copy_from_slice(content);
    let accepting = tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            open.spawn(answer_badly(bad, client, content.clone()));
        }
    });
    (url, accepting)
}

async fn answer_badly(bad: Bad, mut client: TcpStream, content: Bytes) {
    let _ = client.read(&mut vec![0; 4096]).await;
    let size = content.len();
    let _ = match bad {
        Bad::Hangs => Ok(()),
        Bad::Drips => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
            let _ = client.write_all(head.as_bytes()).await;
            let mut bytes = content.chunks(1);
            while let Some(byte) = bytes.next()
                && client.write_all(byte).await.is_ok()
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }
        Bad::Exceeds => {
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\
                 Content-Range: bytes 0-{}/{size}\r\n\r\n",
                size + 5,
                size - 1
            );
            client.write_all(&[head.as_bytes(), &content, b"extra"].concat()).await
        }
    };
    std::future::pending::<()>().await;
}

/// A controller that knows of `content` and asks these for it.
async fn lacking(content: &[u8], advertise: Vec<String>) -> Site {
    let site = Site::start_with(|config| config.boot.scripts.advertise = advertise).await;
    site.apply(&[artifact("image", content)]).await;
    site
}

async fn having(content: &[u8]) -> Site {
    let site = Site::start().await;
    site.add_artifact("image", content).await;
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_content_is_fetched_once_for_all_who_ask() {
    let image = content(6 * MIB + 3, 1);
    let sibling = having(&image).await;
    let relay = Relay::to(&sibling, None).await;
    let site = lacking(&image, vec![relay.url()]).await;

    // Asking about it fetches nothing.
    let path = format!("/artifacts/{}/image", digest(&image));
    let head = site.ask_as_nobody("HEAD", &path).send().await.expect(200);
    assert_eq!(head.header("content-length"), image.len().to_string());
    let asked = relay.passed();
    assert!(asked < 10_000, "{asked}");

    let whole = (0..8).map(|_| site.fetch(&path));
    let ranged = site.ask_as_nobody("GET", &path).header("range", "bytes=5000000-5000009").send();
    let (answers, part) = tokio::join!(futures_util::future::join_all(whole), ranged);
    for answer in answers {
        assert!(answer.expect(200).body == image);
    }
    assert!(part.expect(206).body == image[5_000_000..5_000_010]);
    let once = image.len() as u64;
    assert!((once..once + 20_000).contains(&relay.passed()), "{}", relay.passed());

    // From here on it is here.
    eventually_async("pulled content is stored", async || site.blob_file(&image).exists()).await;
    sibling.stop().await;
    assert!(site.fetch(&path).await.expect(200).body == image);
    assert!(site.get("/metrics").await.text().contains("hoist_artifact_pulls_total"));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_controller_completes_a_transfer_of_a_dead_one() {
    let image = content(8 * MIB, 2);
    let one = having(&image).await;
    let two = having(&image).await;
    let dying = Relay::to(&one, Some(3 * MIB as u64)).await;
    let living = Relay::to(&two, None).await;
    let site = lacking(&image, vec![dying.url(), living.url()]).await;
    assert!(site.fetch_content(&image).await.expect(200).body == image);
    assert_eq!(dying.passed(), 3 * MIB as u64);
    let rest = living.passed();
    assert!(rest > 4 * MIB as u64 && rest < 6 * MIB as u64, "{rest}");
    site.stop().await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatedly_broken_connection_still_transfers_everything() {
    let image = content(8 * MIB, 3);
    let sibling = having(&image).await;
    let relay = Relay::to(&sibling, Some(3 * MIB as u64)).await;
    let site = lacking(&image, vec![relay.url()]).await;
    assert!(site.fetch_content(&image).await.expect(200).body == image);
    site.stop().await;
    sibling.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_content_of_a_sibling_is_never_served_whole() {
    let image = content(2 * MIB, 4);
    let bad = having(&image).await;
    let good = having(&image).await;
    let mut damaged = image.clone();
    damaged[MIB] ^= 1;
    let file = bad.blob_file(&image);
    fs_err::remove_file(&file).expect("it is there");
    fs_err::write(&file, damaged).expect("it can be damaged");
    let path = format!("/artifacts/{}", digest(&image));
    let ranged = lacking(&image, vec![bad.url("")]).await;
    let ask = ranged.ask_as_nobody("GET", &path).header("range", "bytes=1048570-1048590");
    // The connection is cut; of so short a range, perhaps before its head has left.
    if let Ok(broken) = ask.try_open().await {
        // Unverified content is not for caches, and has no tag.
        assert_eq!(broken.headers()["cache-control"], "no-store");
        assert!(broken.headers().get("etag").is_none(), "{broken:?}");
        assert!(broken.bytes().await.is_err(), "the last byte of a range is held back too");
    }
    ranged.stop().await;

    let site = lacking(&image, vec![bad.url(""), good.url("")]).await;
    let broken = site.ask_as_nobody("GET", &path).open().await;
    assert!(broken.bytes().await.is_err(), "the last byte is held back");
    // The next request goes to the other sibling first.
    // Until the failed transfer has ended, the answer is a refusal.
    let bytes = eventually_async("content comes from the good sibling", async || {
        site.ask_as_nobody("GET", &path).try_open().await?.error_for_status()?.bytes().await
    })
    .await;
    assert!(bytes == image);
    site.stop().await;
    bad.stop().await;
    good.stop().await;
}

/// It takes those ten seconds; a machine waits that long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_or_slow_controller_is_replaced_by_another() {
    let image = content(2 * MIB, 8);
    let good = having(&image).await;
    let fetched = async |bad: Bad| {
        let (url, accepting) = bad_controller(bad, &image).await;
        let site = lacking(&image, vec![url, good.url("")]).await;
        let path = format!("/artifacts/{}", digest(&image));
        let answer = site.ask_as_nobody("GET", &path).open().await;
        let bytes = tokio::time::timeout(Duration::from_secs(45), answer.bytes()).await;
        let bytes = bytes.expect("it comes to its end").expect("it comes whole");
        assert!(bytes == image);
        accepting.abort();
        site.stop().await;
    };
    tokio::join!(fetched(Bad::Hangs), fetched(Bad::Drips), fetched(Bad::Exceeds));
    good.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_without_the_content_do_not_query_in_circles() {
    // Relays have their ports before the controllers that they lead to.
    let relays = [Relay::bound().await, Relay::bound().await];
    let urls: Vec<String> = relays.iter().map(Relay::url).collect();
    let image = content(1000, 5);
    let mut sites = Vec::new();
    for relay in &relays {
        let site = lacking(&image, urls.clone()).await;
        relay.lead_to(&site);
        sites.push(site);
    }
    for site in &sites {
        site.fetch_content(&image).await.problem(404, "not-found");
        assert!(!site.part_file(&image).exists());
    }
    // Brought to one, it is at the other.
    sites[0].bring(&image, 0, &image).await.expect(200);
    assert!(sites[1].fetch_content(&image).await.expect(200).body == image);
    for site in sites {
        site.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_controller_is_reported() {
    let image = content(1000, 6);
    // The port is reserved, and no server listens on it.
    let nowhere = tokio::net::TcpSocket::new_v4().expect("a socket");
    nowhere.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let addr = nowhere.local_addr().expect("it is bound");
    let site = lacking(&image, vec![format!("http://{addr}")]).await;
    site.fetch_content(&image).await.problem(502, "source-failed");
    // Undeclared content is not requested from siblings.
    site.fetch_content(b"kettle").await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_of_one_store_share_uploaded_content() {
    let store = EtcdServer::shared().url("artifacts");
    let image = content(3 * MIB, 7);
    let one = Site::start_with(|config| config.store.clone_from(&store)).await;
    one.add_artifact("image", &image).await;
    let url = one.url("");
    let two = one.start_beside(|config| config.boot.scripts.advertise = vec![url]).await;
    assert!(two.fetch("/artifacts/by-name/image").await.expect(200).body == image);
    two.stop().await;
    one.stop().await;
}
