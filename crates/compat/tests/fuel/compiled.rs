//! What hoist compiles Fuel's real tasks to is what Fuel's own rules give, edge by edge.

use std::collections::{BTreeMap, HashSet};

use hoist_compat::fuel::Options;
use hoist_deploy::compile::{self, CompiledPlan, compile};
use hoist_deploy::condition::UntranslatedPolicy;
use hoist_deploy::diagnostic::SourceDiagnostic;
use hoist_deploy::layer::{Book, Layer, merge};
use hoist_deploy::parse::parse;
use hoist_deploy::spec::Sources;
use hoist_deploy::target::{TargetNode, TargetSite};
use hoist_engine::plan::{Kind, Rule, StepId};
use hoist_model::node::Lifecycle;
use hoist_model::{NodeId, NodeSpec};
use regex::Regex;
use serde_json::{Value, json};

use crate::expansion::{
    Expansion, FIVE_HUNDRED, HUNDRED, KNOWN, Layout, MASTER, NULL, Shape, THOUSAND, expand, shape,
};
use crate::import::imported;

fn book(graph: &str) -> Book {
    read(&imported(graph).text)
}

fn read(text: &str) -> Book {
    let mut sources = Sources::default();
    let (file, found) = parse(&mut sources, "fuel.yaml", text.as_bytes());
    assert!(found.is_empty(), "{}", told(&found, &sources));
    let (book, found) = merge(vec![(Layer::Product, file)]);
    assert!(found.is_empty(), "{}", told(&found, &sources));
    book
}

fn told(found: &[SourceDiagnostic], sources: &Sources) -> String {
    found.iter().map(|one| one.draw(sources, false)).collect::<Vec<_>>().join("\n")
}

fn node(at: usize, role: &str) -> TargetNode {
    let spec: NodeSpec = serde_json::from_value(json!({"nid": at, "role": role})).expect("a node");
    TargetNode {
        id: NodeId::mint(0, at as u128),
        name: format!("node{at}").parse().expect("a name"),
        spec,
        lifecycle: Lifecycle::Declared,
        system: String::new(),
    }
}

/// The deployment server is the last, so that it is first in nothing.
fn site(layout: Layout) -> TargetSite {
    let roles = layout.iter().flat_map(|(role, count)| std::iter::repeat_n(*role, *count));
    let nodes = roles.enumerate().map(|(at, role)| node(at + 2, role)).collect::<Vec<_>>();
    let master = node(nodes.len() + 2, "master");
    TargetSite { nodes: nodes.into_iter().chain([master]).collect(), ..TargetSite::default() }
}

fn compiled(graph: &str, layout: Layout) -> CompiledPlan {
    let options = compile::Options {
        settings: settings(graph),
        untranslated: UntranslatedPolicy::True,
        ..compile::Options::default()
    };
    let sources = Sources::default();
    compile(&book(graph), &site(layout), &options)
        .unwrap_or_else(|found| panic!("{}", told(&found, &sources)))
}

/// Everything that the conditions of the tasks ask for is there, and off.
fn settings(graph: &str) -> Value {
    let asked = Regex::new(r"settings((?:\.[a-z_0-9]+)+)").expect("a pattern");
    let mut settings = json!({"plugins": [], "use_ssl": []});
    for line in imported(graph).text.lines().filter(|line| line.trim_start().starts_with("when:")) {
        for found in asked.captures_iter(line) {
            let mut at = &mut settings;
            for part in found[1].split('.').skip(1) {
                if !at.is_object() {
                    *at = json!({});
                }
                at = &mut at[part];
            }
            if at.is_null() {
                *at = false.into();
            }
        }
    }
    settings
}

/// Vertices that do something, on their nodes as the other side numbers them, and all pairs.
fn expanded(compiled: &CompiledPlan, layout: Layout) -> Expansion {
    let draft = &compiled.draft;
    let nodes: usize = layout.iter().map(|(_, count)| count).sum();
    let number = |node: u32| if node as usize == nodes { MASTER } else { node as usize + 2 };
    let place: BTreeMap<StepId, (usize, String)> = compiled
        .instances()
        .map(|(id, at)| (id, (number(at.node), compiled.tasks[at.task as usize].clone())))
        .collect();
    let first_join = place.keys().last().map_or(0, |id| id.0 + 1);
    let mut vertices = Vec::new();
    let mut edges = HashSet::new();
    for (at, vertex) in (0..first_join).zip(&draft.vertices) {
        let (node, task) =
            place.get(&StepId(at)).cloned().unwrap_or_else(|| (NULL, vertex.name.clone()));
        vertices.push((node, task));
        for before in &vertex.after {
            if before.0 < first_join {
                edges.insert((before.0, at));
                continue;
            }
            let join = &draft.vertices[before.0 as usize];
            // Where any will do Fuel picked one.
            let picked = if join.kind == Kind::Join(Rule::AtLeast(1)) { 1 } else { usize::MAX };
            edges.extend(join.after.iter().take(picked).map(|before| (before.0, at)));
        }
    }
    edges.retain(|(before, after)| before != after);
    Expansion { vertices, edges }
}

/// A task on a node.
type InstanceKey<'a> = (usize, &'a str);

fn named(expanded: &Expansion) -> HashSet<(InstanceKey<'_>, InstanceKey<'_>)> {
    let name = |at: u32| {
        let (node, task) = &expanded.vertices[at as usize];
        (*node, task.as_str())
    };
    expanded.edges.iter().map(|(a, b)| (name(*a), name(*b))).collect()
}

#[test]
fn compiled_graphs_equal_those_of_fuel_edge_by_edge() {
    for (graph, layout, known) in KNOWN {
        let compiled = compiled(graph, layout);
        let ours = expanded(&compiled, layout);
        let theirs = expand(graph, layout);
        let our_edges = named(&ours);
        let their_edges = named(&theirs);
        let missing: Vec<_> = their_edges.difference(&our_edges).take(5).collect();
        let more: Vec<_> = our_edges.difference(&their_edges).take(5).collect();
        assert!(missing.is_empty() && more.is_empty(), "{graph}: -{missing:?} +{more:?}");
        assert_eq!(ours.shape(), known, "{graph}, {layout:?}");
    }
}

/// Counts with joins, without expanding their members.
fn counted(compiled: &CompiledPlan, layout: Layout) -> Shape {
    expanded(compiled, layout).shape()
}

#[test]
fn graph_of_1000_nodes_is_small_and_complete() {
    let compiled = compiled("default", THOUSAND);
    let joined: usize = compiled.draft.vertices.iter().map(|vertex| vertex.after.len()).sum();
    assert!(joined <= 160_000, "{joined} edges");
    let known = shape(52_019, [2_076_662, 72_083, 37_027, 1_967_552], 67, 4_217);
    assert_eq!(counted(&compiled, THOUSAND), known);
}

#[test]
#[ignore = "takes a quarter of a minute in a debug build"]
fn large_graphs_equal_the_known_ones() {
    let known = shape(26_119, [558_762, 36_283, 18_627, 503_852], 67, 2_117);
    assert_eq!(counted(&compiled("default", FIVE_HUNDRED), FIVE_HUNDRED), known);
    let verified = counted(&compiled("net-verification", THOUSAND), THOUSAND);
    assert_eq!((verified.vertices, verified.edges), (11_005, 1_018_002));
    assert_eq!((verified.longest, verified.widest), (11, 2_001));
}

#[test]
fn reference_without_nodes_on_a_layout_is_a_warning() {
    let compiled = compiled("default", HUNDRED);
    let has = |code: &str| compiled.diagnostics.iter().any(|one| one.code.as_str() == code);
    assert!(has("E302"));
    assert!(!compiled.diagnostics.iter().any(SourceDiagnostic::is_error));
}

fn lint_errors(text: &str, options: &compile::Options<'_>) -> Vec<String> {
    let found = hoist_deploy::lint::layouts(&read(text), options);
    let sources = Sources::default();
    let errors = found.iter().filter(|one| one.diagnostic.is_error());
    errors.map(|one| format!("{}: {}", one.layout, one.diagnostic.show(&sources))).collect()
}

#[test]
fn imported_files_pass_lint() {
    let actions = hoist_deploy::actions::catalog();
    let options = compile::Options {
        actions: Some(&actions),
        untranslated: UntranslatedPolicy::True,
        ..compile::Options::default()
    };
    for graph in ["default", "provision", "net-verification", "deletion"] {
        assert_eq!(lint_errors(&imported(graph).text, &options), Vec::<String>::new(), "{graph}");
    }
}

#[test]
fn imported_first_generation_passes_lint_and_compiles() {
    let groups = crate::generations::groups(&[
        ("controller", "deploy_start", "{type: one_by_one}"),
        ("compute", "controller", "{type: parallel, amount: 2}"),
        ("storage", "controller", "{type: parallel}"),
        ("empty", "compute", "{type: parallel}"),
        ("last", "empty", "{type: one_by_one}"),
    ]);
    let more = "
- {id: all, type: shell, role: [controller, compute, storage, last], parameters: {cmd: x}}
- {id: before, type: shell, role: [controller, compute], requires: [pre_deployment_start], parameters: {cmd: x}}
- {id: after, type: shell, role: [compute], requires: [post_deployment_start], parameters: {cmd: x}}
";
    let files = [("tasks.yaml", format!("{groups}{more}"))];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let text = crate::generations::imported(&files, &Options::default()).text;
    assert_eq!(lint_errors(&text, &compile::Options::default()), Vec::<String>::new(), "{text}");
    let mut nodes: Vec<TargetNode> =
        ["controller", "controller", "compute", "compute", "compute", "storage", "last"]
            .into_iter()
            .enumerate()
            .map(|(at, role)| node(at + 1, role))
            .collect();
    // One node has two roles.
    nodes[5].spec = serde_json::from_value(json!({"nid": 6, "groups": ["storage", "compute"]}))
        .expect("a node");
    let site = TargetSite { nodes, ..TargetSite::default() };
    let sources = Sources::default();
    let plan = compile(&read(&text), &site, &compile::Options::default())
        .unwrap_or_else(|found| panic!("{}", told(&found, &sources)));
    let before = |task: &str, node: &str| -> Vec<String> {
        let id = plan.find(task, node).expect("the instance is there");
        plan.before(id).into_iter().map(|id| plan.vertex(id).name.clone()).collect()
    };
    assert!(before("storage_start", "node6").contains(&"compute_end@node6".to_owned()));
    assert!(!before("all", "node6").contains(&"storage_start@node6".to_owned()));
    let last = before("last_start", "node7");
    assert!(last.contains(&"compute_end@node3".to_owned()), "`empty` has no nodes: {last:?}");
}
