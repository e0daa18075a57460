//! Fuel's real tasks at 1,000 nodes, from text to a plan, beside nothing but building the adjacency
//! list of the same graph with every edge written out.

use anyhow::{Result, anyhow, ensure};
use hoist_compat::fuel;
use hoist_compat::fuel::read::normalised;
use hoist_deploy::compile::{self, CompiledPlan};
use hoist_deploy::condition::UntranslatedPolicy;
use hoist_deploy::diagnostic::SourceDiagnostic;
use hoist_deploy::layer::{Layer, merge};
use hoist_deploy::parse::parse;
use hoist_deploy::spec::Sources;
use hoist_deploy::target::{TargetNode, TargetSite};
use hoist_engine::plan::{Plan, StepId};
use hoist_model::node::Lifecycle;
use hoist_model::{NodeId, NodeSpec};
use serde_json::{Value, json};

use crate::stopwatch::{best_of, ratio};
use crate::verdict::{Limit, Row, multiple};
use crate::{inside, resident};

const TASKS: &str = include_str!("../../crates/compat/fixtures/fuel-tasks.json");
const LAYOUT: [(&str, usize); 4] =
    [("controller", 3), ("ceph-osd", 200), ("compute", 797), ("master", 1)];
/// Pairs in order, as Fuel had them.
const EDGES: usize = 2_076_662;
const MAX_JOIN_EDGES: u32 = 160_000;
const MAX_TIMES: f64 = 100.0;
const MAX_MIB: f64 = 200.0;
const ROUNDS: usize = 5;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let (text, settings) = task_file()?;
    let site = site()?;
    let compiled = compile(&text, &settings, &site)?;
    let joined: usize = compiled.draft.vertices.iter().map(|vertex| vertex.after.len()).sum();
    let count = compiled.counts().vertices;
    let edges = edges(&compiled, count)?;
    let (ours, bare) = best_of(
        ROUNDS,
        || compile(&text, &settings, &site).and_then(|compiled| Ok(Plan::new(compiled.draft)?)),
        || adjacency(count, &edges),
    );
    let peak = inside::ask(&["compile"])?;
    let row = |what: &str, measured, unit, limit, detail| Row {
        what: what.to_owned(),
        measured,
        unit,
        limit: Some(Limit::AtMost(limit)),
        detail,
    };
    Ok(vec![
        row(
            "Fuel's tasks for 1,000 nodes compiled / building the adjacency list",
            ratio(ours, bare),
            " x",
            MAX_TIMES,
            format!("{ours:.1?}, {bare:.1?} for {EDGES} edges"),
        ),
        row(
            "edges of that plan, with joins",
            multiple(joined as u64, 1),
            "",
            f64::from(MAX_JOIN_EDGES),
            format!("{count} vertices besides joins"),
        ),
        row(
            "peak memory of compiling it",
            multiple(peak, 1024 * 1024),
            " MiB",
            MAX_MIB,
            format!("{} MiB more than before", peak / (1024 * 1024)),
        ),
    ])
}

/// The plan that is measured here.
pub(crate) fn plan() -> Result<Plan> {
    let (text, settings) = task_file()?;
    Ok(Plan::new(compile(&text, &settings, &site()?)?.draft)?)
}

/// In a process of its own: bytes that it takes at most, beyond those it begins with.
pub(crate) fn peak() -> Result<u64> {
    let (text, settings) = task_file()?;
    let site = site()?;
    let before = resident::now("self")?;
    resident::reset_peak("self")?;
    let plan = Plan::new(compile(&text, &settings, &site)?.draft)?;
    let grown = resident::peak("self")?.saturating_sub(before);
    drop(plan);
    Ok(grown)
}

/// Fuel's tasks as a task file of ours, with settings in which everything that may be on is off.
fn task_file() -> Result<(String, Value)> {
    let corpus = normalised("fuel-tasks.json", TASKS)?;
    let router = json!({"ipaddr": "192.0.2.1", "node_roles": ["controller", "primary-controller"]});
    let options = fuel::Options {
        settings: json!({"network_metadata": {"vips": {"vrouter": router}}}),
        ..fuel::Options::default()
    };
    let text = fuel::import(&corpus, "default", &options)?.text;
    let mut settings = json!({"plugins": [], "use_ssl": []});
    for line in text.lines().filter(|line| line.trim_start().starts_with("when:")) {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
        for path in words.filter_map(|word| word.strip_prefix("settings.")) {
            let mut at = &mut settings;
            for part in path.split('.') {
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
    Ok((text, settings))
}

fn site() -> Result<TargetSite> {
    let roles = LAYOUT.iter().flat_map(|(role, count)| std::iter::repeat_n(*role, *count));
    let node = |(at, role): (usize, &str)| {
        let spec: NodeSpec = serde_json::from_value(json!({"nid": at + 1, "role": role}))?;
        let id = NodeId::mint(0, at as u128);
        let name = format!("node{at}").parse()?;
        Ok(TargetNode { id, name, spec, lifecycle: Lifecycle::Declared, system: String::new() })
    };
    let nodes = roles.enumerate().map(node).collect::<Result<_>>()?;
    Ok(TargetSite { nodes, ..TargetSite::default() })
}

fn compile(text: &str, settings: &Value, site: &TargetSite) -> Result<CompiledPlan> {
    let mut sources = Sources::default();
    let (file, mut found) = parse(&mut sources, "fuel.yaml", text.as_bytes());
    let (book, more) = merge(vec![(Layer::Product, file)]);
    found.extend(more);
    ensure!(found.is_empty(), "{}", told(&found, &sources));
    let options = compile::Options {
        settings: settings.clone(),
        untranslated: UntranslatedPolicy::True,
        ..compile::Options::default()
    };
    compile::compile(&book, site, &options).map_err(|found| anyhow!(told(&found, &sources)))
}

fn told(found: &[SourceDiagnostic], sources: &Sources) -> String {
    found.iter().map(|one| one.show(sources)).collect::<Vec<_>>().join("\n")
}

/// Every pair that is in order. Where any of several will do Fuel picked one, which is why there
/// are a few more here.
fn edges(compiled: &CompiledPlan, count: usize) -> Result<Vec<(u32, u32)>> {
    let mut edges = Vec::with_capacity(EDGES);
    for at in (0..u32::try_from(count)?).map(StepId) {
        edges.extend(compiled.before(at).into_iter().map(|before| (before.0, at.0)));
    }
    ensure!(edges.len() >= EDGES, "there are only {} edges", edges.len());
    edges.truncate(EDGES);
    Ok(edges)
}

/// The successors of each vertex, all in one list.
fn adjacency(count: usize, edges: &[(u32, u32)]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0_u32; count + 1];
    for (before, _) in edges {
        starts[*before as usize + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    let mut after = vec![0; edges.len()];
    for (before, vertex) in edges {
        let place = &mut next[*before as usize];
        after[*place as usize] = *vertex;
        *place += 1;
    }
    (starts, after)
}
