//! A backup of a large store does not need memory for it. Alone in its process: memory is measured.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hoist_server::backup::{self, Output, Source, Tee};
use hoist_store::{Key, Op, Txn};
use jiff::Timestamp;

/// A store of far more than the memory that may be used for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_store_streams() {
    const RECORDS: usize = 60_000;
    const BYTES: usize = 3 * 1024;
    const MOST_KIB: u64 = 96 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let store = hoist_store::url::open("embedded", dir.path()).await.unwrap();
    hoist_site::schema::open(store.as_ref()).await.unwrap();
    // Digits that do not compress to nothing.
    let mut seed = 1_u64;
    let mut value = || {
        std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"0123456789abcdef"[usize::try_from(seed >> 60).unwrap()]
        })
        .take(BYTES)
        .collect::<Vec<u8>>()
    };
    for batch in 0..RECORDS / 1000 {
        let key = |n| format!("big/{:07}", batch * 1000 + n).parse::<Key>().unwrap();
        let ops = (0..1000).map(|n| Op::Put(key(n), value())).collect();
        store.commit(Txn { compares: vec![], ops }).await.unwrap();
    }
    let before = resident_kib();
    let peak = Arc::new(AtomicU64::new(0));
    let path = dir.path().join("b");
    let source = Source {
        data_dir: dir.path().to_owned(),
        store: Arc::clone(&store),
        with_artifacts: false,
        now: Timestamp::now(),
    };
    let output =
        MeteredWriter { inner: Output::create(&path, false).unwrap(), peak: Arc::clone(&peak) };
    let (output, _, contents) = backup::write(source, output).await.unwrap();
    output.inner.finish().unwrap();
    assert_eq!(contents.records, RECORDS as u64 + 1);
    let sink = MeteredWriter { inner: std::io::sink(), peak: Arc::clone(&peak) };
    backup::verify(Tee { from: std::fs::File::open(&path).unwrap(), to: sink }).await.unwrap();
    let grown = peak.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown < MOST_KIB, "{grown} KiB more for {} KiB of records", RECORDS * BYTES / 1024);
}

/// Looks at the process's memory while something is written.
struct MeteredWriter<W> {
    inner: W,
    peak: Arc<AtomicU64>,
}

impl<W: Write> Write for MeteredWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.peak.fetch_max(resident_kib(), Ordering::Relaxed);
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
