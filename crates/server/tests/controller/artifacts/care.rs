//! The list of artifacts, their verification, and the collection of unreferenced content.

use std::path::Path;
use std::time::{Duration, SystemTime};

use hoist_testkit::etcd::EtcdServer;
use serde_json::{Value, json};

use crate::artifacts::content::{MIB, artifact, boot_config, content, digest};
use crate::site::{Site, document};

const HOUR: Duration = Duration::from_hours(1);

fn make_old(path: &Path, age: Duration) {
    let file = std::fs::File::open(path).expect("it is there");
    file.set_modified(SystemTime::now() - age).expect("a time in the past");
}

async fn collect(site: &Site, query: &str) -> Value {
    site.ask("POST", &format!("/boot/v2/artifacts/gc{query}")).send().await.expect(200).json()
}

fn digests(collected: &Value) -> Vec<String> {
    let blobs = collected["blobs"].as_array().expect("a list");
    blobs.iter().map(|blob| blob["sha256"].as_str().expect("a digest").to_owned()).collect()
}

#[tokio::test]
async fn list_has_local_content_and_its_references() {
    let site = Site::start().await;
    let kernel = content(100, 1);
    let initrd = content(200, 2);
    let away = content(300, 3);
    site.add_artifact("vmlinuz", &kernel).await;
    site.add_artifact("initrd.img", &initrd).await;
    let by_url = format!("http://controller/artifacts/{}/initrd.img", digest(&initrd));
    let live = document(
        "BootConfig",
        "live",
        &json!({"selector": "*", "kernel": "artifact:vmlinuz", "initrd": [by_url],
                "params": "root=live:artifact:vmlinuz"}),
    );
    site.apply(&[artifact("away", &away), live]).await;
    let list = site.get("/boot/v2/artifacts").await.expect(200).json();
    let told: Vec<Value> = list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| json!([item["name"], item["size"], item["here"], item["used_by"]]))
        .collect();
    let expected = [
        json!(["away", 300, false, []]),
        json!(["initrd.img", 200, true, ["live"]]),
        json!(["vmlinuz", 100, true, ["live"]]),
    ];
    assert_eq!(told, expected);
    site.stop().await;
}

#[tokio::test]
async fn damaged_content_is_found_and_never_served_again() {
    let site = Site::start().await;
    let good = content(MIB, 1);
    let bad = content(2 * MIB, 2);
    site.add_artifact("good", &good).await;
    site.add_artifact("bad", &bad).await;
    let verify = async || {
        let answer = site.ask("POST", "/boot/v2/artifacts/verify").send().await.expect(200);
        let mut lines = answer.lines();
        lines.sort_by_key(|line| line["size"].as_u64());
        lines.iter().map(|line| json!([line["names"], line["outcome"]])).collect::<Vec<_>>()
    };
    assert_eq!(verify().await, [json!([["good"], "whole"]), json!([["bad"], "whole"])]);

    let file = site.blob_file(&bad);
    let mut damaged = bad.clone();
    damaged[MIB] ^= 1;
    fs_err::remove_file(&file).expect("it is there");
    fs_err::write(&file, damaged).expect("it can be damaged");
    assert_eq!(verify().await, [json!([["good"], "whole"]), json!([["bad"], "damaged"])]);
    site.fetch_content(&bad).await.problem(404, "not-found");
    assert_eq!(verify().await, [json!([["good"], "whole"]), json!([["bad"], "missing"])]);
    // It can be brought again.
    site.add_artifact("bad", &bad).await;
    assert!(site.fetch_content(&bad).await.body == bad);
    site.stop().await;
}

#[tokio::test]
async fn only_old_unreferenced_content_is_collected() {
    let site = Site::start().await;
    let [named, loose, new, by_url] = [1, 2, 3, 4].map(|seed| content(1000, seed));
    site.add_artifact("named", &named).await;
    for content in [&loose, &new, &by_url] {
        site.bring(content, 0, content).await.expect(200);
    }
    let url = format!("http://c/artifacts/{}", digest(&by_url));
    site.apply(&[boot_config("by-url", &url)]).await;
    for content in [&named, &loose, &by_url] {
        make_old(&site.blob_file(content), HOUR + Duration::from_secs(1));
    }
    make_old(&site.blob_file(&new), Duration::from_mins(59));

    let expected = [digest(&loose).to_string()];
    assert_eq!(digests(&collect(&site, "?dry_run=1").await), expected);
    assert!(site.fetch_content(&loose).await.body == loose, "a dry run removes nothing");
    let collected = collect(&site, "").await;
    assert_eq!((digests(&collected), &collected["bytes"]), (expected.into(), &json!(1000)));
    site.fetch_content(&loose).await.problem(404, "not-found");
    for kept in [&named, &new, &by_url] {
        assert!(site.fetch_content(kept).await.expect(200).body == *kept);
    }
    assert!(digests(&collect(&site, "").await).is_empty());
    let bad = site.ask("POST", "/boot/v2/artifacts/gc?dry_run=yes").send().await;
    bad.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn content_about_to_be_referenced_counts_as_new() {
    let site = Site::start().await;
    let kernel = content(1000, 1);
    site.bring(&kernel, 0, &kernel).await.expect(200);
    make_old(&site.blob_file(&kernel), 2 * HOUR);
    site.bring(&kernel, kernel.len(), &[]).await.expect(200);
    assert!(digests(&collect(&site, "").await).is_empty());
    site.stop().await;
}

#[tokio::test]
async fn unused_artifacts_go_with_their_content_and_used_ones_stay() {
    let site = Site::start().await;
    let [used, unused, new, shared] = [1, 2, 3, 4].map(|seed| content(1000, seed));
    for (name, content) in [("used", &used), ("unused", &unused), ("new", &new)] {
        site.add_artifact(name, content).await;
    }
    // One content under two names, of which one is used.
    site.add_artifact("shared-1", &shared).await;
    site.add_artifact("shared-2", &shared).await;
    site.apply(&[
        boot_config("one", "artifact:used"),
        boot_config("two", "http://c/artifacts/by-name/shared-2"),
    ])
    .await;
    for content in [&used, &unused, &shared] {
        make_old(&site.blob_file(content), 2 * HOUR);
    }
    let plan = collect(&site, "?unused=1&dry_run=1").await;
    let gone = json!(["shared-1", "unused"]);
    assert_eq!(plan["artifacts"], gone);
    assert_eq!(digests(&plan), [digest(&unused).to_string()]);
    let before = site.revision();
    assert!(digests(&collect(&site, "").await).is_empty(), "all of it is named");
    assert_eq!(site.revision(), before);

    let collected = collect(&site, "?unused=1").await;
    assert_eq!((&collected["artifacts"], digests(&collected)), (&gone, digests(&plan)));
    let list = site.get("/boot/v2/artifacts").await.json();
    assert_eq!(crate::site::names(&list), ["new", "shared-2", "used"]);
    site.fetch_content(&unused).await.problem(404, "not-found");
    assert!(site.fetch_content(&shared).await.expect(200).body == shared);
    site.stop().await;
}

#[tokio::test]
async fn abandoned_uploads_are_collected_after_a_day() {
    let site = Site::start().await;
    let stale = content(1000, 1);
    let fresh = content(1000, 2);
    for content in [&stale, &fresh] {
        site.bring(content, 0, &content[..500]).await.expect(200);
    }
    make_old(&site.part_file(&stale), 24 * HOUR + Duration::from_secs(1));
    make_old(&site.part_file(&fresh), 23 * HOUR);
    let collected = collect(&site, "").await;
    assert_eq!((&collected["leftovers"], &collected["bytes"]), (&json!(1), &json!(500)));
    assert!(!site.part_file(&stale).exists() && site.part_file(&fresh).exists());
    site.stop().await;
}

/// Whatever document refers to it, and in whichever way.
#[tokio::test]
async fn an_artifact_in_use_cannot_be_deleted() {
    let site = Site::start().await;
    for (name, seed) in [("kernel", 1), ("initrd", 2), ("image", 3), ("by-name", 4), ("free", 5)] {
        site.add_artifact(name, &content(10, seed)).await;
    }
    let by_name = "http://c/artifacts/by-name/by-name";
    site.apply(&[boot_config("live", "artifact:kernel"), boot_config("url", by_name)]).await;
    let bss = "/boot/v1/bootparameters";
    let record = json!({"macs": ["02:00:00:00:00:01"], "kernel": "http://c/k",
                        "initrd": "artifact:initrd", "params": "root=live:artifact:image"});
    site.put(bss, &record).await.expect(200);
    let delete = async |name: &str| {
        let targets = json!({"targets": [format!("Artifact/{name}")]});
        site.post("/inventory/v1/delete", &targets).await
    };
    for (name, user) in [
        ("kernel", "BootConfig `live`"),
        ("by-name", "BootConfig `url`"),
        ("initrd", "1 BSS records"),
        ("image", "1 BSS records"),
    ] {
        let problem = delete(name).await.problem(409, "conflict");
        assert!(problem.errors[0].message.contains(user), "{problem:?}");
    }
    delete("free").await.expect(200);
    site.ask("DELETE", bss).json(&json!({"macs": ["02:00:00:00:00:01"]})).send().await.expect(200);
    delete("initrd").await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn a_bss_record_names_only_artifacts_that_are_there() {
    let site = Site::start().await;
    site.add_artifact("kernel", &content(10, 1)).await;
    let bss = "/boot/v1/bootparameters";
    let record = |kernel: &str, params: &str| json!({"macs": ["02:00:00:00:00:01"], "kernel": kernel, "params": params});
    for method in ["POST", "PUT", "PATCH"] {
        for (kernel, params) in
            [("artifact:kettle", "quiet"), ("http://c/k", "root=live:artifact:kettle")]
        {
            let ask = site.ask(method, bss).json(&record(kernel, params));
            let refused = ask.send().await.expect(400);
            assert!(
                refused.text().contains("artifact `kettle` does not exist"),
                "{}",
                refused.text()
            );
        }
    }
    site.put(bss, &record("artifact:kernel", "quiet")).await.expect(200);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_outage_keeps_serving_artifacts_and_collects_nothing() {
    let store = EtcdServer::start();
    let url = store.url("site");
    let site = Site::start_with(|config| config.store.clone_from(&url)).await;
    let kernel = content(MIB, 1);
    let loose = content(1000, 2);
    site.add_artifact("kernel", &kernel).await;
    site.bring(&loose, 0, &loose).await.expect(200);
    make_old(&site.blob_file(&loose), 2 * HOUR);
    tokio::task::block_in_place(|| store.freeze());
    // Another controller may have referred to it meanwhile.
    let gc = site.ask("POST", "/boot/v2/artifacts/gc").send().await;
    gc.problem(503, "store-unavailable");
    assert!(site.blob_file(&loose).exists());
    assert!(site.fetch("/artifacts/by-name/kernel").await.expect(200).body == kernel);
    tokio::task::block_in_place(|| store.thaw());
    site.eventually("/inventory/v1/status", |a| a.json()["store"]["connected"] == true).await;
    assert_eq!(digests(&collect(&site, "").await), [digest(&loose).to_string()]);
    site.stop().await;
}
