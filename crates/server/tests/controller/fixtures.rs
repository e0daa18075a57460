//! Data directories of released versions: this version opens each of them and answers as that one
//! did.
//!
//! A release adds its own with
//! `HOIST_MAKE_FIXTURE=1 cargo test -p hoist-server --test fixtures -- --ignored make_the_fixture_of_this_version`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::filled_site::FilledSite;
use serde_json::Value;

/// The files of a data directory that are not derived. The database is kept compressed.
const FILES: [&str; 4] = ["hoist.json", "admin.token", "ca/root.key", "ca/root.pem"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directories_of_all_releases_are_opened() {
    let mut seen = 0;
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let fixture = entry.unwrap().path();
        if !fixture.file_name().unwrap().to_string_lossy().starts_with("data-") {
            continue;
        }
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("ca")).unwrap();
        for file in FILES {
            std::fs::copy(fixture.join(file), scratch.path().join(file)).unwrap();
        }
        let packed = std::fs::read(fixture.join("hoist.redb.zst")).unwrap();
        let database = zstd::decode_all(packed.as_slice()).unwrap();
        std::fs::write(scratch.path().join("hoist.redb"), database).unwrap();
        let text = std::fs::read_to_string(fixture.join("answers.json")).unwrap();
        let mut expected: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        let secret = expected.remove("token").unwrap();
        let pin = expected.remove("pin").unwrap();

        let site = FilledSite::start(scratch.path(), "embedded").await;
        let answers = site.answers().await;
        for (path, recorded) in &expected {
            let now = answers.get(path).unwrap_or(&Value::Null);
            let at = fixture.display();
            assert!(says(now, recorded), "{at} {path}: {recorded:#} became {now:#}");
        }
        assert_eq!(site.controller.chassis().ca.root_pin(), pin);
        let token = secret.as_str().unwrap();
        assert_eq!(site.get("/inventory/v1/groups", token).await.0, 200);
        let audit = site.get("/admin/v1/audit?verify=1", &site.admin).await.1;
        assert_eq!(audit["verification"]["intact"], true);
        site.stop().await;
        seen += 1;
    }
    assert!(seen > 0);
}

/// A full run includes ignored tests, and must not record a new fixture.
const MAKE: &str = "HOIST_MAKE_FIXTURE";

/// Whether an answer still says everything that was recorded. It may say more than it did.
fn says(now: &Value, recorded: &Value) -> bool {
    match (now, recorded) {
        (Value::Object(now), Value::Object(recorded)) => {
            recorded.iter().all(|(name, value)| now.get(name).is_some_and(|now| says(now, value)))
        }
        (Value::Array(now), Value::Array(recorded)) => {
            now.len() == recorded.len() && now.iter().zip(recorded).all(|(a, b)| says(a, b))
        }
        (now, recorded) => now == recorded,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes the fixture of this version"]
async fn make_the_fixture_of_this_version() {
    if std::env::var_os(MAKE).is_none() {
        return;
    }
    let (minor, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
    let fixture = fixtures().join(format!("data-{minor}"));
    std::fs::create_dir_all(fixture.join("ca")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let site = FilledSite::start(scratch.path(), "embedded").await;
    let secret = site.fill().await;
    let mut answers = site.answers().await;
    answers.insert("token".to_owned(), secret.into());
    answers.insert("pin".to_owned(), site.controller.chassis().ca.root_pin().into());
    site.stop().await;
    for file in FILES {
        std::fs::copy(scratch.path().join(file), fixture.join(file)).unwrap();
    }
    let database = std::fs::read(scratch.path().join("hoist.redb")).unwrap();
    let packed = zstd::encode_all(database.as_slice(), 19).unwrap();
    std::fs::write(fixture.join("hoist.redb.zst"), packed).unwrap();
    let text = serde_json::to_string_pretty(&answers).unwrap() + "\n";
    std::fs::write(fixture.join("answers.json"), text).unwrap();
}
