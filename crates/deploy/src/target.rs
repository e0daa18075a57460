//! Which nodes things are done on: the node set is frozen, roles are sets of it, and each role has
//! a first member that stays the first for as long as it is a member.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use hoist_model::nearest;
use hoist_model::node::Lifecycle;
use hoist_model::selector::{BindError, Bound, RegexError, Selector, Subject, Vocabulary};
use hoist_model::{GroupKey, GroupName, Name, NodeId, NodeSpec};
use regex::Regex;

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::spec::{At, Role};

/// A node as a plan sees it.
#[derive(Debug, Clone)]
pub struct TargetNode {
    pub id: NodeId,
    pub name: Name,
    pub spec: NodeSpec,
    pub lifecycle: Lifecycle,
    /// Identifies the installed system: it changes when the node is renewed or provisioned again.
    pub system: String,
}

/// The site that a plan is made for.
#[derive(Debug, Clone, Default)]
pub struct TargetSite {
    pub nodes: Vec<TargetNode>,
    /// Groups whose members are computed.
    pub computed_groups: Vec<(GroupKey, Selector)>,
    /// First members of each role as they were chosen before, by name, the latest first.
    pub elections: BTreeMap<String, Vec<String>>,
}

/// Nodes by their place in the frozen order, ascending.
pub(crate) type NodeSet = Arc<[u32]>;

/// The frozen nodes, and the meaning of names in selectors among them.
#[derive(Debug)]
pub(crate) struct Targets {
    /// By nid, then name.
    pub(crate) nodes: Vec<TargetNode>,
    computed: Vec<(GroupKey, Selector)>,
    /// Roles and the names of their first members.
    pub(crate) roles: HashMap<String, RoleSet>,
    pub(crate) elections: BTreeMap<String, String>,
    everyone: NodeSet,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RoleSet {
    pub(crate) nodes: NodeSet,
    ids: Arc<BTreeSet<NodeId>>,
    pub(crate) first: Option<u32>,
}

impl Targets {
    pub(crate) fn new(book: &Book, site: &TargetSite, found: &mut Vec<SourceDiagnostic>) -> Self {
        let mut nodes = site.nodes.clone();
        nodes.sort_by(|a, b| order(a).cmp(&order(b)));
        let count = u32::try_from(nodes.len()).expect("sites are bounded");
        let mut targets = Self {
            nodes,
            computed: site.computed_groups.clone(),
            roles: HashMap::new(),
            elections: BTreeMap::new(),
            everyone: (0..count).collect(),
        };
        let mut open: Vec<&Role> = book.roles.iter().collect();
        // Roles may be made of other roles; those that wait for each other are left at the end.
        while !open.is_empty() {
            let names: BTreeSet<&str> = open.iter().map(|role| role.name.value.as_str()).collect();
            let waits = |role: &&Role| {
                let words = role.nodes.as_ref().map(|nodes| nodes.value.bare_names());
                words.unwrap_or_default().iter().any(|word| names.contains(word))
            };
            let (waiting, free): (Vec<&Role>, Vec<&Role>) = open.iter().copied().partition(waits);
            if free.is_empty() {
                for role in waiting {
                    let At { value, place } = &role.name;
                    let message = format!("the nodes of role `{value}` are those of itself");
                    let remedy = "say which they are in other words";
                    found
                        .push(SourceDiagnostic::new(Code::BadTarget, *place, message).hint(remedy));
                }
                break;
            }
            for role in free {
                targets.add(role, site, found);
            }
            open = waiting;
        }
        targets
    }

    fn add(&mut self, role: &Role, site: &TargetSite, found: &mut Vec<SourceDiagnostic>) {
        let name = &role.name.value;
        let nodes = match &role.nodes {
            Some(nodes) => self.resolve(nodes, found).unwrap_or_default(),
            None => self.called(name),
        };
        let ids: BTreeSet<NodeId> = nodes.iter().map(|at| self.nodes[*at as usize].id).collect();
        let member = |kept: &String| {
            nodes.iter().copied().find(|at| self.nodes[*at as usize].name.as_str() == kept)
        };
        let kept = site.elections.get(name).and_then(|kept| kept.iter().find_map(member));
        let first = kept.or(nodes.first().copied());
        if let Some(first) = first {
            let elected = self.nodes[first as usize].name.to_string();
            self.elections.insert(name.clone(), elected);
        }
        if let Some(alias) = &role.first {
            let nodes: NodeSet = first.into_iter().collect();
            let ids = first.map(|at| self.nodes[at as usize].id).into_iter().collect();
            let set = RoleSet { nodes, ids: Arc::new(ids), first };
            if self.roles.insert(alias.value.clone(), set).is_some() {
                let message = format!("`{}` is a role already", alias.value);
                found.push(SourceDiagnostic::new(Code::Twice, alias.place, message));
            }
        }
        let set = RoleSet { nodes, ids: Arc::new(ids), first };
        if self.roles.insert(name.clone(), set).is_some() {
            let message = format!("`{name}` is the first member of another role already");
            found.push(SourceDiagnostic::new(Code::Twice, role.name.place, message));
        }
    }

    /// Nodes whose role, subrole or group has the name.
    fn called(&self, name: &str) -> NodeSet {
        let grouped = name.parse::<GroupName>().ok().and_then(|group| {
            let selector: Selector = format!("group:{group}").parse().ok()?;
            selector.bind(self).ok()
        });
        self.filter(|subject| {
            let roles = [&subject.spec.role, &subject.spec.subrole];
            roles.into_iter().flatten().any(|role| role.is(name))
                || grouped.as_ref().is_some_and(|group| group.matches(subject))
        })
    }

    fn filter(&self, keep: impl Fn(&Subject<'_>) -> bool) -> NodeSet {
        (0..).zip(&self.nodes).filter(|(_, node)| keep(&subject(node))).map(|(at, _)| at).collect()
    }

    /// The nodes of a selector; `None` with a diagnostic if the selector is invalid.
    pub(crate) fn resolve(
        &self,
        selector: &At<Selector>,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Option<NodeSet> {
        if selector.value.is_everything() {
            return Some(Arc::clone(&self.everyone));
        }
        match selector.value.bind(self) {
            Ok(bound) => Some(self.filter(|subject| bound.matches(subject))),
            Err(error) => {
                found.push(self.unbound(selector, &error));
                None
            }
        }
    }

    fn unbound(&self, selector: &At<Selector>, error: &BindError) -> SourceDiagnostic {
        let BindError::UnknownWord { word, .. } = error else {
            return SourceDiagnostic::new(Code::BadTarget, selector.place, error.to_string());
        };
        let message = format!("no role or group is called `{word}`");
        let words = self.known_names();
        let found = SourceDiagnostic::new(Code::BadTarget, selector.place, message);
        match nearest(word, words.iter().map(String::as_str)) {
            Some(close) => found.suggest(Some(close)),
            None => {
                found.hint(format!("declare it under `roles:`, or name a node as `node:{word}`"))
            }
        }
    }
}

/// By nid, those without one last; then by name.
fn order(node: &TargetNode) -> (u64, &str) {
    (node.spec.nid.map_or(u64::MAX, |nid| u64::from(nid.get())), node.name.as_str())
}

fn subject(node: &TargetNode) -> Subject<'_> {
    Subject { id: node.id, name: &node.name, spec: &node.spec, lifecycle: node.lifecycle }
}

impl Vocabulary for Targets {
    fn is_role(&self, word: &str) -> bool {
        self.nodes.iter().any(|node| {
            [&node.spec.role, &node.spec.subrole].into_iter().flatten().any(|role| role.is(word))
        })
    }

    fn is_group(&self, word: &str) -> bool {
        self.computed.iter().any(|(key, _)| key.name.as_str() == word)
            || self.nodes.iter().any(|node| node.spec.groups.iter().any(|g| g.as_str() == word))
    }

    fn known_names(&self) -> Vec<String> {
        let mut words: BTreeSet<String> = self.roles.keys().cloned().collect();
        for node in &self.nodes {
            let roles = [&node.spec.role, &node.spec.subrole].into_iter().flatten();
            words.extend(roles.map(ToString::to_string));
            words.extend(node.spec.groups.iter().map(ToString::to_string));
        }
        words.into_iter().collect()
    }

    fn selector_groups(&self) -> Vec<(GroupKey, Selector)> {
        self.computed.clone()
    }

    fn first(&self, set: &Bound) -> Option<NodeId> {
        self.nodes.iter().find(|node| set.matches(&subject(node))).map(|node| node.id)
    }

    fn set(&self, word: &str) -> Option<Arc<BTreeSet<NodeId>>> {
        self.roles.get(word).map(|role| Arc::clone(&role.ids))
    }

    fn elected(&self, word: &str) -> Option<NodeId> {
        let first = self.roles.get(word)?.first?;
        Some(self.nodes[first as usize].id)
    }

    fn matching(&self, regex: &str) -> Result<Vec<String>, RegexError> {
        let regex = whole(regex)?;
        // A role of the deployment hides a role or group of the site that has the same name.
        Ok(self.known_names().into_iter().filter(|word| regex.is_match(word)).collect())
    }
}

/// A regular expression of the whole text.
pub(crate) fn whole(regex: &str) -> Result<Regex, RegexError> {
    compiled(&format!("^(?:{regex})$"))
}

pub(crate) fn compiled(regex: &str) -> Result<Regex, RegexError> {
    Regex::new(regex).map_err(|error| {
        let last = error.to_string().lines().last().unwrap_or_default().to_owned();
        RegexError::Syntax(last)
    })
}

/// Two sets of nodes, both ascending: those in both.
pub(crate) fn common(a: &[u32], b: &[u32]) -> Vec<u32> {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    short.iter().copied().filter(|at| long.binary_search(at).is_ok()).collect()
}
