//! Content on its way in.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use hoist_server::artifacts::MAX_BLOB_BYTES;
use hoist_server::controller::Config;
use serde_json::json;
use tokio::sync::mpsc;

use crate::artifacts::content::{MIB, artifact, blob_path, content, digest};
use crate::site::{Answer, Site, plain_client};

const DEADLINE: Duration = Duration::from_secs(30);

impl Site {
    /// Waits until so much of it is here.
    async fn has_received(&self, content: &[u8], count: usize) {
        let enough = |answer: &Answer| answer.json()["received"].as_u64() >= Some(count as u64);
        self.eventually(&blob_path(content), enough).await;
    }
}

#[tokio::test]
async fn interrupted_upload_continues_at_its_position() {
    let site = Site::start().await;
    let image = content(3 * MIB, 1);
    let fresh = site.get(&blob_path(&image)).await.expect(200).json();
    let sha256 = digest(&image).to_string();
    assert_eq!(fresh, json!({"sha256": sha256, "whole": false, "received": 0}));

    let half = MIB + 5;
    let brought = site.bring(&image, 0, &image[..half]).await.expect(200).json();
    assert_eq!(brought, json!({"sha256": sha256, "whole": false, "received": half}));
    site.fetch_content(&image).await.problem(404, "not-found");
    for wrong in [0, half - 1, half + 1] {
        let problem = site.bring(&image, wrong, &image[wrong..]).await.problem(409, "conflict");
        assert_eq!(problem.conflicts[0].value, half.to_string());
    }

    // Also when the controller was stopped meanwhile.
    let site = site.restart().await;
    let whole = site.bring(&image, half, &image[half..]).await.expect(200).json();
    assert_eq!(whole, json!({"sha256": sha256, "whole": true, "received": image.len()}));
    assert!(site.fetch_content(&image).await.expect(200).body == image);
    assert!(!site.part_file(&image).exists());
    // Once more does no harm, whatever the offset.
    site.bring(&image, 0, &image).await.expect(200);
    assert!(site.fetch_content(&image).await.body == image);
    let entries = site.audit().await;
    let object = blob_path(&image);
    assert_eq!(entries.iter().filter(|entry| entry.object == object).count(), 1, "{entries:?}");
    site.stop().await;
}

#[tokio::test]
async fn bytes_before_a_broken_connection_are_kept() {
    let site = Site::start().await;
    let image = content(4 * MIB, 2);
    let parts = vec![
        Ok(Bytes::from(image[..2 * MIB].to_vec())),
        Err(std::io::Error::other("the cable was pulled")),
    ];
    let url = site.url(&format!("{}?offset=0&size={}", blob_path(&image), image.len()));
    let body = reqwest::Body::wrap_stream(stream::iter(parts));
    let client = plain_client().build().expect("a client");
    let sent = client.patch(url).bearer_auth(&site.admin).body(body).send().await;
    assert!(sent.is_err(), "{sent:?}");
    // All bytes written before arrive, or a few less: never more, never other bytes.
    let received = async {
        loop {
            let found = site.get(&blob_path(&image)).await.json()["received"].as_u64();
            let found = usize::try_from(found.expect("a number")).expect("small");
            let answer = site.bring(&image, found, &image[found..]).await;
            if answer.status == 200 {
                return answer.json();
            }
            // The first one is still at it, or wrote its last bytes just now.
            assert_eq!(answer.status, 409, "{}", answer.text());
        }
    };
    let brought = tokio::time::timeout(DEADLINE, received).await.expect("the first one ends");
    assert_eq!(brought["whole"], true);
    assert!(site.fetch_content(&image).await.body == image);
    site.stop().await;
}

#[tokio::test]
async fn content_with_wrong_digest_is_refused_and_dropped() {
    let site = Site::start().await;
    let right = content(MIB, 3);
    let mut wrong = content(MIB, 3);
    wrong[MIB / 2] ^= 1;
    let problem = site.bring(&right, 0, &wrong).await.problem(400, "invalid-body");
    assert!(problem.detail.contains(&digest(&wrong).to_string()), "{}", problem.detail);
    assert!(!site.part_file(&right).exists() && !site.blob_file(&right).exists());
    assert_eq!(site.get(&blob_path(&right)).await.json()["received"], 0);
    site.bring(&right, 0, &right).await.expect(200);
    assert!(site.fetch_content(&right).await.body == right);
    site.stop().await;
}

#[tokio::test]
async fn sizes_have_a_limit_and_are_not_exceeded() {
    let site = Site::start().await;
    let small = content(10, 4);
    let asked = |size: u64| format!("{}?offset=0&size={size}", blob_path(&small));
    // Whether that much fits is up to the disk.
    let largest = site.ask("PATCH", &asked(MAX_BLOB_BYTES)).send().await;
    assert!(matches!(largest.status, 200 | 507), "{}", largest.text());
    site.ask("PATCH", &asked(MAX_BLOB_BYTES + 1)).send().await.problem(413, "body-too-large");
    let longer = site.ask("PATCH", &asked(9)).body(small.clone()).send().await;
    longer.problem(400, "invalid-body");
    for query in ["", "?offset=0", "?size=3", "?offset=-1&size=3", "?offset=0&size=kettle"] {
        let path = format!("{}{query}", blob_path(&small));
        site.ask("PATCH", &path).send().await.problem(400, "bad-parameter");
    }
    site.ask("PATCH", "/boot/v2/blobs/kettle?offset=0&size=1").send().await.expect(400);
    // Nothing is content too.
    let whole = site.bring(&[], 0, &[]).await.expect(200).json();
    assert_eq!((&whole["whole"], &whole["received"]), (&json!(true), &json!(0)));
    let answer = site.fetch_content(&[]).await.expect(200);
    assert_eq!(answer.header("content-length"), "0");
    site.stop().await;
}

/// A body that comes piece by piece.
fn pieces() -> (mpsc::Sender<Result<Bytes, std::io::Error>>, reqwest::Body) {
    let (sender, receiver) = mpsc::channel(1);
    let body = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<_>| {
        receiver.recv().await.map(|bytes| (bytes, receiver))
    });
    (sender, reqwest::Body::wrap_stream(body))
}

#[tokio::test]
async fn concurrent_upload_of_the_same_content_is_refused() {
    let site = Site::start().await;
    let image = content(2 * MIB, 5);
    site.apply(&[artifact("image", &image)]).await;
    let (sender, body) = pieces();
    let path = format!("{}?offset=0&size={}", blob_path(&image), image.len());
    let first = site.ask("PATCH", &path).body(body).send();
    let second = async {
        sender.send(Ok(Bytes::from(image[..MIB].to_vec()))).await.expect("it is taken");
        site.has_received(&image, MIB).await;
        site.bring(&image, MIB, &image[MIB..]).await.problem(409, "busy");
        // Unverified content is not served.
        site.fetch_content(&image).await.problem(404, "not-found");
        sender.send(Ok(Bytes::from(image[MIB..].to_vec()))).await.expect("it is taken");
        drop(sender);
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.expect(200).json()["whole"], true);
    assert!(site.fetch_content(&image).await.body == image);
    site.stop().await;
}

#[tokio::test]
async fn full_disk_is_reported_and_other_work_continues() {
    let site = Site::start().await;
    let image = content(2 * MIB, 6);
    let other = content(MIB, 7);
    let part = site.part_file(&image);
    fs_err::create_dir_all(part.parent().expect("it has one")).expect("a directory");
    fs_err::os::unix::fs::symlink("/dev/full", &part).expect("a disk without room");
    let problem = site.bring(&image, 0, &image).await.problem(507, "store-full");
    assert!(problem.remedy.is_some());
    site.get("/readyz").await.expect(200);
    site.add_artifact("other", &other).await;
    assert!(site.fetch_content(&other).await.body == other);
    site.bring(&image, 0, &image).await.expect(200);
    site.stop().await;
}

/// A small disk for everything that a controller has.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: &std::path::Path, mib: usize) -> Self {
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        let done = mount.status().expect("mount is installed");
        assert!(done.success(), "this test mounts a tmpfs and has to run as root");
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_leave_room_for_the_store_on_their_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Disk::mount(dir.path(), 64);
    let mut config = Config::new(dir.path());
    config.listen = Some((std::net::Ipv4Addr::LOCALHOST, 0).into());
    let site = Site::start_again(dir, config).await;
    // Too large content is refused before its first byte.
    let large = content(56 * MIB, 9);
    site.bring(&large, 0, &large[..MIB]).await.problem(507, "store-full");
    assert!(!site.part_file(&large).exists());

    // What fits no more while it comes is broken off.
    let image = content(20 * MIB, 10);
    let filler = site.data_dir().join("filler");
    let (sender, body) = pieces();
    let path = format!("{}?offset=0&size={}", blob_path(&image), image.len());
    let upload = site.ask("PATCH", &path).body(body).send();
    let meanwhile = async {
        sender.send(Ok(Bytes::from(image[..4 * MIB].to_vec()))).await.expect("it is taken");
        site.has_received(&image, 3 * MIB).await;
        fs_err::write(&filler, vec![0; 36 * MIB]).expect("there is room for it");
        for piece in image[4 * MIB..].chunks(MIB) {
            // Refused at some time.
            let _ = sender.send(Ok(Bytes::copy_from_slice(piece))).await;
        }
        drop(sender);
    };
    let (upload, ()) = tokio::join!(upload, meanwhile);
    upload.problem(507, "store-full");
    // The rest of the controller does not notice.
    site.apply(&[artifact("other", &content(10, 11))]).await;
    site.get("/readyz").await.expect(200);
    let unfinished = async || {
        let gc = site.ask("POST", "/boot/v2/artifacts/gc?unfinished=1").send().await;
        gc.expect(200).json()["leftovers"].clone()
    };
    assert!(site.part_file(&image).exists());
    assert_eq!(unfinished().await, 1);
    assert!(!site.part_file(&image).exists());
    fs_err::remove_file(&filler).expect("it is there");
    site.bring(&image, 0, &image).await.expect(200);
    site.stop().await;
    drop(disk);
}

#[tokio::test]
async fn upload_and_maintenance_need_their_scopes() {
    let site = Site::start().await;
    let scopes = |verb: &str| json!([{"verbs": [verb], "contexts": ["boot"]}]);
    let reader = site.token(scopes("read")).await;
    let small = content(10, 8);
    let path = format!("{}?offset=0&size=10", blob_path(&small));
    site.ask_as_nobody("PATCH", &path).send().await.problem(401, "unauthenticated");
    site.ask_as(&reader, "PATCH", &path).send().await.problem(403, "forbidden");
    site.ask_as(&reader, "GET", &blob_path(&small)).send().await.expect(200);
    site.ask_as(&reader, "GET", "/boot/v2/artifacts").send().await.expect(200);
    for path in ["/boot/v2/artifacts/gc", "/boot/v2/artifacts/verify"] {
        site.ask_as(&reader, "POST", path).send().await.problem(403, "forbidden");
    }
    site.stop().await;
}
