//! Copies in bounded memory. Alone in its process, because it measures the process.

use std::sync::Arc;

use hoist_store::copy;
use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_store::{Key, Op, Store, Txn};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

/// Two hundred thousand records, 200 MB of them, must not pass through memory at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_number_of_records() {
    const RECORDS: u32 = 200_000;
    const LIMIT_KIB: u64 = 120 * 1024;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open =
        |n: usize| Arc::new(EmbeddedStore::open(dirs[n].path(), Retention::default()).unwrap());
    let (source, target) = (open(0), open(1));
    for part in 0..RECORDS / 5_000 {
        let put = |n: u32| Op::Put(key(&format!("n/{:06}", part * 5_000 + n)), vec![b'x'; 1000]);
        let ops = (0..5_000).map(put).collect();
        source.commit(Txn { compares: vec![], ops }).await.unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let before = resident_kib();
    let to = tokio::io::BufWriter::new(tokio::fs::File::create(file.path()).await.unwrap());
    let exported = copy::export(&*source, to).await.unwrap();
    assert_eq!(exported.records, u64::from(RECORDS));
    let from = tokio::fs::File::open(file.path()).await.unwrap();
    let imported = copy::import(&*target, from, false).await.unwrap();
    assert_eq!(imported, exported);
    assert_eq!(copy::checksum(&*target).await.unwrap(), exported);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < LIMIT_KIB, "{grown} KiB more than before");
}

/// Peak resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
