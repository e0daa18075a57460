//! The registry on real stores: durable, one history, never empty by failure.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hoist_model::document::{self, Document};
use hoist_model::{Kind, Selector};
use hoist_site::plan::{Plan, Reason, Refusal, Rule, ValidationDeadline};
use hoist_site::record::revision_key;
use hoist_site::registry::{
    ChangeGuard, LoadedFrom, Terms, WriteError, WriteOutcome, mint_id, until_cancelled,
};
use hoist_site::{Registry, Roster, last_good, schema};
use hoist_store::{Op, Store, StoreError, Txn};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually_async;
use hoist_testkit::failing_store::{FailingStore, Mood};
use hoist_testkit::stores::{Backend, Ground};
use parking_lot::Mutex;
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
) -> Result<WriteOutcome, WriteError> {
    let store = Arc::clone(registry.store());
    registry
        .write(terms, &store, |draft| {
            draft.apply(documents.clone(), &mut mint_id);
            Ok(())
        })
        .await
}

async fn remove(registry: &Registry, name: &str) -> Result<WriteOutcome, WriteError> {
    let store = Arc::clone(registry.store());
    let remove = |draft: &mut hoist_site::plan::Draft<'_>| {
        draft.remove(Kind::Node, name);
        Ok(())
    };
    registry.write(Terms::default(), &store, remove).await
}

async fn open(ground: &Ground) -> Registry {
    Registry::open(ground.store().await, ChangeGuard::default()).await.expect("an empty store")
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_survive_reopening_the_store() {
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
        let one = first.roster();
        let two = second.roster();
        assert_eq!(two.revision(), 2);
        assert_eq!(one.incarnation(), two.incarnation());
        let all = |roster: &hoist_site::Roster| roster.resources().collect::<Vec<_>>();
        assert_eq!(all(&one), all(&two));
    }
}

#[tokio::test]
async fn dry_run_writes_nothing() {
    let ground = Ground::new(Backend::Embedded);
    let registry = open(&ground).await;
    let before = registry.store().health().await.unwrap().revision;
    let terms = Terms { dry_run: true, ..Terms::default() };
    let written = apply(&registry, terms, nodes(0..3, "compute")).await.unwrap();
    assert_eq!(written.plan.puts.len(), 3);
    assert_eq!(registry.store().health().await.unwrap().revision, before);
    assert!(registry.roster().is_empty());
}

/// Validates until the test ends it.
struct Slow(Mutex<mpsc::Receiver<()>>);

impl Rule for Slow {
    fn validate(&self, _: &Roster, _: &mut Plan, _: &ValidationDeadline) -> Vec<Refusal> {
        let told = self.0.lock().recv_timeout(Duration::from_mins(1));
        told.expect("nobody else could do anything while a rule was thinking");
        Vec::new()
    }
}

/// There is one thread for everything that does not wait elsewhere.
#[tokio::test(flavor = "current_thread")]
async fn slow_rule_does_not_block_other_work() {
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

/// Validates changes of three nodes until the test ends it, or no writer waits any more. It reports
/// its start, with the number of nodes, and when no writer waits.
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
    fn validate(
        &self,
        before: &Roster,
        plan: &mut Plan,
        deadline: &ValidationDeadline,
    ) -> Vec<Refusal> {
        if plan.puts.len() != 3 {
            return Vec::new();
        }
        let say = |thought| self.says.send(thought).expect("somebody listens");
        say(Thought::About(before.len()));
        let go_on = self.go_on.lock();
        // Long enough that others are not made to wait for it.
        while go_on.recv_timeout(Duration::from_millis(100)).is_err() {
            if deadline.is_over() {
                say(Thought::Unwanted);
                return vec![ValidationDeadline::refusal(Kind::MetadataLayer, &"slow", "")];
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        Vec::new()
    }
}

struct SlowValidation {
    registry: Registry,
    thoughts: tokio::sync::mpsc::UnboundedReceiver<Thought>,
    go_on: mpsc::Sender<()>,
}

impl SlowValidation {
    async fn new() -> Self {
        let registry = open(&Ground::new(Backend::Embedded)).await;
        let (says, thoughts) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, told) = mpsc::channel();
        registry.add_rule(Arc::new(Thinker { says, go_on: Mutex::new(told) }));
        Self { registry, thoughts, go_on }
    }

    fn write_slowly(&self) -> tokio::task::JoinHandle<Result<WriteOutcome, WriteError>> {
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
async fn writes_during_validation_are_validated_again() {
    let mut thinking = SlowValidation::new().await;
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
async fn write_is_refused_when_the_site_keeps_changing() {
    let mut thinking = SlowValidation::new().await;
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
    assert!(matches!(refused, WriteError::SiteKeptChanging), "{refused}");
    assert_eq!(thinking.registry.roster().len(), others, "nothing of it was written");
    assert!(others > 1, "it was tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn validation_stops_when_the_caller_hangs_up() {
    let mut thinking = SlowValidation::new().await;
    let slow = thinking.write_slowly();
    assert_eq!(thinking.thought().await, Thought::About(0));
    slow.abort();
    assert_eq!(thinking.thought().await, Thought::Unwanted);

    let stop = CancellationToken::new();
    let registry = thinking.registry.clone();
    let slow = tokio::spawn(until_cancelled(stop.clone(), async move {
        apply(&registry, Terms::default(), nodes(0..3, "slow")).await
    }));
    assert_eq!(thinking.thought().await, Thought::About(0));
    stop.cancel();
    assert_eq!(thinking.thought().await, Thought::Unwanted);
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, WriteError::Cancelled), "{refused}");
    assert!(thinking.registry.roster().is_empty());
}

#[tokio::test]
async fn change_guard_wants_the_exact_number() {
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
async fn write_compares_the_expected_revision() {
    let registry = open(&Ground::new(Backend::Embedded)).await;
    let expect = |revision| Terms { expect: Some(revision), ..Terms::default() };
    apply(&registry, expect(0), nodes(0..1, "a")).await.unwrap();
    let late = apply(&registry, expect(0), nodes(1..2, "a")).await.unwrap_err();
    assert!(matches!(late, WriteError::Outdated { expected: 0, actual: 1 }));
}

/// A newer controller wrote a kind of record that this one does not know. It must not write on top
/// of an unreadable record: its revision would be given out twice.
#[tokio::test]
async fn unreadable_record_is_not_overwritten() {
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
        assert!(matches!(refused, WriteError::NotLoaded { .. }), "{refused}");
    }
    assert_eq!(registry.roster().len(), 1, "what was known stays");
    assert_eq!(store.get(&revision_key()).await.unwrap().unwrap().revision, theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_share_one_history() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let one = open(&ground).await;
        let two = open(&ground).await;
        let stop = CancellationToken::new();
        let followers = [one.clone(), two.clone()].map(|r| tokio::spawn(r.follow(stop.clone())));

        let write = |registry: Registry, from: u32| async move {
            for i in from..from + 15 {
                apply(&registry, Terms::default(), nodes(i..i + 1, "compute")).await.unwrap();
            }
        };
        tokio::join!(write(one.clone(), 0), write(two.clone(), 100));
        eventually_async("both controllers see all nodes", async || {
            one.roster().len() == 30 && two.roster().len() == 30
        })
        .await;
        assert_eq!((one.roster().revision(), two.roster().revision()), (30, 30));

        // A clash that only the other one has seen is refused all the same.
        let mut twin = nodes(500..501, "compute");
        if let document::Document::Node(_, spec) = &mut twin[0] {
            spec.nid = Some(hoist_model::Nid::new(1));
        }
        let refused = apply(&two, Terms::default(), twin).await.unwrap_err();
        assert!(
            matches!(&refused, WriteError::Refused(r) if r[0].reason == Reason::Clash),
            "{refused}"
        );

        remove(&two, "n0").await.unwrap();
        eventually_async("removal arrives", async || one.roster().by_name("n0").is_none()).await;
        let (_, gone) = one.roster().changes_since(30).map(|(n, g)| (n.len(), g.len())).unwrap();
        assert_eq!(gone, 1);
        stop.cancel();
        for follower in followers {
            follower.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn import_of_ten_thousand_nodes_is_atomic() {
    for backend in [Backend::Embedded, Backend::Etcd, Backend::Postgres] {
        let ground = Ground::new(backend);
        let one = open(&ground).await;
        let two = open(&ground).await;
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
async fn store_outage_keeps_the_roster() {
    let ground = Ground::new(Backend::Embedded);
    let failing = Arc::new(FailingStore::new(ground.store().await));
    let store: Arc<dyn Store> = Arc::clone(&failing) as Arc<dyn Store>;
    let registry = Registry::open(store, ChangeGuard::default()).await.unwrap();
    let stop = CancellationToken::new();
    let follower = tokio::spawn(registry.clone().follow(stop.clone()));
    apply(&registry, Terms::default(), nodes(0..5, "compute")).await.unwrap();

    failing.set(Mood::Unavailable);
    let error = apply(&registry, Terms::default(), nodes(5..6, "compute")).await.unwrap_err();
    assert!(matches!(error, WriteError::Store(StoreError::Unavailable { .. })), "{error}");
    eventually_async("loss of the store is noticed", async || !registry.contact().connected).await;
    assert_eq!(registry.roster().len(), 5, "reads go on");

    failing.set(Mood::Working);
    eventually_async("store is back", async || registry.contact().connected).await;
    apply(&registry, Terms::default(), nodes(5..6, "compute")).await.unwrap();

    // The answer is lost, the write is not: it shows up as if another had made it.
    failing.lose_next_answer();
    let lost = apply(&registry, Terms::default(), nodes(6..7, "compute")).await.unwrap_err();
    assert!(matches!(lost, WriteError::Store(StoreError::Unavailable { .. })), "{lost}");
    eventually_async("lost write is seen", async || registry.roster().by_name("n6").is_some())
        .await;
    apply(&registry, Terms::default(), nodes(7..8, "compute")).await.expect("and writing goes on");
    stop.cancel();
    follower.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn last_good_copy_serves_a_start_without_the_store() {
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
    assert!(Registry::open(Arc::clone(&store), ChangeGuard::default()).await.is_err());
    let (roster, taken) = last_good::read(&path).unwrap();
    let registry = Registry::resume(store, roster, taken, ChangeGuard::default());
    assert_eq!(registry.roster().revision(), before.roster().revision());
    let selector: Selector = "compute".parse().unwrap();
    assert_eq!(registry.roster().select(&selector).unwrap().len(), 20);
    assert!(matches!(registry.contact().loaded_from, LoadedFrom::Snapshot { .. }));
    let refused = apply(&registry, Terms::default(), nodes(20..21, "compute")).await.unwrap_err();
    assert!(matches!(refused, WriteError::NotLoaded { .. }));

    apply(&before, Terms::default(), nodes(20..22, "compute")).await.unwrap();
    let stop = CancellationToken::new();
    let follower = tokio::spawn(registry.clone().follow(stop.clone()));
    failing.set(Mood::Working);
    eventually_async("roster is loaded from the store", async || registry.roster().len() == 22)
        .await;
    apply(&registry, Terms::default(), nodes(22..23, "compute")).await.unwrap();
    stop.cancel();
    follower.await.unwrap();
}

#[tokio::test]
async fn damaged_last_good_copy_is_rejected() {
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
async fn foreign_and_newer_stores_are_refused() {
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

/// The member that a controller follows hangs, and the others go on. Until the controller follows
/// another one, it must not say that its roster is fresh.
#[tokio::test(flavor = "multi_thread")]
async fn roster_of_a_frozen_member_ages_and_another_is_followed() {
    /// The member confirms every second that there is nothing new; a busy machine takes longer.
    const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);
    let servers = EtcdServer::start_cluster(3);
    let url = |servers: &[EtcdServer]| {
        let hosts: Vec<_> = servers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("etcd://{}/x", hosts.join(","))
    };
    let open = async |url: &str| {
        let store = hoist_store::url::open(url, std::path::Path::new("/")).await.unwrap();
        Registry::open(store, ChangeGuard::default()).await.unwrap()
    };
    let follower = open(&url(&servers)).await;
    let writer = open(&url(&servers[1..])).await;
    let stop = CancellationToken::new();
    let following = tokio::spawn(follower.clone().follow(stop.clone()));
    apply(&writer, Terms::default(), nodes(0..1, "compute")).await.unwrap();
    eventually_async("first write arrives", async || follower.roster().len() == 1).await;

    // The first member was asked first.
    servers[0].freeze();
    let frozen = Instant::now();
    // The members may have to elect another leader first.
    while apply(&writer, Terms::default(), nodes(1..2, "compute")).await.is_err() {
        assert!(frozen.elapsed() < Duration::from_secs(30));
    }
    let written = Instant::now();
    while follower.roster().len() < 2 {
        let lag = frozen.elapsed();
        let silent = follower.contact().silent;
        if follower.roster().len() < 2 {
            assert!(silent + CONFIRMED_WITHIN >= lag, "{silent:?} old after {lag:?}");
        }
        assert!(written.elapsed() < Duration::from_secs(12), "no other member is followed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    following.await.unwrap();
    servers[0].thaw();
}
