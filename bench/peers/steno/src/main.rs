//! A saga of no-ops through steno with its store in memory: `steno-peer LAYERS WIDTH [TURNS]`.
//! Every layer comes after all of the one before. Prints the nanoseconds of each turn, a line each.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use steno::{
    Action, ActionContext, ActionError, ActionRegistry, DagBuilder, InMemorySecStore, Node, SagaDag,
    SagaId, SagaName, SagaType,
};

#[derive(Debug)]
struct Nothing;

impl SagaType for Nothing {
    type ExecContextType = ();
}

static NOTHING: LazyLock<Arc<dyn Action<Nothing>>> =
    LazyLock::new(|| steno::new_action_noop_undo("nothing", do_nothing));

async fn do_nothing(_: ActionContext<Nothing>) -> Result<(), ActionError> {
    Ok(())
}

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let [layers, width] = [numbers[0], numbers[1]];
    let log = slog::Logger::root(slog::Discard, slog::o!());
    let sec = steno::sec(log, Arc::new(InMemorySecStore::new()));
    let mut registry = ActionRegistry::new();
    registry.register(Arc::clone(&NOTHING));
    let registry = Arc::new(registry);
    for _ in 0..numbers.get(2).copied().unwrap_or(1) {
        let saga = saga(layers, width);
        let id = SagaId::new_v4();
        let start = Instant::now();
        let ended = sec
            .saga_create(id, Arc::new(()), saga, Arc::clone(&registry))
            .await
            .expect("the saga is good");
        sec.saga_start(id).await.expect("it is not running yet");
        ended.await.kind.expect("nothing can fail");
        println!("{}", start.elapsed().as_nanos());
    }
    sec.shutdown().await;
}

fn saga(layers: usize, width: usize) -> Arc<SagaDag> {
    let mut builder = DagBuilder::new(SagaName::new("nothing"));
    for layer in 0..layers {
        let nodes = (0..width).map(|at| {
            let name = format!("n{layer}_{at}");
            Node::action(&*name.clone(), &*name, NOTHING.as_ref())
        });
        builder.append_parallel(nodes.collect());
    }
    // It wants exactly one at the end.
    builder.append(Node::action("end", "end", NOTHING.as_ref()));
    let dag = builder.build().expect("layers have no cycle");
    Arc::new(SagaDag::new(dag, serde_json::Value::Null))
}
