//! Nothing acknowledged is lost, nothing is half there: processes killed, connections cut, power
//! gone, disks full.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_store::url::open;
use hoist_store::{Change, Key, Op, Prefix, Revision, Store, StoreError, Txn};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::postgres::PostgresServer;
use hoist_testkit::proxy::{Cut, Protocol, Proxy};
use parking_lot::Mutex;

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn put(k: &str, v: &[u8]) -> Txn {
    Txn { compares: vec![], ops: vec![Op::Put(key(k), v.to_vec())] }
}

const CHILD_DIR: &str = "HOIST_TEST_CHILD_DIR";

/// A program for the next test, which starts it as a process and kills it. Without its variable it
/// does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn child_that_commits_until_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = EmbeddedStore::open(Path::new(&dir), Retention::default()).unwrap();
    // Several writers, so that groups of commits are cut too.
    let writers = (0..4).map(|writer| {
        let store = store.clone();
        async move {
            for n in 0u64.. {
                let value = format!("{n}");
                store
                    .commit(put(&format!("w{writer}/{}", n % 50), value.as_bytes()))
                    .await
                    .unwrap();
                let line = format!("ack w{writer} {n}\n");
                io::stdout().write_all(line.as_bytes()).unwrap();
            }
        }
    });
    runtime.block_on(futures_util::future::join_all(writers));
}

/// SIGKILL at a random moment, many times over, on the same file.
#[tokio::test]
async fn killed_process_loses_nothing_it_acknowledged() {
    const ROUNDS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let mut total = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_that_commits_until_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = io::BufReader::new(child.stdout.take().unwrap());
        let acknowledged = std::thread::spawn(move || {
            let mut last: BTreeMap<String, u64> = BTreeMap::new();
            for line in out.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                let mut words = line.split(' ');
                if let (Some("ack"), Some(writer), Some(n)) =
                    (words.next(), words.next(), words.next())
                {
                    // A line cut by the kill was not an acknowledgement of that number.
                    if let Ok(n) = n.parse::<u64>() {
                        last.entry(writer.to_owned()).and_modify(|l| *l = (*l).max(n)).or_insert(n);
                    }
                }
            }
            last
        });
        tokio::time::sleep(Duration::from_millis(120 + 17 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = acknowledged.join().unwrap();
        let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
        for (writer, last) in acknowledged {
            total += last;
            // Each number went to its own slot of fifty; later ones may have replaced earlier ones.
            for n in last.saturating_sub(49)..=last {
                let record =
                    store.get(&key(&format!("{writer}/{}", n % 50))).await.unwrap().unwrap();
                let found: u64 = String::from_utf8(record.value).unwrap().parse().unwrap();
                assert!(found == n || found == n + 50, "{writer} acknowledged {n}, found {found}");
            }
        }
        // The next child starts counting at 0 again.
        let ops = (0..4).map(|w| Op::DeletePrefix(key(&format!("w{w}")))).collect();
        store.commit(Txn { compares: vec![], ops }).await.unwrap();
    }
    assert!(total > 1000, "only {total} commits in all rounds");
}

const MANY: usize = 10_000;

fn many(byte: u8) -> Txn {
    let op = |n: usize| Op::Put(key(&format!("many/{n:05}")), vec![byte; 330]);
    let mut ops: Vec<Op> = (0..MANY).map(op).collect();
    ops.push(Op::Delete(key("goes-with-it")));
    Txn { compares: vec![], ops }
}

async fn prepare(store: &dyn Store) {
    let mut txn = many(1);
    txn.ops.pop();
    txn.ops.push(Op::Put(key("goes-with-it"), vec![]));
    store.commit(txn).await.unwrap();
}

/// Whether the second transaction is there; panics when a part of it is.
async fn look(store: &dyn Store) -> bool {
    let gone = store.get(&key("goes-with-it")).await.unwrap().is_none();
    let page = store.list(&Prefix::Under(key("many")), None, MANY + 1).await.unwrap();
    assert_eq!(page.records.len(), MANY);
    let mut values: Vec<_> = page.records.iter().map(|r| (r.value[0], r.revision)).collect();
    values.dedup();
    assert_eq!(values.len(), 1, "a mixture");
    assert_eq!(values[0].0 == 2, gone);
    gone
}

/// Commits through a proxy that dies at the n-th request. Another handle must find all or nothing,
/// and every acknowledged commit.
async fn cut_at(direct: &str, port: u16, protocol: Protocol, cut: Cut) -> (Proxy, bool) {
    let server = open(direct, Path::new("/")).await.unwrap();
    prepare(&*server).await;
    let start = server.list(&Prefix::All, None, 1).await.unwrap().revision;
    let mut watch = server.watch(&Prefix::All, start).await.unwrap();
    let proxy = Proxy::start(port, protocol, cut);
    let through = direct.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let victim = open(&through, Path::new("/")).await.unwrap();
    let told = victim.commit(many(2)).await;
    drop(victim);
    let landed = look(&*server).await;
    if let Ok(revision) = told {
        assert!(landed, "acknowledged at {revision:?} and not there ({cut:?})");
    }
    // Whatever happened, the next writer and the watch go on.
    let after = server.commit(put("after", b"")).await.unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(revision, _)| *revision < after) {
        let batch = watch.next().await.unwrap().unwrap();
        seen.push((batch.revision, batch.changes.len()));
        assert!(batch.changes.iter().all(|change| match change {
            Change::Put(record) => record.revision == batch.revision,
            Change::Delete(key) => key.as_str() == "goes-with-it",
        }));
    }
    let wanted: Vec<usize> = if landed { vec![MANY + 1, 1] } else { vec![1] };
    assert_eq!(seen.iter().map(|(_, count)| *count).collect::<Vec<_>>(), wanted);
    (proxy, landed)
}

/// Every step near the beginning, the commit point and the end; a sample of the many between.
fn steps(count: usize, dense: &[std::ops::Range<usize>], sample: usize) -> Vec<Cut> {
    let picked =
        (1..=count).filter(|n| dense.iter().any(|range| range.contains(n)) || n % sample == 0);
    picked
        .enumerate()
        .map(|(i, n)| if i % 2 == 0 { Cut::Before(n) } else { Cut::After(n) })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transaction_on_etcd_is_cut_at_every_step() {
    let server = EtcdServer::shared();
    let (proxy, landed) =
        cut_at(&server.url("never"), server.port(), Protocol::Http2, Cut::Never).await;
    assert!(landed);
    let count = proxy.requests();
    drop(proxy);
    // Staging and applying are 84 requests each; the interesting ones are around them.
    let middle = count / 2;
    let dense = [1..5, middle - 2..middle + 4, count - 3..count + 1];
    // Several at once, because a writer that died while staging blocks its prefix for seconds.
    let runs = steps(count, &dense, 29).into_iter().enumerate().map(|(index, cut)| async move {
        let url = server.url(&format!("cut{index}"));
        cut_at(&url, server.port(), Protocol::Http2, cut).await.1
    });
    let landed: Vec<bool> = futures_util::stream::iter(runs).buffer_unordered(4).collect().await;
    let whole = landed.iter().filter(|landed| **landed).count();
    assert!(whole > 2 && landed.len() - whole > 2, "{whole} of {} landed", landed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transaction_on_postgres_is_cut_at_every_step() {
    let server = PostgresServer::shared();
    let url = server.url("cut");
    let (proxy, landed) = cut_at(&url, server.port(), Protocol::Postgres, Cut::Never).await;
    assert!(landed);
    let count = proxy.requests();
    drop(proxy);
    let mut whole = 0;
    let mut none = 0;
    for cut in steps(count + 1, &[], 1) {
        let (_proxy, landed) = cut_at(&url, server.port(), Protocol::Postgres, cut).await;
        if landed { whole += 1 } else { none += 1 }
    }
    assert!(whole > 0 && none > 2, "{whole} landed, {none} did not");
}

/// A disk that loses power: unsynced writes are lost, or kept in part.
#[derive(Debug, Default)]
struct Disk {
    durable: Vec<u8>,
    /// Writes since the last sync, in order.
    volatile: Vec<(u64, Vec<u8>)>,
    length: u64,
    writes: usize,
    syncs: usize,
    fails_at: Option<usize>,
}

impl Disk {
    /// The content after the cut: any subset of the unsynced writes may have made it.
    fn after_power_cut(&self, seed: u64) -> Vec<u8> {
        let mut image = self.durable.clone();
        image.resize(usize::try_from(self.length).unwrap().max(image.len()), 0);
        for (index, (offset, data)) in self.volatile.iter().enumerate() {
            let lucky = (seed >> (index % 61)) & 1 == 1;
            if lucky {
                let at = usize::try_from(*offset).unwrap();
                image.resize(image.len().max(at + data.len()), 0);
                image[at..at + data.len()].copy_from_slice(data);
            }
        }
        image
    }

    fn step(&mut self) -> io::Result<()> {
        self.writes += 1;
        match self.fails_at {
            Some(n) if self.writes >= n => Err(io::Error::other("power is gone")),
            _ => Ok(()),
        }
    }

    fn current(&self) -> Vec<u8> {
        let all = Disk {
            volatile: self.volatile.clone(),
            durable: self.durable.clone(),
            ..Disk::default()
        };
        let mut image = all.after_power_cut(u64::MAX);
        image.resize(usize::try_from(self.length).unwrap(), 0);
        image
    }
}

#[derive(Debug, Clone, Default)]
struct PowerCut(Arc<Mutex<Disk>>);

impl redb::StorageBackend for PowerCut {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.0.lock();
        let start = offset;
        let end = offset + out.len() as u64;
        out.fill(0);
        let mut overlay = |at: u64, data: &[u8]| {
            let from = start.max(at);
            let to = end.min(at + data.len() as u64);
            if from < to {
                let target =
                    usize::try_from(from - start).unwrap()..usize::try_from(to - start).unwrap();
                let source = usize::try_from(from - at).unwrap()..usize::try_from(to - at).unwrap();
                out[target].copy_from_slice(&data[source]);
            }
        };
        overlay(0, &disk.durable);
        for (at, data) in &disk.volatile {
            overlay(*at, data);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        disk.length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        disk.syncs += 1;
        disk.durable = disk.current();
        disk.volatile.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.step()?;
        disk.volatile.push((offset, data.to_vec()));
        Ok(())
    }
}

fn on(disk: &PowerCut) -> Result<EmbeddedStore, StoreError> {
    let disk = disk.clone();
    EmbeddedStore::open_on(Box::new(move || Ok(Box::new(disk.clone()))), Retention::default())
}

fn from_image(image: Vec<u8>) -> PowerCut {
    let length = image.len() as u64;
    PowerCut(Arc::new(Mutex::new(Disk { durable: image, length, ..Disk::default() })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transaction_survives_power_loss_at_every_write() {
    let clean = PowerCut::default();
    let store = on(&clean).unwrap();
    prepare(&store).await;
    drop(store);
    let image = clean.0.lock().current();

    let run = async |fails_at: Option<usize>| {
        let disk = from_image(image.clone());
        let store = on(&disk).unwrap();
        let opened = disk.0.lock().writes;
        disk.0.lock().fails_at = fails_at.map(|n| opened + n);
        let told = store.commit(many(2)).await;
        let used = disk.0.lock().writes - opened;
        drop(store);
        (disk, told, used)
    };
    let (_, told, count) = run(None).await;
    told.unwrap();
    let mut whole = 0;
    let mut none = 0;
    let dense = (1..=count).filter(|n| *n < 3 || *n + 12 > count || n % (count / 10).max(1) == 0);
    for n in dense {
        let (disk, told, _) = run(Some(n)).await;
        for seed in [0, u64::MAX, 0x5555_5555_5555_5555, 0x9e37_79b9_7f4a_7c15 ^ n as u64] {
            let image = disk.0.lock().after_power_cut(seed);
            let reopened = on(&from_image(image)).unwrap();
            let landed = look(&reopened).await;
            assert!(landed || told.is_err(), "acknowledged and lost at write {n}");
            if landed { whole += 1 } else { none += 1 }
        }
    }
    assert!(none > 2, "{whole} landed, {none} did not");
}

/// Writers that wait together are made durable together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commits_share_a_sync() {
    const WRITERS: usize = 300;
    let disk = PowerCut::default();
    let store = on(&disk).unwrap();
    let before = disk.0.lock().syncs;
    let commits = (0..WRITERS).map(|n| {
        let store = store.clone();
        async move { store.commit(put(&format!("k/{n}"), b"")).await.unwrap() }
    });
    let mut revisions = futures_util::future::join_all(commits).await;
    revisions.sort();
    revisions.dedup();
    assert_eq!(revisions.len(), WRITERS, "each has its own revision");
    let syncs = disk.0.lock().syncs - before;
    assert!(syncs < WRITERS / 4, "{syncs} syncs for {WRITERS} commits");
}

/// Mounts a tiny file system for the test; needs root, and says so rather than passing.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn new(size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .status()
            .expect("mount is installed");
        assert!(done.success(), "this test mounts a tmpfs and has to run as root");
        Self(dir)
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_refuses_writes_until_there_is_room() {
    let disk = TinyDisk::new("8m");
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 3 * 1024 * 1024]).unwrap();
    let store = EmbeddedStore::open(disk.0.path(), Retention::default()).unwrap();
    let mut acknowledged: Vec<(Key, Revision)> = Vec::new();
    let mut n = 0;
    let refused = loop {
        let k = format!("k/{n:04}");
        match store.commit(put(&k, &vec![7; 50_000])).await {
            Ok(revision) => acknowledged.push((key(&k), revision)),
            Err(error) => break error,
        }
        n += 1;
        assert!(n < 1000, "the disk never fills");
    };
    assert!(matches!(refused, StoreError::Full { .. }), "{refused:?}");
    let again = store.commit(put("large", &vec![0; 1_000_000])).await;
    assert!(matches!(again, Err(StoreError::Full { .. })), "{again:?}");
    // Reads go on, and show only acknowledged records.
    let page = store.list(&Prefix::All, None, 1000).await.unwrap();
    let found: Vec<_> = page.records.iter().map(|r| (r.key.clone(), r.revision)).collect();
    assert_eq!(found, acknowledged);
    // Space is freed: the same process goes on.
    std::fs::remove_file(&ballast).unwrap();
    store.commit(put("after", &vec![0; 100_000])).await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(disk.0.path(), Retention::default()).unwrap();
    assert_eq!(
        store.list(&Prefix::All, None, 1000).await.unwrap().records.len(),
        acknowledged.len() + 1
    );
}
