//! A selector whose names have been looked up, ready to be asked about nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::node::{Lifecycle, NodeSpec};
use crate::selector::glob::in_ranges;
use crate::selector::{Atom, Expr, Glob, Selector};
use crate::suggestion::nearest;
use crate::{GroupKey, Mac, Name, NodeId, Role, Xname};

/// The names of a site, for binding a selector.
pub trait Vocabulary {
    /// Whether any node has this role or subrole.
    fn is_role(&self, word: &str) -> bool;
    /// Whether there is a group of this name in any partition, declared or used.
    fn is_group(&self, word: &str) -> bool;
    /// Every role and group name, for suggestions.
    fn known_names(&self) -> Vec<String>;
    /// Groups whose members are computed.
    fn selector_groups(&self) -> Vec<(GroupKey, Selector)>;
    /// The first node of the set, by nid, then name.
    fn first(&self, set: &Bound) -> Option<NodeId>;
    /// The nodes that a bare name stands for before it is looked for among roles and groups.
    fn set(&self, _word: &str) -> Option<Arc<BTreeSet<NodeId>>> {
        None
    }
    /// The node that was chosen to be the first of such a set.
    fn elected(&self, _word: &str) -> Option<NodeId> {
        None
    }
    /// The bare names that a regular expression matches.
    fn matching(&self, _regex: &str) -> Result<Vec<String>, RegexError> {
        Err(RegexError::Unsupported)
    }
}

/// One node, as a selector sees it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub id: NodeId,
    pub name: &'a Name,
    pub spec: &'a NodeSpec,
    pub lifecycle: Lifecycle,
}

/// A selector bound to a site. It may be kept and reused while the site's groups stay the same.
#[derive(Debug, Clone)]
pub struct Bound(Rule);

#[derive(Debug, Clone)]
enum Rule {
    Never,
    Any(Vec<Rule>),
    All(Vec<Rule>),
    Not(Box<Rule>),
    /// A `first(…)` that has been answered.
    Is(NodeId),
    /// A set that has been looked up.
    Among(Arc<BTreeSet<NodeId>>),
    /// The members of groups, however they come to be in them.
    Group(Box<Rule>),
    Atom(Atom),
}

/// How specifically a selector names a node: by its most specific term that matches the node, then
/// by the number of terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Specificity {
    pub class: Class,
    pub atoms: usize,
}

/// The ways to name a node, from the widest to the closest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// `*`, and whatever is only ruled out.
    Everything,
    State,
    Arch,
    Partition,
    Role,
    Subrole,
    Label,
    Group,
    /// A pattern or a range of names, xnames or nids.
    Pattern,
    /// The node itself: its name, xname, nid or MAC.
    Node,
}

/// One node, named exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// In lower case.
    Name(String),
    Xname(Xname),
    Nid(u32),
    Mac(Mac),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    #[error("no role or group is called `{word}`{}", did_you_mean(word, suggestion.as_deref()))]
    UnknownWord { word: String, suggestion: Option<String> },
    #[error("`{word}` is a role and a group; write `role:{word}` or `group:{word}`")]
    BothRoleAndGroup { word: String },
    #[error("the groups {} select each other", path.join(" -> "))]
    Cycle { path: Vec<String> },
    #[error("`/{regex}/` cannot be used: {reason}")]
    Regex { regex: String, reason: RegexError },
}

/// Why a regular expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegexError {
    #[error("regular expressions are for task files only")]
    Unsupported,
    /// The last line of the parser's message; the others draw the expression.
    #[error("{0}")]
    Syntax(String),
}

fn did_you_mean(word: &str, suggestion: Option<&str>) -> String {
    match suggestion {
        Some(close) => format!("; did you mean `{close}`?"),
        None => format!("; a node is written `node:{word}`"),
    }
}

impl Bound {
    pub fn matches(&self, node: &Subject<'_>) -> bool {
        self.0.matches(node)
    }

    /// How closely it names the node; `None` when it does not.
    pub fn specificity(&self, node: &Subject<'_>) -> Option<Specificity> {
        self.0.specificity(node)
    }

    /// The nodes it names, when it names each of them exactly.
    pub fn identities(&self) -> Option<Vec<Identity>> {
        match &self.0 {
            Rule::Any(rules) => {
                let each = rules.iter().map(Rule::identities);
                each.collect::<Option<Vec<_>>>().map(|lists| lists.concat())
            }
            rule => rule.identities(),
        }
    }

    pub fn is_everything(&self) -> bool {
        matches!(self.0, Rule::Atom(Atom::Everything))
    }

    /// The name of the one node it can match, when it names exactly one.
    pub fn exact_node(&self) -> Option<&str> {
        match &self.0 {
            Rule::Atom(Atom::Node(glob)) => glob.as_exact(),
            _ => None,
        }
    }
}

impl Rule {
    fn matches(&self, node: &Subject<'_>) -> bool {
        match self {
            Self::Never => false,
            Self::Any(rules) => rules.iter().any(|rule| rule.matches(node)),
            Self::All(rules) => rules.iter().all(|rule| rule.matches(node)),
            Self::Not(rule) => !rule.matches(node),
            Self::Is(id) => *id == node.id,
            Self::Among(ids) => ids.contains(&node.id),
            Self::Group(rule) => rule.matches(node),
            Self::Atom(atom) => atom.matches(node),
        }
    }

    fn specificity(&self, node: &Subject<'_>) -> Option<Specificity> {
        let one = |class| Specificity { class, atoms: 1 };
        match self {
            Self::Never => None,
            Self::Any(rules) => rules.iter().filter_map(|rule| rule.specificity(node)).max(),
            Self::All(rules) => {
                let each: Option<Vec<_>> =
                    rules.iter().map(|rule| rule.specificity(node)).collect();
                let each = each?;
                let class = each.iter().map(|s| s.class).max().unwrap_or(Class::Everything);
                Some(Specificity { class, atoms: each.iter().map(|s| s.atoms).sum() })
            }
            Self::Not(rule) => (!rule.matches(node)).then(|| one(Class::Everything)),
            Self::Is(id) => (*id == node.id).then(|| one(Class::Node)),
            Self::Among(ids) => ids.contains(&node.id).then(|| one(Class::Group)),
            Self::Group(rule) => rule.matches(node).then(|| one(Class::Group)),
            Self::Atom(atom) => atom.matches(node).then(|| one(atom.class(node))),
        }
    }

    fn identities(&self) -> Option<Vec<Identity>> {
        let Self::Atom(atom) = self else { return None };
        match atom {
            Atom::Node(glob) => Some(vec![Identity::Name(glob.as_exact()?.to_ascii_lowercase())]),
            Atom::Xname(pattern) => Some(vec![Identity::Xname(pattern.as_exact()?)]),
            Atom::Nid(ranges) => {
                let single = |(from, to): &(u32, u32)| (from == to).then_some(Identity::Nid(*from));
                ranges.iter().map(single).collect()
            }
            Atom::Mac(mac) => Some(vec![Identity::Mac(*mac)]),
            _ => None,
        }
    }
}

impl Atom {
    /// What kind of name it is, for a node that it matches.
    fn class(&self, node: &Subject<'_>) -> Class {
        let pattern = |exact: bool| if exact { Class::Node } else { Class::Pattern };
        match self {
            Self::Everything | Self::Bare(_) | Self::Matching(_) => Class::Everything,
            Self::State(_) => Class::State,
            Self::Arch(_) => Class::Arch,
            Self::Partition(_) => Class::Partition,
            Self::Role(_) => Class::Role,
            Self::Subrole(_) => Class::Subrole,
            Self::Label { .. } => Class::Label,
            Self::Group { .. } => Class::Group,
            Self::Node(glob) => pattern(glob.as_exact().is_some()),
            Self::Xname(xnames) => pattern(xnames.is_exact()),
            Self::Nid(ranges) => {
                let nid = node.spec.nid.map(crate::Nid::get);
                pattern(ranges.iter().any(|(from, to)| from == to && Some(*from) == nid))
            }
            Self::Mac(_) => Class::Node,
        }
    }

    fn matches(&self, node: &Subject<'_>) -> bool {
        let spec = node.spec;
        let has_role =
            |role: &Option<Role>, glob: &Glob| role.as_ref().is_some_and(|role| glob.matches(role));
        match self {
            Self::Everything => true,
            Self::Bare(_) | Self::Matching(_) => unreachable!("names are looked up when bound"),
            Self::Group { partition, group } => {
                spec.groups.iter().any(|name| group.matches(name))
                    && partition.matches(&spec.partition)
            }
            Self::Node(glob) => glob.matches_name(node.name),
            Self::Role(glob) => has_role(&spec.role, glob),
            Self::Subrole(glob) => has_role(&spec.subrole, glob),
            Self::Partition(glob) => glob.matches(&spec.partition),
            Self::Arch(arch) => spec.arch == *arch,
            Self::Label { key, value } => spec
                .labels
                .get(key)
                .is_some_and(|has| value.as_ref().is_none_or(|wanted| wanted.matches(has))),
            Self::Xname(pattern) => spec.xname.is_some_and(|xname| pattern.matches(&xname)),
            Self::Nid(ranges) => spec.nid.is_some_and(|nid| in_ranges(ranges, nid.get())),
            Self::Mac(mac) => spec.interfaces.iter().any(|interface| interface.mac == *mac),
            Self::State(state) => node.lifecycle == *state,
        }
    }
}

pub(super) fn bind(expr: &Expr, site: &dyn Vocabulary) -> Result<Bound, BindError> {
    let computed = site.selector_groups();
    let mut binder = Binder { site, computed: &computed, path: Vec::new() };
    binder.bind(expr).map(Bound)
}

struct Binder<'a> {
    site: &'a dyn Vocabulary,
    computed: &'a [(GroupKey, Selector)],
    /// The computed groups being looked into, to notice a circle.
    path: Vec<String>,
}

impl Binder<'_> {
    fn bind(&mut self, expr: &Expr) -> Result<Rule, BindError> {
        Ok(match expr {
            Expr::Any(parts) => Rule::Any(self.bind_each(parts)?),
            Expr::All(parts) => Rule::All(self.bind_each(parts)?),
            Expr::Not(inner) => Rule::Not(Box::new(self.bind(inner)?)),
            Expr::First(inner) => {
                if let Expr::Atom(Atom::Bare(word)) = &**inner
                    && let Some(id) = self.site.elected(word)
                {
                    return Ok(Rule::Is(id));
                }
                let set = Bound(self.bind(inner)?);
                self.site.first(&set).map_or(Rule::Never, Rule::Is)
            }
            Expr::Atom(Atom::Bare(word)) => self.bare(word)?,
            Expr::Atom(Atom::Matching(regex)) => self.matching(regex)?,
            Expr::Atom(Atom::Group { partition, group }) => self.group(partition, group)?,
            Expr::Atom(atom) => Rule::Atom(atom.clone()),
        })
    }

    fn bind_each(&mut self, parts: &[Expr]) -> Result<Vec<Rule>, BindError> {
        parts.iter().map(|part| self.bind(part)).collect()
    }

    fn matching(&mut self, regex: &str) -> Result<Rule, BindError> {
        let words = self.site.matching(regex).map_err(|reason| {
            let regex = regex.to_owned();
            BindError::Regex { regex, reason }
        })?;
        words.iter().map(|word| self.bare(word)).collect::<Result<_, _>>().map(Rule::Any)
    }

    fn bare(&mut self, word: &str) -> Result<Rule, BindError> {
        if let Some(ids) = self.site.set(word) {
            return Ok(Rule::Among(ids));
        }
        match (self.site.is_role(word), self.site.is_group(word)) {
            (true, true) => Err(BindError::BothRoleAndGroup { word: word.to_owned() }),
            (true, false) => Ok(Rule::Any(vec![
                Rule::Atom(Atom::Role(Glob::exact(word))),
                Rule::Atom(Atom::Subrole(Glob::exact(word))),
            ])),
            (false, true) => self.group(&Glob::exact("*"), &Glob::exact(word)),
            (false, false) => {
                let words = self.site.known_names();
                let suggestion = nearest(word, words.iter().map(String::as_str));
                Err(BindError::UnknownWord {
                    word: word.to_owned(),
                    suggestion: suggestion.map(str::to_owned),
                })
            }
        }
    }

    /// Explicit members, or whatever the computed groups of that name select in their partition.
    fn group(&mut self, partition: &Glob, group: &Glob) -> Result<Rule, BindError> {
        let explicit = Atom::Group { partition: partition.clone(), group: group.clone() };
        let mut rules = vec![Rule::Atom(explicit)];
        for (key, selector) in self.computed {
            if !(partition.matches(&key.partition) && group.matches(&key.name)) {
                continue;
            }
            let name = key.to_string();
            if self.path.contains(&name) {
                let path = self.path.iter().cloned().chain([name]).collect();
                return Err(BindError::Cycle { path });
            }
            self.path.push(name);
            let members = self.bind(&selector.0)?;
            self.path.pop();
            let inside = Rule::Atom(Atom::Partition(Glob::exact(&key.partition)));
            rules.push(Rule::All(vec![inside, members]));
        }
        Ok(if rules.len() == 1 { rules.remove(0) } else { Rule::Group(Box::new(Rule::Any(rules))) })
    }
}
