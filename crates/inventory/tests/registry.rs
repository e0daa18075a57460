//! The registry on real stores: durable, one history, never empty by failure.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use hoist_inventory::plan::{Patience, Plan, Reason, Refusal, Rule};
use hoist_inventory::record::revision_key;
use hoist_inventory::registry::{
    Brake, LoadedFrom, Terms, WriteError, Written, mint_id, while_wanted,
};
use hoist_inventory::{Registry, Roster, last_good, schema};
use hoist_model::document::{self, Document};
use hoist_model::{Kind, Selector};
use hoist_store::{Op, Store, StoreError, Txn};
use hoist_testkit::failing_store::{FailingStore, Mood};
use hoist_testkit::stores::{Backend, Ground};
use tokio_util::sync::CancellationToken;

fn nodes(range: std::ops::Range<u32>, role: &str) -> Vec<Document> {
    let node = |i: u32| {
        let [_, a, b, c] = i.to_be_bytes();
        format!(
            r#"{{"api":"hoist/v1","kind":"Node","name":"n{i}","spec":{{"nid":{},"role":"{role}","interfaces":[{{"name":"eth0","mac":"02:00:00:{a:02x}:{b:02x}:{c:02x}"}}]}}}}"#,
            i + 1
        )
    };
    let text: Vec<_> = range.map(node).collect();
    document::read("test", text.join("\n").as_bytes()).expect("valid documents")
}

async fn apply(
    registry: &Registry,
    terms: Terms,
    documents: Vec<Document>,
) -> Result<Written, WriteError> {
    let store = Arc::clone(registry.store());
    registry
        .write(terms, &store, |draft| {
            draft.apply(documents.clone(), &mut mint_id);
            Ok(())
        })
        .await
}

async fn remove(registry: &Registry, name: &str) -> Result<Written, WriteError> {
    let store = Arc::clone(registry.store());
    let remove = |draft: &mut hoist_inventory::plan::Draft<'_>| {
        draft.remove(Kind::Node, name);
        Ok(())
    };
    registry.write(Terms::default(), &store, remove).await
}

async fn open(ground: &Ground) -> Registry {
    Registry::open(ground.store().await, Brake::default()).await.expect("an empty store")
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came to pass: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_is_there_after_opening_again() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let first = open(&ground).await;
        assert!(first.roster().is_empty());
        let written = apply(&first, Terms::default(), nodes(0..3, "compute")).await.unwrap();
        assert_eq!(written.revision, 1);
        remove(&first, "n1").await.unwrap();
        let again = apply(&first, Terms::default(), nodes(0..1, "compute")).await.unwrap();
        assert_eq!(again.revision, 2, "what changes nothing makes no revision");

        let second = open(&ground).await;
        let (one, two) = (first.roster(), second.roster());
        assert_eq!(two.revision(), 2);
        assert_eq!(one.incarnation(), two.incarnation());
        let all = |roster: &hoist_inventory::Roster| roster.resources().collect::<Vec<_>>();
        assert_eq!(all(&one), all(&two));
    }
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let ground = Ground::new(Backend::Embedded);
    let registry = open(&ground).await;
    let before = registry.store().health().await.unwrap().revision;
    let terms = Terms { dry_run: true, ..Terms::default() };
    let written = apply(&registry, terms, nodes(0..3, "compute")).await.unwrap();
    assert_eq!(written.plan.puts.len(), 3);
    assert_eq!(registry.store().health().await.unwrap().revision, before);
    assert!(registry.roster().is_empty());
}

/// Has to think until it is told to stop.
struct Slow(Mutex<mpsc::Receiver<()>>);

impl Rule for Slow {
    fn judge(&self, _: &Roster, _: &mut Plan, _: &Patience) -> Vec<Refusal> {
        let told = self.0.lock().expect("nobody panicked").recv_timeout(Duration::from_mins(1));
        told.expect("nobody else could do anything while a rule was thinking");
        Vec::new()
    }
}

/// There is one thread for everything that does not wait elsewhere.
#[tokio::test(flavor = "current_thread")]
async fn a_rule_that_takes_its_time_keeps_nobody_else_from_working() {
    let registry = open(&Ground::new(Backend::Embedded)).await;
    let (tell, told) = mpsc::channel();
    registry.add_rule(Arc::new(Slow(Mutex::new(told))));
    for dry_run in [true, false] {
        let terms = Terms { dry_run, ..Terms::default() };
        let writing = apply(&registry, terms, nodes(0..3, "compute"));
        let other = async { tell.send(()).unwrap() };
        let (written, ()) = tokio::join!(writing, other);
        assert_eq!(written.unwrap().plan.puts.len(), 3);
    }
    assert_eq!(registry.roster().len(), 3);
}

/// Thinks about changes of three nodes until it is told to stop, or nobody waits any more. It says
/// when it begins, with how many nodes there are, and when nobody waits.
struct Thinker {
    says: tokio::sync::mpsc::UnboundedSender<Thought>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Thought {
    About(usize),
    Unwanted,
}

impl Rule for Thinker {
    fn judge(&self, before: &Roster, plan: &mut Plan, patience: &Patience) -> Vec<Refusal> {
        if plan.puts.len() != 3 {
            return Vec::new();
        }
        let say = |thought| self.says.send(thought).expect("somebody listens");
        say(Thought::About(before.len()));
        let go_on = self.go_on.lock().expect("nobody panicked");
        // Long enough that others are not made to wait for it.
        while go_on.recv_timeout(Duration::from_millis(100)).is_err() {
            if patience.is_over() {
                say(Thought::Unwanted);
                return vec![Patience::refusal(Kind::MetadataLayer, &"slow", "")];
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        Vec::new()
    }
}

struct Thinking {
    registry: Registry,
    thoughts: tokio::sync::mpsc::UnboundedReceiver<Thought>,
    go_on: mpsc::Sender<()>,
}

impl Thinking {
    async fn new() -> Self {
        let registry = open(&Ground::new(Backend::Embedded)).await;
        let (says, thoughts) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, told) = mpsc::channel();
        registry.add_rule(Arc::new(Thinker { says, go_on: Mutex::new(told) }));
        Self { registry, thoughts, go_on }
    }

    fn write_slowly(&self) -> tokio::task::JoinHandle<Result<Written, WriteError>> {
        let registry = self.registry.clone();
        tokio::spawn(async move { apply(&registry, Terms::default(), nodes(0..3, "slow")).await })
    }

    async fn thought(&mut self) -> Thought {
        let thought = tokio::time::timeout(Duration::from_secs(30), self.thoughts.recv()).await;
        thought.expect("it thinks").expect("the rule is there")
    }

    async fn write_quickly(&self, n: u32) {
        let writing = apply(&self.registry, Terms::default(), nodes(n..n + 1, "quick"));
        let written = tokio::time::timeout(Duration::from_secs(30), writing).await;
        written.expect("nobody waits for a rule that is thinking").expect("a valid change");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_while_a_rule_is_thinking_and_it_thinks_again_about_what_they_wrote() {
    let mut thinking = Thinking::new().await;
    let slow = thinking.write_slowly();
    assert_eq!(thinking.thought().await, Thought::About(0));
    thinking.write_quickly(10).await;
    thinking.go_on.send(()).unwrap();
    assert_eq!(thinking.thought().await, Thought::About(1));
    thinking.go_on.send(()).unwrap();
    assert_eq!(slow.await.unwrap().unwrap().revision, 2);
    assert_eq!(thinking.registry.roster().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_overtaken_again_and_again_is_refused() {
    let mut thinking = Thinking::new().await;
    let slow = thinking.write_slowly();
    let mut others = 0;
    while !slow.is_finished() {
        let Ok(thought) =
            tokio::time::timeout(Duration::from_millis(500), thinking.thoughts.recv()).await
        else {
            continue;
        };
        assert_eq!(thought, Some(Thought::About(others)));
        thinking.write_quickly(10 + u32::try_from(others).unwrap()).await;
        others += 1;
        thinking.go_on.send(()).unwrap();
    }
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, WriteError::Overtaken), "{refused}");
    assert_eq!(thinking.registry.roster().len(), others, "nothing of it was written");
    assert!(others > 1, "it was tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_thought_about_that_nobody_waits_for() {
    let mut thinking = Thinking::new().await;
    let slow = thinking.write_slowly();
    assert_eq!(thinking.thought().await, Thought::About(0));
    slow.abort();
    assert_eq!(thinking.thought().await, Thought::Unwanted);

    let stop = CancellationToken::new();
    let registry = thinking.registry.clone();
    let slow = tokio::spawn(while_wanted(stop.clone(), async move {
        apply(&registry, Terms::default(), nodes(0..3, "slow")).await
    }));
    assert_eq!(thinking.thought().await, Thought::About(0));
    stop.cancel();
    assert_eq!(thinking.thought().await, Thought::Unwanted);
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, WriteError::Unwanted), "{refused}");
    assert!(thinking.registry.roster().is_empty());
}

#[tokio::test]
async fn the_brake_wants_the_exact_number() {
    let registry = open(&Ground::new(Backend::Embedded)).await;
    apply(&registry, Terms::default(), nodes(0..100, "compute"))
        .await
        .expect("new nodes never count");
    let terms = |affects| Terms { affects, ..Terms::default() };
    // 10 of 100 is not above 10 %; 11 is.
    apply(&registry, terms(None), nodes(0..10, "login")).await.unwrap();
    for said in [None, Some(10), Some(12)] {
        let refused = apply(&registry, terms(said), nodes(10..21, "login")).await.unwrap_err();
        assert!(matches!(refused, WriteError::Affects { affected: 11, .. }), "{refused}");
    }
    apply(&registry, terms(Some(11)), nodes(10..21, "login")).await.unwrap();
    let wrong = apply(&registry, terms(Some(5)), nodes(30..31, "login")).await.unwrap_err();
    assert!(matches!(wrong, WriteError::Affects { affected: 1, said: Some(5) }));
}

#[tokio::test]
async fn an_expected_revision_is_compared() {
    let registry = open(&Ground::new(Backend::Embedded)).await;
    let expect = |revision| Terms { expect: Some(revision), ..Terms::default() };
    apply(&registry, expect(0), nodes(0..1, "a")).await.unwrap();
    let late = apply(&registry, expect(0), nodes(1..2, "a")).await.unwrap_err();
    assert!(matches!(late, WriteError::Outdated { expected: 0, actual: 1 }));
}

/// A newer controller wrote a kind of record that this one does not know. It must not write on top of
/// what it could not read: its revision would be given out twice.
#[tokio::test]
async fn nothing_is_written_over_a_record_that_cannot_be_read() {
    let ground = Ground::new(Backend::Embedded);
    let registry = open(&ground).await;
    apply(&registry, Terms::default(), nodes(0..1, "compute")).await.unwrap();
    let newer = Txn {
        compares: vec![],
        ops: vec![
            Op::Put(revision_key(), br#"{"revision":2}"#.to_vec()),
            Op::Put("site/zone/a".parse().unwrap(), b"{}".to_vec()),
        ],
    };
    let store = ground.store().await;
    let theirs = store.commit(newer).await.unwrap();
    for _ in 0..3 {
        let refused = apply(&registry, Terms::default(), nodes(1..2, "compute")).await.unwrap_err();
        assert!(matches!(refused, WriteError::NotLoaded), "{refused}");
    }
    assert_eq!(registry.roster().len(), 1, "what was known stays");
    assert_eq!(store.get(&revision_key()).await.unwrap().unwrap().revision, theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_have_one_history() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let (one, two) = (open(&ground).await, open(&ground).await);
        let stop = CancellationToken::new();
        let followers = [one.clone(), two.clone()].map(|r| tokio::spawn(r.follow(stop.clone())));

        let write = |registry: Registry, from: u32| async move {
            for i in from..from + 15 {
                apply(&registry, Terms::default(), nodes(i..i + 1, "compute")).await.unwrap();
            }
        };
        tokio::join!(write(one.clone(), 0), write(two.clone(), 100));
        eventually("both see all", || one.roster().len() == 30 && two.roster().len() == 30).await;
        assert_eq!((one.roster().revision(), two.roster().revision()), (30, 30));

        // A clash that only the other one has seen is refused all the same.
        let mut twin = nodes(500..501, "compute");
        if let document::Spec::Node(spec) = &mut twin[0].spec {
            spec.nid = hoist_model::Nid::new(1);
        }
        let refused = apply(&two, Terms::default(), twin).await.unwrap_err();
        assert!(
            matches!(&refused, WriteError::Refused(r) if r[0].reason == Reason::Clash),
            "{refused}"
        );

        remove(&two, "n0").await.unwrap();
        eventually("the removal arrives", || one.roster().by_name("n0").is_none()).await;
        let (_, gone) = one.roster().changes_since(30).map(|(n, g)| (n.len(), g.len())).unwrap();
        assert_eq!(gone, 1);
        stop.cancel();
        for follower in followers {
            follower.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_nodes_arrive_whole() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let (one, two) = (open(&ground).await, open(&ground).await);
        let stop = CancellationToken::new();
        let follower = tokio::spawn(two.clone().follow(stop.clone()));
        let mut changes = two.changes();
        let watched = tokio::spawn({
            let two = two.clone();
            async move {
                while two.roster().is_empty() {
                    changes.changed().await.unwrap();
                }
                two.roster().len()
            }
        });
        apply(&one, Terms::default(), nodes(0..10_000, "compute")).await.unwrap();
        let seen =
            tokio::time::timeout(Duration::from_secs(20), watched).await.expect("in time").unwrap();
        assert_eq!(seen, 10_000, "all or nothing");
        // And the next write finds the right place in the history.
        apply(&one, Terms::default(), nodes(10_000..10_001, "compute")).await.unwrap();
        apply(&two, Terms::default(), nodes(10_001..10_002, "compute")).await.unwrap();
        stop.cancel();
        follower.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_may_go_and_come_back() {
    let ground = Ground::new(Backend::Embedded);
    let failing = Arc::new(FailingStore::new(ground.store().await));
    let store: Arc<dyn Store> = Arc::clone(&failing) as Arc<dyn Store>;
    let registry = Registry::open(store, Brake::default()).await.unwrap();
    let stop = CancellationToken::new();
    let follower = tokio::spawn(registry.clone().follow(stop.clone()));
    apply(&registry, Terms::default(), nodes(0..5, "compute")).await.unwrap();

    failing.set(Mood::Unavailable);
    let error = apply(&registry, Terms::default(), nodes(5..6, "compute")).await.unwrap_err();
    assert!(matches!(error, WriteError::Store(StoreError::Unavailable { .. })), "{error}");
    eventually("the loss is noticed", || !registry.contact().connected).await;
    assert_eq!(registry.roster().len(), 5, "reads go on");

    failing.set(Mood::Working);
    eventually("it is back", || registry.contact().connected).await;
    apply(&registry, Terms::default(), nodes(5..6, "compute")).await.unwrap();

    // The answer is lost, the write is not: it shows up as if another had made it.
    failing.lose_next_answer();
    let lost = apply(&registry, Terms::default(), nodes(6..7, "compute")).await.unwrap_err();
    assert!(matches!(lost, WriteError::Store(StoreError::Unavailable { .. })), "{lost}");
    eventually("the lost write is seen", || registry.roster().by_name("n6").is_some()).await;
    apply(&registry, Terms::default(), nodes(7..8, "compute")).await.expect("and writing goes on");
    stop.cancel();
    follower.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_copy_carries_a_start_without_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("roster.snapshot");
    let ground = Ground::new(Backend::Embedded);
    let before = open(&ground).await;
    apply(&before, Terms::default(), nodes(0..20, "compute")).await.unwrap();
    last_good::write(&path, &before.roster()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let failing = Arc::new(FailingStore::new(ground.store().await));
    failing.set(Mood::Unavailable);
    let store: Arc<dyn Store> = Arc::clone(&failing) as Arc<dyn Store>;
    assert!(Registry::open(Arc::clone(&store), Brake::default()).await.is_err());
    let (roster, taken) = last_good::read(&path).unwrap();
    let registry = Registry::resume(store, roster, taken, Brake::default());
    assert_eq!(registry.roster().revision(), before.roster().revision());
    let selector: Selector = "compute".parse().unwrap();
    assert_eq!(registry.roster().select(&selector).unwrap().len(), 20);
    assert!(matches!(registry.contact().loaded_from, LoadedFrom::Snapshot { .. }));
    let refused = apply(&registry, Terms::default(), nodes(20..21, "compute")).await.unwrap_err();
    assert!(matches!(refused, WriteError::NotLoaded));

    apply(&before, Terms::default(), nodes(20..22, "compute")).await.unwrap();
    let stop = CancellationToken::new();
    let follower = tokio::spawn(registry.clone().follow(stop.clone()));
    failing.set(Mood::Working);
    eventually("the truth is loaded", || registry.roster().len() == 22).await;
    apply(&registry, Terms::default(), nodes(22..23, "compute")).await.unwrap();
    stop.cancel();
    follower.await.unwrap();
}

#[tokio::test]
async fn a_damaged_copy_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("roster.snapshot");
    assert!(matches!(last_good::read(&path), Err(last_good::LastGoodError::Absent)));
    let registry = open(&Ground::new(Backend::Embedded)).await;
    apply(&registry, Terms::default(), nodes(0..5, "compute")).await.unwrap();
    last_good::write(&path, &registry.roster()).unwrap();
    let good = std::fs::read(&path).unwrap();
    for (i, bytes) in [
        good[..good.len() - 5].to_vec(),
        good[..good.len() / 2].to_vec(),
        String::from_utf8(good.clone()).unwrap().replace("compute", "computa").into_bytes(),
        b"not ours\n".to_vec(),
        Vec::new(),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&path, bytes).unwrap();
        let read = last_good::read(&path);
        assert!(matches!(read, Err(last_good::LastGoodError::Damaged { .. })), "case {i}");
    }
}

#[tokio::test]
async fn stores_of_others_and_of_the_future_are_refused() {
    let put = |key: &str, value: &str| Txn {
        compares: vec![],
        ops: vec![Op::Put(key.parse().unwrap(), value.as_bytes().to_vec())],
    };
    let foreign = Ground::new(Backend::Embedded).store().await;
    foreign.commit(put("something/else", "1")).await.unwrap();
    assert!(matches!(schema::open(foreign.as_ref()).await, Err(schema::SchemaError::Foreign)));

    let newer = Ground::new(Backend::Embedded).store().await;
    let record = r#"{"version":99,"written_by":"7.0.0","incarnation":"x"}"#;
    newer.commit(put("meta/schema", record)).await.unwrap();
    let error = schema::open(newer.as_ref()).await.unwrap_err();
    assert!(error.to_string().contains("hoist 7.0.0"), "{error}");
}
