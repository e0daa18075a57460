//! The metadata context's check of a change before it is made: a layer must render for every node
//! it applies to.
//!
//! A change without layers costs nothing here.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_model::{Kind, MetadataLayer, Node, NodeId};
use hoist_site::plan::{Plan, Reason, Refusal, Rule, ValidationDeadline};
use hoist_site::{Resource, Roster};

use crate::layer::{Layer, LayerFailure};
use crate::layers::{Layers, nodes_of};
use crate::render::{With, render, validate};
use crate::secret::Secrets;

/// Nodes named for one layer that fails; the rest is like them.
const MAX_TOLD: usize = 10;

#[derive(Debug, Clone, Copy, Default)]
pub struct LayerRule;

impl Rule for LayerRule {
    fn validate(
        &self,
        before: &Roster,
        plan: &mut Plan,
        deadline: &ValidationDeadline,
    ) -> Vec<Refusal> {
        let written: Vec<Arc<MetadataLayer>> = written(plan).cloned().collect();
        if written.is_empty() {
            return Vec::new();
        }
        let after = plan.outcome(before);
        let sides = Sides {
            layers_before: Layers::of(before),
            before,
            layers: Layers::of(&after),
            after: &after,
        };
        let (refusals, warnings) = sides.validate(&written, deadline);
        plan.warnings.extend(warnings);
        refusals
    }

    /// Boot parameters and boot states, which change all the time, are nothing to a layer.
    fn still_holds(
        &self,
        (before, passed): (&Roster, &Plan),
        (now, plan): (&Roster, &Plan),
    ) -> bool {
        written(plan).next().is_none()
            || now.has_rules_of(before)
                && passed.deletes == plan.deletes
                && passed.puts.len() == plan.puts.len()
                && passed.puts.iter().zip(&plan.puts).all(|(then, now)| says_the_same(then, now))
    }
}

fn written(plan: &Plan) -> impl Iterator<Item = &Arc<MetadataLayer>> {
    plan.puts.iter().filter_map(|put| match put {
        Resource::MetadataLayer(layer) => Some(layer),
        _ => None,
    })
}

/// Whatever the revision is that it is written with.
fn says_the_same(then: &Resource, now: &Resource) -> bool {
    match (then, now) {
        (Resource::MetadataLayer(then), Resource::MetadataLayer(now)) => {
            then.name == now.name && then.spec == now.spec
        }
        (then, now) => then == now,
    }
}

/// Warnings about nodes, each text once with the first of its nodes.
#[derive(Debug, Default)]
struct Warnings {
    told: Vec<(String, String)>,
    seen: HashSet<String>,
}

impl Warnings {
    fn add(&mut self, node: &Node, warnings: Vec<String>) {
        for warning in warnings {
            if self.seen.len() < MAX_TOLD && self.seen.insert(warning.clone()) {
                self.told.push((node.name.to_string(), warning));
            }
        }
    }

    fn told(self) -> Vec<String> {
        self.told.into_iter().map(|(node, warning)| format!("node {node}: {warning}")).collect()
    }
}

struct Sides<'r> {
    before: &'r Roster,
    layers_before: Layers,
    after: &'r Roster,
    layers: Layers,
}

const WITH: With<'static> = With { token: "token", secrets: Secrets::LeaveOut, trace: false };

impl Sides<'_> {
    fn validate(
        &self,
        written: &[Arc<MetadataLayer>],
        deadline: &ValidationDeadline,
    ) -> (Vec<Refusal>, Vec<String>) {
        let mut refusals = Vec::new();
        // Each node once, however many layers it has.
        let mut concerned: BTreeMap<NodeId, &Arc<Node>> = BTreeMap::new();
        for source in written {
            if deadline.is_over() {
                return (vec![unfinished(source)], Vec::new());
            }
            let layer = Layer::new(source);
            if let Some(broken) = layer.broken() {
                refusals.push(refusal(broken, None));
                continue;
            }
            let nodes = nodes_of(self.after, source);
            if nodes.is_empty() {
                refusals.extend(self.validate_without_nodes(&layer));
            }
            concerned.extend(nodes.into_iter().map(|node| (node.id, node)));
        }
        if !refusals.is_empty() {
            return (refusals, Vec::new());
        }
        let mut warnings = Warnings::default();
        let mut nodes = self.unlike_each_other(concerned);
        while refusals.len() < MAX_TOLD
            && let Some(node) = nodes.next()
        {
            if deadline.is_over() {
                return (self.untried(written, node), Vec::new());
            }
            let rendered = render(self.after, &self.layers, node, WITH);
            let failed = rendered.failed.into_iter().find(|failed| self.is_new(node, failed));
            refusals.extend(failed.map(|failed| refusal(&failed, Some(node))));
            warnings.add(node, rendered.warnings);
        }
        (refusals, warnings.told())
    }

    /// The layers whose validation on a node was cut off by the deadline.
    fn untried(&self, written: &[Arc<MetadataLayer>], node: &Node) -> Vec<Refusal> {
        let speaking = self.layers.of_node(self.after, node);
        let named = speaking.iter().filter(|layer| {
            layer.is_template() && written.iter().any(|one| one.name == layer.source.name)
        });
        let told: Vec<_> = named.take(MAX_TOLD).map(|layer| unfinished(&layer.source)).collect();
        if told.is_empty() { written.iter().take(1).map(unfinished).collect() } else { told }
    }

    /// Of nodes with the same layers, and no template in them, one shows what all of them would get:
    /// together layers may be too large, or disturb each other, for some nodes and not for others.
    fn unlike_each_other<'n>(
        &self,
        nodes: BTreeMap<NodeId, &'n Arc<Node>>,
    ) -> impl Iterator<Item = &'n Arc<Node>> {
        let mut seen: HashSet<Vec<*const Layer>> = HashSet::new();
        nodes.into_values().filter(move |node| {
            let speaking = self.layers.of_node(self.after, node);
            speaking.iter().any(|layer| layer.is_template())
                || seen.insert(speaking.into_iter().map(Arc::as_ptr).collect())
        })
    }

    /// What failed before this change, and in another layer, is not this change's fault.
    fn is_new(&self, node: &Node, failed: &LayerFailure) -> bool {
        let Some(before) = self.before.by_id(node.id) else { return true };
        let earlier = render(self.before, &self.layers_before, before, WITH).failed;
        let unchanged = self.before.metadata_layer(&failed.layer).is_some_and(|layer| {
            self.after.metadata_layer(&failed.layer).is_some_and(|now| Arc::ptr_eq(now, layer))
        });
        !(unchanged && earlier.contains(failed))
    }

    fn validate_without_nodes(&self, layer: &Layer) -> Option<Refusal> {
        let failed = validate(self.after, layer, &hoist_template::sample(), WITH)?;
        let text = serde_json::to_string(&layer.source.spec).unwrap_or_default();
        // No node is selected yet, so its labels and data are unknown.
        let depends = text.contains(".labels") || text.contains(".data");
        let tolerated = failed.is_undefined && depends;
        (!tolerated).then(|| refusal(&failed, None))
    }
}

fn unfinished(layer: &Arc<MetadataLayer>) -> Refusal {
    ValidationDeadline::refusal(Kind::MetadataLayer, &layer.name, "")
}

fn refusal(failed: &LayerFailure, node: Option<&Arc<Node>>) -> Refusal {
    let reason = &failed.reason;
    let (message, hint) = match node {
        Some(node) => {
            (format!("{reason} (for node `{}`)", node.name), "correct the layer or the node")
        }
        None => (reason.clone(), "correct the layer"),
    };
    let diagnostic = Diagnostic::new(failed.at.clone(), message).hint(hint);
    Refusal::of(Reason::Invalid, Kind::MetadataLayer, &failed.layer, diagnostic)
}
