//! Conditions of Fuel's tasks, split into data that must have changed (`inputs`) and state that
//! must hold (`when`). Guarantees that a task runs at least as often as with Fuel; a condition
//! without such a translation is not guessed.

use std::collections::BTreeSet;

use super::yaql::{Expr, Operator};

/// A condition in hoist's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) when: Option<String>,
    pub(super) inputs: Vec<String>,
    /// It may run more often than with Fuel.
    pub(super) is_wider: bool,
}

/// `None` where it cannot be said in other words.
pub(super) fn translate(expr: &Expr) -> Option<Translation> {
    let parts = Parts::of(expr)?;
    Some(Translation {
        when: parts.when.map(|when| when.0),
        inputs: parts.inputs.into_iter().collect(),
        is_wider: parts.is_wider,
    })
}

#[derive(Debug, Default)]
struct Parts {
    /// Text, and how tightly it binds.
    when: Option<(String, u8)>,
    inputs: BTreeSet<String>,
    is_wider: bool,
}

impl Parts {
    fn of(expr: &Expr) -> Option<Self> {
        if !looks_back(expr) {
            return Some(Self { when: Some(pure(expr)?), ..Self::default() });
        }
        match expr {
            Expr::Call { of: None, name, arguments } => {
                let is_wider = match name.as_str() {
                    "changed" | "changedAny" => false,
                    // All of them have to have changed; here one is enough.
                    "changedAll" => arguments.len() > 1,
                    _ => return None,
                };
                let mut inputs = BTreeSet::new();
                for argument in arguments {
                    paths(argument, &mut inputs);
                }
                let is_wider = is_wider || arguments.iter().any(|argument| !is_path(argument));
                (!inputs.is_empty()).then_some(Self { when: None, inputs, is_wider })
            }
            // The node is new, or the role is new on it: it never ran there.
            Expr::Binary(Operator::In, left, right) if !looks_back(left) && is_added(right) => {
                let inputs = BTreeSet::from(["node.name".to_owned()]);
                Some(Self { when: None, inputs, is_wider: false })
            }
            Expr::Binary(Operator::And, left, right) => {
                let left = Self::of(left)?;
                let right = Self::of(right)?;
                // Either of two changes is enough here.
                let is_wider = !left.inputs.is_empty() && !right.inputs.is_empty();
                Some(left.joined(right, "and", is_wider))
            }
            Expr::Binary(Operator::Or, left, right) => {
                let left = Self::of(left)?;
                let right = Self::of(right)?;
                if left.inputs.is_empty() || right.inputs.is_empty() {
                    // One side runs it each time, whatever changed.
                    return None;
                }
                match (&left.when, &right.when) {
                    (None, None) => Some(left.joined(right, "or", false)),
                    (Some(_), Some(_)) => Some(left.joined(right, "or", true)),
                    _ => {
                        let mut both = left.joined(right, "or", true);
                        both.when = None;
                        Some(both)
                    }
                }
            }
            _ => None,
        }
    }

    fn joined(self, other: Self, word: &str, is_wider: bool) -> Self {
        let binding = if word == "and" { AND } else { OR };
        let when = match (self.when, other.when) {
            (Some(one), Some(two)) => {
                let one = closed(one, binding);
                let two = closed(two, binding);
                Some((format!("{one} {word} {two}"), binding))
            }
            (one, two) => one.or(two),
        };
        let mut inputs = self.inputs;
        inputs.extend(other.inputs);
        Self { when, inputs, is_wider: is_wider || self.is_wider || other.is_wider }
    }
}

const OR: u8 = 0;
const AND: u8 = 1;
const NOT: u8 = 2;
const COMPARED: u8 = 3;
const TIGHT: u8 = 4;

fn closed((text, binding): (String, u8), least: u8) -> String {
    if binding < least { format!("({text})") } else { text }
}

/// Whether it asks how things were at the last run.
fn looks_back(expr: &Expr) -> bool {
    any(expr, &|inner| {
        matches!(inner, Expr::Call { of: None, name, .. } if matches!(
            name.as_str(),
            "changed" | "changedAny" | "changedAll" | "added" | "deleted" | "old"
        ))
    })
}

fn any(expr: &Expr, is: &dyn Fn(&Expr) -> bool) -> bool {
    is(expr)
        || match expr {
            Expr::Field(of, _) | Expr::Not(of) => any(of, is),
            Expr::Call { of, arguments, .. } => {
                of.as_deref().is_some_and(|of| any(of, is))
                    || arguments.iter().any(|argument| any(argument, is))
            }
            Expr::List(items) => items.iter().any(|item| any(item, is)),
            Expr::Map(pairs) => pairs.iter().any(|(key, value)| any(key, is) || any(value, is)),
            Expr::Pair(one, two) | Expr::Binary(_, one, two) => any(one, is) || any(two, is),
            _ => false,
        }
}

/// `added(…)`, or a field of it.
fn is_added(expr: &Expr) -> bool {
    match expr {
        Expr::Call { of: None, name, .. } => name == "added",
        Expr::Field(of, _) => is_added(of),
        _ => false,
    }
}

/// The path of a plain piece of data, such as `$.a.get('b', 1)`.
fn path(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Root => Some(Vec::new()),
        Expr::Field(of, name) => {
            let mut path = path(of)?;
            path.push(name.clone());
            Some(path)
        }
        Expr::Call { of: Some(of), name, arguments } if name == "get" => {
            let mut path = path(of)?;
            let Some(Expr::Text(key)) = arguments.first() else { return None };
            path.push(key.clone());
            Some(path)
        }
        _ => None,
    }
}

fn is_path(expr: &Expr) -> bool {
    path(expr).is_some() || nodes_of(expr).is_some()
}

/// Everything that an expression is made from, each as far as its path goes.
fn paths(expr: &Expr, found: &mut BTreeSet<String>) {
    if let Some(role) = nodes_of(expr) {
        found.insert(role);
        return;
    }
    if let Some(path) = path(expr) {
        insert(&path, found);
        return;
    }
    match expr {
        // The arguments of a call refer to its items, not to the data.
        Expr::Field(of, _) | Expr::Not(of) | Expr::Call { of: Some(of), .. } => paths(of, found),
        Expr::Call { of: None, arguments: items, .. } | Expr::List(items) => {
            for item in items {
                paths(item, found);
            }
        }
        Expr::Map(pairs) => {
            for (_, value) in pairs {
                paths(value, found);
            }
        }
        Expr::Pair(one, two) | Expr::Binary(_, one, two) => {
            paths(one, found);
            paths(two, found);
        }
        _ => {}
    }
}

/// The nodes of one role: `$.network_metadata.nodes.values().where('x' in $.node_roles …)`.
fn nodes_of(expr: &Expr) -> Option<String> {
    let Expr::Call { of: Some(of), name, arguments } = expr else { return None };
    let Expr::Call { of: Some(nodes), name: values, .. } = &**of else { return None };
    let is_nodes = path(nodes).is_some_and(|path| path == ["network_metadata", "nodes"]);
    if name != "where" || values != "values" || !is_nodes {
        return None;
    }
    let mut roles = BTreeSet::new();
    let [condition] = arguments.as_slice() else { return None };
    each_role(condition, &mut roles)?;
    match roles.into_iter().collect::<Vec<_>>().as_slice() {
        [role] => Some(format!("nodes.{role}")),
        _ => None,
    }
}

fn each_role(condition: &Expr, roles: &mut BTreeSet<String>) -> Option<()> {
    match condition {
        Expr::Binary(Operator::Or, one, two) => {
            each_role(one, roles)?;
            each_role(two, roles)
        }
        Expr::Binary(Operator::In, one, two) => match (&**one, path(two)?.as_slice()) {
            (Expr::Text(role), [field]) if field == "node_roles" => {
                roles.insert(role.strip_prefix("primary-").unwrap_or(role).to_owned());
                Some(())
            }
            _ => None,
        },
        _ => None,
    }
}

/// As `inputs` say it.
fn insert(path: &[String], found: &mut BTreeSet<String>) {
    match path {
        [roles] if roles == "roles" => {
            found.extend(["node.role".to_owned(), "node.groups".to_owned()]);
        }
        [uid] if uid == "uid" => drop(found.insert("node.name".to_owned())),
        path => {
            let parts = std::iter::once("settings").chain(path.iter().map(String::as_str));
            found.insert(parts.collect::<Vec<_>>().join("."));
        }
    }
}

/// In the language of `when`, with how tightly it binds.
fn pure(expr: &Expr) -> Option<(String, u8)> {
    Some(match expr {
        Expr::Null => ("none".to_owned(), TIGHT),
        Expr::Bool(value) => (value.to_string(), TIGHT),
        Expr::Number(number) => (number.clone(), TIGHT),
        Expr::Text(text) if !text.contains(['\'', '\\']) => (format!("'{text}'"), TIGHT),
        Expr::Field(of, name) if **of == Expr::Root && name == "uid" => {
            ("node.name".to_owned(), TIGHT)
        }
        // Roles of a node are sets; only plain fields of the node can be translated.
        Expr::Field(of, name) if **of == Expr::Root && name == "roles" => return None,
        Expr::Field(..) => (looked_up(expr)?, TIGHT),
        Expr::Call { of: Some(_), name, .. } if name == "get" => (looked_up(expr)?, TIGHT),
        Expr::Not(inner) => (format!("not {}", closed(pure(inner)?, NOT)), NOT),
        Expr::Binary(Operator::And, one, two) => both(one, "and", two, AND)?,
        Expr::Binary(Operator::Or, one, two) => both(one, "or", two, OR)?,
        Expr::Binary(operator, one, two) => {
            let sign = match operator {
                Operator::Equal => "==",
                Operator::Unequal => "!=",
                Operator::Less => "<",
                Operator::Greater => ">",
                Operator::AtMost => "<=",
                Operator::AtLeast => ">=",
                Operator::In => "in",
                Operator::Or | Operator::And | Operator::Plus | Operator::Minus => return None,
            };
            let one = closed(pure(one)?, TIGHT);
            let two = closed(pure(two)?, TIGHT);
            (format!("{one} {sign} {two}"), COMPARED)
        }
        Expr::Call { of: None, name, arguments } if name == "len" => match arguments.as_slice() {
            [of] => (format!("{} | length", closed(pure(of)?, TIGHT)), COMPARED),
            _ => return None,
        },
        _ => return None,
    })
}

/// A piece of the settings. What `get` asks for need not be there.
fn looked_up(expr: &Expr) -> Option<String> {
    let mut asked = Vec::new();
    let path = keyed(expr, &mut asked)?;
    if asked.is_empty() {
        return Some(path);
    }
    let default = match expr {
        Expr::Call { arguments, .. } => match arguments.get(1) {
            Some(Expr::Map(_)) | None => "false".to_owned(),
            // There are no lists in our conditions; both are of no length.
            Some(Expr::List(items)) if items.is_empty() => "''".to_owned(),
            Some(default) => pure(default)?.0,
        },
        _ => "false".to_owned(),
    };
    let known: Vec<String> = asked.iter().map(|path| format!("{path} is defined")).collect();
    Some(format!("({path} if {} else {default})", known.join(" and ")))
}

/// The path, and those of its beginnings that may not be there.
fn keyed(expr: &Expr, asked: &mut Vec<String>) -> Option<String> {
    let (of, name, is_asked) = match expr {
        Expr::Root => return Some("settings".to_owned()),
        Expr::Field(of, name) => (of, name, false),
        Expr::Call { of: Some(of), name, arguments } if name == "get" && arguments.len() <= 2 => {
            let Some(Expr::Text(key)) = arguments.first() else { return None };
            (of, key, true)
        }
        _ => return None,
    };
    let of = keyed(of, asked)?;
    let path = if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        format!("{of}.{name}")
    } else if name.contains(['\'', '\\']) {
        return None;
    } else {
        format!("{of}['{name}']")
    };
    if is_asked {
        asked.push(path.clone());
    }
    Some(path)
}

/// A number that depends on settings: `switch(CONDITION => 1, true => 6)`.
pub(super) fn number(expr: &Expr) -> Option<String> {
    let Expr::Call { of: None, name, arguments } = expr else { return None };
    let [Expr::Pair(condition, one), Expr::Pair(otherwise, other)] = arguments.as_slice() else {
        return None;
    };
    match (&**one, &**otherwise, &**other) {
        (Expr::Number(one), Expr::Bool(true), Expr::Number(other)) if name == "switch" => {
            Some(format!("{one} if {} else {other}", pure(condition)?.0))
        }
        _ => None,
    }
}

fn both(one: &Expr, word: &str, two: &Expr, binding: u8) -> Option<(String, u8)> {
    let one = closed(pure(one)?, binding);
    let two = closed(pure(two)?, binding);
    Some((format!("{one} {word} {two}"), binding))
}
