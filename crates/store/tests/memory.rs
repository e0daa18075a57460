//! Copies in bounded memory. Alone in its process, because it measures the process.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use hoist_store::copy;
use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_store::{Key, Op, Store, Txn};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

/// Four times the records must not take four times the memory: 150 MB more of them pass.
///
/// Measured peaks are 151, 178, 192 and 202 MiB for 50, 100, 200 and 400 thousand records: page
/// caches and allocator fill up, then it levels off. Now and then it is some 64 MiB, on a busy machine;
/// the bound leaves room for that, and none for keeping the records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_number_of_records() {
    const FILLING_KIB: u64 = 96 * 1024;
    copy_records(50_000).await;
    let before = peak_kib();
    copy_records(200_000).await;
    let grown = peak_kib() - before;
    assert!(grown < FILLING_KIB, "{grown} KiB more than for a quarter of it");
}

async fn copy_records(count: u32) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open = |n: usize| EmbeddedStore::open(dirs[n].path(), Retention::default()).unwrap();
    let source = open(0);
    let target = open(1);
    for part in 0..count / 5_000 {
        let put = |n: u32| Op::Put(key(&format!("n/{:06}", part * 5_000 + n)), vec![b'x'; 1000]);
        let ops = (0..5_000).map(put).collect();
        source.commit(Txn { compares: vec![], ops }).await.unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let to = tokio::io::BufWriter::new(tokio::fs::File::create(file.path()).await.unwrap());
    let exported = copy::export(&source, to).await.unwrap();
    assert_eq!(exported.records, u64::from(count));
    let from = tokio::fs::File::open(file.path()).await.unwrap();
    assert_eq!(copy::import(&target, from, false).await.unwrap(), exported);
    assert_eq!(copy::checksum(&target).await.unwrap(), exported);
}

/// Peak resident memory of this process.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
