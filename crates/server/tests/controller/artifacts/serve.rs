//! What machines fetch.

use hoist_api::admin::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::artifacts::content::{MIB, artifact, content, digest};
use crate::site::Site;

#[tokio::test]
async fn uploaded_content_is_served_by_digest_and_by_name() {
    let site = Site::start().await;
    let kernel = content(3 * MIB + 17, 1);
    site.add_artifact("vmlinuz-6.1", &kernel).await;
    let digest = digest(&kernel);
    let tag = format!("\"sha256:{digest}\"");
    for (path, cache) in [
        (format!("/artifacts/{digest}"), "public, max-age=31536000, immutable"),
        (format!("/artifacts/sha256:{digest}"), "public, max-age=31536000, immutable"),
        (format!("/artifacts/{digest}/vmlinuz-6.1"), "public, max-age=31536000, immutable"),
        ("/artifacts/by-name/vmlinuz-6.1".to_owned(), "no-cache"),
    ] {
        let answer = site.fetch(&path).await.expect(200);
        assert!(answer.body == kernel, "{path}");
        assert_eq!(answer.header("etag"), tag);
        assert_eq!(answer.header("cache-control"), cache);
        assert_eq!(answer.header("accept-ranges"), "bytes");
        assert_eq!(answer.header("content-length"), kernel.len().to_string());
        let head = site.ask_as_nobody("HEAD", &path).send().await.expect(200);
        assert_eq!(head.header("content-length"), kernel.len().to_string());
        assert!(head.body.is_empty());
        let known = site.ask_as_nobody("GET", &path).header("if-none-match", &tag).send().await;
        assert!(known.expect(304).body.is_empty());
    }

    // A name follows its document; content never changes.
    let other = content(100, 2);
    site.add_artifact("vmlinuz-6.1", &other).await;
    assert!(site.fetch("/artifacts/by-name/vmlinuz-6.1").await.body == other);
    assert!(site.fetch_content(&kernel).await.body == kernel);
    let metrics = site.get("/metrics").await.text();
    assert!(metrics.contains("hoist_artifact_bytes_total"), "{metrics}");
    assert!(metrics.contains("hoist_artifact_blob_bytes"), "{metrics}");
    site.stop().await;
}

#[tokio::test]
async fn single_range_is_served_and_out_of_bounds_is_refused() {
    let site = Site::start().await;
    let image = content(MIB, 3);
    site.add_artifact("image", &image).await;
    let path = format!("/artifacts/{}", digest(&image));
    let ranged = async |range: &str, more: Option<(&str, &str)>| {
        let mut ask = site.ask_as_nobody("GET", &path).header("range", range);
        if let Some((name, value)) = more {
            ask = ask.header(name, value);
        }
        ask.send().await
    };
    let part = ranged("bytes=1000-300000", None).await.expect(206);
    assert!(part.body == image[1000..=300_000]);
    assert_eq!(part.header("content-range"), format!("bytes 1000-300000/{MIB}"));
    assert_eq!(part.header("content-length"), "299001");
    assert!(ranged("bytes=-10", None).await.expect(206).body == image[MIB - 10..]);
    let beyond = ranged(&format!("bytes={MIB}-"), None).await.expect(416);
    assert_eq!(beyond.header("content-range"), format!("bytes */{MIB}"));
    assert_eq!(beyond.header("cache-control"), "no-store");
    // Ranges are for GET.
    let head = site.ask_as_nobody("HEAD", &path).header("range", "bytes=0-9").send().await;
    assert_eq!(head.expect(200).header("content-length"), MIB.to_string());
    let tag = format!("\"sha256:{}\"", digest(&image));
    ranged("bytes=0-9", Some(("if-range", &tag))).await.expect(206);
    assert!(ranged("bytes=0-9", Some(("if-range", "\"x\""))).await.expect(200).body == image);
    assert!(ranged("bytes=0-1,5-6", None).await.expect(200).body == image);
    site.stop().await;
}

#[tokio::test]
async fn content_is_never_compressed() {
    let site = Site::start().await;
    let zeros = vec![0; 2 * MIB];
    site.add_artifact("zeros", &zeros).await;
    let path = format!("/artifacts/{}", digest(&zeros));
    let ask = site.ask_as_nobody("GET", &path).header("accept-encoding", "gzip, zstd, br");
    let answer = ask.send().await.expect(200);
    assert!(answer.headers.get("content-encoding").is_none(), "{:?}", answer.headers);
    assert_eq!(answer.header("content-length"), zeros.len().to_string());
    assert!(answer.body == zeros);
    site.stop().await;
}

#[tokio::test]
async fn only_content_can_be_reached() {
    let site = Site::start().await;
    let addr = site.controller.plain_addr().expect("it listens");
    for path in [
        "/artifacts/../admin.token",
        "/artifacts/..%2fadmin.token",
        "/artifacts/%2e%2e/%2e%2e/admin.token",
        "/artifacts/by-name/..%2f..%2fadmin.token",
        "/artifacts/by-name/%2fetc%2fpasswd",
        "/artifacts/ab%00cd",
        "/artifacts/parts/x",
        "/artifacts/blobs/ab/cd",
        "/artifacts/by-name/.hidden",
    ] {
        let mut stream = tokio::net::TcpStream::connect(addr).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let status = answer.split(' ').nth(1).expect("a status");
        assert!(matches!(status, "400" | "404"), "{path}: {answer}");
        assert!(!answer.contains(&site.admin), "{path}");
    }
    site.fetch(&format!("/artifacts/{}", "ab".repeat(32))).await.problem(404, "not-found");
    site.fetch("/artifacts/by-name/kettle").await.problem(404, "not-found");
    // Declared, but no controller has it.
    let away = content(10, 9);
    site.apply(&[artifact("away", &away)]).await;
    site.fetch_content(&away).await.problem(404, "not-found");
    site.ask_as_nobody("HEAD", "/artifacts/by-name/away").send().await.expect(404);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_downloads_get_the_same_bytes() {
    let site = Site::start().await;
    let image = content(5 * MIB + 1, 4);
    site.add_artifact("image", &image).await;
    let fetches = (0..40).map(|_| site.fetch_content(&image));
    for answer in futures_util::future::join_all(fetches).await {
        assert!(answer.expect(200).body == image);
    }
    site.stop().await;
}

#[tokio::test]
async fn a_locked_context_asks_for_a_token() {
    let site = Site::start_with(|config| {
        config.policy.locked.insert(Context::Boot);
    })
    .await;
    let kernel = content(10, 5);
    site.add_artifact("kernel", &kernel).await;
    site.fetch("/artifacts/by-name/kernel").await.problem(401, "unauthenticated");
    assert!(site.get("/artifacts/by-name/kernel").await.expect(200).body == kernel);
    site.stop().await;
}
