//! The contract of [`Store`]: one suite, every backend. A backend is done when it passes.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hoist_store::{
    Batch, Change, Compare, Cursor, Key, Lease, MAX_VALUE_BYTES, Op, Prefix, Record, Revision,
    Store, StoreError, Txn, Watch,
};
use hoist_testkit::stores::{Backend, Ground};

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        contract!(@ embedded, Backend::Embedded, $($test),*);
        contract!(@ etcd, Backend::Etcd, $($test),*);
        contract!(@ etcd_tls, Backend::EtcdTls, $($test),*);
        contract!(@ postgres, Backend::Postgres, $($test),*);
    };
    (@ $module:ident, $backend:expr, $($test:ident),*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(Ground::new($backend)).await;
                }
            )*
        }
    };
}

contract!(
    values_and_keys_come_back_exactly,
    prefixes_end_at_segment_borders,
    operations_count_in_order,
    a_listing_is_one_snapshot_however_long_it_takes,
    a_failed_compare_changes_nothing,
    a_commit_without_effect_makes_no_history,
    writers_with_compares_lose_no_update,
    large_and_small_writers_lose_no_update,
    a_watch_delivers_every_commit_whole_and_in_order,
    a_watch_can_be_resumed_from_any_batch,
    a_watch_sees_what_other_handles_write,
    a_revision_from_the_future_is_not_kept,
    a_lease_has_one_holder_until_it_ends,
    a_lease_that_ran_out_guards_nothing,
    large_transactions_are_seen_whole_or_not_at_all,
    health_is_a_round_trip,
);

fn key(text: &str) -> Key {
    text.parse().expect("test keys are valid")
}

fn under(text: &str) -> Prefix {
    Prefix::Under(key(text))
}

fn puts<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Txn {
    let put = |(k, v): (&str, &str)| Op::Put(key(k), v.as_bytes().to_vec());
    Txn { compares: vec![], ops: pairs.into_iter().map(put).collect() }
}

async fn put(store: &Arc<dyn Store>, k: &str, v: &str) -> Revision {
    store.commit(puts([(k, v)])).await.unwrap()
}

/// The whole prefix in pages of `limit`, which must all belong to one snapshot.
async fn list(store: &Arc<dyn Store>, prefix: &Prefix, limit: usize) -> (Revision, Vec<Record>) {
    let first = store.list(prefix, None, limit).await.unwrap();
    let revision = first.revision;
    let mut records = first.records;
    let mut next = first.next;
    while let Some(cursor) = next {
        let page = store.list(prefix, Some(cursor), limit).await.unwrap();
        assert_eq!(page.revision, revision);
        assert!(page.records.len() <= limit);
        records.extend(page.records);
        next = page.next;
    }
    assert!(records.is_sorted_by(|a, b| a.key < b.key), "in key order, each once");
    (revision, records)
}

fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(|r| format!("{}={}", r.key, String::from_utf8_lossy(&r.value))).collect()
}

async fn next(watch: &mut Watch) -> Batch {
    let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    batch.expect("a batch comes soon").expect("the watch goes on").expect("without error")
}

async fn nothing_comes(watch: &mut Watch) {
    let batch = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    assert!(batch.is_err(), "{batch:?}");
}

fn change_texts(batch: &Batch) -> Vec<String> {
    let text = |change: &Change| match change {
        Change::Put(record) => {
            assert_eq!(record.revision, batch.revision);
            format!("{}={}", record.key, String::from_utf8_lossy(&record.value))
        }
        Change::Delete(key) => format!("{key} deleted"),
    };
    batch.changes.iter().map(text).collect()
}

async fn values_and_keys_come_back_exactly(ground: Ground) {
    let store = ground.store().await;
    assert_eq!(store.get(&key("a/b")).await.unwrap(), None);
    let every_byte: Vec<u8> = (0..=255).collect();
    let odd = key("~odd!/\"k'e\\y%_*[]{}");
    let long = key(&"k".repeat(512));
    let values = [
        (key("a/b"), every_byte),
        (odd, vec![]),
        (long, vec![0; 3]),
        (key("big"), vec![7; MAX_VALUE_BYTES]),
    ];
    for (key, value) in values {
        let txn = Txn { compares: vec![], ops: vec![Op::Put(key.clone(), value.clone())] };
        let revision = store.commit(txn).await.unwrap();
        let record = store.get(&key).await.unwrap().unwrap();
        assert_eq!((record.key, record.value, record.revision), (key, value, revision));
    }
    let too_large = Op::Put(key("big"), vec![7; MAX_VALUE_BYTES + 1]);
    let refused = store.commit(Txn { compares: vec![], ops: vec![too_large] }).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    let reserved = store.commit(puts([("lease/x", "")])).await;
    assert!(matches!(reserved, Err(StoreError::Reserved { .. })), "{reserved:?}");
}

async fn prefixes_end_at_segment_borders(ground: Ground) {
    let store = ground.store().await;
    let keys =
        ["node", "node!", "node-x/a", "node.", "node/a", "node/a/b", "node0", "nodes/a", "nod"];
    store.commit(puts(keys.map(|k| (k, "")))).await.unwrap();
    for limit in [1, 2, 100] {
        let (_, found) = list(&store, &under("node"), limit).await;
        assert_eq!(texts(&found), ["node=", "node/a=", "node/a/b="]);
        let (_, all) = list(&store, &Prefix::All, limit).await;
        assert_eq!(all.len(), keys.len());
    }
    let revision = put(&store, "other", "1").await;
    let mut watch = store.watch(&under("node"), revision).await.unwrap();
    let txn = Txn { compares: vec![], ops: vec![Op::DeletePrefix(key("node"))] };
    store.commit(txn).await.unwrap();
    assert_eq!(
        change_texts(&next(&mut watch).await),
        ["node deleted", "node/a deleted", "node/a/b deleted"]
    );
    let (_, left) = list(&store, &Prefix::All, 3).await;
    assert_eq!(
        texts(&left),
        ["nod=", "node!=", "node-x/a=", "node.=", "node0=", "nodes/a=", "other=1"]
    );
}

async fn operations_count_in_order(ground: Ground) {
    let store = ground.store().await;
    store.commit(puts([("p/old", "1"), ("p/kept", "1"), ("q", "1")])).await.unwrap();
    let ops = vec![
        Op::Put(key("p/new"), b"1".to_vec()),
        Op::DeletePrefix(key("p")),
        Op::Put(key("p/kept"), b"2".to_vec()),
        Op::Put(key("q"), b"2".to_vec()),
        Op::Put(key("q"), b"3".to_vec()),
        Op::Delete(key("r")),
        Op::Put(key("r"), b"1".to_vec()),
    ];
    let revision = store.commit(Txn { compares: vec![], ops }).await.unwrap();
    let (_, all) = list(&store, &Prefix::All, 10).await;
    assert_eq!(texts(&all), ["p/kept=2", "q=3", "r=1"]);
    assert!(all.iter().all(|record| record.revision == revision));
    // On etcd this went through the stage; its records are compared like any others.
    let compares = vec![Compare::At(key("q"), revision), Compare::Absent(key("p/old"))];
    let ops = vec![Op::Delete(key("q"))];
    store.commit(Txn { compares, ops }).await.unwrap();
    assert_eq!(store.get(&key("q")).await.unwrap(), None);
}

async fn a_listing_is_one_snapshot_however_long_it_takes(ground: Ground) {
    let store = ground.store().await;
    let names: Vec<String> = (0..100).map(|n| format!("n/{n:03}")).collect();
    store.commit(puts(names.iter().map(|n| (n.as_str(), "before")))).await.unwrap();
    let writer = tokio::spawn({
        let store = ground.store().await;
        let names = names.clone();
        async move {
            for (index, name) in names.iter().enumerate().rev().take(60) {
                match index % 3 {
                    0 => {
                        store
                            .commit(Txn { compares: vec![], ops: vec![Op::Delete(key(name))] })
                            .await
                    }
                    1 => store.commit(puts([(name.as_str(), "after")])).await,
                    _ => store.commit(puts([(format!("{name}x").as_str(), "new")])).await,
                }
                .unwrap();
            }
            // The same key again and again, and back again after a delete.
            put(&store, "n/099", "reborn").await;
            put(&store, "n/099", "reborn twice").await;
        }
    });
    let first = store.list(&under("n"), None, 7).await.unwrap();
    let snapshot = first.revision;
    let mut seen = first.records;
    let mut cursor = first.next;
    writer.await.unwrap();
    // Any handle can go on with the cursor.
    let other = ground.store().await;
    while let Some(at) = cursor {
        let page = other.list(&under("n"), Some(at), 7).await.unwrap();
        assert_eq!(page.revision, snapshot);
        seen.extend(page.records);
        cursor = page.next;
    }
    // The writer was quicker or slower; whatever the first page saw, the rest must match it.
    let mut state: BTreeMap<String, String> = BTreeMap::new();
    let mut watch = store.watch(&under("n"), Revision(0)).await.unwrap();
    loop {
        let batch = next(&mut watch).await;
        if batch.revision > snapshot {
            break;
        }
        apply(&mut state, &batch);
    }
    let wanted: Vec<String> = state.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(texts(&seen), wanted);
}

fn apply(state: &mut BTreeMap<String, String>, batch: &Batch) {
    for change in &batch.changes {
        match change {
            Change::Put(record) => {
                let value = String::from_utf8(record.value.clone()).unwrap();
                state.insert(record.key.to_string(), value);
            }
            Change::Delete(key) => drop(state.remove(key.as_str())),
        }
    }
}

async fn a_failed_compare_changes_nothing(ground: Ground) {
    let store = ground.store().await;
    let first = put(&store, "a", "1").await;
    let second = put(&store, "b", "1").await;
    assert!(second > first);
    let cases = [
        (Compare::At(key("a"), second), "a"),
        (Compare::At(key("a"), Revision(0)), "a"),
        (Compare::At(key("missing"), first), "missing"),
        (Compare::At(key("missing"), Revision(0)), "missing"),
        (Compare::Absent(key("b")), "b"),
    ];
    for (compare, culprit) in cases {
        let compares = vec![Compare::At(key("a"), first), compare];
        let ops = vec![Op::Put(key("a"), vec![]), Op::DeletePrefix(key("b"))];
        match store.commit(Txn { compares, ops }).await {
            Err(StoreError::Conflict { key }) => assert_eq!(key.as_str(), culprit),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(texts(&list(&store, &Prefix::All, 9).await.1), ["a=1", "b=1"]);
    // Compares alone are a question.
    let compares = vec![Compare::At(key("a"), first), Compare::Absent(key("c"))];
    store.commit(Txn { compares, ops: vec![] }).await.unwrap();
    // More compares than etcd takes at once.
    let mut compares: Vec<Compare> =
        (0..300).map(|n| Compare::Absent(key(&format!("x/{n}")))).collect();
    let ops = vec![Op::Put(key("many"), b"1".to_vec())];
    store.commit(Txn { compares: compares.clone(), ops: ops.clone() }).await.unwrap();
    compares.push(Compare::Absent(key("many")));
    let refused = store.commit(Txn { compares, ops }).await;
    assert!(matches!(refused, Err(StoreError::Conflict { key }) if key.as_str() == "many"));
}

async fn a_commit_without_effect_makes_no_history(ground: Ground) {
    let store = ground.store().await;
    let revision = put(&store, "a", "1").await;
    let mut watch = store.watch(&Prefix::All, revision).await.unwrap();
    let many_deletes = (0..200).map(|n| Op::Delete(key(&format!("none/{n}")))).collect();
    for ops in
        [vec![], vec![Op::Delete(key("none"))], vec![Op::DeletePrefix(key("none"))], many_deletes]
    {
        let same = store.commit(Txn { compares: vec![], ops }).await.unwrap();
        assert!(same >= revision);
        if !ground.is_shared() {
            assert_eq!(same, revision);
        }
    }
    nothing_comes(&mut watch).await;
    // The same value again is a change: a client may be waiting for the revision.
    let again = put(&store, "a", "1").await;
    assert!(again > revision);
    assert_eq!(next(&mut watch).await.revision, again);
}

/// Adds one to the counter `times` times, together with `beside` other keys.
async fn count_up(store: Arc<dyn Store>, times: usize, beside: usize) -> Vec<Revision> {
    let mut revisions = Vec::new();
    while revisions.len() < times {
        let record = store.get(&key("counter")).await.unwrap().unwrap();
        let count: u32 = String::from_utf8(record.value).unwrap().parse().unwrap();
        let mut ops: Vec<Op> =
            (0..beside).map(|n| Op::Put(key(&format!("beside/{n}")), vec![])).collect();
        ops.push(Op::Put(key("counter"), (count + 1).to_string().into_bytes()));
        let compares = vec![Compare::At(key("counter"), record.revision)];
        match store.commit(Txn { compares, ops }).await {
            Ok(revision) => revisions.push(revision),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    revisions
}

/// Runs the counters side by side; every number must appear once, in the order of revisions.
async fn count_together(ground: &Ground, counters: &[(usize, usize)]) {
    let store = ground.store().await;
    let start = put(&store, "counter", "0").await;
    let mut tasks = Vec::new();
    for (times, beside) in counters {
        tasks.push(tokio::spawn(count_up(ground.store().await, *times, *beside)));
    }
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.extend(task.await.unwrap());
    }
    let total: usize = counters.iter().map(|(times, _)| times).sum();
    let end = store.get(&key("counter")).await.unwrap().unwrap().value;
    assert_eq!(String::from_utf8_lossy(&end), total.to_string());
    revisions.sort();
    revisions.dedup();
    assert_eq!(revisions.len(), total, "every commit has its own revision");
    let mut watch = store.watch(&under("counter"), start).await.unwrap();
    for (count, revision) in (1..).zip(revisions) {
        let batch = next(&mut watch).await;
        let wanted = vec![format!("counter={count}")];
        assert_eq!((batch.revision, change_texts(&batch)), (revision, wanted));
    }
}

async fn writers_with_compares_lose_no_update(ground: Ground) {
    count_together(&ground, &[(10, 0); 8]).await;
}

/// On etcd the large ones take several steps; the small ones must not slip in between.
async fn large_and_small_writers_lose_no_update(ground: Ground) {
    count_together(&ground, &[(40, 0), (40, 0), (40, 0), (6, 600), (6, 600)]).await;
}

async fn a_watch_delivers_every_commit_whole_and_in_order(ground: Ground) {
    let store = ground.store().await;
    let start = put(&store, "w/a", "0").await;
    let mut live = store.watch(&under("w"), start).await.unwrap();
    let mut wanted = Vec::new();
    let r = store.commit(puts([("w/b", "1"), ("w/a", "1"), ("x", "1")])).await.unwrap();
    wanted.push((r, vec!["w/a=1".to_owned(), "w/b=1".to_owned()]));
    put(&store, "x", "2").await;
    let r = put(&store, "w/a", "2").await;
    wanted.push((r, vec!["w/a=2".to_owned()]));
    let ops = vec![Op::Delete(key("w/a")), Op::Put(key("w/c"), b"1".to_vec())];
    let r = store.commit(Txn { compares: vec![], ops }).await.unwrap();
    wanted.push((r, vec!["w/a deleted".to_owned(), "w/c=1".to_owned()]));
    let r = put(&store, "w/a", "3").await;
    wanted.push((r, vec!["w/a=3".to_owned()]));
    // Once live, once from history: replaced values must still be reported as they were.
    let mut late = store.watch(&under("w"), start).await.unwrap();
    for watch in [&mut live, &mut late] {
        for (revision, changes) in &wanted {
            let batch = next(watch).await;
            assert_eq!((batch.revision, change_texts(&batch)), (*revision, changes.clone()));
        }
        nothing_comes(watch).await;
    }
}

async fn a_watch_can_be_resumed_from_any_batch(ground: Ground) {
    let store = ground.store().await;
    let start = put(&store, "a", "0").await;
    let mut revisions = vec![start];
    for n in 1..=5 {
        revisions.push(put(&store, "a", &n.to_string()).await);
        // Also across a large one.
        let ops = (0..200).map(|i| Op::Put(key(&format!("big/{i}")), vec![n])).collect();
        revisions.push(store.commit(Txn { compares: vec![], ops }).await.unwrap());
    }
    for at in 0..revisions.len() {
        let mut watch = store.watch(&Prefix::All, revisions[at]).await.unwrap();
        for revision in &revisions[at + 1..] {
            let batch = next(&mut watch).await;
            assert_eq!(batch.revision, *revision);
            assert!([1, 200].contains(&batch.changes.len()));
        }
    }
    let (snapshot, _) = list(&store, &Prefix::All, 50).await;
    let mut watch = store.watch(&Prefix::All, snapshot).await.unwrap();
    nothing_comes(&mut watch).await;
    let last = put(&store, "a", "end").await;
    assert_eq!(next(&mut watch).await.revision, last);
}

async fn a_watch_sees_what_other_handles_write(ground: Ground) {
    let here = ground.store().await;
    let there = ground.store().await;
    let start = put(&here, "a", "0").await;
    let mut watch = here.watch(&Prefix::All, start).await.unwrap();
    nothing_comes(&mut watch).await;
    for n in 0..20 {
        let asked = Instant::now();
        let revision = put(&there, "a", &n.to_string()).await;
        assert_eq!(next(&mut watch).await.revision, revision);
        assert!(asked.elapsed() < Duration::from_secs(3), "took {:?}", asked.elapsed());
    }
}

async fn a_revision_from_the_future_is_not_kept(ground: Ground) {
    let store = ground.store().await;
    let revision = put(&store, "a", "0").await;
    let future = Revision(revision.0 + 1_000_000);
    let watch = store.watch(&Prefix::All, future).await.map(drop);
    assert!(
        matches!(watch, Err(StoreError::Compacted { asked, .. }) if asked == future),
        "{watch:?}"
    );
    let cursor = Cursor { after: key("a"), snapshot: future };
    let page = store.list(&Prefix::All, Some(cursor), 10).await;
    assert!(matches!(page, Err(StoreError::Compacted { .. })), "{page:?}");
}

const LONG: Duration = Duration::from_mins(1);

async fn a_lease_has_one_holder_until_it_ends(ground: Ground) {
    let here = ground.store().await;
    let there = ground.store().await;
    let lease = here.acquire("job", "here", LONG).await.unwrap().expect("nobody has it");
    assert_eq!(there.acquire("job", "there", LONG).await.unwrap(), None);
    assert!(there.acquire("other-job", "there", LONG).await.unwrap().is_some());
    let again = here.acquire("job", "here", LONG).await.unwrap().expect("we have it");
    assert_eq!(again.fence, lease.fence);
    here.renew(&lease).await.unwrap();
    let record = there.get(&key("lease/job")).await.unwrap().expect("the record says who");
    assert_eq!((record.value.as_slice(), record.revision.0), (b"here".as_slice(), lease.fence));
    write_as(&here, &lease, 1).await.unwrap();
    // Large transactions check the guard too.
    write_as(&here, &lease, 300).await.unwrap();
    here.release(lease.clone()).await.unwrap();
    here.release(lease.clone()).await.unwrap();
    assert_eq!(there.get(&key("lease/job")).await.unwrap(), None);
    let next = there.acquire("job", "there", LONG).await.unwrap().expect("it was released");
    assert!(next.fence > lease.fence);
    for size in [1, 300] {
        let late = write_as(&here, &lease, size).await;
        assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    }
    let late = here.renew(&lease).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    write_as(&there, &next, 1).await.unwrap();
}

async fn write_as(
    store: &Arc<dyn Store>,
    lease: &Lease,
    size: usize,
) -> Result<Revision, StoreError> {
    let ops = (0..size).map(|n| Op::Put(key(&format!("by-lease/{n}")), vec![])).collect();
    store.commit(Txn { compares: vec![lease.guard()], ops }).await
}

async fn a_lease_that_ran_out_guards_nothing(ground: Ground) {
    let here = ground.store().await;
    let there = ground.store().await;
    let short = Duration::from_secs(2);
    let lease = here.acquire("job", "here", short).await.unwrap().expect("nobody has it");
    let mut watch = there.watch(&under("lease"), Revision(lease.fence)).await.unwrap();
    // Renewed, it outlives its time.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(900)).await;
        here.renew(&lease).await.unwrap();
    }
    write_as(&here, &lease, 1).await.unwrap();
    // Without a renewal the lease ends by itself, and every watch reports it.
    assert_eq!(change_texts(&next(&mut watch).await), ["lease/job deleted"]);
    let late = write_as(&here, &lease, 1).await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    let late = here.renew(&lease).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    let next = there.acquire("job", "there", LONG).await.unwrap().expect("it ran out");
    assert!(next.fence > lease.fence);
}

const MANY: usize = 10_000;

fn generation(number: u8, size: usize) -> Txn {
    let op = |n: usize| Op::Put(key(&format!("many/{n:05}")), vec![number; size]);
    Txn { compares: vec![], ops: (0..MANY).map(op).collect() }
}

async fn large_transactions_are_seen_whole_or_not_at_all(ground: Ground) {
    let store = ground.store().await;
    let start = put(&store, "other", "0").await;
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = tokio::spawn(read_generations(ground.store().await, Arc::clone(&done)));
    let writer = tokio::spawn(write_meanwhile(ground.store().await, Arc::clone(&done)));
    let mut live = ground.store().await.watch(&under("many"), start).await.unwrap();

    let first = store.commit(generation(1, 330)).await.unwrap();
    let record = store.get(&key("many/05000")).await.unwrap().unwrap();
    assert_eq!((record.revision, record.value), (first, vec![1; 330]));
    let mut txn = generation(2, 330);
    txn.compares.push(Compare::At(key("many/00000"), first));
    txn.compares.push(Compare::Absent(key("many/x")));
    let second = store.commit(txn.clone()).await.unwrap();
    let stale = store.commit(txn).await;
    assert!(matches!(stale, Err(StoreError::Conflict { .. })), "{stale:?}");
    let third = store
        .commit(Txn { compares: vec![], ops: vec![Op::DeletePrefix(key("many"))] })
        .await
        .unwrap();
    assert!(first < second && second < third);
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.await.unwrap() > 0);
    writer.await.unwrap();

    let mut late = store.watch(&under("many"), start).await.unwrap();
    for watch in [&mut live, &mut late] {
        for (revision, wanted) in [(first, Some(1)), (second, Some(2)), (third, None)] {
            let batch = next(watch).await;
            assert_eq!((batch.revision, batch.changes.len()), (revision, MANY));
            for change in batch.changes {
                match (change, wanted) {
                    (Change::Put(record), Some(byte)) => {
                        assert_eq!((record.revision, record.value[0]), (revision, byte));
                    }
                    (Change::Delete(_), None) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!(list(&store, &under("many"), 10).await.1, []);
}

/// Reads until told to stop; every listing must be of one generation.
async fn read_generations(
    store: Arc<dyn Store>,
    done: Arc<std::sync::atomic::AtomicBool>,
) -> usize {
    let mut whole = 0;
    while !done.load(std::sync::atomic::Ordering::Relaxed) {
        let (_, records) = list(&store, &under("many"), 4_000).await;
        assert!([0, MANY].contains(&records.len()), "{} records", records.len());
        let mut values: Vec<_> = records.iter().map(|r| (r.value[0], r.revision)).collect();
        values.dedup();
        assert!(values.len() <= 1, "a mixture: {values:?}");
        whole += values.len();
        // A single read does not see more than a listing.
        let one = store.get(&key("many/09999")).await.unwrap();
        let other = store.get(&key("many/00000")).await.unwrap();
        if let (Some(one), Some(other)) = (one, other) {
            assert!(other.revision >= one.revision);
        }
    }
    whole
}

/// Ordinary writes go on beside large ones.
async fn write_meanwhile(store: Arc<dyn Store>, done: Arc<std::sync::atomic::AtomicBool>) {
    while !done.load(std::sync::atomic::Ordering::Relaxed) {
        put(&store, "other", "1").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn health_is_a_round_trip(ground: Ground) {
    let store = ground.store().await;
    let revision = put(&store, "a", "1").await;
    let health = store.health().await.unwrap();
    assert!(health.revision >= revision);
    assert!(health.size_bytes.unwrap() > 0);
    assert!(["embedded", "etcd", "postgres"].contains(&health.backend));
    assert!(!health.detail.is_empty());
}
