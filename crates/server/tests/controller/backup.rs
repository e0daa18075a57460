//! Backups: a restored site answers as the original, and a damaged backup is refused.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::filled_site::FilledSite;
use hoist_server::backup::seal::{self, Keys, Lock, RequiredKey};
use hoist_server::backup::{self, BackupError, Output, Restore, RestoreReport, Tee};
use hoist_server::data_dir::{DataDir, DataDirError};
use hoist_server::database;
use hoist_store::{Store, copy};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually_async;
use hoist_testkit::postgres::PostgresServer;
use hoist_testkit::stores::fresh_name;
use jiff::Timestamp;
use serde_json::Value;

/// The plain archive, through the API.
async fn backed_up(site: &FilledSite) -> Vec<u8> {
    let mut chunks = site.client().backup(true).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

fn target(dir: &Path, store: &str) -> Restore {
    let data_dir = dir.to_owned();
    let store = store.to_owned();
    Restore { data_dir, store, force: false, now: Timestamp::now() }
}

async fn restore(bytes: &[u8], dir: &Path, store: &str) -> Result<RestoreReport, BackupError> {
    backup::restore(Cursor::new(bytes.to_vec()), target(dir, store)).await
}

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// The archive with every entry as `change` wants it, packed again without a fault.
fn repacked(
    bytes: &[u8],
    mut change: impl FnMut(String, Vec<u8>) -> Option<(String, Vec<u8>)>,
) -> Vec<u8> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(bytes).unwrap());
    let mut builder = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let Some((name, content)) = change(name, content) else { continue };
        builder.append(&header(&name, content.len()), content.as_slice()).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// Without the checks of the tar library.
fn header(name: &str, size: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size as u64);
    header.set_mode(0o644);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    header
}

/// A reader of the first site must not take the second for the same.
async fn revisions_of_before_are_refused(first: &FilledSite, second: &FilledSite) {
    let since = async |site: &FilledSite, since: &str| {
        site.get(&format!("/inventory/v1/nodes?since={since}"), &site.admin).await
    };
    let point = async |site: &FilledSite| {
        let listing = site.get("/inventory/v1/nodes", &site.admin).await.1;
        let plain = listing["revision"].as_u64().unwrap().to_string();
        (plain, listing["since"].as_str().unwrap().to_owned())
    };
    let (plain, named) = point(first).await;
    assert_eq!((since(first, &plain).await.0, since(first, &named).await.0), (304, 304));
    assert_eq!((since(second, &plain).await.0, since(second, &named).await.0), (410, 410));
    let (_, named) = point(second).await;
    assert_eq!(since(second, &named).await.0, 304);
    assert_eq!(since(second, "0").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_site_answers_as_the_one_that_was_backed_up() {
    let first_dir = tempfile::tempdir().unwrap();
    let data_dir = first_dir.path().join("data");
    let first = FilledSite::start(&data_dir, "embedded").await;
    let secret = first.fill().await;
    // What later parts of hoist will keep beside the store.
    for (name, content) in [("journal/run-1/0001", "step"), ("artifacts/blobs/ab/abcd", "k")] {
        std::fs::create_dir_all(data_dir.join(name).parent().unwrap()).unwrap();
        std::fs::write(data_dir.join(name), content).unwrap();
    }
    let bytes = backed_up(&first).await;
    let answers = first.answers().await;
    let pin = first.controller.chassis().ca.root_pin();

    let (_, summary) = backup::verify(Cursor::new(bytes.clone())).await.unwrap();
    assert_eq!(summary.ca_pin.as_deref(), Some(pin.as_str()));
    assert_eq!(summary.manifest.incarnation, first.incarnation());
    assert_eq!((summary.contents.journal_files, summary.contents.artifacts), (1, 1));

    let stores = [
        "embedded".to_owned(),
        EtcdServer::shared().url(&fresh_name()),
        PostgresServer::shared().url(&fresh_name()),
    ];
    for store in stores {
        let second_dir = tempfile::tempdir().unwrap();
        let dir = second_dir.path().join("data");
        let restored = restore(&bytes, &dir, &store).await.unwrap();
        assert_eq!(restored.summary, summary);
        for kept in ["journal/run-1/0001", "artifacts/blobs/ab/abcd"] {
            assert_eq!(
                std::fs::read(dir.join(kept)).unwrap(),
                std::fs::read(data_dir.join(kept)).unwrap()
            );
        }
        assert!(!dir.join("admin.token").exists() && !dir.join("ca/server.key").exists());

        let second = FilledSite::start(&dir, &store).await;
        let again = second.answers().await;
        for (path, answer) in &answers {
            assert_eq!(again.get(path), Some(answer), "{store} {path}");
        }
        assert_eq!(again.len(), answers.len());
        assert_eq!(second.controller.chassis().ca.root_pin(), pin);
        assert_ne!(second.incarnation(), first.incarnation());
        assert_eq!(second.incarnation(), restored.new_incarnation);
        revisions_of_before_are_refused(&first, &second).await;
        assert_eq!(second.get("/inventory/v1/groups", &secret).await.0, 200, "the token works");
        assert_ne!(second.admin, first.admin);
        assert_eq!(second.get("/inventory/v1/groups", &first.admin).await.0, 401);
        let audit = second.get("/admin/v1/audit?verify=1&limit=1000", &second.admin).await.1;
        assert_eq!(audit["verification"]["intact"], true);
        let told = audit["entries"].as_array().unwrap();
        assert!(told.iter().any(|entry| entry["method"] == "RESTORE"), "{audit}");
        second.stop().await;
    }

    // A backup contains the site's keys: the audit log records it, and a read-only token gets none.
    let audit = first.get("/admin/v1/audit?limit=1000", &first.admin).await.1;
    let entries = audit["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["object"] == "backup"));
    for path in ["/admin/v1/backup", "/admin/v1/db/export", "/admin/v1/db"] {
        assert_eq!(first.get(path, &secret).await.0, 403, "{path}");
    }
    let status = first.get("/admin/v1/db", &first.admin).await.1;
    assert_eq!((&status["backend"], &status["schema"]["version"]), (&"embedded".into(), &1.into()));
    assert_eq!(status["controllers"][0]["live"], Value::Bool(true));
    assert_eq!(status["records"]["token"], 1);
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_travel_and_stay_private() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let scratch = tempfile::tempdir().unwrap();
    let one = scratch.path().join("one");
    let two = scratch.path().join("two");
    let site = FilledSite::start(&one, "embedded").await;
    std::fs::create_dir_all(one.join("secrets/tls")).unwrap();
    std::fs::write(one.join("secrets.key"), "AGE-SECRET-KEY").unwrap();
    std::fs::write(one.join("secrets/tls/key.pem"), "hunter2").unwrap();
    symlink("tls/key.pem", one.join("secrets/link")).unwrap();
    symlink(one.join("admin.token"), one.join("secrets/outside")).unwrap();
    let bytes = backed_up(&site).await;
    let large = one.join("secrets/large");
    std::fs::write(&large, vec![0; 1024 * 1024 + 1]).unwrap();
    let source = |dir: &Path| backup::Source {
        data_dir: dir.to_owned(),
        store: Arc::clone(&site.controller.chassis().store),
        with_artifacts: false,
        now: Timestamp::now(),
    };
    let error = backup::write(source(&one), Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("secrets/large"), "{error}");
    assert!(error.to_string().contains("too large"), "{error}");
    site.stop().await;

    restore(&bytes, &two, "embedded").await.unwrap();
    for (name, content) in [("secrets.key", "AGE-SECRET-KEY"), ("secrets/tls/key.pem", "hunter2")] {
        assert_eq!(std::fs::read_to_string(two.join(name)).unwrap(), content);
    }
    assert_eq!(std::fs::read_to_string(two.join("secrets/link")).unwrap(), "hunter2");
    assert!(!two.join("secrets/outside").exists(), "layers are not told it either");
    let mode = |name: &str| two.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(["secrets", "secrets/tls"].map(mode), [0o700; 2]);
    assert_eq!(["secrets.key", "secrets/tls/key.pem", "secrets/link"].map(mode), [0o600; 3]);

    // A backup without artifacts removes none, and one with others keeps the existing ones.
    let forced = |bytes: Vec<u8>, at: i64| {
        let now = Timestamp::from_second(at).unwrap();
        let target = Restore { force: true, now, ..target(&two, "embedded") };
        backup::restore(Cursor::new(bytes), target)
    };
    forced(sample().await, 1).await.unwrap();
    assert!(two.join("secrets.key").exists() && two.join("secrets/link").exists());
    std::fs::write(two.join("secrets/newer"), "kettle").unwrap();
    let moved_to = forced(bytes, 2).await.unwrap().moved_to.unwrap();
    assert!(moved_to.join("secrets/newer").exists() && !two.join("secrets/newer").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_enrollments_are_not_restored() {
    let scratch = tempfile::tempdir().unwrap();
    let one = scratch.path().join("one");
    let two = scratch.path().join("two");
    let site = FilledSite::start(&one, "embedded").await;
    site.fill().await;
    site.send("POST", "/provision/v1/nodes/n2/enrollment", Value::Null).await;
    let enrollments =
        async |site: &FilledSite| site.get("/provision/v1/enrollments", &site.admin).await.1;
    assert_eq!(enrollments(&site).await["items"][0]["node"], "n2");
    let bytes = backed_up(&site).await;
    site.stop().await;
    restore(&bytes, &two, "embedded").await.unwrap();
    let site = FilledSite::start(&two, "embedded").await;
    assert_eq!(enrollments(&site).await["items"], serde_json::json!([]));
    assert_eq!(site.controller.registry().roster().len(), 20);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_are_backed_up_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let site = FilledSite::start(dir.path(), "embedded").await;
    for name in ["blobs/ab/abcd", "parts/cdef", "damaged/0123"] {
        let path = dir.path().join("artifacts").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "kernel").unwrap();
    }
    let mut chunks = site.client().backup(false).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    let mut names = Vec::new();
    repacked(&bytes, |name, content| {
        names.push(name.clone());
        Some((name, content))
    });
    let expected = [
        "manifest.json",
        "store/000000.jsonl",
        "ca/root.key",
        "ca/root.pem",
        "ca/site.key",
        "contents.json",
        "SHA256SUMS",
    ];
    assert_eq!(names, expected);
    let (_, summary) = backup::verify(Cursor::new(bytes)).await.unwrap();
    assert_eq!((summary.contents.artifacts, summary.contents.artifacts_left_out), (0, 1));
    site.stop().await;
}

/// A small archive to damage.
async fn sample() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let site = FilledSite::start(dir.path(), "embedded").await;
    let bytes = backed_up(&site).await;
    site.stop().await;
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_backup_is_refused_and_leaves_nothing() {
    let good = sample().await;
    let scratch = tempfile::tempdir().unwrap();
    let same = |name: String, content: Vec<u8>| Some((name, content));
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let mut longer = good.clone();
    longer.extend_from_slice(b"more");

    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "not a backup"),
        ("something else", b"kettle".to_vec(), "not a backup"),
        ("cut", good[..good.len() - 10].to_vec(), "ends too early"),
        ("cut early", good[..100].to_vec(), "ends too early"),
        ("one bit", flipped, "damaged"),
        ("longer", longer, "`SHA256SUMS` is not the end"),
        (
            "tampered",
            repacked(&good, |name, content| match name.as_str() {
                "ca/root.pem" => Some((name, b"mine".to_vec())),
                _ => Some((name, content)),
            }),
            "`ca/root.pem` does not have the checksum",
        ),
        (
            "without sums",
            repacked(&good, |name, content| (name != "SHA256SUMS").then_some((name, content))),
            "ends too early",
        ),
        (
            "without records",
            repacked(&good, |name, content| {
                (!name.starts_with("store")).then_some((name, content))
            }),
            "damaged",
        ),
        (
            "a newer format",
            repacked(&good, |name, content| match name.as_str() {
                "manifest.json" => Some((name, br#"{"format":9,"hoist":"9.0"}"#.to_vec())),
                _ => Some((name, content)),
            }),
            "format 9, made by hoist 9.0",
        ),
        (
            "a newer schema",
            repacked(&good, |name, content| match name.as_str() {
                "manifest.json" => {
                    let mut manifest: Value = serde_json::from_slice(&content).unwrap();
                    manifest["schema"] = 9.into();
                    Some((name, manifest.to_string().into_bytes()))
                }
                _ => Some((name, content)),
            }),
            "schema 9",
        ),
    ];
    let hostile = ["../outside", "ca/../../outside", "/tmp/outside", "admin.token", "ca/.hidden"];
    let hostile = hostile.map(|path| {
        let bytes = repacked(&good, |name, content| match name.as_str() {
            "ca/root.pem" => Some((path.to_owned(), content)),
            _ => Some((name, content)),
        });
        (path, bytes, "a name that no backup has")
    });
    let intact = repacked(&good, same);
    backup::verify(Cursor::new(intact)).await.expect("packing again alone does no harm");

    for (case, bytes, said) in cases.into_iter().chain(hostile) {
        let dir = scratch.path().join("data");
        for error in [
            backup::verify(Cursor::new(bytes.clone())).await.unwrap_err(),
            restore(&bytes, &dir, "embedded").await.unwrap_err(),
        ] {
            let text = hoist_diagnostic::chain(&error);
            assert!(text.contains(said), "{case}: {text}");
        }
        assert_eq!(count(scratch.path()), 0, "{case} left something");
        // An empty directory that was there stays, and stays empty.
        std::fs::create_dir(&dir).unwrap();
        restore(&bytes, &dir, "embedded").await.unwrap_err();
        assert_eq!(count(&dir), 0, "{case} left something");
        std::fs::remove_dir(&dir).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_other_kinds_of_entries_are_refused() {
    let good = sample().await;
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::GNULongName] {
        let mut archive = tar::Archive::new(zstd::Decoder::new(good.as_slice()).unwrap());
        let mut builder = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let mut header = entry.header().clone();
            if entry.path().unwrap().ends_with("root.key") {
                header.set_entry_type(kind);
                header.set_link_name("/etc/shadow").unwrap();
                header.set_cksum();
            }
            builder.append(&header, entry).unwrap();
        }
        let bytes = builder.into_inner().unwrap().finish().unwrap();
        let error = backup::verify(Cursor::new(bytes)).await.unwrap_err().to_string();
        assert!(error.contains("`ca/root.key` is not a plain file"), "{kind:?} {error}");
    }
}

/// Writes and checks at once, as `hoist backup create` does.
async fn sealed(bytes: &[u8], path: &Path, lock: Lock) {
    let to = seal::seal(Output::create(path, false).unwrap(), lock).unwrap();
    let tee = Tee { from: Cursor::new(bytes.to_vec()), to };
    let (tee, _) = backup::verify(tee).await.unwrap();
    tee.to.finish().unwrap();
}

fn open(path: &Path) -> std::fs::File {
    std::fs::File::open(path).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_backup_opens_with_its_key_only() {
    let good = sample().await;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let identity = age::x25519::Identity::generate();
    let other = age::x25519::Identity::generate();
    let recipients = vec![other.to_public(), identity.to_public()];
    sealed(&good, &path("keys"), Lock::Recipients(recipients)).await;
    sealed(&good, &path("words"), Lock::Passphrase("kettle".to_owned().into())).await;
    sealed(&good, &path("open"), Lock::Open).await;

    assert_eq!(seal::required_key(open(&path("keys"))).unwrap(), RequiredKey::Identity);
    assert_eq!(seal::required_key(open(&path("words"))).unwrap(), RequiredKey::Passphrase);
    assert_eq!(seal::required_key(open(&path("open"))).unwrap(), RequiredKey::Nothing);

    let words = |text: &str| Keys { passphrase: Some(text.to_owned().into()), ..Keys::default() };
    let keys =
        |one: age::x25519::Identity| Keys { identities: vec![Box::new(one)], ..Keys::default() };
    let refusal = |name, keys| seal::unseal(open(&path(name)), keys).err().unwrap();
    assert!(matches!(refusal("words", words("teapot")), BackupError::WrongKey));
    assert!(matches!(refusal("words", Keys::default()), BackupError::NeedsPassphrase));
    assert!(matches!(refusal("keys", words("kettle")), BackupError::NeedsIdentity));
    let other = age::x25519::Identity::generate();
    assert!(matches!(refusal("keys", keys(other)), BackupError::WrongKey));

    for (name, keys) in
        [("keys", keys(identity)), ("words", words("kettle")), ("open", Keys::default())]
    {
        let mut plain = Vec::new();
        seal::unseal(open(&path(name)), keys).unwrap().read_to_end(&mut plain).unwrap();
        assert!(plain == good, "{name}");
    }

    // A truncated or changed backup is detected before the restore.
    let file = std::fs::read(path("words")).unwrap();
    let mut changed = file.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (bytes, said) in [(file[..file.len() - 20].to_vec(), "damaged"), (changed, "damaged")] {
        let input = seal::unseal(Cursor::new(bytes), words("kettle")).unwrap();
        let target = target(&path("data"), "embedded");
        let error = backup::restore(input, target).await.unwrap_err();
        let text = hoist_diagnostic::chain(&error);
        assert!(text.contains(said) || matches!(error, BackupError::Truncated), "{text}");
        assert!(!path("data").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_site_is_replaced_only_on_request_and_set_aside() {
    let good = sample().await;
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    let site = FilledSite::start(&dir, "embedded").await;
    site.fill().await;
    let error = restore(&good, &dir, "embedded").await.unwrap_err();
    assert!(matches!(error, BackupError::DataDir(DataDirError::InUse { .. })), "{error}");
    let old_pin = site.controller.chassis().ca.root_pin();
    let admin = site.admin.clone();
    site.stop().await;
    let error = restore(&good, &dir, "embedded").await.unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty(_)), "{error}");
    // A bad backup does not hurt a good directory, told or not.
    let cut = good[..good.len() - 10].to_vec();
    let forced = || Restore { force: true, ..target(&dir, "embedded") };
    backup::restore(Cursor::new(cut), forced()).await.unwrap_err();
    let site = FilledSite::start(&dir, "embedded").await;
    assert_eq!(site.controller.registry().roster().len(), 20);
    site.stop().await;

    let restored = backup::restore(Cursor::new(good), forced()).await.unwrap();
    let moved_to = restored.moved_to.unwrap();
    assert!(moved_to.join("hoist.redb").exists() && moved_to.join("ca/root.key").exists());
    let site = FilledSite::start(&dir, "embedded").await;
    assert_eq!(site.controller.registry().roster().len(), 0);
    assert_ne!(site.controller.chassis().ca.root_pin(), old_pin);
    assert_eq!(site.admin, admin, "local commands go on working");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_restore_is_refused_until_it_is_repeated() {
    let good = sample().await;
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    restore(&good, &dir, "embedded").await.unwrap();
    std::fs::write(dir.join("restoring"), "").unwrap();
    let error = DataDir::open(&dir).unwrap_err();
    assert!(error.to_string().contains("not restored to its end"), "{error}");
    restore(&good, &dir, "embedded").await.unwrap();
    FilledSite::start(&dir, "embedded").await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_store_is_not_restored_over() {
    let good = sample().await;
    let scratch = tempfile::tempdir().unwrap();
    let store = EtcdServer::shared().url(&fresh_name());
    let site = FilledSite::start(&scratch.path().join("one"), &store).await;
    let opened = hoist_store::url::open(&store, scratch.path()).await.unwrap();
    eventually_async("controller is listed in its store", async || {
        !hoist_site::controllers::list(opened.as_ref()).await.unwrap().is_empty()
    })
    .await;
    let two = scratch.path().join("two");
    let forced = || Restore { force: true, ..target(&two, &store) };
    let error = backup::restore(Cursor::new(good.clone()), forced()).await.unwrap_err();
    assert!(matches!(error, BackupError::InUse(_)), "{error}");
    site.stop().await;
    assert!(hoist_site::controllers::list(opened.as_ref()).await.unwrap().is_empty());
    let error = restore(&good, &two, &store).await.unwrap_err();
    assert!(matches!(error, BackupError::Copy(copy::CopyError::NotEmpty { .. })), "{error}");
    assert!(!two.exists());
    backup::restore(Cursor::new(good), forced()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_moves_through_all_stores_and_back() {
    let scratch = tempfile::tempdir().unwrap();
    let one = scratch.path().join("one");
    let two = scratch.path().join("two");
    let site = FilledSite::start(&one, "embedded").await;
    site.fill().await;
    let answers = site.answers().await;
    site.stop().await;
    std::fs::create_dir(&two).unwrap();
    let open = async |url: &str, dir: &Path| hoist_store::url::open(url, dir).await.unwrap();
    let stores: [Arc<dyn Store>; 4] = [
        open("embedded", &one).await,
        open(&EtcdServer::shared().url(&fresh_name()), &one).await,
        open(&PostgresServer::shared().url(&fresh_name()), &one).await,
        open("embedded", &two).await,
    ];
    let before = copy::checksum(stores[0].as_ref()).await.unwrap();
    for pair in stores.windows(2) {
        let copied = copy::migrate(pair[0].as_ref(), pair[1].as_ref(), false).await.unwrap();
        assert_eq!(copied, before);
        let again = copy::migrate(pair[0].as_ref(), pair[1].as_ref(), false).await;
        assert!(matches!(again, Err(copy::CopyError::NotEmpty { .. })));
    }
    let status = database::status(stores[3].as_ref(), Timestamp::now()).await.unwrap();
    assert_eq!(status.records.values().sum::<u64>(), before.records);
    drop(stores);
    std::fs::rename(two.join("hoist.redb"), one.join("hoist.redb")).unwrap();
    let site = FilledSite::start(&one, "embedded").await;
    assert_eq!(site.answers().await, answers);
    site.stop().await;
}
