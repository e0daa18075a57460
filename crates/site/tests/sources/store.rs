use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_model::{Kind, document};
use hoist_site::plan::Draft;
use hoist_site::registry::{ChangeGuard, Terms, mint_id};
use hoist_site::source::store::StoreSource;
use hoist_site::source::{FailureKind, FetchOutcome, InventorySource};
use hoist_site::{Registry, schema};
use hoist_store::{Op, Prefix, Store, Txn};
use hoist_testkit::failing_store::{FailingStore, Mood};
use hoist_testkit::stores::{Backend, Ground};

use crate::conformance::{self, Bench, complete};

const SITE: &str = r#"
{"api":"hoist/v1","kind":"Partition","name":"p1","spec":{"description":"production"}}
{"api":"hoist/v1","kind":"Network","name":"nmn","spec":{}}
{"api":"hoist/v1","kind":"Group","name":"p1/compute","spec":{"priority":7}}
{"api":"hoist/v1","kind":"Group","name":"p1/odd","spec":{"selector":"nid:1"}}
{"api":"hoist/v1","kind":"Node","name":"n1","spec":{"nid":1,"partition":"p1","groups":["compute"],"labels":{"rack":"a"},"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","network":"nmn"}]}}
{"api":"hoist/v1","kind":"Node","name":"n2","spec":{"nid":2}}
"#;
const EXTRA: &str = r#"{"api":"hoist/v1","kind":"Node","name":"n3","spec":{"nid":3}}"#;

/// Long enough for every store, and short enough to wait for twice.
const DEADLINE: Duration = Duration::from_secs(1);

struct StoreBench {
    registry: Registry,
    behind: Arc<dyn Store>,
    front: Arc<FailingStore<Arc<dyn Store>>>,
    source: StoreSource,
    schema: Vec<u8>,
}

impl StoreBench {
    async fn new(ground: &Ground) -> Self {
        let behind = ground.store().await;
        let registry = Registry::open(Arc::clone(&behind), ChangeGuard::default()).await.unwrap();
        let front = Arc::new(FailingStore::new(ground.store().await));
        let shown: Arc<dyn Store> = Arc::clone(&front) as Arc<dyn Store>;
        let name = "store".parse().unwrap();
        let source = StoreSource::new(name, "the other site", shown).with_deadline(DEADLINE);
        let schema = behind.get(&schema::schema_key()).await.unwrap().unwrap().value;
        let bench = Self { registry, behind, front, source, schema };
        bench.apply(SITE).await;
        bench
    }

    async fn apply(&self, text: &str) {
        let documents = document::read("test", text.as_bytes()).unwrap();
        self.write(|draft| draft.apply(documents.clone(), &mut mint_id)).await;
    }

    async fn remove(&self, node: &str) {
        self.write(|draft| draft.remove(Kind::Node, node)).await;
    }

    async fn write<T>(&self, mut change: impl FnMut(&mut Draft<'_>) -> T + Send) {
        let store = Arc::clone(self.registry.store());
        let draft = |draft: &mut Draft<'_>| {
            change(draft);
            Ok(())
        };
        self.registry.write(Terms::default(), &store, draft).await.unwrap();
    }

    async fn put(&self, op: Op) {
        self.behind.commit(Txn { compares: Vec::new(), ops: vec![op] }).await.unwrap();
    }
}

#[async_trait]
impl Bench for StoreBench {
    fn source(&self) -> &dyn InventorySource {
        &self.source
    }

    async fn add_node(&self) {
        self.apply(EXTRA).await;
    }

    async fn take_node(&self) {
        self.remove("n3").await;
    }

    fn failures(&self) -> Vec<&'static str> {
        vec!["unavailable", "hanging", "newer", "garbage", "foreign"]
    }

    async fn break_it(&self, failure: &'static str) {
        let key = schema::schema_key();
        match failure {
            "unavailable" => self.front.set(Mood::Unavailable),
            "hanging" => self.front.set(Mood::Hanging),
            "newer" => {
                let mut schema = schema::Schema::from_bytes(&self.schema).unwrap();
                schema.version = schema::VERSION + 1;
                self.put(Op::Put(key, schema.to_bytes())).await;
            }
            "garbage" => self.put(Op::Put(key, b"}{".to_vec())).await,
            "foreign" => self.put(Op::Delete(key)).await,
            other => panic!("{other}"),
        }
    }

    async fn mend_it(&self) {
        self.front.set(Mood::Working);
        self.put(Op::Put(schema::schema_key(), self.schema.clone())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_every_kind_are_sources() {
    for backend in [Backend::Embedded, Backend::Etcd] {
        let ground = Ground::new(backend);
        conformance::run(&StoreBench::new(&ground).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_source_reads_all_and_writes_nothing() {
    let ground = Ground::new(Backend::Embedded);
    let bench = StoreBench::new(&ground).await;
    let before = bench.behind.health().await.unwrap().revision;
    let imported = complete(bench.source.fetch().await);
    assert_eq!(bench.behind.health().await.unwrap().revision, before);
    let names: Vec<_> = imported.nodes.iter().map(|node| node.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["n1", "n2"]);
    let site = bench.registry.roster();
    for node in &imported.nodes {
        let here = site.by_id(node.external_id.parse().unwrap()).unwrap();
        assert_eq!(node.spec, here.spec);
    }
    let groups: Vec<_> = imported.groups.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(groups, ["p1/compute", "p1/odd"]);
    assert_eq!(imported.groups[0].1.priority, 7);
    assert!(imported.groups[1].1.selector.is_some());
    assert_eq!(imported.networks.len(), 1);
    assert!(imported.partitions.iter().any(|(_, spec)| spec.description == "production"));
}

#[tokio::test(flavor = "multi_thread")]
async fn store_source_rejects_empty_new_and_damaged_sites() {
    let empty = Ground::new(Backend::Embedded);
    let store = empty.store().await;
    let source = StoreSource::new("store".parse().unwrap(), "a new store", Arc::clone(&store));
    assert_eq!(source.fetch().await.unwrap_err().kind(), FailureKind::Broken);
    let left = store.list(&Prefix::All, None, 10).await.unwrap();
    assert!(left.records.is_empty(), "a look does not make it ours");

    let ground = Ground::new(Backend::Embedded);
    let bench = StoreBench::new(&ground).await;
    complete(bench.source.fetch().await);
    bench.remove("n1").await;
    bench.remove("n2").await;
    assert_eq!(bench.source.fetch().await.unwrap_err().kind(), FailureKind::Empty);
    bench.apply(SITE).await;
    complete(bench.source.fetch().await);
    assert_eq!(bench.source.fetch().await.unwrap(), FetchOutcome::Unchanged);

    let node = bench.registry.roster().nodes().next().unwrap().id;
    let key = hoist_site::ResourceKey::Node(node).to_key();
    bench.put(Op::Put(key, b"{".to_vec())).await;
    bench.source.forget();
    assert_eq!(bench.source.fetch().await.unwrap_err().kind(), FailureKind::Broken);
}
