//! Task files from text to plan: parsing, binding, limits, conditions, selection, and diagnostics
//! of invalid files.

mod bind;
mod decide;
mod jam;
mod layers;
mod limits;
mod lint;
mod read;
mod scale;
mod select;

use hoist_deploy::compile::{CompiledPlan, Options, compile};
use hoist_deploy::diagnostic::SourceDiagnostic;
use hoist_deploy::layer::{Book, Layer, merge};
use hoist_deploy::parse::parse;
use hoist_deploy::spec::Sources;
use hoist_deploy::target::{TargetNode, TargetSite};
use hoist_engine::plan::{Kind, Step};
use hoist_model::node::Lifecycle;
use hoist_model::{NodeId, NodeSpec};

/// The example of the documentation.
const EXAMPLE: &str = r#"
hoist: 1
roles:
  database:
    first: database-first
    tolerate: 1
    rollout: {at_once: 6, canary: 1, pause_after_canary: 2m}
tasks:
  haproxy:
    on: "*"
    run: {file: {path: /etc/haproxy.cfg, text: "x"}}
  db-install:
    on: database
    requires: [haproxy]
    run: {shell: "apt-get -y install mariadb-server"}
    locks: [packages]
    timeout: 30m
    retries: 2
    delay: 5s
  db-bootstrap:
    on: first(database)
    requires: [db-install]
    run: {shell: "galera_new_cluster"}
    repeat: check
    check:
      before: [{shell: "test -d /var/lib/mysql", says: "data directory exists"}]
      after:  [{shell: "mysqladmin ping", for: 2m, every: 5s}]
    undo: {shell: "systemctl stop mariadb"}
  db-join:
    on: database and not first(database)
    requires: [db-install]
    needs:
      - {task: db-bootstrap, on: first(database)}
    at_once: 1
    run: {shell: "systemctl start mariadb"}
  api-start:
    on: controller
    needs:
      - {task: /^db-(bootstrap|join)$/, on: database, want: most}
    required_for: [deployed]
    inputs: [settings.mysql, nodes.database]
    when: settings.api.enabled
    run: {file: {path: /etc/api.conf, template: api.conf}}
    on_failure: stop
barriers:
  deployed: {requires: [], passes_with: tolerated}
settings:
  mysql: {port: 3306}
  api: {enabled: true}
"#;

/// Nodes by name, each with the groups it is in.
fn site(nodes: &[(&str, &[&str])]) -> TargetSite {
    let nodes = nodes.iter().zip(1_u32..).map(|((name, groups), at)| {
        let groups: Vec<&str> = groups.to_vec();
        let spec = serde_json::json!({ "nid": at, "groups": groups });
        let spec: NodeSpec = serde_json::from_value(spec).expect("a node");
        let name = name.parse().expect("a name");
        TargetNode {
            id: NodeId::from_bits(at.into()),
            name,
            spec,
            lifecycle: Lifecycle::Installed,
            system: String::new(),
        }
    });
    TargetSite { nodes: nodes.collect(), ..TargetSite::default() }
}

fn three_and_one() -> TargetSite {
    let database: &[&str] = &["database"];
    site(&[("db1", database), ("db2", database), ("db3", database), ("ctl1", &["controller"])])
}

/// Parses one file and returns its diagnostics, each as one line.
fn read(text: &str) -> (Book, Sources, Vec<String>) {
    let mut sources = Sources::default();
    let (file, mut found) = parse(&mut sources, "tasks.yaml", text.as_bytes());
    let (book, more) = merge(vec![(Layer::Cluster, file)]);
    found.extend(more);
    let lines = found.iter().map(|one| one.show(&sources)).collect();
    (book, sources, lines)
}

fn good(text: &str) -> Book {
    let (book, _, found) = read(text);
    assert_eq!(found, Vec::<String>::new(), "{text}");
    book
}

fn compiled(
    text: &str,
    site: &TargetSite,
    options: &Options<'_>,
) -> Result<CompiledPlan, Vec<String>> {
    let (book, sources, found) = read(text);
    assert_eq!(found, Vec::<String>::new(), "{text}");
    compile(&book, site, options).map_err(|found| lines(&found, &sources))
}

fn lines(found: &[SourceDiagnostic], sources: &Sources) -> Vec<String> {
    found.iter().map(|one| one.show(sources)).collect()
}

/// The diagnostics of a file, with a plan or without one.
fn told(text: &str, site: &TargetSite) -> Vec<String> {
    let (book, sources, found) = read(text);
    assert_eq!(found, Vec::<String>::new(), "{text}");
    match compile(&book, site, &Options::default()) {
        Ok(compiled) => lines(&compiled.diagnostics, &sources),
        Err(found) => lines(&found, &sources),
    }
}

fn step<'a>(compiled: &'a CompiledPlan, task: &str, node: &str) -> &'a Step {
    let id = compiled.find(task, node).expect("the instance is there");
    match &compiled.vertex(id).kind {
        Kind::Step(step) => step,
        Kind::Join(_) => panic!("{task}@{node} is a join"),
    }
}

/// The names of an instance's dependencies, with joins expanded.
fn before(compiled: &CompiledPlan, task: &str, node: &str) -> Vec<String> {
    let id = compiled.find(task, node).expect("the instance is there");
    compiled.before(id).into_iter().map(|id| compiled.vertex(id).name.clone()).collect()
}

/// The instances that are done, by name.
fn done(compiled: &CompiledPlan) -> Vec<String> {
    let is_done = |id| matches!(&compiled.vertex(id).kind, Kind::Step(step) if step.skip.is_none());
    let instances = compiled.instances().filter(|(id, _)| is_done(*id));
    instances.map(|(id, _)| compiled.vertex(id).name.clone()).collect()
}

fn with_template() -> Options<'static> {
    let templates = [(
        (0, "api.conf".to_owned()),
        "port={{ settings.mysql.port }} on {{ node.name }}\n".to_owned(),
    )];
    Options { templates: templates.into(), ..Options::default() }
}
