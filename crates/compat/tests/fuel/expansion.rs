//! An independent implementation of Fuel's own rules with every edge written out. It is the
//! reference for the compiled import and shares no code with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use regex::Regex;
use serde_json::{Value, json};

const FIXTURE: &str = include_str!("../../fixtures/fuel-tasks.json");

/// How many nodes have which role, in the order of the nodes.
pub(crate) type Layout = &'static [(&'static str, usize)];

pub(crate) const TEN: Layout = &[("controller", 3), ("ceph-osd", 2), ("compute", 5)];
pub(crate) const HUNDRED: Layout = &[("controller", 3), ("ceph-osd", 20), ("compute", 77)];
pub(crate) const MIXED: Layout = &[
    ("controller", 3),
    ("mongo", 3),
    ("cinder", 5),
    ("ironic", 3),
    ("ceph-osd", 20),
    ("compute", 66),
];
pub(crate) const FIVE_HUNDRED: Layout = &[("controller", 3), ("ceph-osd", 100), ("compute", 397)];
pub(crate) const THOUSAND: Layout = &[("controller", 3), ("ceph-osd", 200), ("compute", 797)];

/// The node that stages are on.
pub(crate) const NULL: usize = 0;
/// The deployment server.
pub(crate) const MASTER: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) vertices: usize,
    pub(crate) edges: usize,
    pub(crate) same: usize,
    pub(crate) barrier: usize,
    pub(crate) cross: usize,
    pub(crate) longest: usize,
    pub(crate) widest: usize,
}

pub(crate) const fn shape(
    vertices: usize,
    [edges, same, barrier, cross]: [usize; 4],
    longest: usize,
    widest: usize,
) -> Shape {
    Shape { vertices, edges, same, barrier, cross, longest, widest }
}

/// The instances on the nodes, and the ordered pairs.
#[derive(Debug)]
pub(crate) struct Expansion {
    /// The node and the task.
    pub(crate) vertices: Vec<(usize, String)>,
    pub(crate) edges: HashSet<(u32, u32)>,
}

impl Expansion {
    /// Stages follow stages on the node they share, which is why those edges are among `same`.
    pub(crate) fn shape(&self) -> Shape {
        let node = |at: u32| self.vertices[at as usize].0;
        let same = self.edges.iter().filter(|(a, b)| node(*a) == node(*b)).count();
        let barrier = self
            .edges
            .iter()
            .filter(|(a, b)| node(*a) != node(*b) && (node(*a) == NULL || node(*b) == NULL))
            .count();
        let levels = levels(self.vertices.len(), &self.edges);
        let mut widths = BTreeMap::<usize, usize>::new();
        for level in &levels {
            *widths.entry(*level).or_default() += 1;
        }
        Shape {
            vertices: self.vertices.len(),
            edges: self.edges.len(),
            same,
            barrier,
            cross: self.edges.len() - same - barrier,
            longest: widths.len(),
            widest: widths.into_values().max().unwrap_or(0),
        }
    }

    /// Edges that stay when each bundle of edges between the instances of two tasks on different
    /// nodes goes through one join, where that is less.
    pub(crate) fn hub_edges(&self) -> usize {
        type Bundle = (usize, HashSet<u32>, HashSet<u32>);
        let mut bundles: HashMap<(&str, &str), Bundle> = HashMap::new();
        for (a, b) in &self.edges {
            let from = &self.vertices[*a as usize];
            let to = &self.vertices[*b as usize];
            if from.0 != to.0 && from.0 != NULL && to.0 != NULL {
                let bundle = bundles.entry((&from.1, &to.1)).or_default();
                bundle.0 += 1;
                bundle.1.insert(*a);
                bundle.2.insert(*b);
            }
        }
        bundles.into_values().map(|(all, from, to)| all.min(from.len() + to.len())).sum()
    }
}

/// One more than the greatest level before it; panics where there is a cycle.
fn levels(count: usize, edges: &HashSet<(u32, u32)>) -> Vec<usize> {
    let mut after = vec![Vec::new(); count];
    let mut open = vec![0; count];
    for (a, b) in edges {
        after[*a as usize].push(*b as usize);
        open[*b as usize] += 1;
    }
    let mut levels = vec![0; count];
    let mut ready: Vec<usize> = (0..count).filter(|at| open[*at] == 0).collect();
    let mut done = 0;
    while let Some(at) = ready.pop() {
        done += 1;
        for next in &after[at] {
            levels[*next] = levels[*next].max(levels[at] + 1);
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    assert_eq!(done, count, "there is a cycle");
    levels
}

/// A node as Fuel sees it: the names it answers to, and those of its roles.
struct Node {
    names: BTreeSet<String>,
}

struct Site {
    nodes: Vec<Node>,
    patterns: HashMap<String, Regex>,
}

impl Site {
    /// The first node of a role is the primary one of every tag of it that has one, and has that
    /// name instead of the plain one.
    fn new(corpus: &Value, layout: Layout) -> Self {
        let named = |name: &str| Node { names: BTreeSet::from([name.to_owned()]) };
        let mut nodes = vec![named(""), named("master")];
        for (role, count) in layout {
            for at in 0..*count {
                let tags = corpus["roles"][role]["tags"].as_array().expect("tags");
                let name = |tag: &str| {
                    let is_primary = corpus["tags"][tag]["has_primary"] == true && at == 0;
                    if is_primary { format!("primary-{tag}") } else { tag.to_owned() }
                };
                let mut names: BTreeSet<String> =
                    tags.iter().map(|tag| name(tag.as_str().expect("a name"))).collect();
                names.insert(name(role));
                nodes.push(Node { names });
            }
        }
        Self { nodes, patterns: HashMap::new() }
    }

    fn matches(&mut self, pattern: &str, name: &str) -> bool {
        let Some(inner) = pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else {
            return pattern == name;
        };
        let regex = self
            .patterns
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(&format!("^(?:{inner})")).expect("a pattern"));
        regex.is_match(name)
    }

    fn resolve(&mut self, patterns: &[String]) -> Vec<usize> {
        let mut found = Vec::new();
        if patterns.iter().any(|pattern| pattern == "master") {
            found.push(MASTER);
        }
        for at in MASTER + 1..self.nodes.len() {
            let names = self.nodes[at].names.clone();
            if patterns.iter().any(|pattern| {
                pattern == "*" || names.iter().any(|name| self.matches(pattern, name))
            }) {
                found.push(at);
            }
        }
        found
    }
}

/// The lists that are computed, by hand, for a site whose virtual router is on the controllers.
fn computed(task: &str, list: &str, names: &BTreeSet<String>) -> Value {
    let is_mongo = names.contains("mongo") || names.contains("primary-mongo");
    let router = ["controller", "primary-controller"];
    let own = |name: &str| json!({"name": name, "role": "self", "policy": "all"});
    match (task, list) {
        ("cluster", _) => {
            let primaries: Vec<String> =
                names.iter().map(|name| format!("primary-{name}")).collect();
            json!([{"name": "primary-cluster", "role": primaries, "policy": "all"}])
        }
        ("hiera_default_route", "cross_depends") if is_mongo => {
            json!([own("netconfig"), own("post_deployment_start")])
        }
        ("hiera_default_route", "cross_depends") => json!([own("tools")]),
        ("hiera_default_route", _) if is_mongo => json!([own("configure_default_route")]),
        ("hiera_default_route", _) => json!([own("netconfig")]),
        ("netconfig", _) if is_mongo || router.iter().any(|role| names.contains(*role)) => {
            json!([])
        }
        ("netconfig", _) => json!([{"name": "virtual_ips", "role": router, "policy": "all"}]),
        _ => panic!("`{list}` of `{task}` is computed, without a rule"),
    }
}

fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().map(|one| one.as_str().expect("text").to_owned()).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn expand(graph: &str, layout: Layout) -> Expansion {
    let corpus: Value = serde_json::from_str(FIXTURE).expect("the fixture");
    let mut site = Site::new(&corpus, layout);
    let tasks = corpus["graphs"][graph]["tasks"].as_array().expect("tasks");
    let ids: Vec<String> = tasks.iter().flat_map(|task| words(&task["id"])).collect();

    let mut vertices: Vec<(usize, usize)> = Vec::new();
    let mut at: HashMap<(usize, usize), u32> = HashMap::new();
    let mut put = |node: usize, task: usize| {
        at.entry((node, task)).or_insert_with(|| {
            vertices.push((node, task));
            u32::try_from(vertices.len() - 1).expect("few")
        });
    };
    for (task, value) in tasks.iter().enumerate() {
        match value["type"].as_str().expect("a type") {
            "stage" => put(NULL, task),
            "group" => {
                for node in site.resolve(&words(&value["on"]["match"])) {
                    for name in words(&value["tasks"]) {
                        put(node, ids.iter().position(|id| *id == name).expect("a task"));
                    }
                }
            }
            _ => {
                for node in site.resolve(&words(&value["on"]["match"])) {
                    put(node, task);
                }
            }
        }
    }

    let mut named: HashMap<String, Vec<usize>> = HashMap::new();
    let mut placed: HashMap<Vec<String>, Vec<usize>> = HashMap::new();
    let mut edges = HashSet::new();
    for (from, (node, task)) in vertices.iter().enumerate() {
        let from = u32::try_from(from).expect("few");
        let value = &tasks[*task];
        let mut bind = |site: &mut Site, name: &str, nodes: &[usize], any: bool, is_after: bool| {
            let named = named.entry(name.to_owned()).or_insert_with(|| {
                (0..ids.len()).filter(|at| site.matches(name, &ids[*at])).collect()
            });
            for task in named.iter() {
                let mut found = nodes
                    .iter()
                    .filter_map(|node| at.get(&(*node, *task)).copied())
                    .filter(|other| *other != from);
                let found: Vec<u32> =
                    if any { found.next().into_iter().collect() } else { found.collect() };
                for other in found {
                    edges.insert(if is_after { (other, from) } else { (from, other) });
                }
            }
        };
        for (list, is_after) in [("requires", true), ("required_for", false)] {
            let places = if *node == NULL { vec![NULL] } else { vec![*node, NULL] };
            for name in words(&value[list]) {
                bind(&mut site, &name, &places, false, is_after);
            }
        }
        for (list, is_after) in [("cross_depends", true), ("cross_depended_by", false)] {
            let entries = if value[list].is_array() {
                value[list].clone()
            } else {
                computed(&ids[*task], list, &site.nodes[*node].names)
            };
            for entry in entries.as_array().expect("a list") {
                let name = entry["name"].as_str().expect("a name");
                let roles = words(&entry["role"]);
                let nodes = match roles.as_slice() {
                    [] => vec![NULL],
                    [role] if role == "self" => vec![*node],
                    _ => {
                        placed.entry(roles.clone()).or_insert_with(|| site.resolve(&roles)).clone()
                    }
                };
                bind(&mut site, name, &nodes, entry["policy"] == "any", is_after);
            }
        }
    }
    let vertices = vertices.into_iter().map(|(node, task)| (node, ids[task].clone())).collect();
    Expansion { vertices, edges }
}

/// Graph, layout and expected shape, derived from Fuel's sources.
pub(crate) const KNOWN: [(&str, Layout, Shape); 5] = [
    ("default", TEN, shape(737, [2_612, 1_199, 595, 818], 67, 59)),
    ("default", HUNDRED, shape(5_399, [35_642, 7_643, 3_907, 24_092], 67, 437)),
    ("default", MIXED, shape(5_275, [29_914, 7_296, 3_880, 18_738], 67, 437)),
    ("provision", THOUSAND, shape(5_005, [8_006, 5_003, 1_003, 2_000], 8, 1_001)),
    ("deletion", THOUSAND, shape(3_002, [4_001, 2_001, 2_000, 0], 5, 1_000)),
];

#[test]
fn fuel_rules_give_the_known_graphs() {
    for (graph, layout, known) in KNOWN {
        assert_eq!(expand(graph, layout).shape(), known, "{graph}, {layout:?}");
    }
    assert_eq!(expand("default", HUNDRED).hub_edges(), 16_218 - 7_643 - 3_907);
}

/// Two million edges are too many to write out in every test run; the compiled graph is compared
/// with these figures instead.
#[test]
#[ignore = "takes a quarter of a minute in a debug build"]
fn fuel_rules_give_the_known_graphs_of_1000_nodes() {
    let known = shape(26_119, [558_762, 36_283, 18_627, 503_852], 67, 2_117);
    assert_eq!(expand("default", FIVE_HUNDRED).shape(), known);
    let known = shape(52_019, [2_076_662, 72_083, 37_027, 1_967_552], 67, 4_217);
    let thousand = expand("default", THOUSAND);
    assert_eq!(thousand.shape(), known);
    assert_eq!(thousand.hub_edges(), 44_628);
    let verified = expand("net-verification", THOUSAND).shape();
    assert_eq!((verified.vertices, verified.edges), (11_005, 1_018_002));
    assert_eq!((verified.longest, verified.widest), (11, 2_001));
}
