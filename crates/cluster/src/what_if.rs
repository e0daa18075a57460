//! Plans a cluster that does not have to exist: members, and joins and leaves, from a file.
//!
//! People size a site with this before they buy it. The file format is documented in
//! `docs/cluster/roles.md`; only [`read`] reads it, within [`MAX_BYTES`] and [`MAX_MEMBERS`].

use std::collections::{BTreeMap, BTreeSet};

use hoist_diagnostic::Diagnostic;
use hoist_model::document::read_one;
use hoist_model::nearest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::planner::{self, Member, MemberId, Mode, Move, Policy, RolePlan};
use crate::resources::Resources;
use crate::role::{Role, Scale};

/// Largest text of a file.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Most members, present and joining. Planning takes seconds with so many.
pub const MAX_MEMBERS: usize = 5_000;
/// Most joins and leaves.
pub const MAX_EVENTS: usize = 5_000;
/// Longest name of a member.
const MAX_NAME: usize = 253;

/// A cluster and what happens to it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhatIf {
    #[serde(default)]
    pub mode: Mode,
    /// Least resources of roles, where they differ from hoist's.
    #[serde(default)]
    pub minima: BTreeMap<Role, Resources>,
    pub nodes: Vec<NodeSpec>,
    /// Joins and leaves, in their order.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// A member, or a machine that becomes one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    pub name: String,
    /// The place in the order of joining; without it, after all nodes before it in the file.
    #[serde(default)]
    pub join_order: Option<u64>,
    #[serde(default)]
    pub resources: Resources,
    /// The present role; a node without one joins.
    #[serde(default)]
    pub role: Option<Role>,
    #[serde(default)]
    pub preferred: Option<Role>,
    #[serde(default)]
    pub pin: Option<Role>,
    #[serde(default)]
    pub forbid: BTreeSet<Role>,
    /// The node is leaving, and planned as absent.
    #[serde(default)]
    pub draining: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    Join(Box<NodeSpec>),
    /// The name of the member that leaves.
    Leave(String),
}

/// The cluster after all events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EventResult {
    pub mode: Mode,
    /// The number of members.
    pub members: usize,
    /// Moves are those from the roles in the file to the last ones.
    #[serde(flatten)]
    pub plan: RolePlan,
    /// The cluster after each event. A plan that is refused changes no roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<EventOutcome>,
}

/// The effect of one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EventOutcome {
    /// `join NAME` or `leave NAME`.
    pub event: String,
    pub scale: Scale,
    /// The role of the member that joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    pub moves: Vec<Move>,
    pub uncovered: Vec<Role>,
}

/// A valid file, or everything that is wrong with it.
pub fn read(source: &str, text: &[u8]) -> Result<WhatIf, Vec<Diagnostic>> {
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        return Err(vec![Diagnostic::new(source, message).hint("plan fewer nodes")]);
    }
    let file: WhatIf = read_one(source, text)?;
    let found = check(&file);
    if found.is_empty() { Ok(file) } else { Err(found) }
}

/// Problems that the planner would not name with their place.
fn check(file: &WhatIf) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let joins = file.events.iter().filter(|event| matches!(event, Event::Join(_))).count();
    let members = file.nodes.len() + joins;
    if members > MAX_MEMBERS {
        let message = format!("{members} nodes are more than the limit of {MAX_MEMBERS}");
        return vec![Diagnostic::new("nodes", message).hint("plan a part of the site")];
    }
    if file.events.len() > MAX_EVENTS {
        let message = format!("{} are more than the limit of {MAX_EVENTS}", file.events.len());
        return vec![Diagnostic::new("events", message).hint("plan them in several files")];
    }
    if file.minima.contains_key(&Role::Monolith) {
        let message = "`monolith` has no minimum: it is the only role of a cluster of one";
        found.push(Diagnostic::new("minima.monolith", message));
    }
    let mut present: BTreeSet<&str> = BTreeSet::new();
    for (index, node) in file.nodes.iter().enumerate() {
        check_node(&format!("nodes[{index}]"), node, &mut present, &mut found);
    }
    for (index, event) in file.events.iter().enumerate() {
        let at = format!("events[{index}]");
        match event {
            Event::Join(node) => check_node(&format!("{at}.join"), node, &mut present, &mut found),
            Event::Leave(name) if present.remove(name.as_str()) => {}
            Event::Leave(name) => {
                let message = format!("`{name}` is not a member at this time");
                let near = nearest(name, present.iter().copied());
                let hint = near.map(|near| format!("did you mean `{near}`?"));
                found.push(Diagnostic { at: format!("{at}.leave"), message, hint });
            }
        }
    }
    found
}

fn check_node<'a>(
    at: &str,
    node: &'a NodeSpec,
    present: &mut BTreeSet<&'a str>,
    found: &mut Vec<Diagnostic>,
) {
    let at_name = format!("{at}.name");
    if node.name.is_empty() || node.name.len() > MAX_NAME {
        let message = format!("a name has 1 to {MAX_NAME} bytes");
        found.push(Diagnostic::new(at_name, message));
    } else if !present.insert(&node.name) {
        let message = format!("`{}` is already a member", node.name);
        found.push(Diagnostic::new(at_name, message).hint("give each node a name of its own"));
    }
    if node.forbid.contains(&Role::Monolith) {
        let message = "`monolith` cannot be forbidden: it is the only role of a cluster of one";
        found.push(Diagnostic::new(format!("{at}.forbid"), message));
    }
    if let Some(pin) = node.pin.filter(|pin| node.forbid.contains(pin)) {
        let message = format!("`{pin}` is forbidden too");
        let hint = "remove the role from `pin` or from `forbid`";
        found.push(Diagnostic::new(format!("{at}.pin"), message).hint(hint));
    }
}

impl WhatIf {
    /// The JSON Schema of the file.
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// Plans the nodes, then each event.
    pub fn run(&self) -> Result<EventResult, Diagnostic> {
        let policy = Policy { mode: self.mode, minima: self.minima.clone() };
        let mut members: Vec<Member> = Vec::new();
        for node in &self.nodes {
            members.push(node.member(next_place(&members)));
        }
        let at_start = members.clone();
        let mut plan = planned("nodes", &members, &policy)?;
        let mut steps = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            if !plan.is_refused() {
                adopt(&mut members, &plan);
            }
            let text = match event {
                Event::Join(node) => {
                    members.push(node.member(next_place(&members)));
                    format!("join {}", node.name)
                }
                Event::Leave(name) => {
                    members.retain(|member| member.id.0 != *name);
                    format!("leave {name}")
                }
            };
            let next = planned(&format!("events[{index}]"), &members, &policy)?;
            steps.push(event.outcome(text, &next));
            plan = with_earlier_reasons(next, plan);
        }
        plan.moves = planner::moves(&at_start, &plan.roles);
        let members = plan.roles.len();
        Ok(EventResult { mode: self.mode, members, plan, steps })
    }
}

/// A member that keeps its role has it for the reasons of the plan that gave it the role.
fn with_earlier_reasons(mut plan: RolePlan, earlier: RolePlan) -> RolePlan {
    for (member, reasons) in earlier.reasons {
        if plan.roles.contains_key(&member) && plan.roles.get(&member) == earlier.roles.get(&member)
        {
            plan.reasons.insert(member, reasons);
        }
    }
    plan
}

impl Event {
    fn outcome(&self, event: String, plan: &RolePlan) -> EventOutcome {
        let role = match self {
            Self::Join(node) => plan.roles.get(&MemberId(node.name.clone())).copied(),
            Self::Leave(_) => None,
        };
        let RolePlan { scale, moves, uncovered, .. } = plan.clone();
        EventOutcome { event, scale, role, moves, uncovered }
    }
}

impl NodeSpec {
    fn member(&self, next_place: u64) -> Member {
        Member {
            id: MemberId(self.name.clone()),
            join_order: self.join_order.unwrap_or(next_place),
            resources: self.resources,
            preferred: self.preferred,
            pin: self.pin,
            forbid: self.forbid.clone(),
            role: self.role,
            draining: self.draining,
        }
    }
}

/// The place after all these members.
fn next_place(members: &[Member]) -> u64 {
    members.iter().map(|member| member.join_order).max().map_or(1, |last| last.saturating_add(1))
}

fn planned(at: &str, members: &[Member], policy: &Policy) -> Result<RolePlan, Diagnostic> {
    planner::plan(members, policy).map_err(|error| Diagnostic::new(at, error.to_string()))
}

/// Gives the members the roles of a plan that was carried out.
fn adopt(members: &mut [Member], plan: &RolePlan) {
    for member in members {
        member.role = plan.roles.get(&member.id).copied().or(member.role);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GROWING: &str = "
nodes:
  - {name: a, role: monolith, resources: {cores: 4, memory_gib: 16, disk_gib: 500}}
events:
  - join: {name: b, resources: {cores: 8, memory_gib: 32, disk_gib: 100}}
  - join: {name: c, resources: {cores: 8, memory_gib: 32, disk_gib: 2000}}
  - join: {name: d, resources: {cores: 64, memory_gib: 512, disk_gib: 100, gpus: 4}}
  - leave: b
";

    fn outcome(text: &str) -> EventResult {
        read("plan.yaml", text.as_bytes()).unwrap().run().unwrap()
    }

    fn problems(text: &str) -> Vec<String> {
        let found = read("plan.yaml", text.as_bytes()).unwrap_err();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn events_are_folded_in_their_order() {
        let outcome = outcome(GROWING);
        let role = |name: &str| outcome.plan.roles[&MemberId(name.into())];
        assert_eq!((role("a"), role("c"), role("d")), (Role::Edge, Role::Data, Role::Core));
        assert_eq!((outcome.members, outcome.plan.scale), (3, Scale::Small));
        let events: Vec<_> = outcome.steps.iter().map(|step| step.event.as_str()).collect();
        assert_eq!(events, ["join b", "join c", "join d", "leave b"]);
        assert_eq!(outcome.steps[2].role, Some(Role::Compute));
        assert_eq!(outcome.steps[3].moves.len(), 1);
        // Only `a` had a role in the file.
        assert_eq!(outcome.plan.moves.len(), 1);
        assert_eq!(outcome.plan.moves[0].from, Role::Monolith);
    }

    #[test]
    fn outcome_has_the_documented_members() {
        let json = serde_json::to_value(outcome(GROWING)).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let documented = [
            "mode",
            "members",
            "scale",
            "roles",
            "moves",
            "reasons",
            "uncovered",
            "below",
            "misfit",
            "deferred",
            "steps",
        ];
        assert_eq!(keys, documented);
        assert_eq!(json["roles"]["c"], "data");
        assert_eq!(json["reasons"]["c"][0]["reason"], "covers_required");
    }

    #[test]
    fn refused_plan_leaves_the_roles_as_they_were() {
        let outcome = outcome(
            "nodes: [{name: a, pin: core}]\nevents: [{join: {name: b, pin: core}}, {leave: b}]",
        );
        assert_eq!(outcome.steps[0].uncovered, [Role::Edge]);
        assert!(!outcome.plan.is_refused());
        assert_eq!(outcome.plan.roles[&MemberId("a".into())], Role::Monolith);
    }

    #[test]
    fn all_problems_of_a_file_are_named_with_their_place() {
        let found = problems(
            "nodes: [{name: web1}, {name: web1}, {name: c, pin: data, forbid: [data, monolith]}]\n\
             events: [{leave: wbe1}]\nminima: {monolith: {cores: 1}}",
        );
        assert_eq!(
            found,
            [
                "minima.monolith: `monolith` has no minimum: it is the only role of a cluster of one",
                "nodes[1].name: `web1` is already a member; give each node a name of its own",
                "nodes[2].forbid: `monolith` cannot be forbidden: it is the only role of a cluster of one",
                "nodes[2].pin: `data` is forbidden too; remove the role from `pin` or from `forbid`",
                "events[0].leave: `wbe1` is not a member at this time; did you mean `web1`?",
            ]
        );
        let unknown = problems("nodes: [{name: a, rol: core}]");
        assert!(unknown[0].starts_with("plan.yaml:1:"), "{unknown:?}");
        assert!(problems("nodes: [{name: a, role: chief}]")[0].contains("chief"));
    }

    #[test]
    fn limits_of_a_file_hold() {
        let long = format!("# {}\nnodes: []", " ".repeat(MAX_BYTES));
        assert!(problems(&long)[0].contains("more than the limit"));
        let node = |index: usize| format!("- name: n{index}\n");
        let nodes = |count: usize| format!("nodes:\n{}", (0..count).map(node).collect::<String>());
        assert!(problems(&nodes(MAX_MEMBERS + 1))[0].contains("more than the limit"));
        assert!(read("plan.yaml", nodes(MAX_MEMBERS).as_bytes()).is_ok());
    }

    #[test]
    fn published_schema_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster/what-if.schema.json");
        let schema = serde_json::to_string_pretty(&WhatIf::schema()).unwrap() + "\n";
        if std::env::var_os("HOIST_UPDATE_DOCS").is_some() {
            std::fs::write(path, &schema).unwrap();
        }
        let published = std::fs::read_to_string(path).unwrap_or_default();
        assert!(published == schema, "run this test with HOIST_UPDATE_DOCS=1");
    }

    #[test]
    fn examples_of_the_page_can_be_planned() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster/roles.md");
        let page = std::fs::read_to_string(path).unwrap();
        let examples: Vec<&str> =
            page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(examples.len(), 1);
        assert_eq!(outcome(examples[0]).plan.uncovered, []);
    }

    #[test]
    fn draining_node_is_planned_as_absent() {
        let outcome = outcome("nodes: [{name: a}, {name: b, role: core, draining: true}]");
        assert_eq!(outcome.members, 1);
        assert_eq!(outcome.plan.scale, Scale::Single);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "(?s).{0,200}") {
            let _ = read("plan.yaml", text.as_bytes());
        }

        #[test]
        fn reading_of_nearly_valid_files_never_panics(
            name in "[a-c]", role in "(core|data|mono|1)", leave in "[a-c]", order in any::<i64>(),
        ) {
            let text = format!(
                "nodes: [{{name: {name}, role: {role}, join_order: {order}}}, {{name: b}}]\n\
                 events: [{{leave: {leave}}}, {{join: {{name: {leave}, join_order: {order}}}}}]"
            );
            if let Ok(file) = read("plan.yaml", text.as_bytes()) {
                let _ = file.run();
            }
        }
    }
}
