//! The one grammar for naming sets of nodes, used by every command, route and document.
//!
//! ```text
//! expr = and {("," | "or") and}      and = not {("&" | "and") not}
//! not  = ["!" | "not"] (atom | "(" expr ")")
//! atom = * | NAME | PARTITION/GROUP | node: role: subrole: group: partition: arch: label:K=V
//!        | K=V | xname: nid: mac: state: | first(expr) | /REGEX/
//! ```
//!
//! A `/REGEX/` is for names of roles; only a site that can match it ([`Vocabulary`]) accepts it.
//!
//! [`Selector`] is the written form. The meaning of a bare name depends on the site, so a selector
//! is first bound to a [`Vocabulary`]; the [`Bound`] selector then answers for one node at a time.

mod bound;
mod glob;
mod parse;

use std::fmt;
use std::str::FromStr;

pub use bound::{BindError, Bound, Class, Identity, RegexError, Specificity, Subject, Vocabulary};
pub use glob::Glob;
pub use parse::ParseSelectorError;

use crate::node::{Arch, Lifecycle};
use crate::text::as_text;
use crate::{LabelKey, Mac};

/// A parsed selector. Prints in one canonical form that parses to itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Expr);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expr {
    Any(Vec<Expr>),
    All(Vec<Expr>),
    Not(Box<Expr>),
    /// The one node of the set that comes first by nid, then by name.
    First(Box<Expr>),
    Atom(Atom),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Atom {
    Everything,
    /// A role, or else a group, of that name.
    Bare(String),
    /// Roles whose whole name matches the regular expression.
    Matching(String),
    Group {
        partition: Glob,
        group: Glob,
    },
    Node(Glob),
    Role(Glob),
    Subrole(Glob),
    Partition(Glob),
    Arch(Arch),
    Label {
        key: LabelKey,
        value: Option<Glob>,
    },
    Xname(glob::XnamePattern),
    Nid(Vec<(u32, u32)>),
    Mac(Mac),
    State(Lifecycle),
}

/// The target of a selector of one exact atom: the site, or a named object in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level<'a> {
    Cluster,
    Partition(&'a str),
    /// Without a partition it is the group of that name in each of them.
    Group {
        partition: Option<&'a str>,
        name: &'a str,
    },
    Node(&'a str),
}

/// Names of groups and partitions in a selector, without patterns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactNames<'a> {
    pub groups: Vec<&'a str>,
    pub partitions: Vec<&'a str>,
}

impl Selector {
    pub fn everything() -> Self {
        Self(Expr::Atom(Atom::Everything))
    }

    /// Exactly one node, by name.
    pub fn node(name: &crate::Name) -> Self {
        Self(Expr::Atom(Atom::Node(Glob::exact(name.as_str()))))
    }

    pub fn is_everything(&self) -> bool {
        self.0 == Expr::Atom(Atom::Everything)
    }

    /// `None` for anything but one exact atom of those that have a level.
    pub fn level(&self) -> Option<Level<'_>> {
        let Expr::Atom(atom) = &self.0 else { return None };
        match atom {
            Atom::Everything => Some(Level::Cluster),
            Atom::Partition(name) => name.as_exact().map(Level::Partition),
            Atom::Group { partition, group } => {
                let name = group.as_exact()?;
                if partition.is_any() {
                    return Some(Level::Group { partition: None, name });
                }
                Some(Level::Group { partition: Some(partition.as_exact()?), name })
            }
            Atom::Node(name) => name.as_exact().map(Level::Node),
            _ => None,
        }
    }

    /// The partition that all of its nodes are in, whatever nodes the site has; `None` where the
    /// selector alone does not say that.
    pub fn partition(&self) -> Option<&str> {
        self.0.partition()
    }

    /// The partitions of which it selects every node, by its words alone.
    pub fn whole_partitions(&self) -> Vec<&str> {
        fn whole(part: &Expr) -> Option<&str> {
            match part {
                Expr::Atom(Atom::Partition(name)) => name.as_exact(),
                _ => None,
            }
        }
        let parts: &[Expr] = match &self.0 {
            Expr::Any(parts) => parts,
            one => std::slice::from_ref(one),
        };
        parts.iter().filter_map(whole).collect()
    }

    /// The bare names in it, except negated ones: the roles it selects.
    pub fn bare_names(&self) -> Vec<&str> {
        let mut words = Vec::new();
        self.0.bare_names(&mut words);
        words
    }

    /// The groups and partitions that it names in full, also negated ones. A name that the site does
    /// not have selects nothing, so callers with selectors from people must check them.
    pub fn exact_names(&self) -> ExactNames<'_> {
        let mut names = ExactNames::default();
        self.0.exact_names(&mut names);
        names
    }

    /// The meaning of the selector at this site.
    pub fn bind(&self, site: &dyn Vocabulary) -> Result<Bound, BindError> {
        bound::bind(&self.0, site)
    }
}

impl FromStr for Selector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let selector = parse::selector(text).map(Self)?;
        // Selectors are kept as they print, which may be longer than they were written.
        parse::check_length(&selector.to_string())?;
        Ok(selector)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Expr {
    fn partition(&self) -> Option<&str> {
        match self {
            Self::Atom(Atom::Partition(name) | Atom::Group { partition: name, .. }) => {
                name.as_exact()
            }
            Self::All(parts) => parts.iter().find_map(Self::partition),
            Self::Any(parts) => {
                let (first, rest) = parts.split_first()?;
                let partition = first.partition()?;
                rest.iter().all(|part| part.partition() == Some(partition)).then_some(partition)
            }
            Self::First(inner) => inner.partition(),
            Self::Not(_) | Self::Atom(_) => None,
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(parts) => self.joined(f, parts, " , "),
            Self::All(parts) => self.joined(f, parts, " & "),
            Self::Not(inner) => {
                f.write_str("!")?;
                self.inside(f, inner)
            }
            Self::First(inner) => write!(f, "first({inner})"),
            Self::Atom(atom) => fmt::Display::fmt(atom, f),
        }
    }
}

impl Expr {
    fn exact_names<'a>(&'a self, names: &mut ExactNames<'a>) {
        match self {
            Self::Any(parts) | Self::All(parts) => {
                for part in parts {
                    part.exact_names(names);
                }
            }
            Self::Not(inner) | Self::First(inner) => inner.exact_names(names),
            Self::Atom(Atom::Partition(partition)) => names.partitions.extend(partition.as_exact()),
            Self::Atom(Atom::Group { partition, group }) => {
                names.partitions.extend(partition.as_exact());
                names.groups.extend(group.as_exact());
            }
            Self::Atom(_) => {}
        }
    }

    fn bare_names<'a>(&'a self, words: &mut Vec<&'a str>) {
        match self {
            Self::Any(parts) | Self::All(parts) => {
                for part in parts {
                    part.bare_names(words);
                }
            }
            Self::First(inner) => inner.bare_names(words),
            Self::Atom(Atom::Bare(word)) => words.push(word),
            Self::Not(_) | Self::Atom(_) => {}
        }
    }

    /// The printed form must never have more parentheses than the written one: it could be nested
    /// too deeply to be parsed again.
    fn inside(&self, f: &mut fmt::Formatter<'_>, part: &Self) -> fmt::Result {
        if part.strength() > self.strength() || matches!(part, Self::Not(_)) {
            fmt::Display::fmt(part, f)
        } else {
            write!(f, "({part})")
        }
    }

    /// How tightly it holds together without parentheses.
    fn strength(&self) -> u8 {
        match self {
            Self::Any(_) => 0,
            Self::All(_) => 1,
            Self::Not(_) => 2,
            Self::First(_) | Self::Atom(_) => 3,
        }
    }

    fn joined(&self, f: &mut fmt::Formatter<'_>, parts: &[Self], separator: &str) -> fmt::Result {
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                f.write_str(separator)?;
            }
            self.inside(f, part)?;
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("*"),
            // A role may be called like an operator, or like a prefix with its value; quoted, it is
            // not taken for one.
            Self::Bare(word) if parse::OPERATORS.contains(&word.as_str()) || word.contains(':') => {
                write!(f, "\"{word}\"")
            }
            Self::Bare(word) => f.write_str(word),
            Self::Matching(regex) => write!(f, "/{regex}/"),
            Self::Group { partition, group } if partition.is_any() => write!(f, "group:{group}"),
            Self::Group { partition, group } => write!(f, "{partition}/{group}"),
            Self::Node(glob) => write!(f, "node:{glob}"),
            Self::Role(glob) => write!(f, "role:{glob}"),
            Self::Subrole(glob) => write!(f, "subrole:{glob}"),
            Self::Partition(glob) => write!(f, "partition:{glob}"),
            Self::Arch(arch) => write!(f, "arch:{}", arch.as_str()),
            Self::Label { key, value: Some(value) } => write!(f, "label:{key}={value}"),
            Self::Label { key, value: None } => write!(f, "label:{key}"),
            Self::Xname(pattern) => write!(f, "xname:{pattern}"),
            Self::Nid(ranges) => {
                f.write_str("nid:")?;
                glob::fmt_ranges(f, ranges)
            }
            Self::Mac(mac) => write!(f, "mac:{mac}"),
            Self::State(state) => write!(f, "state:{}", state.as_str()),
        }
    }
}

as_text!(Selector, "Selector", "a selector such as `compute & !label:rack=7`", None);

#[cfg(test)]
mod tests;
