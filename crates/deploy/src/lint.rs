//! A book on layouts that are not there: whether tasks wait for each other, and whether a reference
//! can ever bind, depends on which roles share a node, and is better known before such nodes exist.

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::nearest;
use hoist_model::node::Lifecycle;
use hoist_model::{GroupName, NodeId, NodeSpec};

use crate::bind;
use crate::compile::{self, Options};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::layer::Book;
use crate::spec::{Need, NeedScope};
use crate::target::{TargetNode, TargetSite, Targets};

/// Roles that pairs are made of; more would be more than a thousand layouts.
const MAX_PAIRED: usize = 48;

/// A diagnostic, and the layouts that have it.
#[derive(Debug, Clone)]
pub struct LayoutDiagnostic {
    /// The name of the first layout that has it.
    pub layout: String,
    /// How many layouts have it.
    pub layouts: usize,
    pub diagnostic: SourceDiagnostic,
}

/// The diagnostics of the book on all generated layouts, errors first. A reference is reported as
/// unbound only if it binds to nothing even where every node has every role.
pub fn layouts(book: &Book, options: &Options<'_>) -> Vec<LayoutDiagnostic> {
    let declared = declared(book);
    let book = on_groups(book);
    let roles = roles(&book);
    let mut diagnostics: BTreeMap<(Code, String), LayoutDiagnostic> = BTreeMap::new();
    for layout in all(&roles) {
        let mut found = Vec::new();
        let targets = Targets::new(&book, &layout.site(), &mut found);
        let graph = bind::bind(&book, &targets, options.is_strict, &mut found);
        found.retain(|one| one.code == Code::Cycle || (layout.is_full && !is_of_nodes(one.code)));
        if layout.is_full {
            compile::look(&book, &graph, options, &mut found);
            slips(&book, &declared, &mut found);
        }
        let mut seen = BTreeSet::new();
        for diagnostic in found {
            // The same circle has other nodes on other layouts; who said so stays the same.
            let places: Vec<_> = diagnostic.notes.iter().map(|(place, _)| *place).collect();
            let key = match diagnostic.code {
                Code::Cycle => format!("{places:?}"),
                _ => format!("{:?} {}", diagnostic.place, diagnostic.diagnostic.message),
            };
            if !seen.insert((diagnostic.code, key.clone())) {
                continue;
            }
            let entry = diagnostics.entry((diagnostic.code, key)).or_insert_with(|| {
                LayoutDiagnostic { layout: layout.name.clone(), layouts: 0, diagnostic }
            });
            entry.layouts += 1;
        }
    }
    let mut diagnostics: Vec<LayoutDiagnostic> = diagnostics.into_values().collect();
    diagnostics.sort_by_key(|one| {
        (std::cmp::Reverse(one.diagnostic.severity), one.diagnostic.place, one.diagnostic.code)
    });
    diagnostics
}

/// Other nodes, or more of them, may make it right.
fn is_of_nodes(code: Code) -> bool {
    matches!(code, Code::NoNode | Code::NotInRun | Code::Contradiction)
}

/// The names of roles and of their first members.
fn declared(book: &Book) -> BTreeSet<String> {
    let names = book.roles.iter().map(|role| &role.name);
    let firsts = book.roles.iter().filter_map(|role| role.first.as_ref());
    names.chain(firsts).map(|name| name.value.clone()).collect()
}

/// A name that no role has may be that of a group of the site, unless it is almost that of a role.
fn slips(book: &Book, declared: &BTreeSet<String>, found: &mut Vec<SourceDiagnostic>) {
    for on in book.tasks.iter().filter_map(|task| task.on.as_ref()) {
        for word in on.value.bare_names().into_iter().filter(|word| !declared.contains(*word)) {
            if let Some(close) = nearest(word, declared.iter().map(String::as_str)) {
                let message = format!("these files have no role `{word}`");
                let diagnostic = SourceDiagnostic::new(Code::BadTarget, on.place, message);
                found.push(diagnostic.suggest(Some(close)).mild());
            }
        }
    }
}

/// The book with roles that are groups, so that a layout can say who is in them.
fn on_groups(book: &Book) -> Book {
    let mut book = book.clone();
    for role in &mut book.roles {
        role.nodes = None;
    }
    book
}

/// Every role that is declared or named anywhere, but for the names of first members.
fn roles(book: &Book) -> Vec<String> {
    let mut words: BTreeSet<&str> =
        book.roles.iter().map(|role| role.name.value.as_str()).collect();
    for task in &book.tasks {
        words.extend(task.on.iter().flat_map(|on| on.value.bare_names()));
        let needs = [&task.needs, &task.needed_by].into_iter().flatten();
        for Need { on, .. } in needs.flat_map(|needs| &needs.value) {
            if let NeedScope::Nodes(on) = on {
                words.extend(on.value.bare_names());
            }
        }
    }
    for first in book.roles.iter().filter_map(|role| role.first.as_ref()) {
        words.remove(first.value.as_str());
    }
    let is_group = |word: &&str| word.parse::<GroupName>().is_ok();
    words.into_iter().filter(is_group).map(str::to_owned).collect()
}

struct Layout<'a> {
    name: String,
    /// The roles of each node.
    nodes: Vec<Vec<&'a str>>,
    /// Whatever can bind at all, binds here.
    is_full: bool,
}

fn all(roles: &[String]) -> Vec<Layout<'_>> {
    let every: Vec<&str> = roles.iter().map(String::as_str).collect();
    let layout = |name: &str, nodes| Layout { name: name.to_owned(), nodes, is_full: false };
    let each = |count| every.iter().flat_map(|role| vec![vec![*role]; count]).collect();
    let mut layouts = vec![
        Layout { is_full: true, ..layout("three nodes with every role", vec![every.clone(); 3]) },
        layout("one node with every role", vec![every.clone()]),
        layout("one node for each role", each(1)),
        layout("three nodes for each role", each(3)),
    ];
    for (at, one) in every.iter().enumerate().take(MAX_PAIRED) {
        for other in every.iter().take(MAX_PAIRED).skip(at + 1) {
            let alone = every.iter().filter(|role| *role != one && *role != other);
            let nodes = std::iter::once(vec![*one, *other]).chain(alone.map(|role| vec![*role]));
            layouts.push(layout(&format!("{one} and {other} on one node"), nodes.collect()));
        }
    }
    layouts
}

impl Layout<'_> {
    fn site(&self) -> TargetSite {
        let nodes = self.nodes.iter().zip(1_u32..).map(|(roles, at)| {
            let spec = serde_json::json!({ "nid": at, "groups": roles });
            let spec: NodeSpec = serde_json::from_value(spec).expect("names of groups");
            let name = format!("node{at}").parse().expect("a name");
            let id = NodeId::from_bits(at.into());
            TargetNode { id, name, spec, lifecycle: Lifecycle::Installed, system: String::new() }
        });
        TargetSite { nodes: nodes.collect(), ..TargetSite::default() }
    }
}
