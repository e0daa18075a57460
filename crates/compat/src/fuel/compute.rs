//! Dependency lists that Fuel computed for each node when it built the graph. Questions about the
//! roles of a node become sets of nodes, and questions about data are answered from the settings,
//! so that the lists can be written out.

use regex::Regex;
use serde_json::{Map, Value};

use super::names::{Names, NodeGroup};
use super::read::dependency;
use super::task::Dependency;
use super::yaql::{Expr, Operator};

/// Entries, each with the nodes of the task that it is for.
pub(super) type GuardedEntries<T> = Vec<(NodeGroup, T)>;

pub(super) struct Computer<'a> {
    pub(super) names: &'a Names,
    /// Fuel's data of the cluster.
    pub(super) settings: &'a Value,
}

type Computation<T> = Result<T, String>;

const UNKNOWN_COMPARISON: &str = "the left side of `> 0` is not supported; only \
     `len($.roles.toSet().intersect(…))` is";

impl Computer<'_> {
    pub(super) fn dependencies(&self, expr: &Expr) -> Computation<GuardedEntries<Dependency>> {
        let mut entries = Vec::new();
        self.cases(expr, NodeGroup::Everyone, &mut |item, guard| {
            let Expr::Map(pairs) = item else {
                return Err("an item of the list is not a map; write it as `{name: …}`".to_owned());
            };
            for (only, entry) in self.entries(pairs)? {
                entries.push((NodeGroup::all(vec![guard.clone(), only]), entry));
            }
            Ok(())
        })?;
        Ok(entries)
    }

    pub(super) fn names(&self, expr: &Expr) -> Computation<GuardedEntries<String>> {
        let mut entries = Vec::new();
        self.cases(expr, NodeGroup::Everyone, &mut |item, guard| {
            match self.data(item)? {
                Value::String(word) => entries.push((guard.clone(), word)),
                _ => {
                    return Err(
                        "an item of the list is not text; write the name of a task".to_owned()
                    );
                }
            }
            Ok(())
        })?;
        Ok(entries)
    }

    /// Each item of a list, or of the lists of a `switch`, with the nodes that it is for.
    fn cases(
        &self,
        expr: &Expr,
        guard: NodeGroup,
        each: &mut dyn FnMut(&Expr, &NodeGroup) -> Computation<()>,
    ) -> Computation<()> {
        match expr {
            Expr::List(items) => items.iter().try_for_each(|item| each(item, &guard)),
            Expr::Call { of: None, name, arguments } if name == "switch" => {
                let mut rest = guard;
                for case in arguments {
                    let Expr::Pair(condition, list) = case else {
                        return Err("a case of `switch` is not a pair; write `condition => list`"
                            .to_owned());
                    };
                    let who = self.who(condition)?;
                    self.cases(list, NodeGroup::all(vec![rest.clone(), who.clone()]), each)?;
                    rest = NodeGroup::all(vec![rest, who.not()]);
                }
                Ok(())
            }
            _ => {
                Err("the expression is neither a list nor a `switch`; write the list out"
                    .to_owned())
            }
        }
    }

    fn entries(&self, pairs: &[(Expr, Expr)]) -> Computation<GuardedEntries<Dependency>> {
        let mut map = Map::new();
        let mut prefix = None;
        for (key, value) in pairs {
            let key = match key {
                Expr::Name(key) | Expr::Text(key) => key.clone(),
                _ => return Err("a key of the map is not a word; write it in quotes".to_owned()),
            };
            match roles_with_prefix(value) {
                Some(text) if key == "role" => prefix = Some(text),
                _ => drop(map.insert(key, self.data(value)?)),
            }
        }
        let Some(prefix) = prefix else {
            return Ok(vec![(
                NodeGroup::Everyone,
                dependency("a computed list", &Value::Object(map))?,
            )]);
        };
        // Each role of the node selects the nodes of another role.
        let known: Vec<String> = self.names.every().collect();
        let mut entries = Vec::new();
        for name in &known {
            let other = format!("{prefix}{name}");
            if known.contains(&other) {
                map.insert("role".to_owned(), other.into());
                let entry = dependency("a computed list", &Value::Object(map.clone()))?;
                entries.push((self.named(std::slice::from_ref(name))?, entry));
            }
        }
        Ok(entries)
    }

    fn named(&self, names: &[String]) -> Computation<NodeGroup> {
        self.names.who(names).map_err(|error| error.to_string())
    }

    /// The nodes that a condition holds for.
    fn who(&self, condition: &Expr) -> Computation<NodeGroup> {
        match condition {
            Expr::Binary(Operator::Or, one, two) => {
                Ok(NodeGroup::any(vec![self.who(one)?, self.who(two)?]))
            }
            Expr::Binary(Operator::And, one, two) => {
                Ok(NodeGroup::all(vec![self.who(one)?, self.who(two)?]))
            }
            Expr::Not(inner) => self.who(inner).map(NodeGroup::not),
            Expr::Binary(Operator::In, one, two) if is_roles(two) => match &**one {
                Expr::Text(name) => self.named(std::slice::from_ref(name)),
                _ => Err("the left side of `in $.roles` is not text; write the name of a role"
                    .to_owned()),
            },
            Expr::Call { of: Some(of), name, arguments } if name == "any" && is_roles(of) => {
                match arguments.as_slice() {
                    [Expr::Call { of: Some(of), name, arguments }]
                        if **of == Expr::Root && name == "matches" =>
                    {
                        let [Expr::Text(text)] = arguments.as_slice() else {
                            return Err("`matches` has no pattern; give it one argument in quotes"
                                .to_owned());
                        };
                        let regex = Regex::new(text).map_err(|error| error.to_string())?;
                        let names: Vec<String> =
                            self.names.every().filter(|name| regex.is_match(name)).collect();
                        self.named(&names)
                    }
                    _ => {
                        Err("the argument of `any` is not supported; only `$.matches(…)` is"
                            .to_owned())
                    }
                }
            }
            Expr::Binary(Operator::Greater, one, two) if **two == Expr::Number("0".to_owned()) => {
                let shared = shared_roles(one).ok_or(UNKNOWN_COMPARISON)?;
                let names =
                    match self.data(shared)? {
                        Value::Array(names) => names,
                        Value::Null => Vec::new(),
                        _ => return Err(
                            "`intersect` has an argument that is not a list; give it role names"
                                .to_owned(),
                        ),
                    };
                let names: Vec<String> =
                    names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
                self.named(&names)
            }
            Expr::Binary(operator @ (Operator::Equal | Operator::Unequal), one, two) => {
                let is_equal = self.data(one)? == self.data(two)?;
                let holds = is_equal == (*operator == Operator::Equal);
                Ok(if holds { NodeGroup::Everyone } else { NodeGroup::Nobody })
            }
            other => {
                let value = self.data(other)?;
                let holds = match value {
                    Value::Null => false,
                    Value::Bool(value) => value,
                    Value::Array(items) => !items.is_empty(),
                    Value::String(text) => !text.is_empty(),
                    Value::Object(map) => !map.is_empty(),
                    Value::Number(number) => number.as_f64() != Some(0.0),
                };
                Ok(if holds { NodeGroup::Everyone } else { NodeGroup::Nobody })
            }
        }
    }

    fn data(&self, expr: &Expr) -> Computation<Value> {
        Ok(match expr {
            Expr::Null => Value::Null,
            Expr::Bool(value) => (*value).into(),
            Expr::Text(text) => text.clone().into(),
            Expr::Number(number) => {
                serde_json::from_str(number).map_err(|_| format!("`{number}` is not a number"))?
            }
            Expr::Root => self.settings.clone(),
            Expr::Field(of, name) => self.data(of)?.get(name).cloned().unwrap_or(Value::Null),
            Expr::Call { of: Some(of), name, arguments } if name == "get" => {
                let Some(Expr::Text(key)) = arguments.first() else {
                    return Err("`get` has no key; give it one in quotes".to_owned());
                };
                match (self.data(of)?.get(key), arguments.get(1)) {
                    (Some(value), _) => value.clone(),
                    (None, Some(default)) => self.data(default)?,
                    (None, None) => Value::Null,
                }
            }
            Expr::Call { of: Some(of), name, .. } if name == "toSet" => self.data(of)?,
            Expr::List(items) => {
                items.iter().map(|item| self.data(item)).collect::<Result<Vec<_>, _>>()?.into()
            }
            Expr::Map(pairs) if pairs.is_empty() => Value::Object(Map::new()),
            _ => return Err("the expression is not supported; write the list out".to_owned()),
        })
    }
}

fn is_roles(expr: &Expr) -> bool {
    match expr {
        Expr::Field(of, name) => **of == Expr::Root && name == "roles",
        Expr::Call { of: Some(of), name, .. } => name == "toSet" && is_roles(of),
        _ => false,
    }
}

/// `$.roles.select('primary-' + $)`.
fn roles_with_prefix(expr: &Expr) -> Option<&str> {
    let Expr::Call { of: Some(of), name, arguments } = expr else { return None };
    match arguments.as_slice() {
        [Expr::Binary(Operator::Plus, one, two)]
            if name == "select" && is_roles(of) && **two == Expr::Root =>
        {
            match &**one {
                Expr::Text(prefix) => Some(prefix),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The argument that the roles are compared with in `len($.roles.toSet().intersect(…))`.
fn shared_roles(expr: &Expr) -> Option<&Expr> {
    let Expr::Call { of: None, name, arguments } = expr else { return None };
    let [Expr::Call { of: Some(of), name: intersect, arguments }] = arguments.as_slice() else {
        return None;
    };
    let is_it = name == "len" && intersect == "intersect" && is_roles(of);
    arguments.first().filter(|_| is_it && arguments.len() == 1)
}
