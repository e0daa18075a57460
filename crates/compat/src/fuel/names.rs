//! Which nodes Fuel's names mean. The one node that has `primary-x` does not have `x`, so that `x`
//! alone is every member but the first.

use std::collections::BTreeSet;
use std::fmt;

use regex::Regex;

use super::task::{Corpus, List, Task, Type, Vocabulary, Where};

/// The name of the deployment server.
pub(super) const MASTER: &str = "master";
const PRIMARY: &str = "primary-";

/// A set of nodes, as a selector says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeGroup {
    Everyone,
    Nobody,
    /// All members of a role.
    Role(String),
    First(String),
    Any(Vec<NodeGroup>),
    All(Vec<NodeGroup>),
    Not(Box<NodeGroup>),
}

impl NodeGroup {
    pub(super) fn any(parts: Vec<NodeGroup>) -> Self {
        let mut kept: Vec<NodeGroup> = Vec::new();
        for part in parts {
            match part {
                Self::Everyone => return Self::Everyone,
                Self::Nobody => {}
                Self::Any(inner) => kept.extend(inner),
                part if kept.contains(&part) => {}
                part => kept.push(part),
            }
        }
        Self::single(kept, Self::Nobody, Self::Any)
    }

    pub(super) fn all(parts: Vec<NodeGroup>) -> Self {
        let mut kept: Vec<NodeGroup> = Vec::new();
        for part in parts {
            match part {
                Self::Nobody => return Self::Nobody,
                Self::Everyone => {}
                Self::All(inner) => kept.extend(inner),
                part if kept.contains(&part) => {}
                part => kept.push(part),
            }
        }
        Self::single(kept, Self::Everyone, Self::All)
    }

    fn single(
        mut parts: Vec<NodeGroup>,
        none: NodeGroup,
        many: fn(Vec<NodeGroup>) -> NodeGroup,
    ) -> Self {
        match parts.len() {
            0 => none,
            1 => parts.remove(0),
            _ => many(parts),
        }
    }

    pub(super) fn not(self) -> Self {
        match self {
            Self::Everyone => Self::Nobody,
            Self::Nobody => Self::Everyone,
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }
}

impl fmt::Display for NodeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, parts: &[NodeGroup], by: &str| {
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    f.write_str(by)?;
                }
                match part {
                    Self::Any(_) | Self::All(_) => write!(f, "({part})")?,
                    part => write!(f, "{part}")?,
                }
            }
            Ok(())
        };
        match self {
            Self::Everyone => f.write_str("*"),
            Self::Nobody => f.write_str("not *"),
            Self::Role(name) => f.write_str(name),
            Self::First(name) => write!(f, "first({name})"),
            Self::Any(parts) => joined(f, parts, " or "),
            Self::All(parts) => joined(f, parts, " and "),
            Self::Not(inner) if matches!(**inner, Self::Any(_) | Self::All(_)) => {
                write!(f, "not ({inner})")
            }
            Self::Not(inner) => write!(f, "not {inner}"),
        }
    }
}

/// Everything that nodes can be called.
#[derive(Debug)]
pub(super) struct Names {
    /// Roles and tags, without `primary-`, and without the deployment server.
    pub(super) plain: Vec<String>,
    primaries: BTreeSet<String>,
    /// Whether any task or dependency names the deployment server.
    pub(super) has_master: bool,
}

impl Names {
    pub(super) fn new(corpus: &Corpus, tasks: &[Task]) -> Self {
        let Vocabulary { roles, primaries } = &corpus.vocabulary;
        let mut plain: BTreeSet<String> =
            roles.keys().chain(roles.values().flatten()).cloned().collect();
        plain.extend(primaries.iter().cloned());
        let mut primaries = primaries.clone();
        // A node that one graph knows as the deployment server is it for the others as well.
        let every = corpus.graphs.values().flatten();
        let has_master = every.chain(tasks).flat_map(words).any(|word| word == MASTER);
        for word in tasks.iter().flat_map(words).filter(|word| !is_pattern(word)) {
            if word == MASTER {
                continue;
            }
            if let Some(name) = word.strip_prefix(PRIMARY) {
                primaries.insert(name.to_owned());
                plain.insert(name.to_owned());
            } else {
                plain.insert(word.to_owned());
            }
        }
        Self { plain: plain.into_iter().collect(), primaries, has_master }
    }

    pub(super) fn has_primary(&self, name: &str) -> bool {
        self.primaries.contains(name)
    }

    /// The nodes that one of the names or patterns means.
    pub(super) fn who(&self, patterns: &[String]) -> Result<NodeGroup, regex::Error> {
        let mut parts = Vec::new();
        let mut matched: BTreeSet<String> = BTreeSet::new();
        let mut has_master = false;
        let mut is_everyone = false;
        for pattern in patterns {
            match prefix_regex(pattern)? {
                _ if pattern == "*" => is_everyone = true,
                // What matches the beginning of nothing matches every name.
                Some(regex) if regex.is_match("") => is_everyone = true,
                Some(regex) => matched.extend(self.every().filter(|name| regex.is_match(name))),
                None if pattern == MASTER => has_master = true,
                None => drop(matched.insert(pattern.clone())),
            }
        }
        if is_everyone {
            return Ok(if has_master { NodeGroup::Everyone } else { self.everyone_else() });
        }
        if has_master {
            parts.push(NodeGroup::Role(MASTER.to_owned()));
        }
        // In the order of the file, which has a reason more often than the alphabet has.
        let mut order: Vec<&str> = Vec::new();
        for name in patterns.iter().map(String::as_str).chain(matched.iter().map(String::as_str)) {
            let name = name.strip_prefix(PRIMARY).unwrap_or(name);
            if !order.contains(&name) {
                order.push(name);
            }
        }
        for name in order {
            let has_rest = matched.contains(name);
            let has_first = matched.contains(&format!("{PRIMARY}{name}"));
            let role = NodeGroup::Role(name.to_owned());
            match (has_first, has_rest) {
                (true, true) => parts.push(role),
                (false, true) if !self.has_primary(name) => parts.push(role),
                (false, true) => {
                    parts.push(NodeGroup::All(vec![role, NodeGroup::First(name.to_owned()).not()]));
                }
                (true, false) => parts.push(NodeGroup::First(name.to_owned())),
                (false, false) => {}
            }
        }
        Ok(NodeGroup::any(parts))
    }

    /// Every node but the deployment server.
    pub(super) fn everyone_else(&self) -> NodeGroup {
        if self.has_master { NodeGroup::Role(MASTER.to_owned()).not() } else { NodeGroup::Everyone }
    }

    /// Every name a node can have.
    pub(super) fn every(&self) -> impl Iterator<Item = String> + '_ {
        self.plain.iter().flat_map(|name| {
            let primary = self.has_primary(name).then(|| format!("{PRIMARY}{name}"));
            std::iter::once(name.clone()).chain(primary)
        })
    }
}

fn words(task: &Task) -> impl Iterator<Item = &str> {
    let on = task.on.iter().flat_map(List::given).map(String::as_str);
    let crosses = task.cross_depends.given().iter().chain(task.cross_depended_by.given());
    let roles = crosses.flat_map(|dependency| match &dependency.role {
        Where::Names(names) => names.as_slice(),
        Where::All | Where::Own | Where::Null => &[],
    });
    let group = (task.kind == Type::Group).then_some(task.id.as_str());
    on.chain(roles.map(String::as_str)).chain(group).filter(|word| *word != "*")
}

pub(super) fn is_pattern(text: &str) -> bool {
    text.len() > 2 && text.starts_with('/') && text.ends_with('/')
}

/// The pattern between the slashes; Fuel compared only the start of a name.
pub(super) fn prefix_regex(text: &str) -> Result<Option<Regex>, regex::Error> {
    if !is_pattern(text) {
        return Ok(None);
    }
    Regex::new(&format!("^(?:{})", &text[1..text.len() - 1])).map(Some)
}
