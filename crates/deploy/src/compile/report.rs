//! A compiled plan as a document for other programs: every instance, every edge, every skip.

use std::collections::BTreeMap;

use hoist_engine::plan::{Kind, Rule, StepId};
use serde_json::{Value, json};

use super::{CompiledPlan, Note};
use crate::bind::VertexKind;
use crate::spec::{Sources, Want};

/// Edges that are listed one by one; beyond this number, joins are listed instead of their members.
pub const MAX_LISTED_EDGES: usize = 100_000;

impl CompiledPlan {
    /// Everything that was bound. Where there are more than `max_edges` pairs, edges are those of
    /// the plan, with its joins.
    pub fn to_json(&self, sources: &Sources, max_edges: usize) -> Value {
        let counts = self.counts();
        let are_expanded = counts.edges <= max_edges;
        let edges = if are_expanded { self.pairs(sources) } else { self.edges() };
        let diagnostics = self.diagnostics.iter().map(|one| one.to_json(sources));
        let mut value = json!({
            "counts": counts,
            "nodes": self.nodes,
            "elections": self.elections,
            "tasks": self.listed_tasks(sources),
            "instances": self.listed_instances(),
            "barriers": self.listed_barriers(),
            "edges_are": if are_expanded { "pairs" } else { "joined" },
            "edges": edges,
            "limits": self.draft.limits,
            "failure_domains": self.draft.failure_domains,
            "windows": self.draft.windows,
            "diagnostics": diagnostics.collect::<Vec<_>>(),
        });
        if !are_expanded {
            value["joins"] = self.listed_joins();
        }
        if !self.prerequisites.is_empty() {
            let names = self.prerequisites.iter().map(|id| self.vertex(*id).name.as_str());
            value["prerequisites"] = names.collect();
        }
        value
    }

    /// Each task with its description and the file that each of its fields comes from.
    fn listed_tasks(&self, sources: &Sources) -> Value {
        let listed = self.tasks.iter().zip(&self.notes).map(|(name, Note { about, fields })| {
            let from: BTreeMap<&str, String> =
                fields.iter().map(|(field, place)| (*field, sources.show(*place))).collect();
            let mut value = json!({ "name": name, "from": from });
            if let Some(about) = about {
                value["about"] = about.as_str().into();
            }
            value
        });
        listed.collect()
    }

    fn listed_instances(&self) -> Value {
        let listed = self.instances().map(|(id, instance)| {
            let vertex = self.vertex(id);
            let mut value = json!({
                "id": id.0,
                "name": vertex.name,
                "task": self.tasks[instance.task as usize],
                "node": self.nodes[instance.node as usize],
            });
            if let Kind::Step(step) = &vertex.kind {
                value["action"] = step.call.action.as_str().into();
                value["checks"] = json!({"before": step.before.len(), "after": step.after.len()});
                value["has_undo"] = step.undo.is_some().into();
                value["repeat"] = json!(step.repeat);
                value["fingerprint"] = json!(step.fingerprint);
                if let Some(reason) = &step.skip {
                    value["skip"] = reason.as_str().into();
                }
            }
            value
        });
        listed.collect()
    }

    fn listed_barriers(&self) -> Value {
        let listed =
            (0_u32..).zip(&self.barriers).map(|(id, name)| json!({"id": id, "name": name}));
        listed.collect()
    }

    fn listed_joins(&self) -> Value {
        let start = self.graph.instances().end;
        let joins = (start..).zip(&self.draft.vertices[start as usize..]);
        let listed = joins.filter_map(|(id, vertex)| match vertex.kind {
            Kind::Join(rule) => Some(json!({"id": id, "name": vertex.name, "rule": shown(rule)})),
            Kind::Step(_) => None,
        });
        listed.collect()
    }

    /// Pairs of instances and barriers, with who said so, and how many of them are wanted where
    /// that is not all.
    fn pairs(&self, sources: &Sources) -> Value {
        let mut pairs = Vec::new();
        for after in 0..self.graph.instances().end {
            let mut all: BTreeMap<u32, Want> = BTreeMap::new();
            self.graph.for_each_before(after, |before, want| {
                let known = all.entry(before).or_insert(want);
                *known = want.min(*known);
            });
            for (before, want) in all {
                let by = self.graph.reasons(before, after).map(
                    |one| json!({"key": one.word, "to": one.to, "place": sources.show(one.place)}),
                );
                let mut pair = json!({
                    "before": self.vertex(StepId(before)).name,
                    "after": self.vertex(StepId(after)).name,
                    "kind": self.kind(before, after),
                    "by": by.collect::<Vec<_>>(),
                });
                if want != Want::All {
                    pair["want"] = json!(want);
                }
                pairs.push(pair);
            }
        }
        pairs.into()
    }

    fn kind(&self, before: u32, after: u32) -> &'static str {
        match (self.graph.is(before), self.graph.is(after)) {
            (VertexKind::Instance(a), VertexKind::Instance(b)) if a.node == b.node => "same",
            (VertexKind::Instance(_), VertexKind::Instance(_)) => "cross",
            (VertexKind::Barrier(_), VertexKind::Barrier(_)) => "same",
            _ => "barrier",
        }
    }

    /// Edges as the plan has them, by number.
    fn edges(&self) -> Value {
        let vertices = (0_u32..).zip(&self.draft.vertices);
        let edges = vertices
            .flat_map(|(at, vertex)| vertex.after.iter().map(move |before| json!([before.0, at])));
        edges.collect()
    }
}

fn shown(rule: Rule) -> Value {
    serde_json::to_value(rule).expect("a plain value")
}
