//! What every source promises, whatever is behind it.

use async_trait::async_trait;
use hoist_site::source::{FetchOutcome, ImportedSet, InventorySource, SourceError};

/// A source whose backend the test controls. It starts with at least two nodes.
#[async_trait]
pub(crate) trait Bench {
    fn source(&self) -> &dyn InventorySource;
    /// Makes one more node.
    async fn add_node(&self);
    /// Takes that node away again.
    async fn take_node(&self);
    /// Everything that can go wrong with this source, by name.
    fn failures(&self) -> Vec<&'static str>;
    async fn break_it(&self, failure: &'static str);
    async fn mend_it(&self);
}

pub(crate) async fn run(bench: &dyn Bench) {
    let source = bench.source();
    assert!(!source.name().is_empty());

    let first = complete(source.fetch().await);
    let count = first.nodes.len();
    assert!(count >= 2);
    assert_valid(&first);

    for _ in 0..3 {
        assert_eq!(source.fetch().await.expect("nothing happened"), FetchOutcome::Unchanged);
    }
    source.forget();
    assert_eq!(complete(source.fetch().await), first, "the same set, told again");

    bench.add_node().await;
    let more = complete(source.fetch().await);
    assert_eq!(more.nodes.len(), count + 1);
    assert_valid(&more);
    bench.take_node().await;
    assert_eq!(complete(source.fetch().await), first);

    for failure in bench.failures() {
        bench.break_it(failure).await;
        for _ in 0..2 {
            let answer = source.fetch().await;
            assert!(answer.is_err(), "{failure} was answered with {answer:?}");
        }
        bench.mend_it().await;
        let answer = source.fetch().await.expect(failure);
        assert_eq!(answer, FetchOutcome::Unchanged, "{failure} changed nothing");

        // Nor does a failure hide a change.
        bench.break_it(failure).await;
        assert!(source.fetch().await.is_err());
        bench.mend_it().await;
        bench.add_node().await;
        assert_eq!(complete(source.fetch().await).nodes.len(), count + 1, "{failure}");
        bench.take_node().await;
        assert_eq!(complete(source.fetch().await), first, "{failure}");

        // A source that starts while it is broken has nothing to say either.
        source.forget();
        bench.break_it(failure).await;
        assert!(source.fetch().await.is_err());
        bench.mend_it().await;
        assert_eq!(complete(source.fetch().await), first, "{failure}");
    }
}

pub(crate) fn complete(answer: Result<FetchOutcome, SourceError>) -> ImportedSet {
    match answer {
        Ok(FetchOutcome::Complete(imported)) => imported,
        other => panic!("a complete set was expected, not {other:?}"),
    }
}

fn assert_valid(imported: &ImportedSet) {
    let mut seen = std::collections::HashSet::new();
    for node in &imported.nodes {
        assert!(seen.insert(&node.external_id), "{} is there twice", node.external_id);
        assert_eq!(node.spec.check(), []);
    }
}
