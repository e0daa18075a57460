//! Copies of a whole store: complete or refused, between all backends.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use hoist_store::copy::{self, CopyError, MARKER};
use hoist_store::{Key, Op, Prefix, Store, Txn};
use hoist_testkit::stores::{Backend, Ground};

const BACKENDS: [Backend; 3] = [Backend::Embedded, Backend::Etcd, Backend::Postgres];

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

async fn fill(store: &dyn Store) {
    let mut ops: Vec<Op> = (0..1500u32)
        .map(|n| Op::Put(key(&format!("n/{n:04}")), n.to_be_bytes().to_vec()))
        .collect();
    ops.push(Op::Put(key("text"), "ein Gruß\n\"\\".into()));
    ops.push(Op::Put(key("empty"), vec![]));
    ops.push(Op::Put(key("big"), vec![0xff; hoist_store::MAX_VALUE_BYTES]));
    store.commit(Txn { compares: vec![], ops }).await.unwrap();
    store.acquire("job", "me", std::time::Duration::from_mins(1)).await.unwrap().unwrap();
}

async fn exported(store: &dyn Store) -> Vec<u8> {
    let mut file = Vec::new();
    copy::export(store, &mut file).await.unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_can_be_moved_to_every_other() {
    for from in BACKENDS {
        let ground = Ground::new(from);
        let source = ground.store().await;
        fill(&*source).await;
        let file = exported(&*source).await;
        for to in BACKENDS {
            let ground = Ground::new(to);
            let target = ground.store().await;
            let copied = copy::migrate(&*source, &*target, false).await.unwrap();
            assert_eq!(copied.records, 1503);
            assert!(!copy::is_unfinished(&*target).await.unwrap());
            assert_eq!(exported(&*target).await, file, "{from:?} to {to:?}");
        }
        let ground = Ground::new(from);
        let restored = ground.store().await;
        copy::import(&*restored, file.as_slice(), false).await.unwrap();
        assert_eq!(exported(&*restored).await, file);
        assert!(restored.get(&key("lease/job")).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn copy_to_a_target_with_records_needs_permission() {
    let source = Ground::new(Backend::Embedded);
    let target = Ground::new(Backend::Embedded);
    let source = source.store().await;
    let target = target.store().await;
    fill(&*source).await;
    let file = exported(&*source).await;
    let old = Txn { compares: vec![], ops: vec![Op::Put(key("old"), vec![])] };
    target.commit(old).await.unwrap();
    let refused = copy::import(&*target, file.as_slice(), false).await;
    assert!(matches!(refused, Err(CopyError::NotEmpty { key }) if key.as_str() == "old"));
    let refused = copy::migrate(&*source, &*target, false).await;
    assert!(matches!(refused, Err(CopyError::NotEmpty { .. })));
    copy::import(&*target, file.as_slice(), true).await.unwrap();
    assert_eq!(exported(&*target).await, file, "what was there before is gone");
}

#[tokio::test]
async fn broken_copy_changes_nothing() {
    let source = Ground::new(Backend::Embedded);
    let target = Ground::new(Backend::Embedded);
    let source = source.store().await;
    let target = target.store().await;
    fill(&*source).await;
    let file = exported(&*source).await;
    let text = String::from_utf8(file.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let without_trailer = lines[..lines.len() - 1].join("\n");
    let without_one = [&lines[..5], &lines[6..]].concat().join("\n");
    let twice = [&lines[..5], &lines[4..]].concat().join("\n");
    let other_value = text.replacen("Gruß", "Gruss", 1);
    let cut = text[..text.len() / 2].to_owned();
    let more = format!("{text}{}\n", lines[3]);
    let lease = text.replacen("\"key\":\"n/0000\"", "\"key\":\"lease/x\"", 1);
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    for broken in
        [without_trailer, without_one, twice, other_value, cut, more, lease, newer, String::new()]
    {
        let outcome = copy::import(&*target, broken.as_bytes(), true).await;
        assert!(
            matches!(outcome, Err(CopyError::Line { .. } | CopyError::Mismatch { .. })),
            "{outcome:?}"
        );
        assert_eq!(target.list(&Prefix::All, None, 1).await.unwrap().records, []);
    }
}

/// A process that died in the middle leaves its mark, and the next import says so.
#[tokio::test]
async fn interrupted_import_is_noticed() {
    let ground = Ground::new(Backend::Embedded);
    let target = ground.store().await;
    let mark = Txn { compares: vec![], ops: vec![Op::Put(key(MARKER), vec![])] };
    target.commit(mark).await.unwrap();
    assert!(copy::is_unfinished(&*target).await.unwrap());
    let source = Ground::new(Backend::Embedded).store().await;
    let file = exported(&*source).await;
    let refused = copy::import(&*target, file.as_slice(), false).await;
    assert!(matches!(refused, Err(CopyError::NotEmpty { key }) if key.as_str() == MARKER));
    copy::import(&*target, file.as_slice(), true).await.unwrap();
    assert!(!copy::is_unfinished(&*target).await.unwrap());
}
