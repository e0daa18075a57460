//! The boot context's say about a change before it is made: scripts can be made for every node, and
//! nodes that would boot something else are counted.
//!
//! A change that concerns no boot document and no boot state costs nothing here.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_model::boot_config::ARTIFACT_SCHEME;
use hoist_model::selector::{Bound, Class, Identity, Specificity, Vocabulary};
use hoist_model::{ArtifactName, BootConfig, BssKey, Kind, Name, Node, NodeId};
use hoist_site::plan::{Plan, Reason, Refusal, Rule, ValidationDeadline};
use hoist_site::{Resource, ResourceKey, Roster};
use jiff::Timestamp;

use crate::answer::{Booter, RequestOrigin, ScriptError};
use crate::bss;
use crate::diff::Sides;
use crate::select::Choice;

/// Nodes named for one configuration whose template fails; the rest is like them.
const MAX_TOLD: usize = 10;

/// What boot documents must come to.
#[derive(Debug, Clone)]
pub struct BootRule(Arc<Booter>);

impl BootRule {
    pub fn new(booter: Arc<Booter>) -> Self {
        Self(booter)
    }
}

impl Rule for BootRule {
    fn validate(
        &self,
        before: &Roster,
        plan: &mut Plan,
        deadline: &ValidationDeadline,
    ) -> Vec<Refusal> {
        let keys: Vec<_> = boot_keys(plan).collect();
        if keys.is_empty() {
            return Vec::new();
        }
        let sides = Sides::new(&self.0, Arc::new(before.clone()), plan.outcome(before));
        let concern = Concern::of(&sides, &keys);
        let refusals: Vec<_> =
            concern.configs.iter().flat_map(|name| self.validate(&sides, name, deadline)).collect();
        if !refusals.is_empty() {
            return refusals;
        }
        let existing = |id: &NodeId| before.by_id(*id).is_some();
        let differing = concern.nodes(&sides).into_iter().filter(existing);
        let mut affected: BTreeSet<NodeId> = plan.affected.iter().copied().collect();
        for id in differing {
            if deadline.is_over() {
                return vec![uncounted(&keys)];
            }
            if sides.of(id).is_some() {
                affected.insert(id);
            }
        }
        plan.affected = affected.into_iter().collect();
        Vec::new()
    }

    fn still_holds(&self, _: (&Roster, &Plan), (_, plan): (&Roster, &Plan)) -> bool {
        boot_keys(plan).next().is_none()
    }
}

fn boot_keys(plan: &Plan) -> impl Iterator<Item = ResourceKey> {
    plan.puts.iter().map(Resource::key).chain(plan.deletes.iter().cloned()).filter(is_boot)
}

/// Which nodes boot something else was not found out in time.
fn uncounted(keys: &[ResourceKey]) -> Refusal {
    let config = keys.iter().find_map(|key| match key {
        ResourceKey::BootConfig(name) => Some(name.as_str()),
        _ => None,
    });
    if let Some(name) = config {
        return ValidationDeadline::refusal(Kind::BootConfig, &name, "");
    }
    let message = "cannot determine the affected nodes in time";
    let diagnostic = Diagnostic::new("", message).hint("change fewer objects at once");
    Refusal::new(Reason::Invalid, None, diagnostic)
}

impl BootRule {
    /// Makes the script of a configuration for the nodes it selects. Without a template, one node
    /// shows what all of them would get.
    fn validate(
        &self,
        sides: &Sides<'_>,
        name: &Name,
        deadline: &ValidationDeadline,
    ) -> Vec<Refusal> {
        let after = sides.after();
        let Some(config) = after.boot_config(name) else { return Vec::new() };
        let mut nodes = selected(after, config);
        if config.spec.template.is_none() {
            nodes.truncate(1);
        }
        if nodes.is_empty() {
            let failed = self.make(sides, config, &hoist_template::sample()).err();
            let failed = failed.filter(|failed| !depends_on_node(config, failed));
            return failed.map(|why| refusal(config, None, why)).into_iter().collect();
        }
        let failing = nodes.into_iter().filter_map(|node| {
            if deadline.is_over() {
                return Some(ValidationDeadline::refusal(
                    Kind::BootConfig,
                    &config.name,
                    "template",
                ));
            }
            let failed = self.make(sides, config, node).err()?;
            Some(refusal(config, Some(node), failed))
        });
        failing.take(MAX_TOLD).collect()
    }

    fn make(
        &self,
        sides: &Sides<'_>,
        config: &Arc<BootConfig>,
        node: &Node,
    ) -> Result<String, ScriptError> {
        let specificity = Specificity { class: Class::Node, atoms: 1 };
        let choice = Choice::of_config(config, specificity, None);
        let place = RequestOrigin::default();
        let now = Timestamp::now();
        self.0.validate(sides.after(), sides.table_after(), node, &choice, place, now)
    }
}

fn refusal(config: &BootConfig, node: Option<&Arc<Node>>, why: ScriptError) -> Refusal {
    let (at, why) = match why {
        ScriptError::Image(why) => ("kernel", why),
        ScriptError::Template(error) => ("template", error.to_string()),
    };
    let (message, hint) = match node {
        Some(node) => (
            format!("{why} (for node `{}`)", node.name),
            "correct it, or exclude the node from the selector",
        ),
        None => (format!("{why} (for a made-up node)"), "correct it"),
    };
    let diagnostic = Diagnostic::new(at, message).hint(hint);
    Refusal::of(Reason::Invalid, Kind::BootConfig, &config.name, diagnostic)
}

/// Whether a node with more labels or data may make the template succeed. No node is selected yet,
/// so its labels and data are unknown.
fn depends_on_node(config: &BootConfig, failed: &ScriptError) -> bool {
    let ScriptError::Template(error) = failed else { return false };
    let text = config.spec.template.as_deref().unwrap_or_default();
    let line = error.line.and_then(|line| text.lines().nth(line.saturating_sub(1)));
    let line = line.unwrap_or_default();
    error.is_undefined && (line.contains(".labels") || line.contains(".data"))
}

fn is_boot(key: &ResourceKey) -> bool {
    matches!(
        key,
        ResourceKey::Artifact(_)
            | ResourceKey::BootConfig(_)
            | ResourceKey::BootState(_)
            | ResourceKey::Bss(_)
            | ResourceKey::BssImage(..)
    )
}

/// The parts of the site that a change may affect.
#[derive(Debug, Default)]
struct Concern {
    configs: BTreeSet<Name>,
    nodes: BTreeSet<NodeId>,
    all: bool,
}

impl Concern {
    fn of(sides: &Sides<'_>, keys: &[ResourceKey]) -> Self {
        let mut concern = Self::default();
        for key in keys {
            match key {
                ResourceKey::BootConfig(name) => drop(concern.configs.insert(name.clone())),
                ResourceKey::BootState(id) => drop(concern.nodes.insert(*id)),
                ResourceKey::Bss(key) => concern.add_key(sides, key),
                ResourceKey::Artifact(name) => concern.add_artifact(sides, name),
                ResourceKey::BssImage(..) => concern.all = true,
                _ => {}
            }
        }
        concern
    }

    fn add_artifact(&mut self, sides: &Sides<'_>, artifact: &ArtifactName) {
        let names = |config: &&Arc<BootConfig>| {
            config.spec.artifacts().any(|(_, name)| name == artifact.as_str())
        };
        let url = format!("{ARTIFACT_SCHEME}{artifact}");
        for roster in [sides.before(), sides.after()] {
            let configs = roster.boot_configs().filter(names);
            self.configs.extend(configs.map(|config| config.name.clone()));
            for record in roster.bss_records() {
                if record.kernel == url || record.initrd == url {
                    self.add_key(sides, &record.key);
                }
            }
        }
    }

    /// The nodes that boot parameters under a key are for.
    fn add_key(&mut self, sides: &Sides<'_>, key: &BssKey) {
        for roster in [sides.before(), sides.after()] {
            self.nodes.extend(bss::node_of(roster, key).map(|node| node.id));
            let BssKey::Tag(tag) = key else { continue };
            if tag == BssKey::DEFAULT {
                self.all = true;
            } else if roster.is_role(tag) || roster.is_group(tag) {
                let tagged = |node: &&Arc<Node>| {
                    let roles = [&node.spec.role, &node.spec.subrole];
                    roles.into_iter().flatten().any(|role| role.as_str() == tag)
                        || roster.groups_of(node).iter().any(|group| group.as_str() == tag)
                };
                self.nodes.extend(roster.nodes().filter(tagged).map(|node| node.id));
            }
        }
    }

    fn nodes(&self, sides: &Sides<'_>) -> BTreeSet<NodeId> {
        let mut nodes = self.nodes.clone();
        for roster in [sides.before(), sides.after()] {
            if self.all {
                nodes.extend(roster.nodes().map(|node| node.id));
                continue;
            }
            if self.configs.is_empty() {
                continue;
            }
            for config in self.configs.iter().filter_map(|name| roster.boot_config(name)) {
                nodes.extend(selected(roster, config).iter().map(|node| node.id));
            }
            // Named for one boot, a configuration need not select the node.
            let named = roster.boot_states().filter(|state| {
                state.once.as_ref().is_some_and(|name| self.configs.contains(name))
            });
            nodes.extend(named.map(|state| state.node));
        }
        nodes
    }
}

/// The nodes of a configuration's selector; one that means nothing here selects none.
pub fn selected<'r>(roster: &'r Roster, config: &BootConfig) -> Vec<&'r Arc<Node>> {
    let bound = config.spec.selector.as_ref().and_then(|selector| selector.bind(roster).ok());
    let Some(bound) = bound else { return Vec::new() };
    match bound.identities() {
        Some(identities) => named(roster, &bound, &identities),
        None => roster.select_bound(&bound),
    }
}

fn named<'r>(roster: &'r Roster, bound: &Bound, identities: &[Identity]) -> Vec<&'r Arc<Node>> {
    let found = identities.iter().filter_map(|identity| crate::select::named(roster, identity));
    let mut found: Vec<_> = found.collect();
    found.retain(|node| bound.matches(&roster.subject(node)));
    found.sort_by_key(|node| node.id);
    found.dedup_by_key(|node| node.id);
    found
}
