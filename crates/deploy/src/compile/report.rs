//! A compiled plan as a document for other programs: every instance, every edge, every skip.

use std::collections::BTreeMap;

use hoist_engine::plan::{Kind, Rule, StepId};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::{CompiledPlan, Note};
use crate::bind::VertexKind;
use crate::spec::{Sources, Want};

/// Edges that are listed one by one; beyond this number, joins are listed instead of their members.
pub const MAX_LISTED_EDGES: usize = 100_000;

/// The listing of a plan. Its instances and edges are written one by one: together they would take
/// more memory than the plan.
#[derive(Debug)]
pub struct Listing<'a> {
    plan: &'a CompiledPlan,
    sources: &'a Sources,
    deployment: &'a str,
    max_edges: usize,
}

/// Serializes the items of an iterator, which is made when it is needed.
struct Each<F>(F);

impl<I: IntoIterator<Item: Serialize>, F: Fn() -> I> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

impl Serialize for Listing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { plan, sources, deployment, max_edges } = *self;
        let CompiledPlan { draft, .. } = plan;
        let counts = plan.counts();
        let are_expanded = counts.edges <= max_edges;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("counts", &counts)?;
        map.serialize_entry("nodes", &plan.nodes)?;
        map.serialize_entry("elections", &plan.elections)?;
        map.serialize_entry("tasks", &plan.listed_tasks(sources))?;
        map.serialize_entry("instances", &Each(|| plan.listed_instances()))?;
        map.serialize_entry("barriers", &plan.listed_barriers())?;
        map.serialize_entry("edges_are", if are_expanded { "pairs" } else { "joined" })?;
        if are_expanded {
            map.serialize_entry("edges", &Each(|| plan.pairs(sources)))?;
        } else {
            map.serialize_entry("edges", &Each(|| plan.edges()))?;
        }
        map.serialize_entry("limits", &draft.limits)?;
        map.serialize_entry("failure_domains", &draft.failure_domains)?;
        map.serialize_entry("windows", &draft.windows)?;
        let diagnostics = || plan.diagnostics.iter().map(|one| one.to_json(sources));
        map.serialize_entry("diagnostics", &Each(diagnostics))?;
        if !are_expanded {
            map.serialize_entry("joins", &Each(|| plan.listed_joins()))?;
        }
        if !plan.prerequisites.is_empty() {
            let names = || plan.prerequisites.iter().map(|id| plan.vertex(*id).name.as_str());
            map.serialize_entry("prerequisites", &Each(names))?;
        }
        if !deployment.is_empty() {
            map.serialize_entry("deployment", deployment)?;
        }
        map.end()
    }
}

impl CompiledPlan {
    /// Everything that was bound. Where there are more than `max_edges` pairs, edges are those of
    /// the plan, with its joins. `deployment` names the files; an empty one is left out.
    pub fn listing<'a>(
        &'a self,
        sources: &'a Sources,
        deployment: &'a str,
        max_edges: usize,
    ) -> Listing<'a> {
        Listing { plan: self, sources, deployment, max_edges }
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

    fn listed_instances(&self) -> impl Iterator<Item = Value> {
        self.instances().map(|(id, instance)| {
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
        })
    }

    fn listed_barriers(&self) -> Value {
        let listed =
            (0_u32..).zip(&self.barriers).map(|(id, name)| json!({"id": id, "name": name}));
        listed.collect()
    }

    fn listed_joins(&self) -> impl Iterator<Item = Value> {
        let start = self.graph.instances().end;
        let joins = (start..).zip(&self.draft.vertices[start as usize..]);
        joins.filter_map(|(id, vertex)| match vertex.kind {
            Kind::Join(rule) => Some(json!({"id": id, "name": vertex.name, "rule": shown(rule)})),
            Kind::Step(_) => None,
        })
    }

    /// Pairs of instances and barriers, with who said so, and how many of them are wanted where
    /// that is not all.
    fn pairs(&self, sources: &Sources) -> impl Iterator<Item = Value> {
        (0..self.graph.instances().end).flat_map(move |after| self.pairs_before(after, sources))
    }

    fn pairs_before(&self, after: u32, sources: &Sources) -> Vec<Value> {
        let mut all: BTreeMap<u32, Want> = BTreeMap::new();
        self.graph.for_each_before(after, |before, want| {
            let known = all.entry(before).or_insert(want);
            *known = want.min(*known);
        });
        let pair = |(before, want)| self.pair(before, after, want, sources);
        all.into_iter().map(pair).collect()
    }

    fn pair(&self, before: u32, after: u32, want: Want, sources: &Sources) -> Value {
        let reasons = self.graph.reasons(before, after);
        let by = reasons
            .map(|one| json!({"key": one.word, "to": one.to, "place": sources.show(one.place)}));
        let mut pair = json!({
            "before": self.vertex(StepId(before)).name,
            "after": self.vertex(StepId(after)).name,
            "kind": self.kind(before, after),
            "by": by.collect::<Vec<_>>(),
        });
        if want != Want::All {
            pair["want"] = json!(want);
        }
        pair
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
    fn edges(&self) -> impl Iterator<Item = [u32; 2]> {
        let vertices = (0_u32..).zip(&self.draft.vertices);
        vertices.flat_map(|(at, vertex)| vertex.after.iter().map(move |before| [before.0, at]))
    }
}

fn shown(rule: Rule) -> Value {
    serde_json::to_value(rule).expect("a plain value")
}
